"""A deadline broker whose peers are other processes, known through a membership registry.

The broker is made with complete lists of members, and follows updates (`MembershipClient`). An
event whose topic is not granted yet waits, and so do all later ones; its lifetime begins when it is
sent.

Warm-up. Existing members are in groups that a new broker does not know; events published without
them would miss their subscribers. So a new broker sends its groups (none) to every member and
takes no command (`Resumed`) until each has answered with its own, or `SETTLE_NS` have passed.

Clocks. Deadlines are points in time, judged by the clock of each process. Messages show how far
other clocks and delays are off (`clock_monitor`). An `Alert` reports a clock that is ahead by more
than `skew_ns`, and a message that takes longer than its lifetime.

HAZARD: a receiver whose clock is ahead of the publisher's shortens the lifetime of its events by as
much. One that is behind may deliver later than intended by as much, unnoticed. Beyond `skew_ns` an
effect may be delivered before its cause.
"""

from collections.abc import Iterable, Mapping, Sequence

from ensue.core.event import Event
from ensue.protocols.deadline.broker import DeadlineBroker
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.delivery import DeadlineCounts
from ensue.protocols.deadline.frames import Message
from ensue.protocols.interface import Effect, Frame, Refuse, Resumed
from ensue.protocols.membership.client import KnownMembers, MembershipClient
from ensue.protocols.shared.clock_monitor import Bounds, ClockMonitor

__all__ = ["RegisteredBroker"]

SETTLE_NS = 2_000_000_000
"""How long a new broker waits for members that do not answer."""
CALM_LIFETIMES = 16
"""Event lifetimes without a violation after which a sender counts as calm."""


class RegisteredBroker:
    """A `DeadlineBroker` with its `MembershipClient`. `members` must be complete."""

    def __init__(
        self,
        *,
        name: str,
        registry: str,
        members: KnownMembers,
        config: DeadlineConfig,
        now_ns: int,
    ) -> None:
        self.name = name
        self._client = client = MembershipClient(registry, members, now_ns=now_ns)
        self.broker = DeadlineBroker(
            name=name,
            names=members.names,
            gone=members.gone,
            config=config,
            relayed=True,
            may_publish=lambda topic: client.may(topic, "publish"),
            now_ns=now_ns,
        )
        self._settle_due_ns: int | None = now_ns + SETTLE_NS
        bounds = Bounds(
            clock_ticks=config.skew_ns,
            delay_ticks=config.lifetime_ns,
            calm_ticks=CALM_LIFETIMES * config.lifetime_ns,
        )
        self.watch = ClockMonitor(bounds, self.counts)
        self._settle(now_ns)

    @property
    def ready(self) -> bool:
        """Whether the warm-up is over, and commands are taken."""
        return self._settle_due_ns is None

    @property
    def resigned(self) -> bool:
        """Whether the broker has left, and the registry has confirmed it."""
        return self._client.resigned

    @property
    def topics(self) -> tuple[str, ...]:
        """The groups in effect."""
        return self.broker.topics

    @property
    def counts(self) -> DeadlineCounts:
        """Outcomes of the received events."""
        return self.broker.counts

    @property
    def held_count(self) -> int:
        """Number of received events that wait for their predecessors."""
        return self.broker.held_count

    @property
    def unsettled_count(self) -> int:
        """Number of published events that are not sent."""
        return self.broker.unsettled_count

    # -- Commands -------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        now_ns: int,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        lifetime_ns: int | None = None,
    ) -> Event:
        """Publish an event; `Settle` reports its outcome."""
        if (reason := self._client.denied.get(topic)) is not None:
            return self.broker.reject(
                topic, payload, reason, now_ns=now_ns, key=key, headers=headers
            )
        self._client.ask(topic, "publish", now_ns)
        return self.broker.publish(
            topic, payload, now_ns=now_ns, key=key, headers=headers, lifetime_ns=lifetime_ns
        )

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Request topics; each takes effect with its `Join`, or is refused."""
        granted: list[str] = []
        for topic in topics:
            if self._client.may(topic, "subscribe"):
                granted.append(topic)
            else:
                self._client.ask(topic, "subscribe", now_ns)
        self.broker.subscribe(granted, now_ns=now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave groups, effective immediately."""
        left = tuple(topics)
        for topic in left:
            self._client.withdraw(topic, "subscribe")
        self.broker.unsubscribe(left, now_ns=now_ns)

    def acknowledge(self, position: int) -> None:
        """Do nothing: no event is delivered again."""

    def pause(self) -> None:
        """Deliver nothing until `resume`."""
        self.broker.pause()

    def resume(self, *, now_ns: int) -> None:
        """Resume deliveries."""
        self.broker.resume(now_ns=now_ns)

    def say_goodbye(self) -> None:
        """Deregister."""
        self._client.resign()

    def repeat(self, *, now_ns: int) -> None:
        """Repeat all requests: the connection is new."""
        self._client.repeat(now_ns)
        self.broker.repeat(now_ns=now_ns)

    # -- Driven from outside --------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame of the registry or of another broker."""
        if source == self._client.registry:
            self._from_registry(frame, now_ns)
        else:
            self._from_peer(frame, source, now_ns)
        self._settle(now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Run due timers."""
        self._client.handle_timer(now_ns)
        self.broker.handle_timer(now_ns=now_ns)
        self._settle(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due."""
        dues = (self._settle_due_ns, self.broker.next_timer_ns())
        return min(
            [self._client.next_timer_ns(), *(due_ns for due_ns in dues if due_ns is not None)]
        )

    def take_effects(self) -> Sequence[Effect]:
        """Drain the pending effects."""
        return [*self.broker.take_effects(), *self._client.take_effects()]

    # -- Internal -------------------------------------------------------------------------------

    def _from_peer(self, frame: Frame, source: str, now_ns: int) -> None:
        peer = self.broker.number_of(source)
        if peer is None:
            self._client.stranger(source, frame, now_ns)
            return
        if isinstance(frame, Message) and frame.source == peer:
            sent_ns = frame.event.published_at_ns
            self.broker.effects.extend(self.watch.arrived(source, sent_ns, now_ns))
        self.broker.receive(frame, source=source, now_ns=now_ns)

    def _from_registry(self, frame: Frame, now_ns: int) -> None:
        update = self._client.receive(frame, now_ns)
        names = self._client.members.names
        for name in update.came:
            self.broker.admit(name, now_ns=now_ns)
            if (said := self._client.introduce(name)) is not None:
                self._from_peer(said, name, now_ns)
        for number in update.went:
            self.broker.dismiss(names[number], now_ns=now_ns)
            self.watch.peers.pop(names[number], None)
        if update.granted is not None:
            if update.granted.action == "subscribe":
                self.broker.subscribe((update.granted.topic,), now_ns=now_ns)
            self.broker.advance(now_ns=now_ns)
        if update.denied is not None:
            topic, reason = update.denied.topic, update.denied.reason
            if update.denied.action == "subscribe":
                self.broker.effects.append(Refuse((topic,), reason))
            else:
                self.broker.refuse(topic, reason, now_ns=now_ns)

    def _settle(self, now_ns: int) -> None:
        """Take commands once all members have noted this broker, or the warm-up is over."""
        until_ns = self._settle_due_ns
        if until_ns is not None and (
            self.broker.all_noted() or not now_ns < until_ns <= now_ns + SETTLE_NS
        ):
            self._settle_due_ns = None
            self.broker.effects.append(Resumed())
