"""A deadline broker: publish, deliver events of its groups, push to subscribers.

The theory of operation is in the package docstring.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from ensue.core.errors import LimitReached
from ensue.core.event import CLOCK, DEADLINE, Event, Stamp
from ensue.core.wire import Records
from ensue.protocols.deadline.broker_push import BrokerPush
from ensue.protocols.deadline.causality import ACCEPTED, LATE, OVERFLOW, Causality, Sent
from ensue.protocols.deadline.codec import Codec
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.delivery import DeadlineCounts, Delivery
from ensue.protocols.deadline.frames import Groups, Message, Noted, Request, Row, Summary
from ensue.protocols.deadline.membership import Membership
from ensue.protocols.deadline.partial_views import Picker
from ensue.protocols.deadline.records import STATES, State
from ensue.protocols.deadline.repair import Repair
from ensue.protocols.deadline.rounds import BEFORE_JOIN, NOT_SUBSCRIBED
from ensue.protocols.interface import Effect, Frame, Join, Leave, Persist, Publish, Send, Settle
from ensue.protocols.shared.event_numbers import EventNumbers

__all__ = ["DeadlineBroker"]

SEQUENCE, TOPIC, STATE, VERSION = "sequence/", "topic/", "state", "version"
_NUMBER = Records[int](int)


def _always(_topic: str) -> bool:
    return True


class DeadlineBroker:
    """One broker.

    `names` are all brokers in the order of their numbers; `name` is this one, and `gone` are the
    numbers of those that left permanently. `rows` is what is known of other brokers' groups from
    the start. `records` is what an earlier run persisted. `relayed` says whether messages go over a
    relay, which seals what copies of them may say. `may_publish` returns whether events of a topic
    may be sent yet; later events wait too.
    """

    def __init__(
        self,
        *,
        name: str,
        names: Sequence[str],
        config: DeadlineConfig,
        site: str = "",
        gone: Iterable[int] = (),
        rows: Iterable[Row] = (),
        records: Mapping[str, bytes] | None = None,
        relayed: bool = False,
        may_publish: Callable[[str], bool] = _always,
        now_ns: int = 0,
    ) -> None:
        records = records or {}
        self.name = name
        self.config = config
        self._names = list(names)
        self._numbers_of = {each: number for number, each in enumerate(self._names)}
        self.number = self._numbers_of[name]
        self._delivery = Delivery(config)
        self._numbers = EventNumbers(name)
        version = _NUMBER.decode(records[VERSION]) if VERSION in records else 0
        self._membership = Membership(self.number, self._names, config.retry_ns, version, now_ns)
        for number in gone:
            self._membership.dismiss(number)
        for row in rows:
            self._membership.put(row)
        state = STATES.decode(records[STATE]) if STATE in records else State({}, 0, 0, (0, 0))
        self._earlier = dict(state.settled)
        """By source: the last message that an earlier run delivered or gave up."""
        self._causality = Causality(self.number, config, state.settled)
        self._causality.highest = max(self._causality.highest, state.highest)
        self._causality.latest_deadline_ns = state.deadline_ns
        self._push = BrokerPush(
            name, self.number, site, config, state.rounds, self._delivery, self._membership
        )
        self._repair = Repair(config, Picker(name, salt=1))
        self._codec = Codec(self.number, config)
        self._outgoing: deque[tuple[Event, int]] = deque()
        """Events that wait to be sent, with their lifetimes."""
        self._ready_ns = self._silent_until_ns(state, now_ns) if STATE in records else now_ns
        self._joined: dict[str, None] = {}
        self._joining: dict[str, int] = {}
        """Groups that not all brokers have noted, and until when to wait for them."""
        self._changed = False
        self._paused = False
        self._relayed = relayed
        self._may_publish = may_publish
        for key, value in records.items():
            if key.startswith(SEQUENCE):
                self._numbers.last[key.removeprefix(SEQUENCE)] = _NUMBER.decode(value)
        topics = [key.removeprefix(TOPIC) for key in records if key.startswith(TOPIC)]
        if topics:
            self.subscribe(topics, now_ns=now_ns)
        self._delivery.effects += self._membership.announce(now_ns)

    # -- Properties -----------------------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        """The groups in effect."""
        return tuple(self._joined)

    @property
    def counts(self) -> DeadlineCounts:
        """Outcomes of the received events."""
        return self._delivery.counts

    @property
    def held_count(self) -> int:
        """Number of received events that wait for their predecessors."""
        return len(self._causality.waiting)

    @property
    def unsettled_count(self) -> int:
        """Number of published events that are not sent."""
        return len(self._outgoing)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The groups of each broker, as far as this one knows; its own first."""
        return (self._membership.row, *self._membership.rows.values())

    @property
    def effects(self) -> list[Effect]:
        """The pending effects."""
        return self._delivery.effects

    def number_of(self, name: str) -> int | None:
        """Return the number of a broker; None if it is unknown."""
        return self._numbers_of.get(name)

    def all_noted(self) -> bool:
        """Return whether all brokers have noted the groups of this one."""
        return self._membership.all_noted()

    # -- Commands -------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        now_ns: int,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        lifetime_ns: int | None = None,
    ) -> Event:
        """Publish an event with a lifetime; the returned event has no stamp yet."""
        config = self.config
        if len(self._outgoing) >= config.outgoing_max:
            raise LimitReached(
                f"{self.name} has {config.outgoing_max} events that wait to be sent "
                "(outgoing_max): publish again in a while",
                limit="outgoing_max",
                value=config.outgoing_max,
            )
        if config.spreads:
            self._push.check_room(now_ns)
        lifetime = config.lifetime_ns if lifetime_ns is None else lifetime_ns
        event = self._numbers.make(topic, payload, now_ns=now_ns, key=key, headers=headers)
        if config.durable:
            number = _NUMBER.encode(self._numbers.last[topic])
            self._delivery.effects.append(Persist(SEQUENCE + topic, number))
        self._outgoing.append((event, min(lifetime, config.lifetime_ns_max)))
        self.advance(now_ns=now_ns)
        return event

    def reject(
        self,
        topic: str,
        payload: bytes,
        reason: str,
        *,
        now_ns: int,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Event:
        """Give an event its number and settle it as void."""
        event = self._numbers.make(topic, payload, now_ns=now_ns, key=key, headers=headers)
        self.effects.append(Settle(event, "void", reason))
        return event

    def refuse(self, topic: str, reason: str, *, now_ns: int) -> None:
        """Settle all events of a topic that wait to be sent as void."""
        for event, _ in self._outgoing:
            if event.topic == topic:
                self.effects.append(Settle(event, "void", reason))
        self._outgoing = deque(each for each in self._outgoing if each[0].topic != topic)
        self.advance(now_ns=now_ns)

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Join groups; each takes effect with its `Join`."""
        new = [
            topic
            for topic in dict.fromkeys(topics)
            if topic not in self._joined and topic not in self._joining
        ]
        if not new:
            return
        self._joining.update(dict.fromkeys(new, now_ns + self.config.join_ns))
        if self.config.durable:
            self._delivery.effects += (Persist(TOPIC + topic, b"") for topic in new)
        self._change_groups(now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave groups, effective immediately."""
        left = [each for each in topics if each in self._joined or each in self._joining]
        for topic in left:
            self._joining.pop(topic, None)
            if self.config.durable:
                self._delivery.effects.append(Persist(TOPIC + topic, None))
            if topic in self._joined:
                del self._joined[topic]
                self._delivery.effects.append(Leave(topic))
        if left:
            self._change_groups(now_ns)

    def acknowledge(self, position: int) -> None:
        """Do nothing: no event is delivered again."""

    def pause(self) -> None:
        """Deliver nothing until `resume`."""
        self._paused = True

    def resume(self, *, now_ns: int) -> None:
        """Resume deliveries; drop expired events as `overflow`."""
        self._deliver_ready(now_ns)
        self._paused = False
        self.advance(now_ns=now_ns)

    def admit(self, name: str, *, now_ns: int) -> None:
        """Give the next number to a new broker."""
        self._numbers_of[name] = len(self._names)
        self._names.append(name)
        self._membership.admit(self._numbers_of[name], now_ns)
        self.advance(now_ns=now_ns)

    def dismiss(self, name: str, *, now_ns: int) -> None:
        """Remove a broker that left permanently."""
        self._membership.dismiss(self._numbers_of[name])
        self.advance(now_ns=now_ns)

    def say_goodbye(self) -> None:
        """Do nothing: the owner of the brokers calls `dismiss`."""

    def repeat(self, *, now_ns: int) -> None:
        """Repeat announcements of groups now: the connection is new."""
        self._membership.repeat(now_ns)
        self.advance(now_ns=now_ns)

    # -- Driven from outside --------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame of another broker or of a subscriber."""
        if self._causality.waiting:
            self._deliver_ready(now_ns)  # Due deliveries go before this frame.
        peer = self._numbers_of.get(source)
        if peer is not None:
            self._receive(frame, peer, now_ns)
        else:
            self._delivery.effects += self._push.receive(frame, source, now_ns)
        self.advance(now_ns=now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Run due timers."""
        self.advance(now_ns=now_ns)
        for event in self._codec.given_up(now_ns):
            if event.topic in self._joined:
                self._delivery.give_up(event)
        for number, names in self._repair.summaries(self._membership.others(), now_ns):
            frame = Summary(have=names, heard=self._codec.latest(number))
            self._delivery.effects.append(Send(self._names[number], frame))
        self._codec.prune(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due."""
        times = [
            self._causality.next_timer_ns(paused=self._paused),
            self._repair.due_ns,
            self._membership.next_timer_ns(),
            self._codec.next_timer_ns(),
            min(self._joining.values(), default=None),
            max(self._ready_ns, self._push.room_ns)
            if self._outgoing and self._may_send_next()
            else None,
            self._push.next_timer_ns() if self.config.spreads else None,
        ]
        return min((each for each in times if each is not None), default=None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the pending effects."""
        effects, self._delivery.effects = self._delivery.effects, []
        if self._changed:
            self._changed = False
            if self.config.durable:
                vector, known = self._push.vector, self._causality
                rounds = (vector.own, vector.others)
                state = State(known.settled, known.highest, known.latest_deadline_ns, rounds)
                effects.append(Persist(STATE, STATES.encode(state)))
        return effects

    # -- Frames of brokers ----------------------------------------------------------------------

    def _receive(self, frame: Frame, peer: int, now_ns: int) -> None:
        match frame:
            case Message():
                self._codec.heard(peer, frame.heard)
                self._receive_message(frame, peer, now_ns)
            case Summary(have=have, heard=heard):
                self._codec.heard(peer, heard)
                wanted = self._repair.lacking(have, self._causality)
                if wanted:
                    self._send(peer, Request(wanted=wanted, baseless=False))
            case Request(wanted=wanted, baseless=baseless):
                if baseless:
                    self._codec.forget(peer)
                self._send_copies(wanted, peer)
            case Groups(row=row) | Noted(row=row):
                if self._membership.hear(row, peer):
                    self._codec.forget(peer)  # A restarted broker has a newer row.
                if isinstance(frame, Noted):
                    self._membership.noted(frame, peer)
                else:
                    self._delivery.effects += self._membership.answer(frame, peer)
            case _:
                pass

    def _receive_message(self, frame: Message, peer: int, now_ns: int) -> None:
        message = self._codec.read(frame) if frame.source < len(self._names) else None
        latest_ns = now_ns + self.config.horizon_ns
        if message is None or max(message.stamp, message.deadline_ns) > latest_ns:
            self.counts.unreadable += 1
            if frame.base and frame.event.stamp is not None:
                self._ask_for_whole(frame, frame.event.stamp, peer, now_ns)
            return
        event = message.event
        if self.number not in message.dest:
            return
        if self._delivery.is_copy(event):
            return
        if message.key in self._causality.waiting:
            self.counts.duplicate += 1
            return
        self._codec.keep(message)
        if now_ns <= message.deadline_ns:
            self._repair.keep(message, now_ns)
        if message.stamp <= self._earlier.get(message.source, 0):
            # An earlier run delivered it, or a later one: which is not recorded.
            self._delivery.discard(event, BEFORE_JOIN)
            return
        wanted = event.topic in self._joined
        if wanted:
            self._delivery.arrived(event)
        verdict = self._causality.offer(message, now_ns)
        if verdict != ACCEPTED and wanted:
            self._refuse(message, verdict)

    def _ask_for_whole(self, frame: Message, stamp: Stamp, peer: int, now_ns: int) -> None:
        """Request an undecodable message in full; it is reported if it does not come."""
        event, source, sent = frame.event, frame.source, stamp.entries.get(CLOCK, 0)
        self._send(peer, Request(wanted={source: (sent,)}, baseless=True))
        in_time = now_ns < stamp.entries.get(DEADLINE, 0) <= now_ns + self.config.horizon_ns
        known = sent <= self._earlier.get(source, 0) or (sent, source) in self._causality.waiting
        if in_time and not known and not self._delivery.is_copy(event):
            self._codec.wait_for(event, source, sent)

    def _send_copies(self, wanted: Mapping[int, Sequence[int]], peer: int) -> None:
        left = self.config.batch_max
        for source, stamps in wanted.items():
            for stamp in stamps:
                message = self._repair.get(source, stamp)
                if message is not None and peer in message.dest and left:
                    left -= 1
                    self._send(peer, self._codec.write(message, peer, whole=True))

    # -- Sending and delivering -----------------------------------------------------------------

    def advance(self, *, now_ns: int) -> None:
        """Deliver and send whatever is possible now."""
        if self._causality.waiting:
            self._deliver_ready(now_ns)
        if self._outgoing and not now_ns < self._ready_ns <= now_ns + self.config.silence_ns_max:
            while self._outgoing and self._may_send_next() and now_ns >= self._push.room_ns:
                self._send_event(*self._outgoing.popleft(), now_ns)
        self._delivery.effects += self._membership.announce(now_ns)
        if self._joining:
            self._join(now_ns)
        if self.config.spreads:
            self._delivery.effects += self._push.handle_timer(now_ns)

    def _join(self, now_ns: int) -> None:
        noted = self._membership.all_noted()
        for topic, until_ns in list(self._joining.items()):
            if noted or not now_ns < until_ns <= now_ns + self.config.join_ns:
                del self._joining[topic]
                self._joined[topic] = None
                self._delivery.effects.append(Join(topic))

    def _deliver_ready(self, now_ns: int) -> None:
        for held in self._causality.expired(now_ns):
            if held.sent.event.topic in self._joined:
                self._refuse(held.sent, OVERFLOW if self._paused else LATE)
                self._delivery.remember(held.sent.event)  # Later copies are duplicates.
        while not self._paused and (ready := self._causality.next_ready(now_ns)) is not None:
            self._learn(ready.sent)
            self._deliver(ready.sent.event, now_ns - ready.arrived_ns)

    def _deliver(self, event: Event, held_ns: int) -> None:
        if event.topic in self._joined:
            self._delivery.deliver(event, held_ns)
        else:
            joining = event.topic in self._joining
            self._delivery.discard(event, BEFORE_JOIN if joining else NOT_SUBSCRIBED)

    def _refuse(self, message: Sent, verdict: str) -> None:
        if self._delivery.refuse(message.event, verdict, room=not self._paused):
            # The application has seen it: what it publishes next comes after it.
            self._causality.learn(message)
            self._learn(message)

    def _learn(self, message: Sent) -> None:
        self._changed = True
        self._push.learn(message.event.topic, message.source, message.round, message.live)

    def _send_event(self, event: Event, lifetime_ns: int, now_ns: int) -> None:
        causality = self._causality
        number, live = self._push.publish(event, now_ns) if self.config.spreads else (0, {})
        deadline_ns = causality.deadline_ns(now_ns, lifetime_ns)
        stamp = Stamp({CLOCK: causality.stamp(now_ns), DEADLINE: deadline_ns})
        stamped = msgspec.structs.replace(event, stamp=stamp, published_at_ns=now_ns)
        others = self._membership.members(event.topic)
        here = event.topic in self._joined
        dest = (*others, self.number) if here else others
        before = causality.before(now_ns)
        digest = self._codec.digest(before, stamp.entries[CLOCK]) if self._relayed else b""
        message = Sent(stamped, self.number, dest, before, number, live, digest)
        causality.sent(message)
        self._changed = True
        self._delivery.effects.append(Publish(stamped))
        if others:
            self._codec.keep(message)
            self._repair.keep(message, now_ns)
            for peer in others:
                self._send(peer, self._codec.write(message, peer))
        self._delivery.effects.append(Settle(stamped, ""))
        if not here:
            return
        self._delivery.arrived(stamped)
        if not self._paused:
            self._delivery.deliver(stamped)
        elif causality.hold(message, now_ns) != ACCEPTED:
            self._refuse(message, OVERFLOW)

    def _may_send_next(self) -> bool:
        return self._may_publish(self._outgoing[0][0].topic)

    def _send(self, peer: int, frame: Frame) -> None:
        self._delivery.effects.append(Send(self._names[peer], frame))

    def _change_groups(self, now_ns: int) -> None:
        version = self._membership.change((*self._joined, *self._joining), now_ns)
        if self.config.durable:
            self._delivery.effects.append(Persist(VERSION, _NUMBER.encode(version)))
        self.advance(now_ns=now_ns)

    def _silent_until_ns(self, state: State, now_ns: int) -> int:
        """Return when all that an earlier run may have known has expired everywhere."""
        config = self.config
        until_ns = state.deadline_ns + config.skew_ns + 1
        if config.spreads:
            longest = config.lifetime_rounds + config.skew_rounds
            until_ns = max(until_ns, (max(state.rounds) + longest) * config.period_ns)
        return max(until_ns, now_ns)
