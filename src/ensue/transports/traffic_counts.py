"""What has come and gone, counted: for those who look at a server from outside."""

from collections import Counter

from ensue.protocols.core import Frame
from ensue.protocols.sequencer.frames import OrderRequest

__all__ = ["Traffic"]


class Traffic:
    """Counts bundles: a few additions for each, however much is in it."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "frames_in",
        "frames_out",
        "kinds_in",
        "requested_bytes",
        "requested_events",
    )

    def __init__(self) -> None:
        self.frames_in = 0
        """Those that were let through."""
        self.bytes_in = 0
        self.frames_out = 0
        self.bytes_out = 0
        self.kinds_in: Counter[str] = Counter()
        self.requested_events = 0
        """Events that were asked to be ordered, those repeated included."""
        self.requested_bytes = 0
        """The payloads of those."""

    def took(self, frames: list[Frame], size: int) -> None:
        """Count what came in."""
        self.frames_in += len(frames)
        self.bytes_in += size
        for frame in frames:
            self.kinds_in[type(frame).__name__] += 1
            if type(frame) is OrderRequest:
                self.requested_events += len(frame.events)
                self.requested_bytes += sum([len(event.payload) for event in frame.events])

    def gave(self, frames: int, size: int) -> None:
        """Count what went out to one peer, or to one topic."""
        self.frames_out += frames
        self.bytes_out += size
