"""Spanning trees: hand a message to a set of nodes, and learn who has got it.

The source decides who gets a message (the paper lets every forwarder decide by its own view, so that a
forwarder that is joining or leaving cuts off those below it; erratum 1). A copy names the child and, as
`below`, everybody of the child's cluster whom the child has to see to; the child splits those over its own
clusters. A forwarder's own view plays no part.

A child answers when everybody below has answered, or can't be reached. Receipts say who is covered,
node by node: a receipt that is lost, late or of another attempt never claims too much, which matters for
the start vectors of a joiner. A parent that waits too long sends its copy again; a child that is there
answers that at once with what it knows so far. One that stays silent is suspected, and its part of
the cluster goes to the next node that is not (`Suspects`).

Only what was sent by this very process run is believed: tokens begin at a number that no earlier run
has used, so that nobody's old receipt fits a new copy.

HAZARD: a node that lost its records and bears its old name would use tokens again. Give it a new name.

Limits: `batch_bytes_max` of rows in a receipt; `FINISHED_MAX` answers are remembered for parents that ask again; beyond, a message is passed
on once more, which costs copies and nothing else.
"""

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from ensue.protocols.hypercube.config import HypercubeConfig
from ensue.protocols.hypercube.cube import (
    Cube,
    bits,
    block,
    cluster_of,
    first_in_cluster,
    pack,
    split,
    unpack,
)
from ensue.protocols.hypercube.frames import Change, Counts, Publication, Receipt, Row, row_bytes
from ensue.protocols.hypercube.suspects import Suspects

__all__ = ["FINISHED_MAX", "Message", "Relay", "Trees", "raise_counts"]

FINISHED_MAX = 1024

Message = Publication | Change
Sender = Callable[[int, Publication | Change | Receipt], None]


def raise_counts(counts: Counts, others: Counts) -> None:
    """Raise counts to those of others where these are greater."""
    for source, count in others.items():
        if counts.get(source, 0) < count:
            counts[source] = count


class _Copy:
    """A message on its way to one child."""

    __slots__ = ("child", "due_ns", "frame", "height", "relay", "since_ns", "targets", "wait_ns")

    def __init__(
        self, relay: "Relay", child: int, height: int, targets: int, frame: Message
    ) -> None:
        self.relay = relay
        self.child = child
        self.height = height
        self.targets = targets
        """The child, and whom it has to see to."""
        self.frame = frame
        self.due_ns = 0
        self.wait_ns = 0
        self.since_ns = 0
        """When it was first sent."""


class Relay:
    """A message, and those whom one node has to see to."""

    __slots__ = (
        "away", "begun", "copies", "covered", "doubts", "due_ns", "height", "insists", "message", "parent", "rows",
        "targets", "token", "vectors",
    )  # fmt: skip

    def __init__(self, message: Message, targets: int, height: int) -> None:
        self.message = message
        self.targets = targets
        self.height = height
        self.parent: int | None = None
        """Who handed it over; None at the source."""
        self.token = 0
        self.begun = 0
        """At the source: the number of its first copy, or one before it."""
        self.covered = 0
        """Who is known to have it."""
        self.away = 0
        """Who could not be reached."""
        self.copies: set[int] = set()
        """The tokens of the copies not answered for good."""
        self.rows: dict[int, Row] = {}
        self.vectors: dict[str, Counts] = {}
        self.doubts: dict[str, int] = {}
        """By topic, as sets."""
        self.insists = False
        """Whether the source goes on until somebody has it."""
        self.due_ns: int | None = None
        """When to try again, if nobody was there."""

    def note(self, receipt: Receipt) -> None:
        """Take over what a receipt brings along."""
        for row in receipt.rows:
            known = self.rows.get(row.node)
            if known is None or known.version < row.version:
                self.rows[row.node] = row
        for topic, counts in receipt.vectors.items():
            raise_counts(self.vectors.setdefault(topic, {}), counts)
        for topic, nodes in receipt.doubts.items():
            self.doubts[topic] = self.doubts.get(topic, 0) | sum(1 << node for node in set(nodes))


