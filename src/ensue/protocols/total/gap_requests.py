"""Gap requests: how a subscriber asks the logs of its topics for events it missed.

From time to time it polls how far the logs are. The log of a topic without new events reports that
unasked (`ensue.protocols.topic_log.tail_probes`). Most events that a subscriber lacks are on their
way, behind others or over another path: a request would make the log send them twice, to a
subscriber that is busy already. So it looks again after a round trip, and requests what is still
missing of that. It requests at once only where events are held back for a round trip without
progress, or where a connection was lost. A round trip is the time-out of
`ensue.protocols.shared.round_trips`, and `gap_ns` until one was measured.

Events of one topic come from many publishers and overtake each other, so that a number of later
events says nothing about a loss: unlike links, subscribers go by time alone.

The answer to one request may be hundreds of events, and its end leads to the next request.
Repeating a request before its answer has arrived makes the log send all of it again; and if the end
of each answer led to a next request, two requests on one topic would run side by side until the
subscriber has caught up. The slower a log answers, the more requests it would get.

Guarantee: a topic has one open request. It is repeated after a time-out, then after twice that, and
so on up to `BACKOFF_POLLS_MAX` times `poll_ns`; only the answer to the latest leads to a next one.
"""

from collections.abc import Callable

from ensue.protocols.shared.round_trips import RoundTrips
from ensue.protocols.topic_log.frames import Attached, LogEnd
from ensue.protocols.total.backfill import Backfill
from ensue.protocols.total.delivery import Delivery
from ensue.protocols.total.subscription_state import SubscriptionState

__all__ = ["GapRequests", "OpenRequests"]


class OpenRequests:
    """The open request of each topic."""

    __slots__ = ("_open", "_round_trips", "_sent")

    def __init__(self, round_trips: RoundTrips) -> None:
        self._round_trips = round_trips
        self._sent: dict[str, int | None] = {}
        """Topic to when a request was sent; None if several were, without an answer."""
        self._open: dict[str, tuple[int, int, int]] = {}
        """Topic to the requested slot, how long to wait for the answer, and until when."""

    def ask(self, topic: str, slot: int, now_ns: int) -> bool:
        """Note a request from a slot on; False if it is too early to repeat the open one."""
        wait_ns = self._round_trips.timeout_ns
        earlier = self._open.get(topic)
        if earlier is not None:
            if now_ns < earlier[2]:
                return False
            wait_ns = self._round_trips.after(earlier[1])
        self._open[topic] = (slot, wait_ns, now_ns + wait_ns)
        return True

    @property
    def timeout_ns(self) -> int:
        """How long to wait for what is on its way."""
        return self._round_trips.timeout_ns

    def sent(self, topic: str, now_ns: int) -> None:
        """Note that a request or poll was sent, to measure the round trip."""
        self._sent[topic] = None if topic in self._sent else now_ns

    def measure(self, topic: str, now_ns: int) -> None:
        """Take the round trip from an answer, if it answers a request that was sent once."""
        sent_ns = self._sent.pop(topic, None)
        if sent_ns is not None:
            self._round_trips.sample(now_ns - sent_ns)

    def is_open(self, topic: str) -> bool:
        """Return whether a request on a topic has not been answered."""
        return topic in self._open

    def answered(self, frame: Attached) -> bool:
        """Note an answer; False if it does not answer the open request."""
        request = self._open.get(frame.topic)
        if request is None or (frame.sent < frame.next and frame.sent <= request[0]):
            return False
        del self._open[frame.topic]
        return True

    def drop(self, topic: str) -> None:
        """Stop waiting for answers on a topic: it was left."""
        self._open.pop(topic, None)
        self._sent.pop(topic, None)

    def drop_all(self) -> None:
        """Stop waiting for answers: a connection was lost."""
        self._open.clear()
        self._sent.clear()


