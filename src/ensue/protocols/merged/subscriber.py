"""A merged subscriber: sorts events by their stamps alone.

`merger` has the delivery rule. Events that cannot be delivered in order:

- An event that is too late, or whose stamp is from the future, is dropped as `late` or `skewed`;
  with `deliver_late` it is delivered at once with that verdict instead, once. Held events may
  become `skewed` when this clock goes back.
- An event with an invalid stamp is dropped as `corrupt`, a second copy as `duplicate`.
- An event whose stamp carries another tick or epsilon cannot be sorted, and is dropped as
  `mismatched`. Another delta does not affect the order: the event is taken. Both are reported
  once per publisher (`Alert`).

All outcomes are counted (`counts`), and clocks and delays of senders are measured (`watch`).

`eager` delivers each event on arrival, with the verdict `early`, for applications that look
before the order is known. Such a process must have its publisher `observe` what was delivered, or
its replies may be ordered before the requests.

`mergers` are relays to request topics from, in place of the notification service (`relay`). All
of them are asked; an event that comes from several is delivered once.

While it is paused, due events are dropped as `overflow`: no event can be fetched later, and order
does not need any.

Order recovers from any fault in memory, as `merger` says. The inputs of the application do not:
the topics, and whether it is paused. After a fault there, events are dropped as `not_subscribed`
or `overflow` until the application subscribes or resumes again.

After a crash it joins its topics again; held events are lost. It requests its topics again
periodically: a request to leave that overtakes a request to join would cut it off.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from ensue.core.event import Event
from ensue.protocols.interface import (
    Alert,
    Attach,
    Deliver,
    Detach,
    Discard,
    Effect,
    Frame,
    Join,
    Leave,
    Persist,
    Refuse,
    Send,
)
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.merged.counts import MergedCounts, watch_for
from ensue.protocols.merged.merger import ACCEPTED, DUPLICATE, LATE, OVERFLOW, SKEWED, Held, Merger
from ensue.protocols.merged.terms import MergedTerms, terms_from
from ensue.protocols.merged.timestamps import index_of, timestamps_for
from ensue.protocols.topic_log.fanout import Declined
from ensue.protocols.topic_log.frames import Attached, AttachRequest, DetachRequest, Notify

__all__ = ["CORRUPT", "EARLY", "MISMATCHED", "MergedSubscriber"]

CORRUPT, EARLY, MISMATCHED = "corrupt", "early", "mismatched"
TOPIC = "topic/"


class MergedSubscriber:
    """One subscription. Commands: `subscribe`, `unsubscribe`, `acknowledge`.

    `records` is what an earlier run persisted. `terms` are those of its process, if it has a delta
    of its own.
    """

    def __init__(
        self,
        *,
        name: str,
        config: MergedConfig,
        eager: bool = False,
        mergers: tuple[str, ...] = (),
        terms: MergedTerms | None = None,
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.config = config
        self.eager = eager
        self._terms = terms or config.terms
        self._mismatched: dict[str, MergedTerms] = {}
        """Publishers that were reported, and their terms."""
        self.watch = watch_for(config)
        self.merger = Merger(config)
        self._kind = timestamps_for(config)
        self._mergers = mergers
        self._attaching: dict[str, int] = {}
        """Topics that are not attached yet, and when to repeat the request."""
        self._joined: dict[str, None] = {}
        self._decliners: dict[str, dict[str, None]] = {}
        """By topic: the relays that declined it."""
        self._poll_due_ns = 0
        self._seen_ns = now_ns
        """The last clock reading, an upper bound for timers after the clock went back."""
        self._remembered: OrderedDict[str, None] = OrderedDict()
        """Delivered events, latest last; used where events are delivered out of order."""
        self._remembers = eager or config.deliver_late
        self._delivered = 0
        self._paused = False
        self._effects: list[Effect] = []
        topics = [key.removeprefix(TOPIC) for key in records or () if key.startswith(TOPIC)]
        self._ask_for(topics, now_ns)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect."""
        return tuple(self._joined)

    @property
    def counts(self) -> MergedCounts:
        """Outcomes of the received events."""
        return self.watch.counts

    @property
    def held_count(self) -> int:
        """Number of held events."""
        return self.merger.held_count

    @property
    def leave_confirmed(self) -> bool:
        """True: leaving needs no answer."""
        return True

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Request topics; each takes effect with its `Join`."""
        new = [
            topic
            for topic in dict.fromkeys(topics)
            if topic not in self._attaching and topic not in self._joined
        ]
        if self.config.durable:
            self._effects += (Persist(TOPIC + topic, b"") for topic in new)
        self._ask_for(new, now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics, effective immediately; drop their held events."""
        del now_ns
        left: dict[str, None] = {}
        for topic in topics:
            joined = topic in self._joined
            if not joined and topic not in self._attaching:
                continue
            self._attaching.pop(topic, None)
            self._joined.pop(topic, None)
            self._decliners.pop(topic, None)
            left[topic] = None
            if self.config.durable:
                self._effects.append(Persist(TOPIC + topic, None))
            if self._mergers:
                self._effects += (
                    Send(merger, DetachRequest(topic=topic)) for merger in self._mergers
                )
            else:
                self._effects.append(Detach(topic))
            if joined:
                self._effects.append(Leave(topic))
        self._drop_held(left)

    def acknowledge(self, position: int) -> None:
        """Do nothing: no event is delivered again."""

    def pause(self) -> None:
        """Deliver nothing until `resume`; due events are dropped as `overflow`."""
        self._paused = True

    def resume(self, *, now_ns: int) -> None:
        """Resume deliveries with events that are due from now on."""
        self._advance(now_ns)
        self._paused = False

    def repeat(self, *, now_ns: int) -> None:
        """Request all topics again: the connection is new."""
        self._poll_due_ns = now_ns + self.config.poll_ns
        for topic in self._joined:
            self._attach(topic)
        self._ask_for(tuple(self._attaching), now_ns)

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a notification or an answer; ignore unexpected frames."""
        self._advance(now_ns)
        match frame:
            case Notify(event=event):
                self._notify(event, now_ns)
            case Attached(topic=topic):
                self._attached(topic, source, now_ns)
            case Declined(topic=topic, event="", reason=reason):
                self._declined(topic, source, reason)
            case _:
                pass

    def handle_timer(self, *, now_ns: int) -> None:
        """Deliver due events, and repeat requests for topics that are due."""
        self._advance(now_ns)
        self._ask_again(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due."""
        config, seen_ns = self.config, self._seen_ns
        due_ns = None
        if self._attaching:
            due_ns = min(*self._attaching.values(), seen_ns + config.retry_ns)
        if self._joined:
            poll_due_ns = min(self._poll_due_ns, seen_ns + config.poll_ns)
            due_ns = poll_due_ns if due_ns is None else min(due_ns, poll_due_ns)
        due_tick = self.merger.due_tick()
        if due_tick is None:
            return due_ns
        leave_ns = due_tick * config.tick_ns
        return leave_ns if due_ns is None else min(due_ns, leave_ns)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the pending effects."""
        effects, self._effects = self._effects, []
        return effects

    def _ask_for(self, topics: Iterable[str], now_ns: int) -> None:
        self._seen_ns = now_ns
        for topic in topics:
            self._attaching[topic] = now_ns + self.config.retry_ns
            self._attach(topic)

    def _ask_again(self, now_ns: int) -> None:
        """Repeat requests that are due, or were set before the clock went back."""
        retry_ns, poll_ns = self.config.retry_ns, self.config.poll_ns
        overdue = [
            topic
            for topic, due_ns in self._attaching.items()
            if not now_ns < due_ns <= now_ns + retry_ns
        ]
        self._ask_for(overdue, now_ns)
        if self._joined and not now_ns < self._poll_due_ns <= now_ns + poll_ns:
            self._poll_due_ns = now_ns + poll_ns
            for topic in self._joined:
                self._attach(topic)

    def _attach(self, topic: str) -> None:
        if self._mergers:
            request = AttachRequest(topic=topic, from_slot=0)
            self._effects += (Send(merger, request) for merger in self._mergers)
        else:
            self._effects.append(Attach(topic, 0))

    def _attached(self, topic: str, source: str, now_ns: int) -> None:
        if topic in self._decliners:
            self._decliners[topic].pop(source, None)
        if topic in self._attaching and (not self._mergers or source in self._mergers):
            del self._attaching[topic]
            if not self._joined:
                self._poll_due_ns = now_ns + self.config.poll_ns
            self._joined[topic] = None
            self._effects.append(Join(topic))

    def _declined(self, topic: str, source: str, reason: str) -> None:
        """Give up a declined topic; with several relays, when all have declined it."""
        joined = topic in self._joined
        if not joined and topic not in self._attaching:
            return
        if self._mergers:
            decliners = self._decliners.setdefault(topic, {})
            if source in self._mergers:
                decliners[source] = None
            if not all(merger in decliners for merger in self._mergers):
                return
        self._attaching.pop(topic, None)
        self._joined.pop(topic, None)
        self._decliners.pop(topic, None)
        if self.config.durable:
            self._effects.append(Persist(TOPIC + topic, None))
        if joined:
            self._effects.append(Leave(topic))
        self._drop_held({topic: None})
        self._effects.append(Refuse((topic,), reason))

    def _drop_held(self, topics: Mapping[str, None]) -> None:
        for event in self.merger.drop(lambda event: event.topic in topics):
            self._effects.append(Discard(event, "not_subscribed"))

    def _notify(self, event: Event, now_ns: int) -> None:
        counts = self.watch.counts
        counts.received += 1
        if event.topic not in self._joined or event.void:
            self._effects.append(Discard(event, "void" if event.void else "not_subscribed"))
            return
        tick = self.config.tick(now_ns)
        entries = {} if event.stamp is None else event.stamp.entries
        theirs = terms_from(entries)
        if theirs is not None and theirs != self._terms:
            self._mismatch(event.publisher, theirs)
            if not theirs.sorts_like(self._terms):
                self._effects.append(Discard(event, MISMATCHED))
                return
        timestamp = self._kind.from_entries(entries, tick)
        if timestamp is None or not self._kind.is_sound(timestamp):
            counts.corrupt += 1
            self._effects.append(Discard(event, CORRUPT))
            return
        self._effects += self.watch.arrived(event.publisher, timestamp.r, tick)
        if self.eager:
            self._deliver_out_of_order(event, EARLY)
            return
        if self._remembered and event.id in self._remembered:
            # It was delivered out of order, and would be in time for its place as well.
            counts.duplicate += 1
            self._effects.append(Discard(event, DUPLICATE))
            return
        key = (self._kind.key(timestamp), event.publisher, index_of(entries))
        verdict = self.merger.offer(Held(key, event, timestamp, now_ns), tick)
        if verdict in (LATE, SKEWED):
            self._refuse(event, verdict)
        elif verdict != ACCEPTED:
            counts.duplicate += verdict == DUPLICATE
            counts.overflow += verdict == OVERFLOW
            self._effects.append(Discard(event, verdict))

    def _mismatch(self, publisher: str, theirs: MergedTerms) -> None:
        """Count an event with other terms, and report its publisher once."""
        self.watch.counts.mismatched += 1
        known = self._mismatched.get(publisher)
        if known == theirs or (known is None and len(self._mismatched) >= self.config.peers_max):
            return
        self._mismatched[publisher] = theirs
        ours = str(self._terms)
        self._effects.append(Alert("terms", publisher, 0, 0, True, str(theirs), ours))

    def _advance(self, now_ns: int) -> None:
        self._seen_ns = now_ns
        leaving, overtaken = self.merger.advance(self.config.tick(now_ns))
        for held in self.merger.take_dropped():
            self._refuse(held.event, SKEWED)
        for held in leaving:
            if self._remembers:
                self._remember(held.event.id)
            if self._paused:
                self._overflow(held.event)
                continue
            self._delivered += 1
            self.watch.counts.delivered += 1
            self._effects.append(
                Deliver(held.event, self._delivered, "", max(0, now_ns - held.received_ns))
            )
        for held in overtaken:
            self._refuse(held.event, LATE)

    def _refuse(self, event: Event, verdict: str) -> None:
        if self.config.deliver_late and not self._deliver_out_of_order(event, verdict):
            return
        if verdict == LATE:
            self.watch.counts.late += 1
        else:
            self.watch.counts.skewed += 1
        if not self.config.deliver_late:
            self._effects.append(Discard(event, verdict))

    def _deliver_out_of_order(self, event: Event, verdict: str) -> bool:
        """Deliver an event at once; return False if it was delivered before or has no room."""
        if event.id in self._remembered:
            self.watch.counts.duplicate += 1
            self._effects.append(Discard(event, DUPLICATE))
            return False
        self._remember(event.id)
        if self._paused:
            self._overflow(event)
            return False
        self._delivered += 1
        self._effects.append(Deliver(event, self._delivered, verdict))
        return True

    def _overflow(self, event: Event) -> None:
        self.watch.counts.overflow += 1
        self._effects.append(Discard(event, OVERFLOW))

    def _remember(self, event_id: str) -> None:
        self._remembered[event_id] = None
        if len(self._remembered) > self.config.remembered_max:
            self._remembered.popitem(last=False)
