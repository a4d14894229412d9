"""A merged publisher: stamps its events by its own clock, without asking another process.

An event has a larger timestamp than everything its process published, observed or delivered
before. It is sent as soon as it is stamped: order needs no answer. Where the carrier answers all
the same (`answered`), the answer settles the event, and an unanswered event is retransmitted
unchanged: receivers drop it as a duplicate or as late. With a modulus a late copy would look new,
so `answered` excludes a modulus.

Where messages get lost (`retry_ns_min`), the wait for an answer follows the measured round trips
(`ensue.protocols.shared.round_trips`): a copy that arrives within delta is delivered in its place,
as if nothing had been lost. Over connections the wait is `poll_ns`.

Events delivered in order need no `observe`: by then this clock is beyond anything they can know
of. What a process learns earlier or otherwise, as from an unordered subscription or outside of
Ensue, is passed to `observe`; `token` is what to send along, so that a process that observes it
comes after.

Start. A publisher does not know what an earlier run, or its application, has seen. So it stamps
nothing for epsilon + 1 ticks; then all of that is in the past. Events published meanwhile wait.
So do events beyond `events_per_tick_max`, until the next tick.

All processes share the bounds (`terms`). With `fanouts` the publisher agrees on them with the
other clients, and `Resumed` reports agreement; with `stamps_terms` its stamps carry them.

It persists the numbers of its events, so that a restart does not reuse them, but no timestamps.

HAZARD: an event is stamped when it is published and sent when its number is persisted. Disk
latency counts as delay, and has to be part of delta.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from ensue.core.errors import BadInput, ConfigurationError, LimitReached, LocalProtocolError
from ensue.core.event import Event, Stamp
from ensue.core.wire import Records
from ensue.protocols.interface import Broadcast, Effect, Frame, Persist, Publish, Settle
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.merged.terms import TermsClient
from ensue.protocols.merged.timestamps import INDEX, Timeline, timestamps_for, topic_refusal
from ensue.protocols.shared.event_numbers import EventNumbers
from ensue.protocols.shared.round_trips import RoundTrips
from ensue.protocols.topic_log.fanout import Agreed, Declined
from ensue.protocols.topic_log.frames import Accepted

__all__ = ["MergedPublisher"]

SEQUENCE = "sequence/"
_NUMBER = Records[int](int)


class Unanswered:
    """An event that was sent, and not answered yet."""

    __slots__ = ("due_ns", "event", "sent_ns", "wait_ns")

    def __init__(self, event: Event, now_ns: int, wait_ns: int) -> None:
        self.event = event
        self.sent_ns: int | None = now_ns
        """When it was sent; None if that was more than once."""
        self.wait_ns = wait_ns
        self.due_ns = now_ns + wait_ns
        """When to retransmit it."""

    def sent_again(self, now_ns: int, wait_ns: int) -> None:
        """Note that it was retransmitted."""
        self.sent_ns, self.wait_ns, self.due_ns = None, wait_ns, now_ns + wait_ns


class MergedPublisher:
    """One publisher. Commands: `publish`, `publish_together`, `observe`, `token`.

    `records` is what an earlier run persisted.
    """

    def __init__(
        self,
        *,
        name: str,
        config: MergedConfig,
        answered: bool = False,
        fanouts: tuple[str, ...] = (),
        stamps_terms: bool = False,
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        if answered and config.modulus is not None:
            raise ConfigurationError(
                "a publisher that retransmits cannot use a modulus, or a late copy would look new: "
                "give modulus=None"
            )
        self.name = name
        self.config = config
        self.timeline = Timeline(timestamps_for(config))
        self._answered = answered
        self._stamped_terms = config.terms.to_entries() if stamps_terms else {}
        self._terms = TermsClient(config.terms, fanouts, retry_ns=config.retry_ns, now_ns=now_ns)
        self._unanswered: dict[str, Unanswered] = {}
        """By id."""
        self._retransmit_ns = now_ns
        """None of these is retransmitted before."""
        self._round_trips = RoundTrips(
            initial_ns=config.poll_ns, least_ns=config.retry_ns_min, most_ns=config.poll_ns
        )
        self._numbers = EventNumbers(name)
        self._ready_tick = config.tick(now_ns) + config.epsilon_ticks + 1
        self._waiting: deque[tuple[Event, ...]] = deque()
        """Events that wait to be stamped, grouped by send."""
        self._waiting_count = 0
        """Number of waiting events, unless a fault changed it: read for every event."""
        self._seen_ns = now_ns
        """The last clock reading, an upper bound for timers after the clock went back."""
        self._busy_tick = -1
        self._busy_count = 0
        """Number of sends stamped in that tick."""
        self._effects: list[Effect] = []
        for key, value in (records or {}).items():
            self._numbers.last[key.removeprefix(SEQUENCE)] = _NUMBER.decode(value)

    @property
    def unsettled_count(self) -> int:
        """Number of events that are not stamped or not answered."""
        return self._count_waiting() + len(self._unanswered)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        now_ns: int,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Event:
        """Publish an event; it is returned without its stamp, which comes with `Settle`."""
        (event,) = self.publish_together(((topic, payload, key, headers),), now_ns=now_ns)
        return event

    def publish_together(
        self,
        items: Sequence[tuple[str, bytes, bytes | None, Mapping[str, str] | None]],
        *,
        now_ns: int,
    ) -> tuple[Event, ...]:
        """Publish events with one timestamp; each is topic, payload, key, headers."""
        for topic, *_ in items:
            if (why := topic_refusal(topic)) is not None:
                raise BadInput(why)
        if self._waiting_count + len(items) > self.config.outgoing_max:
            self._waiting_count = self._count_waiting()  # A fault may have changed it.
        if self._waiting_count + len(items) > self.config.outgoing_max:
            raise LimitReached(
                f"{self.name} has {self._waiting_count} events that wait to be stamped "
                "(outgoing_max): publish again in a while",
                limit="outgoing_max",
                value=self.config.outgoing_max,
            )
        events = tuple(
            self._numbers.make(topic, payload, now_ns=now_ns, key=key, headers=headers)
            for topic, payload, key, headers in items
        )
        if self.config.durable:
            for topic in dict.fromkeys(event.topic for event in events):
                number = _NUMBER.encode(self._numbers.last[topic])
                self._effects.append(Persist(SEQUENCE + topic, number))
        if events:
            self._waiting.append(events)
            self._waiting_count += len(events)
            self._stamp_waiting(now_ns)
        return events

    def observe(self, entries: Mapping[str, int], *, now_ns: int) -> bool:
        """Order all later events of this publisher after a stamp or token.

        Return False if it is refused: no clock within its bound can have made it.
        """
        tick = self.config.tick(now_ns)
        kind = self.timeline.kind
        heard = kind.from_entries(entries, tick)
        if heard is None or not kind.is_possible(heard):
            return False
        if heard.r + heard.c > tick + self.config.epsilon_ticks:
            return False
        self.timeline.learn(tick, heard)
        return True

    def token(self, *, now_ns: int) -> dict[str, int]:
        """Return a token for everything published and observed so far.

        Raise while a published event waits for its stamp: no token can stand for it.
        """
        if self._waiting:
            raise LocalProtocolError(
                f"{self.name} has published events without a stamp, which no token can cover: "
                "flush first, then ask for the token"
            )
        return self.timeline.kind.to_entries(self.timeline.known(self.config.tick(now_ns)))

    def say_goodbye(self) -> None:
        """Withdraw the terms; no other process keeps state of this publisher."""
        self._terms.withdraw()

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Settle answered events."""
        match frame:
            case Agreed():
                self._terms.receive(frame, source)
            case Accepted(event=event_id) if event_id in self._unanswered:
                answered = self._unanswered.pop(event_id)
                if answered.sent_ns is not None:
                    self._round_trips.sample(now_ns - answered.sent_ns)
                self._effects.append(Settle(answered.event, ""))
            case Declined(event=event_id, reason=reason) if event_id in self._unanswered:
                refused = self._unanswered.pop(event_id)
                self._effects.append(Settle(refused.event, "void", reason))
            case _:
                pass

    def repeat(self, *, now_ns: int) -> None:
        """Retransmit unanswered events now: the connection is new."""
        self._seen_ns = now_ns
        self._terms.repeat(now_ns)
        self._round_trips.reset()
        for each in self._unanswered.values():
            each.sent_again(now_ns, self._round_trips.timeout_ns)
            self._effects.append(Broadcast(each.event))
        self._note_due(now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Stamp waiting events, and retransmit unanswered ones that are due."""
        self._stamp_waiting(now_ns)
        self._terms.handle_timer(now_ns)
        if self._unanswered and not self._is_ahead(self._retransmit_ns, now_ns):
            for each in self._unanswered.values():
                if not self._is_ahead(each.due_ns, now_ns):
                    each.sent_again(now_ns, self._round_trips.after(each.wait_ns))
                    self._effects.append(Broadcast(each.event))
            self._note_due(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due."""
        config, seen_ns = self.config, self._seen_ns
        due_ns = None
        if self._unanswered:
            due_ns = min(self._retransmit_ns, seen_ns + config.poll_ns)
        ask_ns = self._terms.next_timer_ns()
        if ask_ns is not None:
            due_ns = ask_ns if due_ns is None else min(due_ns, ask_ns)
        if not self._waiting:
            return due_ns
        last_tick = config.tick(seen_ns) + config.epsilon_ticks + 1
        ready_ns = min(max(self._ready_tick, self._busy_tick + 1), last_tick) * config.tick_ns
        return ready_ns if due_ns is None else min(due_ns, ready_ns)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the pending effects."""
        effects, self._effects = self._effects, []
        if self._terms.effects:
            effects += self._terms.effects
            self._terms.effects = []
        return effects

    def _is_ahead(self, due_ns: int, now_ns: int) -> bool:
        """Return whether a time to retransmit is to come.

        One further ahead than the longest wait is from before the clock went back.
        """
        return now_ns < due_ns <= now_ns + self.config.poll_ns

    def _note_due(self, now_ns: int) -> None:
        """Note when the first event is to be retransmitted."""
        dues = (each.due_ns for each in self._unanswered.values())
        self._retransmit_ns = min(dues, default=now_ns)

    def _count_waiting(self) -> int:
        return sum(map(len, self._waiting))

    def _stamp_waiting(self, now_ns: int) -> None:
        self._seen_ns = now_ns
        tick = self.config.tick(now_ns)
        # After a clock went back, wait no longer than after a restart.
        self._ready_tick = min(self._ready_tick, tick + self.config.epsilon_ticks + 1)
        if tick < self._ready_tick:
            return
        if tick != self._busy_tick:
            self._busy_tick, self._busy_count = tick, 0
        while self._waiting and self._busy_count < self.config.events_per_tick_max:
            self._busy_count += 1
            self._send(self._waiting.popleft(), tick, now_ns)
        if not self._waiting:
            self._waiting_count = 0

    def _send(self, events: tuple[Event, ...], tick: int, now_ns: int) -> None:
        self._waiting_count -= len(events)
        timeline = self.timeline
        entries = timeline.kind.to_entries(timeline.event(tick))
        if self._stamped_terms:
            entries |= self._stamped_terms
        for index, event in enumerate(events):
            stamp = Stamp(entries if index == 0 else {**entries, INDEX: index})
            stamped = msgspec.structs.replace(event, stamp=stamp, published_at_ns=now_ns)
            self._effects += (Publish(stamped), Broadcast(stamped))
            if self._answered:
                sent = Unanswered(stamped, now_ns, self._round_trips.timeout_ns)
                first = not self._unanswered or sent.due_ns < self._retransmit_ns
                self._retransmit_ns = sent.due_ns if first else self._retransmit_ns
                self._unanswered[stamped.id] = sent
            else:
                self._effects.append(Settle(stamped, ""))
