"""A broker: it publishes, delivers what other brokers publish in the groups it is in, and tells subscribers.

Guarantees. What it delivers is causal and on time: see `causality`. What it cannot deliver so is dropped, and said to be (`handing`). Its events
are sent to each broker of their group at once and with a deadline, repaired by gossip until then (`repair`), and told to subscribers
in rounds (`telling`, `spreading`).

Groups are topics. Brokers know each other (`names`, `admit`, `dismiss`) and which groups each is in (`groups`); a broker that joins
a group is in it once all others have taken note, or after `join_ns`: somebody who is away learns of it later, and what it publishes
meanwhile does not come.

Pauses. An application that has no room for more (`pause`) is handed nothing: what comes waits for it, and what is still waiting at its deadline is dropped
as `overflow`. The order is kept; what others are told is not held up.

Restarting. A broker persists what it has delivered and the largest stamps, rounds and deadlines it knows of, and no matrix. So it publishes nothing until
all that it may have known is dead everywhere: then no event of its own can overtake a cause. What is published meanwhile waits. What waited to be
delivered when it crashed is lost, unless it is repaired in time.

Assumptions. Clocks differ by at most `skew_ns`, and brokers keep their records over a crash, or come back under another name.

HAZARD: a disk that takes long counts as delay: deliveries are said when their records are safe, which may be after a deadline.
HAZARD: a broker that lost its records and keeps its name publishes numbers and stamps that others take for known.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ensue.errors import LimitReached
from ensue.event import CLOCK, DEADLINE, Event, Stamp
from ensue.protocols.core import Effect, Frame, Join, Leave, Persist, Publish, Send, Settle
from ensue.protocols.gossip.causality import ACCEPTED, LATE, OVERFLOW, Causality, Sent
from ensue.protocols.gossip.config import GossipConfig
from ensue.protocols.gossip.frames import Groups, Message, Noted, Request, Row, Summary
from ensue.protocols.gossip.groups import GroupRolls
from ensue.protocols.gossip.handing import GossipCounts, Handing
from ensue.protocols.gossip.letters import Letters
from ensue.protocols.gossip.repair import Repair
from ensue.protocols.gossip.rounds import BEFORE_JOIN, NOT_SUBSCRIBED
from ensue.protocols.gossip.state import STATES, State
from ensue.protocols.gossip.telling import Telling
from ensue.protocols.gossip.views import Picker
from ensue.protocols.numbering import EventNumbers
from ensue.wire import Records

__all__ = ["GossipBroker"]

SEQUENCE, TOPIC, STATE, VERSION = "sequence/", "topic/", "state", "version"
_NUMBER = Records[int](int)


class GossipBroker:
    """One broker. Commands: `publish`, `subscribe`, `unsubscribe`, `pause`, `resume`, `admit`, `dismiss`.

    `names` are all brokers, in the order of their numbers; `name` is this one, and `gone` are those that are gone for good. `rows` is what is known of the
    others' groups from the start. `records` is what an earlier incarnation persisted.
    """

    def __init__(
        self,
        *,
        name: str,
        names: Sequence[str],
        config: GossipConfig,
        site: str = "",
        gone: Iterable[int] = (),
        rows: Iterable[Row] = (),
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        records = records or {}
        self.name = name
        self.config = config
        self._names = list(names)
        self._numbers_of = {each: number for number, each in enumerate(self._names)}
        self.number = self._numbers_of[name]
        self._handing = Handing(config)
        self._numbers = EventNumbers(name)
        version = _NUMBER.decode(records[VERSION]) if VERSION in records else 0
        self._groups = GroupRolls(self.number, self._names, config.retry_ns, version, now_ns)
        for number in gone:
            self._groups.dismiss(number)
        for row in rows:
            self._groups.put(row)
        state = STATES.decode(records[STATE]) if STATE in records else State({}, 0, 0, (0, 0))
        self._earlier = dict(state.settled)
        """By source: the last message that an earlier incarnation was done with."""
        self._causality = Causality(self.number, config, state.settled)
        self._causality.highest = max(self._causality.highest, state.highest)
        self._causality.latest_deadline_ns = state.deadline_ns
        self._telling = Telling(
            name, self.number, site, config, state.rounds, self._handing, self._groups
        )
        self._repair = Repair(config, Picker(name, salt=1))
        self._letters = Letters(self.number, config)
        self._outgoing: deque[tuple[Event, int]] = deque()
        """Events that may not be sent yet, with their lifetimes."""
        self._ready_ns = self._silent_until_ns(state, now_ns) if STATE in records else now_ns
        self._joined: dict[str, None] = {}
        self._joining: dict[str, int] = {}
        """Topics that not all others have taken note of, and until when to wait for that."""
        self._changed = False
        self._paused = False
        self.relayed = False
        """Whether messages go over a relay, which seals what copies of them may say."""
        for key, value in records.items():
            if key.startswith(SEQUENCE):
                self._numbers.last[key.removeprefix(SEQUENCE)] = _NUMBER.decode(value)
        topics = [key.removeprefix(TOPIC) for key in records if key.startswith(TOPIC)]
        if topics:
            self.subscribe(topics, now_ns=now_ns)
        self._handing.effects += self._groups.tell(now_ns)

    # -- What others may look at ----------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        """The groups in effect."""
        return tuple(self._joined)

    @property
    def counts(self) -> GossipCounts:
        """What became of the events that came."""
        return self._handing.counts

    @property
    def held_count(self) -> int:
        """How many events wait for others that come before them."""
        return len(self._causality.waiting)

    @property
    def unsettled_count(self) -> int:
        """How many events may not be sent yet."""
        return len(self._outgoing)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Which broker is in which groups, as far as this one knows."""
        return (self._groups.row, *self._groups.rows.values())

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
        """Publish an event, which is of use for so long. It is returned without its stamp."""
        config = self.config
        if len(self._outgoing) >= config.outgoing_max:
            raise LimitReached(
                f"{self.name} has {config.outgoing_max} events that may not be sent yet "
                "(outgoing_max): publish again in a while",
                limit="outgoing_max",
                value=config.outgoing_max,
            )
        if config.spreads:
            self._telling.check_room(now_ns)
        lifetime = config.lifetime_ns if lifetime_ns is None else lifetime_ns
        event = self._numbers.make(topic, payload, now_ns=now_ns, key=key, headers=headers)
        if config.durable:
            number = _NUMBER.encode(self._numbers.last[topic])
            self._handing.effects.append(Persist(SEQUENCE + topic, number))
        self._outgoing.append((event, min(lifetime, config.lifetime_ns_max)))
        self._advance(now_ns)
        return event

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
            self._handing.effects += (Persist(TOPIC + topic, b"") for topic in new)
        self._change_groups(now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave groups, at once."""
        left = [each for each in topics if each in self._joined or each in self._joining]
        for topic in left:
            self._joining.pop(topic, None)
            if self.config.durable:
                self._handing.effects.append(Persist(TOPIC + topic, None))
            if topic in self._joined:
                del self._joined[topic]
                self._handing.effects.append(Leave(topic))
        if left:
            self._change_groups(now_ns)

    def acknowledge(self, position: int) -> None:
        """Do nothing: nothing is delivered again."""

    def pause(self) -> None:
        """Hand nothing over until `resume`."""
        self._paused = True

    def resume(self, *, now_ns: int) -> None:
        """Hand over what there is, and go on."""
        self._deliver_ready(now_ns)
        self._paused = False
        self._advance(now_ns)

    def admit(self, name: str, *, now_ns: int) -> None:
        """Take note of a broker that is new; it has the next number."""
        self._numbers_of[name] = len(self._names)
        self._names.append(name)
        self._groups.admit(self._numbers_of[name], now_ns)
        self._advance(now_ns)

    def dismiss(self, name: str, *, now_ns: int) -> None:
        """Take note of a broker that is gone for good."""
        self._groups.dismiss(self._numbers_of[name])
        self._advance(now_ns)

    def say_goodbye(self) -> None:
        """Do nothing: whoever runs brokers says who is gone."""

    # -- What happens ---------------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle what another broker or a subscriber says."""
        if self._causality.waiting:
            self._deliver_ready(now_ns)  # What is due is before what comes too late.
        peer = self._numbers_of.get(source)
        if peer is not None:
            self._receive(frame, peer, now_ns)
        else:
            self._handing.effects += self._telling.receive(frame, source, now_ns)
        self._advance(now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Deliver what is due, and do what is to be done now and then."""
        self._advance(now_ns)
        for event in self._letters.given_up(now_ns):
            if event.topic in self._joined:
                self._handing.give_up(event)
        for number, names in self._repair.summaries(self._groups.others(), now_ns):
            frame = Summary(have=names, heard=self._letters.latest(number))
            self._handing.effects.append(Send(self._names[number], frame))
        self._letters.prune(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when something is due."""
        times = [
            self._causality.next_timer_ns(paused=self._paused),
            self._repair.due_ns,
            self._groups.next_timer_ns(),
            self._letters.next_timer_ns(),
            min(self._joining.values(), default=None),
            max(self._ready_ns, self._telling.room_ns)
            if self._outgoing and self._may_send()
            else None,
            self._telling.next_timer_ns() if self.config.spreads else None,
        ]
        return min((each for each in times if each is not None), default=None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects, self._handing.effects = self._handing.effects, []
        if self._changed:
            self._changed = False
            if self.config.durable:
                vector, known = self._telling.vector, self._causality
                rounds = (vector.own, vector.others)
                state = State(known.settled, known.highest, known.latest_deadline_ns, rounds)
                effects.append(Persist(STATE, STATES.encode(state)))
        return effects

    # -- From brokers ---------------------------------------------------------------------------

    def _receive(self, frame: Frame, peer: int, now_ns: int) -> None:
        match frame:
            case Message():
                self._letters.heard(peer, frame.heard)
                self._receive_message(frame, peer, now_ns)
            case Summary(have=have, heard=heard):
                self._letters.heard(peer, heard)
                wanted = self._repair.lacking(have, self._causality)
                if wanted:
                    self._send(peer, Request(wanted=wanted, baseless=False))
            case Request(wanted=wanted, baseless=baseless):
                if baseless:
                    self._letters.forget(peer)
                self._send_copies(wanted, peer)
            case Groups(row=row) | Noted(row=row):
                if self._groups.hear(row, peer):
                    self._letters.forget(peer)  # Whoever was restarted has a newer row.
                if isinstance(frame, Noted):
                    self._groups.noted(frame, peer)
                else:
                    self._handing.effects += self._groups.answer(frame, peer)
            case _:
                pass  # Not for a broker: a stray frame changes nothing.

    def _receive_message(self, frame: Message, peer: int, now_ns: int) -> None:
        message = self._letters.read(frame) if frame.source < len(self._names) else None
        latest_ns = now_ns + self.config.horizon_ns
        if message is None or max(message.stamp, message.deadline_ns) > latest_ns:
            self.counts.unreadable += 1
            if frame.base and frame.event.stamp is not None:
                self._ask_for_whole(frame, frame.event.stamp, peer, now_ns)
            return
        event = message.event
        if self.number not in message.dest:
            return
        if self._handing.is_copy(event):
            return
        if message.key in self._causality.waiting:
            self.counts.duplicate += 1
            return
        self._letters.keep(message)
        if now_ns <= message.deadline_ns:
            self._repair.keep(message, now_ns)
        if message.stamp <= self._earlier.get(message.source, 0):
            # Its former self delivered it, or one after it: nobody remembers which.
            self._handing.discard(event, BEFORE_JOIN)
            return
        wanted = event.topic in self._joined
        if wanted:
            self._handing.arrived(event)
        verdict = self._causality.offer(message, now_ns)
        if verdict != ACCEPTED and wanted:
            self._refuse(message, verdict)

    def _ask_for_whole(self, frame: Message, stamp: Stamp, peer: int, now_ns: int) -> None:
        """Ask for a message that can't be read, and see to it that it is not lost unnoticed."""
        event, source, sent = frame.event, frame.source, stamp.entries.get(CLOCK, 0)
        self._send(peer, Request(wanted={source: (sent,)}, baseless=True))
        in_time = now_ns < stamp.entries.get(DEADLINE, 0) <= now_ns + self.config.horizon_ns
        known = sent <= self._earlier.get(source, 0) or (sent, source) in self._causality.waiting
        if in_time and not known and not self._handing.is_copy(event):
            self._letters.wait_for(event, source, sent)

    def _send_copies(self, wanted: Mapping[int, Sequence[int]], peer: int) -> None:
        left = self.config.batch_max
        for source, stamps in wanted.items():
            for stamp in stamps:
                message = self._repair.get(source, stamp)
                if message is not None and peer in message.dest and left:
                    left -= 1
                    self._send(peer, self._letters.write(message, peer, whole=True))

    # -- Both ways ------------------------------------------------------------------------------

    def _advance(self, now_ns: int) -> None:
        """Deliver what may be delivered, and send what may be sent."""
        if self._causality.waiting:
            self._deliver_ready(now_ns)
        if self._outgoing and not now_ns < self._ready_ns <= now_ns + self.config.silence_ns_max:
            while self._outgoing and self._may_send() and now_ns >= self._telling.room_ns:
                self._send_event(*self._outgoing.popleft(), now_ns)
        self._handing.effects += self._groups.tell(now_ns)
        if self._joining:
            self._join(now_ns)
        if self.config.spreads:
            self._handing.effects += self._telling.handle_timer(now_ns)

    def _join(self, now_ns: int) -> None:
        noted = self._groups.all_noted()
        for topic, until_ns in list(self._joining.items()):
            if noted or not now_ns < until_ns <= now_ns + self.config.join_ns:
                del self._joining[topic]
                self._joined[topic] = None
                self._handing.effects.append(Join(topic))

    def _deliver_ready(self, now_ns: int) -> None:
        for held in self._causality.expired(now_ns):
            if held.sent.event.topic in self._joined:
                self._refuse(held.sent, OVERFLOW if self._paused else LATE)
                self._handing.remember(held.sent.event)  # It is over: no copy changes that.
        while not self._paused and (ready := self._causality.next_ready(now_ns)) is not None:
            self._learn(ready.sent)
            self._hand_over(ready.sent.event, now_ns - ready.arrived_ns)

    def _hand_over(self, event: Event, held_ns: int) -> None:
        if event.topic in self._joined:
            self._handing.deliver(event, held_ns)
        else:
            joining = event.topic in self._joining
            self._handing.discard(event, BEFORE_JOIN if joining else NOT_SUBSCRIBED)

    def _refuse(self, message: Sent, verdict: str) -> None:
        if self._handing.refuse(message.event, verdict, room=not self._paused):
            # The application knows of it: what it publishes next comes after it.
            self._causality.learn(message)
            self._learn(message)

    def _learn(self, message: Sent) -> None:
        self._changed = True
        self._telling.learn(message.event.topic, message.source, message.round, message.live)

    def _send_event(self, event: Event, lifetime_ns: int, now_ns: int) -> None:
        causality = self._causality
        number, live = self._telling.publish(event, now_ns) if self.config.spreads else (0, {})
        deadline_ns = causality.deadline_ns(now_ns, lifetime_ns)
        stamp = Stamp({CLOCK: causality.stamp(now_ns), DEADLINE: deadline_ns})
        stamped = msgspec.structs.replace(event, stamp=stamp, published_at_ns=now_ns)
        others = self._groups.members(event.topic)
        here = event.topic in self._joined
        dest = (*others, self.number) if here else others
        before = causality.before(now_ns)
        digest = self._letters.digest(before, stamp.entries[CLOCK]) if self.relayed else b""
        message = Sent(stamped, self.number, dest, before, number, live, digest)
        causality.sent(message)
        self._changed = True
        self._handing.effects.append(Publish(stamped))
        if others:
            self._letters.keep(message)
            self._repair.keep(message, now_ns)
            for peer in others:
                self._send(peer, self._letters.write(message, peer))
        self._handing.effects.append(Settle(stamped, ""))
        if not here:
            return
        self._handing.arrived(stamped)
        if not self._paused:
            self._handing.deliver(stamped)
        elif causality.hold(message, now_ns) != ACCEPTED:
            self._refuse(message, OVERFLOW)

    def _may_send(self) -> bool:
        """Tell whether the next event may go out, if it is time."""
        return True

    def _send(self, peer: int, frame: Frame) -> None:
        self._handing.effects.append(Send(self._names[peer], frame))

    def _change_groups(self, now_ns: int) -> None:
        version = self._groups.change((*self._joined, *self._joining), now_ns)
        if self.config.durable:
            self._handing.effects.append(Persist(VERSION, _NUMBER.encode(version)))
        self._advance(now_ns)

    def _silent_until_ns(self, state: State, now_ns: int) -> int:
        """Return when all that an earlier incarnation may have known is dead everywhere."""
        config = self.config
        until_ns = state.deadline_ns + config.skew_ns + 1
        if config.spreads:
            longest = config.lifetime_rounds + config.skew_rounds
            until_ns = max(until_ns, (max(state.rounds) + longest) * config.period_ns)
        return max(until_ns, now_ns)
