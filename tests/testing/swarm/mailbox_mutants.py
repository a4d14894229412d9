"""Planted bugs in durable and ordered subscriptions by content, beside those of `mutants`.

Each is a name, the order whose programs find it, what is put in whose place, and a seed that finds
it and finds nothing without it.
"""

from typing import Any

from ensue.core.event import Event
from ensue.protocols.content.cells import Cells
from ensue.protocols.content.client import Notified
from ensue.protocols.total.progress import Progress

__all__ = ["BUGS"]


def advance_past_the_open(self: Progress, topic: str, slot: int) -> None:
    """An event that is stepped over counts as handled, although an earlier one is not."""
    self._advance(topic, slot)


def is_misplaced(self: Cells, event: Event) -> bool:
    """Servers take events of the first cell of an attribute for those of another cell."""
    return not event.topic.endswith("-1") and real_has(self, event)


def name_nothing(self: Notified, action: str, position: int, verdict: str = "") -> dict[str, Any]:
    """An event of a transaction is delivered to a subscription that was never made."""
    row = real_row(self, action, position, verdict)
    if self.transaction:
        row["subscription"] += "0"
    return row


real_has, real_row = Cells.has, Notified.row

BUGS: tuple[tuple[str, str, tuple[tuple[object, str, object], ...], int], ...] = (
    (
        "an event in vain counts as handled",
        "total-content",
        ((Progress, "_skip", advance_past_the_open),),
        0,
    ),
    ("servers know other cells", "total-content", ((Cells, "has", is_misplaced),), 0),
    (
        "a transaction reaches an unmade subscription",
        "transactions",
        ((Notified, "row", name_nothing),),
        0,
    ),
)
