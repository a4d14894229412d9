"""A bus's session with the content brokers: requests and answers, subscriptions, invitations.

A bus has one session, made when it first uses content. Its name at brokers is the bus's name
with the suffix `.content`, because the bus itself has a node on the same transport; users only see
the bus's name.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ensue.client.content.error_text import (
    RefusedRequest,
    display_name,
    explained,
    failure_of,
    in_words,
)
from ensue.client.failures import client_failure, fail
from ensue.client.received_event import CONTENT
from ensue.client.validation import PENDING_MAX, check_broker_name
from ensue.core.errors import (
    BadInput,
    EnsueError,
    LimitReached,
    LocalProtocolError,
    LogLost,
    TransactionAborted,
    limit_in,
    refused_event,
    refused_subscription,
)
from ensue.core.event import NAME_LENGTH_MAX, Event
from ensue.protocols.content.cells import headers_of
from ensue.protocols.content.client import Answered, Notified, SessionEnded, Welcomed
from ensue.protocols.content.filters.filter import event_of
from ensue.protocols.content.frames import Publication
from ensue.protocols.content.topology import server_of
from ensue.protocols.interface import Notification, Outcome, Refuse
from ensue.protocols.recorder import AlongsideRecorder
from ensue.protocols.transactions.client import Ceased, Concluded, Invitation, TransactionClient
from ensue.protocols.transactions.frames import begun_by
from ensue.protocols.transactions.nodes import ClientNode
from ensue.runtime.content_brokers import content_brokers_of
from ensue.runtime.driver import Driver
from ensue.runtime.hub_memory import Hub

__all__ = ["CONTENT", "ContentSession", "WithoutDeliveries", "content_event"]

PLAN_OVERHEAD_BYTES_MAX = 64 * 1024
"""Maximum bytes of a plan besides the payload of one event."""
_SUFFIX = f".{CONTENT}"

_log = logging.getLogger("ensue")


def content_event(publication: Publication) -> Event:
    """Return a publication as an event; its attributes are headers, as JSON."""
    return Event(
        topic=CONTENT,
        payload=publication.payload,
        publisher=publication.publisher.removesuffix(_SUFFIX),
        publisher_seq=publication.number,
        headers=headers_of(publication.attributes),
        published_at_ns=publication.published_at_ns,
    )


class Listener(Protocol):
    """The reader of a subscription."""

    def notified(self, notified: Notified) -> None:
        """Take an event."""

    def lost(self, reason: str, error: LogLost | None = None) -> None:
        """End with an error, maybe because a server has lost its log."""

    def withdrawn(self) -> None:
        """End: no more events come."""


class Recorded(Protocol):
    """A reader whose unread events must appear in the trace."""

    @property
    def is_recorded(self) -> bool:
        """Whether the trace has the outcome of all its events."""

    def record_unread(self, verdict: str) -> None:
        """Record the unread events as discarded."""


class _Buffer:
    """Events of a subscription that a plan makes, until its bus reads it.

    Other clients see a plan's subscriptions before it commits, so events may arrive before that.
    Aborting the plan drops them.
    """

    def __init__(self, events_max: int | None) -> None:
        self._events_max = events_max
        self.events: list[Notified] = []
        self.is_made = False
        """Whether the plan is committed, and the bus is about to read."""
        self.is_withdrawn = False

    @property
    def is_full(self) -> bool:
        """Whether the reader will overflow: one more event is kept, so that it notices."""
        return self._events_max is not None and len(self.events) > self._events_max

    def notified(self, notified: Notified) -> None:
        """Keep an event."""
        self.events.append(notified)

    def lost(self, reason: str, error: LogLost | None = None) -> None:
        """Drop all events."""
        del reason, error
        self.events.clear()

    def withdrawn(self) -> None:
        """Note that no more events come."""
        self.is_withdrawn = True


class WithoutDeliveries(AlongsideRecorder):
    """Records a session without deliveries, which readers record."""

    def outcome(
        self,
        node: str,
        subscription: str | None,
        effect: Outcome,
        at_ns: int,
        true_ns: int | None = None,
    ) -> None:
        """Leave out events."""
        if not (isinstance(effect, Notification) and isinstance(effect.value, Notified)):
            super().outcome(node, subscription, effect, at_ns, true_ns)


class ContentSession:
    """The session of one bus with the content brokers."""

    def __init__(self, hub: Hub, name: str, *, durable: str = "") -> None:
        self._hub = hub
        self._durable = durable
        """The durable subscription that it manages: its broker is where that is kept."""
        self.bus = name
        self.name = f"{name}{_SUFFIX}"
        if len(self.name) > NAME_LENGTH_MAX:
            raise BadInput(
                "a bus that uses content must have a name of at most "
                f"{NAME_LENGTH_MAX - len(_SUFFIX)} characters, got {len(name)}: {name[:20]!r}…"
            )
        self.brokers = content_brokers_of(hub)
        """The brokers of the hub; in memory they run while a session uses them."""
        self._answers: dict[int, asyncio.Future[Answered]] = {}
        self._readers: dict[str, Listener] = {}
        """By subscription."""
        self._left: dict[str, None] = {}
        """Subscriptions that the application has closed, for which events may still come."""
        self.recorded: dict[Recorded, None] = {}
        """Readers of this bus, where there is a trace."""
        self._beginning: dict[int, Callable[[Answered], object]] = {}
        """Requests for transactions that are to begin, each with the callback for its answer."""
        self._named: dict[str, str] = {}
        """By what an open transaction was called before it had a name: its name."""
        self._concluded: dict[str, list[Callable[[bool], object]]] = {}
        """By open transaction: callbacks for its end."""
        self.reason = ""
        """Why the last transaction was aborted, for those callbacks."""
        self.on_invited: Callable[[str, str, Publication], Awaitable[None]] | None = None
        """Called with a transaction, a path in it and the invitation."""
        self.takes: dict[str, tuple[str, Callable[[str, str, Publication], Awaitable[None]]]] = {}
        """By subscription to invitations: its filter, and what to call instead of `on_invited`."""
        self._taking = asyncio.Lock()
        """Held while `takes` changes."""
        self.on_made: Callable[[str, str], Awaitable[None]] | None = None
        """Called with the name and filter of a subscription that another bus's plan has made."""
        self.kept_max = PENDING_MAX
        """Number of events of such a subscription that are kept until it is read."""
        self.advertised: dict[str, str] = {}
        """By name: known advertisements of this bus; plans of other buses may make more."""
        self.unsettled: dict[asyncio.Future[Answered], str] = {}
        """Pending answers to published events, and their ids."""
        self._planned = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._driver: Driver[ClientNode] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._failure: EnsueError | None = None
        """Why the session has ended."""
        self._welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when all brokers know this client."""
        if not hub.server:
            self._start()  # In memory no broker has to be waited for.

    async def open(self) -> None:
        """Connect, unless connected; return when all brokers know this client."""
        if self._failure is not None:
            raise self._failure
        await self.opened()

    def opening(self) -> "asyncio.Task[None]":
        """Start connecting, unless that has begun; return the task."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            # A caller that does not await it gets the error from its next request.
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._opening

    def opened(self) -> "asyncio.Future[None]":
        """Start connecting; return what a caller may await, or cancel, for itself alone."""
        return self._end_of(self.opening())

    async def _open(self) -> None:
        if self._driver is None:
            await self._hub.enter(self.name)
            self._start()
        await self._welcomed

    def _start(self) -> None:
        hub = self._hub
        self._driver = Driver(
            self.brokers.client(self.name, durable=self._durable),
            transport=hub.transport,
            clock=hub.clock,
            on_outcomes=self._outcomes,
            recorder=None if hub.recorder is None else WithoutDeliveries(hub.recorder),
            seen_as=self.bus,
        )
        hub.watch(self._driver)

    @property
    def close_timeout_s(self) -> float:
        """How long leaving waits for pending answers."""
        return self._hub.close_timeout_s

    @property
    def payload_bytes_max(self) -> int:
        """Maximum bytes of a payload."""
        return self._hub.payload_bytes_max

    @property
    def plan_bytes_max(self) -> int:
        """Maximum bytes of a plan: the largest payload of one event, and the rest."""
        largest = self.payload_bytes_max
        return largest + min(largest // 8, PLAN_OVERHEAD_BYTES_MAX)

    # -- Requests -------------------------------------------------------------------------------

    def ask(self, command: Callable[[TransactionClient, int], int]) -> "asyncio.Future[Answered]":
        """Run a command that brokers answer; return the pending answer."""
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()

        def run(node: ClientNode, now_ns: int) -> None:
            inner = node.client
            assert isinstance(inner, TransactionClient)
            self._answers[command(inner, now_ns)] = future

        assert self._driver is not None
        self._driver.command(run)
        return future

    async def request(self, command: Callable[[TransactionClient, int], int]) -> Answered:
        """Run a command and await its answer; shielded, because it can't be undone."""
        await self.open()
        return await self.answer(self.ask(command))

    async def answer(self, future: "asyncio.Future[Answered]") -> Answered:
        """Await an answer; yield to other tasks even if it has arrived."""
        if future.done():
            await asyncio.sleep(0)
        return await asyncio.shield(future)

    def begin(self, isolation: str, timeout_ns: int, begun: Callable[[Answered], object]) -> str:
        """Begin a transaction; return what to call it until `begun` is called with the answer."""
        numbers: list[int] = []

        def begin(client: TransactionClient, now_ns: int) -> int:
            numbers.append(client.begin(isolation, timeout_ns, now_ns=now_ns))
            self._beginning[numbers[0]] = begun
            self._concluded[begun_by(numbers[0])] = []
            return numbers[0]

        answer = self.ask(begin)
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        return begun_by(numbers[0])

    def abort(self, begun: "asyncio.Future[Answered]") -> None:
        """Abort a transaction that no task awaits, or later ones would wait for it."""
        if begun.cancelled() or begun.exception() is not None or begun.result().refused:
            return
        name = begun.result().transaction
        if self._failure is None and self._driver is not None and not self._driver.closed:
            self.ask(lambda client, now: client.end(name, commit=False, now_ns=now))

    def withdraw(self, subscription: str) -> None:
        """Withdraw a subscription, in the background."""
        self.stop_reading(subscription)
        if self._driver is not None and not self._driver.closed:
            self._left[subscription] = None  # Events may still be delivered after this.
            asked = self.ask(lambda client, now: client.unsubscribe(subscription, now_ns=now))
            asked.add_done_callback(lambda _: self._left.pop(subscription, None))

    def begin_publishing(
        self, attributes: Mapping[str, object], payload: bytes
    ) -> "tuple[asyncio.Future[Answered], Event]":
        """Send an event; return the pending answer, and the event."""
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
        """Wait until the broker has an event."""
        answer = await self.answer(begun)
        if answer.refused:
            attributes = {name: msgspec.json.decode(text) for name, text in event.headers.items()}
            why = explained(
                answer.refused,
                RefusedRequest(
                    own=self.bus, event=attributes, advertised=tuple(self.advertised.values())
                ),
            )
            raise refused_event(f"no subscriber gets it: {why}", event=event.id, reason=why)
        return event

    async def wait_for_all(self) -> None:
        """Wait until brokers have confirmed all published events."""
        if self.unsettled:
            await asyncio.wait(self.unsettled)

    async def advertise(self, where: str) -> str:
        """Advertise what will be published; return the advertisement's name."""
        names: list[str] = []

        def advertise(client: TransactionClient, now_ns: int) -> int:
            number, name = client.advertise(where, now_ns=now_ns)
            names.append(name)
            return number

        await self.open()
        asked = self.ask(advertise)
        try:
            answer = await self.answer(asked)
        except asyncio.CancelledError:
            self._withdraw_advertisement(names[0])  # The caller does not get its name.
            raise
        if answer.refused:
            text = f"it can't be advertised: {in_words(answer.refused)}"
            found = limit_in(answer.refused)
            if found is not None:
                raise LimitReached(text, limit=found[0], value=found[1], reason=answer.refused)
            raise BadInput(text)
        self.advertised[names[0]] = where
        return names[0]

    def _withdraw_advertisement(self, name: str) -> None:
        """Withdraw an advertisement, in the background."""
        if self._failure is None and self._driver is not None and not self._driver.closed:
            self.ask(lambda client, now: client.unadvertise(name, now_ns=now))

    async def take_invitations(
        self, where: str, act: Callable[[str, str, Publication], Awaitable[None]] | None
    ) -> None:
        """Take invitations by content with a filter; None: no longer.

        Changes are made in sequence: each goes by what the one before it has done.
        """
        async with self._taking:
            await self._change_invitations(where, act)

    async def _change_invitations(
        self, where: str, act: Callable[[str, str, Publication], Awaitable[None]] | None
    ) -> None:
        had = [name for name, (its, _) in self.takes.items() if its == where]
        if act is not None and had:
            self.takes[had[0]] = (where, act)
            return
        if act is None:
            if had:
                await self.request(lambda client, now: client.unsubscribe(had[0], now_ns=now))
                del self.takes[had[0]]
            return
        names: list[str] = []

        def take(client: TransactionClient, now_ns: int) -> int:
            number, name = client.take_invitations(where, now_ns=now_ns)
            names.append(name)
            self.takes[name] = (where, act)  # An invitation may come before the answer.
            return number

        answer = await self.request(take)
        if answer.refused:
            del self.takes[names[0]]
            why = in_words(answer.refused)
            raise refused_subscription(f"it can't take invitations: {why}", reason=why)

    async def unadvertise(self, name: str) -> None:
        """Withdraw an advertisement."""
        check_broker_name(name, "advertise()")
        answer = await self.request(lambda client, now: client.unadvertise(name, now_ns=now))
        if answer.refused:
            raise BadInput(
                f"it can't be withdrawn: {in_words(answer.refused)}; give the name that "
                "advertise() returned, and once"
            )
        self.advertised.pop(name, None)

    # -- Subscriptions and transactions ---------------------------------------------------------

    def unique(self) -> str:
        """Return a unique part of a name."""
        self._planned += 1
        return f"{self.name.replace('.', '/')}-{self._planned}"

    def read(self, subscription: str, reader: Listener) -> None:
        """Give a reader the events of a subscription, beginning with those that were kept."""
        kept = self._readers.get(subscription)
        self._readers[subscription] = reader
        if isinstance(kept, _Buffer):
            for notified in kept.events:
                reader.notified(notified)
            if kept.is_withdrawn:
                reader.withdrawn()

    def stop_reading(self, subscription: str) -> None:
        """Give no more events to the reader of a subscription."""
        self._readers.pop(subscription, None)
        self._left.pop(subscription, None)

    def leave(self, subscription: str) -> None:
        """Stop reading a subscription that a transaction withdraws or may not make."""
        self.stop_reading(subscription)
        self._left[subscription] = None
        self._write({"action": "unsubscribed", "subscription": subscription})

    def when_over(self, transaction: str, call: Callable[[bool], object]) -> None:
        """Call back with whether a transaction was committed when it ends; at once if it has.

        No transaction commits before its operations have ended: then it was aborted.
        """
        waiting = self._concluded.get(self._named.get(transaction, transaction))
        if waiting is None:
            call(False)
        else:
            waiting.append(call)

    def _outcomes(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Notification):
                self._on_value(outcome.value)
            elif isinstance(outcome, Refuse):
                self._give_up(client_failure(outcome, self.bus))

    def _on_value(self, value: object) -> None:
        match value:
            case Answered():
                self._answered(value)
            case Notified():
                self._notified(value)
            case Concluded():
                self._conclude(value)
            case Ceased():
                self._end_withdrawn(value.subscriptions)
            case Invitation():
                self._concluded.setdefault(value.transaction, [])
                self._do(self._act(value))
            case Welcomed() if not self._welcomed.done():
                self._welcomed.set_result(None)
            case SessionEnded():
                why = f"{self.bus} was silent for too long, or did not keep up: connect again"
                self._give_up(LocalProtocolError(why))

    def _answered(self, answer: Answered) -> None:
        begun = self._beginning.pop(answer.number, None)
        if begun is not None:
            called = begun_by(answer.number)
            waiting = self._concluded.pop(called)
            if answer.refused:
                self.reason = answer.refused
                for call in waiting:
                    call(False)
            else:
                self._concluded[answer.transaction] = waiting
                self._named[called] = answer.transaction
            begun(answer)
        if answer.away:
            away = ",".join(server_of(each) for each in answer.away)
            _log.warning("content brokers away bus=%s away=%s", display_name(self.bus), away)
        future = self._answers.pop(answer.number, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def _notified(self, notified: Notified) -> None:
        """Give an event to its reader; keep it if a plan is about to make the subscription."""
        name = notified.subscription
        reader = self._readers.get(name)
        if reader is None and notified.position and name not in self._left:
            reader = self._readers[name] = self._new_buffer()
        if reader is None:
            self.record(notified, "discarded", 0, "not_subscribed")
        elif isinstance(reader, _Buffer) and reader.is_full:
            self.record(notified, "discarded", 0, "overflow")
        else:
            reader.notified(notified)

    def record(self, notified: Notified, action: str, position: int, verdict: str) -> None:
        """Write the outcome of an event into the trace, if there is one."""
        self._write(notified.row(action, position, verdict))

    def keep_recorded(self, reader: Recorded) -> None:
        """Record the outcomes of all events of a reader."""
        if self._hub.recorder is not None:
            self.recorded = {each: None for each in self.recorded if not each.is_recorded}
            self.recorded[reader] = None

    def _write(self, row: dict[str, Any]) -> None:
        recorder, now_ns = self._hub.recorder, self._hub.clock.now_ns()
        if recorder is not None:
            recorder.outcome(self.bus, None, Notification(None, row), now_ns)

    def _new_buffer(self) -> _Buffer:
        return _Buffer(None if self._hub.holds_publishers else self.kept_max)

    def _end_withdrawn(self, subscriptions: Sequence[str]) -> None:
        """End subscriptions that a transaction has withdrawn: no more events come."""
        for name in subscriptions:
            self._left.pop(name, None)
            reader = self._readers.get(name)
            if isinstance(reader, _Buffer) and not reader.is_made:
                del self._readers[name]  # The plan was aborted.
            elif reader is not None:
                reader.withdrawn()

    def _conclude(self, concluded: Concluded) -> None:
        """Run the callbacks of an ended transaction, and open its subscriptions."""
        self.reason = concluded.reason
        self._named = {
            called: name for called, name in self._named.items() if name != concluded.transaction
        }
        for call in self._concluded.pop(concluded.transaction, ()):
            call(concluded.committed)
        for name, where in concluded.subscriptions:
            self._made(name, where)

    def _do(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def begin_work(self, work: Coroutine[Any, Any, None]) -> "asyncio.Future[None]":
        """Begin work that the caller may await; its error is raised there, or nowhere.

        It goes on if the caller is cancelled.
        """
        return self._end_of(self._do(work))

    def _end_of(self, task: "asyncio.Task[None]") -> "asyncio.Future[None]":
        """Return the end of a task, to be awaited or not: cancelling it leaves the task.

        If closing cancels the task, the caller gets an error: it was not cancelled itself.
        """
        if task.done():
            return task
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def over(done: "asyncio.Task[None]") -> None:
            error = self._failure if done.cancelled() else done.exception()
            if isinstance(error, Exception):
                fail(end, error)
            elif end.done():
                pass
            elif done.cancelled():
                end.cancel()
            else:
                end.set_result(None)

        task.add_done_callback(over)
        return end

    def _made(self, name: str, where: str) -> None:
        """Give a planned subscription to the application, unless it reads it already."""
        kept = self._readers.setdefault(name, self._new_buffer())
        if not isinstance(kept, _Buffer):
            return
        if self.on_made is None:
            _log.warning(
                "plan subscription withdrawn bus=%s where=%r: call "
                "`await bus.on_subscription(handler)` there first",
                display_name(self.bus),
                where,
            )
            self._refuse(name, kept)
        else:
            kept.is_made = True
            self._do(self._hand_over(self.on_made, name, where))

    async def _hand_over(
        self, handler: Callable[[str, str], Awaitable[None]], name: str, where: str
    ) -> None:
        try:
            await handler(name, where)
        except Exception as error:  # noqa: BLE001 - the transaction is over: no caller to raise to
            who = display_name(self.bus)
            _log.warning("handler failed bus=%s handler=on_subscription", who, exc_info=error)
        kept = self._readers.get(name)
        if isinstance(kept, _Buffer):
            self._refuse(name, kept)  # It failed before it read.

    def _refuse(self, name: str, kept: _Buffer) -> None:
        """Withdraw a planned subscription that the application does not take."""
        if kept.is_withdrawn:
            self.stop_reading(name)
        else:
            self.withdraw(name)
        for notified in kept.events:
            self.record(notified, "discarded", 0, "not_subscribed")

    async def _act(self, invitation: Invitation) -> None:
        """Call the handler of invitations, and answer when it returns."""
        refused, who = "", display_name(self.bus)
        taken = (self.takes[name][1] for name in invitation.subscriptions if name in self.takes)
        act = next(taken, None if invitation.subscriptions else self.on_invited)
        if act is None:
            refused = (
                f"{who!r} takes no invitations: have it call `await bus.on_invitation(…)` first"
            )
        else:
            try:
                await act(invitation.transaction, invitation.path, invitation.publication)
            except TransactionAborted as error:
                refused = error.reason
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # The bus is closed: its broker answers for it.
                refused = f"the handler of {who!r} failed: {failure_of(error)}"
            except Exception as error:  # noqa: BLE001 - the transaction must not wait for ever
                _log.warning("handler failed bus=%s handler=on_invitation", who, exc_info=error)
                refused = f"the handler of {who!r} failed: {failure_of(error)}"
        name, path = invitation.transaction, invitation.path
        if self._failure is None and self._driver is not None and not self._driver.closed:
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
        """End the session, with its advertisements and subscriptions."""
        for reader in self.recorded:
            reader.record_unread("unread")
        self.recorded = {}
        closed = self._failure = self._failure or LocalProtocolError("the bus was closed")
        for task in self._tasks:
            task.cancel()
        if self._opening is not None:
            self._opening.cancel()
        if self._driver is not None:
            if not self._driver.closed:
                self._driver.command(lambda node, now: node.client.leave(now_ns=now))
                self._driver.close()
            self._hub.leave(self.name)
            self._give_up(closed)
        self.brokers.leave()
