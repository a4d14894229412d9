"""The event notification service (ENS) as a node: a log per topic, fanned out to whoever attached.

Guarantees
- One event per slot. The first event put into a slot of a topic stays there; a different one that
  comes later is answered with `Taken` and reaches nobody. This is what makes voiding a stamp safe:
  the void and a late original compete for one slot, and everybody sees the same winner.
- Putting the same stamped event again is harmless: it is `Accepted` again. One without a stamp
  gets a new slot each time; whoever uses those tells repetitions apart itself.
- With a log (`keeps_log`), whoever attaches from a slot is sent everything from there on, so an
  event lost on its way can be had again: this is the reliable ENS. Without one, an event is sent
  once to whoever is attached at that moment and is then forgotten: the unreliable ENS.

It does not order: notifications travel apart and overtake each other.

Limits: `retained_max` events a topic (older ones are dropped, and `Attached.first` says so);
`batch_max` events an answer to one `AttachRequest`.

HAZARD: a publisher that repeats an event after `retained_max` newer ones can't be told any more whether
it is out; it is told that it is not.

HAZARD: a broker with no conditional publish can't refuse the later of two events for one slot.
There, a publisher paused for longer than its lease between looking at its clock and sending may
be seen by some subscribers and not by others.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ensue.errors import ConfigurationError
from ensue.event import Event
from ensue.protocols.core import Attach, Broadcast, Detach, Effect, Frame, Persist, Send
from ensue.wire import Records

__all__ = [
    "FRAMES",
    "Accepted",
    "AttachRequest",
    "Attached",
    "DetachRequest",
    "EnsConfig",
    "Notify",
    "Put",
    "Taken",
    "TopicLog",
    "request_for",
]


class Put(Frame, frozen=True, tag=1):
    """Publish an event. One with no stamp gets the next free slot of its topic."""

    event: Event


class Accepted(Frame, frozen=True, tag=2):
    """The event is in its slot for good."""

    topic: str
    event: str
    slot: int


class Taken(Frame, frozen=True, tag=3):
    """Another event holds the slot: this one reaches nobody."""

    topic: str
    event: str
    slot: int


class AttachRequest(Frame, frozen=True, tag=4):
    """Send me the events of a topic from a slot on (0: only new ones), and new ones as they come."""

    topic: str
    from_slot: int


class Attached(Frame, frozen=True, tag=5):
    """You are attached: slots below `first` can't be had, none at or beyond `next` is taken.

    What was asked for has been sent up to `sent`, that slot not included.
    """

    topic: str
    first: int
    next: int
    sent: int


class DetachRequest(Frame, frozen=True, tag=6):
    """Send me no more events of this topic."""

    topic: str


class Notify(Frame, frozen=True, tag=7):
    """An event of a topic that you are attached to."""

    event: Event


FRAMES: tuple[type[Frame], ...] = (
    Put,
    Accepted,
    Taken,
    AttachRequest,
    Attached,
    DetachRequest,
    Notify,
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


class EnsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an ENS node keeps and for how long."""

    keeps_log: bool = True
    retained_max: int = 1_000_000
    """Events kept per topic."""
    batch_max: int = 256
    """Events sent in answer to one `AttachRequest`."""
    durable: bool = True
    """False: nothing is persisted, for a service that lives and dies with its process."""

    def __post_init__(self) -> None:
        for field in ("retained_max", "batch_max"):
            if getattr(self, field) < 1:
                raise ConfigurationError(f"EnsConfig.{field} must be at least 1")


class _Topic:
    """The log of one topic and who listens to it."""

    __slots__ = ("attached", "events", "first", "next")

    def __init__(self) -> None:
        self.events: dict[int, Event] = {}
        self.first = 1
        self.next = 1
        self.attached: dict[str, None] = {}


_EVENT = Records[Event](Event)
_INT = Records[int](int)