class GapRequests:
    """The part of a subscriber that notices and requests what it missed.

    `on_fallen_behind` is called with a topic whose log no longer keeps what is missing.
    """

    def __init__(
        self,
        state: SubscriptionState,
        delivery: Delivery,
        backfill: Backfill,
        *,
        on_fallen_behind: Callable[[str, int], None],
        now_ns: int,
    ) -> None:
        self._state = state
        self._config = state.config
        self._queue = state.queue
        self._delivery = delivery
        self._backfill = backfill
        self._on_fallen_behind = on_fallen_behind
        self.requests = OpenRequests(state.round_trips)
        self.poll_due_ns = now_ns
        self.left: tuple[str, ...] = ()
        """Topics that were left, of nodes that have to go on hearing of this subscriber."""
        self._ends: dict[str, int] = {}
        """Topics that had more than has arrived when last polled, and the slot they end before."""
        self._ends_due_ns = now_ns
        """When to check whether that has arrived."""

    def handle_timer(self, now_ns: int) -> None:
        """Request what held events wait for, or poll how far the logs are."""
        gap_due_ns = self._delivery.gap_due_ns
        if gap_due_ns is not None and gap_due_ns <= now_ns:
            self.ask_all(now_ns)
        elif self.poll_due_ns <= now_ns:
            self._poll(now_ns)
        if self._ends and self._ends_due_ns <= now_ns:
            ends, self._ends = self._ends, {}
            for topic, end in ends.items():
                if topic in self._queue.clock and self._queue.first_missing(topic) < end:
                    self.ask(topic, now_ns)

    def next_timer_ns(self) -> int:
        """Return when `handle_timer` has something to do."""
        due_ns = self.poll_due_ns
        if self._delivery.gap_due_ns is not None:
            due_ns = min(due_ns, self._delivery.gap_due_ns)
        return min(due_ns, self._ends_due_ns) if self._ends else due_ns

    def ask_all(self, now_ns: int) -> None:
        """Request what is missing of all topics; while paused, only show presence."""
        if self._delivery.paused:
            topics = (*self._queue.clock, *self._backfill.topics)
            for topic in topics:
                self._state.detach(topic)
        else:
            for topic in self._queue.clock:
                self.ask(topic, now_ns)
        self._set_poll(now_ns)
        self._delivery.expect_progress(now_ns, again=True)

    def ask(self, topic: str, now_ns: int) -> None:
        """Request what is missing of a topic, unless the answer may be on its way."""
        missing = self._queue.first_missing(topic)
        if self.requests.ask(topic, missing, now_ns) or not self._config.reliable:
            self.requests.sent(topic, now_ns)
            self._state.attach(topic, missing)

    def repeat(self, now_ns: int) -> None:
        """Request now what is missing: a connection was lost."""
        self.requests.drop_all()
        self.ask_all(now_ns)

    def leave(self, topic: str) -> None:
        """Stop waiting for answers on a topic."""
        self.requests.drop(topic)

    def on_attached(self, frame: Attached, source: str, now_ns: int) -> None:
        """Learn how far a log is, and whether it has sent what was requested."""
        topic = frame.topic
        missing = self._queue.first_missing(topic)
        if self._state.placement.keeper(topic, missing) not in ("", source):
            # Another node keeps what is missing.
            self._expect(topic, frame.next, now_ns)
            return
        latest = self.requests.answered(frame)
        if missing < frame.first:
            self._on_fallen_behind(topic, now_ns)
        elif frame.sent < frame.next:
            if latest and missing >= frame.sent:
                # All that was sent has arrived, and there is more.
                self.ask(topic, now_ns)
        elif not latest and missing < frame.next:
            self._expect(topic, frame.next, now_ns)

    def on_log_end(self, frame: LogEnd, _source: str, now_ns: int) -> None:
        """Request what is missing of a silent topic, unless it may still be on its way."""
        topic = frame.topic
        if self._delivery.paused or topic not in self._queue.clock:
            return
        if self._queue.first_missing(topic) >= frame.next:
            return
        if frame.silent_ns >= self.requests.timeout_ns:
            self.ask(topic, now_ns)
        else:
            self._expect(topic, frame.next, now_ns, sent_ns=now_ns - frame.silent_ns)

    def _expect(self, topic: str, end: int, now_ns: int, *, sent_ns: int | None = None) -> None:
        """Check after a round trip whether the events before a slot have arrived."""
        due_ns = (now_ns if sent_ns is None else sent_ns) + self.requests.timeout_ns
        self._ends_due_ns = min(due_ns, self._ends_due_ns) if self._ends else due_ns
        self._ends[topic] = end

    def _poll(self, now_ns: int) -> None:
        """Ask the logs how far they are, and to send new events."""
        if self._delivery.paused or not self._config.reliable:
            self.ask_all(now_ns)
            return
        for topic in self._queue.clock:
            if self.requests.is_open(topic):
                self.ask(topic, now_ns)
            else:
                self.requests.sent(topic, now_ns)
                self._state.attach(topic, 0)
        self._set_poll(now_ns)

    def _set_poll(self, now_ns: int) -> None:
        for topic in self.left:
            self._state.detach(topic)
        self.poll_due_ns = now_ns + self._config.poll_ns
