"""An event as a subscriber gets it, with its position and verdict."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import msgspec

from ensue.core.event import Event, Stamp, shorten
from ensue.protocols.content.cells import attributes_of, is_cell
from ensue.protocols.content.frames import CONTENT

__all__ = ["CONTENT", "Acknowledger", "ReceivedEvent"]


class Acknowledger(Protocol):
    """The subscription that an event came from."""

    def acknowledge(self, position: int) -> None:
        """Acknowledge the event at a position."""

    async def until_safe(self, position: int) -> None:
        """Wait until the acknowledgement of a position is safe."""


class ReceivedEvent(msgspec.Struct, eq=False):
    """An event as a subscriber gets it."""

    event: Event
    position: int
    """1, 2, 3, … in this subscription."""
    verdict: str
    """Empty, or why the event was delivered out of its turn.

    That is `out_of_order` in total order; `late`, `skewed` or `early` in merged order; `late` or
    `overtaken` with deadlines.
    """
    _subscription: Acknowledger

    @property
    def topic(self) -> str:
        """The topic it was published on."""
        return self.event.topic

    @property
    def payload(self) -> bytes:
        """The payload it was published with."""
        return self.event.payload

    @property
    def key(self) -> bytes | None:
        """The key it was published with."""
        return self.event.key

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers it was published with, read-only: other subscribers share them."""
        return MappingProxyType(self.event.headers)

    @property
    def attributes(self) -> dict[str, bool | int | float | str]:
        """The attributes it was published with by content; empty if it was published on a topic."""
        if self.event.topic != CONTENT and not is_cell(self.event.topic):
            return {}
        return attributes_of(self.event.headers)

    @property
    def publisher(self) -> str:
        """The name of the client that published it."""
        return self.event.publisher

    @property
    def id(self) -> str:
        """The event's unique id."""
        return self.event.id

    @property
    def place(self) -> int:
        """Its place in its server's log of all topics: 1, 2, 3, …; 0 where there is no log."""
        return self.event.place

    @property
    def stamp(self) -> Stamp | None:
        """The logical timestamp it was sent with."""
        return self.event.stamp

    @property
    def deadline(self) -> float | None:
        """Its deadline in seconds since the epoch, as `time.time()` returns; None: it has none.

        It is judged by the clock of this process, when the event is handed over.
        """
        return self.event.deadline

    def with_verdict(self, verdict: str) -> "ReceivedEvent":
        """Return the same event with another verdict."""
        return ReceivedEvent(self.event, self.position, verdict, self._subscription)

    async def ack(self) -> None:
        """Acknowledge this event. Doing it twice is harmless.

        In a durable subscription it returns when the acknowledgement is stored, as far as all
        earlier events are acknowledged too: these events are never delivered again. It raises
        `LocalProtocolError` if the subscription has ended, or is closed and its server does not
        answer: then they may be.
        """
        self._subscription.acknowledge(self.position)
        await self._subscription.until_safe(self.position)

    def __repr__(self) -> str:
        tag = f" {self.verdict}" if self.verdict else ""
        return f"<ReceivedEvent {self.position}: {self.id} {shorten(self.payload)}{tag}>"