class TopicLog:
    """One ENS node. It has no commands of its own: it answers frames.

    `records` is what an earlier incarnation persisted.
    """

    def __init__(
        self,
        *,
        name: str,
        config: EnsConfig | None = None,
        records: Mapping[str, bytes] | None = None,
    ) -> None:
        self.name = name
        self.config = config or EnsConfig()
        self._topics: dict[str, _Topic] = {}
        self._effects: list[Effect] = []
        for key, value in sorted((records or {}).items()):
            kind, _, rest = key.partition("/")
            if kind == "first":
                self._topic(rest).first = _INT.decode(value)
            elif kind == "event":
                event = _EVENT.decode(value)
                self._store(event, int(rest.partition("/")[0]))
            elif kind == "attached":
                # An attachment is one record a topic and peer; the topic comes with its length
                # in front because either name may contain a slash.
                size, _, names = rest.partition("/")
                topic, peer = names[: int(size)], names[int(size) + 1 :]
                self._topic(topic).attached[peer] = None

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Answer a frame."""
        del now_ns
        match frame:
            case Put(event=event):
                self._put(event, source)
            case AttachRequest(topic=topic, from_slot=from_slot):
                self._attach(topic, from_slot, source)
            case DetachRequest(topic=topic):
                if source in self._topic(topic).attached:
                    del self._topic(topic).attached[source]
                    self._persist(f"attached/{len(topic)}/{topic}/{source}", None)
            case _:
                pass  # Not for an ENS: a stray frame changes nothing.

    def handle_timer(self, *, now_ns: int) -> None:
        """Do nothing: an ENS keeps no time."""

    def next_timer_ns(self) -> int | None:
        """Return None: an ENS keeps no time."""
        return None

    def ends(self) -> dict[str, int]:
        """Return the last slot taken of each topic."""
        return {topic: log.next - 1 for topic, log in self._topics.items()}

    def contents(self) -> Iterator[tuple[int, Event]]:
        """Yield each event that is kept, with its slot; without a log its payload is not."""
        for log in self._topics.values():
            for slot in sorted(log.events):
                yield slot, log.events[slot]

    def take_effects(self) -> Sequence[Effect]:
        """Drain the answers."""
        effects, self._effects = self._effects, []
        return effects

    def _topic(self, topic: str) -> _Topic:
        log = self._topics.get(topic)
        if log is None:
            log = self._topics[topic] = _Topic()
        return log

    def _persist(self, key: str, value: bytes | None) -> None:
        if self.config.durable:
            self._effects.append(Persist(key, value))

    def _store(self, event: Event, slot: int) -> int | None:
        """Put an event into its slot; return the slot that retention dropped, if any."""
        log = self._topic(event.topic)
        log.events[slot] = event
        log.next = max(log.next, slot + 1, log.first)
        if len(log.events) <= self.config.retained_max:
            return None
        while log.first not in log.events:
            log.first += 1
        dropped = log.first
        del log.events[dropped]
        log.first += 1
        return dropped

    def _put(self, event: Event, source: str) -> None:
        log = self._topic(event.topic)
        slot = event.slot if event.stamp is not None else log.next
        if slot is None:
            return  # A stamp without an entry for its own topic is nobody's.
        present = log.events.get(slot)
        if present is not None or slot < log.first:
            same = present is not None and (present.id, present.void) == (event.id, event.void)
            answer = Accepted if same else Taken
            self._effects.append(Send(source, answer(topic=event.topic, event=event.id, slot=slot)))
            return
        # Without a log the payload is not kept, only who holds the slot, so that it stays taken.
        kept = event if self.config.keeps_log else msgspec.structs.replace(event, payload=b"")
        dropped = self._store(kept, slot)
        if self.config.durable:
            self._persist(f"event/{slot}/{event.topic}", _EVENT.encode(kept))
            if dropped is not None:
                self._persist(f"event/{dropped}/{event.topic}", None)
                self._persist(f"first/{event.topic}", _INT.encode(log.first))
        notify = Notify(event=event)
        self._effects.append(Send(source, Accepted(topic=event.topic, event=event.id, slot=slot)))
        self._effects.extend(Send(peer, notify) for peer in log.attached)

    def _attach(self, topic: str, from_slot: int, source: str) -> None:
        log = self._topic(topic)
        if source not in log.attached:
            log.attached[source] = None
            self._persist(f"attached/{len(topic)}/{topic}/{source}", b"")
        if not self.config.keeps_log:
            answer = Attached(topic=topic, first=log.next, next=log.next, sent=log.next)
            self._effects.append(Send(source, answer))
            return
        start = log.next if from_slot < 1 else min(max(from_slot, log.first), log.next)
        stop = min(log.next, start + self.config.batch_max)
        for slot in range(start, stop):
            if (event := log.events.get(slot)) is not None:
                self._effects.append(Send(source, Notify(event=event)))
        answer = Attached(topic=topic, first=log.first, next=log.next, sent=stop)
        self._effects.append(Send(source, answer))
