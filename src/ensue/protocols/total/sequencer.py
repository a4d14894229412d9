"""A sequencer: one stage of the chain, hosting many topics.

What it guarantees
- Two events whose topics share a subscription have stamps that determine which comes first, and
  every node that both requests visit agrees.
- A repeated request gets the same stamp. A slot whose publisher vanished is voided.
- Where nodes keep their topics' logs (`carries`), an event that needs no other node is stamped and
  published in one step; a repeated request for it is answered with its slot.
- After a crash it restarts with every counter, subscription and open stamp that it sent.

How
- A request for topic `T` enters at `T`'s node, or at one before, where earlier requests of its
  publisher have entered. `T`'s node counts it. It travels up the chain, node by
  node without skipping any, to the last node that hosts a topic of `T`'s group. Each node adds the
  counts of its own topics of the group; counts of topics on lower stages were learned from their
  requests, all of which pass through here. A group that lives on one node never leaves it.
- A subscription change travels the same way, from the lowest stage of the old and the new topics
  to the highest, updates every node's groups as it passes, and reads the counters without counting.
- On a chain of contiguous paths over FIFO links, an order agreed at one stage is kept at all later
  ones; any three requests that meet pairwise meet at one stage; so no cycle of waits can close.

Assumptions: links between neighboring nodes are FIFO and exactly-once, also across restarts
(`ensue.protocols.shared.link`); persisted records survive. Client names are unique: a client that
lost its state takes a new name.

HAZARD: with `carries`, a copy of a request that comes after its publisher was forgotten, and
`TOMBSTONES_MAX` others after it, publishes its event twice; a copy of a refused one, once.

HAZARD: a node that restarts from older records than it answered from gives one slot to two events;
the topic log lets the first win and the second publisher sees its event voided.

Deviations from the paper: it skips stages, counts subscriptions as events and announces them by
dummy events, and keeps no request numbers; each of these hangs (see
`docs/explanation/protocols/total.md`).
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from ensue.core.event import Event, Stamp
from ensue.protocols.interface import Broadcast, Effect, Frame, Send
from ensue.protocols.topic_log.frames import Accepted, Taken
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import (
    ChangeFill,
    ChangeRepeat,
    ChangeRequest,
    Confirm,
    Fill,
    Forget,
    KnownMoves,
    Move,
    MoveDecision,
    MoveRequest,
    MoveStep,
    OrderRequest,
    PublisherLost,
    Repeat,
    StampRequest,
    Voided,
)
from ensue.protocols.total.group_merges import GroupMerge, group_merges
from ensue.protocols.total.groups import Groups
from ensue.protocols.total.leases import OPEN, OUT, VOID, Lease, Leases
from ensue.protocols.total.move_coordinator import MoveCoordinator
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.publisher_sessions import PublisherSession, PublisherSessions
from ensue.protocols.total.records import INT, LEASE
from ensue.protocols.total.responses import Responses
from ensue.protocols.total.stage import StageState
from ensue.protocols.total.subscription_changes import SubscriptionChanges
from ensue.protocols.total.topic_moves import FROZEN, MOVED, READY, MoveConfig, TopicMoves

__all__ = ["Sequencer"]

BATCH_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of events, with their stamps, that go out in one batch, and of stamps; plus one event."""
ENCODED_MAX = 4
"""Bytes of a character."""
LOST_MAX = 10_000
"""Publishers with lost connections that are remembered, the latest ones."""
_OF_MOVES = (Move, MoveDecision, KnownMoves)
"""Frames that may end a freeze."""


