"""A subscriber of merged order: it sorts what comes by the stamps alone.

What it guarantees, and why, is said in `merger`. Here is what becomes of the rest:

- an event that comes too late, or whose stamp is from the future, is dropped as `late` or `skewed`; with `deliver_late` it is handed out at once
  with that verdict instead, once, and not in its turn besides; what is held when this clock goes back may be `skewed` from then on;
- a stamp that nobody can have made is dropped as `corrupt`, a second copy as `duplicate`;
- an event whose stamp carries another tick or epsilon than this process has can't be sorted, and is dropped as `mismatched`. Another delta has no part in the
  order: the event is taken. Both are told once for each publisher (`Alert`).

All are counted (`counts`), and what the messages show of other clocks and of delays is measured (`watch`).

`eager` hands everything out as it comes, with the verdict `early`: for whoever wants to look before the order is known. Its process must
have its publisher `observe` what it was handed, or its answers may be ordered before the questions.

`mergers` are relays to be asked for topics in place of the notification service: see `relay`. All of them are asked; what comes
from several of them is handed out once.

While it is paused, what would leave is dropped as `overflow`: nothing can be had again later, and order needs nobody to wait.

Order recovers from any fault in memory, as `merger` says. What the application wants does not: which topics, and whether it is paused, are inputs, and nobody else knows them. After a fault
there events are dropped as `not_subscribed` or `overflow` until it subscribes, or resumes, again.

After a crash it joins its topics again. What was held is lost. It asks for its topics again now and then, in case that whoever carries them
has forgotten: a request to leave that was overtaken by one to join again would leave it deaf.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from ensue.event import Event
from ensue.protocols.core import (
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
from ensue.protocols.ens import Attached, AttachRequest, DetachRequest, Notify
from ensue.protocols.exchange import Declined
from ensue.protocols.merge.config import MergeConfig
from ensue.protocols.merge.merger import ACCEPTED, DUPLICATE, LATE, OVERFLOW, SKEWED, Held, Merger
from ensue.protocols.merge.terms import MergeTerms, terms_from
from ensue.protocols.merge.timestamps import index_of, timestamps_for
from ensue.protocols.merge.watching import MergeCounts, watch_for

__all__ = ["CORRUPT", "EARLY", "MISMATCHED", "MergeSubscriber"]

CORRUPT, EARLY, MISMATCHED = "corrupt", "early", "mismatched"
TOPIC = "topic/"


class MergeSubscriber:
    """One subscription. Commands: `subscribe`, `unsubscribe`, `acknowledge`.

    `records` is what an earlier incarnation persisted. `terms` are those of its process, if it has a delta of its own.
    """

    def __init__(
        self,
        *,
        name: str,
        config: MergeConfig,
        eager: bool = False,
        mergers: tuple[str, ...] = (),
        terms: MergeTerms | None = None,
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.config = config
        self.eager = eager
        self._terms = terms or config.terms
        self._mismatched: dict[str, MergeTerms] = {}
        """Publishers that were told of, and their terms."""
        self.watch = watch_for(config)
        self.merger = Merger(config)
        self._kind = timestamps_for(config)
        self._mergers = mergers
        self._attaching: dict[str, int] = {}
        """Topics that nobody has attached yet, and when to ask again."""
        self._joined: dict[str, None] = {}
        self._decliners: dict[str, dict[str, None]] = {}
        """By topic: the mergers that do not let this process have it."""
        self._poll_due_ns = 0
        self._seen_ns = now_ns
        """What the clock showed last: no timer is further ahead of it than it can have been set."""
        self._remembered: OrderedDict[str, None] = OrderedDict()
        """Events that were handed out, the latest last, where one may come out of turn."""
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
    def counts(self) -> MergeCounts:
        """What became of the events that came."""
        return self.watch.counts

    @property
    def held_count(self) -> int:
        """How many events wait for their turn."""
        return self.merger.held_count

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Ask for topics; each takes effect with its `Join`."""
        new = [
            topic
            for topic in dict.fromkeys(topics)
            if topic not in self._attaching and topic not in self._joined
        ]
        if self.config.durable:
            self._effects += (Persist(TOPIC + topic, b"") for topic in new)
        self._ask_for(new, now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics, at once; what is held of them is dropped."""
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
        """Do nothing: nothing is delivered again."""

    def pause(self) -> None:
        """Deliver nothing until `resume`: there is no room."""
        self._paused = True

    def resume(self, *, now_ns: int) -> None:
        """Deliver again what is due from now on."""
        self._advance(now_ns)
        self._paused = False

    def repeat(self, *, now_ns: int) -> None:
        """Ask for all topics again: the connection is new."""
        self._poll_due_ns = now_ns + self.config.poll_ns
        for topic in self._joined:
            self._attach(topic)
        self._ask_for(tuple(self._attaching), now_ns)

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a notification or an answer."""
        self._advance(now_ns)
        match frame:
            case Notify(event=event):
                self._notify(event, now_ns)
            case Attached(topic=topic):
                self._attached(topic, source, now_ns)
            case Declined(topic=topic, event="", reason=reason):
                self._declined(topic, source, reason)
            case _:
                pass  # Not for a subscriber: a stray frame changes nothing.

    def handle_timer(self, *, now_ns: int) -> None:
        """Hand out what is due, and ask again for topics that were not attached in time."""
        self._advance(now_ns)
        self._ask_again(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when something is due, or to be asked for again."""
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
        """Drain what is to be done."""
        effects, self._effects = self._effects, []
        return effects

    def _ask_for(self, topics: Iterable[str], now_ns: int) -> None:
        self._seen_ns = now_ns
        for topic in topics:
            self._attaching[topic] = now_ns + self.config.retry_ns
            self._attach(topic)

    def _ask_again(self, now_ns: int) -> None:
        """Ask for what is overdue; or due so late that the clock must have gone back since."""
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
        """Give a topic up that whoever carries it does not let this process have: of several mergers, all of them."""
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
            self._hand_out_of_turn(event, EARLY)
            return
        if self._remembered and event.id in self._remembered:
            # Handed out of its turn before, it would be in time for its turn as well.
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

    def _mismatch(self, publisher: str, theirs: MergeTerms) -> None:
        """Count an event of other terms, and tell of its publisher once."""
        self.watch.counts.mismatched += 1
        told = self._mismatched.get(publisher)
        if told == theirs or (told is None and len(self._mismatched) >= self.config.peers_max):
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
        if self.config.deliver_late and not self._hand_out_of_turn(event, verdict):
            return
        if verdict == LATE:
            self.watch.counts.late += 1
        else:
            self.watch.counts.skewed += 1
        if not self.config.deliver_late:
            self._effects.append(Discard(event, verdict))

    def _hand_out_of_turn(self, event: Event, verdict: str) -> bool:
        """Deliver an event at once; False if it was handed out before."""
        if event.id in self._remembered:
            self.watch.counts.duplicate += 1
            self._effects.append(Discard(event, DUPLICATE))
            return False
        self._remember(event.id)
        if self._paused:
            self._overflow(event)
            return True
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
