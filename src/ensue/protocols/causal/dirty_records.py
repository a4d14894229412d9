"""Records of a node that changed since they were last persisted, written once per batch."""

from collections.abc import Callable

from ensue.core.event import Event
from ensue.protocols.causal.frames import Item, Row
from ensue.protocols.causal.records import (
    ITEM,
    NODE,
    ROW,
    TOPIC,
    WAITING,
    NodeRecord,
    TopicRecord,
    kept_key,
)
from ensue.protocols.interface import Persist

__all__ = ["DirtyRecords"]


class DirtyRecords:
    """Changes that are not persisted yet."""

    def __init__(self, *, durable: bool, run: int) -> None:
        self._durable = durable
        self._writes: dict[str, bytes | None] = {}
        self._topics: dict[str, None] = {}
        self._node: NodeRecord | None = None
        self._run = run
        """How many times the node was started."""

    def touch(self, topic: str) -> None:
        """Mark a topic as changed."""
        self._topics[topic] = None

    def row(self, row: Row) -> None:
        """Write a new row."""
        if self._durable:
            self._writes[f"row/{row.node}"] = ROW.encode(row)

    def kept(self, topic: str, source: int, number: int, item: Item | None) -> None:
        """Write an event that is cached or held; delete it if None."""
        if self._durable:
            value = None if item is None else ITEM.encode(item)
            self._writes[kept_key(topic, source, number)] = value

    def waiting(self, number: int, event: Event | None) -> None:
        """Write an event that waits to be placed; delete it if None."""
        key = f"waiting/{number}"
        if not self._durable:
            return
        if event is None and key in self._writes:
            del self._writes[key]
        else:
            self._writes[key] = None if event is None else WAITING.encode(event)

    def take(self, record_of: Callable[[str], TopicRecord], position: int) -> list[Persist]:
        """Drain the records to write."""
        topics, self._topics = self._topics, {}
        if not self._durable:
            return []
        writes, self._writes = self._writes, {}
        effects = [Persist(key, value) for key, value in writes.items()]
        effects += [Persist(f"topic/{each}", TOPIC.encode(record_of(each))) for each in topics]
        node = NodeRecord(run=self._run, position=position)
        if node != self._node:
            self._node = node
            effects.append(Persist("node", NODE.encode(node)))
        return effects
