"""A node of a cube whose other nodes are processes: it knows of them by a registry.

It is made with the lists that the registry told (`enrolment`), and keeps them up to date. A frame of a stranger, who is likely newer than the
last news, has it ask at once; the stranger repeats what got no answer.

Settling in. Whoever was there before knows subscriptions that a newcomer does not, and events published without them would reach
nobody. So a newcomer greets everybody and takes no command (`Resumed`) until each has told what it knows, or is suspected. Whoever
comes later is told by those it greets in turn, this node included: of two who come or subscribe at once, one is told by the other.

Topics are asked for before they are used (`Ask`). An event whose topic is not granted yet waits, and all that were published after it; one that is
denied is settled as void, with the reason, as are all later ones of its topic.

Expelled by the registry, it says so once (`Refuse`): whoever drives it ends it.
"""

from collections.abc import Iterable, Mapping, Sequence

from ensue.event import Event
from ensue.protocols.core import Effect, Frame, Refuse, Resumed, Send, Settle
from ensue.protocols.hypercube.config import HypercubeConfig
from ensue.protocols.hypercube.cube import bits
from ensue.protocols.hypercube.enrolment import (
    Action,
    Ask,
    Denied,
    Enrol,
    Expelled,
    Granted,
    Members,
    Resign,
)
from ensue.protocols.hypercube.frames import Beat, Here, Rows, Versions
from ensue.protocols.hypercube.node import HypercubeNode

__all__ = ["EnrolledNode", "Lists"]

POLL_NS = 2_000_000_000
"""How often the registry is asked what is new."""
RETRY_NS = 500_000_000
"""A topic that was asked for in vain is asked for again after so long."""
GREET_NS = 100_000_000
"""A newcomer greets those again after so long who have not answered."""
STRANGER_NS = 50_000_000
"""The registry is asked about strangers no more often than this."""
STRANGERS_MAX = 256


