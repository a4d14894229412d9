"""Counts of frames and bytes received and sent, for metrics and status."""

from collections import Counter
from typing import Any

from ensue.protocols.interface import Frame

__all__ = ["Traffic"]


class Traffic:
    """Counters of frames and bytes.

    `publishes` is the type of the frames whose `events` are requests to publish.
    """

    __slots__ = (
        "_publishes",
        "bytes_in",
        "bytes_out",
        "frames_in",
        "frames_out",
        "kinds_in",
        "requested_bytes",
        "requested_events",
    )

    def __init__(self, *, publishes: type[Any]) -> None:
        self._publishes = publishes
        self.frames_in = 0
        """Admitted frames only."""
        self.bytes_in = 0
        self.frames_out = 0
        self.bytes_out = 0
        self.kinds_in: Counter[str] = Counter()
        self.requested_events = 0
        """Events in requests to publish, including retransmitted ones."""
        self.requested_bytes = 0
        """Payload bytes of these events."""

    def count_received(self, frames: list[Frame], size: int) -> None:
        """Count a received bundle."""
        self.frames_in += len(frames)
        self.bytes_in += size
        frame: Any
        for frame in frames:
            self.kinds_in[type(frame).__name__] += 1
            if type(frame) is self._publishes:
                self.requested_events += len(frame.events)
                self.requested_bytes += sum([len(event.payload) for event in frame.events])

    def count_sent(self, frames: int, size: int) -> None:
        """Count a bundle sent to one peer or topic."""
        self.frames_out += frames
        self.bytes_out += size
