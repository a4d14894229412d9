"""An event as a subscriber gets it, with what the subscription knows of it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import msgspec

from ensue.event import Event, Stamp, shorten
from ensue.protocols.overlay.frames import CONTENT

__all__ = ["CONTENT", "ReceivedEvent"]


class Giver(Protocol):
    """Whoever hands events out, and hears what became of them."""

    def acknowledge(self, position: int) -> None:
        """Say that the event at a position has been handled."""

    async def until_safe(self, position: int) -> None:
        """Wait until that is safe."""


class ReceivedEvent(msgspec.Struct, eq=False):
    """An event as a subscriber gets it."""

    event: Event
    position: int
    """1, 2, 3, … in this subscription."""
    verdict: str
    """Empty, or why an event was handed out before its turn or after it: `out_of_order` in total order, `late`, `skewed` or `early` in merged order, `late` or
    `overtaken` with deadlines."""
    _giver: Giver

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
    def attributes(self) -> dict[str, bool | int | float | str]:
        """What it was published with, by content; nothing if it was published on a topic."""
        if self.event.topic != CONTENT:
            return {}
        return {name: msgspec.json.decode(text) for name, text in self.event.headers.items()}

    @property
    def publisher(self) -> str:
        """Who published it."""
        return self.event.publisher

    @property
    def id(self) -> str:
        """The event's unique id."""
        return self.event.id

    @property
    def place(self) -> int:
        """Which event of its server it is, whatever the topics: 1, 2, 3, …; 0 where nobody counts."""
        return self.event.place

    @property
    def stamp(self) -> Stamp | None:
        """The logical timestamp it travelled with."""
        return self.event.stamp

    @property
    def deadline(self) -> float | None:
        """Until when it is of use, in seconds since the epoch, as `time.time()` tells them; None: for ever.

        It is judged by the clock of this process, when the event is handed over.
        """
        return self.event.deadline

    def with_verdict(self, verdict: str) -> "ReceivedEvent":
        """Return the same event with another verdict."""
        return ReceivedEvent(self.event, self.position, verdict, self._giver)

    async def ack(self) -> None:
        """Say that this event has been handled. Saying it twice is harmless.

        Of a durable subscription it returns when that is safe, as far as all earlier events have
        been acknowledged as well: those will never come again. It raises `LocalProtocolError` if the
        subscription is over, or closed and its server away, so that they may.
        """
        self._giver.acknowledge(self.position)
        await self._giver.until_safe(self.position)

    def __repr__(self) -> str:
        tag = f" {self.verdict}" if self.verdict else ""
        return f"<ReceivedEvent {self.position}: {self.id} {shorten(self.payload)}{tag}>"
