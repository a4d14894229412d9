"""A causal node whose peers are other processes, known through a membership registry.

The node is made with complete lists of members, and follows updates (`MembershipClient`).

Warm-up. Existing members know subscriptions that a new one does not; events published without them
would miss their subscribers. So a new node sends a heartbeat to every member and takes no command
(`Resumed`) until each of them has sent what it knows, is suspected, or has had `answer_ns`. Members
that come later get the rows of this node the same way: of two that come or subscribe at once, one
learns of the other.

Events without a known subscriber. A member that did not answer in time, or was cut off from this
node for a while, may have subscribed. So such an event is not settled before the registry and the
members that it names have answered (`ReaderInquiries`): this node may be the only process that has
the event.

Topics are requested before use. An event whose topic is not granted yet waits, and so do all later
ones; when the topic is denied, its events are settled as void, with the reason.
"""

from collections.abc import Iterable, Mapping, Sequence

from ensue.core.event import Event
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.frames import Alive, Counts, Heartbeat, Row, Rows, Summary, Versions
from ensue.protocols.causal.hypercube import Hypercube, bits
from ensue.protocols.causal.node import CausalNode
from ensue.protocols.causal.reader_inquiries import ReaderInquiries
from ensue.protocols.interface import Effect, Frame, Refuse, Resumed
from ensue.protocols.membership.client import KnownMembers, MembershipClient

__all__ = ["RegisteredNode"]

GREET_NS = 100_000_000
"""Interval at which a new node repeats heartbeats to members that have not answered."""
LATE_GREET_NS = 1_000_000_000
"""Interval at which a node repeats heartbeats to members that may have subscribed."""


