"""Delivery: hold events back, and release them in order.

Events are delivered in positions 1, 2, 3, …. With a reliable topic log an event waits for as long
as it takes, and after a round trip to the log without progress, `gap_ns` at first, the subscriber
requests what is missing (`gap_requests`). With a lossy one, an event is released when its time to
live ends or the buffer is full; what arrives later is delivered at once, tagged `out_of_order`.

While the application can't keep up, some events that arrive all the same are kept (`ARRIVED_MAX`),
and accepted when it can. Others are dropped, and requested again.

A subscription by content steps over an event that does not match its filter, as over a void one: it
takes its turn in the order, and no position.
"""

from ensue.core.event import Event
from ensue.protocols.interface import Deliver, Discard
from ensue.protocols.total.progress import Progress
from ensue.protocols.total.subscription_state import SubscriptionState

__all__ = ["UNMATCHED", "Delivery"]

UNMATCHED = "unmatched"
"""The verdict on an event that does not match the filter of a subscription by content."""

ARRIVED_MAX = 1024
"""Events that are kept while the application can't keep up, …"""
ARRIVED_BYTES_MAX = 1024 * 1024
"""… and bytes of their payloads; the last one may exceed it."""


class Delivery:
    """The events of one subscription, from the hold-back queue to the application."""

    def __init__(self, state: SubscriptionState, progress: Progress, *, now_ns: int) -> None:
        self._config = state.config
        self._queue = state.queue
        self._progress = progress
        self._effects = state.effects
        self._matches = state.matches
        self.paused = False
        """Whether the application can't keep up: nothing is delivered until it can."""
        self._arrived: list[Event] = []
        """What arrived since then."""
        self._arrived_bytes = 0
        self.gap_due_ns: int | None = None
        """When to request what held events wait for; None while nothing is held."""
        self._round_trips = state.round_trips
        self._gap_wait_ns = 0
        self._expire_from_ns = now_ns

    def notify(self, event: Event, now_ns: int) -> None:
        """Accept an event; if it is next, deliver it and the events that waited for it."""
        stamp = event.stamp
        slot = None if stamp is None else stamp.entries.get(event.topic)
        if slot is None:
            return  # Not stamped: no sequencer ordered it.
        queue, progress = self._queue, self._progress
        outcome = queue.offer(event, slot, now_ns)
        if outcome == "next" and progress.volatile and not event.void and self._matches is None:
            # The fast path: almost every event of a subscription that keeps no records.
            progress.delivered += 1
            progress.places[event.topic] = event.place
            self._effects.append(Deliver(event, progress.delivered))
            if queue.held_count:
                self.deliver_ready(now_ns, progress=True)
            return
        if outcome == "overflow" and not self._config.reliable:
            self._force(now_ns)
            outcome = queue.offer(event, slot, now_ns)
        if outcome == "next":
            self.release(event, slot, now_ns, now_ns)
            if queue.held_count:
                self.deliver_ready(now_ns, progress=True)
        elif outcome == "held":
            self.deliver_ready(now_ns)
        elif outcome == "late" and not event.void:
            if self._skipped(event):
                self._effects.append(Discard(event, UNMATCHED))
                return
            progress.handled(event.topic, queue.clock[event.topic], count=True)
            self._effects.append(Deliver(event, progress.delivered, "out_of_order"))
        else:
            self._effects.append(Discard(event, outcome))

    def keep(self, event: Event, _now_ns: int) -> None:
        """Keep an event that arrived during a pause, if there is room."""
        if len(self._arrived) < ARRIVED_MAX and self._arrived_bytes < ARRIVED_BYTES_MAX:
            self._arrived.append(event)
            self._arrived_bytes += len(event.payload)

    def forget(self, topic: str) -> None:
        """Forget what arrived of a topic during a pause: it was left, or has another log now."""
        self._arrived = [event for event in self._arrived if event.topic != topic]

    def resume(self, now_ns: int) -> None:
        """Deliver again after a pause."""
        self.paused = False
        arrived, self._arrived, self._arrived_bytes = self._arrived, [], 0
        for event in arrived:
            self.notify(event, now_ns)

    def _skipped(self, event: Event) -> str:
        """Return why an event is not for the application; empty: it is."""
        if event.void:
            return "void"
        return "" if self._matches is None or self._matches(event) else UNMATCHED

    def deliver_ready(self, now_ns: int, *, progress: bool = False) -> None:
        """Release held events that are next; `progress`: one was delivered before."""
        while (held := self._queue.next()) is not None:
            self.release(held.event, held.slot, held.since_ns, now_ns)
            progress = True
        if progress or self.gap_due_ns is None:
            self.expect_progress(now_ns)

    def release(self, event: Event, slot: int, since_ns: int, now_ns: int) -> None:
        """Deliver an event that was held since a time, or discard it if it is void or unmatched."""
        progress = self._progress
        progress.places[event.topic] = event.place
        skipped = self._skipped(event)
        progress.handled(event.topic, slot, count=not skipped)
        if skipped:
            self._effects.append(Discard(event, skipped))
        else:
            self._effects.append(Deliver(event, progress.delivered, "", now_ns - since_ns))

    def start_at(self, topic: str, cut: int) -> None:
        """Deliver a topic's events from behind its cut on."""
        for event in self._queue.join(topic, cut):
            self._effects.append(Discard(event, "before_join"))
        self._progress.persist_clock(topic, cut)

    def expect_progress(self, now_ns: int, *, again: bool = False) -> None:
        """Wait before requesting what held events wait for: twice as long if `again`.

        What the log does not have either is mostly held up at its publisher, and requests do not
        speed it up. So without progress they get rarer, down to one in `gap_ns`.
        """
        wait_ns = self._round_trips.timeout_ns
        if again:
            wait_ns = max(wait_ns, min(2 * self._gap_wait_ns, self._config.gap_ns))
        self._gap_wait_ns = wait_ns
        self.gap_due_ns = now_ns + wait_ns if self._queue.held_count > 0 else None

    def expire(self, now_ns: int) -> None:
        """Release what has been held for its time to live, and what comes before it."""
        while (oldest := self._queue.oldest_ns()) is not None:
            if oldest + self._config.time_to_live_ns > now_ns:
                break
            if not self._force(now_ns):
                # All held events wait for a cut, which will come.
                self._expire_from_ns = now_ns + self._config.time_to_live_ns
                break

    def expiry_due_ns(self) -> int | None:
        """Return when the next held event's time to live ends."""
        oldest = self._queue.oldest_ns()
        if oldest is None:
            return None
        return max(oldest + self._config.time_to_live_ns, self._expire_from_ns)

    def _force(self, now_ns: int) -> bool:
        """Release the first held event before its turn; False if there is none."""
        queue = self._queue
        forced = queue.force()
        if forced is None:
            return False
        assert forced.event.stamp is not None
        for topic in forced.event.stamp.entries:
            # Clocks that skipped something must not fall back after a restart.
            if topic != forced.event.topic and topic in queue.clock:
                self._progress.handled(topic, queue.clock[topic], count=False)
        self.release(forced.event, forced.slot, forced.since_ns, now_ns)
        self.deliver_ready(now_ns)
        return True
