"""The two ends of numbered links (`link`) at one node."""

from collections import OrderedDict

from ensue.protocols.shared.link_frames import LinkData
from ensue.protocols.shared.round_trips import RoundTrips

__all__ = ["Incoming", "Outgoing"]


class Outgoing:
    """Frames on their way to one peer."""

    __slots__ = (
        "arrived",
        "due_ns",
        "highest",
        "latest_ns",
        "next",
        "reorders",
        "resend",
        "round_trips",
        "sent",
        "since_ns",
        "unacknowledged",
        "wait_ns",
    )

    def __init__(self, round_trips: RoundTrips) -> None:
        self.next = 1
        self.round_trips = round_trips
        self.sent: dict[int, tuple[int, bool]] = {}
        """By number, if waits follow round trips: when a frame was last sent, and whether once."""
        self.arrived: set[int] = set()
        """Unacknowledged frames that the peer has received early, and loses if it crashes."""
        self.highest = 0
        """The highest number of a frame that is known to have arrived."""
        self.reorders = False
        """Whether frames have overtaken each other, and none was lost."""
        self.latest_ns = -1
        """When the last one was sent of the frames that are known to have arrived."""
        self.unacknowledged: OrderedDict[int, LinkData] = OrderedDict()
        self.due_ns: int | None = None
        """When to retransmit; None while everything is acknowledged."""
        self.wait_ns = self.round_trips.timeout_ns
        self.since_ns = 0
        """Since when the first unacknowledged frame has been the first."""
        self.resend: int | None = None
        """While catching up after a loss: the number to retransmit next."""


class Incoming:
    """Frames from one peer."""

    __slots__ = ("due_ns", "early", "next", "owed")

    def __init__(self) -> None:
        self.next = 1
        self.early: dict[int, bytes] = {}
        self.owed = 0
        """Frames that were received and not acknowledged yet."""
        self.due_ns: int | None = None
        """When to acknowledge them, unless a frame goes to the peer before."""