class Trees:
    """The trees in which one node takes part."""

    def __init__(
        self,
        me: int,
        cube: Cube,
        config: HypercubeConfig,
        suspects: Suspects,
        send: Sender,
        *,
        first_token: int,
        members: Callable[[str], int],
    ) -> None:
        self._me = me
        self._cube = cube
        self._config = config
        self._suspects = suspects
        self._send = send
        self._members = members
        """Who is in a topic."""
        self._token = first_token
        self._copies: dict[int, _Copy] = {}
        self._stalled: dict[Relay, None] = {}
        self._relayed: dict[tuple[int, int], Relay] = {}
        """By parent and token: what is being passed on."""
        self._finished: OrderedDict[tuple[int, int], Receipt] = OrderedDict()
        self.done: list[Relay] = []
        """Messages of this node that went as far as they can, to be taken by whoever looks."""

    @property
    def begun(self) -> int:
        """A number that is smaller than that of every copy to come (`Relay.begun`)."""
        return self._token + 1

    def start(self, message: Message, targets: int, *, now_ns: int, insists: bool = False) -> Relay:
        """Send a message of this node to all targets; it turns up in `done`."""
        relay = Relay(message, targets & ~(1 << self._me), self._cube.dimensions)
        relay.insists = insists
        relay.begun = self.begun
        self._launch(relay, relay.targets, relay.height, now_ns)
        self._check(relay, now_ns)
        return relay

    def known(self, message: Message, parent: int) -> bool:
        """Answer for a copy that came before; return whether it did."""
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
    ) -> None:
        """See to whom a parent handed over; the rest is this node's own answer."""
        height = message.height
        below = unpack(message.below, block(self._me, height), height) & self._cube.everyone
        relay = Relay(message, below & ~(1 << self._me), height - 1)
        relay.parent = parent
        relay.token = message.token
        relay.covered = 1 << self._me
        relay.rows = {row.node: row for row in rows}
        relay.vectors = {topic: dict(counts) for topic, counts in vectors.items()}
        relay.doubts = dict(doubts)
        self._relayed[parent, message.token] = relay
        self._launch(relay, relay.targets, relay.height, now_ns)
        self._check(relay, now_ns)

    def receipt(self, receipt: Receipt, child: int, *, now_ns: int) -> None:
        """Take note of who has got a message."""
        copy = self._copies.get(receipt.token)
        if copy is None or copy.child != child:
            return
        relay = copy.relay
        covered = unpack(receipt.covered, block(child, copy.height), copy.height)
        relay.covered |= covered & copy.targets
        relay.note(receipt)
        if receipt.final:
            self._drop(receipt.token)
            self._left_out(relay, copy.targets & ~relay.covered & ~(1 << child), now_ns)
        self._check(relay, now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Send again what was not answered, or send it around whoever is silent."""
        for token, copy in list(self._copies.items()):
            if token not in self._copies or copy.due_ns > now_ns:
                continue
            if self._suspects.away(copy.child, now_ns) or self._is_overdue(copy, now_ns):
                self._drop(token)
                copy.relay.away |= 1 << copy.child
                rest = copy.targets & ~copy.relay.covered & ~(1 << copy.child)
                self._launch(copy.relay, rest, copy.height, now_ns)
                self._check(copy.relay, now_ns)
            else:
                self._transmit(token, copy, now_ns)
        for relay in list(self._stalled):
            if relay.due_ns is not None and relay.due_ns <= now_ns:
                del self._stalled[relay]
                relay.due_ns = None
                again, relay.away = self._still_wanted(relay), 0
                # Directly, one copy each: all of them are suspected, and one may be back.
                for node in bits(again):
                    self._copy(relay, node, cluster_of(self._me, node), 1 << node, now_ns)
                self._check(relay, now_ns)

    def _is_overdue(self, copy: _Copy, now_ns: int) -> bool:
        """Tell whether a child has had its time, heard or not: else one that never answers would hold up everybody."""
        copy.since_ns = min(copy.since_ns, now_ns)
        return now_ns - copy.since_ns >= self._config.answer_ns * copy.height

    def _still_wanted(self, relay: Relay) -> int:
        """Return whom a message is for that nobody has: those who are in its topic now, also if they came later."""
        assert isinstance(relay.message, Publication)
        there = self._members(relay.message.items[0].event.topic)
        relay.targets = there & self._cube.everyone & ~(1 << self._me)
        return relay.targets

    def next_timer_ns(self) -> int | None:
        """Return when something is to be sent again."""
        if not self._copies and not self._stalled:
            return None
        dues = [copy.due_ns for copy in self._copies.values()]
        dues += [relay.due_ns for relay in self._stalled if relay.due_ns is not None]
        return min(dues, default=None)

    def back(self, node: int, *, now_ns: int) -> None:
        """Try again at once with a node that was suspected and is there, where nobody was."""
        for relay in self._stalled:
            if relay.away >> node & 1:
                relay.due_ns = now_ns

    def _launch(self, relay: Relay, targets: int, height: int, now_ns: int) -> None:
        """Send one copy a cluster, to its first node that is not suspected."""
        suspected = self._suspects.suspected
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
        copy.wait_ns = self._config.retry_ns
        copy.since_ns = now_ns
        relay.copies.add(self._token)
        self._transmit(self._token, copy, now_ns)

    def _transmit(self, token: int, copy: _Copy, now_ns: int) -> None:
        assert copy.frame.token == token
        self._suspects.ask(copy.child, now_ns)
        copy.due_ns = now_ns + copy.wait_ns
        copy.wait_ns = min(2 * copy.wait_ns, self._config.retry_ns_max)
        self._send(copy.child, copy.frame)

    def _drop(self, token: int) -> None:
        copy = self._copies.pop(token)
        copy.relay.copies.discard(token)

    def _left_out(self, relay: Relay, nodes: int, now_ns: int) -> None:
        """See to those whom a child could not reach: the source tries them itself before it gives up."""
        if relay.parent is not None:
            relay.away |= nodes
            return
        for node in bits(nodes & ~self._suspects.suspected):
            self._copy(relay, node, cluster_of(self._me, node), 1 << node, now_ns)
        relay.away |= nodes & self._suspects.suspected

    def _check(self, relay: Relay, now_ns: int) -> None:
        """Finish with a message if nobody is to be waited for any more."""
        if relay.copies:
            return
        relay.away &= ~relay.covered
        if relay.parent is None:
            if relay.insists and relay.targets and not relay.covered and relay.away:
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
            # Who is left out is heard of by the neighbours, before long.
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
    """Copy vectors that may still grow after they were sent."""
    return {topic: dict(counts) for topic, counts in vectors.items()}
