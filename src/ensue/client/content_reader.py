"""A subscription by content: no node of its own, but a share in its bus's client of the overlay."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ensue.client.checks import (
    PENDING_MAX,
    Acknowledge,
    check_acknowledge,
    check_pending_max,
)
from ensue.client.content import CONTENT, ContentClient, content_event
from ensue.client.reader import Reader
from ensue.errors import LogLost
from ensue.order import Order
from ensue.protocols.core import Deliver, Join, Leave, Outcome, Refuse
from ensue.protocols.overlay.client import Answered, Notified
from ensue.protocols.transactions.acting import OVER
from ensue.protocols.transactions.client import TransactionClient
from ensue.runtime.driver import Failed
from ensue.runtime.hub import Hub
from ensue.runtime.names import check_text

__all__ = ["ContentReader", "ContentShare", "ReadOptions", "Where"]


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How a subscription by content is read. Raises `BadInput` for what makes no sense."""

    name: str | None = None
    pending_max: int = PENDING_MAX
    acknowledge: Acknowledge = "auto"

    def __post_init__(self) -> None:
        check_pending_max(self.pending_max)
        check_acknowledge(self.acknowledge)
        if self.name is not None:
            check_text(self.name, "a subscription's name")


def _unlimited() -> None:
    """There is always room."""


@dataclass(frozen=True, kw_only=True)
class Where(Order):
    """What a subscription by content asks for: events as they come, of those that match."""

    name: ClassVar[str] = "none"

    where: str
    client: Any
    """The bus's client of the overlay."""
    transaction: str = ""
    """The transaction that subscribes; empty: none."""
    made: str = ""
    """The name of a subscription that a plan makes, or has made."""
    within: str = ""
    """The invitation within it, if this client does not coordinate."""
    options: ReadOptions = ReadOptions()
    room: Callable[[], int | None] = _unlimited
    """Says how many more events there is room for; None: any number."""


