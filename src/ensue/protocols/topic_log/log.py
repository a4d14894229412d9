"""The topic logs of a node: one event per slot, retained and fanned out.

Guarantees
- One event per slot. The first event put into a slot of a topic stays there; a different one that
  comes later is answered with `Taken` and reaches no subscriber. This makes voiding a stamp safe:
  the void and a late original compete for one slot, and every subscriber sees the same winner.
- Putting the same stamped event again is harmless: it is `Accepted` again. An event without a count
  gets a new slot each time; its subscribers have to drop repetitions themselves.
- With a log (`keeps_log`), a peer that attaches from a slot is sent everything from there on, so it
  can get a lost event again: the log is reliable. Events are sent in batches that the peer
  requests one by one, and new events only follow after the last batch: a slow peer reads at its own
  pace. Without a log, an event is sent once to the peers attached at that moment and is then
  forgotten: the log is lossy.

It does not order: notifications travel apart and overtake each other.

Events are kept in memory, or by a store (`kept`), which has what was persisted and decides how
long: then memory holds only the last `cached_max` of a topic. Stored events are read in ranges,
from anywhere, so from time to time a stamp that leaves entries out is made whole before it is
published (`whole_every`, `WHOLE_PLACES`), and a range that starts in the middle begins with a whole
stamp, if the kept events allow it.

Limits: `retained_max` events a topic (older ones are dropped, and `Attached.first` says so);
`batch_max` events in the answer to one `AttachRequest`, `fetch_max` events or topics in one to a
`Fetch`, and `batch_bytes_max` bytes in either, unless one event alone is more; `listeners_max`
listeners a topic, `attachments_max` of all topics.

HAZARD: to a publisher that repeats an event after `retained_max` newer ones the log no longer
knows whether it was published; it answers that it was not.

HAZARD: a broker with no conditional publish can't refuse the later of two events for one slot.
There, some subscribers and not others may see an event of a publisher that was paused for longer
than its lease between reading its clock and sending.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import msgspec

from ensue.core.event import Event, Stamp, text_bytes, wire_bytes
from ensue.core.wire import Records
from ensue.protocols.interface import Effect, Frame, Multicast, Persist, Send
from ensue.protocols.topic_log.frames import (
    NOTIFY,
    Accepted,
    Attached,
    AttachRequest,
    DetachRequest,
    Fetch,
    Fetched,
    Forward,
    LogEnd,
    Notify,
    Put,
    Surveyed,
    Taken,
    TopicFrame,
    TopicLogConfig,
)
from ensue.protocols.topic_log.slot_search import SlotSearch
from ensue.protocols.topic_log.tail_probes import TailProbes
from ensue.protocols.topic_log.topic import RECENT, KeptEvents, Topic, made_whole

__all__ = ["KeptEvents", "TopicLog", "TopicLogConfig"]

BOUNDS_BYTES = 32
"""Bytes of a topic in an answer beside its name."""
PEERS_MAX = 10_000
"""Sets of listeners in the cache, over all topics."""

_EVENT = Records[Event](Event)
_FIRST = Records[int | tuple[int, int]](int | tuple[int, int])


class TopicLog:
    """The topic logs of one node. Its only command is `trim`: it answers frames.

    `records` is what an earlier incarnation persisted, without the events if `kept` has them.
    """

    def __init__(
        self,
        *,
        name: str,
        config: TopicLogConfig | None = None,
        records: Mapping[str, bytes] | None = None,
        kept: KeptEvents | None = None,
    ) -> None:
        self.name = name
        self.config = config or TopicLogConfig()
        self._kept = kept
        self._topics: dict[str, Topic] = {}
        self._effects: list[Effect] = []
        self._burst = 0
        self._search = SlotSearch()
        self._now_ns = 0
        probes = self.config.keeps_log and self.config.probe_ns > 0
        self._probes = TailProbes(probe_ns=self.config.probe_ns) if probes else None
        """None: messages don't get lost, or can't be sent again."""
        self._attached: dict[str, dict[str, None]] = {}
        """Peer to the topics that it is attached to."""
        self._attachments = 0
        self._peers: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.placed = 0
        """How many events have been published, whatever their topics."""
        self.on_accepted: Callable[[Event, int], None] | None = None
        """Called with each event that gets a slot, and the slot."""
        if kept is not None:
            for topic, (first, following) in kept.bounds().items():
                log = self._topic(topic)
                log.first, log.next, log.filled = first, following, following
        for key, value in sorted((records or {}).items()):
            self._restore(key, value)
        for topic, log in self._topics.items():
            self._fill(topic, log)
            # Within a topic slots may be filled out of turn, but not by many.
            for slot in range(max(log.first, log.next - RECENT), log.next):
                if (event := self._event(topic, log, slot)) is not None:
                    self.placed = max(self.placed, event.place)

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Answer a frame."""
        self._now_ns = now_ns
        match frame:
            case Put(event=event):
                self._put(event, source)
            case AttachRequest(topic=topic, from_slot=from_slot, limit=limit):
                self._attach(topic, from_slot, source, limit)
            case DetachRequest(topic=topic):
                self._detach(topic, source)
            case Fetch(survey=None):
                self._fetch(frame, source)
            case Fetch():
                self._survey(frame, source)
            case TopicFrame(topic=topic):
                if topic in self._topics and self._topics[topic].attached:
                    peers = tuple(self._topics[topic].attached)
                    self._effects.append(Multicast(topic, peers, frame))
            case _:
                pass  # Not for a topic log: a stray frame changes nothing.

    def handle_timer(self, *, now_ns: int) -> None:
        """Send the ends of silent topics to their listeners."""
        for topic, silent_ns in () if self._probes is None else self._probes.take_due(now_ns):
            log = self._topics.get(topic)
            if log is not None and log.attached:
                end = LogEnd(topic=topic, next=log.next, silent_ns=silent_ns)
                self._effects.append(Multicast(topic, self._peers_of(log), end))

    def next_timer_ns(self) -> int | None:
        """Return when the end of a silent topic is to be sent."""
        return None if self._probes is None else self._probes.next_timer_ns()

    def advance(self, now_ns: int) -> None:
        """Set the time of what is published next: the owner calls `append`."""
        self._now_ns = now_ns

    def trim(self, topic: str, first: int) -> None:
        """Note that slots below `first` are no longer kept."""
        log = self._topic(topic)
        if first <= log.first:
            return
        for slot in range(log.first, min(first, log.next)):
            log.events.pop(slot, None)
        log.first, log.next = first, max(first, log.next)
        self._fill(topic, log)
        log.hole = log.filled if log.filled < log.next else 0
        self._persist_first(topic, log)
        if self.config.gives_places:
            # The dropped events may have had the last place, which says how many there were.
            self._persist("place/", _FIRST.encode(self.placed))

    def begin(self, topic: str, slot: int) -> None:
        """Begin the log of a topic at a slot: another node keeps those before it."""
        log = self._topic(topic)
        if slot > log.next:
            log.first = log.next = log.filled = slot
            self._persist_first(topic, log)

    def forget(self, peer: str) -> None:
        """Detach a peer from everything."""
        for topic in list(self._attached.get(peer, ())):
            self._detach(topic, peer)

    def ends(self) -> dict[str, int]:
        """Return the last slot taken of each topic."""
        return {topic: log.next - 1 for topic, log in self._topics.items()}

    def bounds(self) -> dict[str, tuple[int, int]]:
        """Return each topic's first slot that is kept and its next free one."""
        return {topic: (log.first, log.next) for topic, log in self._topics.items()}

    def bounds_of(self, topic: str) -> tuple[int, int]:
        """Return the bounds of one topic."""
        log = self._topics.get(topic)
        return (1, 1) if log is None else (log.first, log.next)

    def slot_of(self, event: Event) -> int:
        """Return the slot of an event published before a restart, or 0 if it is not known."""
        log = self._topics.get(event.topic)
        if log is None:
            return 0
        read = partial(self._event, event.topic, log)
        return self._search.find(event, first=log.first, end=log.next, read=read)

    def listeners(self) -> dict[str, tuple[str, ...]]:
        """Return the listeners of each topic."""
        return {topic: tuple(log.attached) for topic, log in self._topics.items()}

    def contents(self) -> Iterator[tuple[int, Event]]:
        """Yield each event that is kept, with its slot; without a log its payload is not."""
        for topic, log in self._topics.items():
            for slot in range(log.first, log.next):
                if (event := self._event(topic, log, slot)) is not None:
                    yield slot, event

    def take_effects(self) -> Sequence[Effect]:
        """Drain the answers."""
        effects, self._effects, self._burst = self._effects, [], 0
        return effects

    def _topic(self, topic: str) -> Topic:
        log = self._topics.get(topic)
        if log is None:
            log = self._topics[topic] = Topic()
        return log

    def _persist(self, key: str, value: bytes | None) -> None:
        if self.config.durable:
            self._effects.append(Persist(key, value))

    def _persist_first(self, topic: str, log: Topic) -> None:
        """Persist a topic's first slot, and its first empty one if filled ones follow."""
        known = (log.first, log.hole) if log.hole else log.first
        self._persist(f"first/{topic}", None if known == 1 else _FIRST.encode(known))

    def _find(self, topic: str, log: Topic, slot: int) -> Event | bytes | None:
        """Return the event in a slot, or its bytes in the store."""
        found = log.events.get(slot)
        if found is None and self._kept is not None and log.first <= slot < log.next:
            return self._kept.event(topic, slot)
        return found

    def _event(self, topic: str, log: Topic, slot: int) -> Event | None:
        found = self._find(topic, log, slot)
        return _EVENT.decode(found) if isinstance(found, bytes) else found

    def _store(self, event: Event, log: Topic, slot: int, encoded: bytes = b"") -> int | None:
        """Put an event into its slot; return the slot that retention dropped, if any."""
        in_turn = slot == log.filled
        if self._kept is not None:
            log.events[slot] = encoded or event
            if len(log.events) > self.config.cached_max:
                log.events.popitem(last=False)
            if in_turn:
                log.step_over(event, self.config.whole_every)
            if slot == log.next:
                log.next = slot + 1
            else:
                log.next = max(log.next, slot + 1, log.first)
                if in_turn:
                    self._fill(event.topic, log)
            return None
        log.events[slot] = event
        log.next = max(log.next, slot + 1, log.first)
        if in_turn:
            self._fill(event.topic, log)
        if len(log.events) <= self.config.retained_max:
            return None
        while log.first not in log.events:
            log.first += 1
        dropped = log.first
        del log.events[dropped]
        log.first += 1
        if log.filled < log.first:
            self._fill(event.topic, log)
        return dropped

    def _fill(self, topic: str, log: Topic) -> None:
        """Step over the slots that are filled by now, and read their stamps."""
        log.filled = max(log.filled, log.first)
        while log.filled < log.next and (event := self._event(topic, log, log.filled)) is not None:
            if self._kept is None:
                log.filled += 1
            else:
                log.step_over(event, self.config.whole_every)

    def append(self, event: Event, stamp: Stamp) -> int:
        """Put an event with a new stamp into its slot, without answer; return its bytes."""
        topic = event.topic
        slot = stamp.entries[topic]
        log = self._topics.get(topic) or self._topic(topic)
        assert slot >= log.next or slot not in log.events
        place = self._next_place()
        stamped = msgspec.structs.replace(event, stamp=stamp, place=place)
        return self._accept(stamped, log, slot)

    def _put(self, event: Event, source: str) -> None:
        topic = event.topic
        log = self._topic(topic)
        slot = event.slot if event.counted else log.next
        if slot is None:
            return  # No node makes a stamp without an entry for its own topic.
        present = self._event(topic, log, slot) if slot < log.next else None
        if present is not None or slot < log.first:
            same = present is not None and (present.id, present.void) == (event.id, event.void)
            answer = Accepted if same else Taken
            self._effects.append(Send(source, answer(topic=topic, event=event.id, slot=slot)))
            return
        self._effects.append(Send(source, Accepted(topic=topic, event=event.id, slot=slot)))
        place = self._next_place()
        placed = event if place == 0 else msgspec.structs.replace(event, place=place)
        self._accept(placed, log, slot)

    def _next_place(self) -> int:
        if self.config.gives_places:
            self.placed += 1
        return self.placed

    def _accept(self, event: Event, log: Topic, slot: int) -> int:
        """Keep an event and send it to the listeners; return the persisted bytes."""
        topic, config, effects = event.topic, self.config, self._effects
        # Without a log only the id is kept, so that the slot stays taken.
        keeps_log = config.keeps_log
        in_turn = self._kept is not None and slot == log.filled
        if in_turn and (slot >= log.whole_slot or event.place >= log.whole_place):
            event = log.made_whole(event)
        kept = event if keeps_log else msgspec.structs.replace(event, payload=b"")
        encoded = _EVENT.encode(kept) if config.durable else b""
        dropped = self._store(kept, log, slot, encoded)
        if self.on_accepted is not None:
            self.on_accepted(event, slot)
        if config.durable:
            effects.append(Persist(f"event/{slot}/{topic}", encoded))
            if dropped is not None:
                self._persist(f"event/{dropped}/{topic}", None)
                self._persist_first(topic, log)
            elif self._kept is not None and (log.hole or log.filled < log.next):
                self._note_filled(topic, log)
        if log.attached:
            peers = self._peers_of(log) if log.peers is None else log.peers
            known = NOTIFY + encoded if encoded and keeps_log else b""
            effects.append(Multicast(topic, peers, Notify(event=event), known))
            if self._probes is not None:
                self._probes.published(topic, self._now_ns)
        return len(encoded)

    def _peers_of(self, log: Topic) -> tuple[str, ...]:
        """Return the listeners of a topic, as one tuple for all topics with the same ones."""
        if log.peers is None:
            # So that these are served together.
            if len(self._peers) >= PEERS_MAX:
                self._peers.clear()
            peers = tuple(log.attached)
            log.peers = self._peers.setdefault(peers, peers)
        return log.peers

    def _note_filled(self, topic: str, log: Topic) -> None:
        """Persist roughly where the first empty slot is, to spare a restart the search."""
        hole = log.filled if log.filled < log.next else 0
        if not hole or log.hole <= log.first or hole - log.hole >= RECENT:
            log.hole = hole
            self._persist_first(topic, log)

    def _attach(self, topic: str, from_slot: int, source: str, most: int = 0) -> None:
        log = self._topics.get(topic) or Topic()
        if not self.config.keeps_log:
            self._listen(topic, log, source)
            answer = Attached(topic=topic, first=log.next, next=log.next, sent=log.next)
            self._effects.append(Send(source, answer))
            return
        slot = log.next if from_slot < 1 else min(max(from_slot, log.first), log.next)
        batch_max = self.config.batch_max
        stop = min(log.next, slot + min(batch_max, most or batch_max))
        limit = min(self._burst + self.config.batch_bytes_max, self.config.burst_bytes_max)
        while slot < stop and self._burst < limit:
            found = self._find(topic, log, slot)
            if isinstance(found, bytes):  # As it was persisted: it is not decoded here.
                self._effects.append(Send(source, Forward(event=msgspec.Raw(found))))
                self._burst += len(found)
            elif found is not None:
                self._effects.append(Send(source, Notify(event=found)))
                self._burst += wire_bytes(found)
            slot += 1
        if slot == log.next:
            self._listen(topic, log, source)
        else:
            # There is more: new events would only have to wait for it at the peer.
            self._detach(topic, source)
        answer = Attached(topic=topic, first=log.first, next=log.next, sent=slot)
        self._effects.append(Send(source, answer))

    def _fetch(self, frame: Fetch, source: str) -> None:
        topic = frame.topic
        log = self._topics.get(topic) or Topic()
        end = log.next if frame.stop == 0 else min(frame.stop, log.next)
        slot = max(frame.start, log.first)
        if frame.place:
            slots = range(slot, end)
            slot += bisect_left(
                slots, frame.place, key=lambda each: self._place_of(topic, log, each)
            )
        events: list[Event] = []
        limit = min(self._burst + self.config.batch_bytes_max, self.config.burst_bytes_max)
        while (
            slot < end
            and len(events) < self.config.fetch_max
            and self._burst < limit
            and (event := self._event(topic, log, slot)) is not None
        ):
            if not events and slot > frame.start:  # The peer has not read the event before it.
                earlier = range(slot - 1, log.first - 1, -1)
                event = made_whole(event, (self._event(topic, log, each) for each in earlier))
            size = wire_bytes(event)
            if events and self._burst + size > limit:
                break  # The answer is one message, which must not be too large.
            events.append(event)
            self._burst += size
            slot += 1
        answer = Fetched(
            topic=topic,
            start=frame.start,
            first=log.first,
            next=max(slot, frame.start),
            end=log.next,
            events=tuple(events),
        )
        self._effects.append(Send(source, answer))

    def _survey(self, frame: Fetch, source: str) -> None:
        start = frame.start
        limit = min(self._burst + self.config.batch_bytes_max, self.config.burst_bytes_max)
        names: list[str] = []
        for name in islice(self._topics, start, start + self.config.fetch_max):
            if self._burst >= limit:
                break
            names.append(name)
            self._burst += text_bytes(name) + BOUNDS_BYTES
        logs = ((name, self._topics[name]) for name in names if frame.asks_for(name))
        found = {name: (log.first, log.filled) for name, log in logs if log.next > 1}
        answer = Surveyed(start=start, next=start + len(names), end=len(self._topics), topics=found)
        self._effects.append(Send(source, answer))

    def _place_of(self, topic: str, log: Topic, slot: int) -> int:
        event = self._event(topic, log, slot)
        return self.placed if event is None else event.place

    def _listen(self, topic: str, log: Topic, source: str) -> None:
        room = self._attachments < self.config.attachments_max
        if room and source not in log.attached and len(log.attached) < self.config.listeners_max:
            self._topics[topic] = log
            self._note_attached(topic, log, source)
            self._persist(f"attached/{len(topic)}/{topic}/{source}", b"")

    def _note_attached(self, topic: str, log: Topic, source: str) -> None:
        log.attached[source] = None
        log.peers = None
        self._attached.setdefault(source, {})[topic] = None
        self._attachments += 1

    def _detach(self, topic: str, source: str) -> None:
        log = self._topics.get(topic)
        if log is not None and source in log.attached:
            del log.attached[source]
            log.peers = None
            self._attachments -= 1
            topics = self._attached[source]
            del topics[topic]
            if not topics:
                del self._attached[source]
            self._persist(f"attached/{len(topic)}/{topic}/{source}", None)
            if not log.attached and log.next == 1:
                del self._topics[topic]

    def _restore(self, key: str, value: bytes) -> None:
        kind, _, rest = key.partition("/")
        if kind == "first":
            log = self._topic(rest)
            first = _FIRST.decode(value)
            if isinstance(first, tuple):
                first, log.hole = first
                log.filled = log.hole
                if log.hole == first:  # The store can't know of empty slots before its first event.
                    log.first = first
            log.first = max(log.first, first)
            log.next = max(log.next, log.first)
        elif kind == "place":
            self.placed = msgspec.msgpack.decode(value, type=int)
        elif kind == "event":
            event = _EVENT.decode(value)
            self._store(event, self._topic(event.topic), int(rest.partition("/")[0]))
        elif kind == "attached":
            # An attachment is one record a topic and peer; the topic comes with its length
            # in front because either name may contain a slash.
            size, _, names = rest.partition("/")
            topic = names[: int(size)]
            self._note_attached(topic, self._topic(topic), names[int(size) + 1 :])
