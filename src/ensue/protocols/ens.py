"""What is said to the event notification service (ENS), and what it answers.

The service keeps a log per topic and fans events out to whoever attached: `ensue.protocols.topic_log`.
"""

from ensue.event import Count, Event, Name
from ensue.protocols.core import Attach, Broadcast, Detach, Frame

__all__ = [
    "FRAMES",
    "Accepted",
    "AttachRequest",
    "Attached",
    "DetachRequest",
    "Fetch",
    "Fetched",
    "Notify",
    "Put",
    "Taken",
    "request_for",
]


class Put(Frame, frozen=True, tag=1):
    """Publish an event. One with no stamp gets the next free slot of its topic."""

    event: Event


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
)


def request_for(effect: Broadcast | Attach | Detach) -> Frame:
    """Turn an effect meant for the ENS into the frame that asks a `TopicLog` for it."""
    match effect:
        case Broadcast(event=event):
            return Put(event=event)
        case Attach(topic=topic, from_slot=from_slot):
            return AttachRequest(topic=topic, from_slot=from_slot)
        case Detach(topic=topic):
            return DetachRequest(topic=topic)
