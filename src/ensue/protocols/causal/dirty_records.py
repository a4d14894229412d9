"""What of a node has changed since it was last written: one record a thing, written once a batch."""

from collections.abc import Callable

from ensue.event import Event
from ensue.protocols.core import Persist
from ensue.protocols.hypercube.frames import Item, Row
from ensue.protocols.hypercube.records import (
    ITEM,
    NODE,
    ROW,
    TOPIC,
    WAITING,
    NodeRecord,
    TopicRecord,
    kept_key,
)

__all__ = ["Memory"]


class Memory:
    """Changes that are not written yet."""

    def __init__(self, *, durable: bool) -> None:
        self._durable = durable
        self._writes: dict[str, bytes | None] = {}
        self._topics: dict[str, None] = {}
        self._node: NodeRecord | None = None
        self.run = 1
        """How many times the node was started."""

    def touch(self, topic: str) -> None:
        """Note that something changed in a topic."""
        self._topics[topic] = None

    def row(self, row: Row) -> None:
        """Note a new row."""
        if self._durable:
            self._writes[f"row/{row.node}"] = ROW.encode(row)

    def kept(self, topic: str, source: int, number: int, item: Item | None) -> None:
        """Note an event that is kept, or no longer."""
        if self._durable:
            value = None if item is None else ITEM.encode(item)
            self._writes[kept_key(topic, source, number)] = value

    def waiting(self, number: int, event: Event | None) -> None:
        """Note an event that waits to be placed, or no longer; never both in one batch."""
        key = f"waiting/{number}"
        if not self._durable:
            return
        if event is None and key in self._writes:
            del self._writes[key]
        else:
            self._writes[key] = None if event is None else WAITING.encode(event)

    def take(self, record_of: Callable[[str], TopicRecord], position: int) -> list[Persist]:
        """Return what is to be written."""
        topics, self._topics = self._topics, {}
        if not self._durable:
            return []
        writes, self._writes = self._writes, {}
        effects = [Persist(key, value) for key, value in writes.items()]
        effects += [Persist(f"topic/{each}", TOPIC.encode(record_of(each))) for each in topics]
        node = NodeRecord(run=self.run, position=position)
        if node != self._node:
            self._node = node
            effects.append(Persist("node", NODE.encode(node)))
        return effects
