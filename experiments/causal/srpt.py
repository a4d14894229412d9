"""One tree a topic, with one root (SRPT): what the hypercube is compared with.

Whoever publishes sends its event to the root of the topic, which numbers it and sends it down one tree, the same for
all events. Two kinds, as in the paper:

- **Subscriber-based**: the tree is that of the hypercube, rooted at the root, cut down to the branches in which somebody
  subscribed. A node in between forwards although it did not subscribe.
- **Broker-based**: the tree connects brokers; each of them sends to the subscribers that are connected to it. A subscriber knows
  its broker and nobody else, so that what it publishes goes to its broker, and from there to the root.

Every member delivers by the root's numbers, so that order is total within the topic. A root that publishes itself takes
its own event as one that came to it: it is numbered, sent down and, if the root subscribed, delivered.

Members come and go (`subscribe`, `unsubscribe`); the paper does not say how a tree is mended then. Here, as in the cube, every node of a
subscriber-based tree knows who subscribed: a change goes to the root like an event, and from there down the whole tree, behind the events
before it and before those after it, so that everybody cuts the tree down to the same branches for each event. A broker keeps a change to itself and answers with one message.
"""

from collections.abc import Iterable, Mapping, Sequence

from ensue.core.event import Event
from ensue.protocols.causal.hypercube import bits, cluster_of, split
from ensue.protocols.interface import Deliver, Effect, Frame, Join, Leave, Publish, Send
from ensue.protocols.shared.event_numbers import EventNumbers

__all__ = ["Ask", "Changed", "Down", "Plan", "SrptNode", "Up", "broker_plan", "subscriber_plan"]


class Up(Frame, frozen=True, tag=1):
    """An event on its way to the root."""

    event: Event


class Down(Frame, frozen=True, tag=2):
    """An event on its way down the tree."""

    number: int
    """1, 2, 3, … in the topic."""
    event: Event


class Ask(Frame, frozen=True, tag=3):
    """A node wants to come or to go, on its way to the root or to its broker."""

    topic: str
    node: int
    joins: bool


class Changed(Frame, frozen=True, tag=4):
    """A node has come or gone, on its way down the tree, or back from a broker."""

    topic: str
    node: int
    joins: bool
    number: int
    """Of the last event before it."""


class Plan:
    """Who sends to whom."""

    def __init__(
        self,
        root: int,
        children: dict[int, list[int]],
        subscribers: frozenset[int],
        *,
        count: int,
        brokers: int = 0,
    ) -> None:
        self.root = root
        self.children = children
        """Those of whoever has any, while nobody comes or goes."""
        self.subscribers = subscribers
        self.count = count
        self.brokers = brokers
        """How many of the nodes, the first ones, are brokers; none if subscribers send to each other."""

    def home(self, number: int) -> int:
        """Return to whom a node sends what it has to say: its broker, or the root."""
        return number % self.brokers if number >= self.brokers > 0 else self.root

    @property
    def messages(self) -> int:
        """How many copies one event costs, the one to the root left out."""
        return sum(len(each) for each in self.children.values())


def subscriber_plan(count: int, root: int, subscribers: Iterable[int]) -> Plan:
    """Return the tree of the hypercube at a root, cut down to branches with subscribers."""
    chosen = frozenset(subscribers)
    children = _branches(count, root, sum(1 << each for each in chosen))
    return Plan(root, children, chosen, count=count)


def broker_plan(
    count: int, brokers: int, root: int, subscribers: Iterable[int] | None = None
) -> Plan:
    """Return the tree of `brokers` brokers, with other nodes dealt out to them as subscribers: all of them, if not told which."""
    children = _branches(brokers, root, (1 << brokers) - 1)
    chosen = frozenset(range(brokers, count) if subscribers is None else subscribers)
    for subscriber in sorted(chosen):
        children.setdefault(subscriber % brokers, []).append(subscriber)
    return Plan(root, children, chosen, count=count, brokers=brokers)


def _branches(count: int, root: int, wanted: int) -> dict[int, list[int]]:
    """Follow the full tree from a root; a branch without anybody who is wanted is left out."""
    children: dict[int, list[int]] = {}
    todo = [(root, max(0, count - 1).bit_length(), wanted & ~(1 << root))]
    while todo:
        node, height, inside = todo.pop()
        for cluster, part in split(node, height, inside):
            first = node ^ (1 << (cluster - 1))
            if first >= count:
                first = next(iter(bits(part)))
            children.setdefault(node, []).append(first)
            todo.append((first, cluster_of(node, first) - 1, part & ~(1 << first)))
    return children


