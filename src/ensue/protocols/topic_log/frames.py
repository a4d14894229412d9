"""The frames between clients and topic logs (`ensue.protocols.topic_log.log`)."""

import msgspec

from ensue.core.errors import ConfigurationError
from ensue.core.event import Count, Event, Name, Proof
from ensue.protocols.interface import Attach, Broadcast, Detach, Frame

__all__ = [
    "FRAMES",
    "NOTIFY",
    "Accepted",
    "AttachRequest",
    "Attached",
    "DetachRequest",
    "Fetch",
    "Fetched",
    "Forward",
    "LogEnd",
    "Notify",
    "Put",
    "Surveyed",
    "Taken",
    "TopicFrame",
    "TopicLogConfig",
    "matches",
    "request_for",
    "topic_of",
]

NOTIFY = b"\x92\x07"
"""What stands before the event in an encoded `Notify`."""


class TopicLogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and options of the topic logs of a node."""

    keeps_log: bool = True
    retained_max: int = 1_000_000
    """Events kept per topic."""
    cached_max: int = 16_384
    """Events of a topic in memory, where a store keeps them all."""
    batch_max: int = 256
    """Events sent in answer to one `AttachRequest`."""
    batch_bytes_max: int = 1024 * 1024
    """Bytes sent in answer to one `AttachRequest`, plus one event. Also the bytes of an answer to a
    `Fetch`, which is one message, unless one event alone is more."""
    fetch_max: int = 4096
    """Events in one answer to a `Fetch`; topics examined for one that asks for topics."""
    burst_bytes_max: int = 4 * 1024 * 1024
    """Bytes in answer to the requests of one batch; a peer that gets less asks again."""
    whole_every: int = 256
    """Slots of a topic after which a stamp is made whole, where a store keeps the events."""
    listeners_max: int = 100_000
    """Peers attached to one topic; more are sent nothing new, and have to ask."""
    attachments_max: int = 1_000_000
    """Peers attached to all topics together."""
    gives_places: bool = False
    """Number all events as they are published, whatever their topics (`Event.place`)."""
    durable: bool = True
    """False: persist nothing; the log ends with its process."""
    probe_ns: int = 0
    """Where messages get lost: how long after the last event of a topic its listeners are sent the
    end of its log (`ensue.protocols.topic_log.tail_probes`). 0: never."""

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
                value = getattr(self, field)
                raise ConfigurationError(f"TopicLogConfig.{field} must be at least 1, got {value}")
        if self.probe_ns < 0:
            raise ConfigurationError(
                f"TopicLogConfig.probe_ns must be at least 0 (no probes), got {self.probe_ns}"
            )


class Put(Frame, frozen=True, tag=1):
    """Publish an event. One that is not counted gets the next free slot of its topic."""

    event: Event
    proof: Proof = b""
    """The seal of the server that gave the event its stamp, where one is needed."""


class Accepted(Frame, frozen=True, tag=2):
    """The event has its slot permanently."""

    topic: Name
    event: str
    slot: Count


class Taken(Frame, frozen=True, tag=3):
    """Another event holds the slot: this one reaches no subscriber."""

    topic: Name
    event: str
    slot: Count


class AttachRequest(Frame, frozen=True, tag=4):
    """Request the events of a topic from a slot on (0: only new ones), and new ones."""

    topic: Name
    from_slot: Count
    limit: Count = 0
    """Send at most so many of the events before the new ones; 0: as many as the log does."""


class Attached(Frame, frozen=True, tag=5):
    """The peer is attached: slots below `first` are gone, from `next` on free.

    The requested events have been sent up to `sent`, that slot not included.
    """

    topic: Name
    first: Count
    next: Count
    sent: Count


class DetachRequest(Frame, frozen=True, tag=6):
    """Stop the events of a topic."""

    topic: Name


class Notify(Frame, frozen=True, tag=7):
    """An event of a topic that the peer is attached to."""

    event: Event


class Forward(Frame, frozen=True, tag=7):
    """A `Notify` with an encoded event: only sent, and received as a `Notify`."""

    event: msgspec.Raw


class Fetch(Frame, frozen=True, tag=10):
    """Request the events of a topic from a slot up to another, which is not included.

    The answer ends before the first slot that is not filled yet. No new events follow.
    """

    topic: Name
    start: Count
    stop: Count
    """0: all."""
    place: Count = 0
    """Skip events published before this place."""
    survey: tuple[Name, ...] | None = None
    """Given: request no events but a list of topics (`Surveyed`) that match `topic` as well as any
    of these: a topic, a prefix with everything below it (`audit.*`), or all (`*`). Of the topics,
    in the order in which they were first used, `start` are skipped."""

    def asks_for(self, topic: str) -> bool:
        """Return whether a topic is to be listed."""
        return matches(topic, self.topic) and any(
            matches(topic, pattern) for pattern in self.survey or ()
        )


class Fetched(Frame, frozen=True, tag=11):
    """Fetched events, in the order of their slots. Fetch from `next` on for more."""

    topic: Name
    start: Count
    """The first requested slot."""
    first: Count
    """Slots below are no longer retained."""
    next: Count
    """The slot after the last one examined."""
    end: Count
    """The next free slot of the topic."""
    events: tuple[Event, ...]


class Surveyed(Frame, frozen=True, tag=13):
    """Topics that have had events. Ask from `next` on for more, unless that is `end`."""

    start: Count
    """How many topics were skipped, as requested."""
    next: Count
    end: Count
    topics: dict[Name, tuple[Count, Count]]
    """Topic to its first slot that is kept, and its first one that is not filled yet."""


class LogEnd(Frame, frozen=True, tag=14):
    """The end of a topic that has been silent: a listener that lacks an event requests it."""

    topic: Name
    next: Count
    """The first free slot."""
    silent_ns: Count
    """For how long the last event has been on its way."""


class TopicFrame(Frame, frozen=True):
    """A frame of one order for all listeners of a topic. Subclasses have a tag.

    A publisher sends it to the topic's log or fan-out, which sends it once to the listeners
    attached at that moment. It gets no answer and no slot, and may be lost.
    """

    topic: Name
    publisher: Name
    """The sender."""


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
    LogEnd,
)


def request_for(effect: Broadcast | Attach | Detach) -> Frame:
    """Return the frame that carries an effect to a `TopicLog`."""
    match effect:
        case Broadcast(event=event, proof=proof):
            return Put(event=event, proof=proof)
        case Attach(topic=topic, from_slot=from_slot, limit=limit):
            return AttachRequest(topic=topic, from_slot=from_slot, limit=limit)
        case Detach(topic=topic):
            return DetachRequest(topic=topic)


def topic_of(frame: Frame) -> str:
    """Return the topic whose listeners get a frame; empty if it is for one peer."""
    if isinstance(frame, Notify):
        return frame.event.topic
    return frame.topic if isinstance(frame, (TopicFrame, LogEnd)) else ""


def matches(topic: str, pattern: str) -> bool:
    """Return whether a pattern matches: a topic, a prefix (`audit.*`) or all (`*`)."""
    if pattern.endswith(".*"):
        return topic.startswith(pattern[:-1])
    return pattern in ("*", topic)
