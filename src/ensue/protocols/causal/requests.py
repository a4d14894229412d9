"""Requests for missing events: one peer at a time, and no more than there is room for.

Several peers may have what a node lacks, and several signs tell that it lacks something: a gap, a
comparison, a peer that is back. If each of them led to a request, each peer would send the same
events, and on a slow link copies would queue up faster than they arrive. So:

- A peer that has more *offers* it (`Repair.summary`), and sends events only on request.
- Events of a source are requested from one peer at a time. The next peer, or the same again, is
  asked when the answer is overdue by the round trips of earlier requests
  (`ensue.protocols.shared.round_trips`), after twice as long each time, and only for what held
  events need, or one event: the overdue answer may be under way.
- A request says how many events there is room for, less what requests under way may bring. Offers
  wait for room: for a batch, or for half of `held_max`.

A search (`retrieval`) asks several peers at once, each for one event.

Limits: `OPEN_MAX` requests are remembered: an answer to an older one brings events, but measures
nothing, and does not lead to the next request. A time-out is at most `answer_ns`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import product

from ensue.protocols.causal.causality import IN
from ensue.protocols.causal.frames import Counts, Fill, Summary
from ensue.protocols.causal.node_state import NodeState
from ensue.protocols.shared.round_trips import RoundTrips

__all__ = ["OPEN_MAX", "Requests"]

OPEN_MAX = 1024


class _Request:
    """A request for events of a topic, sent to one peer."""

    __slots__ = ("have", "peer", "room", "sent_ns", "topic", "wait_ns")

    def __init__(
        self, topic: str, peer: int, have: Counts, room: int, sent_ns: int, wait_ns: int
    ) -> None:
        self.topic = topic
        self.peer = peer
        self.have = have
        """By requested source: up to which number all events were here."""
        self.room = room
        self.sent_ns = sent_ns
        self.wait_ns = wait_ns

    @property
    def due_ns(self) -> int:
        """When another peer may be asked."""
        return self.sent_ns + self.wait_ns


class Requests:
    """The requests of one node for missing events."""

    def __init__(self, state: NodeState) -> None:
        self._config = config = state.config
        self._causality = state.causality
        self._cube = state.cube
        self._detector = state.detector
        self._send = state.send
        self._round_trips = RoundTrips(
            initial_ns=config.gap_ns,
            least_ns=config.retry_ns_min or config.gap_ns,
            most_ns=config.answer_ns,
        )
        self._wait_ns_max = max(config.answer_ns, config.gap_ns)
        self._direct = state.round_trips
        """Those of copies: they tell how long to wait for the first answers."""
        self._is_measured = False
        self._last_number = 0
        self._open: OrderedDict[int, _Request] = OrderedDict()
        """By number: requests without an answer."""
        self._latest: dict[tuple[str, int], _Request] = {}
        """By topic and source: the last request, until it is answered."""
        self._overdue: dict[tuple[str, int], _Request] = {}
        """By topic and source: the last one that was not answered in time, and still may be."""
        self._offers: dict[str, dict[int, Counts]] = {}
        """By topic, source and peer: up to which number the peer has more events."""
        self._overdue_ns: dict[str, int] = {}
        """By topic with offers: when the next request under way is overdue."""

    def due_ns(self, topic: str, source: int, now_ns: int) -> int | None:
        """Return until when the answer to a request may come; None if none is under way."""
        request = self._latest.get((topic, source))
        return request.due_ns if request is not None and self._waits(request, now_ns) else None

    def next_timer_ns(self) -> int | None:
        """Return when the next request under way is overdue, if another may follow it."""
        return min(self._overdue_ns.values(), default=None)

    # -- Requests -------------------------------------------------------------------------------

    def ask(self, topic: str, peer: int, needed: Counts, now_ns: int) -> None:
        """Request events of some sources: at least those up to these numbers."""
        state = self._causality.topic(topic)
        least = sum(max(0, last - state.have(source)) for source, last in needed.items())
        late = [each for source in needed if (each := self._late(topic, source)) is not None]
        wait_ns = self._timeout_ns()
        if late:
            # Their answers may be under way: this request asks for as little as possible.
            room = max(1, least)
            waited_ns = max(each.wait_ns for each in late)
            if any((topic, source) in self._latest for source in needed):
                waited_ns = self._round_trips.after(waited_ns)
            wait_ns = max(wait_ns, waited_ns)
        else:
            room = max(1, least, self._room(topic, now_ns))
        room = min(room, self._config.batch_max)
        request = self._open_request(topic, peer, needed, room, now_ns, wait_ns)
        for source in needed:
            if (topic, source) in self._latest:
                self._overdue[topic, source] = self._latest[topic, source]
            self._latest[topic, source] = request

    def probe(self, topic: str, peer: int, source: int, now_ns: int) -> None:
        """Request one event, if there is room, whichever other peers were asked for it."""
        room = int(self._causality.takes(topic, source))
        self._open_request(topic, peer, (source,), room, now_ns, self._timeout_ns())

    def pursue(self, topic: str, now_ns: int) -> None:
        """Request what peers have more of, as far as there is room for it."""
        self._overdue_ns.pop(topic, None)
        if topic not in self._offers:
            return
        state = self._causality.topic(topic)
        enough = min(self._config.batch_max, (self._config.held_max + 1) // 2)
        asked: dict[tuple[bool, int], list[int]] = {}
        for source in list(self._offers[topic]):
            peers = self._update_offers(topic, source, state.have(source), now_ns)
            if peers and self.due_ns(topic, source, now_ns) is None:
                # Silent peers come last: there may be room for one request at a time.
                silent = self._late(topic, source) is not None
                asked.setdefault((silent, next(iter(peers))), []).append(source)
        for (_, peer), sources in sorted(asked.items()):
            if state.state == IN and self._room(topic, now_ns) >= enough:
                self.ask(topic, peer, dict.fromkeys(sources, 0), now_ns)
        under_way = [one.due_ns for one in self._under_way(topic, now_ns)]
        if under_way and topic in self._offers:
            self._overdue_ns[topic] = min(under_way)

    def handle_timer(self, now_ns: int) -> None:
        """Repeat requests that were not answered in time."""
        for topic in [each for each, due_ns in self._overdue_ns.items() if due_ns <= now_ns]:
            self.pursue(topic, now_ns)

    def _open_request(
        self,
        topic: str,
        peer: int,
        sources: Iterable[int],
        room: int,
        now_ns: int,
        wait_ns: int,
    ) -> _Request:
        state = self._causality.topic(topic)
        have = {source: state.have(source) for source in sources}
        request = _Request(topic, peer, have, room, now_ns, wait_ns)
        self._last_number += 1
        self._open[self._last_number] = request
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)
        frame = Summary(
            topic=topic,
            have=state.haves(),
            follows=True,
            request=self._last_number,
            only=tuple(have),
            room=room,
        )
        self._send(peer, frame)
        return request

    def _late(self, topic: str, source: int) -> _Request | None:
        """Return the last request, or, without progress, an earlier one that was not answered."""
        late = self._latest.get((topic, source))
        if late is None:
            late = self._overdue.get((topic, source))
            if late is not None and late.have[source] < self._causality.topic(topic).have(source):
                return None
        return late

    def _timeout_ns(self) -> int:
        timeout_ns = self._round_trips.timeout_ns
        return timeout_ns if self._is_measured else min(timeout_ns, self._direct.timeout_ns)

    def _waits(self, request: _Request, now_ns: int) -> bool:
        """Return whether the answer to a request may still come."""
        waited_ns = now_ns - request.sent_ns
        return 0 <= waited_ns < request.wait_ns and self._is_there(request.peer)

    def _under_way(self, topic: str, now_ns: int) -> Iterator[_Request]:
        for request in reversed(self._open.values()):
            if now_ns - request.sent_ns >= self._wait_ns_max:
                break  # Nor do earlier ones wait. Their answers still count if they come.
            if request.topic == topic and self._waits(request, now_ns):
                yield request

    def _room(self, topic: str, now_ns: int) -> int:
        """Return how many more events of a topic there will be room for."""
        under_way = sum(request.room for request in self._under_way(topic, now_ns))
        return self._config.held_max - len(self._causality.topic(topic).held) - under_way

    # -- Answers --------------------------------------------------------------------------------

    def offered(self, topic: str, peer: int, up_to: Counts) -> None:
        """Record up to which numbers a peer has more of some sources."""
        offers = self._offers.setdefault(topic, {})
        for source, number in up_to.items():
            offers.setdefault(source, {})[peer] = number

    def answered(self, frame: Fill, peer: int, now_ns: int) -> None:
        """Record the answer to a request, whose events were taken in."""
        request = self._open.get(frame.request)
        if request is None or request.peer != peer or request.topic != frame.topic:
            return
        del self._open[frame.request]
        round_trip_ns = now_ns - request.sent_ns
        if 0 <= round_trip_ns <= self._config.answer_ns:  # Otherwise the clock was set.
            self._round_trips.sample(round_trip_ns)
            self._is_measured = True
        state = self._causality.topic(frame.topic)
        for requests, source in product((self._latest, self._overdue), request.have):
            if requests.get((frame.topic, source)) is request:
                del requests[frame.topic, source]
        is_in_vain = all(state.have(source) == have for source, have in request.have.items())
        if is_in_vain and (request.room or not frame.more):
            # Otherwise it would be asked for ever for what this node does not take.
            self.offered(frame.topic, peer, dict.fromkeys(request.have, 0))
        elif frame.more:
            more = {source: state.have(source) + 1 for source in request.have}
            self.offered(frame.topic, peer, more)

    def back(self, peer: int) -> None:
        """Forget that a peer was silent."""
        self._round_trips.reset()
        for requests in (self._latest, self._overdue):
            for key in [each for each, request in requests.items() if request.peer == peer]:
                del requests[key]

    def forget(self, topic: str) -> None:
        """Forget the requests in a topic that was left."""
        self._offers.pop(topic, None)
        self._overdue_ns.pop(topic, None)
        for number in [each for each, one in self._open.items() if one.topic == topic]:
            del self._open[number]
        for requests in (self._latest, self._overdue):
            for key in [each for each in requests if each[0] == topic]:
                del requests[key]

    def _update_offers(self, topic: str, source: int, have: int, now_ns: int) -> Counts:
        """Drop offers that are of no use; put a peer that did not answer last."""
        offers = self._offers[topic][source]
        for peer, up_to in list(offers.items()):
            if up_to <= have or not self._is_there(peer):
                del offers[peer]
        late = self._latest.get((topic, source))
        if late is not None and late.peer in offers and not self._waits(late, now_ns):
            up_to = offers.pop(late.peer)
            if late.wait_ns < self._config.answer_ns:
                offers[late.peer] = up_to
            else:
                del self._latest[topic, source]
        if not offers:
            del self._offers[topic][source]
            if not self._offers[topic]:
                del self._offers[topic]
        return offers

    def _is_there(self, peer: int) -> bool:
        return bool(self._cube.everyone & ~self._detector.suspected & 1 << peer)