class Sequencer:
    """One stage of the chain. It has no commands: it answers frames.

    `put_out` takes the events of an `OrderRequest` that this node can order alone, and returns
    their bytes; without it the publisher gets a stamp. `slot_of` finds the slot of an event that
    was published before a restart. `records` is what an earlier incarnation persisted. With a
    `seal_key`, stamps that publishers take elsewhere are sealed. With `comparing`, it
    compares its moves with those nodes first (`topic_moves`).
    """

    def __init__(
        self,
        *,
        name: str,
        placement: Placement,
        config: SequencerConfig | None = None,
        put_out: Callable[[Event, Stamp], int] | None = None,
        slot_of: Callable[[Event], int] | None = None,
        records: Mapping[str, bytes] | None = None,
        seal_key: bytes = b"",
        move_config: MoveConfig | None = None,
        comparing: Sequence[str] = (),
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.placement = placement
        self.config = config or SequencerConfig()
        self.state = StageState(name=name, placement=placement, config=self.config)
        self.stage = self.state.stage
        """The place of this node in the chain, from 0 on."""
        self.changes = SubscriptionChanges(self.state)
        self.leases = Leases()
        self._responses = Responses(self.state, seal_key)
        self.sessions = PublisherSessions(self.state, self.leases, self._responses, slot_of)
        self.voids = 0
        """Stamps that were voided since the start."""
        self.lost: dict[str, None] = {}
        """Publishers whose connections were lost: their new stamps get a short lease, too."""
        self._connected: dict[str, None] = {}
        """Clients whose connections to this node the driver has reported, and not lost."""
        self._put_out = put_out
        self._batch_bytes = 0
        """Bytes stamped since the effects were last drained."""
        self._handlers: dict[type[Frame], Callable[..., None]] = {
            StampRequest: self._on_stamp_request,
            OrderRequest: self._on_order_request,
            Fill: self._on_fill,
            Confirm: self._on_confirm,
            Repeat: self._on_repeat,
            Forget: self._on_forget,
            PublisherLost: self._on_publisher_lost,
            ChangeRequest: self.changes.on_request,
            ChangeFill: self.changes.on_fill,
            ChangeRepeat: self.changes.on_repeat,
            Accepted: self._on_void_answer,
            Taken: self._on_void_answer,
        }
        self.moves = TopicMoves(
            self.state, self.changes, config=move_config, comparing=comparing, now_ns=now_ns
        )
        self.coordinator = MoveCoordinator(self.state, self.moves)
        self._handlers |= {
            Move: self._on_move,
            MoveDecision: self.moves.on_decision,
            MoveStep: self._on_move_step,
            KnownMoves: self.moves.on_known,
            MoveRequest: self.coordinator.on_request,
        }
        for key in sorted(records or {}, key=_record_order):
            self._restore(key, (records or {})[key], now_ns)

    # -- What others read --------------------------------------------------------------------------

    @property
    def groups(self) -> Groups:
        """The subscriptions and which topics are ordered together, read-only."""
        return self.state.groups

    @property
    def open_count(self) -> int:
        """How many stamps are open: not known to be published or void."""
        return self.leases.open_count()

    @property
    def early_count(self) -> int:
        """How many requests wait for an earlier one of their publisher."""
        return self.sessions.early.count

    def count(self, topic: str) -> int:
        """Return how many events a topic has had."""
        return self.state.count(topic)

    def counts(self) -> dict[str, int]:
        """Return how many events each topic of this node has had."""
        return self.state.counts()

    def counted_since(self, tick: int) -> tuple[int, dict[str, int]]:
        """Return the current tick, and the counts of hosted topics changed since another."""
        return self.state.counted_since(tick)

    def subscribers(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Return each subscriber's last change, and its topics if any is hosted here."""
        return self.changes.subscribers()

    def group_merges(self) -> list[GroupMerge]:
        """Return the subscriptions that merge all groups of this node."""
        if self.config.groups > 1 or len(self.placement.nodes) == 1:
            return []
        return group_merges(self.groups.subscriptions, self.placement.stage, self.stage)

    # -- Driver ------------------------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame from a client, a neighbor or a topic log."""
        handler = self._handlers.get(type(frame))
        if handler is None or self.moves.holds(frame, source):
            return  # Not for a sequencer: a stray frame changes nothing. Or for later.
        handler(frame, source, now_ns)
        self._responses.flush()
        if isinstance(frame, _OF_MOVES):
            self._take_held(now_ns)

    def _take_held(self, now_ns: int) -> None:
        """Take the requests that came while a topic moved."""
        while (held := self.moves.take_held()) is not None:
            self.receive(held[0], source=held[1], now_ns=now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Void the leases that ran out; ask again for what got no answer."""
        self.moves.handle_timer(now_ns)
        self.coordinator.handle_timer(now_ns)
        self._take_held(now_ns)
        for lease in self.leases.take_due(now_ns, again_ns=self.config.retry_ns):
            self._persist_lease(lease)
            self.state.effects.append(Broadcast(lease.void_event(self.name)))

    def next_timer_ns(self) -> int | None:
        """Return when the next lease runs out, or a move has something due."""
        dues = (
            self.leases.next_due_ns(),
            self.moves.next_timer_ns(),
            self.coordinator.next_timer_ns(),
        )
        return min((due for due in dues if due is not None), default=None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        self._batch_bytes = 0
        effects, self.state.effects = self.state.effects, []
        return effects

    def lose(self, publisher: str, *, now_ns: int) -> None:
        """Shorten the leases of a publisher whose connection is lost.

        The driver may be wrong, or late: a lease that runs out voids a slot, as ever, and no event.
        Its requests may be completed by nodes that it has never connected to.
        """
        self._connected.pop(publisher, None)
        self._shorten(publisher, now_ns)
        session = self.sessions.by_name.get(publisher)
        if session is not None and session.elsewhere:
            self._pass_on_loss(PublisherLost(publisher=publisher))

    def _on_publisher_lost(self, frame: PublisherLost, source: str, now_ns: int) -> None:
        if not self.state.is_from_below(source):
            return
        if frame.publisher not in self._connected:
            self._shorten(frame.publisher, now_ns)
        self._pass_on_loss(frame)

    def _pass_on_loss(self, frame: PublisherLost) -> None:
        if self.stage + 1 < len(self.placement.nodes):
            self.state.pass_on(frame)

    def _shorten(self, publisher: str, now_ns: int) -> None:
        self.lost.pop(publisher, None)
        self.lost[publisher] = None
        if len(self.lost) > LOST_MAX:
            del self.lost[next(iter(self.lost))]
        due_ns = now_ns + self.config.lease_lost_ns
        self.leases.shorten(publisher, self.placement.nodes, due_ns)

    def regain(self, publisher: str) -> None:
        """Restore the leases of a publisher that is connected again."""
        self._connected[publisher] = None
        if publisher in self.lost:
            del self.lost[publisher]
            self.leases.lengthen(publisher, self.placement.nodes)

    # -- Moves of topics ---------------------------------------------------------------------------

    def _on_move(self, frame: Move, source: str, now_ns: int) -> None:
        if self.stage == 0 and frame.phase in (READY, FROZEN) and self.state.is_from_above(source):
            self.coordinator.on_answer(frame, now_ns)
        else:
            self.moves.on_move(frame, source, now_ns)

    def _on_move_step(self, frame: MoveStep, source: str, now_ns: int) -> None:
        self.moves.on_step(frame, source, now_ns)
        if self.stage == 0:
            self.coordinator.on_step(frame, source, now_ns)

    # -- Requests ----------------------------------------------------------------------------------

    def _on_stamp_request(self, frame: StampRequest, publisher: str, now_ns: int) -> None:
        self._take_requests(frame, frame.topics, publisher, now_ns)

    def _on_order_request(self, frame: OrderRequest, publisher: str, now_ns: int) -> None:
        for event in frame.events:
            if event.publisher != publisher or event.stamp is not None or event.void:
                reason = "an event is not the sender's own, or has a stamp already"
                self.state.refuse(publisher, frame.number, reason)
                return
        self._take_requests(frame, frame.events, publisher, now_ns)

    def _take_requests(
        self,
        frame: StampRequest | OrderRequest,
        items: Sequence[str | Event],
        publisher: str,
        now_ns: int,
    ) -> None:
        sessions = self.sessions
        session = sessions.by_name.get(publisher)
        session = session or sessions.open(publisher, frame, items, now_ns)
        if session is None:
            return
        session.seen_ns = now_ns
        sessions.settle(publisher, session, frame.settled)
        full = frame.settled + self.config.window
        done = self._take_run(publisher, session, frame, full)
        for number, item in enumerate(items[done:], frame.number + done):
            if number < session.next:
                self._repeated(publisher, session, number, item)
            elif number >= full:
                break  # Too many are open: it will be repeated.
            elif number > session.next:
                sessions.early.keep(session, number, item)
            elif not self._try_stamp(publisher, session, number, item, now_ns):
                break
        while session.early and (early := sessions.early.take_next(session)) is not None:
            if not self._try_stamp(publisher, session, session.next, early, now_ns):
                break
        sessions.persist(publisher, session)

    def _take_run(
        self,
        publisher: str,
        session: PublisherSession,
        frame: StampRequest | OrderRequest,
        full: int,
    ) -> int:
        """Publish the next events that need no other node; return how many."""
        if self._put_out is None or isinstance(frame, StampRequest) or frame.number != session.next:
            return 0
        if self._must_hold(publisher, session):
            return 0
        room, most = BATCH_BYTES_MAX - self._batch_bytes, max(0, full - session.next)
        counted = self._responses.counted
        slots, size = self.state.stamp_run(frame.events[:most], self._put_out, counted, room)
        self._batch_bytes += size
        if slots:
            self._responses.published(publisher, enumerate(slots, session.next))
            session.out.extend(session.next, slots)
            session.next += len(slots)
        return len(slots)

    def _repeated(
        self, publisher: str, session: PublisherSession, number: int, item: str | Event
    ) -> None:
        """Answer a request that was taken before."""
        last = session.elsewhere.get(number)
        if last == MOVED:
            if _topic(item) in self.placement.parts:
                self.state.send_moved(publisher, _topic(item), number)
        elif last is not None:
            frame = Repeat(publisher=publisher, number=number)
            nodes = self.placement.nodes
            # If another node counts the event, this one does not know which node completes it.
            topic = _topic(item)
            is_counted = self.placement.stage(topic) == self.stage
            is_counted = is_counted and topic not in self.placement.parts
            for node in (nodes[last],) if is_counted else nodes[last:]:
                self.state.effects.append(Send(node, frame))
        elif self.config.carries and self.leases.find(publisher, self.name, number) is None:
            # Stamped here, and no lease: it was published in the same step.
            slot = session.out.get(number) or self.sessions.find_slot(item)
            self._responses.published(publisher, ((number, slot),))
        else:
            self._answer_again(publisher, self.name, number)

    def _must_hold(self, publisher: str, session: PublisherSession) -> bool:
        """Return whether an event may not go out before its publisher says so.

        Stamps of earlier events are not known to be complete. If its subscribers had it before
        they are, what they publish then could be ordered before those.
        """
        if not self.config.publisher_order:
            return False
        return bool(session.elsewhere) or self.leases.any_of(publisher, self.name)

    # -- Stamps ------------------------------------------------------------------------------------

    def _try_stamp(
        self, publisher: str, session: PublisherSession, number: int, item: str | Event, now_ns: int
    ) -> bool:
        """Stamp the next request of a publisher, or refuse it."""
        if self._batch_bytes >= BATCH_BYTES_MAX or self._is_barred(session):
            return False  # Stamps may be far longer than requests. It will be repeated.
        topic = _topic(item)
        group = self.state.group_cache.get(topic)
        if group is None or not group.hosted:
            if not self.state.may_host((topic,), publisher, number):
                return False
            stage = self.placement.stage(topic)
            if stage < self.stage or (stage > self.stage and not self.config.publisher_order):
                if topic in self.placement.parts:
                    session.next = number + 1
                    self._bar(publisher, session, number, topic)
                    return not self.config.publisher_order
                self.state.refuse(publisher, number, f"{topic!r} is not hosted by {self.name}")
                return False
            if stage > self.stage:
                session.next = number + 1
                self._pass_on(publisher, session, number, topic, Stamp({}), stage)
                return True
        self._stamp(publisher, session, number, item, now_ns)
        return True

    def _stamp(
        self, publisher: str, session: PublisherSession, number: int, item: str | Event, now_ns: int
    ) -> None:
        topic = _topic(item)
        session.next = number + 1
        stamp, last = self._count(topic)
        if last > self.stage:
            self._batch_bytes += ENCODED_MAX * sum(map(len, stamp.entries))
            self._pass_on(publisher, session, number, topic, stamp, last)
        elif (
            isinstance(item, str)
            or self._put_out is None
            or self._must_hold(publisher, session)
            or (not item.payload and topic in self.placement.parts)
        ):
            self._batch_bytes += ENCODED_MAX * sum(map(len, stamp.entries))
            self._complete(publisher, self.name, number, topic, stamp, now_ns)
        else:
            self._batch_bytes += self._put_out(item, stamp)
            slot = stamp.entries[topic]
            session.out.extend(number, (slot,))
            self._responses.published(publisher, ((number, slot),))

    def _count(self, topic: str) -> tuple[Stamp, int]:
        """Count an event of a hosted topic; return its stamp, and the stage that completes it."""
        state = self.state
        group = state.group_cache.get(topic) or state.group(topic)
        slot = group.own[0] + 1
        state.counters.set(topic, group.own, slot)
        entries = {topic: slot}
        whole = group.tick is None or not self.config.leave_out
        group.fill(entries, state.counters, whole=whole)
        self._responses.counted[topic] = slot
        return Stamp(entries, whole), group.last

    def _is_barred(self, session: PublisherSession) -> bool:
        """Return whether an earlier request was not taken, as its topic was moved.

        Its publisher requests all later ones again, behind that one.
        """
        if not self.config.publisher_order or not self.placement.parts:
            return False
        return MOVED in session.elsewhere.values()

    def _bar(self, publisher: str, session: PublisherSession, number: int, topic: str) -> None:
        """Refuse a request from now on: its topic was moved to another node."""
        session.elsewhere[number] = MOVED
        self.state.persist(f"elsewhere/{number}/{publisher}", INT.encode(MOVED))
        self.state.send_moved(publisher, topic, number)

    def _pass_on(
        self,
        publisher: str,
        session: PublisherSession,
        number: int,
        topic: str,
        stamp: Stamp,
        last: int,
    ) -> None:
        """Pass a request that entered here to the next node."""
        session.elsewhere[number] = last
        if self.config.durable:
            self.state.persist(f"elsewhere/{number}/{publisher}", INT.encode(last))
        self.state.pass_on(
            Fill(
                publisher=publisher,
                origin=self.name,
                number=number,
                topic=topic,
                stamp=stamp,
                last=last,
            )
        )

    def _on_fill(self, frame: Fill, source: str, now_ns: int) -> None:
        state, topic, entries = self.state, frame.topic, frame.stamp.entries
        valid = self.placement.knows(topic) and self.stage <= frame.last < len(self.placement.nodes)
        if not valid or not state.is_from_below(source):
            return  # Not what a neighbor would send.
        slot, stage = entries.get(topic), self.placement.stage(topic)
        if slot is None and stage > self.stage:
            state.pass_on(frame)
            return
        last = frame.last
        if slot is None and stage == self.stage:
            stamp, last = self._count(topic)
        elif slot is not None and stage < self.stage:
            state.learn(topic, slot)
            group = state.group_cache.get(topic) or state.group(topic)
            stamp = Stamp(dict(entries), frame.stamp.whole)
            group.fill(stamp.entries, state.counters, whole=stamp.whole)
        else:
            return  # As above.
        if last == self.stage:
            self._complete(frame.publisher, frame.origin, frame.number, topic, stamp, now_ns)
        else:
            state.pass_on(msgspec.structs.replace(frame, stamp=stamp, last=last))

    # -- Leases ------------------------------------------------------------------------------------

    def _complete(
        self, publisher: str, origin: str, number: int, topic: str, stamp: Stamp, now_ns: int
    ) -> None:
        """Lease a complete stamp to its publisher."""
        config = self.config
        lease = Lease(publisher, origin, number, topic, stamp, now_ns + config.lease_ns)
        if publisher in self.lost:
            lease.due_ns = now_ns + min(config.lease_ns, config.lease_lost_ns)
        fresh = self.leases.add(lease, now_ns=now_ns)
        self._persist_lease(lease)
        if fresh:
            self._responses.grant(lease)
        else:
            self._answer_again(publisher, origin, number)

    def _on_repeat(self, frame: Repeat, origin: str, _now_ns: int) -> None:
        self._answer_again(frame.publisher, origin, frame.number)

    def _answer_again(self, publisher: str, origin: str, number: int) -> None:
        lease = self.leases.find(publisher, origin, number)
        if lease is None:
            return  # Still on its way up the chain, or settled: the publisher needs no answer.
        if lease.state == VOID:
            voided = Voided(origin=origin, numbers=(number,))
            self.state.effects.append(Send(publisher, voided))
        else:
            self._responses.grant(lease)

    def _on_confirm(self, frame: Confirm, publisher: str, _now_ns: int) -> None:
        session = self.sessions.by_name.get(publisher)
        if session is not None and frame.origin == self.name:
            self.sessions.settle(publisher, session, frame.settled)
        for lease in self.leases.confirm(publisher, frame.origin, frame.slots, frame.settled):
            if self.config.durable:
                self.state.persist(lease.key, None)

    def _on_void_answer(self, frame: Accepted | Taken, _log: str, _now_ns: int) -> None:
        state = VOID if isinstance(frame, Accepted) else OUT
        resolved = self.leases.resolve(frame.topic, frame.slot, state=state)
        if resolved is None:
            return
        lease, needed = resolved
        self.voids += state == VOID
        if not needed:
            self.state.persist(lease.key, None)
            return
        self._persist_lease(lease)
        if state == VOID:
            voided = Voided(origin=lease.origin, numbers=(lease.number,))
            self.state.effects.append(Send(lease.publisher, voided))

    # -- Records -----------------------------------------------------------------------------------

    def _on_forget(self, frame: Forget, source: str, now_ns: int) -> None:
        if not frame.publisher:
            self.changes.forget(source, frame.number)
            return
        # A request that was not confirmed, or whose confirmation was lost, is settled all the same.
        self._on_confirm(Confirm(origin=self.name, slots=(), settled=frame.number), source, now_ns)
        session = self.sessions.by_name.get(source)
        if session is not None and session.next <= frame.number:
            self.sessions.forget(source)

    def _persist_lease(self, lease: Lease) -> None:
        if self.config.durable:
            self.state.persist(lease.key, LEASE.encode(lease.record()))

    def _restore(self, key: str, value: bytes, now_ns: int) -> None:
        kind, _, rest = key.partition("/")
        if kind == "counter":
            self.state.counters.get(rest)[0] = INT.decode(value)
        elif kind in ("publisher", "elsewhere", "gone", "refused"):
            self.sessions.restore(kind, rest, value, now_ns)
        elif kind in ("moved", "frozen", "decided", "seen"):
            self.moves.restore(kind, rest, value, now_ns)
        elif kind == "moving":
            self.coordinator.restore(value, now_ns)
        elif kind in ("subscription", "change"):
            self.changes.restore(kind, rest, value)
        elif kind == "lease":
            lease = Lease.restore(LEASE.decode(value), now_ns)
            if lease.state == OPEN:
                # Leases start again: a longer lease is always safe.
                lease.due_ns = lease.full_ns = now_ns + self.config.lease_ns
            self.leases.add(lease, now_ns=now_ns)


def _topic(item: str | Event) -> str:
    return item if isinstance(item, str) else item.topic


def _record_order(key: str) -> tuple[str, int, int, str]:
    """Sort records so that the numbered ones of a client are restored in order."""
    kind, _, rest = key.partition("/")
    number, _, rest_of_numbered = rest.partition("/")
    if kind == "lease":
        slot, _, client = rest_of_numbered.partition("/")
        return (kind, int(number), int(slot), client)
    if kind in ("elsewhere", "gone", "refused"):
        return (kind, int(number), 0, rest_of_numbered)
    return (kind, 0, 0, rest)
