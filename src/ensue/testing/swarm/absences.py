"""Events in causal order that no member kept until an absent subscriber returned.

Members keep the events. A receipt does not wait for a subscriber that is absent; when it returns,
it gets what it missed from those that had it. If all of these have left, the event is gone with
them.
"""

from collections.abc import Mapping, Sequence

from ensue.core.trace import Row

__all__ = ["without_forgotten"]

_HAS = frozenset({"submitted", "node_delivered"})


def without_forgotten(
    rows: Sequence[Row], pauses: Mapping[str, Sequence[tuple[int, int]]]
) -> list[Row]:
    """Leave out receipts of events that ended with all their members while a subscriber was paused.

    `pauses` has these times by node. A member has ended with its last row.
    """
    last_ns: dict[str, int] = {}
    holders: dict[str, set[str]] = {}
    for row in rows:
        last_ns[row.node] = row.true_ns or 0
        if row.action in _HAS:
            holders.setdefault(row.event or "", set()).add(row.node)

    def is_forgotten(row: Row) -> bool:
        had = holders.get(row.event or "", set())
        at_ns, ended_ns = row.true_ns or 0, max(last_ns[node] for node in {*had, row.node})
        return any(
            begun_ns <= at_ns <= ended_ns <= continued_ns
            for node, times in pauses.items()
            if node not in had
            for begun_ns, continued_ns in times
        )

    return [row for row in rows if row.action != "published" or not is_forgotten(row)]
