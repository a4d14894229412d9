"""What is known of one topic's log, and what is asked of whoever keeps its events."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Protocol

from ensue.event import Event

__all__ = ["KeptEvents", "Topic"]


class KeptEvents(Protocol):
    """Whoever keeps the events that were persisted, under `event/SLOT/TOPIC`."""

    def event(self, topic: str, slot: int) -> bytes | None:
        """Return the event in a slot as it was persisted."""

    def bounds(self) -> Mapping[str, tuple[int, int]]:
        """Return each topic's first slot that is kept and its next free one."""


class Topic:
    """The log of one topic and who listens to it."""

    __slots__ = ("attached", "events", "filled", "first", "hole", "next", "peers", "stamp", "whole")

    def __init__(self) -> None:
        self.events: OrderedDict[int, Event] = OrderedDict()
        """All that are kept, or the latest of them if somebody else keeps them."""
        self.first = 1
        self.next = 1
        self.filled = 1
        """The first slot that is not filled yet."""
        self.hole = 0
        """`filled` as it was persisted; 0: it is not, as no slot before `next` is empty."""
        self.stamp: dict[str, int] | None = None
        """The whole entries of the event before `filled`; None: not known."""
        self.whole = (0, 0)
        """Slot and place of the last event before `filled` with a whole stamp."""
        self.attached: dict[str, None] = {}
        self.peers: tuple[str, ...] | None = ()  # The same as a tuple; None: to be made.