class Lists:
    """What is known of the registry's lists, from its answers."""

    def __init__(self) -> None:
        self.epoch = 0
        self.names: list[str] = []
        self.gone: list[int] = []
        self._whole = False

    @property
    def whole(self) -> bool:
        """Whether there was nothing more to be told."""
        return self._whole

    def take(self, members: Members) -> bool:
        """Take over what is new; False if something before it is missing."""
        self.epoch = members.epoch
        known, gone = len(self.names), len(self.gone)
        if members.first > known or members.gone_first > gone:
            self._whole = False
            return False
        self.names += members.names[known - members.first :]
        self.gone += members.gone[gone - members.gone_first :]
        self._whole = len(self.names) >= members.total and len(self.gone) >= members.gone_total
        return self._whole

    def question(self) -> Enrol:
        """Ask for what is not known."""
        return Enrol(epoch=self.epoch, known=len(self.names), gone=len(self.gone))


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
        self._registry = registry
        self._lists = lists
        for number in lists.gone:
            self._cube.remove(lists.names[number])
        self._poll_due_ns = now_ns + POLL_NS
        self._expelled = False
        self._asked_ns = now_ns
        self._strangers: dict[str, None] = {}
        self._granted: dict[Action, set[str]] = {"publish": set(), "subscribe": set()}
        self._denied: dict[str, str] = {}
        """Topics that this node may not publish on, and why."""
        self._asks: dict[tuple[str, Action], int] = {}
        """What was asked for and is not answered, and when to ask again."""
        self._unheard = self._cube.everyone & ~(1 << self.number)
        """Who has not told yet what it knows, as a set."""
        self._told: dict[int, dict[int, int]] = {}
        """By peer: versions of rows that it has and said it would send."""
        self._greet_due_ns: int | None = now_ns
        self._greet(now_ns)

    @property
    def settled_in(self) -> bool:
        """Whether it takes commands."""
        return self._greet_due_ns is None

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
        if topic not in self._denied:
            self._ask(topic, "publish", now_ns)
            return super().publish(topic, payload, now_ns=now_ns, key=key, headers=headers)
        event = self._events.make(topic, payload, now_ns=now_ns, key=key, headers=headers)
        self._effects.append(Settle(event, "void", self._denied[topic]))
        return event

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Ask for topics; each takes effect with its `Join`, or is refused."""
        granted = self._granted["subscribe"]
        for topic in topics:
            if topic in granted:
                super().subscribe((topic,), now_ns=now_ns)
            else:
                self._ask(topic, "subscribe", now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics, at once."""
        left = tuple(topics)
        for topic in left:
            self._asks.pop((topic, "subscribe"), None)
        super().unsubscribe(left, now_ns=now_ns)

    def say_goodbye(self, *, now_ns: int = 0) -> None:
        """Leave all topics, and the cube for good."""
        super().say_goodbye(now_ns=now_ns)
        self._effects.append(Send(self._registry, Resign(epoch=self._lists.epoch)))

    def repeat(self, *, now_ns: int) -> None:
        """Say again what may be lost, and see who is there: the connection is new."""
        self._question(now_ns)
        for topic, action in self._asks:
            self._asks[topic, action] = now_ns + RETRY_NS
            self._effects.append(Send(self._registry, Ask(topic=topic, action=action)))
        for peer in bits(self._suspects.suspected & self._cube.everyone):
            self._neighbours.greet(peer, now_ns=now_ns)

    # -- Driven from outside --------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame of the registry or of another node."""
        if source == self._registry:
            self._from_registry(frame, now_ns)
            return
        if source not in self._cube.numbers:
            self._from_stranger(source, now_ns)
            return
        super().receive(frame, source=source, now_ns=now_ns)
        if self._unheard:
            self._listen(frame, self._cube.numbers[source])

    def handle_timer(self, *, now_ns: int) -> None:
        """Do what is due."""
        if self._poll_due_ns <= now_ns:
            self._question(now_ns)
        for (topic, action), due_ns in self._asks.items():
            if due_ns <= now_ns:
                self._asks[topic, action] = now_ns + RETRY_NS
                self._effects.append(Send(self._registry, Ask(topic=topic, action=action)))
        if self._greet_due_ns is not None and self._greet_due_ns <= now_ns:
            self._greet(now_ns)
        super().handle_timer(now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when something is due."""
        others = (self._greet_due_ns, super().next_timer_ns())
        dues = [due_ns for due_ns in others if due_ns is not None]
        return min([self._poll_due_ns, *self._asks.values(), *dues])

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects = [*super().take_effects()]
        if self._greet_due_ns is not None and not self._unheard:
            self._greet_due_ns = None
            effects.append(Resumed())
        return effects

    # -- The registry ---------------------------------------------------------------------------

    def _question(self, now_ns: int) -> None:
        self._poll_due_ns = now_ns + POLL_NS
        self._asked_ns = now_ns
        if not self._expelled:
            self._effects.append(Send(self._registry, self._lists.question()))

    def _from_registry(self, frame: Frame, now_ns: int) -> None:
        match frame:
            case Members(epoch=epoch) if epoch == self._lists.epoch:
                self._members(frame, now_ns)
            case Expelled(reason=reason) if not self._expelled:
                self._expelled = True
                self._effects.append(Refuse((), reason))
            case Granted(topic=topic, action=action) if (topic, action) in self._asks:
                del self._asks[topic, action]
                self._granted[action].add(topic)
                if action == "subscribe":
                    super().subscribe((topic,), now_ns=now_ns)
                self._place_waiting(now_ns)
                self._finish(now_ns)
            case Denied(topic=topic, action=action, reason=reason) if (topic, action) in self._asks:
                del self._asks[topic, action]
                if action == "subscribe":
                    self._effects.append(Refuse((topic,), reason))
                else:
                    self._refuse_waiting(topic, reason, now_ns)
            case _:
                pass  # A stray frame changes nothing.

    def _members(self, frame: Members, now_ns: int) -> None:
        names, gone = len(self._lists.names), len(self._lists.gone)
        if not self._lists.take(frame):
            self._question(now_ns)
        for name in self._lists.names[names:]:
            self.admit(name, now_ns=now_ns)
            if self._strangers.pop(name, 0) is None:
                # As if it had asked: what it sent before was not understood.
                self._neighbours.beat(Beat(digest=b""), self._cube.numbers[name])
        for number in self._lists.gone[gone:]:
            if number < len(self._lists.names):
                self._unheard &= ~(1 << number)
                self.dismiss(self._lists.names[number], now_ns=now_ns)

    def _from_stranger(self, name: str, now_ns: int) -> None:
        if len(self._strangers) < STRANGERS_MAX:
            self._strangers[name] = None
        if not 0 <= now_ns - self._asked_ns < STRANGER_NS:
            self._question(now_ns)

    # -- Settling in ----------------------------------------------------------------------------

    def _greet(self, now_ns: int) -> None:
        """Greet those who have not told what they know; those who stay silent are not waited for."""
        self._greet_due_ns = now_ns + GREET_NS
        for peer in bits(self._unheard):
            if self._suspects.away(peer, now_ns):
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

    def _ask(self, topic: str, action: Action, now_ns: int) -> None:
        if topic not in self._granted[action] and (topic, action) not in self._asks:
            self._asks[topic, action] = now_ns + RETRY_NS
            self._effects.append(Send(self._registry, Ask(topic=topic, action=action)))

    def _may_place(self, topic: str) -> bool:
        return topic in self._granted["publish"]

    def _refuse_waiting(self, topic: str, reason: str, now_ns: int) -> None:
        """Settle what waits to be published on a topic: it never will be."""
        self._denied[topic] = reason
        for number, event in list(self._waiting.items()):
            if event.topic == topic:
                del self._waiting[number]
                self._effects.append(Settle(event, "void", reason))
        self._place_waiting(now_ns)
        self._finish(now_ns)
