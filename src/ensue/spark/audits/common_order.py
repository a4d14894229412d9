"""Find one order that fits many sequences, at the speed of arrays.

Each sequence says that its first event comes before its second, and so on. A number is sought for
each event such that the numbers rise along every sequence: that proves that no two sequences
contradict each other, wherever the numbers come from. So they may start from an untrusted hint,
such as the time of publication; a bad one costs time and proves nothing wrong.

Method. Two sweeps hand the hinted numbers of each sequence out again in its own order, which takes
most of the noise out of the hint. Then every number is raised, where needed, just above the one
before it in its sequence, over and over until nothing changes. Raising ends if one order fits all,
and goes on forever if the sequences contradict each other; after `ROUNDS_MAX` rounds it is given
up, which proves nothing. Each round costs a few nanoseconds an event.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Numbers", "one_order_fits"]

Numbers = npt.NDArray[np.int64]

SWEEPS = 2
ROUNDS_MAX = 200
_ROOM = 1 << 20
"""Between two neighbours of the hint: so many may be squeezed in before the next is pushed on."""


def one_order_fits(sequences: Sequence[Numbers], hint: Numbers) -> bool:
    """Return whether one order was found that fits all sequences.

    Events are numbers from 0, and an index into `hint`. No sequence holds one twice. False means
    that none was found, not that there is none.
    """
    ordered = [sequence for sequence in sequences if len(sequence) > 1]
    if not ordered:
        return True
    # Ranks instead of the hint itself, whatever its unit: so there is always room between two.
    levels = np.empty(len(hint), dtype=np.int64)
    levels[np.argsort(hint, kind="stable")] = np.arange(len(hint), dtype=np.int64) * _ROOM
    for _ in range(SWEEPS):
        for sequence in ordered:
            levels[sequence] = np.sort(levels[sequence])
    places = np.arange(max(len(sequence) for sequence in ordered), dtype=np.int64)
    for _ in range(ROUNDS_MAX):
        raised = _raise(levels, ordered, places)
        if not raised:
            return True
    return False


def _raise(levels: Numbers, sequences: Sequence[Numbers], places: Numbers) -> bool:
    """Raise every number above the one before it; return whether any had to be."""
    changed = False
    for sequence in sequences:
        place = places[: len(sequence)]
        before = levels[sequence]
        after = np.maximum.accumulate(before - place)
        after += place
        if not np.array_equal(before, after):
            levels[sequence] = after
            changed = True
    return changed
