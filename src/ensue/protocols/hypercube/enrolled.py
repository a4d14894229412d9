"""A node of a cube whose other nodes are processes: it knows of them by a registry.

It is made with the lists that the registry told (`enrolment`), and keeps them up to date (`enlistment`). A stranger repeats what got no answer.

Settling in. Whoever was there before knows subscriptions that a newcomer does not, and events published without them would reach
nobody. So a newcomer greets everybody and takes no command (`Resumed`) until each has told what it knows, is suspected, or has had `answer_ns`. Whoever
comes later is told by those it greets in turn, this node included: of two who come or subscribe at once, one is told by the other.

Topics are asked for before they are used (`Ask`). An event whose topic is not granted yet waits, and all that were published after it; one that is
denied is settled as void, with the reason, as are all later ones of its topic.
"""

from collections.abc import Iterable, Mapping, Sequence

from ensue.event import Event
from ensue.protocols.core import Effect, Frame, Refuse, Resumed, Settle
from ensue.protocols.enlistment import Enlistment, Lists
from ensue.protocols.hypercube.config import HypercubeConfig
from ensue.protocols.hypercube.cube import bits
from ensue.protocols.hypercube.frames import Beat, Counts, Here, Rows, Versions
from ensue.protocols.hypercube.node import HypercubeNode

__all__ = ["EnrolledNode"]

GREET_NS = 100_000_000
"""A newcomer greets those again after so long who have not answered."""


