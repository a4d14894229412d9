"""What a publisher has asked for and has had no answer to, and when it asks again.

Events go out in runs: what one frame asks for is due together. A run that got no answer is asked for
again, what is left of it, after `retry_ns`; then after twice that, and so on up to a bound. If anything was
answered since the run went out, somebody is there and this run was lost, so the wait begins anew. So
a node that is away, or has more to do than it can, is not sent the same window over and over.

Who publishes now and then is not to wait. But a request costs whoever handles it as much as dozens of
events, so while `runs_max` of them are under way, what is published waits for an answer, and then goes
together; unless there are `TOGETHER` events by then. The longer answers take the more goes together,
so that a busy node gets fewer requests and not more.

The bound is a quarter of a lease at the most: a stamp whose answer was lost has to be asked for while
its slot can still be had.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping

import msgspec

from ensue.event import Event
from ensue.protocols.sequencer.config import SequencerConfig

__all__ = ["TOGETHER", "Key", "Lane", "Outgoing", "Patience", "Run", "Way"]

PATIENCE_RETRIES = 8
"""So many times `retry_ns` is the longest that anything is waited for, if the lease allows."""
TOGETHER = 256
"""So many events wait for no answer."""

Key = tuple[str, int]
"""The topic of an event and its number there: cheaper than its id, and as good at its publisher."""


class Run:
    """What one frame asked for: consecutive numbers at one origin."""

    __slots__ = ("due_ns", "first", "open", "sent_ns", "stop", "wait_ns")

    def __init__(self, first: int, stop: int, sent_ns: int, wait_ns: int) -> None:
        self.first = first
        self.stop = stop
        """The number behind the last."""
        self.open = stop - first
        """How many of them got no answer."""
        self.sent_ns = sent_ns
        self.wait_ns = wait_ns
        self.due_ns = sent_ns + wait_ns


class Outgoing(msgspec.Struct, gc=False):
    """One event under way."""

    event: Event
    origin: str
    number: int
    place: int
    """Its place among all events of this publisher."""
    restored: bool = False
    """Taken up again after a restart: it may have been stamped, and be out, already. HAZARD: so a refusal,
    which may be as old, does not settle it, and one that is refused for good is asked for for ever."""
    run: Run | None = None
    """What it was last asked for with, while there is no answer."""
    granted_by: str = ""
    """The node that completed the stamp; empty until stamped."""
    proof: bytes = b""
    """Its seal on the stamp."""
    settled: bool = False
    due_ns: int = 0
    """When to repeat the broadcast of what is stamped, …"""
    wait_ns: int = 0
    """… and how long that was waited for."""

    @property
    def key(self) -> Key:
        """What it is found by where nobody knows its number."""
        return (self.event.topic, self.event.publisher_seq)


class Patience:
    """How long is waited for an answer, and how much longer for the next one."""

    __slots__ = ("_most_ns", "least_ns")

    def __init__(self, config: SequencerConfig) -> None:
        self.least_ns = config.retry_ns
        bound_ns = min(PATIENCE_RETRIES * config.retry_ns, config.lease_ns // 4)
        self._most_ns = max(config.retry_ns, bound_ns)

    def after(self, wait_ns: int) -> int:
        """Return how long to wait after having waited in vain."""
        return min(2 * wait_ns, self._most_ns)


class Lane:
    """Events that are stamped in the order they were published: all, or those of one origin."""

    __slots__ = ("answered_ns", "due_ns", "in_flight", "origin", "runs", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Outgoing] = deque()
        self.runs: deque[Run] = deque()
        """What was asked for, in the order it was; all of what is open is at one origin."""
        self.in_flight = 0
        """How many requests are open."""
        self.due_ns = 0
        """Nothing of what is open has to be asked for again before this."""
        self.origin = ""
        """The origin that the requests in flight went to."""
        self.answered_ns = -1
        """When anything was answered last."""

    def sent(self, run: Run, outgoings: Iterable[Outgoing]) -> None:
        """Note that a run went out: new requests, or open ones again."""
        runs = self.runs
        self.due_ns = min(self.due_ns, run.due_ns) if self.in_flight else run.due_ns
        for outgoing in outgoings:
            if outgoing.run is None:
                self.in_flight += 1
            else:
                outgoing.run.open -= 1
            outgoing.run = run
        runs.append(run)

    def waits_for_more(self, runs_max: int) -> bool:
        """Tell whether what waits is better asked for with the next answer, together with what comes."""
        if not self.in_flight or len(self.waiting) >= TOGETHER:
            return False
        runs = self.runs
        while runs and not runs[0].open:
            runs.popleft()
        return len(runs) >= runs_max

    def answered(self, outgoing: Outgoing, now_ns: int) -> None:
        """Note that a request, if it is one, is open no more."""
        self.answered_ns = now_ns
        run = outgoing.run
        if run is not None:
            run.open -= 1
            self.in_flight -= 1
            outgoing.run = None

    def take_overdue(self, now_ns: int) -> list[Run]:
        """Return the runs that are due, and forget those that are answered."""
        overdue = [run for run in self.runs if run.open and run.due_ns <= now_ns]
        self.runs = deque(run for run in self.runs if run.open and run.due_ns > now_ns)
        self.due_ns = min((run.due_ns for run in self.runs), default=now_ns)
        return overdue

    @staticmethod
    def open(runs: Iterable[Run], unsettled: Mapping[int, Outgoing]) -> list[Outgoing]:
        """Return what is open of some runs, by number."""
        found = [
            outgoing
            for run in runs
            for number in range(run.first, run.stop)
            if (outgoing := unsettled.get(number)) is not None and outgoing.run is run
        ]
        return sorted(found, key=lambda each: each.number)


class Way:
    """Where the events of a topic go."""

    __slots__ = ("lane", "origin", "unsettled")

    def __init__(self, origin: str, unsettled: "OrderedDict[int, Outgoing]", lane: Lane) -> None:
        self.origin = origin
        """The node that hosts the topic."""
        self.unsettled = unsettled
        """What is not settled of that node's."""
        self.lane = lane