class ContentShare:
    """What one subscription sees of the bus's client."""

    def __init__(self, wanted: Where, on_outcome: Callable[[Outcome], None]) -> None:
        self._wanted = wanted
        self._client: ContentClient = wanted.client
        self._on_outcome = on_outcome
        self._position = 0
        self._undecided = bool(wanted.transaction)
        """Whether the transaction that subscribes is not over."""
        self._ended = ""
        """Its name among brokers, if it was ended before that."""
        self.subscription = ""
        """Its name among brokers."""
        self.draining = False
        """Whether a transaction has withdrawn it: events that were routed before may still come, until `withdrawn`."""
        self._unrecorded: dict[int, Notified] = {}
        """By position: what was handed to the subscription, and the trace has nothing of yet."""
        self._begun = ""
        """The transaction of which some events are here, and others follow."""
        self.topics: tuple[str, ...] = ()
        self.held_count = 0

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Ask for what is wanted; `Join` comes when that is in effect, or when the transaction has it."""
        del topics, now_ns
        wanted = self._wanted
        if wanted.made:
            self.subscription, self.topics = wanted.made, (CONTENT,)
            self._on_outcome(Join(CONTENT))
            self._client.read(wanted.made, self)
            return

        def subscribe(client: TransactionClient, now: int) -> int:
            if wanted.transaction:
                number, self.subscription = client.act(
                    wanted.transaction, "sub", within=wanted.within, where=wanted.where, now_ns=now
                )
            else:
                number, self.subscription = client.subscribe(wanted.where, now_ns=now)
            return number

        future = self._client.ask(subscribe)
        self._client.read(self.subscription, self)
        future.add_done_callback(self._answered)
        if wanted.transaction:
            self._client.when_over(wanted.transaction, self._concluded)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Withdraw it."""
        del topics, now_ns
        self.end()

    def end(self) -> None:
        """Hand nothing over any more, and tell the brokers."""
        name, self.subscription = self.subscription, ""
        self.topics = ()
        if name:
            self._client.stop_reading(name)
            if self._undecided or self.draining:
                self._ended = name  # Brokers don't have it, or not for good.
                self._client.leave(name)
            else:
                self._client.withdraw(name)

    def withdrawn(self) -> None:
        """Hear that it is over, and nothing more comes: a transaction has withdrawn it, whoever's that was."""
        self._client.stop_reading(self.subscription)
        self.subscription = ""
        if self.topics:
            self.topics = ()
            self._on_outcome(Leave(CONTENT))

    def acknowledge(self, position: int) -> None:
        """Do nothing: nothing is delivered again."""

    def _answered(self, future: "asyncio.Future[Answered]") -> None:
        if future.cancelled() or future.exception() is not None:
            return
        refused = future.result().refused
        if refused:
            self._client.stop_reading(self.subscription)
            self.subscription = ""
            self._on_outcome(Refuse((CONTENT,), refused))
        elif not self.subscription:
            self._on_outcome(Refuse((CONTENT,), OVER))  # It was aborted meanwhile.
        else:
            self.topics = (CONTENT,)
            self._on_outcome(Join(CONTENT))

    def _concluded(self, committed: bool) -> None:
        self._undecided = False
        if not committed:
            self._client.stop_reading(self._ended)
            self.withdrawn()
        elif self._ended:
            self._client.withdraw(self._ended)

    def lost(self, reason: str, error: LogLost | None = None) -> None:
        """Tell that nothing more comes, maybe because a server does not have its log any more."""
        self.subscription, self.topics = "", ()
        self._on_outcome(Refuse((), reason) if error is None else Failed((), error.reason, error))

    def notified(self, notified: Notified) -> None:
        """Hand an event over, or end before it if there is no room for it and what has to come with it."""
        if not self.subscription:
            self._client.record(notified, "discarded", 0, "not_subscribed")
            return
        if self._begun == notified.transaction != "":
            fits = True  # Room was found for all of them.
        else:
            fits = self._fits(1 + notified.following)
        self._begun = notified.transaction if notified.following else ""
        if not fits:
            self._overflow(notified)
            return
        self._position += 1
        if self._client.recorded:
            self._unrecorded[self._position] = notified
        self._on_outcome(Deliver(content_event(notified.publication), self._position))

    def handed(self, position: int, action: str, verdict: str = "") -> None:
        """Write into the trace what became of an event, once."""
        notified = self._unrecorded.pop(position, None)
        if notified is not None:
            self._client.record(notified, action, position, verdict)

    def _fits(self, count: int) -> bool:
        room = self._wanted.room()
        return room is None or count <= room

    def _overflow(self, notified: Notified) -> None:
        """End: nobody waits for a reader that does not keep up, nothing is kept for it elsewhere, and memory has an end."""
        limit, room = self._wanted.options.pending_max, self._wanted.room() or 0
        if notified.transaction:
            more = (
                f"a transaction brings {1 + notified.following} more, which come all or not at all"
            )
        else:
            more = "another one has come"
        self.end()
        self._client.record(notified, "discarded", 0, "overflow")
        self.lost(
            f"it did not keep up: {limit - room} events are unread, {more}, "
            f"and pending_max is {limit}; read it faster, or give it more"
        )


class ContentReader(Reader):
    """Has a share in the client of its bus."""

    def __init__(self, hub: Hub, *, name: str, wanted: Where) -> None:
        super().__init__(
            hub, name=name, order=wanted, durable=False, acknowledge_each=False, start=None
        )
        self._wanted = wanted
        self._share: ContentShare | None = None

    @property
    def node(self) -> Any:
        """The share, which knows topics and positions as a node does."""
        return self._share

    @property
    def started(self) -> bool:
        """Whether there is a share to be ended."""
        return self._share is not None

    async def open(
        self,
        *,
        client: str,
        subscription: str,
        on_outcomes: Callable[[Sequence[Outcome]], None],
    ) -> None:
        """Take the share."""
        del client, subscription
        await self._wanted.client.open()
        if self.resumed.done():
            self.resumed.result()  # It was closed meanwhile: this raises.
        self._share = ContentShare(self._wanted, lambda outcome: on_outcomes((outcome,)))
        self.resumed.set_result(None)
        await asyncio.sleep(0)

    def command(self, call: Callable[[Any, int], object]) -> None:
        """Give the share a command."""
        assert self._share is not None
        call(self._share, self._hub.clock.now_ns())

    def pause(self) -> None:
        """Do nothing: the share ends when there is no room for what comes next."""

    def resume(self) -> None:
        """Do nothing: there are no pauses."""

    def retire(self, topics: tuple[str, ...]) -> None:
        """End the share."""
        del topics
        if self._share is not None:
            self._share.end()

    def rest(self, *, silently: bool = False) -> None:
        """End the share."""
        del silently
        self.retire(())
