"""Somebody who sends to a server, as far as the rules look at it."""

from ensue.server.access import Action, Grants

__all__ = ["Guest", "Known"]

Known = dict[Action, dict[str, str]]
"""Topics that were looked at, and why they may not be used; empty: they may."""


class Guest:
    """Whoever it is, and what it has been let do so far."""

    def __init__(self, *, known: Known | None = None) -> None:
        self.grants = Grants("", None)
        """What it may do: everything, until it has proved who it is."""
        self.known: Known = {"publish": {}, "subscribe": {}} if known is None else known
        self.attached: dict[str, dict[tuple[str, str], None]] = {}
        """Names to where and to which topics they listen, or are in."""
        self.enrolled: dict[str, str] = {}
        """Names to the registry by which they know others, who may send to them."""
