"""The node that publishes. Pure, as every node."""

from collections.abc import Mapping, Sequence

from tests.orders.toy.frames import EndOfBatch

from ensue.core.event import Event
from ensue.protocols.interface import Effect, Frame, Send
from ensue.protocols.topic_log.frames import Accepted
from ensue.protocols.unordered.publisher import UnorderedPublisher

__all__ = ["BatchPublisher"]


class BatchPublisher:
    """Publishes as without order, and ends its last batches when it leaves."""

    def __init__(self, *, name: str) -> None:
        self.name = name
        self._inner = UnorderedPublisher(name=name)
        self._last: dict[str, int] = {}
        """Topic to the number of the last event."""
        self._homes: dict[str, str] = {}
        """Topic to its log or fan-out."""
        self._effects: list[Effect] = []

    @property
    def unsettled_count(self) -> int:
        return self._inner.unsettled_count

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        now_ns: int,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Event:
        event = self._inner.publish(topic, payload, now_ns=now_ns, key=key, headers=headers)
        self._last[topic] = event.publisher_seq
        return event

    def say_goodbye(self) -> None:
        for topic, home in self._homes.items():
            end = EndOfBatch(topic=topic, publisher=self.name, last=self._last[topic])
            self._effects.append(Send(home, end))

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        if isinstance(frame, Accepted):
            self._homes[frame.topic] = source
        self._inner.receive(frame, source=source, now_ns=now_ns)

    def repeat(self, *, now_ns: int) -> None:
        self._inner.repeat(now_ns=now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        self._inner.handle_timer(now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        return self._inner.next_timer_ns()

    def take_effects(self) -> Sequence[Effect]:
        effects, self._effects = [*self._inner.take_effects(), *self._effects], []
        return effects
