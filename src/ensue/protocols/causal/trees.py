"""Spanning trees: bring a message to a set of nodes, and learn which of them got it.

The source decides which nodes get a message. (In the paper every forwarder decides by its own view,
so a forwarder that is joining or leaving cuts off the nodes below it: erratum 1.) A copy names the
child and, as `below`, all nodes of the child's cluster that the child has to reach; the child
splits those over its own clusters. The view of a forwarder plays no part.

A child answers when all nodes below it have answered or cannot be reached. Receipts name the
covered nodes one by one: a receipt that is lost, late or of another attempt never claims too much,
which matters for start vectors. A parent retransmits a copy that is not answered in the time that
round trips to the child take (`ensue.protocols.shared.round_trips`); a child that is alive answers
at once with what it knows so far. A silent child is suspected, and its part of the cluster goes to
the next node that is not suspected (`FailureDetector`).

Tokens begin at a number that no earlier run used, so an old receipt never fits a new copy.

HAZARD: a node that lost its records and keeps its name reuses tokens. Give it a new name.

Limits: `batch_bytes_max` of rows in a receipt; `FINISHED_MAX` receipts are kept for parents that
ask again. Beyond that a message is relayed once more, which costs copies and nothing else.
"""

from collections import OrderedDict

import msgspec

from ensue.protocols.causal.frames import (
    Change,
    Counts,
    Publication,
    Receipt,
    Row,
    raise_counts,
    row_bytes,
)
from ensue.protocols.causal.hypercube import (
    bits,
    block,
    cluster_of,
    first_in_cluster,
    pack,
    split,
    unpack,
)
from ensue.protocols.causal.node_state import NodeState
from ensue.protocols.shared.round_trips import RoundTrips

__all__ = ["FINISHED_MAX", "Message", "Relay", "Trees"]

FINISHED_MAX = 1024

Message = Publication | Change


class _Copy:
    """A copy of a message for one child."""

    __slots__ = (
        "again", "child", "due_ns", "frame", "height", "relay", "since_ns", "targets", "wait_ns",
    )  # fmt: skip

    def __init__(
        self, relay: "Relay", child: int, height: int, targets: int, frame: Message
    ) -> None:
        self.relay = relay
        self.child = child
        self.height = height
        self.targets = targets
        """The child, and the nodes that it has to reach."""
        self.frame = frame
        self.due_ns = 0
        self.wait_ns = 0
        self.again = False
        """Whether it was retransmitted."""
        self.since_ns = 0
        """When the copy was first sent."""


class Relay:
    """A message, and the nodes that one node has to reach with it."""

    __slots__ = (
        "away", "begun", "copies", "covered", "doubts", "due_ns", "height", "insists", "message",
        "parent", "rows", "targets", "token", "vectors",
    )  # fmt: skip

    def __init__(self, message: Message, targets: int, height: int) -> None:
        self.message = message
        self.targets = targets
        self.height = height
        self.parent: int | None = None
        """The node that sent it here; None at the source."""
        self.token = 0
        self.begun = 0
        """At the source: the token of its first copy, or one before it."""
        self.covered = 0
        """Nodes known to have it."""
        self.away = 0
        """Nodes that could not be reached, or had no room."""
        self.copies: set[int] = set()
        """Tokens of copies without a final receipt."""
        self.rows: dict[int, Row] = {}
        self.vectors: dict[str, Counts] = {}
        self.doubts: dict[str, int] = {}
        """Doubted nodes by topic, as sets."""
        self.insists = False
        """Whether the source retries until at least one target has it."""
        self.due_ns: int | None = None
        """When to retry, if no target could be reached."""

    def note(self, receipt: Receipt) -> None:
        """Merge rows, vectors and doubts of a receipt."""
        for row in receipt.rows:
            known = self.rows.get(row.node)
            if known is None or known.version < row.version:
                self.rows[row.node] = row
        for topic, counts in receipt.vectors.items():
            raise_counts(self.vectors.setdefault(topic, {}), counts)
        for topic, nodes in receipt.doubts.items():
            self.doubts[topic] = self.doubts.get(topic, 0) | sum(1 << node for node in set(nodes))


