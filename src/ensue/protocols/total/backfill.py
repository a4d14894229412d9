"""Backfill: events published before a subscription began, as far as kept.

A subscription that starts in the past joins its topics at a cut like any other, so that the chain
orders everything from there on for it. Before that it reads, from the one log that keeps all of its
topics, what lies before the cut, and delivers it in the order in which it was published
(`Event.place`), which is the order that every other subscriber got. Events from behind the cut that
arrive meanwhile are held.

A topic counts as joined from its cut on: its subscriber can read while it catches up.

A subscription that fell behind what the log keeps reads on in the same way: all its topics are
joined again, at one cut, and read from where they were, or from what is still kept. All of them,
because newer events of the others may come behind something that is read now. Each gap is reported
as the topic left and joined again, with what was missed.

Progress is persisted as `history/TOPIC` (`progress`). As soon as the log has answered, the first
slot is known, and what the log drops from there on before it was read is missed. A restart resumes
there, whatever start it is given.

Assumption: one server keeps all topics. Places of two servers can't be compared, so a subscription
to topics of several starts with new events, or is refused.

Only the topics that are joined first begin in the past. A topic that is added later begins with new
events: its past would come behind events that other subscribers got after it.

HAZARD: two events that were published before any subscription had both their topics have no order
but their places. In a chain of several stations, places may differ from the stamps of topics that
are ordered together, as publishers put events there themselves; then the stamps are followed.

HAZARD: a stamp leaves out entries that the topic's previous one had. A log completes the stamp of
the first event that it sends, as far as it goes back. At the very front of what is kept the
previous one may be gone; then the other event's stamp decides which of two comes first, and if that
leaves it out too, their places decide. Those are wrong if the chain has several stations and a
publisher was so slow to publish one of the two that it was overtaken.
"""

from collections import deque
from collections.abc import Iterator, Mapping

from ensue.core.event import Event
from ensue.protocols.interface import Join, Leave, Send
from ensue.protocols.topic_log.frames import Fetch, Fetched
from ensue.protocols.total.delivery import Delivery
from ensue.protocols.total.progress import Progress
from ensue.protocols.total.subscription_state import SubscriptionState

__all__ = ["Backfill", "History"]

BACKOFF_RETRIES_MAX = 8
"""The longest wait for an answer, in times `retry_ns`."""


class _TopicHistory:
    """The unread past of one topic."""

    __slots__ = (
        "asked",
        "counts",
        "cut",
        "due_ns",
        "events",
        "next",
        "place",
        "slot",
        "wait_ns",
        "whole",
    )

    def __init__(self, slot: int, cut: int, place: int) -> None:
        self.slot = slot
        """The next slot to be delivered."""
        self.next = slot
        """The next slot to be fetched."""
        self.cut = cut
        self.place = place
        """Events published before this place are skipped. 0: reading has begun, all events from the
        slot on are wanted, and those that are not kept are missed."""
        self.events: deque[Event] = deque()
        self.counts: dict[str, int] = {}
        """Counts of other topics, from the stamps of the events that were taken."""
        self.whole = False
        """Whether `counts` is complete: not if earlier events were not read."""
        self.asked = 0
        """The slot that was last requested; 0: none."""
        self.wait_ns = 0
        """How long to wait for the answer."""
        self.due_ns = 0
        """When to request it again."""

    def take(self) -> Event:
        """Take the next event, and note its stamp: the next event's may leave entries out."""
        event = self.events.popleft()
        self.slot = (event.slot or self.slot) + 1
        if event.stamp is not None:
            if event.stamp.whole:
                self.counts, self.whole = {}, True
            self.counts.update(event.stamp.entries)
        return event

    def count(self, topic: str) -> int | None:
        """Return the next event's count of another topic; None if it is not known."""
        stamp = self.events[0].stamp
        if stamp is None or topic in stamp.entries or stamp.whole:
            return 0 if stamp is None else stamp.entries.get(topic, 0)
        return self.counts.get(topic, 0 if self.whole else None)

    @property
    def wanting(self) -> bool:
        """Whether something has to be fetched."""
        return not self.events and self.next <= self.cut

    @property
    def exhausted(self) -> bool:
        """Whether everything up to the cut has been fetched and taken."""
        return not self.events and self.next > self.cut


