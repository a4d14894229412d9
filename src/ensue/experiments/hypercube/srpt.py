"""One tree a topic, with one root (SRPT): what the hypercube is compared with.

Whoever publishes sends its event to the root of the topic, which numbers it and sends it down one tree, the same for
all events. Two kinds, as in the paper:

- **Subscriber-based**: the tree is that of the hypercube, rooted at the root, cut down to the branches in which somebody
  subscribed. A node in between forwards although it did not subscribe.
- **Broker-based**: the tree connects brokers; each of them sends to the subscribers that are connected to it.

Every member delivers by the root's numbers, so that order is total within the topic. A root that publishes itself takes
its own event as one that came to it: it is numbered, sent down and, if the root subscribed, delivered.
"""

from collections.abc import Iterable, Mapping, Sequence

from ensue.event import Event
from ensue.protocols.core import Deliver, Effect, Frame, Publish, Send
from ensue.protocols.hypercube.cube import bits, cluster_of, split
from ensue.protocols.numbering import EventNumbers

__all__ = ["Down", "Plan", "SrptNode", "Up", "broker_plan", "subscriber_plan"]


class Up(Frame, frozen=True, tag=1):
    """An event on its way to the root."""

    event: Event


class Down(Frame, frozen=True, tag=2):
    """An event on its way down the tree."""

    number: int
    """1, 2, 3, … in the topic."""
    event: Event


class Plan:
    """Who sends to whom."""

    def __init__(
        self, root: int, children: dict[int, list[int]], subscribers: frozenset[int]
    ) -> None:
        self.root = root
        self.children = children
        self.subscribers = subscribers

    @property
    def messages(self) -> int:
        """How many copies one event costs, the one to the root left out."""
        return sum(len(each) for each in self.children.values())


def subscriber_plan(count: int, root: int, subscribers: Iterable[int]) -> Plan:
    """Return the tree of the hypercube at a root, cut down to branches with subscribers."""
    chosen = frozenset(subscribers)
    return Plan(root, _branches(count, root, sum(1 << each for each in chosen)), chosen)


def broker_plan(count: int, brokers: int, root: int) -> Plan:
    """Return the tree of `brokers` brokers, with all other nodes dealt out to them as subscribers."""
    children = _branches(brokers, root, (1 << brokers) - 1)
    for subscriber in range(brokers, count):
        children.setdefault(subscriber % brokers, []).append(subscriber)
    return Plan(root, children, frozenset(range(brokers, count)))


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
    """One node, with a plan for each topic. Command: `publish`."""

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
        self._effects: list[Effect] = []

    def publish(self, topic: str, payload: bytes, *, now_ns: int) -> None:
        """Send an event to the root, or down the tree if this is the root."""
        event = self._events.make(topic, payload, now_ns=now_ns, key=None, headers=None)
        self._effects.append(Publish(event))
        root = self._plans[topic].root
        if self.number == root:
            self._at_root(event)
        else:
            self._effects.append(Send(self._names[root], Up(event=event)))

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Give numbers to what comes to the root; pass on what comes down."""
        del source, now_ns
        if isinstance(frame, Up):
            self._at_root(frame.event)
        elif isinstance(frame, Down):
            self._pass_on(frame)

    def handle_timer(self, *, now_ns: int) -> None:
        """Do nothing: nothing is lost here."""

    def next_timer_ns(self) -> int | None:
        """Return nothing."""
        return None

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects, self._effects = self._effects, []
        return effects

    def _at_root(self, event: Event) -> None:
        number = self._given[event.topic] = self._given.get(event.topic, 0) + 1
        self._pass_on(Down(number=number, event=event))

    def _pass_on(self, frame: Down) -> None:
        topic = frame.event.topic
        plan = self._plans[topic]
        self._effects += [
            Send(self._names[child], frame) for child in plan.children.get(self.number, ())
        ]
        if self.number not in plan.subscribers:
            return
        self._held[topic, frame.number] = frame.event
        delivered = self._delivered.get(topic, 0)
        while (event := self._held.pop((topic, delivered + 1), None)) is not None:
            delivered += 1
            self._effects.append(Deliver(event, delivered))
        self._delivered[topic] = delivered
