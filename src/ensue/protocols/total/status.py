"""Status requests to a station. Requests and answers may be lost: repeat them.

A station does not know what lies beyond the protocol (connections, the journal, the time): the
server that runs it provides the answer (`Station.on_status_request`).
"""

from ensue.core.event import Count, Name
from ensue.protocols.interface import Frame

__all__ = ["FRAMES", "TOPICS_MAX", "StatusReply", "StatusRequest"]

TOPICS_MAX = 2_000
"""Topics in one request: with the longest names the answer is half a megabyte."""


class StatusRequest(Frame, frozen=True, tag=52):
    """Ask a station for its status."""

    number: Count
    """Chosen by the sender; the answer has the same."""
    readable: tuple[Name, ...] | None = None
    """Report only topics that match any of these: a topic, a prefix with everything below it
    (`audit.*`), or all (`*`); None: everything. A server fills in what the user may subscribe
    to."""
    topics: tuple[Name, ...] = ()
    """Also report where these topics begin and end; at most `TOPICS_MAX`."""
    user: str = ""
    """With `readable`: who asks, and sees the filters of its own durable subscriptions by content.
    A server fills it in."""


class StatusReply(Frame, frozen=True, tag=53):
    """The status of a station."""

    number: Count
    state: bytes
    """One JSON object, described in `ensue.server.status`."""
    bounds: dict[Name, tuple[Count, Count]]
    """Each requested topic to its first slot that is kept and its next free one."""


FRAMES: tuple[type[Frame], ...] = (StatusRequest, StatusReply)