class RegisteredNode:
    """A `CausalNode` with its `MembershipClient`. `members` must be complete."""

    def __init__(
        self,
        *,
        name: str,
        registry: str,
        members: KnownMembers,
        config: CausalConfig,
        now_ns: int,
    ) -> None:
        self.name = name
        self.config = config
        self._client = client = MembershipClient(registry, members, now_ns=now_ns)
        self._cube = Hypercube(members.names)
        for number in members.gone:
            self._cube.remove(members.names[number])
        self._inquiries = ReaderInquiries(client, self._cube, name)
        self.node = CausalNode(
            name=name,
            names=self._cube,
            config=config,
            may_publish=lambda topic: client.may(topic, "publish"),
            all_publishers_known=self._all_publishers_known,
            unread=self._inquiries.unread,
            now_ns=now_ns,
        )
        self._unheard = self._cube.everyone & ~(1 << self.node.number)
        """Members that have not sent what they know since this node came, as a set."""
        self._late = 0
        """Those of them that the warm-up does not wait for any more."""
        self._is_warm = False
        self._announced: dict[int, dict[int, int]] = {}
        """By peer: versions of the rows that it is going to send."""
        self._missing: dict[str, tuple[int, Counts]] = {}
        """By topic: a poll of the registry, and the missing events by source that it came after."""
        self._greet_due_ns: int | None = now_ns
        self._greet_until_ns = now_ns + config.answer_ns
        """Until when to wait for members that are alive and do not send their rows."""
        self._greet(now_ns)

    @property
    def resigned(self) -> bool:
        """Whether the node has left, and the registry has confirmed it."""
        return self._client.resigned

    @property
    def number(self) -> int:
        """The number of this node."""
        return self.node.number

    @property
    def topics(self) -> tuple[str, ...]:
        """Subscribed topics that have been joined."""
        return self.node.topics

    @property
    def rows(self) -> tuple[Row, ...]:
        """The topics of each node, as far as this node knows."""
        return self.node.rows

    @property
    def unsettled_count(self) -> int:
        """Number of published events that are not settled."""
        return self.node.unsettled_count

    @property
    def held_count(self) -> int:
        """Number of received events that wait for their predecessors."""
        return self.node.held_count

    # -- Commands -------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        now_ns: int,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Event:
        """Publish an event; `Settle` reports its outcome."""
        if (reason := self._client.denied.get(topic)) is not None:
            return self.node.reject(topic, payload, reason, now_ns=now_ns, key=key, headers=headers)
        self._client.ask(topic, "publish", now_ns)
        return self.node.publish(topic, payload, now_ns=now_ns, key=key, headers=headers)

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Request topics; each takes effect with its `Join`, or is refused."""
        for topic in topics:
            if self._client.may(topic, "subscribe"):
                self.node.subscribe((topic,), now_ns=now_ns)
            else:
                self._client.ask(topic, "subscribe", now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics, effective immediately."""
        left = tuple(topics)
        for topic in left:
            self._client.withdraw(topic, "subscribe")
        self.node.unsubscribe(left, now_ns=now_ns)

    def pause(self) -> None:
        """Deliver nothing until `resume`."""
        self.node.pause()

    def resume(self, *, now_ns: int) -> None:
        """Resume deliveries."""
        self.node.resume(now_ns=now_ns)

    def say_goodbye(self, *, now_ns: int = 0) -> None:
        """Leave all topics, and deregister."""
        own = self.node.state.own_topics()
        self.node.state.wanted.update(dict.fromkeys(own))
        self.unsubscribe(own, now_ns=now_ns)
        self._client.resign()

    def repeat(self, *, now_ns: int) -> None:
        """Repeat requests, and check which peers are alive: the connection is new.

        The poll goes first. A server relays nothing over a connection before it.
        """
        self._client.repeat(now_ns)
        self.node.state.effects += self._client.take_effects()
        for peer in bits(self.node.state.detector.suspected & self._cube.everyone):
            self.node.neighbors.greet(peer, now_ns=now_ns)

    # -- Driven from outside --------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame of the registry or of another node."""
        if source == self._client.registry:
            if isinstance(frame, Summary):
                self.node.prove(frame, source)
            else:
                self._from_registry(frame, now_ns)
            return
        if source not in self._cube.numbers:
            self._client.stranger(source, frame, now_ns)
            return
        self.node.receive(frame, source=source, now_ns=now_ns)
        peer = self._cube.numbers[source]
        if (self._unheard | self._inquiries.owing) >> peer & 1 and self._has_sent_rows(frame, peer):
            self._unheard &= ~(1 << peer)
            if self._inquiries.received_rows(peer):
                self.node.advance(now_ns=now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Run due timers."""
        self._client.handle_timer(now_ns)
        if self._greet_due_ns is not None and self._greet_due_ns <= now_ns:
            self._greet(now_ns)
        self.node.handle_timer(now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due."""
        others = (self._greet_due_ns, self.node.next_timer_ns())
        dues = [due_ns for due_ns in others if due_ns is not None]
        return min([self._client.next_timer_ns(), *dues])

    def take_effects(self) -> Sequence[Effect]:
        """Drain the pending effects."""
        effects = [*self.node.take_effects(), *self._client.take_effects()]
        if not self._is_warm and not self._unheard & ~self._late:
            self._is_warm = True
            self._unheard = 0
            effects.append(Resumed())
        if not self._unheard and not self._inquiries.owing:
            self._greet_due_ns = None
        return effects

    # -- Registry -------------------------------------------------------------------------------

    def _from_registry(self, frame: Frame, now_ns: int) -> None:
        update = self._client.receive(frame, now_ns)
        names = self._client.members.names
        for name in update.came:
            self.node.admit(name, now_ns=now_ns)
            if self._client.introduce(name) is not None:
                # Frames it sent before were ignored: answer as if it had sent a heartbeat.
                self.node.neighbors.answer_heartbeat(
                    Heartbeat(digest=b""), self._cube.numbers[name]
                )
        for number in update.went:
            self._unheard &= ~(1 << number)
            self.node.dismiss(names[number], now_ns=now_ns)
        if update.granted is not None:
            if update.granted.action == "subscribe":
                self.node.subscribe((update.granted.topic,), now_ns=now_ns)
            self.node.advance(now_ns=now_ns)
        if update.denied is not None:
            topic, reason = update.denied.topic, update.denied.reason
            if update.denied.action == "subscribe":
                self.node.state.effects.append(Refuse((topic,), reason))
            else:
                self.node.refuse(topic, reason, now_ns=now_ns)
        if update.readers:
            self._ask_readers(self._inquiries.answer(update.readers), now_ns)
            self.node.advance(now_ns=now_ns)

    def _ask_readers(self, readers: int, now_ns: int) -> None:
        """Ask members for their rows: they may have subscribed."""
        for peer in bits(readers):
            self._announced.pop(peer, None)
            self.node.neighbors.greet(peer, now_ns=now_ns)
        if readers and self._greet_due_ns is None:
            self._greet_due_ns = now_ns + LATE_GREET_NS

    def _all_publishers_known(self, topic: str, last: Counts, now_ns: int) -> bool:
        """Return whether the registry answered a poll sent after events were missed.

        Then all processes are known that may have published before these events.
        """
        asked, missed = self._missing.get(topic, (0, {}))
        if any(missed.get(source, 0) < number for source, number in last.items()):
            self._client.question(now_ns)
            self._missing[topic] = self._client.asked, last
            return False
        return asked <= self._client.answered

    # -- Warm-up --------------------------------------------------------------------------------

    def _greet(self, now_ns: int) -> None:
        """Send heartbeats to members that owe their rows; do not wait for silent ones."""
        self._greet_due_ns = now_ns + (LATE_GREET_NS if self._is_warm else GREET_NS)
        for peer in bits(self._inquiries.owing):
            self.node.neighbors.greet(peer, now_ns=now_ns)
        for peer in bits(self._unheard & ~self._inquiries.owing):
            if self.node.state.detector.away(peer, now_ns) or not (
                0 < self._greet_until_ns - now_ns <= self.config.answer_ns
            ):
                self._late |= 1 << peer
            if not self._late >> peer & 1:
                self.node.neighbors.greet(peer, now_ns=now_ns)

    def _has_sent_rows(self, frame: Frame, peer: int) -> bool:
        """Return whether a peer has sent all rows it knows, with this frame."""
        match frame:
            case Alive():
                self._announced[peer] = {}
            case Versions(versions=versions):
                self._announced[peer] = versions
            case Rows() if peer in self._announced:
                pass
            case _:
                return False
        version = self.node.state.membership.version
        if any(version(node) < one for node, one in self._announced[peer].items()):
            return False
        del self._announced[peer]
        return True
