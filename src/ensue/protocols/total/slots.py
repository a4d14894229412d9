"""The slots of a publisher's latest events, by request number.

A node keeps them until the publisher has settled those requests, at most `window` of them, and
persists them with the publisher's session: a request that is repeated after a crash of the node
gets the same answer, however many events of other publishers follow in the log.

Events that go out together mostly have consecutive numbers and slots, so slots are kept as runs.
"""

from bisect import bisect_right
from collections.abc import Iterable

from ensue.protocols.total.records import PUBLISHER, SlotRun

__all__ = ["PublishedSlots", "decode_session", "encode_session"]


class PublishedSlots:
    """Slots by request number, which are added in rising order."""

    __slots__ = ("_runs",)

    def __init__(self, runs: Iterable[SlotRun] = ()) -> None:
        self._runs: list[SlotRun] = list(runs)

    def __len__(self) -> int:
        """Return how many slots are known."""
        return sum(count for _, _, count in self._runs)

    def get(self, number: int) -> int:
        """Return the slot of a request's event, or 0 if it is not known."""
        index = bisect_right(self._runs, number, key=_first_number)
        if not index:
            return 0
        first, slot, count = self._runs[index - 1]
        return slot + number - first if number < first + count else 0

    def extend(self, first: int, slots: Iterable[int]) -> None:
        """Add the slots of consecutive requests."""
        runs = self._runs
        number, slot, count = runs.pop() if runs else (first, 0, 0)
        following, expected = number + count, slot + count
        for each in slots:
            if each != expected or first != following:
                if count:
                    runs.append((number, slot, count))
                number, slot, count = first, each, 0
            count += 1
            first += 1
            following, expected = first, each + 1
        if count:
            runs.append((number, slot, count))

    def forget(self, below: int) -> None:
        """Forget the requests below a number."""
        runs = self._runs
        if not runs or runs[0][0] >= below:
            return
        index = bisect_right(runs, below - 1, key=_first_number)
        first, slot, count = runs[index - 1]
        del runs[:index]
        if first + count > below:
            runs.insert(0, (below, slot + below - first, first + count - below))

    def runs(self) -> tuple[SlotRun, ...]:
        """Return the runs, to persist them."""
        return tuple(self._runs)


def encode_session(next_number: int, out: PublishedSlots) -> bytes:
    """Encode a session: its next request number, and the slots of unsettled requests."""
    runs = out.runs()
    return PUBLISHER.encode((next_number, runs) if runs else next_number)


def decode_session(value: bytes) -> tuple[int, PublishedSlots]:
    """Decode a session."""
    record = PUBLISHER.decode(value)
    if isinstance(record, int):
        return record, PublishedSlots()
    next_number, runs = record
    return next_number, PublishedSlots(runs)


def _first_number(run: SlotRun) -> int:
    return run[0]