class SrptNode:
    """One node, with a plan for each topic. Commands: `publish`, `subscribe`, `unsubscribe`."""

    def __init__(self, number: int, names: Sequence[str], plans: Mapping[str, Plan]) -> None:
        self.name = names[number]
        self.number = number
        self._names = names
        self._plans = plans
        self._events = EventNumbers(self.name)
        self._given: dict[str, int] = {}
        """At the root of a topic: the last number."""
        self._delivered: dict[str, int] = {}
        self._held: dict[tuple[str, int], Event] = {}
        self._members: dict[str, int] = {}
        """By topic, once somebody came or went: who is subscribed, of those whom this node has to know."""
        self._effects: list[Effect] = []

    # -- Commands ---------------------------------------------------------------------------------

    def publish(self, topic: str, payload: bytes, *, now_ns: int) -> None:
        """Send an event to the root, or down the tree if this is the root."""
        event = self._events.make(topic, payload, now_ns=now_ns, key=None, headers=None)
        self._effects.append(Publish(event))
        self._up(Up(event=event))

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Ask for topics; each takes effect with its `Join`."""
        del now_ns
        for topic in topics:
            self._up(Ask(topic=topic, node=self.number, joins=True))

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics; events still come until the change is back."""
        del now_ns
        for topic in topics:
            self._up(Ask(topic=topic, node=self.number, joins=False))

    # -- Driven from outside ------------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Give numbers to what comes to the root; pass on what comes down."""
        del source, now_ns
        if isinstance(frame, Up | Ask):
            self._up(frame)
        elif isinstance(frame, Down):
            self._pass_on(frame)
        elif isinstance(frame, Changed):
            self._change(frame)

    def handle_timer(self, *, now_ns: int) -> None:
        """Do nothing: nothing is lost here."""

    def next_timer_ns(self) -> int | None:
        """Return nothing."""
        return None

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects, self._effects = self._effects, []
        return effects

    # -- Events -------------------------------------------------------------------------------------

    def _up(self, frame: Up | Ask) -> None:
        """Handle what is to be handled here, and send on what is not."""
        topic = frame.event.topic if isinstance(frame, Up) else frame.topic
        plan = self._plans[topic]
        if isinstance(frame, Up) and self.number == plan.root:
            number = self._given[topic] = self._given.get(topic, 0) + 1
            self._pass_on(Down(number=number, event=frame.event))
        elif isinstance(frame, Ask) and self.number == plan.home(frame.node):
            given = self._delivered if plan.brokers else self._given
            last = given.get(topic, 0)
            self._change(Changed(topic=topic, node=frame.node, joins=frame.joins, number=last))
        else:
            self._effects.append(Send(self._names[plan.home(self.number)], frame))

    def _pass_on(self, frame: Down) -> None:
        topic = frame.event.topic
        plan = self._plans[topic]
        self._effects += [Send(self._names[child], frame) for child in self._children(topic)]
        if self.number < plan.brokers:
            self._delivered[topic] = frame.number  # So that newcomers can be told.
            return
        if not self._subscribed(topic):
            return
        self._held[topic, frame.number] = frame.event
        delivered = self._delivered.get(topic, 0)
        while (event := self._held.pop((topic, delivered + 1), None)) is not None:
            delivered += 1
            self._effects.append(Deliver(event, delivered))
        self._delivered[topic] = delivered

    # -- Who there is -------------------------------------------------------------------------------

    def _change(self, frame: Changed) -> None:
        """Take over that somebody came or went, and tell whoever has to know."""
        topic, bit = frame.topic, 1 << frame.node
        plan = self._plans[topic]
        members = self._known(topic)
        self._members[topic] = members | bit if frame.joins else members & ~bit
        if not plan.brokers:
            told = _below(self.number, plan, (1 << plan.count) - 1)
            self._effects += [Send(self._names[child], frame) for child in told]
        elif self.number < plan.brokers:
            self._effects.append(Send(self._names[frame.node], frame))
        if frame.node == self.number:
            self._delivered[topic] = frame.number
            self._effects.append(Join(topic) if frame.joins else Leave(topic))

    def _known(self, topic: str) -> int:
        known = self._members.get(topic)
        return sum(1 << each for each in self._plans[topic].subscribers) if known is None else known

    def _subscribed(self, topic: str) -> bool:
        known = self._members.get(topic)
        if known is None:
            return self.number in self._plans[topic].subscribers
        return bool(known >> self.number & 1)

    def _children(self, topic: str) -> Sequence[int]:
        plan, members = self._plans[topic], self._members.get(topic)
        if members is None:
            return plan.children.get(self.number, ())
        if not plan.brokers:
            return _below(self.number, plan, members)
        brokers = [each for each in plan.children.get(self.number, ()) if each < plan.brokers]
        return [*brokers, *(each for each in bits(members) if plan.home(each) == self.number)]


def _below(node: int, plan: Plan, wanted: int) -> list[int]:
    """Return to whom a node of a subscriber-based tree sends what is for those who are wanted; the nodes are a power of two."""
    apart = node ^ plan.root
    # The tree reached this node in the cluster of the lowest bit in which it differs from the root.
    height = (apart & -apart).bit_length() - 1 if apart else (plan.count - 1).bit_length()
    return [node ^ (1 << (cluster - 1)) for cluster, _ in split(node, height, wanted)]
