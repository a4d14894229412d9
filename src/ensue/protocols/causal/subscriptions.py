"""Subscriptions: how a node joins and leaves topics, and learns of other nodes'.

A joiner sends its row to all nodes and starts from the maximum of their answers (see the package
docstring). If a node that is needed for the start cannot be reached, the joiner waits for it up to
`patience_ns`; then it starts without it and doubts it (`loss_recovery`). A doubted node is asked
again until it answers.
"""

from collections.abc import Callable, Iterable

from ensue.protocols.causal.causality import IN, JOINING, OUT
from ensue.protocols.causal.config import no_room
from ensue.protocols.causal.frames import JOINS_MAX, Change, Counts, Row
from ensue.protocols.causal.loss_recovery import LossRecovery
from ensue.protocols.causal.node_state import NodeState
from ensue.protocols.causal.records import TopicRecord
from ensue.protocols.causal.repair import Repair
from ensue.protocols.causal.trees import Relay, Trees
from ensue.protocols.interface import Join, Leave, Refuse

__all__ = ["Subscriptions"]


class Subscriptions:
    """Joins, leaves and rows of one node. `on_start` follows each start."""

    def __init__(
        self,
        state: NodeState,
        trees: Trees,
        repair: Repair,
        loss_recovery: LossRecovery,
        on_start: Callable[[int], None],
    ) -> None:
        self._state = state
        self._trees = trees
        self._repair = repair
        self._loss_recovery = loss_recovery
        self._on_start = on_start
        self._joins: dict[str, int | None] = {}
        """Topics being joined: the version of the `Change` that asks, None if none is under way."""
        self._patient_until_ns: dict[str, int] = {}
        """By topic being joined: until when to wait for nodes that are away, if needed."""
        self.retry_due_ns: int | None = None
        """When to ask again for starts, and ask doubted nodes."""

    @property
    def joining(self) -> tuple[str, ...]:
        """Topics that are not joined yet."""
        return tuple(self._joins)

    # -- Commands -------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], now_ns: int) -> None:
        """Join topics for the application; refuse those that do not fit into the row."""
        state = self._state
        asked = [topic for topic in dict.fromkeys(topics) if topic not in state.wanted]
        new = [topic for topic in asked if state.topic_state(topic) == OUT]
        room = self.room_for(new)
        if refused := tuple(new[room:]):
            state.effects.append(Refuse(refused, no_room(state.config)))
        for topic in asked:
            if topic not in refused:
                state.wanted[topic] = None
                state.dirty.touch(topic)
                if state.is_in(topic):
                    state.effects.append(Join(topic))
        self.join(new[:room], now_ns)

    def unsubscribe(self, topics: Iterable[str], now_ns: int) -> None:
        """Leave topics, effective immediately."""
        state = self._state
        left = [topic for topic in topics if topic in state.wanted]
        for topic in left:
            del state.wanted[topic]
            if state.is_in(topic):
                state.effects.append(Leave(topic))
            self._loss_recovery.forget(topic)
            self._joins.pop(topic, None)
            self._patient_until_ns.pop(topic, None)
            self._repair.leave(topic, state.causality.leave(topic), now_ns=now_ns)
            state.dirty.touch(topic)
        if left:
            self.announce((), now_ns)

    def join(self, topics: list[str], now_ns: int) -> None:
        """Become a member of topics: from then on publishers send their events here."""
        if not topics:
            return
        for topic in topics:
            self._state.causality.join(topic)
            self._patient_until_ns[topic] = now_ns + self._state.config.patience_ns
            self._state.dirty.touch(topic)
        self.announce(tuple(topics), now_ns)

    def room_for(self, topics: list[str]) -> int:
        """Return how many of these topics fit into this node's row."""
        own = self._state.own_topics()
        return self._state.config.topics_that_fit([*own, *topics]) - len(own)

    # -- Rows -----------------------------------------------------------------------------------

    def announce(self, joins: tuple[str, ...], now_ns: int) -> None:
        """Send a new version of this node's row to all nodes."""
        state = self._state
        version = state.membership.version(state.number) + 1
        row = Row(state.number, version, tuple(sorted(state.own_topics())))
        state.membership.put(row)
        state.dirty.row(row)
        self.ask_for_start(joins, now_ns)

    def ask_for_start(self, joins: tuple[str, ...], now_ns: int) -> None:
        """Ask all nodes where to start in topics that are being joined."""
        for topic in joins:
            self._joins[topic] = self._state.membership.version(self._state.number)
        for first in range(0, max(1, len(joins)), JOINS_MAX):
            self.send_row(joins[first : first + JOINS_MAX], self._state.cube.everyone, now_ns)

    def send_row(self, joins: tuple[str, ...], targets: int, now_ns: int) -> Relay:
        """Send this node's row to other nodes, and ask for their progress in topics."""
        row = self._state.membership.rows[self._state.number]
        change = Change(token=0, height=1, below=b"", row=row, joins=joins)
        return self._trees.start(change, targets, now_ns=now_ns)

    def take_row(self, row: Row, now_ns: int) -> None:
        """Store the row of another node if it is newer; ignore rows of unknown numbers."""
        state = self._state
        unknown = row.node == state.number or row.node >= len(state.cube.names)
        if unknown or state.config.topics_that_fit(row.topics) < len(row.topics):
            return
        before = state.membership.rows.get(row.node)
        if not state.membership.put(row):
            return
        state.dirty.row(row)
        self._trees.back(row.node, now_ns=now_ns)  # It may have left the topic of a message.
        for topic in row.topics:
            own = state.causality.topics.get(topic)
            new = before is None or topic not in before.topics
            if new and own is not None and (own.own or own.state == IN):
                self._repair.stir(topic, now_ns=now_ns)

    # -- Starts ---------------------------------------------------------------------------------

    def answered(self, relay: Relay, now_ns: int) -> None:
        """Start in the topics of a `Change` that all reachable nodes have answered."""
        assert isinstance(relay.message, Change)
        for row in relay.rows.values():
            self.take_row(row, now_ns)
        for topic in relay.message.joins:
            vector = relay.vectors.get(topic, {})
            if self._joins.get(topic) == relay.message.row.version:
                self._start(topic, vector, relay, now_ns)
            elif self._state.is_in(topic):
                self._loss_recovery.answered(topic, relay, now_ns=now_ns)
                self._resolve_doubts(topic, vector, relay, now_ns)

    def ask_again(self, now_ns: int) -> None:
        """Repeat unanswered requests for starts, and ask doubted nodes, if that is due."""
        if self.retry_due_ns is None or self.retry_due_ns > now_ns:
            return
        self.retry_due_ns = None
        state = self._state
        idle = [topic for topic, version in self._joins.items() if version is None]
        if idle:
            self.ask_for_start(tuple(idle), now_ns)
        for topic, topic_state in state.causality.topics.items():
            doubt = topic_state.doubt & state.cube.everyone if topic_state.state == IN else 0
            if not doubt:
                continue
            self.retry_due_ns = now_ns + state.config.retry_ns_max
            if back := doubt & ~state.detector.suspected:
                self.send_row((topic,), back, now_ns)

    def doubted(self, topic: str, now_ns: int) -> None:
        """Schedule questions to nodes that are in doubt from now on."""
        self.retry_due_ns = now_ns + self._state.config.retry_ns_max
        self._loss_recovery.doubted[topic] = self._trees.begun

    def started(self, topic: str, vector: Counts, doubt: int, now_ns: int) -> None:
        """Start in a topic from a vector."""
        state = self._state
        skipped = state.causality.joined(topic, vector, doubt)
        if doubt:
            self.doubted(topic, now_ns)
        state.dirty.touch(topic)
        self._repair.stir(topic, now_ns=now_ns)
        self._repair.keep(topic, skipped, now_ns=now_ns)
        state.report_skipped(topic, skipped, [])
        if topic in state.wanted:
            state.effects.append(Join(topic))
        self._on_start(now_ns)

    def _start(self, topic: str, vector: Counts, relay: Relay, now_ns: int) -> None:
        """Start in a topic, unless a node that is needed is away and may yet come back."""
        patient = now_ns < self._patient_until_ns.get(topic, 0)
        start = self._loss_recovery.start(topic, vector, relay, patient=patient, now_ns=now_ns)
        if start is None:
            self._joins[topic] = None
            self.retry_due_ns = now_ns + self._state.config.retry_ns_max
            return
        del self._joins[topic]
        self._patient_until_ns.pop(topic, None)
        self.started(topic, *start, now_ns)

    def _resolve_doubts(self, topic: str, vector: Counts, relay: Relay, now_ns: int) -> None:
        """Skip what nodes that were away at the start, and are back, published up to now."""
        resolved = self._loss_recovery.resolve(topic, vector, relay)
        if resolved is not None:
            skipped, missed = resolved
            self._state.dirty.touch(topic)
            self._repair.keep(topic, skipped, now_ns=now_ns)
            self._state.report_skipped(topic, skipped, missed)

    # -- Restart --------------------------------------------------------------------------------

    def restore_topic(self, topic: str, record: TopicRecord) -> None:
        """Restore whether the application wants a topic, and whether it is being joined."""
        if record.wanted:
            self._state.wanted[topic] = None
        if record.state == JOINING:
            self._joins[topic] = None
        if record.doubt:
            self.retry_due_ns = 0

    def resume(self, now_ns: int) -> None:
        """Ask for the starts that an earlier run did not get."""
        for topic in self._joins:
            self._patient_until_ns[topic] = now_ns + self._state.config.patience_ns
        if self._joins:
            self.ask_for_start(tuple(self._joins), now_ns)
