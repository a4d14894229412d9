"""A broker whose other brokers are processes: it knows of them by a registry.

It is made with the lists that the registry told, and keeps them up to date (`enlistment`). Events whose topics are not granted yet wait, and all that were
published after them; their time begins when they go out.

Settling in. Whoever was there before is in groups that a newcomer does not know of, and events published without them would reach nobody. So a newcomer
tells everybody its groups, which are none, and takes no command (`Resumed`) until each has answered with its own, or for `SETTLE_NS`.

Clocks. Deadlines are times, and everybody judges them by its own clock. What messages show of other clocks and of delays is
measured (`watching`), and told as an `Alert`: a clock that is ahead by more than `skew_ns`, a message that takes longer than it is of use.

HAZARD: by how much a receiver's clock is ahead of a publisher's, by that much less time its events have on their way; by how much it is behind, by
that much later than meant they may be handed over, and nobody notices. Beyond `skew_ns` an effect may come before its cause.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from ensue.event import Event
from ensue.protocols.core import Effect, Frame, Refuse, Resumed, Settle
from ensue.protocols.enlistment import Enlistment, Lists
from ensue.protocols.gossip.broker import GossipBroker
from ensue.protocols.gossip.config import GossipConfig
from ensue.protocols.gossip.frames import Message
from ensue.protocols.watching import Bounds, Watch

__all__ = ["EnrolledBroker"]

SETTLE_NS = 2_000_000_000
"""A newcomer waits no longer for those who do not answer."""
CALM_LIFETIMES = 16
"""A sender has been calm after so many times the life of an event."""


class EnrolledBroker(GossipBroker):
    """One broker. `lists` are whole, and name it."""

    def __init__(
        self, *, name: str, registry: str, lists: Lists, config: GossipConfig, now_ns: int
    ) -> None:
        super().__init__(
            name=name, names=lists.names, gone=lists.gone, config=config, now_ns=now_ns
        )
        self.relayed = True
        self._enlistment = Enlistment(registry, lists, now_ns=now_ns)
        self._settle_due_ns: int | None = now_ns + SETTLE_NS
        bounds = Bounds(
            clock_ticks=config.skew_ns,
            delay_ticks=config.lifetime_ns,
            calm_ticks=CALM_LIFETIMES * config.lifetime_ns,
        )
        self.watch = Watch(bounds, self.counts)
        self._advance(now_ns)

    @property
    def settled_in(self) -> bool:
        """Whether it takes commands."""
        return self._settle_due_ns is None

    @property
    def resigned(self) -> bool:
        """Whether it has left, and the registry knows."""
        return self._enlistment.resigned

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
        """Take charge of an event; its fate comes as `Settle`."""
        denied = self._enlistment.denied
        if topic in denied:
            event = self._numbers.make(topic, payload, now_ns=now_ns, key=key, headers=headers)
            self._handing.effects.append(Settle(event, "void", denied[topic]))
            return event
        self._enlistment.ask(topic, "publish", now_ns)
        return super().publish(
            topic, payload, now_ns=now_ns, key=key, headers=headers, lifetime_ns=lifetime_ns
        )

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Ask for topics; each takes effect with its `Join`, or is refused."""
        granted: list[str] = []
        for topic in topics:
            if self._enlistment.may(topic, "subscribe"):
                granted.append(topic)
            else:
                self._enlistment.ask(topic, "subscribe", now_ns)
        super().subscribe(granted, now_ns=now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave groups, at once."""
        left = tuple(topics)
        for topic in left:
            self._enlistment.withdraw(topic, "subscribe")
        super().unsubscribe(left, now_ns=now_ns)

    def say_goodbye(self) -> None:
        """Leave for good."""
        self._enlistment.resign()

    def repeat(self, *, now_ns: int) -> None:
        """Say again what may be lost: the connection is new."""
        self._enlistment.repeat(now_ns)
        self._groups.repeat(now_ns)
        self._advance(now_ns)

    # -- Driven from outside --------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame of the registry or of another broker."""
        if source == self._enlistment.registry:
            self._from_registry(frame, now_ns)
            return
        peer = self._numbers_of.get(source)
        if peer is None:
            self._enlistment.stranger(source, frame, now_ns)
            return
        if isinstance(frame, Message) and frame.source == peer:
            made_ns = frame.event.published_at_ns
            self._handing.effects += self.watch.arrived(source, made_ns, now_ns)
        super().receive(frame, source=source, now_ns=now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Do what is due."""
        self._enlistment.handle_timer(now_ns)
        super().handle_timer(now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when something is due."""
        dues = (self._settle_due_ns, super().next_timer_ns())
        return min(
            [self._enlistment.next_timer_ns(), *(due_ns for due_ns in dues if due_ns is not None)]
        )

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects = [*super().take_effects(), *self._enlistment.effects]
        self._enlistment.effects = []
        return effects

    # -- Within ---------------------------------------------------------------------------------

    def _from_registry(self, frame: Frame, now_ns: int) -> None:
        news = self._enlistment.receive(frame, now_ns)
        for name in news.came:
            self.admit(name, now_ns=now_ns)
            if (said := self._enlistment.introduce(name)) is not None:
                self.receive(said, source=name, now_ns=now_ns)
        for number in news.went:
            self.dismiss(self._names[number], now_ns=now_ns)
            self.watch.peers.pop(self._names[number], None)
        if news.granted is not None:
            if news.granted.action == "subscribe":
                super().subscribe((news.granted.topic,), now_ns=now_ns)
            self._advance(now_ns)
        if news.denied is not None:
            topic, reason = news.denied.topic, news.denied.reason
            if news.denied.action == "subscribe":
                self._handing.effects.append(Refuse((topic,), reason))
            else:
                self._refuse_outgoing(topic, reason, now_ns)

    def _advance(self, now_ns: int) -> None:
        super()._advance(now_ns)
        until_ns = self._settle_due_ns
        if until_ns is not None and (
            self._groups.all_noted() or not now_ns < until_ns <= now_ns + SETTLE_NS
        ):
            self._settle_due_ns = None
            self._handing.effects.append(Resumed())

    def _may_send(self) -> bool:
        return self._enlistment.may(self._outgoing[0][0].topic, "publish")

    def _refuse_outgoing(self, topic: str, reason: str, now_ns: int) -> None:
        """Settle what waits to be published on a topic: it never will be."""
        for event, _ in self._outgoing:
            if event.topic == topic:
                self._handing.effects.append(Settle(event, "void", reason))
        self._outgoing = deque(each for each in self._outgoing if each[0].topic != topic)
        self._advance(now_ns)