class History:
    """The topics that are being backfilled, and the events fetched of them."""

    def __init__(self) -> None:
        self.topics: dict[str, _TopicHistory] = {}

    def add(self, topic: str, slot: int, cut: int, place: int) -> None:
        """Add a topic, to be delivered from a slot and a place up to a cut."""
        self.topics[topic] = _TopicHistory(slot, cut, place)

    def expect_nothing(self) -> None:
        """Stop waiting for answers: a connection was lost, or answers were dropped."""
        for past in self.topics.values():
            past.asked = 0

    def wants(self, now_ns: int, retry_ns: int) -> Iterator[Fetch]:
        """Yield the requests for what has to be fetched and is not on its way.

        Requested again with each answer on another topic, it would arrive as often, and each answer
        would lead to more requests.
        """
        for topic, past in self.topics.items():
            if not past.wanting:
                continue
            if past.asked != past.next:
                past.wait_ns = retry_ns
            elif past.due_ns > now_ns:
                continue
            else:
                past.wait_ns = min(2 * past.wait_ns, BACKOFF_RETRIES_MAX * retry_ns)
            past.asked, past.due_ns = past.next, now_ns + past.wait_ns
            yield Fetch(topic=topic, start=past.next, stop=past.cut + 1, place=past.place)

    def due_ns(self) -> int | None:
        """Return when something has to be requested again."""
        return min((past.due_ns for past in self.topics.values() if past.wanting), default=None)

    def fetched(self, frame: Fetched) -> tuple[int, int] | None:
        """Take in fetched events, unless the answer is outdated; return the missed slots."""
        past = self.topics.get(frame.topic)
        if past is None or past.events or frame.start != past.next:
            return None
        missed = (past.next, min(frame.first - 1, past.cut))
        past.events.extend(event for event in frame.events if (event.slot or 0) <= past.cut)
        if past.events and past.events[0].slot != past.next:
            past.counts, past.whole = {}, False
        past.next = max(past.next, frame.next)
        if past.place:
            if past.next > frame.start:
                # Events dropped before reading began were not wanted; from now on they are missed.
                past.place = 0
                past.slot = (past.events[0].slot if past.events else None) or past.next
            return None
        past.slot = max(past.slot, missed[1] + 1)
        return missed if missed[0] <= missed[1] else None

    def take(self) -> Event | None:
        """Return the event whose turn it is, if that is certain."""
        if any(not past.events and not past.exhausted for past in self.topics.values()):
            return None
        heads = [past.events[0] for past in self.topics.values() if past.events]
        if not heads:
            return None
        heads.sort(key=lambda event: event.place)
        chosen = next((head for head in heads if self._allowed(head)), heads[0])
        return self.topics[chosen.topic].take()

    def _allowed(self, event: Event) -> bool:
        """Return whether everything that the event's stamp counts has been delivered."""
        own, stamp = self.topics[event.topic], event.stamp
        if stamp is None:
            return True
        # Entries left out were waited for by the events before this one, if they were read.
        for topic in stamp.entries if stamp.whole or own.whole else self.topics:
            past = self.topics.get(topic)
            if past is None or topic == event.topic or not past.events:
                continue
            count = own.count(topic)
            if count is None:
                # The event with the entry is not kept any more. Of two events that are ordered
                # together one counts the other: look at the other one's stamp.
                theirs = past.count(event.topic)
                if theirs and theirs < (event.slot or 0):
                    return False
            # Events published before the place to start at are skipped, and not waited for.
            elif (past.events[0].slot or 0) <= count:
                return False
        return True

    @property
    def done(self) -> bool:
        """Whether everything up to the cuts has been taken."""
        return all(past.exhausted for past in self.topics.values())


class Backfill:
    """The part of a subscriber that reads the past of its topics before it joins them."""

    def __init__(self, state: SubscriptionState, progress: Progress, delivery: Delivery) -> None:
        self._config = state.config
        self._placement = state.placement
        self._queue = state.queue
        self._progress = progress
        self._delivery = delivery
        self._effects = state.effects
        self._history = History()
        self.due_ns: int | None = None
        """When to request something again; None: nothing is requested."""

    @property
    def topics(self) -> Mapping[str, object]:
        """The topics that are being backfilled."""
        return self._history.topics

    def begin(self, cuts: Mapping[str, int], from_place: int) -> None:
        """Read topics from a place up to their cuts."""
        for topic, cut in cuts.items():
            self._history.add(topic, 1, cut, from_place)
            self._progress.begin_history(topic, 1, cut, from_place)
            self._effects.append(Join(topic))

    def read_on(self, topic: str, cut: int) -> None:
        """Join a topic that fell behind at a new cut, and read what lies before that."""
        progress = self._progress
        handled = progress.fallen.pop(topic)
        self._history.add(topic, progress.reached.pop(topic, handled), cut, 0)
        progress.begin_history(topic, handled, cut, 0)
        self._effects.append(Join(topic))

    def restore(self, topic: str, slot: int, cut: int, place: int) -> None:
        """Restore a record of an earlier incarnation."""
        if slot > 1:
            place = 0  # Reading has begun. Older records show it by the slot alone.
        self._history.add(topic, slot, cut, place)
        self._progress.histories[topic] = (cut, place)
        self._queue.await_cut(topic)

    def leave(self, topic: str) -> None:
        """Stop reading the past of a topic."""
        self._history.topics.pop(topic, None)
        self._progress.end_history(topic)

    def fetch(self, now_ns: int) -> None:
        """Request the next missing events of each topic."""
        self.due_ns = None
        if self._delivery.paused:
            return
        for frame in self._history.wants(now_ns, self._config.retry_ns):
            keeper = self._placement.keeper(frame.topic, frame.start)
            self._effects.append(Send(keeper or self._placement.node(frame.topic), frame))
        self.due_ns = self._history.due_ns()

    def repeat(self, now_ns: int) -> None:
        """Request now what was requested and not answered: a connection was lost."""
        self._history.expect_nothing()
        self.fetch(now_ns)

    def on_fetched(self, frame: Fetched, _source: str, now_ns: int) -> None:
        """Take in events that the log sent."""
        topic = frame.topic
        if topic not in self._history.topics or self._delivery.paused:
            return
        past = self._history.topics[topic]
        place = past.place
        missed = self._history.fetched(frame)
        if missed is not None:
            self._effects += (Leave(topic, rejoins=True), Join(topic, missed))
        if place and not past.place:
            self._progress.begin_history(topic, past.slot, past.cut, 0)
        if frame.next > frame.start:
            self.go_on(now_ns)
        # Else a slot is not filled yet: it is requested again later.

    def go_on(self, now_ns: int) -> None:
        """Deliver what is next, request what is missing, and join once caught up."""
        delivery = self._delivery
        while not delivery.paused and (event := self._history.take()) is not None:
            delivery.release(event, event.slot or 0, now_ns, now_ns)
        self.fetch(now_ns)
        if self._history.topics and self._history.done:
            caught_up, self._history = self._history, History()
            for topic, past in caught_up.topics.items():
                delivery.start_at(topic, past.cut)
            delivery.deliver_ready(now_ns)
            # The events from behind the cut that arrived meanwhile may not have been all.
            delivery.gap_due_ns = now_ns