class EnrolledNode(HypercubeNode):
    """One node. `lists` are whole, and name it."""

    def __init__(
        self,
        *,
        name: str,
        registry: str,
        lists: Lists,
        config: HypercubeConfig,
        now_ns: int,
    ) -> None:
        super().__init__(name=name, names=lists.names, config=config, now_ns=now_ns)
        self._enlistment = Enlistment(registry, lists, now_ns=now_ns)
        for number in lists.gone:
            self._cube.remove(lists.names[number])
        self._unheard = self._cube.everyone & ~(1 << self.number)
        """Who has not told yet what it knows, as a set."""
        self._told: dict[int, dict[int, int]] = {}
        """By peer: versions of rows that it has and said it would send."""
        self._inquiries: dict[str, tuple[int, Counts]] = {}
        """By topic: up to which numbers of which sources something is missing, and which question to the registry came after that."""
        self._forsaking.everybody_known = self._knows_everybody
        self._greet_due_ns: int | None = now_ns
        self._greet_until_ns = now_ns + config.answer_ns
        """When those are waited for no more who are heard, and don't tell."""
        self._greet(now_ns)

    @property
    def settled_in(self) -> bool:
        """Whether it takes commands."""
        return self._greet_due_ns is None

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
    ) -> Event:
        """Take charge of an event; its fate comes as `Settle`."""
        denied = self._enlistment.denied
        if topic not in denied:
            self._enlistment.ask(topic, "publish", now_ns)
            return super().publish(topic, payload, now_ns=now_ns, key=key, headers=headers)
        event = self._events.make(topic, payload, now_ns=now_ns, key=key, headers=headers)
        self._effects.append(Settle(event, "void", denied[topic]))
        return event

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Ask for topics; each takes effect with its `Join`, or is refused."""
        for topic in topics:
            if self._enlistment.may(topic, "subscribe"):
                super().subscribe((topic,), now_ns=now_ns)
            else:
                self._enlistment.ask(topic, "subscribe", now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics, at once."""
        left = tuple(topics)
        for topic in left:
            self._enlistment.withdraw(topic, "subscribe")
        super().unsubscribe(left, now_ns=now_ns)

    def say_goodbye(self, *, now_ns: int = 0) -> None:
        """Leave all topics, and the cube for good."""
        super().say_goodbye(now_ns=now_ns)
        self._enlistment.resign()

    def repeat(self, *, now_ns: int) -> None:
        """Say again what may be lost, and see who is there: the connection is new."""
        self._enlistment.repeat(now_ns)
        for peer in bits(self._suspects.suspected & self._cube.everyone):
            self._neighbours.greet(peer, now_ns=now_ns)

    # -- Driven from outside --------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame of the registry or of another node."""
        if source == self._enlistment.registry:
            self._from_registry(frame, now_ns)
            return
        if source not in self._cube.numbers:
            self._enlistment.stranger(source, frame, now_ns)
            return
        super().receive(frame, source=source, now_ns=now_ns)
        if self._unheard:
            self._listen(frame, self._cube.numbers[source])

    def handle_timer(self, *, now_ns: int) -> None:
        """Do what is due."""
        self._enlistment.handle_timer(now_ns)
        if self._greet_due_ns is not None and self._greet_due_ns <= now_ns:
            self._greet(now_ns)
        super().handle_timer(now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when something is due."""
        others = (self._greet_due_ns, super().next_timer_ns())
        dues = [due_ns for due_ns in others if due_ns is not None]
        return min([self._enlistment.next_timer_ns(), *dues])

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects = [*super().take_effects(), *self._enlistment.effects]
        self._enlistment.effects = []
        if self._greet_due_ns is not None and not self._unheard:
            self._greet_due_ns = None
            effects.append(Resumed())
        return effects

    # -- The registry ---------------------------------------------------------------------------

    def _from_registry(self, frame: Frame, now_ns: int) -> None:
        news = self._enlistment.receive(frame, now_ns)
        names = self._enlistment.lists.names
        for name in news.came:
            self.admit(name, now_ns=now_ns)
            if self._enlistment.introduce(name) is not None:
                # As if it had asked: what it sent before was not understood.
                self._neighbours.beat(Beat(digest=b""), self._cube.numbers[name])
        for number in news.went:
            self._unheard &= ~(1 << number)
            self.dismiss(names[number], now_ns=now_ns)
        if news.granted is not None:
            if news.granted.action == "subscribe":
                super().subscribe((news.granted.topic,), now_ns=now_ns)
            self._place_waiting(now_ns)
            self._finish(now_ns)
        if news.denied is not None:
            topic, reason = news.denied.topic, news.denied.reason
            if news.denied.action == "subscribe":
                self._effects.append(Refuse((topic,), reason))
            else:
                self._refuse_waiting(topic, reason, now_ns)

    def _knows_everybody(self, topic: str, last: Counts, now_ns: int) -> bool:
        """Tell whether all are known who may have published before some events: the registry has answered a question asked after they were missed."""
        asked, missed = self._inquiries.get(topic, (0, {}))
        if any(missed.get(source, 0) < number for source, number in last.items()):
            self._enlistment.question(now_ns)
            self._inquiries[topic] = self._enlistment.asked, last
            return False
        return asked <= self._enlistment.answered

    # -- Settling in ----------------------------------------------------------------------------

    def _greet(self, now_ns: int) -> None:
        """Greet those who have not told what they know; those who stay silent are not waited for."""
        self._greet_due_ns = now_ns + GREET_NS
        for peer in bits(self._unheard):
            if self._suspects.away(peer, now_ns) or not (
                0 < self._greet_until_ns - now_ns <= self.config.answer_ns
            ):
                self._unheard &= ~(1 << peer)
            else:
                self._neighbours.greet(peer, now_ns=now_ns)

    def _listen(self, frame: Frame, peer: int) -> None:
        """Note whether a peer has told all it knows."""
        match frame:
            case Here():
                self._told[peer] = {}
            case Versions(versions=versions):
                self._told[peer] = versions
            case Rows() if peer in self._told:
                pass
            case _:
                return
        version = self._rolls.version
        if all(version(node) >= one for node, one in self._told[peer].items()):
            self._unheard &= ~(1 << peer)
            del self._told[peer]

    # -- Topics ---------------------------------------------------------------------------------

    def _may_place(self, topic: str) -> bool:
        return self._enlistment.may(topic, "publish")

    def _refuse_waiting(self, topic: str, reason: str, now_ns: int) -> None:
        """Settle what waits to be published on a topic: it never will be."""
        for number, event in list(self._waiting.items()):
            if event.topic == topic:
                self._void(number, reason)
        self._place_waiting(now_ns)
        self._finish(now_ns)
