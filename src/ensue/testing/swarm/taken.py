"""What readers got from `async for`, to compare with what the trace says was delivered."""

from collections.abc import Sequence

import ensue
from ensue.core.trace import Row

__all__ = ["Taken"]


class Taken:
    """The events that applications got, by subscription."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, str], None] = {}
        self._watched: dict[str, None] = {}

    def watch(self, subscription: ensue.Subscription) -> None:
        """Compare a subscription: its application notes every event that it gets."""
        self._watched[subscription.name] = None

    def take(self, subscription: ensue.Subscription, event: ensue.ReceivedEvent) -> None:
        """Note that an application got an event."""
        self._events[subscription.name, event.id] = None

    def judge(self, rows: Sequence[Row]) -> list[str]:
        """Return which events count as delivered that no application got."""
        return [
            f"taken: {row.event} counts as delivered to {row.subscription}, which did not get it"
            for row in rows
            if row.action == "delivered"
            and row.subscription in self._watched
            and (row.subscription, row.event) not in self._events
        ]
