"""Planted bugs of the checks of membership, for forged frames to get through.

Each is a name, the order whose programs find it, what is put in whose place, and a seed that finds
it and finds nothing without it.
"""

from typing import Any

from ensue.protocols.deadline.membership import Membership
from ensue.server.relay_claims import ClaimChecker

__all__ = ["FORGERIES"]


def believe_row(_self: ClaimChecker, _bundle: object, row: Any) -> Any:
    """What a client says about the subscriptions of another one is believed."""
    return row


def believe_frame(_self: ClaimChecker, _bundle: object, frame: Any) -> Any:
    """The same, with deadlines."""
    return frame


def hear_of_others(self: Membership, row: Any, number: int) -> bool:
    """A client believes what another one says about the groups of a third."""
    del number
    return self.put(row)


FORGERIES: tuple[tuple[str, str, tuple[tuple[object, str, object], ...], int], ...] = (
    ("relayed rows are believed", "causal", ((ClaimChecker, "_row", believe_row),), 86),
    (
        "relayed groups are believed",
        "deadline",
        ((ClaimChecker, "_groups", believe_frame), (Membership, "hear", hear_of_others)),
        2,
    ),
)
