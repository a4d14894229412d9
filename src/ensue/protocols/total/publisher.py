"""A publisher: requests a stamp for each event, publishes and settles it.

What it guarantees
- Events are stamped in the order they were published, whatever their topics, and an event is
  published only when all earlier ones have complete stamps: an effect cannot overtake its cause.
  Requests are pipelined (`Entry`). Without `publisher_order` this holds within a topic only.
- Every event is settled: published, or void (its lease ran out, or a node refused it; no subscriber
  got it, and none will).
- Where nodes keep the logs of their topics (`carries`) the event travels with the request; if one
  node can order it, that is all, and it is settled with its slot and no stamp.
- After a crash it continues with the same request numbers, so no event is stamped twice.

States of an event: waiting -> requested -> stamped -> settled. A stamped event is held until all
earlier ones are stamped. If its lease runs out meanwhile, no node has published it: it is requested
again, and all events after it, as soon as those before it have their stamps.

HAZARD: a publisher that restarts without its records must take a new name. Under the old name its
requests would be answered with the stamps of its former events.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

import msgspec

from ensue.core.errors import LimitReached
from ensue.core.event import Event, wire_bytes
from ensue.protocols.interface import (
    Broadcast,
    Effect,
    Frame,
    Persist,
    Publish,
    Refuse,
    Send,
    Settle,
)
from ensue.protocols.shared.event_numbers import EventNumbers
from ensue.protocols.shared.round_trips import RoundTrips
from ensue.protocols.topic_log.frames import Accepted, Taken
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import (
    Confirm,
    Forget,
    Grant,
    Moved,
    OrderRequest,
    Out,
    Refused,
    Stamped,
    StampRequest,
    Voided,
)
from ensue.protocols.total.pending_requests import (
    Entry,
    Key,
    Lane,
    PendingEvent,
    Route,
    Run,
    round_trips,
)
from ensue.protocols.total.placement import Parts, Placement
from ensue.protocols.total.records import INT, OUTGOING, OutgoingRecord

__all__ = ["Publisher"]

CONFIRM_BATCH = 32
"""Settled requests in one confirmation."""
REQUEST_BYTES_MAX = 256 * 1024
"""Bytes of events in one request, unless one alone is larger."""


class Publisher:
    """One publisher. Command: `publish`.

    `records` is what an earlier incarnation persisted. `request_bytes_max` is the limit of one
    frame.
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
        self._round_trips: dict[str, RoundTrips] = {}
        """Origin to the round trips of requests there."""
        self._broadcasts = round_trips(self.config)
        """The round trips of broadcasts."""
        self.unsettled_count = 0
        """How many published events are not settled."""
        self._unsettled: dict[str, OrderedDict[int, PendingEvent]] = {}
        """Origin to its unsettled requests by number, rising. An `OrderedDict`, because the first
        one is read often, and a plain dict has to skip all that were removed before it."""
        self._routes: dict[str, Route] = {}
        """A cache: topic to its node."""
        self._origins: dict[str, Route] = {}
        several = self.config.publisher_order and len(placement.nodes) > 1
        self._entry = Entry() if several else None
        """None: an event enters the chain at its topic's node."""
        self._unstamped: OrderedDict[int, None] = OrderedDict()
        """With an entry: the places of events without an answer, rising."""
        self._held: list[tuple[int, PendingEvent]] = []
        self._moves: dict[str, int] = {}
        """By topic: how many parts its log had when events were broadcast again."""
        """A heap of stamped events, by place, that wait for earlier ones."""
        self._lanes: dict[str, Lane] = {}
        self._restored: dict[Key, PendingEvent] = {}
        """Unsettled events from before a restart, which may have been broadcast then."""
        self._stamped: OrderedDict[Key, PendingEvent] = OrderedDict()
        """Events that were broadcast and not answered yet."""
        self._broadcast_due_ns = now_ns
        """None of those is broadcast again before this."""
        self._owed: dict[tuple[str, str], list[tuple[int, int]]] = {}
        """Last node and origin to the settled requests to confirm, with their slots."""
        self._confirm_due_ns: int | None = None
        self._to_request: dict[str, None] = {}
        """Origins of events published since the effects were last drained."""
        self._to_repeat: dict[str, None] = {}
        """Origins that refused a request since then."""
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
        """Publish an event; `Settle` reports its outcome."""
        config = self.config
        if self.unsettled_count >= config.outgoing_max:
            raise LimitReached(
                f"{self.name} has {config.outgoing_max} events under way (outgoing_max): "
                "wait for some to settle",
                limit="outgoing_max",
                value=config.outgoing_max,
            )
        route = self._routes.get(topic) or self._route(topic)
        if self._entry is not None:
            route = self._entry.choose(route, idle=route.lane.idle)
        origin = route.origin
        event = self._events.make(topic, payload, now_ns, key, headers)
        number = self._numbers[origin] = self._numbers.get(origin, 0) + 1
        self._place += 1
        pending = PendingEvent(event, origin, number, self._place)
        if config.durable:
            self._persist(pending)
            self._effects.append(Persist(f"sequence/{topic}", INT.encode(event.publisher_seq)))
        self._effects.append(Publish(event))
        self._add(pending, route)
        self._now_ns = now_ns
        self._to_request[origin] = None
        return event

    def confirm_all(self, *, again: bool = False) -> None:
        """Confirm settled requests now; `again`: also those that were confirmed before."""
        self._confirm_due_ns = None
        for (node, origin), slots in self._owed.items():
            if slots or again:
                self._confirm(node, origin)

    def say_goodbye(self) -> None:
        """Tell the chain that this publisher leaves, so that nodes can forget it."""
        # A confirmation may be lost, and an event voided before its stamp arrived has none.
        self.confirm_all(again=True)
        for origin in self._numbers:
            goodbye = Forget(number=self._settled(origin), publisher=True)
            self._effects.append(Send(origin, goodbye))

    def repeat(self, *, now_ns: int) -> None:
        """Repeat open requests and broadcasts now: a connection was lost."""
        for lane in self._lanes.values():
            self._request_again(lane, now_ns)
        for pending in self._stamped.values():
            self._broadcast(pending, self._broadcasts.timeout_ns, now_ns)

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle an answer of a node or of a topic log."""
        match frame:
            case Stamped(origin=origin, grants=grants):
                for grant in grants:
                    self._grant(origin, grant, source, now_ns)
                self._request(self._lane(origin), now_ns)
            case Out(origin=origin, slots=slots):
                self._are_out(origin, slots, now_ns)
            case Accepted(topic=topic, event=event_id):
                accepted = self._find(topic, event_id)
                if accepted is not None and accepted.broadcast_ns is not None:
                    self._broadcasts.sample(now_ns - accepted.broadcast_ns)
                self._settle(accepted, "", now_ns)
            case Taken(topic=topic, event=event_id):
                self._settle(self._find(topic, event_id), "void", now_ns)
            case Voided(origin=origin, numbers=numbers):
                self._voided(origin, numbers, source, now_ns)
            case Moved(topic=topic, parts=parts, number=number):
                self._moved(topic, parts, number, source, now_ns)
            case Refused(number=number, reason=reason):
                self._refused(self._requested_at(source, number), reason, now_ns)
            case _:
                pass  # Not for a publisher: a stray frame changes nothing.

    def handle_timer(self, *, now_ns: int) -> None:
        """Repeat unanswered requests and broadcasts; confirm settled requests."""
        if self._confirm_due_ns is not None and self._confirm_due_ns <= now_ns:
            self.confirm_all()
        for lane in self._lanes.values():
            if lane.in_flight and lane.due_ns <= now_ns:
                self._request_overdue(lane, now_ns)
        if self._stamped and self._broadcast_due_ns <= now_ns:
            for pending in self._stamped.values():
                if pending.due_ns <= now_ns:
                    self._broadcast(pending, self._broadcasts.after(pending.wait_ns), now_ns)
            self._broadcast_due_ns = min(each.due_ns for each in self._stamped.values())

    def next_timer_ns(self) -> int | None:
        """Return when something has to be repeated or confirmed."""
        dues = [lane.due_ns for lane in self._lanes.values() if lane.in_flight]
        if self._stamped:
            dues.append(self._broadcast_due_ns)
        if self._confirm_due_ns is not None:
            dues.append(self._confirm_due_ns)
        return min(dues, default=None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects, with the requests for events published since the last time."""
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

    def _requested_at(self, origin: str, number: int) -> PendingEvent | None:
        unsettled = self._unsettled.get(origin)
        return None if unsettled is None else unsettled.get(number)

    def _find(self, topic: str, event_id: str) -> PendingEvent | None:
        """Return the event that an answer of a topic log names, if it is not settled."""
        number = event_id.rpartition("/")[2]
        if not number.isdecimal():
            return None
        key = (topic, int(number))
        found = self._stamped.get(key) or self._restored.get(key)
        return found if found is not None and found.event.id == event_id else None

    def _lane(self, origin: str) -> Lane:
        """Return the lane of an origin's events: the only one, or the origin's own."""
        key = "" if self.config.publisher_order else origin
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane()
        return lane

    def _route(self, topic: str) -> Route:
        """Return the route of a topic, to its node."""
        if self._entry is None:
            # Behind earlier ones that a former node has not answered yet.
            for node, _ in self.placement.parts.get(topic, ())[:-1]:
                earlier = self._route_by(node).unsettled.values()
                if any(each.event.topic == topic and not each.granted_by for each in earlier):
                    return self._route_by(node)
        route = self._routes[topic] = self._route_by(self.placement.node(topic))
        return route

    def _route_by(self, origin: str) -> Route:
        """Return the route of requests that enter at a node."""
        route = self._origins.get(origin)
        if route is None:
            unsettled = self._unsettled.setdefault(origin, OrderedDict())
            stage = self.placement.nodes.index(origin)
            route = Route(origin, stage, unsettled, self._lane(origin))
            self._origins[origin] = route
        return route

    def _add(self, pending: PendingEvent, route: Route) -> None:
        self.unsettled_count += 1
        route.unsettled[pending.number] = pending
        route.lane.waiting.append(pending)
        if self._entry is not None:
            self._unstamped[pending.place] = None

    def _persist(self, pending: PendingEvent) -> None:
        """Write the record of an event, and the last number of its origin."""
        record = OutgoingRecord(pending.event, pending.origin, pending.number)
        self._effects.append(Persist(f"event/{pending.place}", OUTGOING.encode(record)))
        self._effects.append(Persist(f"number/{pending.origin}", INT.encode(pending.number)))

    def _request(self, lane: Lane, now_ns: int) -> None:
        """Request the stamps that may be requested now."""
        waiting = lane.waiting
        if lane.drains:
            if lane.in_flight:
                return
            lane.drains = False
        if lane.waits_for_more(self.config.runs_max):
            return
        asked: list[PendingEvent] = []
        full = 0
        while waiting:
            pending = waiting[0]
            if pending.granted_by or pending.settled:
                # Answered already, to a request from before a restart.
                waiting.popleft()
                continue
            if pending.origin != lane.origin:
                if lane.in_flight or asked:
                    # Its place in the order is only certain to be later once all earlier ones have
                    # theirs; requests that enter at one node keep their order on the way.
                    break
                lane.origin = pending.origin
            full = full or self._settled(pending.origin) + self.config.window
            if pending.number >= full:
                break  # The node would not take it yet.
            asked.append(waiting.popleft())
        if asked:
            wait_ns = self._round_trips_to(lane.origin).timeout_ns
            self._send_requests(lane, asked, wait_ns, now_ns)

    def _request_again(self, lane: Lane, now_ns: int) -> None:
        if lane.in_flight:
            again = lane.open(lane.runs, self._unsettled[lane.origin])
            wait_ns = self._round_trips_to(lane.origin).timeout_ns
            self._send_requests(lane, again, wait_ns, now_ns, repeats=True)

    def _request_overdue(self, lane: Lane, now_ns: int) -> None:
        runs = lane.take_overdue(now_ns)
        if not runs:
            return
        again = lane.open(runs, self._unsettled[lane.origin])
        to_origin = self._round_trips_to(lane.origin)
        wait_ns = to_origin.timeout_ns
        if lane.answered_ns <= min(run.sent_ns for run in runs):
            wait_ns = to_origin.after(max(run.wait_ns for run in runs))
        self._send_requests(lane, again, wait_ns, now_ns, repeats=True)

    def _round_trips_to(self, origin: str) -> RoundTrips:
        found = self._round_trips.get(origin)
        if found is None:
            found = self._round_trips[origin] = round_trips(self.config)
        return found

    def _measure(self, pending: PendingEvent, now_ns: int) -> None:
        """Take the round trip of a run from the first answer to it."""
        run = pending.run
        if run is not None and not run.measured:
            run.measured = True
            self._round_trips_to(pending.origin).sample(now_ns - run.sent_ns)

    def _send_requests(
        self,
        lane: Lane,
        due: Sequence[PendingEvent],
        wait_ns: int,
        now_ns: int,
        *,
        repeats: bool = False,
    ) -> None:
        """Send or repeat requests, as runs of consecutive numbers."""
        carries, several = self.config.carries, self._entry is not None
        together: list[PendingEvent] = []
        events: list[Event] = []
        size = following = 0
        for pending in due:
            number = pending.number
            event = self._carried(pending) if carries and several else pending.event
            more = wire_bytes(event) if carries else 0
            if together and (number != following or size + more > self._request_bytes_max):
                self._send_request(lane, together, events, wait_ns, now_ns, repeats=repeats)
                together, events, size = [], [], 0
            together.append(pending)
            events.append(event)
            size += more
            following = number + 1
        if together:
            self._send_request(lane, together, events, wait_ns, now_ns, repeats=repeats)

    def _carried(self, pending: PendingEvent) -> Event:
        """Return the event to send: without its payload, unless its own node gets it."""
        event = pending.event
        home = self._routes.get(event.topic) or self._route(event.topic)
        if home.origin == pending.origin or not event.payload:
            return event
        return msgspec.structs.replace(event, payload=b"")

    def _send_request(
        self,
        lane: Lane,
        together: Sequence[PendingEvent],
        events: Sequence[Event],
        wait_ns: int,
        now_ns: int,
        *,
        repeats: bool,
    ) -> None:
        settled = self._settled(lane.origin)
        first = together[0].number
        run = Run(first, first + len(together), now_ns, wait_ns, repeats=repeats)
        lane.sent(run, together)
        frame: Frame
        if self.config.carries:
            frame = OrderRequest(number=first, events=tuple(events), settled=settled)
        else:
            topics = tuple([event.topic for event in events])
            frame = StampRequest(number=first, topics=topics, settled=settled)
        self._effects.append(Send(lane.origin, frame))

    def _settled(self, origin: str) -> int:
        """Return the lowest number not settled at an origin."""
        unsettled = self._unsettled.get(origin)
        if unsettled:
            return next(iter(unsettled))
        return self._numbers.get(origin, 0) + 1

    def _grant(self, origin: str, grant: Grant, source: str, now_ns: int) -> None:
        pending = self._requested_at(origin, grant.number)
        if pending is None or pending.granted_by:
            return  # Settled or stamped before: a repeated answer.
        self._measure(pending, now_ns)
        self._lane(pending.origin).answered(pending, now_ns)
        pending.granted_by = source
        pending.event = msgspec.structs.replace(pending.event, stamp=grant.stamp)
        pending.proof = grant.proof
        if self._entry is None:
            self._publish(pending, now_ns)
            return
        pending.held = True
        heappush(self._held, (pending.place, pending))
        del self._unstamped[pending.place]
        self._release(now_ns)

    def _release(self, now_ns: int) -> None:
        """Publish stamped events up to the first that has no stamp."""
        first = next(iter(self._unstamped), None)
        while self._held and (first is None or self._held[0][0] < first):
            pending = heappop(self._held)[1]
            if pending.held:
                pending.held = False
                self._publish(pending, now_ns)

    def _publish(self, pending: PendingEvent, now_ns: int) -> None:
        """Publish a stamped event."""
        wait_ns = self._broadcasts.timeout_ns
        if not self._stamped:
            self._broadcast_due_ns = now_ns + wait_ns
        self._stamped[pending.key] = pending
        self._broadcast(pending, wait_ns, now_ns)

    def _broadcast(self, pending: PendingEvent, wait_ns: int, now_ns: int) -> None:
        pending.broadcast_ns = None if pending.due_ns or pending.restored else now_ns
        pending.wait_ns, pending.due_ns = wait_ns, now_ns + wait_ns
        self._broadcast_due_ns = min(self._broadcast_due_ns, pending.due_ns)
        event = pending.event
        node = self.placement.keeper(event.topic, event.slot or 0)
        self._effects.append(Broadcast(event, pending.proof, node))

    def _voided(self, origin: str, numbers: Sequence[int], source: str, now_ns: int) -> None:
        for number in numbers:
            pending = self._requested_at(origin, number)
            if pending is None:
                continue
            if pending.held and not pending.restored:
                self._start_over(pending.place, now_ns)
                return  # All later ones have other numbers now.
            pending.granted_by = source
            self._settle(pending, "void", now_ns)

    def _start_over(self, place: int, now_ns: int) -> None:
        """Request events from a place on again, when all before them have their stamps.

        None of them was published: they waited for those. Their slots are voided.
        """
        again = [
            pending
            for unsettled in self._unsettled.values()
            for pending in unsettled.values()
            if pending.place >= place
        ]
        again.sort(key=lambda each: each.place)
        assert self._entry is not None
        homes = (
            self._routes.get(each.event.topic) or self._route(each.event.topic) for each in again
        )
        route = self._entry.move(min(homes, key=lambda each: each.stage))
        lane = route.lane
        lane.waiting.clear()
        for pending in again:
            lane.withdraw(pending)
            del self._unsettled[pending.origin][pending.number]
            if pending.granted_by:
                self._owed.setdefault((pending.granted_by, pending.origin), [])
            pending.origin, pending.granted_by, pending.proof = route.origin, "", b""
            pending.held = False
            pending.event = msgspec.structs.replace(pending.event, stamp=None)
            pending.number = self._numbers.get(route.origin, 0) + 1
            self._numbers[route.origin] = pending.number
            if self.config.durable:
                self._persist(pending)
            route.unsettled[pending.number] = pending
            lane.waiting.append(pending)
            self._unstamped.pop(pending.place, None)
            self._unstamped[pending.place] = None
        self._held = [each for each in self._held if each[1].held]
        heapify(self._held)
        lane.drains = True
        self._request(lane, now_ns)

    def _moved(self, topic: str, parts: Parts, number: int, source: str, now_ns: int) -> None:
        """Request or publish events again whose topic has moved to another node."""
        self.placement.learn(topic, parts)
        self._routes.clear()
        # Once a move: a node answers every event that it gets too late.
        if not number and self._moves.get(topic, 0) < len(parts):
            self._moves[topic] = len(parts)
            for stamped in list(self._stamped.values()):
                if stamped.event.topic == topic:
                    self._broadcast(stamped, self._broadcasts.timeout_ns, now_ns)
        pending = self._requested_at(source, number)
        if pending is None or pending.granted_by:
            return
        if self._entry is not None:
            # The node takes nothing that was requested after it until it is settled there.
            self._start_over(pending.place, now_ns)
            self._settle_at(source)
            return
        pending.moved = True
        self._now_ns = now_ns
        nodes = dict.fromkeys(node for node, _ in parts[:-1])
        unsettled = (each for node in nodes for each in self._route_by(node).unsettled.values())
        waiting = [each for each in unsettled if each.event.topic == topic and not each.granted_by]
        for each in sorted(waiting, key=lambda one: one.place):
            if not each.moved and (each.run is not None or each.restored):
                break  # It may have been taken; later ones stay behind it.
            self._request_elsewhere(each)

    def _settle_at(self, origin: str) -> None:
        """Let an origin forget requests that will not be repeated."""
        confirm = Confirm(origin=origin, slots=(), settled=self._settled(origin))
        self._effects.append(Send(origin, confirm))

    def _request_elsewhere(self, pending: PendingEvent) -> None:
        """Request an event at the node that its topic has moved to."""
        lane = self._lane(pending.origin)
        lane.withdraw(pending)
        if pending in lane.waiting:
            lane.waiting.remove(pending)
        del self._unsettled[pending.origin][pending.number]
        self._settle_at(pending.origin)
        self._to_request[pending.origin] = None
        route = self._route_by(self.placement.node(pending.event.topic))
        pending.moved, pending.origin = False, route.origin
        pending.number = self._numbers[route.origin] = self._numbers.get(route.origin, 0) + 1
        if self.config.durable:
            self._persist(pending)
        route.unsettled[pending.number] = pending
        route.lane.waiting.append(pending)
        self._to_request[route.origin] = None

    def _are_out(self, origin: str, slots: Sequence[tuple[int, int]], now_ns: int) -> None:
        """Settle a run of events that a node published as soon as it had ordered them."""
        unsettled = self._unsettled.get(origin)
        if unsettled is None:
            return
        lane, effects = self._lane(origin), self._effects
        for number, slot in slots:
            pending = unsettled.get(number)
            if pending is None or pending.granted_by:
                continue  # Settled or stamped before: a repeated answer.
            del unsettled[number]
            if (run := pending.run) is not None:
                if not run.measured:
                    self._measure(pending, now_ns)
                run.open -= 1
                lane.in_flight -= 1
                pending.run = None
            pending.settled = True
            self.unsettled_count -= 1
            if self._entry is not None:
                del self._unstamped[pending.place]
            if pending.restored or self.config.durable:
                self._forget(pending)
            effects.append(Settle(pending.event, "", "", slot))
        lane.answered_ns = now_ns
        if self._held:
            self._release(now_ns)
        self._request(lane, now_ns)

    def _forget(self, pending: PendingEvent) -> None:
        """Remove a settled event from the records."""
        if pending.restored:
            del self._restored[pending.key]
        if self.config.durable:
            self._effects.append(Persist(f"event/{pending.place}", None))

    def _refused(self, pending: PendingEvent | None, reason: str, now_ns: int) -> None:
        if pending is None or pending.granted_by:
            return
        self._effects.append(Refuse((pending.event.topic,), reason))
        if pending.restored:
            return  # The refusal may be older than a stamp for it: it is requested again.
        self._settle(pending, "void", now_ns, reason)
        # The node skipped the requests behind it, and has to learn that it need not wait. Once for
        # all that were refused together, or a run of refusals would be repeated for each of them.
        self._now_ns = now_ns
        self._to_repeat[pending.origin] = None

    def _settle(
        self, pending: PendingEvent | None, verdict: str, now_ns: int, reason: str = ""
    ) -> None:
        """Settle an event."""
        if pending is None:
            return
        del self._unsettled[pending.origin][pending.number]
        self._stamped.pop(pending.key, None)
        self._lane(pending.origin).answered(pending, now_ns)
        pending.settled, pending.held = True, False
        self.unsettled_count -= 1
        self._forget(pending)
        if pending.granted_by:
            self._owe_confirmation(pending, now_ns)
        self._effects.append(Settle(pending.event, verdict, reason))
        if self._unstamped.pop(pending.place, pending) is None:
            self._release(now_ns)
        self._request(self._lane(pending.origin), now_ns)

    def _owe_confirmation(self, pending: PendingEvent, now_ns: int) -> None:
        """Confirm several at a time, and well within their leases.

        A lost confirmation costs the node a request to the topic log, nothing else.
        """
        owed = self._owed.setdefault((pending.granted_by, pending.origin), [])
        if (slot := pending.event.slot) is None:
            return  # Void before the stamp arrived: the node knows, and will get `settled`.
        owed.append((pending.number, slot))
        if self._confirm_due_ns is None:
            self._confirm_due_ns = now_ns + self.config.lease_ns // 4
        if len(owed) >= CONFIRM_BATCH:
            self._confirm(pending.granted_by, pending.origin)

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
        if self._entry is None:
            # By the numbers: an event whose topic was moved has a later one than its place.
            places.sort(key=lambda each: each[1].number)
        else:
            places.sort(key=lambda each: each[0])
        for place, record in places:
            self._place = max(self._place, place)
            pending = PendingEvent(record.event, record.origin, record.number, place, restored=True)
            self._restored[pending.key] = pending
            self._add(pending, self._route_by(record.origin))
            # Repeated: the crash may have been between the record and the effect.
            self._effects.append(Publish(record.event))
