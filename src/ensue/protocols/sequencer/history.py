"""What was published before a subscription began, as far as the log of its topics goes back.

A subscription that starts in the past joins its topics at a cut like any other, so that the chain
orders everything from there on for it. Before that it reads, from the one log that keeps all of
its topics, what lies before the cut, and delivers it in the order in which it was put out
(`Event.place`), which is the order that everybody else got it in. What comes in meanwhile from
behind the cut is held.

A topic counts as joined from its cut on: whoever asked for it can read while it catches up.

A subscription that fell behind what the log keeps reads on in the same way: all its topics are joined
anew, at one cut, and read from where they were, or from what is still kept. All of them, because what the
others have meanwhile may come behind something that is read now. Each gap is told as the topic left and
joined again, with what was missed.

Progress is persisted as `history/TOPIC`: the next slot, the cut and the place to start at, which is 0 for
what is read on, and for what has begun: as soon as the log has answered it is known which slot is the first, and
what is dropped from there on before it was read is missed. A restart goes on there, whatever start it is given.

Assumption: all topics are kept by one server. Places of two servers can't be compared, so a
subscription to topics of several starts with what is new, or is refused.

Only the topics that are joined first begin in the past. What is added later begins with what is new: its past
would come behind events that everybody else got behind it.

HAZARD: two events that were published before anybody subscribed to both their topics have no order
but their places. Where stations of a chain complete each other's stamps, those may differ from the
stamps of topics that are ordered together; then the stamps are followed.

HAZARD: a stamp leaves out what the topic's previous one said. A log tells whoever begins in the middle what that
was, as far as it goes back. At the very front of what is kept it may be gone; then the other event's stamp
tells which of two comes first, and if that leaves it out too, their places decide. Those are wrong if stations complete
each other's stamps and a publisher was so slow to put one of the two out that it was overtaken.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from ensue.errors import SubscriptionRefused
from ensue.event import Event
from ensue.protocols.core import Deliver, Discard, Join, Leave, Persist, Send
from ensue.protocols.ens import Fetch, Fetched
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.delivery import Delivery
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.sequencer.records import HISTORY

__all__ = ["History", "Replay"]

PATIENCE_RETRIES = 8
"""For so many times `retry_ns` an answer is waited for at the most."""


class _Past:
    """What is still to come of one topic."""

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
        """Only what was put out from this place on is of interest; 0: that has begun, all from the slot
        on is, and what is not kept is missed."""
        self.events: deque[Event] = deque()
        self.counts: dict[str, int] = {}
        """What the stamps of the events up to the last one that was taken say of other topics, …"""
        self.whole = False
        """… and whether that is all: not if what comes before was not read."""
        self.asked = 0
        """The slot that was last asked for; 0: none."""
        self.wait_ns = 0
        """How long the answer to that is waited for, …"""
        self.due_ns = 0
        """… which is until then."""

    def take(self) -> Event:
        """Take the next event, and note what its stamp says: the one behind it may leave that out."""
        event = self.events.popleft()
        self.slot = (event.slot or self.slot) + 1
        if event.stamp is not None:
            if event.stamp.whole:
                self.counts, self.whole = {}, True
            self.counts.update(event.stamp.entries)
        return event

    def count(self, topic: str) -> int | None:
        """Return up to where the next event comes behind those of another topic; None: not known."""
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
    """The topics that are being caught up with, and what has been fetched of them."""

    def __init__(self) -> None:
        self.topics: dict[str, _Past] = {}

    def add(self, topic: str, slot: int, cut: int, place: int) -> None:
        """Begin with a topic: deliver from a slot and a place up to a cut."""
        self.topics[topic] = _Past(slot, cut, place)

    def expect_nothing(self) -> None:
        """Wait for no answer any more: a connection was lost, or what came was dropped."""
        for past in self.topics.values():
            past.asked = 0

    def wants(self, now_ns: int, retry_ns: int) -> Iterator[Fetch]:
        """Yield what is to be fetched and is not on its way.

        Asked for again with each answer on another topic, it would come as often, and each of those
        answers lead to more questions.
        """
        for topic, past in self.topics.items():
            if not past.wanting:
                continue
            if past.asked != past.next:
                past.wait_ns = retry_ns
            elif past.due_ns > now_ns:
                continue
            else:
                past.wait_ns = min(2 * past.wait_ns, PATIENCE_RETRIES * retry_ns)
            past.asked, past.due_ns = past.next, now_ns + past.wait_ns
            yield Fetch(topic=topic, start=past.next, stop=past.cut + 1, place=past.place)

    def due_ns(self) -> int | None:
        """Return when something is to be asked for again."""
        return min((past.due_ns for past in self.topics.values() if past.wanting), default=None)

    def fetched(self, frame: Fetched) -> tuple[int, int] | None:
        """Take in what came, and return what was missed; an answer to an older question changes nothing."""
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
                # What was gone before it began was never asked for; what goes from now on is missed.
                past.place = 0
                past.slot = (past.events[0].slot if past.events else None) or past.next
            return None
        past.slot = max(past.slot, missed[1] + 1)
        return missed if missed[0] <= missed[1] else None

    def take(self) -> Event | None:
        """Return the event whose turn it is, if it is certain which one that is."""
        if any(not past.events and not past.exhausted for past in self.topics.values()):
            return None
        heads = [past.events[0] for past in self.topics.values() if past.events]
        if not heads:
            return None
        heads.sort(key=lambda event: event.place)
        chosen = next((head for head in heads if self._allowed(head)), heads[0])
        return self.topics[chosen.topic].take()

    def _allowed(self, event: Event) -> bool:
        """Tell whether everything that the stamp counts has been delivered."""
        own, stamp = self.topics[event.topic], event.stamp
        if stamp is None:
            return True
        # What is left out was waited for by the events before this one, if they were read.
        for topic in stamp.entries if stamp.whole or own.whole else self.topics:
            past = self.topics.get(topic)
            if past is None or topic == event.topic or not past.events:
                continue
            count = own.count(topic)
            if count is None:
                # The one that said so is not kept any more. Of two events that are ordered together
                # one counts the other: maybe the other one tells.
                theirs = past.count(event.topic)
                if theirs and theirs < (event.slot or 0):
                    return False
            # What was put out before the place to start at is passed over, and not waited for.
            elif (past.events[0].slot or 0) <= count:
                return False
        return True

    @property
    def done(self) -> bool:
        """Whether all that lies before the cut has been taken."""
        return all(past.exhausted for past in self.topics.values())


class Replay(Delivery):
    """The part of a subscriber that reads what was there before it. `Subscriber` joins afterwards."""

    name: str
    placement: Placement

    def __init__(self, *, config: SequencerConfig, acknowledge_each: bool, now_ns: int) -> None:
        super().__init__(config=config, acknowledge_each=acknowledge_each, now_ns=now_ns)
        self._paused = False
        self._poll_due_ns = now_ns
        self._history = History()
        self._history_due_ns: int | None = None
        self._begun = False
        """Whether a topic was ever joined."""
        self._unfinished: dict[str, tuple[int, int]] = {}
        """Topics with a record of their history: their cuts, and the places they start at."""
        self._fallen: dict[str, int] = {}
        """Topics that have to be joined anew, and the first slot that is not known to be handled."""
        self._reached: dict[str, int] = {}
        """Of these the first slot that was not delivered, as long as this incarnation lasts."""

    def _begin_history(self, cuts: Mapping[str, int], from_place: int) -> None:
        for topic, cut in cuts.items():
            self._history.add(topic, 1, cut, from_place)
            self._unfinished[topic] = (cut, from_place)
            self._persist_history(topic, 1)
            self._effects.append(Join(topic))

    def _kept_together(self, topics: Iterable[str]) -> bool:
        """Tell whether one server keeps the log of all these topics, and says in which order."""
        return self.config.carries and len({self.placement.node(topic) for topic in topics}) == 1

    def _fall(self, topic: str) -> None:
        """Note how far a topic has come that is going to be joined anew."""
        reached = self._queue.clock[topic] + 1
        open_slots = (slot for _, each, slot in self._unacknowledged if each == topic)
        self._fallen[topic] = next(open_slots, reached)
        self._reached[topic] = reached

    def _read_on(self, topic: str, cut: int) -> None:
        """Join a topic anew at a cut, and read what it has not had before that."""
        handled = self._fallen.pop(topic)
        self._history.add(topic, self._reached.pop(topic, handled), cut, 0)
        self._unfinished[topic] = (cut, 0)
        self._persist_history(topic, handled)
        self._effects.append(Join(topic))

    def _resume_history(self, topic: str, slot: int, cut: int, place: int) -> None:
        if slot > 1:
            place = 0  # It has begun. Older records tell it by the slot alone.
        self._history.add(topic, slot, cut, place)
        self._unfinished[topic] = (cut, place)
        self._queue.await_cut(topic)

    def _fetch(self, now_ns: int) -> None:
        """Ask for what is missing next of each topic."""
        self._history_due_ns = None
        if self._paused:
            return
        for frame in self._history.wants(now_ns, self.config.retry_ns):
            self._effects.append(Send(self.placement.node(frame.topic), frame))
        self._history_due_ns = self._history.due_ns()

    def _fetched(self, frame: Fetched, now_ns: int) -> None:
        if frame.topic not in self._history.topics or self._paused:
            return
        past = self._history.topics[frame.topic]
        place = past.place
        missed = self._history.fetched(frame)
        if missed is not None:
            self._effects += (Leave(frame.topic, rejoins=True), Join(frame.topic, missed))
        if place and not past.place:
            self._unfinished[frame.topic] = (past.cut, 0)
            self._persist_history(frame.topic, past.slot)
        if frame.next > frame.start:
            self._go_on_with_history(now_ns)
        # Else a slot is not filled yet: asked again in a while.

    def _go_on_with_history(self, now_ns: int) -> None:
        """Deliver what can be, ask for what is missing next, and begin with what is through."""
        while not self._paused and (event := self._history.take()) is not None:
            slot = event.slot or 0
            self._places[event.topic] = event.place
            self._handled(event.topic, slot, count=not event.void)
            if event.void:
                self._effects.append(Discard(event, "void"))
            else:
                self._effects.append(Deliver(event, self._delivered))
        self._fetch(now_ns)
        if self._history.topics and self._history.done:
            caught_up, self._history = self._history, History()
            for topic, past in caught_up.topics.items():
                self._start_at(topic, past.cut)
            self._deliver_ready(now_ns)
            # What came from behind the cut meanwhile may not have been all there was.
            self._gap_due_ns = now_ns

    def _start_at(self, topic: str, cut: int) -> None:
        """Let a topic's events come from behind its cut on."""
        for event in self._queue.join(topic, cut):
            self._effects.append(Discard(event, "before_join"))
        self._persist_clock(topic, cut)

    def _leave_history(self, topic: str) -> None:
        self._history.topics.pop(topic, None)
        if self._unfinished.pop(topic, None) is not None and self.config.durable:
            self._effects.append(Persist(f"history/{topic}", None))

    def _persist_progress(self, topic: str, slot: int) -> None:
        """Note how far a topic has come, in its history or beyond."""
        if topic in self._fallen:
            # It has no clock until its cut comes, and what is handled meanwhile counts all the same.
            self._fallen[topic] = slot + 1
            self._persist_state()
            return
        base = self._queue.base.get(topic)
        unfinished = self._unfinished.get(topic)
        if unfinished is not None:
            if slot < unfinished[0] or base is None:
                # Through with its past, a topic that waits for others has no clock yet.
                self._persist_history(topic, slot + 1)
                return
            del self._unfinished[topic]
            if self.config.durable:
                self._effects.append(Persist(f"history/{topic}", None))
        if base is not None and (unfinished is not None or slot > base):
            self._persist_clock(topic, max(slot, base))

    def _persist_state(self) -> None:
        raise NotImplementedError  # `Subscriber` does.

    def _persist_history(self, topic: str, slot: int) -> None:
        if self.config.durable:
            record = (slot, *self._unfinished[topic])
            self._effects.append(Persist(f"history/{topic}", HISTORY.encode(record)))

    def _refuse_if_fixed(self) -> None:
        if self.config.fixed is not None:
            raise SubscriptionRefused(
                f"{self.name}: subscriptions of this chain are fixed; groups by one common "
                "subscription (groups = 1) allow changes",
                reason="fixed",
            )

    def _refuse_if_apart(self, topics: Iterable[str]) -> None:
        homes = {self.placement.node(topic): topic for topic in topics}
        if len(homes) > 1:
            apart = ", ".join(f"{topic!r} by {node}" for node, topic in homes.items())
            raise SubscriptionRefused(
                f"{self.name}: a subscription starts in the past only with topics of one server, "
                f"and these are kept apart: {apart}",
                reason="apart",
            )
