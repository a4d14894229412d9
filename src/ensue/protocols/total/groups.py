"""Sequencing groups: which topics must be ordered together, at one sequencer.

The group of a topic holds every other topic that enough subscriptions share with it (one by
default: `SequencerConfig.groups`). A node knows the subscriptions that touch its own topics, and
so, for every topic whose stamps pass through, which of its own topics belong into the stamp.

With groups by two, the topics that a subscriber has left count as well. It has delivered their
events before those of topics that it joins later, so these must be ordered for every subscriber
that has both, although the two subscriptions never shared the topics at one time.

A group also remembers when the last stamp of its topic was made, so that unchanged entries can be
left out. That memory is volatile on purpose: without it every entry counts as changed, which is
always correct, only longer.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["Counter", "Counters", "Group", "Groups"]

Counter = list[int]
"""How many events a topic has had here, and the tick at which that last changed."""


class Counters:
    """The counters of one node, and which of them changed most recently.

    A tick is one change of one counter. Since stamps leave out what has not changed, what a stamp
    costs should depend on what has: the topics are kept in the order of their last change.
    """

    __slots__ = ("by_topic", "recent", "tick")

    def __init__(self) -> None:
        self.by_topic: dict[str, Counter] = {}
        self.recent: OrderedDict[str, None] = OrderedDict()
        """Topics by their last change, the latest last; those that never changed come first."""
        self.tick = 0

    def get(self, topic: str) -> Counter:
        """Return a topic's counter."""
        counter = self.by_topic.get(topic)
        if counter is None:
            counter = self.by_topic[topic] = [0, 0]
            self.recent[topic] = None
            self.recent.move_to_end(topic, last=False)
        return counter

    def set(self, topic: str, counter: Counter, count: int) -> None:
        """Change a topic's counter."""
        counter[0] = count
        self.tick = counter[1] = self.tick + 1
        self.recent.move_to_end(topic)


class Group:
    """The part of one topic's group that this node puts into its stamps."""

    __slots__ = ("hosted", "last", "members", "own", "tick")

    def __init__(
        self, own: Counter, members: Mapping[str, Counter], last: int, *, hosted: bool
    ) -> None:
        self.hosted = hosted
        """Whether this is the topic's own node."""
        self.own = own
        """The topic's own counter."""
        self.members = members
        self.last = last
        """The last stage that the topic's requests have to visit."""
        self.tick: int | None = None
        """When the topic's previous stamp was made; None: the next one must be whole."""

    def fill(self, entries: dict[str, int], counters: Counters, *, whole: bool) -> None:
        """Add this node's entries to a stamp, only changed ones unless `whole`.

        Zero entries are always left out: there is nothing to wait for.
        """
        since, members = self.tick, self.members
        self.tick = counters.tick
        if whole or since is None:
            entries.update({name: counter[0] for name, counter in members.items() if counter[0]})
        elif counters.tick - since > len(members):
            for name, counter in members.items():
                if counter[1] > since:
                    entries[name] = counter[0]
        else:
            # Fewer changes than members: walk back through the changes instead.
            for name in reversed(counters.recent):
                if counters.by_topic[name][1] <= since:
                    break
                member = members.get(name)
                if member is not None:
                    entries[name] = member[0]


class Groups:
    """The subscriptions to a node's topics, and the groups that follow from them."""

    __slots__ = ("_are_near", "_needed", "_shared", "changes", "left", "pairs", "subscriptions")

    def __init__(
        self, needed: int, are_near: Callable[[str, str], bool] = lambda _, __: False
    ) -> None:
        self._needed = needed
        self._are_near = are_near
        """Whether one common subscription is enough for two topics."""
        self.changes = 0
        """How often a subscription was replaced since the start."""
        self.subscriptions: dict[str, tuple[str, ...]] = {}
        self.left: dict[str, tuple[str, ...]] = {}
        """Subscriber to the topics that count for groups besides those of its subscription."""
        self._shared: dict[str, dict[str, int]] = {}
        """Topic to topic: how many subscriptions include both. Covers every topic of every
        subscription known here, the topics of other nodes included."""
        self.pairs = 0
        """The entries in `_shared`: the square of the topics of a subscription, unless shared."""

    def replace(self, subscriber: str, topics: Iterable[str], left: tuple[str, ...] = ()) -> None:
        """Put a new subscription in the place of the subscriber's old one."""
        self.changes += 1
        old = self.subscriptions.pop(subscriber, ())
        self._count((*old, *self.left.pop(subscriber, ())), -1)
        new = tuple(topics)
        if new:
            self.subscriptions[subscriber] = new
        if left:
            self.left[subscriber] = left
        self._count((*new, *left), 1)

    def partners(self, topic: str) -> list[str]:
        """List the other topics of a topic's group, in an arbitrary but repeatable order."""
        shared = self._shared.get(topic)
        if not shared:
            return []
        needed, are_near = self._needed, self._are_near
        if needed == 1:
            return list(shared)
        return [
            other for other, count in shared.items() if count >= needed or are_near(topic, other)
        ]

    def sharing(self, topic: str) -> list[str]:
        """List the topics that share a subscription with a topic, grouped or not."""
        return list(self._shared.get(topic, ()))

    def sizes(self) -> tuple[int, int]:
        """Return how many topics are ordered with others, and the largest group's size."""
        if self._needed == 1:
            return len(self._shared), 1 + max(map(len, self._shared.values()), default=0)
        found = [len(self.partners(topic)) for topic in self._shared]
        return sum(map(bool, found)), 1 + max(found, default=0)

    def largest_with(self, topics: Sequence[str]) -> int:
        """Return the largest size of a group if these topics come to share a subscription."""
        shared = self._shared
        return len(topics) + max((len(shared.get(topic, ())) for topic in topics), default=0)

    def _count(self, topics: tuple[str, ...], change: int) -> None:
        for topic in topics:
            shared = self._shared.setdefault(topic, {})
            self.pairs -= len(shared)
            for other in topics:
                if other == topic:
                    continue
                count = shared.get(other, 0) + change
                if count:
                    shared[other] = count
                else:
                    del shared[other]
            self.pairs += len(shared)
            if not shared:
                del self._shared[topic]
