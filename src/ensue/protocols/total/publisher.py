"""A publisher: gets a stamp for each event, puts the event out, and sees it settled.

What it guarantees
- Events are stamped in the order they were published, whatever their topics: a request to another
  node waits until all earlier ones have their stamps. Requests to one node are pipelined. Without
  `publisher_order` this holds within a topic only, and no node waits for another.
- Every event is settled: out for good, or void (its lease ran out, or a node refused it; nobody saw
  it and nobody will).
- Where nodes keep the logs of their topics (`carries`) the event goes along with the request; if
  one node can order it, that is all, and it is settled with its slot and no stamp.
- After a crash it goes on with the same request numbers, so nothing is stamped twice.

States of an event: waiting -> requested -> stamped -> settled.

HAZARD: a publisher that restarts without its records must take a new name. Under the old name its
requests would be answered with the stamps of its former events.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from ensue.errors import LimitReached
from ensue.event import Event, wire_bytes
from ensue.protocols.core import Broadcast, Effect, Frame, Persist, Publish, Refuse, Send, Settle
from ensue.protocols.ens import Accepted, Taken
from ensue.protocols.numbering import EventNumbers
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.frames import (
    Confirm,
    Forget,
    Grant,
    OrderRequest,
    Out,
    Refused,
    Stamped,
    StampRequest,
    Voided,
)
from ensue.protocols.sequencer.outgoing import Key, Lane, Outgoing, Patience, Run, Way
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
        self._patience = Patience(self.config)
        self.unsettled_count = 0
        """How many events are under way."""
        self._unsettled: dict[str, OrderedDict[int, Outgoing]] = {}
        """Origin to its unsettled requests by number, rising. Ordered, because the first one is
        asked for often, and a plain dict looks for it among all that were removed in front."""
        self._ways: dict[str, Way] = {}
        """Topic to the way that its events go, as far as it was needed."""
        self._lanes: dict[str, Lane] = {}
        self._restored: dict[Key, Outgoing] = {}
        """What is under way from before a restart, and may have been broadcast then."""
        self._stamped: OrderedDict[Key, Outgoing] = OrderedDict()
        """Broadcast and not yet answered."""
        self._broadcast_due_ns = now_ns
        """None of those is to be broadcast again before this."""
        self._owed: dict[tuple[str, str], list[tuple[int, int]]] = {}
        """By each node that completed any, and origin: settled requests to confirm, with slots."""
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
        config = self.config
        if self.unsettled_count >= config.outgoing_max:
            raise LimitReached(
                f"{self.name} has {config.outgoing_max} events under way (outgoing_max): "
                "wait for some to settle",
                limit="outgoing_max",
                value=config.outgoing_max,
            )
        way = self._ways.get(topic)
        if way is None:
            way = self._ways[topic] = self._way_by(self.placement.node(topic))
        origin = way.origin
        event = self._events.make(topic, payload, now_ns, key, headers)
        number = self._numbers[origin] = self._numbers.get(origin, 0) + 1
        self._place += 1
        if config.durable:
            record = OutgoingRecord(event, origin, number)
            self._effects.append(Persist(f"event/{self._place}", OUTGOING.encode(record)))
            self._effects.append(Persist(f"sequence/{topic}", INT.encode(event.publisher_seq)))
            self._effects.append(Persist(f"number/{origin}", INT.encode(number)))
        self._effects.append(Publish(event))
        self._add(Outgoing(event, origin, number, self._place), way)
        self._now_ns = now_ns
        self._to_request[origin] = None
        return event

    def confirm_all(self, *, again: bool = False) -> None:
        """Confirm at once whatever is settled, also `again`: there will be nothing more for a while."""
        self._confirm_due_ns = None
        for (node, origin), slots in self._owed.items():
            if slots or again:
                self._confirm(node, origin)

    def say_goodbye(self) -> None:
        """Tell the chain that nothing more will be published under this name for a while."""
        # A confirmation may be lost, and of what was void before its stamp was seen there is none.
        self.confirm_all(again=True)
        for origin in self._numbers:
            goodbye = Forget(number=self._settled(origin), publisher=True)
            self._effects.append(Send(origin, goodbye))

    def repeat(self, *, now_ns: int) -> None:
        """Do again at once what would be done again in a while: a connection was lost."""
        for lane in self._lanes.values():
            self._request_again(lane, now_ns)
        for outgoing in self._stamped.values():
            self._broadcast(outgoing, self._patience.least_ns, now_ns)

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle an answer of a node or of the ENS."""
        match frame:
            case Stamped(origin=origin, grants=grants):
                for grant in grants:
                    self._grant(origin, grant, source, now_ns)
                self._request(self._lane(origin), now_ns)
            case Out(origin=origin, slots=slots):
                self._are_out(origin, slots, now_ns)
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
            if lane.in_flight and lane.due_ns <= now_ns:
                self._request_overdue(lane, now_ns)
        if self._stamped and self._broadcast_due_ns <= now_ns:
            for outgoing in self._stamped.values():
                if outgoing.due_ns <= now_ns:
                    self._broadcast(outgoing, self._patience.after(outgoing.wait_ns), now_ns)
            self._broadcast_due_ns = min(each.due_ns for each in self._stamped.values())

    def next_timer_ns(self) -> int | None:
        """Return when something is to be repeated or confirmed."""
        dues = [lane.due_ns for lane in self._lanes.values() if lane.in_flight]
        if self._stamped:
            dues.append(self._broadcast_due_ns)
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
        if not number.isdecimal():
            return None
        key = (topic, int(number))
        found = self._stamped.get(key) or self._restored.get(key)
        return found if found is not None and found.event.id == event_id else None

    def _lane(self, origin: str) -> Lane:
        """Return the lane of an origin's events: the one there is, or its own."""
        key = "" if self.config.publisher_order else origin
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane()
        return lane

    def _way_by(self, origin: str) -> Way:
        """Return the way that events go by an origin."""
        unsettled = self._unsettled.setdefault(origin, OrderedDict())
        return Way(origin, unsettled, self._lane(origin))

    def _add(self, outgoing: Outgoing, way: Way) -> None:
        self.unsettled_count += 1
        way.unsettled[outgoing.number] = outgoing
        way.lane.waiting.append(outgoing)

    def _request(self, lane: Lane, now_ns: int) -> None:
        """Ask for the stamps that may be asked for now, in one frame."""
        waiting = lane.waiting
        if lane.waits_for_more(self.config.runs_max):
            return
        asked: list[Outgoing] = []
        full = 0
        while waiting:
            outgoing = waiting[0]
            if outgoing.granted_by or outgoing.settled:
                # By an answer to what was sent before a restart.
                waiting.popleft()
                continue
            if outgoing.origin != lane.origin:
                if lane.in_flight or asked:
                    # Its place in the order is only certain to be later once all earlier ones
                    # have theirs; requests to one node keep their order on the way.
                    break
                lane.origin = outgoing.origin
            full = full or self._settled(outgoing.origin) + self.config.window
            if outgoing.number >= full:
                break  # The node would not take it yet.
            asked.append(waiting.popleft())
        if asked:
            self._send_requests(lane, asked, self._patience.least_ns, now_ns)

    def _request_again(self, lane: Lane, now_ns: int) -> None:
        if lane.in_flight:
            again = lane.open(lane.runs, self._unsettled[lane.origin])
            self._send_requests(lane, again, self._patience.least_ns, now_ns)

    def _request_overdue(self, lane: Lane, now_ns: int) -> None:
        runs = lane.take_overdue(now_ns)
        if not runs:
            return
        again = lane.open(runs, self._unsettled[lane.origin])
        wait_ns = self._patience.least_ns
        if lane.answered_ns <= min(run.sent_ns for run in runs):
            wait_ns = self._patience.after(max(run.wait_ns for run in runs))
        self._send_requests(lane, again, wait_ns, now_ns)

    def _send_requests(
        self, lane: Lane, due: Sequence[Outgoing], wait_ns: int, now_ns: int
    ) -> None:
        """Send requests, or send them again, as runs of consecutive numbers."""
        carries = self.config.carries
        together: list[Outgoing] = []
        size = following = 0
        for outgoing in due:
            number = outgoing.number
            more = wire_bytes(outgoing.event) if carries else 0
            if together and (number != following or size + more > self._request_bytes_max):
                self._send_request(lane, together, wait_ns, now_ns)
                together, size = [], 0
            together.append(outgoing)
            size += more
            following = number + 1
        if together:
            self._send_request(lane, together, wait_ns, now_ns)

    def _send_request(
        self, lane: Lane, together: Sequence[Outgoing], wait_ns: int, now_ns: int
    ) -> None:
        settled = self._settled(lane.origin)
        first = together[0].number
        lane.sent(Run(first, first + len(together), now_ns, wait_ns), together)
        frame: Frame
        if self.config.carries:
            events = tuple([outgoing.event for outgoing in together])
            frame = OrderRequest(number=first, events=events, settled=settled)
        else:
            topics = tuple([outgoing.event.topic for outgoing in together])
            frame = StampRequest(number=first, topics=topics, settled=settled)
        self._effects.append(Send(lane.origin, frame))

    def _settled(self, origin: str) -> int:
        """Return the lowest number not settled at an origin."""
        unsettled = self._unsettled.get(origin)
        if unsettled:
            return next(iter(unsettled))
        return self._numbers.get(origin, 0) + 1

    def _grant(self, origin: str, grant: Grant, source: str, now_ns: int) -> None:
        outgoing = self._requested_at(origin, grant.number)
        if outgoing is None or outgoing.granted_by:
            return  # Settled or stamped before: this is a repeated answer.
        self._lane(outgoing.origin).answered(outgoing, now_ns)
        outgoing.granted_by = source
        outgoing.event = msgspec.structs.replace(outgoing.event, stamp=grant.stamp)
        outgoing.proof = grant.proof
        if not self._stamped:
            self._broadcast_due_ns = now_ns + self._patience.least_ns
        self._stamped[outgoing.key] = outgoing
        self._broadcast(outgoing, self._patience.least_ns, now_ns)

    def _broadcast(self, outgoing: Outgoing, wait_ns: int, now_ns: int) -> None:
        outgoing.wait_ns, outgoing.due_ns = wait_ns, now_ns + wait_ns
        self._broadcast_due_ns = min(self._broadcast_due_ns, outgoing.due_ns)
        self._effects.append(Broadcast(outgoing.event, outgoing.proof))

    def _voided(self, origin: str, numbers: Sequence[int], source: str, now_ns: int) -> None:
        for number in numbers:
            outgoing = self._requested_at(origin, number)
            if outgoing is not None:
                outgoing.granted_by = source
                self._settle(outgoing, "void", now_ns)

    def _are_out(self, origin: str, slots: Sequence[tuple[int, int]], now_ns: int) -> None:
        """See a run of events settled that a node put out as soon as it had ordered them."""
        unsettled = self._unsettled.get(origin)
        if unsettled is None:
            return
        lane, effects = self._lane(origin), self._effects
        for number, slot in slots:
            outgoing = unsettled.get(number)
            if outgoing is None or outgoing.granted_by:
                continue  # Settled or stamped before: this is a repeated answer.
            del unsettled[number]
            if (run := outgoing.run) is not None:
                run.open -= 1
                lane.in_flight -= 1
                outgoing.run = None
            outgoing.settled = True
            self.unsettled_count -= 1
            if outgoing.restored or self.config.durable:
                self._forget(outgoing)
            effects.append(Settle(outgoing.event, "", "", slot))
        lane.answered_ns = now_ns
        self._request(lane, now_ns)

    def _forget(self, outgoing: Outgoing) -> None:
        """Take a settled event out of the books that last beyond a crash."""
        if outgoing.restored:
            del self._restored[outgoing.key]
        if self.config.durable:
            self._effects.append(Persist(f"event/{outgoing.place}", None))

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
        self, outgoing: Outgoing | None, verdict: str, now_ns: int, reason: str = ""
    ) -> None:
        """See an event settled."""
        if outgoing is None:
            return
        del self._unsettled[outgoing.origin][outgoing.number]
        self._stamped.pop(outgoing.key, None)
        self._lane(outgoing.origin).answered(outgoing, now_ns)
        outgoing.settled = True
        self.unsettled_count -= 1
        self._forget(outgoing)
        if outgoing.granted_by:
            self._owe_confirmation(outgoing, now_ns)
        self._effects.append(Settle(outgoing.event, verdict, reason))
        self._request(self._lane(outgoing.origin), now_ns)

    def _owe_confirmation(self, outgoing: Outgoing, now_ns: int) -> None:
        """Confirm several at a time, and well within their leases.

        A confirmation that never comes costs the node a question to the ENS, nothing else.
        """
        owed = self._owed.setdefault((outgoing.granted_by, outgoing.origin), [])
        if (slot := outgoing.event.slot) is None:
            return  # Void before the stamp was seen: the node knows, and will be told `settled`.
        owed.append((outgoing.number, slot))
        if self._confirm_due_ns is None:
            self._confirm_due_ns = now_ns + self.config.lease_ns // 4
        if len(owed) >= CONFIRM_BATCH:
            self._confirm(outgoing.granted_by, outgoing.origin)

    def _confirm(self, node: str, origin: str) -> None:
        slots, self._owed[node, origin] = tuple(self._owed[node, origin]), []
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
            self._restored[outgoing.key] = outgoing
            self._add(outgoing, self._way_by(record.origin))
            # Said again: the crash may have come between the record and the word.
            self._effects.append(Publish(record.event))
