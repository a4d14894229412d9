"""An event as a subscriber gets it, with what the subscription knows of it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ensue.event import Stamp
from ensue.protocols.core import Deliver

__all__ = ["ReceivedEvent"]


class ReceivedEvent:
    """An event as a subscriber gets it."""

    __slots__ = ("_acknowledge", "event", "position", "verdict")

    def __init__(self, delivery: Deliver, acknowledge: Callable[[int], None]) -> None:
        self._acknowledge = acknowledge
        self.event = delivery.event
        self.position = delivery.position
        """1, 2, 3, … in this subscription."""
        self.verdict = delivery.verdict
        """Empty, or `out_of_order` for an event that turned up too late for its place."""

    @property
    def topic(self) -> str:
        """The topic it was published on."""
        return self.event.topic

    @property
    def payload(self) -> bytes:
        """What was published."""
        return self.event.payload

    @property
    def key(self) -> bytes | None:
        """The key it was published with."""
        return self.event.key

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers it was published with, to be read only: other subscribers see the same."""
        return MappingProxyType(self.event.headers)

    @property
    def publisher(self) -> str:
        """Who published it."""
        return self.event.publisher

    @property
    def id(self) -> str:
        """The event's unique id."""
        return self.event.id

    @property
    def stamp(self) -> Stamp | None:
        """The logical timestamp it travelled with."""
        return self.event.stamp

    async def ack(self) -> None:
        """Say that this event has been handled. Saying it twice is harmless."""
        self._acknowledge(self.position)

    def __repr__(self) -> str:
        tag = f" {self.verdict}" if self.verdict else ""
        return f"<ReceivedEvent {self.position}: {self.id}{tag}>"
