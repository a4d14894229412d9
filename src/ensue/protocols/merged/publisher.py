"""A publisher of merged order: it stamps what it publishes by its own clock, and asks nobody.

What it guarantees: an event has a larger timestamp than everything its process published, heard of or was handed before it.
It is on its way as soon as it is stamped: order needs no answer. Where whoever carries it answers all the same (`answered`), that settles it, and what
is not answered is sent again as it is: a copy is dropped by those who have it, and late for those whose time for it is over. With
a modulus it would look new to them, so the two don't go together.

What a process was handed in its turn needs no word here: by then its clock is beyond anything that event can know of. What it learns
earlier or otherwise, as from a subscription without order or from a peer outside of Ensue, is told by `observe`; `token` is
what to send along, so that whoever observes it comes after everything before it.

Starting: it knows nothing of what an earlier incarnation, or its application before it was made, has seen. So it stamps nothing for epsilon + 1 ticks;
then all of that is in the past. What is published meanwhile waits. The same holds for whatever exceeds `events_per_tick_max`, until the next tick.

Its bounds are those of all others (`terms`). With `exchanges` it agrees on them with everybody else there, and `Resumed` says that it has; with `tells_terms` its
stamps carry them.

It persists the numbers of its events, so that a restarted one does not give them again. Its timestamps are not persisted.

HAZARD: an event is stamped when it is published and sent when its number is safe. A disk that takes long counts as
delay, and has to be part of delta.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from ensue.errors import BadInput, ConfigurationError, LimitReached, LocalProtocolError
from ensue.event import Event, Stamp
from ensue.protocols.core import Broadcast, Effect, Frame, Persist, Publish, Settle
from ensue.protocols.ens import Accepted
from ensue.protocols.exchange import Agreed, Declined
from ensue.protocols.merge.config import MergeConfig
from ensue.protocols.merge.terms import TermsClient
from ensue.protocols.merge.timestamps import INDEX, MARK, Timeline, timestamps_for
from ensue.protocols.numbering import EventNumbers
from ensue.wire import Records

__all__ = ["MergePublisher"]

SEQUENCE = "sequence/"
_NUMBER = Records[int](int)


class MergePublisher:
    """One publisher. Commands: `publish`, `publish_together`, `observe`, `token`.

    `records` is what an earlier incarnation persisted.
    """

    def __init__(
        self,
        *,
        name: str,
        config: MergeConfig,
        answered: bool = False,
        exchanges: tuple[str, ...] = (),
        tells_terms: bool = False,
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        if answered and config.modulus is not None:
            raise ConfigurationError(
                "a publisher that sends again what is not answered needs whole clock readings: "
                "give modulus=None, or a late copy would look like a new event"
            )
        self.name = name
        self.config = config
        self.timeline = Timeline(timestamps_for(config))
        self._answered = answered
        self._told_terms = config.terms.to_entries() if tells_terms else {}
        self._terms = TermsClient(config.terms, exchanges, retry_ns=config.retry_ns, now_ns=now_ns)
        self._unanswered: dict[str, tuple[int, Event]] = {}
        """By id: when to send it again, and the event, in the order they are due."""
        self._numbers = EventNumbers(name)
        self._ready_tick = config.tick(now_ns) + config.epsilon_ticks + 1
        self._waiting: deque[tuple[Event, ...]] = deque()
        """Events that may not be stamped yet, those together that are sent together."""
        self._waiting_count = 0
        """How many they are, as long as nothing has gone wrong: looked at for every event."""
        self._seen_ns = now_ns
        """What the clock showed last: no timer is further ahead of it than it can have been set."""
        self._busy_tick = -1
        self._busy_count = 0
        """How many events were made in that tick."""
        self._effects: list[Effect] = []
        for key, value in (records or {}).items():
            self._numbers.last[key.removeprefix(SEQUENCE)] = _NUMBER.decode(value)

    @property
    def unsettled_count(self) -> int:
        """How many events are not stamped yet, or not answered."""
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
        """Publish an event. It is returned without its stamp, which comes with `Settle`."""
        (event,) = self.publish_together(((topic, payload, key, headers),), now_ns=now_ns)
        return event

    def publish_together(
        self,
        items: Sequence[tuple[str, bytes, bytes | None, Mapping[str, str] | None]],
        *,
        now_ns: int,
    ) -> tuple[Event, ...]:
        """Publish several events as one: nothing comes between them but what was sent by others.

        Each is topic, payload, key and headers.
        """
        for topic, *_ in items:
            if topic.startswith(MARK):
                raise BadInput(f"a topic of merged order does not begin with {MARK!r}: {topic!r}")
        if self._waiting_count + len(items) > self.config.outgoing_max:
            self._waiting_count = self._count_waiting()  # It may be wrong.
        if self._waiting_count + len(items) > self.config.outgoing_max:
            raise LimitReached(
                f"{self.name} has {self._waiting_count} events that may not be stamped yet "
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
        """Learn of a stamp or a token: whatever is published from now on comes after it.

        False: it was refused, because nobody whose clock is within its bound can have made it.
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
        """Return what stands for all that was published and observed so far, to be observed elsewhere.

        Refused while something published waits for its stamp: nobody knows yet what would come after it.
        """
        if self._waiting:
            raise LocalProtocolError(
                f"{self.name} has published events that are not stamped yet, and no token can stand "
                "for them: flush first, then ask for the token"
            )
        return self.timeline.kind.to_entries(self.timeline.known(self.config.tick(now_ns)))

    def say_goodbye(self) -> None:
        """Hold nobody to the own terms any more; nobody else remembers this publisher."""
        self._terms.withdraw()

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Settle what is answered; elsewhere nobody has to answer a publisher."""
        del now_ns
        match frame:
            case Agreed():
                self._terms.receive(frame, source)
            case Accepted(event=event_id) if event_id in self._unanswered:
                self._effects.append(Settle(self._unanswered.pop(event_id)[1], ""))
            case Declined(event=event_id, reason=reason) if event_id in self._unanswered:
                self._effects.append(Settle(self._unanswered.pop(event_id)[1], "void", reason))
            case _:
                pass

    def repeat(self, *, now_ns: int) -> None:
        """Send again what is not answered: the connection is new."""
        self._seen_ns = now_ns
        self._terms.repeat(now_ns)
        for event_id, (_, event) in list(self._unanswered.items()):
            self._unanswered[event_id] = (now_ns + self.config.poll_ns, event)
            self._effects.append(Broadcast(event))

    def handle_timer(self, *, now_ns: int) -> None:
        """Stamp what had to wait, and send again what was not answered in time."""
        self._stamp_waiting(now_ns)
        self._terms.handle_timer(now_ns)
        for event_id, (due_ns, event) in list(self._unanswered.items()):
            if now_ns < due_ns <= now_ns + self.config.poll_ns:
                break  # Those further ahead were due by a clock that has gone back since.
            del self._unanswered[event_id]
            self._unanswered[event_id] = (now_ns + self.config.poll_ns, event)
            self._effects.append(Broadcast(event))

    def next_timer_ns(self) -> int | None:
        """Return when what waits may be stamped, or sent again."""
        config, seen_ns = self.config, self._seen_ns
        due_ns = next((due_ns for due_ns, _ in self._unanswered.values()), None)
        if due_ns is not None:
            due_ns = min(due_ns, seen_ns + config.poll_ns)
        ask_ns = self._terms.next_timer_ns()
        if ask_ns is not None:
            due_ns = ask_ns if due_ns is None else min(due_ns, ask_ns)
        if not self._waiting:
            return due_ns
        last_tick = config.tick(seen_ns) + config.epsilon_ticks + 1
        ready_ns = min(max(self._ready_tick, self._busy_tick + 1), last_tick) * config.tick_ns
        return ready_ns if due_ns is None else min(due_ns, ready_ns)

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects, self._effects = self._effects, []
        if self._terms.effects:
            effects += self._terms.effects
            self._terms.effects = []
        return effects

    def _count_waiting(self) -> int:
        return sum(map(len, self._waiting))

    def _stamp_waiting(self, now_ns: int) -> None:
        self._seen_ns = now_ns
        tick = self.config.tick(now_ns)
        # A clock that went back must not keep anybody waiting for longer than a restart would.
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
        if self._told_terms:
            entries |= self._told_terms
        for index, event in enumerate(events):
            stamp = Stamp(entries if index == 0 else {**entries, INDEX: index})
            stamped = msgspec.structs.replace(event, stamp=stamp, published_at_ns=now_ns)
            self._effects += (Publish(stamped), Broadcast(stamped))
            if self._answered:
                self._unanswered[stamped.id] = (now_ns + self.config.poll_ns, stamped)
            else:
                self._effects.append(Settle(stamped, ""))
