"""What is said to the event notification service (ENS), and what it answers.

The service keeps a log per topic and fans events out to whoever attached: `ensue.protocols.topic_log`.
"""

import msgspec

from ensue.errors import ConfigurationError
from ensue.event import Count, Event, Name, Proof
from ensue.protocols.core import Attach, Broadcast, Detach, Frame

__all__ = [
    "FRAMES",
    "Accepted",
    "AttachRequest",
    "Attached",
    "DetachRequest",
    "EnsConfig",
    "Fetch",
    "Fetched",
    "Forward",
    "Notify",
    "Put",
    "Surveyed",
    "Taken",
    "matches",
    "request_for",
]


class EnsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an ENS node keeps and for how long."""

    keeps_log: bool = True
    retained_max: int = 1_000_000
    """Events kept per topic."""
    cached_max: int = 16_384
    """Events of a topic in memory, where somebody else keeps them all."""
    batch_max: int = 256
    """Events sent in answer to one `AttachRequest`, …"""
    batch_bytes_max: int = 1024 * 1024
    """… but no more once they come to this. Also the bytes of an answer to a `Fetch`, which travels
    whole, unless one event alone is more."""
    fetch_max: int = 4096
    """Events in one answer to a `Fetch`; topics looked at for one that asks for topics."""
    burst_bytes_max: int = 4 * 1024 * 1024
    """Of events and topics in answer to what was asked at once; whoever gets less asks again."""
    whole_every: int = 256
    """Slots of a topic after which a stamp is made whole, where somebody else keeps the events."""
    listeners_max: int = 100_000
    """Peers attached to one topic; more are not sent anything new, and have to ask."""
    attachments_max: int = 1_000_000
    """The same of all topics together."""
    gives_places: bool = False
    """Number all events as they are put out, whatever their topics (`Event.place`)."""
    durable: bool = True
    """False: nothing is persisted, for a service that lives and dies with its process."""

    def __post_init__(self) -> None:
        for field in (
            "retained_max",
            "cached_max",
            "batch_max",
            "batch_bytes_max",
            "fetch_max",
            "burst_bytes_max",
            "whole_every",
            "listeners_max",
            "attachments_max",
        ):
            if getattr(self, field) < 1:
                raise ConfigurationError(f"EnsConfig.{field} must be at least 1")


class Put(Frame, frozen=True, tag=1):
    """Publish an event. One that is not counted gets the next free slot of its topic."""

    event: Event
    proof: Proof = b""
    """Of who gave the event its stamp, where that is asked for."""


class Accepted(Frame, frozen=True, tag=2):
    """The event is in its slot for good."""

    topic: Name
    event: str
    slot: Count


class Taken(Frame, frozen=True, tag=3):
    """Another event holds the slot: this one reaches nobody."""

    topic: Name
    event: str
    slot: Count


class AttachRequest(Frame, frozen=True, tag=4):
    """Send me the events of a topic from a slot on (0: only new ones), and new ones as they come."""

    topic: Name
    from_slot: Count


class Attached(Frame, frozen=True, tag=5):
    """You are attached: slots below `first` can't be had, none at or beyond `next` is taken.

    What was asked for has been sent up to `sent`, that slot not included.
    """

    topic: Name
    first: Count
    next: Count
    sent: Count


class DetachRequest(Frame, frozen=True, tag=6):
    """Send me no more events of this topic."""

    topic: Name


class Notify(Frame, frozen=True, tag=7):
    """An event of a topic that you are attached to."""

    event: Event


class Forward(Frame, frozen=True, tag=7):
    """A `Notify` with an event that is encoded already: made to be sent, and received as a `Notify`."""

    event: msgspec.Raw


class Fetch(Frame, frozen=True, tag=10):
    """Send me the events of a topic from a slot up to, not including, another; nothing follows.

    What is sent ends before the first slot that is not filled yet.
    """

    topic: Name
    start: Count
    stop: Count
    """0: as far as there is any."""
    place: Count = 0
    """Pass over events that were put out before this place."""
    survey: tuple[Name, ...] | None = None
    """Given: tell no events, but which topics there are (`Surveyed`) that match `topic` as well as any
    of these: a topic, a prefix with everything below it (`audit.*`), or all (`*`). Of the topics in the
    order in which they came up, `start` are passed over."""

    def asks_for(self, topic: str) -> bool:
        """Tell whether a topic is to be told of."""
        return matches(topic, self.topic) and any(
            matches(topic, pattern) for pattern in self.survey or ()
        )


class Fetched(Frame, frozen=True, tag=11):
    """Events that were fetched, in the order of their slots. Ask again from `next` on for more."""

    topic: Name
    start: Count
    """What was asked for."""
    first: Count
    """Slots below can't be had any more."""
    next: Count
    """The slot behind the last one looked at."""
    end: Count
    """The next free slot of the topic."""
    events: tuple[Event, ...]


class Surveyed(Frame, frozen=True, tag=13):
    """Topics that have had events. Ask again from `next` on for more, unless that is `end`."""

    start: Count
    """What was asked for."""
    next: Count
    end: Count
    topics: dict[Name, tuple[Count, Count]]
    """The first slot that can be had, and the first one that is not filled yet."""


FRAMES: tuple[type[Frame], ...] = (
    Put,
    Accepted,
    Taken,
    AttachRequest,
    Attached,
    DetachRequest,
    Notify,
    Fetch,
    Fetched,
    Surveyed,
)


def request_for(effect: Broadcast | Attach | Detach) -> Frame:
    """Turn an effect meant for the ENS into the frame that asks a `TopicLog` for it."""
    match effect:
        case Broadcast(event=event, proof=proof):
            return Put(event=event, proof=proof)
        case Attach(topic=topic, from_slot=from_slot):
            return AttachRequest(topic=topic, from_slot=from_slot)
        case Detach(topic=topic):
            return DetachRequest(topic=topic)


def matches(topic: str, pattern: str) -> bool:
    """Tell whether a pattern is a topic, a prefix of it up to a dot (`audit.*`), or all (`*`)."""
    if pattern.endswith(".*"):
        return topic.startswith(pattern[:-1])
    return pattern in ("*", topic)
