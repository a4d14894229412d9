"""Find one order that fits many sequences, at the speed of arrays.

Each sequence puts its first event before its second, and so on. The search assigns a number to each
event such that numbers ascend along every sequence. Such numbers prove that no two sequences
contradict each other, wherever they come from. So the search may start from an untrusted hint, such
as the time of publication; a bad hint costs time, but proves nothing wrong.

Method. Two sweeps reassign the hinted numbers of each sequence in ascending order, which removes
most of the noise of the hint. Then every number is raised, if needed, just above its predecessor in
each sequence, until nothing changes. This ends if one order fits all, and never ends if the
sequences contradict each other. After `ROUNDS_MAX` rounds the search stops, which proves nothing.
Each round costs a few nanoseconds an event.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Numbers", "one_order_fits"]

Numbers = npt.NDArray[np.int64]

SWEEPS = 2
ROUNDS_MAX = 200
_ROOM = 1 << 20
"""Distance between adjacent numbers at the start, which leaves room to raise."""


def one_order_fits(sequences: Sequence[Numbers], hint: Numbers) -> bool:
    """Return whether the search found one order that fits all sequences.

    Events are indices into `hint`. No sequence holds an event twice. False means that no order was
    found, not that none exists.
    """
    ordered = [sequence for sequence in sequences if len(sequence) > 1]
    if not ordered:
        return True
    # Ranks instead of the hint itself, so that there is room between any two.
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
    """Raise every number above its predecessor; return whether any changed."""
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
