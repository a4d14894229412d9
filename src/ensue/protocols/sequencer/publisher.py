"""A publisher: gets a stamp for each event, puts the event out, and sees it settled.

What it guarantees
- Events are stamped in the order they were published, whatever their topics: a request to another
  node waits until all earlier ones have their stamps. Requests to one node are pipelined. Without
  `publisher_order` this holds within a topic only, and no node waits for another.
- Every event is settled: out for good, or void (its lease ran out, or a node refused it; nobody saw
  it and nobody will).
- Where nodes keep the logs of their topics (`carries`) the event goes along with the request; if
  one node can order it, that is all, and the stamp that it is settled with names its own slot alone.
- After a crash it goes on with the same request numbers, so nothing is stamped twice.

States of an event: waiting -> requested -> stamped -> settled.

HAZARD: a publisher that restarts without its records must take a new name. Under the old name its
requests would be answered with the stamps of its former events.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from ensue.errors import LimitReached
from ensue.event import Event, Stamp, wire_bytes
from ensue.protocols.core import Broadcast, Effect, Frame, Persist, Publish, Refuse, Send, Settle
from ensue.protocols.ens import Accepted, Taken
from ensue.protocols.numbering import EventNumbers
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.frames import (
    Confirm,
    Forget,
    OrderRequest,
    Out,
    Refused,
    Stamped,
    StampRequest,
    Voided,
)
from ensue.protocols.sequencer.outgoing import Key, Lane, Outgoing
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.sequencer.records import INT, OUTGOING, OutgoingRecord

__all__ = ["Publisher"]

CONFIRM_BATCH = 32
"""Settled requests that one confirmation waits for."""
REQUEST_BYTES_MAX = 256 * 1024
"""Events that go along with one request, unless one alone is larger."""


class Publisher:
    """One publisher. Command: `publish`. `records` is what an earlier incarnation persisted.

    `request_bytes_max` is what it may send in one frame.
    """

    def __init__(
        self,
        *,
        name: str,
        placement: Placement,
        config: SequencerConfig | None = None,
        records: Mapping[str, bytes] | None = None,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self._request_bytes_max = min(request_bytes_max, REQUEST_BYTES_MAX)
        self.placement = placement
        self.config = config or SequencerConfig()
        self._place = 0
        self._events = EventNumbers(name)
        self._numbers: dict[str, int] = {}
        self._under_way: dict[Key, Outgoing] = {}
        """Every unsettled event, in the order published."""
        self._unsettled: dict[str, OrderedDict[int, Outgoing]] = {}
        """Origin to its unsettled requests by number, rising. Ordered, because the first one is
        asked for often, and a plain dict looks for it among all that were removed in front."""
        self._origins: dict[str, str] = {}
        """Topic to the node that hosts it, as far as it was needed."""
        self._lanes: dict[str, Lane] = {}
        self._stamped: OrderedDict[Key, Outgoing] = OrderedDict()
        """Broadcast and not yet answered, in the order they are due."""
        self._owed: dict[tuple[str, str], list[tuple[int, int]]] = {}
        """By node and origin: settled requests, with their slots, to be told to the node."""
        self._confirm_due_ns: int | None = None
        self._to_request: dict[str, None] = {}
        """Origins of what was published since the effects were last taken."""
        self._to_repeat: dict[str, None] = {}
        """Origins that refused something since then."""
        self._now_ns = now_ns
        self._effects: list[Effect] = []
        self._restore(records or {})
        for lane in self._lanes.values():
            self._request(lane, now_ns)

    @property
    def unsettled_count(self) -> int:
        """How many events are under way."""
        return len(self._under_way)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        now_ns: int,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Event:
        """Take charge of an event; its fate comes as `Settle`."""
        if len(self._under_way) >= self.config.outgoing_max:
            raise LimitReached(
                f"{self.name} has {self.config.outgoing_max} events under way (outgoing_max): "
                "wait for some to settle",
                limit="outgoing_max",
                value=self.config.outgoing_max,
            )
        origin = self._origins.get(topic)
        if origin is None:
            origin = self._origins[topic] = self.placement.node(topic)
        event = self._events.make(topic, payload, now_ns=now_ns, key=key, headers=headers)
        number = self._numbers[origin] = self._numbers.get(origin, 0) + 1
        self._place += 1
        outgoing = Outgoing(event, origin, number, self._place)
        if self.config.durable:
            record = OutgoingRecord(event, origin, number)
            self._effects.append(Persist(f"event/{self._place}", OUTGOING.encode(record)))
            self._effects.append(Persist(f"sequence/{topic}", INT.encode(event.publisher_seq)))
            self._effects.append(Persist(f"number/{origin}", INT.encode(number)))
        self._effects.append(Publish(event))
        self._add(outgoing)
        self._now_ns = now_ns
        self._to_request[outgoing.origin] = None
        return event

    def confirm_all(self) -> None:
        """Confirm at once whatever is settled: nothing more will be published for a while."""
        self._confirm_due_ns = None
        for node, origin in list(self._owed):
            self._confirm(node, origin)

    def say_goodbye(self) -> None:
        """Tell the chain that nothing more will be published under this name for a while."""
        self.confirm_all()
        for origin in self._numbers:
            goodbye = Forget(number=self._settled(origin), publisher=True)
            self._effects.append(Send(origin, goodbye))

    def repeat(self, *, now_ns: int) -> None:
        """Do again at once what would be done again in a while: a connection was lost."""
        for lane in self._lanes.values():
            self._request_again(lane, now_ns)
        for outgoing in self._stamped.values():
            outgoing.due_ns = now_ns + self.config.retry_ns
            self._effects.append(Broadcast(outgoing.event))

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle an answer of a node or of the ENS."""
        match frame:
            case Stamped(origin=origin, grants=grants):
                for grant in grants:
                    self._grant(origin, grant.number, grant.stamp, source, now_ns)
                self._request(self._lane(origin), now_ns)
            case Out(origin=origin, slots=slots):
                for number, slot in slots:
                    self._is_out(origin, number, slot, now_ns)
                self._request(self._lane(origin), now_ns)
            case Accepted(topic=topic, event=event_id):
                self._settle(self._find(topic, event_id), "", now_ns)
            case Taken(topic=topic, event=event_id):
                self._settle(self._find(topic, event_id), "void", now_ns)
            case Voided(origin=origin, numbers=numbers):
                self._voided(origin, numbers, source, now_ns)
            case Refused(number=number, reason=reason):
                self._refused(self._requested_at(source, number), reason, now_ns)
            case _:
                pass  # Not for a publisher: a stray frame changes nothing.

    def handle_timer(self, *, now_ns: int) -> None:
        """Repeat what got no answer in time; confirm what is settled."""
        if self._confirm_due_ns is not None and self._confirm_due_ns <= now_ns:
            self.confirm_all()
        for lane in self._lanes.values():
            due = [each for each in lane.requested.values() if each.due_ns <= now_ns]
            if due:
                self._send_requests(lane, sorted(due, key=lambda each: each.number), now_ns)
        for key, outgoing in list(self._stamped.items()):
            if outgoing.due_ns > now_ns:
                break
            self._stamped[key] = self._stamped.pop(key)
            outgoing.due_ns = now_ns + self.config.retry_ns
            self._effects.append(Broadcast(outgoing.event))

    def next_timer_ns(self) -> int | None:
        """Return when something is to be repeated or confirmed."""
        dues = [
            next(iter(lane.requested.values())).due_ns
            for lane in self._lanes.values()
            if lane.requested
        ]
        if self._stamped:
            dues.append(next(iter(self._stamped.values())).due_ns)
        if self._confirm_due_ns is not None:
            dues.append(self._confirm_due_ns)
        return min(dues, default=None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done; what was published since the last time is asked for at once."""
        if self._to_request:
            for origin in self._to_request:
                self._request(self._lane(origin), self._now_ns)
            self._to_request = {}
        if self._to_repeat:
            for origin in self._to_repeat:
                self._request_again(self._lane(origin), self._now_ns)
            self._to_repeat = {}
        effects, self._effects = self._effects, []
        return effects

    def _requested_at(self, origin: str, number: int) -> Outgoing | None:
        unsettled = self._unsettled.get(origin)
        return None if unsettled is None else unsettled.get(number)

    def _find(self, topic: str, event_id: str) -> Outgoing | None:
        """Return the event that an answer of the ENS names, if it is under way."""
        number = event_id.rpartition("/")[2]
        found = self._under_way.get((topic, int(number))) if number.isdecimal() else None
        return found if found is not None and found.event.id == event_id else None

    def _lane(self, origin: str) -> Lane:
        """Return the lane of an origin's events: the one there is, or its own."""
        key = "" if self.config.publisher_order else origin
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane()
        return lane

    def _add(self, outgoing: Outgoing) -> Lane:
        self._under_way[outgoing.key] = outgoing
        unsettled = self._unsettled.get(outgoing.origin)
        if unsettled is None:
            unsettled = self._unsettled[outgoing.origin] = OrderedDict()
        unsettled[outgoing.number] = outgoing
        lane = self._lane(outgoing.origin)
        lane.waiting.append(outgoing)
        return lane

    def _request(self, lane: Lane, now_ns: int) -> None:
        """Ask for the stamps that may be asked for now, in one frame."""
        run: list[Outgoing] = []
        while lane.waiting:
            outgoing = lane.waiting[0]
            if outgoing.granted_by or outgoing.key not in self._under_way:
                # Stamped or settled by an answer to what was sent before a restart.
                lane.waiting.popleft()
                continue
            if lane.requested and outgoing.origin != lane.origin:
                # Its place in the order is only certain to be later once all earlier ones
                # have theirs; requests to one node keep their order on the way.
                break
            if outgoing.number >= self._settled(outgoing.origin) + self.config.window:
                break  # The node would not take it yet.
            lane.waiting.popleft()
            lane.origin = outgoing.origin
            lane.requested[outgoing.number] = outgoing
            run.append(outgoing)
        if run:
            self._send_requests(lane, run, now_ns)

    def _request_again(self, lane: Lane, now_ns: int) -> None:
        if lane.requested:
            again = sorted(lane.requested.values(), key=lambda each: each.number)
            self._send_requests(lane, again, now_ns)

    def _send_requests(self, lane: Lane, due: Sequence[Outgoing], now_ns: int) -> None:
        """Send requests, or send them again, as runs of consecutive numbers."""
        carries = self.config.carries
        events: list[Event] = []
        size = following = 0
        for outgoing in due:
            number, event = outgoing.number, outgoing.event
            outgoing.due_ns = now_ns + self.config.retry_ns
            lane.requested[number] = lane.requested.pop(number)
            more = wire_bytes(event) if carries else 0
            if events and (number != following or size + more > self._request_bytes_max):
                self._send_request(lane.origin, following - len(events), events)
                events, size = [], 0
            events.append(event)
            size += more
            following = number + 1
        if events:
            self._send_request(lane.origin, following - len(events), events)

    def _send_request(self, origin: str, first: int, events: Sequence[Event]) -> None:
        settled = self._settled(origin)
        frame: Frame
        if self.config.carries:
            frame = OrderRequest(number=first, events=tuple(events), settled=settled)
        else:
            topics = tuple(event.topic for event in events)
            frame = StampRequest(number=first, topics=topics, settled=settled)
        self._effects.append(Send(origin, frame))

    def _settled(self, origin: str) -> int:
        """Return the lowest number not settled at an origin."""
        unsettled = self._unsettled.get(origin)
        if unsettled:
            return next(iter(unsettled))
        return self._numbers.get(origin, 0) + 1

    def _grant(self, origin: str, number: int, stamp: Stamp, source: str, now_ns: int) -> None:
        outgoing = self._requested_at(origin, number)
        if outgoing is None or outgoing.granted_by:
            return  # Settled or stamped before: this is a repeated answer.
        self._no_longer_requested(outgoing)
        outgoing.granted_by = source
        outgoing.event = msgspec.structs.replace(outgoing.event, stamp=stamp)
        outgoing.due_ns = now_ns + self.config.retry_ns
        self._stamped[outgoing.key] = outgoing
        self._effects.append(Broadcast(outgoing.event))

    def _voided(self, origin: str, numbers: Sequence[int], source: str, now_ns: int) -> None:
        for number in numbers:
            outgoing = self._requested_at(origin, number)
            if outgoing is not None:
                outgoing.granted_by = source
                self._settle(outgoing, "void", now_ns)

    def _is_out(self, origin: str, number: int, slot: int, now_ns: int) -> None:
        outgoing = self._requested_at(origin, number)
        if outgoing is None or outgoing.granted_by:
            return  # Settled or stamped before: this is a repeated answer.
        if slot:
            stamp = Stamp({outgoing.event.topic: slot}, whole=False)
            outgoing.event = msgspec.structs.replace(outgoing.event, stamp=stamp)
        self._settle(outgoing, "", now_ns, more=True)

    def _no_longer_requested(self, outgoing: Outgoing) -> None:
        requested = self._lane(outgoing.origin).requested
        # The lane may be at another origin, where the same number is another request.
        if requested.get(outgoing.number) is outgoing:
            del requested[outgoing.number]

    def _refused(self, outgoing: Outgoing | None, reason: str, now_ns: int) -> None:
        if outgoing is None or outgoing.granted_by:
            return
        self._effects.append(Refuse((outgoing.event.topic,), reason))
        if outgoing.restored:
            return  # The refusal may be older than a stamp it was given: it is asked for again.
        self._settle(outgoing, "void", now_ns, reason)
        # The node passed over what came behind it; it has to learn that it need not wait. Once for
        # all that was refused together, or a run of refusals would be repeated for each of them.
        self._now_ns = now_ns
        self._to_repeat[outgoing.origin] = None

    def _settle(
        self,
        outgoing: Outgoing | None,
        verdict: str,
        now_ns: int,
        reason: str = "",
        *,
        more: bool = False,
    ) -> None:
        """See an event settled; `more`: others are about to be, so what waits can wait for them."""
        if outgoing is None:
            return
        del self._under_way[outgoing.key]
        del self._unsettled[outgoing.origin][outgoing.number]
        self._stamped.pop(outgoing.key, None)
        self._no_longer_requested(outgoing)
        if self.config.durable:
            self._effects.append(Persist(f"event/{outgoing.place}", None))
        if outgoing.granted_by:
            self._owe_confirmation(outgoing, now_ns)
        self._effects.append(Settle(outgoing.event, verdict, reason))
        lane = self._lane(outgoing.origin)
        if lane.waiting and not more:
            self._request(lane, now_ns)

    def _owe_confirmation(self, outgoing: Outgoing, now_ns: int) -> None:
        """Confirm several at a time, and well within their leases.

        A confirmation that never comes costs the node a question to the ENS, nothing else.
        """
        slot = outgoing.event.slot
        if slot is None:
            return  # Void before the stamp was seen: the node knows, and will be told `settled`.
        owed = self._owed.setdefault((outgoing.granted_by, outgoing.origin), [])
        owed.append((outgoing.number, slot))
        if self._confirm_due_ns is None:
            self._confirm_due_ns = now_ns + self.config.lease_ns // 4
        if len(owed) >= CONFIRM_BATCH:
            self._confirm(outgoing.granted_by, outgoing.origin)

    def _confirm(self, node: str, origin: str) -> None:
        slots = tuple(self._owed.pop((node, origin)))
        settled = self._settled(origin)
        self._effects.append(Send(node, Confirm(origin=origin, slots=slots, settled=settled)))
        if node != origin:
            # The origin need not remember which node completed them.
            self._effects.append(Send(origin, Confirm(origin=origin, slots=(), settled=settled)))

    def _restore(self, records: Mapping[str, bytes]) -> None:
        places: list[tuple[int, OutgoingRecord]] = []
        for key, value in records.items():
            kind, _, rest = key.partition("/")
            if kind == "event":
                places.append((int(rest), OUTGOING.decode(value)))
            elif kind == "sequence":
                self._events.last[rest] = INT.decode(value)
            elif kind == "number":
                self._numbers[rest] = INT.decode(value)
        for place, record in sorted(places, key=lambda each: each[0]):
            self._place = max(self._place, place)
            outgoing = Outgoing(record.event, record.origin, record.number, place, restored=True)
            self._add(outgoing)
            # Said again: the crash may have come between the record and the word.
            self._effects.append(Publish(record.event))