class Trees:
    """The trees that one node is part of."""

    def __init__(self, state: NodeState, *, first_token: int) -> None:
        self._me = state.number
        self._cube = state.cube
        self._config = state.config
        self._detector = state.detector
        self._send = state.send
        self._direct = state.round_trips
        self._members = state.membership.members
        self._token = first_token
        self._copies: dict[int, _Copy] = {}
        self._round_trips: dict[int, RoundTrips] = {}
        """By child: from a copy to its final receipt, which waits for the nodes below."""
        self._stalled: dict[Relay, None] = {}
        self._relayed: dict[tuple[int, int], Relay] = {}
        """By parent and token: messages being relayed."""
        self._finished: OrderedDict[tuple[int, int], Receipt] = OrderedDict()
        self.done: list[Relay] = []
        """Messages of this node that are finished; the node drains this list."""

    @property
    def begun(self) -> int:
        """A token no larger than that of any copy sent from now on (`Relay.begun`)."""
        return self._token + 1

    def start(self, message: Message, targets: int, *, now_ns: int, insists: bool = False) -> Relay:
        """Send a message of this node to all targets; it ends up in `done`."""
        relay = Relay(message, targets & ~(1 << self._me), self._cube.dimensions)
        relay.insists = insists
        relay.begun = self.begun
        self._launch(relay, relay.targets, relay.height, now_ns)
        self._check(relay, now_ns)
        return relay

    def known(self, message: Message, parent: int) -> bool:
        """Answer a duplicate copy; return whether it is one."""
        key = (parent, message.token)
        finished = self._finished.get(key)
        if finished is not None:
            self._send(parent, finished)
            return True
        relay = self._relayed.get(key)
        if relay is None:
            return False
        self._send(parent, self._receipt(relay, final=False))
        return True

    def pass_on(
        self,
        message: Message,
        parent: int,
        *,
        rows: tuple[Row, ...],
        vectors: dict[str, Counts],
        doubts: dict[str, int],
        now_ns: int,
        covers: bool = True,
    ) -> None:
        """Relay a message of a parent; the rest is this node's part of the answer.

        `covers` is False if this node had no room for the message.
        """
        height = message.height
        below = unpack(message.below, block(self._me, height), height) & self._cube.everyone
        relay = Relay(message, below & ~(1 << self._me), height - 1)
        relay.parent = parent
        relay.token = message.token
        relay.covered = covers << self._me
        relay.rows = {row.node: row for row in rows}
        relay.vectors = {topic: dict(counts) for topic, counts in vectors.items()}
        relay.doubts = dict(doubts)
        self._relayed[parent, message.token] = relay
        self._launch(relay, relay.targets, relay.height, now_ns)
        self._check(relay, now_ns)

    def receipt(self, receipt: Receipt, child: int, *, now_ns: int) -> None:
        """Record which nodes have a message."""
        copy = self._copies.get(receipt.token)
        if copy is None or copy.child != child:
            return
        relay = copy.relay
        covered = unpack(receipt.covered, block(child, copy.height), copy.height)
        relay.covered |= covered & copy.targets
        relay.note(receipt)
        if receipt.final:
            if not copy.again:
                round_trip_ns = now_ns - copy.since_ns
                self._round_trips_to(child).sample(round_trip_ns)
                if copy.targets == 1 << child:
                    self._direct.sample(round_trip_ns)
            self._drop(receipt.token)
            # It answers without the message if it had no room for that, and is asked again.
            relay.away |= copy.targets & ~relay.covered & 1 << child
            self._left_out(relay, copy.targets & ~relay.covered & ~(1 << child), now_ns)
        self._check(relay, now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Retransmit copies without an answer, or route around silent children."""
        for token, copy in list(self._copies.items()):
            if token not in self._copies or copy.due_ns > now_ns:
                continue
            if self._detector.away(copy.child, now_ns) or self._is_overdue(copy, now_ns):
                self._drop(token)
                copy.relay.away |= 1 << copy.child
                rest = copy.targets & ~copy.relay.covered & ~(1 << copy.child)
                self._launch(copy.relay, rest, copy.height, now_ns)
                self._check(copy.relay, now_ns)
            else:
                copy.again = True
                self._transmit(token, copy, now_ns)
        for relay in list(self._stalled):
            if relay.due_ns is not None and relay.due_ns <= now_ns:
                del self._stalled[relay]
                relay.due_ns = None
                again, relay.away = self._still_wanted(relay), 0
                # Directly, one copy each: all are suspected, and one may be back.
                for node in bits(again):
                    self._copy(relay, node, cluster_of(self._me, node), 1 << node, now_ns)
                self._check(relay, now_ns)

    def _is_overdue(self, copy: _Copy, now_ns: int) -> bool:
        """Return whether a child has used up its time to answer.

        A child that sends other frames, but never answers, would block the message.
        """
        copy.since_ns = min(copy.since_ns, now_ns)
        return now_ns - copy.since_ns >= self._config.answer_ns * copy.height

    def _still_wanted(self, relay: Relay) -> int:
        """Retarget a message that no node has to the current members of its topic."""
        assert isinstance(relay.message, Publication)
        there = self._members(relay.message.items[0].event.topic)
        relay.targets = there & self._cube.everyone & ~(1 << self._me)
        return relay.targets

    def next_timer_ns(self) -> int | None:
        """Return when to retransmit next."""
        if not self._copies and not self._stalled:
            return None
        dues = [copy.due_ns for copy in self._copies.values()]
        dues += [relay.due_ns for relay in self._stalled if relay.due_ns is not None]
        return min(dues, default=None)

    def back(self, node: int, *, now_ns: int) -> None:
        """Retry stalled messages now that a target is back, or in other topics."""
        for relay in self._stalled:
            if relay.away >> node & 1:
                relay.due_ns = now_ns

    def _launch(self, relay: Relay, targets: int, height: int, now_ns: int) -> None:
        """Send one copy per cluster, to its first node that is not suspected."""
        suspected = self._detector.suspected
        for cluster, part in split(self._me, height, targets):
            child = first_in_cluster(self._me, cluster, part & ~suspected)
            if child is None:
                relay.away |= part
            else:
                self._copy(relay, child, cluster, part, now_ns)

    def _copy(self, relay: Relay, child: int, height: int, targets: int, now_ns: int) -> None:
        self._token += 1
        below = pack(targets & ~(1 << child), block(child, height), height)
        frame = msgspec.structs.replace(
            relay.message, token=self._token, height=height, below=below
        )
        copy = self._copies[self._token] = _Copy(relay, child, height, targets, frame)
        copy.wait_ns = self._round_trips_to(child).timeout_ns
        copy.since_ns = now_ns
        relay.copies.add(self._token)
        self._transmit(self._token, copy, now_ns)

    def _transmit(self, token: int, copy: _Copy, now_ns: int) -> None:
        assert copy.frame.token == token
        self._detector.ask(copy.child, now_ns)
        if copy.again:
            copy.wait_ns = self._round_trips_to(copy.child).after(copy.wait_ns)
        copy.due_ns = now_ns + copy.wait_ns
        self._send(copy.child, copy.frame)

    def _round_trips_to(self, child: int) -> RoundTrips:
        found = self._round_trips.get(child)
        if found is None:
            config = self._config
            found = self._round_trips[child] = RoundTrips(
                initial_ns=config.retry_ns,
                least_ns=config.retry_ns_min,
                most_ns=config.retry_ns_max,
            )
        return found

    def _drop(self, token: int) -> None:
        copy = self._copies.pop(token)
        copy.relay.copies.discard(token)

    def _left_out(self, relay: Relay, nodes: int, now_ns: int) -> None:
        """Try nodes that a child could not reach, if this node is the source."""
        if relay.parent is not None:
            relay.away |= nodes
            return
        for node in bits(nodes & ~self._detector.suspected):
            self._copy(relay, node, cluster_of(self._me, node), 1 << node, now_ns)
        relay.away |= nodes & self._detector.suspected

    def _check(self, relay: Relay, now_ns: int) -> None:
        """Finish a message if no copy is outstanding."""
        if relay.copies:
            return
        relay.away &= ~relay.covered
        if relay.parent is None:
            insists = relay.insists and relay.targets and not relay.covered and relay.away
            if insists and self._still_wanted(relay):
                relay.due_ns = now_ns + self._config.suspect_ns
                self._stalled[relay] = None
            else:
                self.done.append(relay)
            return
        receipt = self._receipt(relay, final=True)
        self._relayed.pop((relay.parent, relay.token), None)
        self._finished[relay.parent, relay.token] = receipt
        if len(self._finished) > FINISHED_MAX:
            self._finished.popitem(last=False)
        self._send(relay.parent, receipt)

    def _receipt(self, relay: Relay, *, final: bool) -> Receipt:
        assert relay.parent is not None
        height = relay.height + 1
        rows: list[Row] = []
        size = 0
        for node in sorted(relay.rows):
            # Rows that do not fit arrive by heartbeat, before long.
            size += row_bytes(relay.rows[node])
            if size > self._config.batch_bytes_max:
                break
            rows.append(relay.rows[node])
        return Receipt(
            token=relay.token,
            covered=pack(relay.covered, block(self._me, height), height),
            final=final,
            rows=tuple(rows),
            vectors=relay.vectors if final else _copied(relay.vectors),
            doubts={topic: tuple(bits(nodes)) for topic, nodes in relay.doubts.items() if nodes},
        )


def _copied(vectors: dict[str, Counts]) -> dict[str, Counts]:
    """Copy vectors that may still grow after they are sent."""
    return {topic: dict(counts) for topic, counts in vectors.items()}
