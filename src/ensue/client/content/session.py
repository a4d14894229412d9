"""A bus's client of the overlay: requests and their answers, subscriptions by content, invitations.

One client a bus, made when the bus first uses content. Its name among brokers is the bus's with `CONTENT` behind it, because the bus has a node of its own
on the same transport; people see the bus's name alone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ensue.client.checks import PENDING_MAX, check_broker_name
from ensue.client.futures import fail
from ensue.client.received import CONTENT
from ensue.client.wording import Situation, explained, failure_of, in_words, person
from ensue.errors import (
    BadInput,
    EnsueError,
    InternalError,
    LimitReached,
    LocalProtocolError,
    LogLost,
    TransactionAborted,
    limit_in,
    refused_client,
    refused_event,
)
from ensue.event import NAME_LENGTH_MAX, Event
from ensue.protocols.core import Outcome, Refuse, Told
from ensue.protocols.overlay.client import Answered, Notified, SessionEnded, Welcomed
from ensue.protocols.overlay.filters import event_of
from ensue.protocols.overlay.frames import Publication
from ensue.protocols.overlay.nodes import ClientNode, server_of
from ensue.protocols.transactions.client import Ceased, Concluded, Invitation, TransactionClient
from ensue.recorder import AlongsideRecorder
from ensue.runtime.driver import Driver, Failed
from ensue.runtime.hub import Hub
from ensue.runtime.overlay import overlay_of

__all__ = ["CONTENT", "ContentClient", "content_event"]

BESIDES_BYTES = 64 * 1024
_SUFFIX = f".{CONTENT}"

_log = logging.getLogger("ensue")


def content_event(publication: Publication) -> Event:
    """Return a publication as an event; its attributes are headers, as JSON."""
    headers = {
        name: msgspec.json.encode(value).decode() for name, value in publication.attributes.items()
    }
    return Event(
        topic=CONTENT,
        payload=publication.payload,
        publisher=publication.publisher.removesuffix(_SUFFIX),
        publisher_seq=publication.number,
        headers=headers,
        published_at_ns=publication.published_at_ns,
    )


class Listener(Protocol):
    """Whoever reads a subscription."""

    def notified(self, notified: Notified) -> None:
        """Take an event."""

    def lost(self, reason: str, error: LogLost | None = None) -> None:
        """Hear that nothing more comes, maybe because a server does not have its log any more."""

    def withdrawn(self) -> None:
        """Hear that nothing more comes, as was wanted."""


class Recorded(Protocol):
    """A subscription of which the trace says what became of its events."""

    @property
    def closed(self) -> bool:
        """Whether nothing more comes."""

    @property
    def waiting(self) -> int:
        """How many events are here and not handed out."""

    def record_rest(self, verdict: str) -> None:
        """Write what becomes of those."""


class _Kept:
    """What comes for a subscription that a plan makes, from when its home has it until its bus reads it.

    Others see a plan's subscriptions before it is committed, so events come before that, too. A plan that is aborted takes them with it.
    """

    def __init__(self, events_max: int | None) -> None:
        self._events_max = events_max
        self.events: list[Notified] = []
        self.is_made = False
        """Whether the plan is committed, and the bus about to read."""
        self.is_withdrawn = False

    @property
    def is_full(self) -> bool:
        """Whether there is more than whoever reads it has room for: one more is kept, so that it is told."""
        return self._events_max is not None and len(self.events) > self._events_max

    def notified(self, notified: Notified) -> None:
        """Keep an event."""
        self.events.append(notified)

    def lost(self, reason: str, error: LogLost | None = None) -> None:
        """Forget them."""
        del reason, error
        self.events.clear()

    def withdrawn(self) -> None:
        """Keep that nothing more comes."""
        self.is_withdrawn = True


class _Undelivered(AlongsideRecorder):
    """Writes what a client does; what its subscriptions are handed is written when they are."""

    def outcome(
        self,
        node: str,
        subscription: str | None,
        effect: Outcome,
        at_ns: int,
        true_ns: int | None = None,
    ) -> None:
        """Leave out events."""
        if not (isinstance(effect, Told) and isinstance(effect.value, Notified)):
            super().outcome(node, subscription, effect, at_ns, true_ns)


class ContentClient:
    """The client of one bus."""

    def __init__(self, hub: Hub, name: str) -> None:
        self._hub = hub
        self.bus = name
        self.name = f"{name}{_SUFFIX}"
        if len(self.name) > NAME_LENGTH_MAX:
            raise BadInput(
                f"a bus that uses content has a name of at most {NAME_LENGTH_MAX - len(_SUFFIX)} characters; "
                f"{name[:20]!r}… has {len(name)}"
            )
        self._overlay = overlay_of(hub)
        self._answers: dict[int, asyncio.Future[Answered]] = {}
        self._readers: dict[str, Listener] = {}
        """By subscription: who reads it."""
        self._left: dict[str, None] = {}
        """Subscriptions that the application has closed, and for which events may still come."""
        self.recorded: dict[Recorded, None] = {}
        """Subscriptions of this bus, where a trace says what became of their events."""
        self._beginning: dict[int, None] = {}
        """Requests for transactions that are to begin."""
        self._concluded: dict[str, list[Callable[[bool], object]]] = {}
        """By transaction that is open here: what to do when it is over."""
        self.reason = ""
        """Why the transaction that ended last was aborted, for what is called when it is over."""
        self.handler: Callable[[str, str, Publication], Awaitable[None]] | None = None
        self.on_made: Callable[[str, str], Awaitable[None]] | None = None
        """Given the name and the filter of a subscription that somebody's plan has made for this client."""
        self.kept_max = PENDING_MAX
        """How many events of such a subscription are kept until it is read."""
        self.advertised: dict[str, str] = {}
        """By name: what this bus has advertised and not withdrawn, as far as it knows; others may plan for it."""
        self.unsettled: dict[asyncio.Future[Answered], str] = {}
        """Answers to come about published events, and their ids."""
        self._planned = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._driver: Driver[ClientNode] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._failure: EnsueError | None = None
        """Why nothing can be done with it any more."""
        self._welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when everybody knows of this client."""
        if not hub.server:
            self._start()  # In memory nothing has to be waited for.

    async def open(self) -> None:
        """Come to one's home, unless that has been done; returns when everybody there knows of this client."""
        if self._failure is not None:
            raise self._failure
        await asyncio.shield(self.opening())

    def opening(self) -> "asyncio.Task[None]":
        """Begin to come to one's home, unless that has been done; return whoever is at it."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            # Whoever does not wait for it is told by what it asks for next.
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._opening

    async def _open(self) -> None:
        if self._driver is None:
            await self._hub.enter(self.name)
            self._start()
        await self._welcomed

    def _start(self) -> None:
        hub = self._hub
        self._driver = Driver(
            self._overlay.client(self.name),
            transport=hub.transport,
            clock=hub.clock,
            on_outcomes=self._outcomes,
            recorder=None if hub.recorder is None else _Undelivered(hub.recorder),
            seen_as=self.bus,
        )
        hub.watch(self._driver)

    @property
    def close_timeout_s(self) -> float:
        """How long leaving waits for answers that have not come."""
        return self._hub.close_timeout_s

    @property
    def payload_bytes_max(self) -> int:
        """Bytes of a payload, at the most."""
        return self._hub.payload_bytes_max

    @property
    def plan_bytes_max(self) -> int:
        """Bytes of a whole plan, at the most: of one event of the largest payload, and of what goes with it."""
        largest = self.payload_bytes_max
        return largest + min(largest // 8, BESIDES_BYTES)

    # -- Requests -------------------------------------------------------------------------------

    def ask(self, command: Callable[[TransactionClient, int], int]) -> "asyncio.Future[Answered]":
        """Give the client a command that is answered; return the answer to come."""
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()

        def run(node: ClientNode, now_ns: int) -> None:
            inner = node.client
            assert isinstance(inner, TransactionClient)
            self._answers[command(inner, now_ns)] = future

        assert self._driver is not None
        self._driver.command(run)
        return future

    async def request(self, command: Callable[[TransactionClient, int], int]) -> Answered:
        """Give a command and wait for its answer; shielded, because a command can't be taken back."""
        await self.open()
        return await self.answer(self.ask(command))

    async def answer(self, future: "asyncio.Future[Answered]") -> Answered:
        """Wait for an answer; let others have a turn even if it is there already."""
        if future.done():
            await asyncio.sleep(0)
        return await asyncio.shield(future)

    def begin(self, isolation: str, timeout_ns: int) -> "asyncio.Future[Answered]":
        """Have a transaction begin; return the answer to come, which has its name."""

        def begin(client: TransactionClient, now_ns: int) -> int:
            number = client.begin(isolation, timeout_ns, now_ns=now_ns)
            self._beginning[number] = None
            return number

        return self.ask(begin)

    def abort(self, begun: "asyncio.Future[Answered]") -> None:
        """End a transaction for which nobody waits any more, if it has begun: those that come after would wait for it."""
        if begun.cancelled() or begun.exception() is not None or begun.result().refused:
            return
        name = begun.result().transaction
        if self._failure is None and self._driver is not None and not self._driver.closed:
            self.ask(lambda client, now: client.end(name, commit=False, now_ns=now))

    def withdraw(self, subscription: str) -> None:
        """Withdraw a subscription; nobody waits for that."""
        self.stop_reading(subscription)
        if self._driver is not None and not self._driver.closed:
            self._left[subscription] = None  # What has come already may be told behind this.
            asked = self.ask(lambda client, now: client.unsubscribe(subscription, now_ns=now))
            asked.add_done_callback(lambda _: self._left.pop(subscription, None))

    def begin_publishing(
        self, attributes: Mapping[str, object], payload: bytes
    ) -> "tuple[asyncio.Future[Answered], Event]":
        """Hand an event over; return the answer to come, and the event."""
        made: list[Event] = []
        checked = event_of(attributes)

        def publish(client: TransactionClient, now_ns: int) -> int:
            number = client.publish(checked, payload, now_ns=now_ns)
            assert client.latest is not None
            made.append(content_event(client.latest))
            return number

        answer = self.ask(publish)
        event = made[0]
        self.unsettled[answer] = event.id
        answer.add_done_callback(lambda done: self.unsettled.pop(done, None))
        return answer, event

    async def published(self, begun: "asyncio.Future[Answered]", event: Event) -> Event:
        """Wait until its broker has an event."""
        answer = await self.answer(begun)
        if answer.refused:
            attributes = {name: msgspec.json.decode(text) for name, text in event.headers.items()}
            why = explained(
                answer.refused,
                Situation(
                    own=self.bus, event=attributes, advertised=tuple(self.advertised.values())
                ),
            )
            raise refused_event(f"nobody gets it: {why}", event=event.id, reason=why)
        return event

    async def wait_for_all(self) -> None:
        """Wait until brokers have everything that was published."""
        if self.unsettled:
            await asyncio.wait(self.unsettled)

    async def advertise(self, where: str) -> str:
        """Say what will be published; return the advertisement's name."""
        names: list[str] = []

        def advertise(client: TransactionClient, now_ns: int) -> int:
            number, name = client.advertise(where, now_ns=now_ns)
            names.append(name)
            return number

        answer = await self.request(advertise)
        if answer.refused:
            text = f"it can't be advertised: {in_words(answer.refused)}"
            found = limit_in(answer.refused)
            if found is not None:
                raise LimitReached(text, limit=found[0], value=found[1], reason=answer.refused)
            raise BadInput(text)
        self.advertised[names[0]] = where
        return names[0]

    async def unadvertise(self, name: str) -> None:
        """Withdraw an advertisement."""
        check_broker_name(name, "advertise()")
        answer = await self.request(lambda client, now: client.unadvertise(name, now_ns=now))
        if answer.refused:
            raise BadInput(
                f"it can't be withdrawn: {in_words(answer.refused)}; give the name that advertise() "
                "returned, and once"
            )
        self.advertised.pop(name, None)

    # -- Subscriptions and transactions ---------------------------------------------------------

    def unique(self) -> str:
        """Return a part of a name that is never used again."""
        self._planned += 1
        return f"{self.name.replace('.', '/')}-{self._planned}"

    def read(self, subscription: str, reader: Listener) -> None:
        """Hand what comes for a subscription to whoever reads it, beginning with what was kept for it."""
        kept = self._readers.get(subscription)
        self._readers[subscription] = reader
        if isinstance(kept, _Kept):
            for notified in kept.events:
                reader.notified(notified)
            if kept.is_withdrawn:
                reader.withdrawn()

    def stop_reading(self, subscription: str) -> None:
        """Hand nothing over any more."""
        self._readers.pop(subscription, None)
        self._left.pop(subscription, None)

    def leave(self, subscription: str) -> None:
        """Read a subscription no more that a transaction withdraws, or may not make."""
        self.stop_reading(subscription)
        self._left[subscription] = None
        self._write({"action": "unsubscribed", "subscription": subscription})

    def when_over(self, transaction: str, call: Callable[[bool], object]) -> None:
        """Be told whether a transaction was committed, when it is over; at once, if it is.

        None is committed before whatever was begun in it is over: so it was aborted.
        """
        waiting = self._concluded.get(transaction)
        if waiting is None:
            call(False)
        else:
            waiting.append(call)

    def _outcomes(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Told):
                self._told(outcome.value)
            elif isinstance(outcome, Refuse):
                self._refused(outcome)

    def _refused(self, outcome: Refuse) -> None:
        """Give everything up: a server will not have this client any more, or it has failed."""
        if isinstance(outcome, Failed) and isinstance(outcome.error, LogLost):
            self._give_up(outcome.error)
        elif isinstance(outcome, Failed):
            failed = InternalError(f"{self.bus} can't go on: {outcome.reason}")
            failed.__cause__ = outcome.error
            self._give_up(failed)
        else:
            why = f"the server refused this client: {outcome.reason}"
            self._give_up(refused_client(why, reason=outcome.reason))

    def _told(self, value: object) -> None:
        match value:
            case Answered():
                self._answered(value)
            case Notified():
                self._notified(value)
            case Concluded():
                self._over(value)
            case Ceased():
                self._cease(value.subscriptions)
            case Invitation():
                self._concluded.setdefault(value.transaction, [])
                self._do(self._act(value))
            case Welcomed() if not self._welcomed.done():
                self._welcomed.set_result(None)
            case SessionEnded():
                why = f"{self.bus} was silent for too long, or did not keep up: connect anew"
                self._give_up(LocalProtocolError(why))

    def _answered(self, answer: Answered) -> None:
        if answer.number in self._beginning:
            del self._beginning[answer.number]
            if not answer.refused:
                self._concluded[answer.transaction] = []
        if answer.away:
            away = ",".join(server_of(each) for each in answer.away)
            _log.warning("content_brokers_away bus=%s away=%s", person(self.bus), away)
        future = self._answers.pop(answer.number, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def _notified(self, notified: Notified) -> None:
        """Hand an event to its reader; keep it if a plan that makes the subscription is under way."""
        name = notified.subscription
        reader = self._readers.get(name)
        if reader is None and notified.position and name not in self._left:
            reader = self._readers[name] = self._new_kept()
        if reader is None:
            self.record(notified, "discarded", 0, "not_subscribed")
        elif isinstance(reader, _Kept) and reader.is_full:
            self.record(notified, "discarded", 0, "overflow")
        else:
            reader.notified(notified)

    def record(self, notified: Notified, action: str, position: int, verdict: str) -> None:
        """Write what became of an event into the trace, if there is one."""
        self._write(notified.row(action, position, verdict))

    def keep_recorded(self, subscription: "Recorded") -> None:
        """Have the trace say what became of the events of a subscription."""
        if self._hub.recorder is not None:
            over = [each for each in self.recorded if each.closed and not each.waiting]
            for each in over:
                del self.recorded[each]
            self.recorded[subscription] = None

    def _write(self, row: dict[str, Any]) -> None:
        recorder, now_ns = self._hub.recorder, self._hub.clock.now_ns()
        if recorder is not None:
            recorder.outcome(self.bus, None, Told(None, row), now_ns)

    def _new_kept(self) -> _Kept:
        return _Kept(None if self._hub.holds_publishers else self.kept_max)

    def _cease(self, subscriptions: Sequence[str]) -> None:
        """End what a transaction has withdrawn, now that nothing more comes for it."""
        for name in subscriptions:
            self._left.pop(name, None)
            reader = self._readers.get(name)
            if isinstance(reader, _Kept) and not reader.is_made:
                del self._readers[name]  # The plan was aborted.
            elif reader is not None:
                reader.withdrawn()

    def _over(self, concluded: Concluded) -> None:
        """See to the end of a transaction."""
        self.reason = concluded.reason
        for call in self._concluded.pop(concluded.transaction, ()):
            call(concluded.committed)
        for name, where in concluded.subscriptions:
            self._made(name, where)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _made(self, name: str, where: str) -> None:
        """See to a subscription that a plan has made: this bus's own has its reader already."""
        kept = self._readers.setdefault(name, self._new_kept())
        if not isinstance(kept, _Kept):
            return
        if self.on_made is None:
            _log.warning(
                "a plan subscribed %r to %r, and nobody takes it: call `await bus.on_subscription(handler)` "
                "there before; it was withdrawn",
                person(self.bus),
                where,
            )
            self.withdraw(name)
            for notified in kept.events:
                self.record(notified, "discarded", 0, "not_subscribed")
        else:
            kept.is_made = True
            self._do(self._hand_over(self.on_made, name, where))

    async def _hand_over(
        self, handler: Callable[[str, str], Awaitable[None]], name: str, where: str
    ) -> None:
        try:
            await handler(name, where)
        except Exception as error:  # noqa: BLE001 - the transaction is over: nobody else could be told
            who = person(self.bus)
            _log.warning("the handler that %r gave to on_subscription failed", who, exc_info=error)

    async def _act(self, invitation: Invitation) -> None:
        """Have the handler do what this client was invited to, and say when it has."""
        refused, who = "", person(self.bus)
        if self.handler is None:
            refused = (
                f"{who!r} takes no invitations: have it call `await bus.on_invitation(…)` first"
            )
        else:
            try:
                await self.handler(invitation.transaction, invitation.path, invitation.publication)
            except TransactionAborted as error:
                refused = error.reason
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # The bus is closed: its broker answers for it.
                refused = f"the handler of {who!r} failed: {failure_of(error)}"
            except Exception as error:  # noqa: BLE001 - whatever it is, the transaction must not wait
                _log.warning(
                    "the handler that %r gave to on_invitation failed", who, exc_info=error
                )
                refused = f"the handler of {who!r} failed: {failure_of(error)}"
        name, path = invitation.transaction, invitation.path
        if self._driver is not None and not self._driver.closed:
            self.ask(lambda client, now: client.finish(name, path, refused, now_ns=now))

    def _give_up(self, error: EnsueError) -> None:
        self._failure = self._failure or error
        fail(self._welcomed, error)
        answers, self._answers = self._answers, {}
        for future in answers.values():
            fail(future, error)
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.lost(str(error), error if isinstance(error, LogLost) else None)

    def close(self) -> None:
        """Leave the overlay: what was advertised and subscribed ends."""
        for subscription in self.recorded:
            subscription.record_rest("unread")
        self.recorded = {}
        for task in self._tasks:
            task.cancel()
        if self._opening is not None:
            self._opening.cancel()
        if self._driver is not None:
            if not self._driver.closed:
                self._driver.command(lambda node, now: node.client.leave(now_ns=now))
                self._driver.close()
            self._hub.leave(self.name)
            self._give_up(LocalProtocolError("the bus was closed"))
        self._overlay.leave()
