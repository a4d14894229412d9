"""Which events merged order owes to each subscription, on Ensue's own servers.

That a lost event may stay lost is said of networks that lose messages. On `ensue://` none is lost
while a connection lasts. So of an event with a receipt, published when a subscription to its topic
was in effect,

- the subscription gets it, or
- discards it, and the row of that has a documented reason: there was no room (`overflow`), its
  application did not read it before it left (`unread`), it took too long (`late`), or its clock was
  too far ahead (`skewed`). If neither a fault strikes nor the network is unusual, nothing takes too
  long, and clocks agree.

Servers relay events to the clients that are connected, and keep none. So where faults cut clients
off that go on, nothing is owed of what was published before all of them are back.
"""

from collections.abc import Sequence

import msgspec

from ensue.core.trace import Row
from ensue.testing.swarm.topic_draw import Draw

__all__ = ["without_explained"]

CONNECTED = frozenset(
    {
        "client_kills",
        "client_pauses",
        "client_power_cuts",
        "client_stops",
        "clock_drifts",
        "clock_steps",
        "slow_disks",
    }
)
"""Faults under which a client that goes on stays connected: no pause lasts 20 s."""
ALWAYS = frozenset({"overflow", "unread"})
"""Why a subscription may discard an event whatever happens."""
STRUCK = ALWAYS | {"late", "skewed"}
"""Why it may do so where a fault strikes, or the network is unusual."""


def without_explained(rows: Sequence[Row], drawn: Draw, final_ns: int) -> list[Row]:
    """Leave out of a trace in merged order what explains that events are missing.

    Of each event that a subscription does not get, either there is no receipt, or the subscription
    discarded it as `unmatched`; all others are owed. `final_ns` is when all clients are back.
    """
    is_quiet = drawn.strikes(set())
    reasons = ALWAYS if is_quiet else STRUCK
    since_ns = 0 if _stay_connected(drawn) else final_ns
    owed = {row.event for row in rows if row.action == "submitted" and _ns(row) >= since_ns}
    found = []
    for row in rows:
        if row.action == "published" and row.event not in owed:
            continue
        if row.action == "discarded" and row.subscription and row.verdict in reasons:
            row = msgspec.structs.replace(row, verdict="unmatched")  # noqa: PLW2901
        found.append(row)
    return found


def _stay_connected(drawn: Draw) -> bool:
    return not drawn.mishap and drawn.faults.rates.keys() <= CONNECTED


def _ns(row: Row) -> int:
    return row.true_ns or 0
