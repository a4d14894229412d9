"""What a node remembers of the publishers whose requests enter the chain there."""

from collections import OrderedDict

from ensue.event import Event

__all__ = ["Publisher"]


class Publisher:
    """What an origin remembers of one publisher."""

    __slots__ = ("early", "elsewhere", "next", "out", "seen_ns", "settled")

    def __init__(self, next_number: int, seen_ns: int) -> None:
        self.next = next_number
        """The number of the next new request."""
        self.elsewhere: OrderedDict[int, int] = OrderedDict()
        """Requests that another stage completes, so that a repeated one can be answered."""
        self.early: dict[int, str | Event] = {}
        """Requests that overtook an earlier one: topics, or events; no more than `window`."""
        self.out: OrderedDict[int, int] = OrderedDict()
        """Requests whose events went out from here, with their slots, as far as remembered."""
        self.settled = 0
        """It knows the fate of every request below."""
        self.seen_ns = seen_ns
