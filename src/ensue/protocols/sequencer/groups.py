"""Which topics must be ordered together, as one sequencer node sees it.

The sequencing group of a topic holds every other topic that enough subscriptions share with it
(one by default: `SequencerConfig.groups`). A node knows the subscriptions that touch its own topics,
and so, for every topic whose stamps pass through, which of its own topics belong into the stamp.

A group also remembers the values last put into a stamp of its topic, so that unchanged ones can be
left out. That memory is volatile on purpose: without it everything counts as changed, which is
always right, only longer.
"""

from collections.abc import Iterable

__all__ = ["Counter", "Group", "Groups"]

Counter = list[int]
"""One mutable number, shared by everything that reads it."""


class Group:
    """The part of one topic's group that this node puts into its stamps."""

    __slots__ = ("counters", "last", "names", "own", "sent")

    def __init__(self, own: Counter, names: list[str], counters: list[Counter], last: int) -> None:
        self.own = own
        """The topic's own counter."""
        self.names = names
        self.counters = counters
        self.last = last
        """The last stage that the topic's requests have to visit."""
        self.sent: list[int] | None = None
        """The values of the topic's previous stamp; None: the next one must be whole."""

    def fill(self, entries: dict[str, int], *, whole: bool) -> None:
        """Add this node's entries to a stamp, leaving out what has not changed unless `whole`.

        Zero entries are always left out: there is nothing to wait for.
        """
        values = [counter[0] for counter in self.counters]
        sent = self.sent
        self.sent = values
        if whole or sent is None:
            entries.update(
                {name: value for name, value in zip(self.names, values, strict=True) if value}
            )
        elif values != sent:
            changes = zip(self.names, values, sent, strict=True)
            entries.update({name: value for name, value, before in changes if value != before})


class Groups:
    """The subscriptions that touch a node's topics, and the groups that follow from them."""

    __slots__ = ("_needed", "_shared", "subscriptions")

    def __init__(self, needed: int) -> None:
        self._needed = needed
        self.subscriptions: dict[str, tuple[str, ...]] = {}
        self._shared: dict[str, dict[str, int]] = {}
        """Topic to topic: how many subscriptions include both. Covers every topic of every
        subscription known here, the topics of other nodes included."""

    def replace(self, subscriber: str, topics: Iterable[str]) -> None:
        """Put a new subscription in the place of the subscriber's old one."""
        self._count(self.subscriptions.pop(subscriber, ()), -1)
        new = tuple(topics)
        if new:
            self.subscriptions[subscriber] = new
            self._count(new, 1)

    def partners(self, topic: str) -> list[str]:
        """List the other topics of a topic's group, in no particular but a repeatable order."""
        shared = self._shared.get(topic)
        if not shared:
            return []
        return [other for other, count in shared.items() if count >= self._needed]

    def _count(self, topics: tuple[str, ...], change: int) -> None:
        for topic in topics:
            shared = self._shared.setdefault(topic, {})
            for other in topics:
                if other == topic:
                    continue
                count = shared.get(other, 0) + change
                if count:
                    shared[other] = count
                else:
                    del shared[other]
            if not shared:
                del self._shared[topic]
