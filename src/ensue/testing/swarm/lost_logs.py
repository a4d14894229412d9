"""Clients that go on although a server lost its log, or continues with an older one.

Their receipts and positions belong to a log that no longer exists, so each bus that was connected
has to end with `LogLost` or `SubscriptionLost`. What it publishes or gets later shows that it has
not. Where an older log continues, a subscription has to end that had got an event which this log
lacks. Others may not notice, and their events are owed as ever.
"""

from collections.abc import Sequence

from ensue.core.trace import Row

__all__ = ["judge_lost_log"]

_CONNECTED = frozenset({"published", "delivered", "subscribed"})
"""What a client does only with a server that has told it which log it has."""
_GOES_ON = frozenset({"submitted", "delivered"})


def judge_lost_log(
    rows: Sequence[Row], *, known_ns: int, lost_ns: int, copied_ns: int, noticed_ns: int
) -> list[str]:
    """Return which clients went on after `noticed_ns`, when all have noticed.

    The log was lost at `lost_ns`. Clients that were connected at `known_ns` knew it by then.
    `copied_ns` is when the older log was copied; 0: the server has a new one.
    """
    rows = sorted(rows, key=lambda row: row.true_ns or 0)
    if copied_ns:
        return _with_an_older(rows, copied_ns, lost_ns, noticed_ns)
    return _with_another(rows, known_ns, noticed_ns)


def _with_another(rows: Sequence[Row], known_ns: int, noticed_ns: int) -> list[str]:
    """Return the buses that went on with another log."""
    buses: set[str] = set()
    found: dict[str, None] = {}
    for row in rows:
        at_ns = row.true_ns or 0
        if at_ns < known_ns and row.action in _CONNECTED:
            buses.add(row.node)
        elif at_ns >= noticed_ns and row.action in _GOES_ON and row.node in buses:
            found[row.node] = None
    return [f"log: {node} went on with another log of its server" for node in found]


def _with_an_older(rows: Sequence[Row], copied_ns: int, lost_ns: int, noticed_ns: int) -> list[str]:
    """Return the subscriptions that went on with a log that lacks an event which they got."""
    lacking: set[str | None] = set()
    ahead: set[tuple[str, str | None]] = set()
    found: dict[tuple[str, str | None], None] = {}
    for row in rows:
        at_ns, reader = row.true_ns or 0, (row.node, row.subscription)
        if row.action == "submitted" and at_ns > copied_ns:
            lacking.add(row.event)
        elif row.action == "delivered" and at_ns < lost_ns and row.event in lacking:
            ahead.add(reader)
        elif row.action == "delivered" and at_ns >= noticed_ns and reader in ahead:
            found[reader] = None
    return [f"log: {name} of {node} went on with an older log" for node, name in found]
