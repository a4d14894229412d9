"""Placement: which sequencer hosts which topic, and the rank of each topic.

Nodes form a chain; the place of a node in it is its stage. Requests travel from lower stages to
higher ones, never back. (The paper ranks the other way round: its requests start at the lowest rank
and climb; here stage 0 is where they start.) A topic's rank is its node's stage, then its place at
that node.

A placement lasts as long as the counters made under it (`losses`). The node that hosts a topic
counts its events, a hash over the whole chain picks the node that keeps a client's records, and
records name nodes by their stages. Another node would begin to count at 1, and subscribers would
take its events for ones that they had. `topic_moves` moves a topic with its counter; then several
nodes keep a part of its log each (`Parts`), and every node and client learns of the move by itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from ensue.core.errors import ConfigurationError
from ensue.protocols.total.records import PlacementRecord

__all__ = ["Parts", "Placement", "losses", "moved"]

Parts = tuple[tuple[str, int], ...]
"""The nodes that keep the parts of a topic's log, each with the last slot of its part; the last
node hosts the topic now, and its part has no end (0)."""

HASHED_MAX = 100_000
"""Topics whose hash is remembered."""


class Placement:
    """Topic to node and rank: listed explicitly, by hashing the topic's name, or both.

    A listed topic goes where it is listed. Any other goes to the node its hash picks, unless
    `closed`, which refuses topics that are not listed. `topics` maps a node to the topics it hosts,
    in rank order.
    """

    __slots__ = (
        "_hashed",
        "_ranks",
        "_stages",
        "closed",
        "moving",
        "nodes",
        "parts",
        "topics",
        "unsure",
    )

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        topics: Mapping[str, Sequence[str]] | None = None,
        closed: bool = False,
    ) -> None:
        if not nodes:
            raise ConfigurationError("a placement needs at least one node")
        if len(set(nodes)) != len(nodes):
            raise ConfigurationError(f"a placement must name each node once, got {list(nodes)}")
        self.nodes = tuple(nodes)
        self.closed = closed
        self._stages: dict[str, int] = {}
        self._ranks: dict[str, int] = {}
        self._hashed: dict[str, int] = {}
        """A cache: topic to the stage that its hash picks."""
        self.moving = ""
        """The topic that is being moved, if any."""
        self.unsure = False
        """Whether topics may have moved without this node's knowledge."""
        self.parts: dict[str, Parts] = {}
        """Topics that were moved, to the nodes that keep the parts of their logs."""
        listed: list[str] = []
        for node in topics or {}:
            if node not in self.nodes:
                raise ConfigurationError(
                    f"topics are placed on {node!r}, which is not in the chain: {list(nodes)}"
                )
        for stage, node in enumerate(self.nodes):
            for topic in (topics or {}).get(node, ()):
                if topic in self._stages:
                    raise ConfigurationError(f"topic {topic!r} is placed twice")
                self._stages[topic] = stage
                self._ranks[topic] = len(listed)
                listed.append(topic)
        self.topics = tuple(listed)

    @classmethod
    def restore(cls, record: PlacementRecord) -> "Placement":
        """Return the placement that was persisted."""
        return cls(record.nodes, topics=record.topics, closed=record.closed)

    def record(self, groups: int = 1) -> PlacementRecord:
        """Return what to persist, with the groups of the chain (`SequencerConfig.groups`)."""
        topics: dict[str, list[str]] = {}
        for topic in self.topics:
            topics.setdefault(self.node(topic), []).append(topic)
        return PlacementRecord(
            self.nodes, {node: tuple(topics[node]) for node in topics}, self.closed, groups
        )

    def stage(self, topic: str) -> int:
        """Return the place in the chain of the node that hosts a topic."""
        stage = self._stages.get(topic)
        if stage is not None:
            return stage
        if self.closed:
            raise ConfigurationError(f"topic {topic!r} is not placed, and the placement is closed")
        stage = self._hashed.get(topic)
        if stage is None:
            digest = blake2b(topic.encode(), digest_size=8).digest()
            stage = int.from_bytes(digest, "big") % len(self.nodes)
            if len(self._hashed) >= HASHED_MAX:
                self._hashed.clear()
            self._hashed[topic] = stage
        return stage

    def copy(self) -> "Placement":
        """Return a placement that can learn moves of its own."""
        copy = Placement(self.nodes, topics=self.record().topics, closed=self.closed)
        for topic, parts in self.parts.items():
            copy.learn(topic, parts)
        return copy

    def learn(self, topic: str, parts: Parts) -> bool:
        """Learn where a topic was moved; False if that was known."""
        if len(parts) <= len(self.parts.get(topic, ())):
            return False
        self.parts[topic] = parts
        self._stages[topic] = self.nodes.index(parts[-1][0])
        return True

    def parts_of(self, topic: str) -> Parts:
        """Return the parts of a topic's log; one, if it was never moved."""
        return self.parts.get(topic) or ((self.node(topic), 0),)

    def keeper(self, topic: str, slot: int = 0) -> str:
        """Return the node that keeps a slot of a topic that was moved; empty if it was not.

        Slot 0 stands for the next one.
        """
        parts = self.parts.get(topic)
        if parts is None:
            return ""
        return next((node for node, last in parts if 0 < slot <= last), parts[-1][0])

    def keepers(self, topic: str) -> list[str]:
        """List the nodes that keep parts of a topic's log."""
        parts = self.parts.get(topic)
        return [self.node(topic)] if parts is None else list(dict(parts))

    def knows(self, topic: str) -> bool:
        """Return whether a topic has a place."""
        return not self.closed or topic in self._stages

    def node(self, topic: str) -> str:
        """Return the name of the node that hosts a topic."""
        return self.nodes[self.stage(topic)]

    def state_store(self, client: str) -> str:
        """Return the name of the node whose state store has a client's records."""
        digest = blake2b(client.encode(), digest_size=8, salt=b"keeper").digest()
        return self.nodes[int.from_bytes(digest, "big") % len(self.nodes)]

    def rank(self, topic: str) -> tuple[int, int, str]:
        """Return the sort key of a topic: stage, then listed before hashed, then name."""
        return (self.stage(topic), self._ranks.get(topic, len(self.topics)), topic)

    def span(self, topics: Iterable[str]) -> tuple[int, int]:
        """Return the first and the last stage that host any of the topics."""
        stages = [self.stage(topic) for topic in topics]
        return min(stages), max(stages)


def moved(parts: Parts, node: str, count: int) -> Parts:
    """Return the parts of a topic's log once it has moved to a node after `count` events."""
    return (*parts[:-1], (parts[-1][0], count), (node, 0))


def losses(old: Placement, new: Placement, used: Iterable[str]) -> list[str]:
    """List what would be lost under another placement; empty: a node may continue.

    The chain has to stay as it is, and no topic may move: only its old node knows whether it was
    ever used, and the new one would not wait for it. A topic may get a place if it had none, and
    lose it if it is not among the `used` ones of this node. Ranks within one node are free.
    """
    if old.nodes != new.nodes:
        return [f"the chain was {', '.join(old.nodes)}, and is to be {', '.join(new.nodes)}"]
    listed, known = dict.fromkeys((*old.topics, *new.topics)), dict.fromkeys(used)
    moved = [
        f"{topic!r} was on {old.node(topic)}, and is to be on {new.node(topic)}"
        for topic in listed
        if old.knows(topic) and new.knows(topic) and old.stage(topic) != new.stage(topic)
    ]
    gone = [
        f"{topic!r} was on {old.node(topic)}, and is to be on none"
        for topic in known
        if old.knows(topic) and not new.knows(topic)
    ]
    return moved + gone
