"""The discrete-event loop: a heap of calls, each with its true time.

Calls due at the same time run in the order they were scheduled, so a run depends on nothing but
its inputs. Randomness comes in named streams, each seeded by the run's seed and its own name: what
one stream is used for never shifts another.

Limit: `events_max` calls a `run`; reaching it raises `LimitReached`, for a world that never rests.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

from ensue.core.errors import LimitReached

__all__ = ["EVENTS_MAX", "Loop"]

EVENTS_MAX = 1_000_000_000
"""Calls one `run` may make unless the caller sets another limit."""

_NEVER_NS = 1 << 63


class Loop:
    """Simulated time, and the scheduled calls."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_ns = 0
        """True time."""
        self.events = 0
        """Calls made so far."""
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._streams: dict[str, Random] = {}

    def stream(self, name: str) -> Random:
        """Return the random stream of this name, the same object every time."""
        random = self._streams.get(name)
        if random is None:
            random = self._streams[name] = Random(f"{self.seed}/{name}")
        return random

    def schedule(
        self, at_ns: int, function: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        """Call `function(*arguments)` at a true time that is not past."""
        assert at_ns >= self.now_ns
        self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (at_ns, sequence, function, arguments))

    def run(
        self,
        until_ns: int | None = None,
        *,
        condition: Callable[[], bool] | None = None,
        events_max: int = EVENTS_MAX,
    ) -> bool:
        """Run until no call is scheduled, a true time is reached, or a condition holds.

        The condition is tested after each call.

        What is due at `until_ns` itself runs, and the time is `until_ns` afterwards. Returns True
        if the condition holds at the end, or none was given.
        """
        assert until_ns is None or until_ns >= self.now_ns
        if condition is not None and condition():
            return True
        heap, stop_ns = self._heap, _NEVER_NS if until_ns is None else until_ns
        events_last = self.events + events_max
        while heap and heap[0][0] <= stop_ns:
            if self.events >= events_last:
                raise LimitReached(
                    f"the run made {events_max} calls by {self.now_ns} ns and has not ended",
                    limit="events_max",
                    value=events_max,
                )
            self.now_ns, _, function, arguments = heappop(heap)
            self.events += 1
            function(*arguments)
            if condition is not None and condition():
                return True
        if until_ns is not None:
            self.now_ns = until_ns
        return condition is None
