"""One causal node: publish, subscribe, deliver in causal order, relay for others.

The theory of operation is in the package docstring.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ensue.core.errors import ConfigurationError
from ensue.core.event import Event
from ensue.protocols.causal.causality import IN, OUT
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.event_cache import EventCache, Key
from ensue.protocols.causal.frames import (
    Change,
    Counts,
    Fill,
    Heartbeat,
    Item,
    NotCached,
    Publication,
    Receipt,
    Row,
    Rows,
    Summary,
    Versions,
)
from ensue.protocols.causal.hypercube import Hypercube
from ensue.protocols.causal.loss_recovery import LossRecovery
from ensue.protocols.causal.membership import Membership
from ensue.protocols.causal.neighbors import Neighbors
from ensue.protocols.causal.node_state import NodeState
from ensue.protocols.causal.publications import Publications
from ensue.protocols.causal.records import (
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
from ensue.protocols.causal.repair import Repair
from ensue.protocols.causal.subscriptions import Subscriptions
from ensue.protocols.causal.trees import Trees
from ensue.protocols.interface import Effect, Frame, Send

__all__ = ["CausalNode"]

TOKENS_PER_RUN = 1 << 40
"""Copies that one run of a node can send before its tokens overlap those of the next run."""

Handler = Callable[[Any, int, int], None]
"""Handles a frame of a peer, now."""


def _always(*_arguments: object) -> bool:
    return True


def _all(_topic: str, last: int, _now_ns: int) -> int:
    return last


class CausalNode:
    """One node of the hypercube.

    `names` are all nodes in the order of their numbers; `name` is this one. `records` is what an
    earlier run persisted. `rows` is what is known of other nodes from the start. Experiments with
    thousands of nodes share one `Hypercube`, as `names`, and one `membership`.

    `may_publish` returns whether events of a topic may be sent yet; later events wait too.
    `all_publishers_known` returns whether all nodes are known that may have published before some
    events: topic, last number by source, now. `unread` returns up to which number the events of a
    topic certainly have no subscriber, if none is known: topic, last number, now.
    """

    def __init__(
        self,
        *,
        name: str,
        names: Iterable[str] | Hypercube,
        config: CausalConfig | None = None,
        records: Mapping[str, bytes] | None = None,
        rows: Iterable[Row] = (),
        membership: Membership | None = None,
        may_publish: Callable[[str], bool] = _always,
        all_publishers_known: Callable[[str, Counts, int], bool] = _always,
        unread: Callable[[str, int, int], int] = _all,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.config = config = config or CausalConfig()
        self._cube = cube = names if isinstance(names, Hypercube) else Hypercube(names)
        if name not in cube.numbers:
            raise ConfigurationError(f"{name!r} is not among the nodes of its hypercube")
        self.number = me = cube.numbers[name]
        records = records or {}
        node = NODE.decode(records["node"]) if "node" in records else None
        run = 1 if node is None else node.run + 1
        self._membership = Membership() if membership is None else membership
        self.state = state = NodeState(me, cube, config, self._membership, run)
        state.position = 0 if node is None else node.position
        self._causality = state.causality
        self._detector = state.detector
        self._paused = False
        self._cache = EventCache(config.retained_max, self._is_unsettled)
        self._repair = Repair(state, self._cache)
        self._loss_recovery = LossRecovery(state, self._repair.retrieval, all_publishers_known)
        self._trees = Trees(state, first_token=run * TOKENS_PER_RUN)
        self.neighbors = Neighbors(state, now_ns=now_ns)
        self._subscriptions = Subscriptions(
            state,
            self._trees,
            self._repair,
            self._loss_recovery,
            on_start=self._place_waiting,
        )
        self._publications = Publications(
            name,
            state,
            self._cache,
            self._trees,
            self._repair,
            self._subscriptions,
            may_publish,
            unread,
        )
        self._handlers: dict[type[Frame], Handler] = {
            Publication: self._publication,
            Change: self._change,
            Receipt: self._receipt,
            Summary: self._summary,
            Fill: self._fill,
            NotCached: self._not_cached,
            Heartbeat: self._heartbeat,
            Versions: self._versions,
            Rows: self._rows,
        }
        """`Alive` has no handler: its arrival alone clears a suspicion."""
        self._restore(records, now_ns)
        for row in rows:
            self._subscriptions.take_row(row, now_ns)
        self._resume(now_ns)

    # -- Properties -----------------------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        """Subscribed topics that have been joined."""
        return tuple(topic for topic in self.state.wanted if self.state.is_in(topic))

    @property
    def unsettled_count(self) -> int:
        """Number of published events that are not settled."""
        return self._publications.unsettled_count

    @property
    def held_count(self) -> int:
        """Number of received events that wait for their predecessors."""
        return sum(len(state.held) for state in self._causality.topics.values())

    @property
    def joining(self) -> tuple[str, ...]:
        """Topics that are not joined yet."""
        return self._subscriptions.joining

    @property
    def rows(self) -> tuple[Row, ...]:
        """The topics of each node, as far as this node knows."""
        return tuple(self._membership.rows.values())

    def progress(self) -> dict[str, Counts]:
        """Return the delivered or skipped events by joined topic and source."""
        return {
            name: dict(state.delivered)
            for name, state in self._causality.topics.items()
            if state.state == IN
        }

    def seen(self) -> dict[str, Counts]:
        """Return the same for every topic this node ever used, its own events included."""
        return {name: dict(state.delivered) for name, state in self._causality.topics.items()}

    # -- Commands -------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        now_ns: int,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Event:
        """Publish an event; `Settle` reports its outcome."""
        event = self._publications.publish(topic, payload, now_ns=now_ns, key=key, headers=headers)
        self._finish(now_ns)
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
        return self._publications.reject(
            topic, payload, reason, now_ns=now_ns, key=key, headers=headers
        )

    def refuse(self, topic: str, reason: str, *, now_ns: int) -> None:
        """Settle all events of a topic that wait to be published as void."""
        self._publications.refuse(topic, reason)
        self.advance(now_ns=now_ns)

    def subscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Request topics; each takes effect with its `Join`."""
        self._subscriptions.subscribe(topics, now_ns)
        self._finish(now_ns)

    def unsubscribe(self, topics: Iterable[str], *, now_ns: int) -> None:
        """Leave topics, effective immediately."""
        self._subscriptions.unsubscribe(topics, now_ns)
        self.advance(now_ns=now_ns)

    def pause(self) -> None:
        """Deliver nothing until `resume`; received events are held, up to `held_max`."""
        self._paused = True

    def resume(self, *, now_ns: int) -> None:
        """Resume deliveries."""
        self._paused = False
        self._finish(now_ns)

    def say_goodbye(self, *, now_ns: int = 0) -> None:
        """Leave all topics, including those joined only to publish there."""
        own = self.state.own_topics()
        self.state.wanted.update(dict.fromkeys(own))
        self.unsubscribe(own, now_ns=now_ns)

    def admit(self, name: str, *, now_ns: int) -> None:
        """Give the next number to a new node."""
        self._cube.add(name)
        self.neighbors.due_ns = min(self.neighbors.due_ns, now_ns)

    def dismiss(self, name: str, *, now_ns: int) -> None:
        """Remove a node that left permanently."""
        self._cube.remove(name)
        row = self._membership.rows.get(self._cube.numbers[name])
        if row is not None and row.topics:
            self._subscriptions.take_row(Row(row.node, row.version + 1, ()), now_ns)
        self._finish(now_ns)

    def advance(self, *, now_ns: int) -> None:
        """Place events that waited, and do what follows from that."""
        self._publications.place_waiting(now_ns)
        self._finish(now_ns)

    def prove(self, frame: Summary, server: str) -> None:
        """Send a server sealed events, which prove how many were published."""
        if items := self._repair.proofs(frame):
            fill = Fill(topic=frame.topic, request=frame.request, items=items, more=False)
            self.state.effects.append(Send(server, fill))

    # -- Driven from outside --------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame of another node; ignore unknown senders."""
        peer = self._cube.numbers.get(source)
        if peer is None or peer == self.number:
            return
        if self._detector.received_from(peer):
            self.neighbors.greet(peer, now_ns=now_ns)
            self._repair.back(peer, now_ns=now_ns)
            self._trees.back(peer, now_ns=now_ns)
        handler = self._handlers.get(type(frame))
        if handler is not None:
            handler(frame, peer, now_ns)
        self._finish(now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Run due timers."""
        self.neighbors.handle_timer(now_ns=now_ns)
        self._trees.handle_timer(now_ns=now_ns)
        self._repair.handle_timer(now_ns=now_ns)
        self._subscriptions.ask_again(now_ns)
        self._finish(now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due."""
        others = (
            self._trees.next_timer_ns(),
            self._repair.next_timer_ns(),
            self._loss_recovery.next_timer_ns(),
            self._subscriptions.retry_due_ns,
        )
        dues = [due_ns for due_ns in others if due_ns is not None]
        return min([self.neighbors.due_ns, *dues])

    def take_effects(self) -> Sequence[Effect]:
        """Drain the pending effects."""
        state = self.state
        effects, state.effects = state.effects, []
        return [*state.dirty.take(self._topic_record, state.position), *effects]

    # -- Frames ---------------------------------------------------------------------------------

    def _publication(self, frame: Publication, peer: int, now_ns: int) -> None:
        """Accept events, and relay them to the targets that the parent assigned."""
        if not self._trees.known(frame, peer):
            self._take_items(frame.items, now_ns)
            covers = all(map(self._has, frame.items))
            self._trees.pass_on(
                frame, peer, rows=(), vectors={}, doubts={}, now_ns=now_ns, covers=covers
            )

    def _has(self, item: Item) -> bool:
        """Return whether peers can get an event from this node, after it came here."""
        event = item.event
        source = self._cube.numbers.get(event.publisher)
        if source is None:
            return False
        if self.state.topic_state(event.topic) == OUT:
            return self._cache.get((event.topic, source, event.publisher_seq)) is not None
        return not self._causality.has_refused(event.topic, source, event.publisher_seq)

    def _change(self, frame: Change, peer: int, now_ns: int) -> None:
        """Store a member's row, and answer where to start: after all that is known here.

        From now on the member is sent all events of this node. (In the paper a node that has
        received something from the joiner before does not answer: erratum 6.)
        """
        if self._trees.known(frame, peer):
            return
        self._subscriptions.take_row(frame.row, now_ns)
        vectors: dict[str, Counts] = {}
        doubts: dict[str, int] = {}
        member = False
        for topic in frame.joins:
            state = self._causality.topics.get(topic)
            if state is not None:
                vectors[topic] = state.delivered
                doubts[topic] = state.doubt
                member = member or state.state != OUT
        rows = (self._membership.rows[self.number],) if member else ()
        self._trees.pass_on(frame, peer, rows=rows, vectors=vectors, doubts=doubts, now_ns=now_ns)

    def _receipt(self, frame: Receipt, peer: int, now_ns: int) -> None:
        self._trees.receipt(frame, peer, now_ns=now_ns)

    def _summary(self, frame: Summary, peer: int, now_ns: int) -> None:
        self._repair.summary(frame, peer, now_ns=now_ns)

    def _fill(self, frame: Fill, peer: int, now_ns: int) -> None:
        """Take in events that were missing, and request more if there are more."""
        self._take_items(frame.items, now_ns)
        self._deliver(now_ns)
        self._repair.filled(frame, peer, now_ns=now_ns)

    def _not_cached(self, frame: NotCached, peer: int, now_ns: int) -> None:
        self._repair.not_cached(frame, peer, now_ns=now_ns)

    def _heartbeat(self, frame: Heartbeat, peer: int, _now_ns: int) -> None:
        self.neighbors.answer_heartbeat(frame, peer)

    def _versions(self, frame: Versions, peer: int, _now_ns: int) -> None:
        self.neighbors.versions(frame, peer)

    def _rows(self, frame: Rows, _peer: int, now_ns: int) -> None:
        for row in frame.rows:
            self._subscriptions.take_row(row, now_ns)

    # -- Delivery -------------------------------------------------------------------------------

    def _take_items(self, items: Iterable[Item], now_ns: int) -> int:
        """Take events in; return how many were new."""
        taken = 0
        for item in items:
            event = item.event
            source = self._cube.numbers.get(event.publisher)
            if source is None:
                continue
            if self._causality.is_full(event.topic):
                self._deliver(now_ns)
            if self._causality.receive(item, source, now_ns=now_ns):
                # Persisted at once: its source may count on this node and vanish.
                self.state.dirty.kept(event.topic, source, event.publisher_seq, item)
                self._repair.stir(event.topic, now_ns=now_ns)
                taken += 1
            elif self._causality.passes_over(event.topic, source, event.publisher_seq):
                self._repair.keep(event.topic, [(source, item)], now_ns=now_ns)
        return taken

    def _deliver(self, now_ns: int) -> None:
        """Deliver all events whose predecessors are delivered, unless paused."""
        dirty = self.state.dirty
        for item, source, since_ns in () if self._paused else self._causality.ready():
            event = item.event
            topic, number = event.topic, event.publisher_seq
            self._cache.add((topic, source, number), item, now_ns=now_ns)
            dirty.touch(topic)
            for name in item.after:
                dirty.touch(name)
            self._repair.progressed(topic)
            self.state.deliver(event, max(0, now_ns - since_ns))

    def _finish(self, now_ns: int) -> None:
        """Deliver, skip, send and settle whatever is possible after a change."""
        while True:
            self._deliver(now_ns)
            if self._skip_losses(now_ns):
                continue
            self._ask_about_losses(now_ns)
            self._publications.pump(now_ns)
            if not self._trees.done:
                break
            done, self._trees.done = self._trees.done, []
            for relay in done:
                if isinstance(relay.message, Publication):
                    self._publications.done(relay)
                else:
                    self._subscriptions.answered(relay, now_ns)
        for topic in self._causality.changed:
            self._repair.update_gap_timer(topic, now_ns=now_ns)
        self._causality.changed.clear()
        for dropped in (self._cache.dropped, self._causality.dropped):
            for key in dropped:
                self.state.dirty.kept(*key, None)
            dropped.clear()

    def _ask_about_losses(self, now_ns: int) -> None:
        """Ask all nodes for their progress in topics with events that no peer can give."""
        for topic, loss in self._repair.lost.items():
            if self._loss_recovery.begin(topic, loss, now_ns=now_ns):
                question = self._subscriptions.send_row((topic,), self._cube.everyone, now_ns)
                self._loss_recovery.asked(topic, question)
        self._repair.lost.clear()

    def _skip_losses(self, now_ns: int) -> bool:
        """Skip a lost event and notify the application; return whether one was skipped."""
        if self._paused:
            self._loss_recovery.wait(now_ns=now_ns)
            return False
        taken = self._loss_recovery.take(now_ns=now_ns)
        if taken is None:
            return False
        topic, skipped, missed = taken
        if self._causality.topic(topic).doubt:
            self._subscriptions.doubted(topic, now_ns)
        self.state.dirty.touch(topic)
        self._repair.stir(topic, now_ns=now_ns)
        self._repair.keep(topic, skipped, now_ns=now_ns)
        self.state.report_skipped(topic, skipped, missed)
        return True

    def _is_unsettled(self, key: Key) -> bool:
        return self._publications.is_unsettled(key)

    def _place_waiting(self, now_ns: int) -> None:
        self._publications.place_waiting(now_ns)

    # -- Restart --------------------------------------------------------------------------------

    def _topic_record(self, topic: str) -> TopicRecord:
        return topic_record(
            self._causality.topic(topic),
            wanted=topic in self.state.wanted,
            settled=self._publications.settled(topic),
        )

    def _restore(self, records: Mapping[str, bytes], now_ns: int) -> None:
        """Restore what an earlier run persisted."""
        kept: list[tuple[str, int, int, Item]] = []
        waiting: dict[int, Event] = {}
        for key, value in records.items():
            kind, _, rest = key.partition("/")
            if kind == "row":
                self._membership.put(ROW.decode(value))
            elif kind == "topic":
                self._restore_topic(rest, TOPIC.decode(value))
            elif kind == "waiting":
                waiting[int(rest)] = WAITING.decode(value)
            elif kind == "kept":
                kept.append((*parse_kept(key), ITEM.decode(value)))
        for topic, source, number, item in sorted(kept, key=lambda one: one[:3]):
            self._restore_kept(topic, source, number, item, now_ns)
        self._publications.restore_waiting(waiting)

    def _restore_kept(self, topic: str, source: int, number: int, item: Item, now_ns: int) -> None:
        """Cache an event for peers, or hold it again if it was not delivered."""
        state = self._causality.topic(topic)
        if state.state == OUT and number > state.have(source):
            state.received[source] = number
        if number <= state.have(source) or self._causality.passes_over(topic, source, number):
            # Old enough to be sent to a peer that lacks it.
            since_ns = now_ns - self.config.digest_ns
            state.keep(source, number)
            self._cache.add((topic, source, number), item, now_ns=since_ns)
        elif not self._causality.receive(item, source, now_ns=now_ns):
            self.state.dirty.kept(topic, source, number, None)

    def _restore_topic(self, topic: str, record: TopicRecord) -> None:
        state = self._causality.topic(topic)
        restore_topic(state, record)
        if any(source != self.number for source in (*state.delivered, *state.barrier)):
            self._causality.has_foreign_past = True
        self._publications.restore_topic(topic, record)
        self._subscriptions.restore_topic(topic, record)

    def _resume(self, now_ns: int) -> None:
        """Continue what an earlier run left unfinished."""
        self._publications.resume()
        for topic, state in self._causality.topics.items():
            if state.state == OUT:
                self._repair.leave(topic, now_ns=now_ns)
            else:
                self._repair.stir(topic, now_ns=now_ns)
        self._subscriptions.resume(now_ns)
        self.advance(now_ns=now_ns)
