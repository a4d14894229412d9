"""Events in causal order that no member kept until an absent subscriber returned.

Members keep the events. A receipt does not wait for a subscriber that is absent; when it returns,
it gets what it missed from those that had it. If all of these have left, the event is gone with
them.
"""

from collections.abc import Sequence

from ensue.core.trace import Row

__all__ = ["without_forgotten"]

_HAS = frozenset({"submitted", "node_delivered"})


def without_forgotten(rows: Sequence[Row]) -> list[Row]:
    """Leave out receipts of events whose members had all left before some subscriber returned.

    A subscriber counts as absent while it has no rows.
    """
    times: dict[str, list[int]] = {}
    """By node: when it had rows."""
    holders: dict[str, set[str]] = {}
    subscribers: set[str] = set()
    for row in rows:
        times.setdefault(row.node, []).append(row.true_ns or 0)
        if row.action in _HAS:
            holders.setdefault(row.event or "", set()).add(row.node)
        elif row.action == "subscribed":
            subscribers.add(row.node)

    def is_forgotten(row: Row) -> bool:
        had = holders.get(row.event or "", set())
        begun_ns, ended_ns = row.true_ns or 0, max(times[node][-1] for node in {*had, row.node})
        return any(
            times[node][0] < begun_ns
            and times[node][-1] > ended_ns
            and not any(begun_ns <= at_ns <= ended_ns for at_ns in times[node])
            for node in subscribers - had
        )

    return [row for row in rows if row.action != "published" or not is_forgotten(row)]
