"""What a node does inside: join, leave, place its events, deliver those of others, start again. `node` has the theory."""

from collections.abc import Iterable, Mapping

from ensue.errors import ConfigurationError
from ensue.event import Event
from ensue.protocols.core import Deliver, Discard, Effect, Frame, Join, Send, Settle
from ensue.protocols.hypercube.causality import IN, JOINING, OUT, Causality
from ensue.protocols.hypercube.config import HypercubeConfig, no_room, no_room_before
from ensue.protocols.hypercube.cube import Cube
from ensue.protocols.hypercube.forsaking import Forsaking
from ensue.protocols.hypercube.frames import JOINS_MAX, Change, Counts, Item, Publication, Row
from ensue.protocols.hypercube.memory import Memory
from ensue.protocols.hypercube.neighbours import Neighbours
from ensue.protocols.hypercube.outbox import Outbox
from ensue.protocols.hypercube.records import (
    ITEM,
    NODE,
    ROW,
    TOPIC,
    WAITING,
    TopicRecord,
    parse_kept,
    restore_topic,
    topic_record,
)
from ensue.protocols.hypercube.repair import Repair
from ensue.protocols.hypercube.rolls import Rolls
from ensue.protocols.hypercube.store import Store
from ensue.protocols.hypercube.suspects import Suspects
from ensue.protocols.hypercube.trees import Relay, Trees
from ensue.protocols.numbering import EventNumbers

__all__ = ["Member"]

TOKENS_PER_RUN = 1 << 40
"""Copies that one run of a node can send before its tokens could be those of another run."""


