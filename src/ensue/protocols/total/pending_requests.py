"""Pending requests of a publisher: what has no answer yet, and when to repeat it.

Events are requested in runs: the requests of one frame are due together. What is left of a run that
got no answer is repeated after `retry_ns` (`publish_retry_ns` over connections), or what the round
trips to the node suggest (`round_trips`), then after twice that, and so on up to a bound. If any
request was answered since the run was sent, the node is alive and the run was lost, so the wait
starts again. So an unreachable or overloaded node does not get the same window over and over.

An occasional publisher does not wait. But a request costs its node as much as dozens of events, so
while `runs_max` of them are open, further events wait for an answer, and are then requested
together, unless there are `TOGETHER` events by then. The longer answers take, the more events go
together, so that a busy node gets fewer requests and not more.

The bound is at most a quarter of a lease: a stamp whose answer was lost has to be requested again
while the publisher can still use its slot.

All open requests of a lane are at one node, where they enter the chain in publication order and
travel up the chain in that order (`Entry`).
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping

import msgspec

from ensue.core.event import Event
from ensue.protocols.shared.round_trips import RoundTrips
from ensue.protocols.total.config import SequencerConfig

__all__ = [
    "RAISE_AFTER",
    "TOGETHER",
    "Entry",
    "Key",
    "Lane",
    "PendingEvent",
    "Route",
    "Run",
    "round_trips",
]

BACKOFF_RETRIES_MAX = 8
"""The longest wait for an answer, in times `retry_ns`, if the lease allows."""
TOGETHER = 256
"""So many events are requested without waiting for an answer."""
RAISE_AFTER = 64
"""After so many events of later nodes, requests enter the chain at the first of those."""

Key = tuple[str, int]
"""The topic of an event and its number there: unique at its publisher, cheaper than its id."""


class Run:
    """The requests of one frame: consecutive numbers at one origin."""

    __slots__ = ("due_ns", "first", "measured", "open", "sent_ns", "stop", "wait_ns")

    def __init__(
        self, first: int, stop: int, sent_ns: int, wait_ns: int, *, repeats: bool = False
    ) -> None:
        self.first = first
        self.stop = stop
        """The number after the last."""
        self.open = stop - first
        """How many of them have no answer."""
        self.sent_ns = sent_ns
        self.wait_ns = wait_ns
        self.due_ns = sent_ns + wait_ns
        self.measured = repeats
        """Whether no answer to it is a sample of the round trip: there was one, or it repeats."""


class PendingEvent(msgspec.Struct, gc=False):
    """One unsettled event of a publisher."""

    event: Event
    origin: str
    number: int
    place: int
    """Its place among all events of this publisher."""
    restored: bool = False
    """Restored after a restart: it may have been stamped, and published, already. HAZARD: so a
    refusal, which may be as old, does not settle it, and an event that is always refused is
    requested for ever."""
    run: Run | None = None
    """The run it was last requested with, while there is no answer."""
    granted_by: str = ""
    """The node that completed the stamp; empty until stamped."""
    proof: bytes = b""
    """The seal on the stamp."""
    held: bool = False
    """Whether it is stamped, and waits for the stamps of earlier events."""
    moved: bool = False
    """Whether its origin has refused it because its topic has moved."""
    settled: bool = False
    due_ns: int = 0
    """When to repeat the broadcast of a stamped event."""
    wait_ns: int = 0
    """How long the publisher waits for its answer."""
    broadcast_ns: int | None = None
    """When it was broadcast, if that was once."""

    @property
    def key(self) -> Key:
        """Identifies it where its request number is not known."""
        return (self.event.topic, self.event.publisher_seq)


def round_trips(config: SequencerConfig) -> RoundTrips:
    """Return the waits of a publisher for the answers of one peer."""
    retry_ns = max(config.retry_ns, min(config.publish_retry_ns, config.lease_ns // 4))
    return RoundTrips(
        initial_ns=retry_ns,
        least_ns=config.retry_ns_min,
        most_ns=min(BACKOFF_RETRIES_MAX * retry_ns, config.lease_ns // 4),
    )


class Lane:
    """Events that are stamped in publication order: all, or those of one origin."""

    __slots__ = ("answered_ns", "drains", "due_ns", "in_flight", "origin", "runs", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[PendingEvent] = deque()
        self.runs: deque[Run] = deque()
        """The runs in the order they were sent; all open ones are at one origin."""
        self.in_flight = 0
        """How many requests are open."""
        self.due_ns = 0
        """No open request has to be repeated before this."""
        self.origin = ""
        """The origin of the requests in flight."""
        self.answered_ns = -1
        """When a request was last answered."""
        self.drains = False
        """Whether waiting events wait until no request is open."""

    @property
    def idle(self) -> bool:
        """Whether every event has an answer."""
        return not self.in_flight and not self.waiting

    def sent(self, run: Run, events: Iterable[PendingEvent]) -> None:
        """Note that a run was sent: new requests, or open ones again."""
        runs = self.runs
        self.due_ns = min(self.due_ns, run.due_ns) if self.in_flight else run.due_ns
        for pending in events:
            if pending.run is None:
                self.in_flight += 1
            else:
                pending.run.open -= 1
            pending.run = run
        runs.append(run)

    def waits_for_more(self, runs_max: int) -> bool:
        """Return whether waiting events should wait for the next answer, to go together."""
        if not self.in_flight or len(self.waiting) >= TOGETHER:
            return False
        runs = self.runs
        while runs and not runs[0].open:
            runs.popleft()
        return len(runs) >= runs_max

    def answered(self, pending: PendingEvent, now_ns: int) -> None:
        """Note that a request, if it is open, was answered."""
        self.answered_ns = now_ns
        self.withdraw(pending)

    def withdraw(self, pending: PendingEvent) -> None:
        """Wait no longer for the answer to a request, if it is open."""
        run = pending.run
        if run is not None:
            run.open -= 1
            self.in_flight -= 1
            pending.run = None

    def take_overdue(self, now_ns: int) -> list[Run]:
        """Remove and return the runs that are due; forget those that are answered."""
        overdue = [run for run in self.runs if run.open and run.due_ns <= now_ns]
        self.runs = deque(run for run in self.runs if run.open and run.due_ns > now_ns)
        self.due_ns = min((run.due_ns for run in self.runs), default=now_ns)
        return overdue

    @staticmethod
    def open(runs: Iterable[Run], unsettled: Mapping[int, PendingEvent]) -> list[PendingEvent]:
        """Return the open events of some runs, by number."""
        found = [
            pending
            for run in runs
            for number in range(run.first, run.stop)
            if (pending := unsettled.get(number)) is not None and pending.run is run
        ]
        return sorted(found, key=lambda each: each.number)


class Route:
    """A node where requests enter the chain."""

    __slots__ = ("lane", "origin", "stage", "unsettled")

    def __init__(
        self,
        origin: str,
        stage: int,
        unsettled: "OrderedDict[int, PendingEvent]",
        lane: Lane,
    ) -> None:
        self.origin = origin
        self.stage = stage
        """The place of the node in the chain."""
        self.unsettled = unsettled
        """The unsettled events that were requested there."""
        self.lane = lane


class Entry:
    """Where the next request enters the chain, to keep its place behind all earlier ones.

    The chain keeps the order of requests that enter at one node. So while earlier requests are open
    a request enters where they did, and travels up to the node of its topic, in its place. If that
    node comes before, all earlier requests have to be answered first; from then on requests enter
    there. A publisher of topics of several nodes so waits a few times, not whenever it turns to
    another node.
    """

    __slots__ = ("_beyond", "_lowest", "_route")

    def __init__(self) -> None:
        self._route: Route | None = None
        self._beyond = 0
        """How many events in a row had topics of later nodes."""
        self._lowest: Route | None = None
        """The first of those nodes."""

    def choose(self, home: Route, *, idle: bool) -> Route:
        """Return where an event enters whose topic has its home at a node.

        If that is not where open requests have entered, it has to wait for them.
        """
        current = self._route
        if idle or current is None or home.stage <= current.stage:
            return self.move(home)
        self._beyond += 1
        if self._lowest is None or home.stage < self._lowest.stage:
            self._lowest = home
        # Or one event would keep a busy publisher from the node of all its others.
        return self.move(self._lowest) if self._beyond >= RAISE_AFTER else current

    def move(self, route: Route) -> Route:
        """Let requests enter at another node."""
        self._route, self._beyond, self._lowest = route, 0, None
        return route
