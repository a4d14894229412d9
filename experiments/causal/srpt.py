"""One tree per topic with one root (SRPT): the system that the hypercube is compared with.

A publisher sends its event to the root of the topic, which numbers it and sends it down one tree,
the same for all events. There are two kinds, as in the paper:

- **Subscriber-based**: the tree of the hypercube at the root, pruned to the branches that have a
  subscriber. An inner node forwards events even if it did not subscribe.
- **Broker-based**: the tree connects brokers, and each broker sends to its own subscribers. A
  subscriber knows only its broker, so it publishes through its broker, which forwards to the root.

Every member delivers by the root's numbers, so order is total within the topic. A root handles its
own event like any other: it numbers the event, sends it down the tree and, if it subscribed,
delivers it.

Members join and leave (`subscribe`, `unsubscribe`); the paper does not say how a tree is repaired.
Here, as in the cube, every node of a subscriber-based tree knows all subscribers. A change goes to
the root like an event, and from there down the whole tree, in order with the events, so that all
nodes prune the tree to the same branches for each event. In a broker-based tree, only the broker
learns of the change, and it answers with one message.
"""

from collections.abc import Iterable, Mapping, Sequence

from ensue.core.event import Event
from ensue.protocols.causal.hypercube import bits, cluster_of, split
from ensue.protocols.interface import Deliver, Effect, Frame, Join, Leave, Publish, Send
from ensue.protocols.shared.event_numbers import EventNumbers

__all__ = ["Change", "Changed", "Down", "Plan", "SrptNode", "Up", "broker_plan", "subscriber_plan"]


class Up(Frame, frozen=True, tag=1):
    """An event on its way to the root."""

    event: Event


class Down(Frame, frozen=True, tag=2):
    """An event on its way down the tree."""

    number: int
    """1, 2, 3, … in the topic."""
    event: Event


class Change(Frame, frozen=True, tag=3):
    """A request to join or leave, on its way to the root or to a broker."""

    topic: str
    node: int
    joins: bool


class Changed(Frame, frozen=True, tag=4):
    """A node joined or left: on its way down the tree, or back from a broker."""

    topic: str
    node: int
    joins: bool
    number: int
    """The number of the last event before the change."""


class Plan:
    """The tree of a topic: which node sends to which."""

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
        """By node that has children; valid until the first change of membership."""
        self.subscribers = subscribers
        self.count = count
        self.brokers = brokers
        """The first so many nodes are brokers; 0 in a subscriber-based tree."""

    def home(self, number: int) -> int:
        """Return where a node sends events and changes: its broker, or the root."""
        return number % self.brokers if number >= self.brokers > 0 else self.root

    @property
    def messages(self) -> int:
        """Copies per event, without the one to the root."""
        return sum(len(each) for each in self.children.values())


def subscriber_plan(count: int, root: int, subscribers: Iterable[int]) -> Plan:
    """Return the tree of the hypercube at a root, pruned to branches with subscribers."""
    chosen = frozenset(subscribers)
    children = _branches(count, root, sum(1 << each for each in chosen))
    return Plan(root, children, chosen, count=count)


def broker_plan(
    count: int, brokers: int, root: int, subscribers: Iterable[int] | None = None
) -> Plan:
    """Return the tree of brokers, with the subscribers assigned to them in turn.

    Without `subscribers`, all other nodes subscribe.
    """
    children = _branches(brokers, root, (1 << brokers) - 1)
    chosen = frozenset(range(brokers, count) if subscribers is None else subscribers)
    for subscriber in sorted(chosen):
        children.setdefault(subscriber % brokers, []).append(subscriber)
    return Plan(root, children, chosen, count=count, brokers=brokers)


def _branches(count: int, root: int, wanted: int) -> dict[int, list[int]]:
    """Follow the full tree from a root, and leave out branches without a wanted node."""
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
        """By topic, at its root: the last number."""
        self._delivered: dict[str, int] = {}
        self._held: dict[tuple[str, int], Event] = {}
        self._members: dict[str, int] = {}
        """By topic, from the first change on: a bit set of the subscribers this node knows."""
        self._effects: list[Effect] = []

    # -- Commands -------------------------------------------------------------------------------

    def publish(self, topic: str, payload: bytes, *, now_ns: int) -> None:
        """Send an event to the root, or down the tree if this is the root."""
        event = self._events.make(topic, payload, now_ns=now_ns, key=None, headers=None)
        self._effects.append(Publish(event))
        self._up(Up(event=event))

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Subscribe to topics; each takes effect with its `Join`."""
        del now_ns
        for topic in topics:
            self._up(Change(topic=topic, node=self.number, joins=True))

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics; events still arrive until the change is confirmed."""
        del now_ns
        for topic in topics:
            self._up(Change(topic=topic, node=self.number, joins=False))

    # -- Node interface ---------------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Assign numbers to frames that reach the root; forward frames that come down."""
        del source, now_ns
        if isinstance(frame, Up | Change):
            self._up(frame)
        elif isinstance(frame, Down):
            self._pass_on(frame)
        elif isinstance(frame, Changed):
            self._change(frame)

    def handle_timer(self, *, now_ns: int) -> None:
        """Do nothing: there are no timers."""

    def next_timer_ns(self) -> int | None:
        """Return None: there are no timers."""
        return None

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        effects, self._effects = self._effects, []
        return effects

    # -- Events -----------------------------------------------------------------------------------

    def _up(self, frame: Up | Change) -> None:
        """Handle a frame at its destination; forward it elsewhere."""
        topic = frame.event.topic if isinstance(frame, Up) else frame.topic
        plan = self._plans[topic]
        if isinstance(frame, Up) and self.number == plan.root:
            number = self._given[topic] = self._given.get(topic, 0) + 1
            self._pass_on(Down(number=number, event=frame.event))
        elif isinstance(frame, Change) and self.number == plan.home(frame.node):
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
            self._delivered[topic] = frame.number  # New subscribers start here.
            return
        if not self._subscribed(topic):
            return
        self._held[topic, frame.number] = frame.event
        delivered = self._delivered.get(topic, 0)
        while (event := self._held.pop((topic, delivered + 1), None)) is not None:
            delivered += 1
            self._effects.append(Deliver(event, delivered))
        self._delivered[topic] = delivered

    # -- Membership -------------------------------------------------------------------------------

    def _change(self, frame: Changed) -> None:
        """Apply a change of membership, and forward it."""
        topic, bit = frame.topic, 1 << frame.node
        plan = self._plans[topic]
        members = self._known(topic)
        self._members[topic] = members | bit if frame.joins else members & ~bit
        if not plan.brokers:
            children = _below(self.number, plan, (1 << plan.count) - 1)
            self._effects += [Send(self._names[child], frame) for child in children]
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
    """Return the children of a node in a subscriber-based tree that lead to wanted nodes.

    The number of nodes must be a power of two.
    """
    apart = node ^ plan.root
    # The tree reached this node in the cluster of the lowest bit in which it differs from the root.
    height = (apart & -apart).bit_length() - 1 if apart else (plan.count - 1).bit_length()
    return [node ^ (1 << (cluster - 1)) for cluster, _ in split(node, height, wanted)]
