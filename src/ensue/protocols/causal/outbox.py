"""A node's own events on their way: numbered, in batches, with a window, settled one after the other.

The paper sends one message of a topic at a time and waits until everybody has acknowledged it, so that
receivers get the messages of a source in order. Here receivers put them in order by their numbers, and
a source has up to `window` messages of a topic under way. What is published while the window is full
goes out together, up to `batch_max` events and `batch_bytes_max` bytes in a message.

An event is settled when every member that can be reached has it, and at least one has, if there are
any. Members that can't be reached get it when they are back (`repair`).
"""

from collections import deque

from ensue.event import Event
from ensue.protocols.core import Effect, Settle
from ensue.protocols.hypercube.config import HypercubeConfig
from ensue.protocols.hypercube.frames import Item, Publication, item_bytes
from ensue.protocols.hypercube.trees import Relay, Trees

__all__ = ["Outbox"]


class Outbox:
    """The events of one node and topic that are not settled."""

    __slots__ = ("_config", "_done", "_queue", "_under_way", "settled", "topic", "unsettled")

    def __init__(self, topic: str, config: HypercubeConfig, settled: int = 0) -> None:
        self.topic = topic
        self._config = config
        self.settled = settled
        """Up to which number all are settled."""
        self.unsettled: dict[int, Event] = {}
        self._queue: deque[Item] = deque()
        self._under_way = 0
        self._done: set[int] = set()

    @property
    def queued(self) -> bool:
        """Whether events wait for room in the window."""
        return bool(self._queue)

    def add(self, item: Item) -> None:
        """Put an event behind the others."""
        self.unsettled[item.event.publisher_seq] = item.event
        self._queue.append(item)

    def pump(self, trees: Trees, targets: int, *, now_ns: int) -> list[Effect]:
        """Send what the window allows."""
        effects: list[Effect] = []
        while self._queue and self._under_way < self._config.window:
            items = self._next_batch()
            if not targets:
                effects += self._settle(items)
                continue
            self._under_way += 1
            message = Publication(token=0, height=1, below=b"", items=items)
            trees.start(message, targets, now_ns=now_ns, insists=True)
        return effects

    def _next_batch(self) -> tuple[Item, ...]:
        items = [self._queue.popleft()]
        size = item_bytes(items[0])
        while self._queue and len(items) < self._config.batch_max:
            size += item_bytes(self._queue[0])
            if size > self._config.batch_bytes_max:
                break
            items.append(self._queue.popleft())
        return tuple(items)

    def done(self, relay: Relay) -> list[Effect]:
        """Take note that a message went as far as it can."""
        assert isinstance(relay.message, Publication)
        self._under_way -= 1
        return self._settle(relay.message.items)

    def _settle(self, items: tuple[Item, ...]) -> list[Effect]:
        effects: list[Effect] = []
        for item in items:
            number = item.event.publisher_seq
            effects.append(Settle(self.unsettled.pop(number), ""))
            self._done.add(number)
        while self.settled + 1 in self._done:
            self.settled += 1
            self._done.discard(self.settled)
        return effects
