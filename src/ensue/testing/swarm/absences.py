"""Events that a subscriber misses because it was absent.

In causal order members keep the events. A receipt does not wait for a subscriber that is absent;
when it returns, it gets what it missed from those that had it. If all of these have left, the event
is gone with them. A subscriber that was paused is absent until it gets events again: servers may be
away when it continues.

One that is killed while it is absent has been gone since its absence began.

In every order servers give up a subscriber that is absent for too long. It notices when it returns,
and gets nothing of what was published meanwhile. A server that was absent itself does not count
that time.

Where faults strike for long, an event may take as long. A subscriber that ends or leaves the topic
before faults do need not get it, unless it gets a later one of the same publisher.
"""

import re
from collections.abc import Collection, Mapping, Sequence

import msgspec

from ensue.core.trace import Row
from ensue.protocols.total.station import EPHEMERAL

__all__ = [
    "missed",
    "with_early_ends",
    "without_expired",
    "without_final_ends",
    "without_forgotten",
    "without_unnoticed",
]

EXPIRE_NS = 55_000_000_000
"""Servers give no subscriber up that was absent for less: after 60 s, less what was on the way."""
NOTICE_NS = 25_000_000_000
"""How long after its return a subscriber is connected again, or noticed that it was given up."""

_HAS = frozenset({"submitted", "node_delivered"})
_ORDERED = ("total: ", "causal: ")
_MISSED = re.compile(r"complete: (.+) never delivered (\S+), which ")


def without_forgotten(
    rows: Sequence[Row],
    pauses: Mapping[str, Sequence[tuple[int, int]]],
    closed_ns: Mapping[str, int],
) -> list[Row]:
    """Leave out receipts of events that ended with all their members while a subscriber was absent.

    `pauses` has the times by node when it was paused. A member has ended with its last row, or when
    it was closed: `closed_ns` has that of members whose process went on and was killed later.
    """
    last_ns: dict[str, int] = {}
    holders: dict[str, set[str]] = {}
    got_ns: dict[str, list[int]] = {}
    for row in rows:
        last_ns[row.node] = row.true_ns or 0
        if row.action in _HAS:
            holders.setdefault(row.event or "", set()).add(row.node)
        if row.action == "node_delivered":
            got_ns.setdefault(row.node, []).append(row.true_ns or 0)
    for node, at_ns in closed_ns.items():
        last_ns[node] = min(last_ns.get(node, at_ns), at_ns)

    def returned_ns(node: str, continued_ns: int) -> int:
        latest_ns = continued_ns + NOTICE_NS
        later = (at_ns for at_ns in got_ns.get(node, ()) if at_ns >= continued_ns)
        return min(next(later, latest_ns), latest_ns)

    absences = {
        node: [(begun_ns, returned_ns(node, continued_ns)) for begun_ns, continued_ns in times]
        for node, times in pauses.items()
    }

    def is_forgotten(row: Row) -> bool:
        had = holders.get(row.event or "", set())
        at_ns, ended_ns = row.true_ns or 0, max(last_ns[node] for node in {*had, row.node})
        return any(
            begun_ns <= at_ns <= ended_ns <= back_ns
            for node, times in absences.items()
            if node not in had
            for begun_ns, back_ns in times
        )

    return [row for row in rows if row.action != "published" or not is_forgotten(row)]


def without_expired(
    problems: Sequence[str], rows: Sequence[Row], pauses: Mapping[str, Sequence[tuple[int, int]]]
) -> list[str]:
    """Leave out that a subscriber missed what was published while servers may have given it up.

    That is while its own machine was suspended for long. No server gives up a durable subscription.
    """
    published_ns = {row.event: row.true_ns or 0 for row in rows if row.action == "published"}

    def is_expired(problem: str) -> bool:
        node, event = missed(problem)
        at_ns = published_ns.get(event, 0)
        return EPHEMERAL in node and any(
            begun_ns <= at_ns <= continued_ns + NOTICE_NS
            for begun_ns, continued_ns in pauses.get(node.partition("/")[0], ())
            if continued_ns - begun_ns >= EXPIRE_NS
        )

    return [each for each in problems if not is_expired(each)]


def without_unnoticed(
    problems: Sequence[str], unnoticed: Collection[str], events: Collection[str]
) -> list[str]:
    """Leave out what clients on a broker have to expect until they notice that a log was lost.

    Of events that were published in this time, subscribers may miss some and get others in another
    order. They still get each of them once, and in its place among all others of `events`.
    """

    def is_expected(problem: str) -> bool:
        if problem.startswith(_ORDERED):
            return set(_words(problem)).intersection(events) <= set(unnoticed)
        return missed(problem)[1] in unnoticed

    return [each for each in problems if not is_expected(each)]


def missed(problem: str) -> tuple[str, str]:
    """Return who missed an event, and the event; two empty names: the problem is another one."""
    found = _MISSED.match(problem)
    return ("", "") if found is None else (found[1], found[2])


def without_final_ends(rows: Sequence[Row], over_ns: int, settle_ns: int) -> list[Row]:
    """Let subscriptions last that end because readers stop, at `over_ns`.

    The checker owes them all events with receipts, so leave out receipts that came too late for the
    event to settle.
    """
    limits_ns = {"unsubscribed": over_ns, "published": over_ns - settle_ns}
    return [
        row
        for row in rows
        if row.action not in limits_ns or (row.true_ns or 0) < limits_ns[row.action]
    ]


def with_early_ends(
    rows: Sequence[Row], pauses: Mapping[str, Sequence[tuple[int, int]]]
) -> list[Row]:
    """Move the end of a node that was killed while it was paused to when that pause began."""
    begun_ns = {(node, end): begun for node, times in pauses.items() for begun, end in times}
    found: list[Row] = []
    for row in rows:
        at_ns = begun_ns.get((row.node, row.true_ns or 0)) if row.action == "crashed" else None
        if at_ns is None:
            found.append(row)
            continue
        later = (index for index, each in enumerate(found) if (each.true_ns or 0) > at_ns)
        found.insert(next(later, len(found)), msgspec.structs.replace(row, true_ns=at_ns))
    return found


def _words(problem: str) -> list[str]:
    return re.split(r"[\s,;]+", problem)
