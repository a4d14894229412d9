"""Events that a subscriber misses because it was absent.

In causal order members keep the events. A receipt does not wait for a subscriber that is absent;
when it returns, it gets what it missed from those that had it. If all of these have left, the event
is gone with them.

In every order servers give up a subscriber that is absent for too long. It notices when it returns,
and gets nothing of what was published meanwhile.
"""

from collections.abc import Mapping, Sequence

from ensue.core.trace import Row

__all__ = ["without_expired", "without_forgotten"]

EXPIRE_NS = 55_000_000_000
"""Servers give no subscriber up that was absent for less: after 60 s, less what was on the way."""
NOTICE_NS = 25_000_000_000
"""How long after its return a subscriber has noticed that it was given up."""

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


def without_expired(
    rows: Sequence[Row], pauses: Mapping[str, Sequence[tuple[int, int]]]
) -> list[Row]:
    """Leave out receipts of events while a subscriber was paused that servers may have given up."""
    absent = [
        (begun_ns, continued_ns + NOTICE_NS)
        for times in pauses.values()
        for begun_ns, continued_ns in times
        if continued_ns - begun_ns >= EXPIRE_NS
    ]
    return [
        row
        for row in rows
        if row.action != "published"
        or not any(begun_ns <= (row.true_ns or 0) <= ended_ns for begun_ns, ended_ns in absent)
    ]
