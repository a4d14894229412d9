"""Group merges: subscriptions that make one group of all that a node knows.

Events of one group wait for each other, and their stamps visit every node that hosts a topic of it.
One subscription to everything makes one group of all topics, and the events of every other
subscriber pay for it. Where topics are ordered together by two common subscriptions, no single
subscription does that.

A subscription merges all groups of a node if it has a topic of each group that smaller
subscriptions form there, and its topics are on several nodes. Only smaller ones count: of two
subscriptions to everything both are named, and of many equal ones none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

import msgspec

__all__ = ["NAMED_MAX", "TOPICS_MAX", "GroupMerge", "group_merges"]

NAMED_MAX = 20
"""Subscriptions that are named: those with the most topics."""
TOPICS_MAX = 100_000
"""Topics of all subscriptions together; beyond, the search takes too long, and finds nothing."""


class GroupMerge(msgspec.Struct, frozen=True):
    """A subscription that merges all groups of a node."""

    name: str
    groups: int
    """Groups that it merges: those with topics at the node, and one for each other node that hosts
    a topic of it outside of these."""
    topics: int


class _Components:
    """Topics that hang together, as disjoint sets."""

    __slots__ = ("_parents", "count")

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}
        self.count = 0

    def find(self, topic: str) -> str | None:
        """Return the representative of a topic's set; None if it is in none."""
        parents = self._parents
        root = parents.get(topic)
        if root is None:
            return None
        while root != (above := parents[root]):
            parents[topic] = above
            topic, root = root, above
        return root

    def join(self, topics: Sequence[str]) -> None:
        """Put topics into one set."""
        first: str | None = None
        for topic in topics:
            root = self.find(topic)
            if root is None:
                root = self._parents[topic] = topic
                self.count += 1
            if first is not None and root != first:
                self._parents[root] = first
                self.count -= 1
            first = first or root


def group_merges(
    subscriptions: Mapping[str, Sequence[str]], stage_of: Callable[[str], int], own: int
) -> list[GroupMerge]:
    """Find the subscriptions that merge all groups of the node at a stage, largest first."""
    if sum(map(len, subscriptions.values())) > TOPICS_MAX:
        return []
    groups = _Components()
    found: list[GroupMerge] = []
    by_size = sorted(subscriptions.items(), key=lambda each: (len(each[1]), each[0]))
    for _, equal in groupby(by_size, key=lambda each: len(each[1])):
        alike = list(equal)
        found += (
            GroupMerge(name, merged, len(topics))
            for name, topics in alike
            if (merged := _merged(groups, topics, stage_of, own)) > 1
        )
        for _, topics in alike:
            groups.join(topics)
    found.sort(key=lambda each: (-each.topics, each.name))
    return found[:NAMED_MAX]


def _merged(
    groups: _Components, topics: Iterable[str], stage_of: Callable[[str], int], own: int
) -> int:
    """Return how many groups a subscription merges; 0 if it leaves one apart."""
    roots: dict[str, None] = {}
    stages: dict[int, None] = {}
    new: dict[int, None] = {}
    for topic in topics:
        root, stage = groups.find(topic), stage_of(topic)
        stages[stage] = None
        if root is not None:
            roots[root] = None
        elif stage != own:
            new[stage] = None
    if not roots or len(roots) < groups.count or len(stages) == 1:
        return 0
    return len(roots) + len(new)
