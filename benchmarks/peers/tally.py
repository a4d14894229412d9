"""Events of a benchmark, and what a subscriber records of them.

A payload begins with when it was published, by whom, and its number there; the clock is the one
that all processes of a machine share. A subscriber keeps the payloads and looks at them after the
time was taken, so that every system pays the same little for being measured. Of large payloads it
keeps only the beginning.
"""

import asyncio
import hashlib
import struct
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["HEAD_BYTES", "PAYLOAD_BYTES", "Tally", "make_batch", "sampled"]

PAYLOAD_BYTES = 100
"""Size of a payload where no other is chosen."""
KEPT_BYTES_MAX = 200
"""Largest payload that a subscriber keeps whole: nothing is copied."""
HEAD = struct.Struct(">QHI")
HEAD_BYTES = HEAD.size
"""Smallest payload."""
QUANTILES_MAX = 4_000
"""Latencies that a subscriber reports: an even sample of all, sorted."""


def make_batch(
    topics: Sequence[str],
    publisher: int,
    start: int,
    stop: int,
    payload_bytes: int = PAYLOAD_BYTES,
) -> list[tuple[str, bytes]]:
    """Return the events of one publisher with these numbers, published now."""
    pack, now_ns, width = HEAD.pack, time.monotonic_ns, len(topics)
    padding = bytes(payload_bytes - HEAD_BYTES)
    return [
        (topics[(number + publisher) % width], pack(now_ns(), publisher, number) + padding)
        for number in range(start, stop)
    ]


def sampled(durations_ns: Sequence[int]) -> list[int]:
    """Return an even sample of durations, sorted."""
    step = max(1, len(durations_ns) // QUANTILES_MAX)
    return sorted(durations_ns)[step // 2 :: step]


class Tally:
    """The events that one subscriber received in one phase."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._payloads: list[bytes] = []
        self._arrived_ns: list[int] = []
        self._timed = self._cuts = False
        self._expected = 0
        self._over = asyncio.Event()
        self._last_ns = 0

    def expect(self, count: int, *, timed: bool, payload_bytes: int = PAYLOAD_BYTES) -> None:
        """Start a phase; with `timed`, record when each event arrives."""
        self._cuts = payload_bytes > KEPT_BYTES_MAX
        self._payloads, self._arrived_ns, self._last_ns = [], [], 0
        self._timed, self._expected = timed, count
        self._over.clear()

    def take(self, payload: bytes) -> None:
        """Record an event."""
        payloads = self._payloads
        payloads.append(payload[:HEAD_BYTES] if self._cuts else payload)
        if self._timed:
            self._arrived_ns.append(time.monotonic_ns())
        if len(payloads) == self._expected:
            self._finish()

    def take_all(self, payloads: Sequence[bytes]) -> None:
        """Record events that arrived together."""
        before = len(self._payloads)
        if self._cuts:
            payloads = [payload[:HEAD_BYTES] for payload in payloads]
        self._payloads.extend(payloads)
        if self._timed:
            self._arrived_ns.extend([time.monotonic_ns()] * len(payloads))
        if before < self._expected <= len(self._payloads):
            self._finish()

    async def wait(self, seconds: float) -> dict[str, Any]:
        """Wait for all events or the timeout; return how many are missing, and when it ended."""
        try:
            await asyncio.wait_for(self._over.wait(), seconds)
        except TimeoutError:
            self._last_ns = time.monotonic_ns()
        missing = max(0, self._expected - len(self._payloads))
        return {"last_ns": self._last_ns, "missing": missing}

    def result(self, *, publishers: int, start: int, stop: int) -> dict[str, Any]:
        """Return the order, the missing events and the latencies, if it has all topics."""
        return self.compare(
            (publisher, number) for publisher in range(publishers) for number in range(start, stop)
        )

    def compare(self, wanted: Iterable[tuple[int, int]]) -> dict[str, Any]:
        """Return the same, given the publishers and numbers of its events."""
        heads = [payload[8:HEAD_BYTES] for payload in self._payloads]
        counted = Counter(heads)
        reached: dict[bytes, bytes] = {}
        overtaken = 0
        for head in heads:
            publisher = head[:2]
            if head < reached.get(publisher, b""):
                overtaken += 1
            else:
                reached[publisher] = head
        taken_ns = [
            arrived - int.from_bytes(payload[:8], "big")
            for arrived, payload in zip(self._arrived_ns, self._payloads, strict=False)
        ]
        return {
            "order": hashlib.sha256(b"".join(heads)).hexdigest(),
            "missing": sum(HEAD.pack(0, *each)[8:] not in counted for each in wanted),
            "repeated": len(heads) - len(counted),
            "overtaken": overtaken,
            "latencies_ns": sampled(taken_ns),
        }

    def _finish(self) -> None:
        self._last_ns = time.monotonic_ns()
        # Some receivers run in a thread.
        self._loop.call_soon_threadsafe(self._over.set)
