"""The outbox of a topic: this node's events on their way, in batches, with a window.

The paper sends one message of a topic at a time and waits until all members have acknowledged it,
so that receivers get the messages of a source in order. Here receivers sort by number, and a source
has up to `window` messages of a topic under way. Events published while the window is full go out
together, up to `batch_max` events and `batch_bytes_max` bytes per message.

An event is settled when every reachable member has it, and at least one, if there are any. Members
that cannot be reached get it when they are back (`repair`). If all members left before one had the
event, it is queued again, as one without subscribers.
"""

from collections import deque
from collections.abc import Iterable

from ensue.core.event import Event
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.frames import Item, Publication, item_bytes
from ensue.protocols.causal.trees import Relay, Trees
from ensue.protocols.interface import Effect, Settle

__all__ = ["Outbox"]


class Outbox:
    """Unsettled events of one node and topic."""

    __slots__ = ("_config", "_done", "_queue", "_under_way", "settled", "topic", "unsettled")

    def __init__(self, topic: str, config: CausalConfig, settled: int = 0) -> None:
        self.topic = topic
        self._config = config
        self.settled = settled
        """Up to which number all events are settled."""
        self.unsettled: dict[int, Event] = {}
        self._queue: deque[Item] = deque()
        self._under_way = 0
        self._done: set[int] = set()

    @property
    def queued(self) -> bool:
        """Whether events wait for room in the window."""
        return bool(self._queue)

    @property
    def last_queued(self) -> int:
        """Number of the last queued event; 0 if there is none."""
        return self._queue[-1].event.publisher_seq if self._queue else 0

    def add(self, item: Item) -> None:
        """Append an event."""
        self.unsettled[item.event.publisher_seq] = item.event
        self._queue.append(item)

    def pump(self, trees: Trees, targets: int, *, now_ns: int) -> None:
        """Send what the window has room for."""
        while self._queue and self._under_way < self._config.window:
            self._under_way += 1
            message = Publication(token=0, height=1, below=b"", items=self._next_batch())
            trees.start(message, targets, now_ns=now_ns, insists=True)

    def settle_unread(self, last: int) -> list[Effect]:
        """Settle queued events up to a number: they have no subscriber."""
        items: list[Item] = []
        while self._queue and self._queue[0].event.publisher_seq <= last:
            items.append(self._queue.popleft())
        return self._settle(items)

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
        """Settle the events of a finished message; queue them again if all targets left."""
        assert isinstance(relay.message, Publication)
        self._under_way -= 1
        if not relay.targets:
            both = (*relay.message.items, *self._queue)
            self._queue = deque(sorted(both, key=lambda item: item.event.publisher_seq))
            return []
        return self._settle(relay.message.items)

    def _settle(self, items: Iterable[Item]) -> list[Effect]:
        effects: list[Effect] = []
        for item in items:
            number = item.event.publisher_seq
            effects.append(Settle(self.unsettled.pop(number), ""))
            self._done.add(number)
        while self.settled + 1 in self._done:
            self.settled += 1
            self._done.discard(self.settled)
        return effects
