"""What a publisher has under way: events, and the lanes in which they wait for their stamps."""

from collections import OrderedDict, deque

from ensue.event import Event

__all__ = ["Key", "Lane", "Outgoing"]

Key = tuple[str, int]
"""The topic of an event and its number there: cheaper than its id, and as good at its publisher."""


class Outgoing:
    """One event under way."""

    __slots__ = ("due_ns", "event", "granted_by", "key", "number", "origin", "place", "restored")

    def __init__(
        self, event: Event, origin: str, number: int, place: int, *, restored: bool = False
    ) -> None:
        self.event = event
        self.key: Key = (event.topic, event.publisher_seq)
        self.origin = origin
        self.number = number
        self.place = place
        """Its place among all events of this publisher."""
        self.granted_by = ""
        """The node that completed the stamp; empty until stamped."""
        self.due_ns = 0
        """When to repeat the request or the broadcast."""
        self.restored = restored
        """Taken up again after a restart: it may have been stamped, and be out, already."""


class Lane:
    """Events that are stamped in the order they were published: all, or those of one origin."""

    __slots__ = ("origin", "requested", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Outgoing] = deque()
        self.requested: OrderedDict[int, Outgoing] = OrderedDict()
        """In flight at one origin, by number, in the order they are due."""
        self.origin = ""
        """The origin that the requests in flight went to."""