class Member:
    """The state of one node, and what happens to it."""

    def __init__(
        self,
        *,
        name: str,
        names: Iterable[str] | Cube,
        config: HypercubeConfig | None = None,
        records: Mapping[str, bytes] | None = None,
        rows: Iterable[Row] = (),
        rolls: Rolls | None = None,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.config = config = config or HypercubeConfig()
        self._cube = names if isinstance(names, Cube) else Cube(names)
        if name not in self._cube.numbers:
            raise ConfigurationError(f"{name!r} is not among the nodes of its cube")
        self.number = me = self._cube.numbers[name]
        self._effects: list[Effect] = []
        self._events = EventNumbers(name)
        self._rolls = Rolls() if rolls is None else rolls
        self._suspects = Suspects(config.suspect_ns)
        self._causality = Causality(me, across=config.across_topics, held_max=config.held_max)
        self._outboxes: dict[str, Outbox] = {}
        self._queued: dict[str, None] = {}
        """Topics in which events of this node wait for room in the window."""
        self._waiting: dict[int, Event] = {}
        """Events that are not placed yet, in order: they wait until this node is in their topic."""
        self._waiting_next = 1
        self._voided: set[str] = set()
        """Topics of which an event was refused after it had its number: nobody can get what is numbered behind it."""
        self._wanted: dict[str, None] = {}
        """Topics that the application asked for."""
        self._joins: dict[str, int | None] = {}
        """Topics being joined: the version of the `Change` that asks, None if none is under way."""
        self._join_due_ns: int | None = None
        """When to ask again for what was not answered well enough."""
        self._patient_until_ns: dict[str, int] = {}
        """By topic being joined: how long to wait for those who are away, if they are needed."""
        self._position = 0
        self._paused = False
        self._store = Store(config.retained_max, self._is_unsettled)
        self._memory = Memory(durable=config.durable)
        self._repair = Repair(
            me, self._cube, config, self._causality, self._rolls, self._suspects, self._store,
            self._send,
        )  # fmt: skip
        self._forsaking = Forsaking(self._cube, config, self._causality, self._repair.hunts)
        self._restore(records or {}, now_ns)
        self._trees = Trees(
            me, self._cube, config, self._suspects, self._send,
            first_token=self._memory.run * TOKENS_PER_RUN, members=self._rolls.members,
        )  # fmt: skip
        self._neighbours = Neighbours(
            me, self._cube, config, self._rolls, self._suspects, self._send, now_ns=now_ns
        )
        for row in rows:
            self._take_row(row, now_ns)
        self._resume(now_ns)

    def _send(self, peer: int, frame: Frame) -> None:
        self._effects.append(Send(self._cube.names[peer], frame))

    def _state(self, topic: str) -> str:
        state = self._causality.topics.get(topic)
        return OUT if state is None else state.state

    # -- Joining --------------------------------------------------------------------------------

    def _join(self, topics: list[str], now_ns: int) -> None:
        """Become a member of topics; whoever hears of it sends what it publishes from then on."""
        if not topics:
            return
        for topic in topics:
            self._causality.join(topic)
            self._patient_until_ns[topic] = now_ns + self.config.patience_ns
            self._memory.touch(topic)
        self._announce(tuple(topics), now_ns)

    def _announce(self, joins: tuple[str, ...], now_ns: int) -> None:
        """Tell everybody what this node is a member of, from now on."""
        topics = [each for each, state in self._causality.topics.items() if state.state != OUT]
        version = self._rolls.version(self.number) + 1
        row = Row(self.number, version, tuple(sorted(topics)))
        self._rolls.put(row)
        self._memory.row(row)
        self._ask_for_start(joins, now_ns)

    def _ask_for_start(self, joins: tuple[str, ...], now_ns: int) -> None:
        """Ask everybody where to start in topics that are being joined."""
        for topic in joins:
            self._joins[topic] = self._rolls.version(self.number)
        for first in range(0, max(1, len(joins)), JOINS_MAX):
            self._send_row(joins[first : first + JOINS_MAX], self._cube.everyone, now_ns)

    def _send_row(self, joins: tuple[str, ...], targets: int, now_ns: int) -> Relay:
        """Send this node's row to others, and ask how far they are in topics."""
        row = self._rolls.rows[self.number]
        change = Change(token=0, height=1, below=b"", row=row, joins=joins)
        return self._trees.start(change, targets, now_ns=now_ns)

    def _answered(self, relay: Relay, now_ns: int) -> None:
        """Start in the topics that were asked for, now that all who can be reached have answered."""
        assert isinstance(relay.message, Change)
        for row in relay.rows.values():
            self._take_row(row, now_ns)
        for topic in relay.message.joins:
            vector = relay.vectors.get(topic, {})
            if self._joins.get(topic) == relay.message.row.version:
                self._start(topic, vector, relay, now_ns)
            elif self._state(topic) == IN:
                self._forsaking.answered(topic, relay, now_ns=now_ns)
                self._resolve_doubts(topic, vector, relay)

    def _start(self, topic: str, vector: Counts, relay: Relay, now_ns: int) -> None:
        """Start in a topic, unless somebody who is away is needed for it and may yet come back."""
        patient = now_ns < self._patient_until_ns.get(topic, 0)
        start = self._forsaking.start(topic, vector, relay, patient=patient, now_ns=now_ns)
        if start is None:
            self._joins[topic] = None
            self._join_due_ns = now_ns + self.config.retry_ns_max
            return
        del self._joins[topic]
        self._patient_until_ns.pop(topic, None)
        self._started(topic, *start, now_ns)

    def _resolve_doubts(self, topic: str, vector: Counts, relay: Relay) -> None:
        """Skip what those who were away at the start, and are back, published up to now."""
        told = self._forsaking.resolve(topic, vector, relay)
        if told is not None:
            self._memory.touch(topic)
            self._effects += told if topic in self._wanted else []

    def _started(self, topic: str, vector: Counts, doubt: int, now_ns: int) -> None:
        skipped = self._causality.joined(topic, vector, doubt)
        if doubt:
            self._join_due_ns = now_ns + self.config.retry_ns_max
            self._forsaking.doubted[topic] = self._trees.begun
        self._memory.touch(topic)
        self._repair.stir(topic, now_ns=now_ns)
        if topic in self._wanted:
            self._effects += [Discard(item.event, "before_join") for item in skipped]
            self._effects.append(Join(topic))
        self._place_waiting(now_ns)

    def _take_row(self, row: Row, now_ns: int) -> None:
        """Learn what another node is subscribed to; of a number that nobody bears yet, another time."""
        nobody = row.node == self.number or row.node >= len(self._cube.names)
        if nobody or self.config.topics_that_fit(row.topics) < len(row.topics):
            return
        before = self._rolls.rows.get(row.node)
        if not self._rolls.put(row):
            return
        self._memory.row(row)
        for topic in row.topics:
            state = self._causality.topics.get(topic)
            new = before is None or topic not in before.topics
            if new and state is not None and (state.own or state.state == IN):
                self._repair.stir(topic, now_ns=now_ns)

    # -- Publishing -----------------------------------------------------------------------------

    def _place_waiting(self, now_ns: int) -> None:
        """Give events their place in the past, in the order they were published.

        Across topics a node that has seen anything must be in a topic to publish there (see
        `causality`): if it is not, it becomes a member without its application being told.
        """
        for number, event in list(self._waiting.items()):
            topic = event.topic
            if not self._may_place(topic):
                return
            if topic in self._voided:
                self._void(number, no_room_before(self.config))
                continue
            if self.config.across_topics and self._causality.has_foreign_past:
                state = self._state(topic)
                if state == OUT and not self._room_for([topic]):
                    self._voided.add(topic)
                    self._void(number, no_room(self.config))
                    continue
                if state == OUT:
                    self._join([topic], now_ns)
                if state != IN:
                    return
            self._no_longer_waits(number)
            self._place(event, now_ns)

    def _no_longer_waits(self, number: int) -> Event:
        self._memory.waiting(number, None)
        return self._waiting.pop(number)

    def _void(self, number: int, reason: str) -> None:
        self._effects.append(Settle(self._no_longer_waits(number), "void", reason))

    def _room_for(self, topics: list[str]) -> int:
        """Return with how many of these topics this node's row is not too large."""
        there = [each for each, state in self._causality.topics.items() if state.state != OUT]
        return self.config.topics_that_fit([*there, *topics]) - len(there)

    def _may_place(self, _topic: str) -> bool:
        """Tell whether events of a topic may go out yet; those after them wait, too."""
        return True

    def _place(self, event: Event, now_ns: int) -> None:
        topic, number = event.topic, event.publisher_seq
        item = Item(event, self._causality.publish(topic))
        assert self._causality.topic(topic).own == number
        self._store.add((topic, self.number, number), item, now_ns=now_ns)
        self._memory.kept(topic, self.number, number, item)
        self._memory.touch(topic)
        self._outbox(topic).add(item)
        self._queued[topic] = None
        self._repair.stir(topic, now_ns=now_ns)
        if topic in self._wanted and self._state(topic) == IN:
            self._position += 1
            self._effects.append(Deliver(event, self._position))

    def _outbox(self, topic: str) -> Outbox:
        if topic not in self._outboxes:
            self._outboxes[topic] = Outbox(topic, self.config)
        return self._outboxes[topic]

    def _is_unsettled(self, key: tuple[str, int, int]) -> bool:
        topic, source, number = key
        outbox = self._outboxes.get(topic)
        return source == self.number and outbox is not None and number > outbox.settled

    # -- Delivering -----------------------------------------------------------------------------

    def _take_items(self, items: Iterable[Item], now_ns: int) -> int:
        """Take events in; return how many were new."""
        taken = 0
        for item in items:
            event = item.event
            source = self._cube.numbers.get(event.publisher)
            if self._causality.is_full(event.topic):
                self._deliver(now_ns)
            if source is not None and self._causality.receive(item, source, now_ns=now_ns):
                # Kept at once: its source may take this node's word for it and vanish.
                self._memory.kept(event.topic, source, event.publisher_seq, item)
                self._repair.stir(event.topic, now_ns=now_ns)
                taken += 1
        return taken

    def _deliver(self, now_ns: int) -> None:
        """Deliver all that can be delivered, unless there is no room for it."""
        for item, source, since_ns in () if self._paused else self._causality.ready():
            event = item.event
            topic, number = event.topic, event.publisher_seq
            self._store.add((topic, source, number), item, now_ns=now_ns)
            self._memory.touch(topic)
            for name in item.after:
                self._memory.touch(name)
            self._repair.progressed(topic)
            if topic in self._wanted:
                self._position += 1
                held_ns = max(0, now_ns - since_ns)
                self._effects.append(Deliver(event, self._position, "", held_ns))

    def _finish(self, now_ns: int) -> None:
        """Draw all conclusions from what just happened."""
        while True:
            self._deliver(now_ns)
            if self._forsake(now_ns):
                continue
            self._ask_how_far(now_ns)
            for topic in list(self._queued):
                self._pump(topic, now_ns)
            if not self._trees.done:
                break
            done, self._trees.done = self._trees.done, []
            for relay in done:
                self._done(relay, now_ns)
        for topic in self._causality.changed:
            self._repair.look(topic, now_ns=now_ns)
        self._causality.changed.clear()
        for dropped in (self._store.dropped, self._causality.dropped):
            for key in dropped:
                self._memory.kept(*key, None)
            dropped.clear()

    def _pump(self, topic: str, now_ns: int) -> None:
        """Send what the window allows of this node's own events."""
        outbox = self._outboxes[topic]
        targets = self._rolls.members(topic) & self._cube.everyone & ~(1 << self.number)
        self._effects += outbox.pump(self._trees, targets, now_ns=now_ns)
        if not outbox.queued:
            del self._queued[topic]
        if not targets:
            self._memory.touch(topic)

    def _done(self, relay: Relay, now_ns: int) -> None:
        if isinstance(relay.message, Publication):
            topic = relay.message.items[0].event.topic
            self._effects += self._outbox(topic).done(relay)
            self._memory.touch(topic)
        else:
            self._answered(relay, now_ns)

    def _ask_how_far(self, now_ns: int) -> None:
        """Ask everybody how far they are in topics of which something can't be had any more."""
        for topic, lost in self._repair.lost.items():
            if self._forsaking.begin(topic, lost, now_ns=now_ns):
                question = self._send_row((topic,), self._cube.everyone, now_ns)
                self._forsaking.asked(topic, question)
        self._repair.lost.clear()

    def _forsake(self, now_ns: int) -> bool:
        """Skip what can't be had any more, and tell; return whether anything was skipped."""
        if self._paused:
            self._forsaking.wait(now_ns=now_ns)
            return False
        taken = self._forsaking.take(now_ns=now_ns)
        for topic, missed, skipped in taken:
            if self._causality.topic(topic).doubt:
                self._join_due_ns = now_ns + self.config.retry_ns_max
                self._forsaking.doubted[topic] = self._trees.begun
            self._memory.touch(topic)
            self._repair.stir(topic, now_ns=now_ns)
            if topic in self._wanted:
                self._effects += [Discard(item.event, "before_join") for item in skipped]
                self._effects += [Join(topic, each) for each in missed]
        return bool(taken)

    # -- Starting again -------------------------------------------------------------------------

    def _topic_record(self, topic: str) -> TopicRecord:
        outbox = self._outboxes.get(topic)
        wanted, settled = topic in self._wanted, 0 if outbox is None else outbox.settled
        return topic_record(self._causality.topic(topic), wanted=wanted, settled=settled)

    def _restore(self, records: Mapping[str, bytes], now_ns: int) -> None:
        kept: list[tuple[str, int, int, Item]] = []
        for key, value in records.items():
            kind, _, rest = key.partition("/")
            if kind == "node":
                node = NODE.decode(value)
                self._memory.run = node.run + 1
                self._position = node.position
            elif kind == "row":
                self._rolls.put(ROW.decode(value))
            elif kind == "topic":
                self._restore_topic(rest, TOPIC.decode(value))
            elif kind == "waiting":
                self._waiting[int(rest)] = WAITING.decode(value)
            elif kind == "kept":
                kept.append((*parse_kept(key), ITEM.decode(value)))
        for topic, source, number, item in sorted(kept, key=lambda one: one[:3]):
            self._restore_kept(topic, source, number, item, now_ns)
        self._waiting = dict(sorted(self._waiting.items()))
        self._waiting_next = max(self._waiting, default=0) + 1
        for event in self._waiting.values():
            self._events.last[event.topic] = event.publisher_seq

    def _restore_kept(self, topic: str, source: int, number: int, item: Item, now_ns: int) -> None:
        """Keep an event for others, or hold it again if it was not delivered."""
        if number <= self._causality.topic(topic).delivered.get(source, 0):
            # Old enough to be given to whoever lacks it.
            since_ns = now_ns - self.config.digest_ns
            self._store.add((topic, source, number), item, now_ns=since_ns)
        elif not self._causality.receive(item, source, now_ns=now_ns):
            self._memory.kept(topic, source, number, None)

    def _restore_topic(self, topic: str, record: TopicRecord) -> None:
        state = self._causality.topic(topic)
        restore_topic(state, record)
        if any(source != self.number for source in (*state.delivered, *state.barrier)):
            self._causality.has_foreign_past = True
        if record.own:
            self._events.last[topic] = record.own
            self._outboxes[topic] = Outbox(topic, self.config, record.settled)
        if record.wanted:
            self._wanted[topic] = None
        if record.state == JOINING:
            self._joins[topic] = None
        if record.doubt:
            self._join_due_ns = 0

    def _resume(self, now_ns: int) -> None:
        """Take up what an earlier run left."""
        for topic, outbox in self._outboxes.items():
            for number in range(outbox.settled + 1, self._causality.topic(topic).own + 1):
                kept = self._store.get((topic, self.number, number))
                if kept is not None:
                    outbox.add(kept[0])
                    self._queued[topic] = None
        for topic, state in self._causality.topics.items():
            if state.state == OUT:
                self._repair.leave(topic, now_ns=now_ns)
            else:
                self._repair.stir(topic, now_ns=now_ns)
        for topic in self._joins:
            self._patient_until_ns[topic] = now_ns + self.config.patience_ns
        if self._joins:
            self._ask_for_start(tuple(self._joins), now_ns)
        self._place_waiting(now_ns)
        self._finish(now_ns)
