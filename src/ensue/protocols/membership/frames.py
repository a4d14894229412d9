"""Frames between members and their registry.

| frame | from | to | purpose |
|---|---|---|---|
| `Register` | process | registry | register, or poll for updates and for readers of topics |
| `Members` | registry | member | entries of the lists beyond a known prefix; readers |
| `Deregister` | member | registry | leave permanently |
| `Evicted` | registry | process | not a member, or no longer one |
| `TopicRequest` | member | registry | may this member publish on, or subscribe to, a topic? |
| `TopicGranted`, `TopicDenied` | registry | member | the answer |
| `TopicReleased` | member | registry | the member no longer uses a topic |
"""

from typing import Annotated, Literal

import msgspec

from ensue.core.event import Count, Name
from ensue.protocols.causal.frames import Number
from ensue.protocols.interface import Frame

__all__ = [
    "FRAMES",
    "FROM_NODES",
    "INQUIRIES_MAX",
    "Action",
    "Deregister",
    "Evicted",
    "Members",
    "Register",
    "TopicDenied",
    "TopicGranted",
    "TopicReleased",
    "TopicRequest",
]

Action = Literal["publish", "subscribe"]
Terms = Annotated[str, msgspec.Meta(max_length=64)]
Digest = Annotated[bytes, msgspec.Meta(max_length=16)]
INQUIRIES_MAX = 64
"""Topics that one request can inquire about."""


class Register(Frame, frozen=True, tag=70):
    """A request to become a member, or for updates."""

    epoch: Count
    """0: the process is new."""
    known: Count
    """How many names it knows."""
    gone: Count
    """How many departures it knows."""
    terms: Terms = ""
    """Settings that all members must share, as text."""
    digest: Digest = b""
    """Of the known lists; empty if new."""
    asked: Count = 0
    """Number of this request at its sender."""
    topics: Annotated[tuple[Name, ...], msgspec.Meta(max_length=INQUIRIES_MAX)] = ()
    """Which members may have subscribed to these?"""


class Members(Frame, frozen=True, tag=71):
    """Entries of the lists beyond what was known; poll again if they are not complete."""

    epoch: Count
    first: Count
    names: tuple[Name, ...]
    total: Count
    gone_first: Count
    gone: tuple[Number, ...]
    gone_total: Count
    digest: Digest = b""
    """Of the entries before `first` and `gone_first`."""
    asked: Count = 0
    """The request that this answers; 0: an update without a request."""
    readers: dict[Name, tuple[Number, ...]] = msgspec.field(default_factory=dict)
    """By topic of the request: the members that may have subscribed. Not all topics may fit."""


class Evicted(Frame, frozen=True, tag=72):
    """The process is not a member, and will not be one under this name."""

    reason: str


class Deregister(Frame, frozen=True, tag=73):
    """The member leaves permanently."""

    epoch: Count
    """0: the current one; the sender does not know it."""


class TopicRequest(Frame, frozen=True, tag=74):
    """A request to use a topic."""

    topic: Name
    action: Action
    asked: Count = 0
    """Number of this request at its sender."""


class TopicGranted(Frame, frozen=True, tag=75):
    """The member may use the topic."""

    topic: Name
    action: Action


class TopicDenied(Frame, frozen=True, tag=76):
    """The member may not use the topic."""

    topic: Name
    action: Action
    reason: str


class TopicReleased(Frame, frozen=True, tag=77):
    """The member has unsubscribed from a topic."""

    topic: Name
    asked: Count = 0
    """Number of its last request: a later one is not released."""


FRAMES: tuple[type[Frame], ...] = (
    Register,
    Members,
    Evicted,
    Deregister,
    TopicRequest,
    TopicGranted,
    TopicDenied,
    TopicReleased,
)
FROM_NODES: tuple[type[Frame], ...] = (Register, Deregister, TopicRequest, TopicReleased)
