"""The cost model of the paper (section 4), and simulations of the systems under it.

A node has one queue of messages to send. Each copy occupies it for the time to process and the time
to transmit a message, 1 unit each; then it travels for 100 units. `Cost.acknowledgement` is the
cost of an acknowledgement. One unit is a microsecond of the simulator.

No message is lost, so the nodes of the cube run without timers. Everything else is what runs in
production.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

import msgspec

from ensue.core.event import Event
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.frames import Publication, Row
from ensue.protocols.causal.hypercube import Hypercube
from ensue.protocols.causal.membership import Membership
from ensue.protocols.causal.node import CausalNode
from ensue.protocols.causal.records import TOPIC, TopicRecord
from ensue.protocols.interface import Deliver, Frame, Outcome, Publish
from ensue.simulation import Constant, NetworkConfig, QueueConfig, QueueStatistics, World
from experiments.causal.srpt import Down, Plan, SrptNode

__all__ = ["TOPIC_NAME", "UNIT_NS", "Cost", "Run"]

UNIT_NS = 1_000
TOPIC_NAME = "t"
NEVER_NS = 10**15
START_UNITS = 1_000
"""When publishing begins: nodes know each other by then."""
_COPIES = frozenset(("Publication", "Up", "Down", "Change", "Changed"))
"""Names of the frames that occupy a queue: events and changes of membership."""


class Cost:
    """Costs of messages, in units."""

    def __init__(self, *, copy: int = 2, propagation: int = 100, acknowledgement: int = 0) -> None:
        self.copy = copy
        """To process and to transmit."""
        self.propagation = propagation
        self.acknowledgement = acknowledgement

    def size(self, frame: Frame) -> int:
        """Return the time that a frame occupies the queue."""
        name = type(frame).__name__
        if name in _COPIES:
            return self.copy
        return self.acknowledgement if name == "Receipt" else 0


def _membership(rows: Iterable[Row]) -> Membership:
    membership = Membership()
    for row in rows:
        membership.put(row)
    return membership


class _Punctual(CausalNode):
    """A node without timers: no message is lost, and timers would dominate the simulation."""

    def next_timer_ns(self) -> None:
        """Return None: there are no timers."""


class Run:
    """A simulation of one system, with its measurements."""

    def __init__(self, cost: Cost, seed: int) -> None:
        self.latencies = array("d")
        """Units from publication to delivery, for each delivery except the publisher's own."""
        self.held = array("d")
        """Units that the event was held back, for each of these deliveries."""
        self.barriers: dict[str, int] = {}
        """By event: the number of direct predecessors it names."""
        self.copies = 0
        self.last_ns = 0
        """Time of the last delivery."""
        self._published_ns: dict[str, int] = {}
        self._sent_ns: dict[str, int] = {}
        """By event of a cube: when its first copy entered the queue of its source."""
        self._on_delivery: Callable[[str, Event], None] | None = None
        self.world = World(
            seed,
            network=NetworkConfig(default=Constant(cost.propagation * UNIT_NS), fifo=True),
            queueing=QueueConfig(bandwidth_bytes_per_s=1_000_000, size_of=self._size),
            on_outcome=self._outcome,
        )
        self._cost = cost

    def _size(self, frame: Frame) -> int:
        if isinstance(frame, Publication):
            for item in frame.items:
                self.barriers[item.event.id] = sum(len(part) for part in item.after.values())
                self._sent_ns.setdefault(item.event.id, self.world.now_ns)
        if isinstance(frame, Publication | Down):
            self.copies += 1
        return self._cost.size(frame)

    def _outcome(self, name: str, outcome: Outcome) -> None:
        if isinstance(outcome, Publish):
            self._published_ns[outcome.event.id] = self.world.now_ns
        elif isinstance(outcome, Deliver):
            self.last_ns = self.world.now_ns
            if outcome.event.publisher != name:
                took_ns = self.world.now_ns - self._published_ns[outcome.event.id]
                self.latencies.append(took_ns / UNIT_NS)
                self.held.append(outcome.held_ns / UNIT_NS)
            if self._on_delivery is not None:
                self._on_delivery(name, outcome.event)

    # -- Systems ----------------------------------------------------------------------------------

    def add_cube(
        self,
        count: int,
        subscribers: Iterable[int],
        topics: Sequence[str] = (TOPIC_NAME,),
        *,
        fixed: bool = True,
        published: bool = False,
    ) -> None:
        """Add the nodes of a cube; the members, the same for all topics, know each other.

        With `fixed` membership, nodes share one membership table. With `published`, a node sends
        the next event of a topic when all have acknowledged the previous one; otherwise it has the
        default window and batches.
        """
        cube = Hypercube(f"p{number}" for number in range(count))
        chosen = frozenset(subscribers)
        rows = [Row(each, 1, tuple(topics) if each in chosen else ()) for each in range(count)]
        shared = _membership(rows)
        config = CausalConfig(
            across_topics=False, durable=False, retry_ns=NEVER_NS, retry_ns_max=NEVER_NS,
            suspect_ns=NEVER_NS, answer_ns=NEVER_NS, beat_ns=NEVER_NS, digest_ns=NEVER_NS,
            digest_ns_max=NEVER_NS, gap_ns=NEVER_NS, patience_ns=NEVER_NS,
        )  # fmt: skip
        if published:
            config = msgspec.structs.replace(config, window=1, batch_max=1)
        member = TopicRecord(
            state="in", wanted=True, own=0, settled=0, delivered={}, start={}, barrier={},
            doubt=(),
        )  # fmt: skip
        encoded = TOPIC.encode(member)
        for number in range(count):
            name = cube.names[number]
            records = {f"topic/{each}": encoded for each in topics} if number in chosen else {}

            def build(
                _records: object, now_ns: int, name: str = name, records: dict[str, bytes] = records
            ) -> CausalNode:
                return _Punctual(
                    name=name,
                    names=cube,
                    config=config,
                    membership=shared if fixed else _membership(rows),
                    records=records,
                    now_ns=now_ns,
                )

            self.world.add(name, build)

    def add_srpt(self, count: int, plans: Mapping[str, Plan]) -> None:
        """Add the nodes of one tree per topic."""
        names = [f"p{number}" for number in range(count)]
        for number in range(count):

            def build(_records: object, _now_ns: int, number: int = number) -> SrptNode:
                return SrptNode(number, names, plans)

            self.world.add(names[number], build)

    # -- Commands ---------------------------------------------------------------------------------

    def publish(self, number: int, at_units: float, topic: str = TOPIC_NAME) -> None:
        """Schedule a publication of a node."""
        at_ns = int((START_UNITS + at_units) * UNIT_NS)

        def command(node: CausalNode | SrptNode, now_ns: int) -> None:
            node.publish(topic, b"", now_ns=now_ns)

        self.world.call(f"p{number}", command, at_ns=max(at_ns, self.world.now_ns))

    def change(self, number: int, at_units: float, *, joins: bool) -> None:
        """Schedule a node to join or leave."""

        def command(node: CausalNode | SrptNode, now_ns: int) -> None:
            act = node.subscribe if joins else node.unsubscribe
            act((TOPIC_NAME,), now_ns=now_ns)

        self.world.call(f"p{number}", command, at_ns=int((START_UNITS + at_units) * UNIT_NS))

    def when_delivered(self, react: Callable[[str, Event], None]) -> None:
        """Call `react` with the node and the event on every delivery."""
        self._on_delivery = react

    def to_end(self) -> float:
        """Run until nothing is left to do; return the mean latency."""
        self.world.run(until_ns=NEVER_NS // 10)
        return fmean(self.latencies) if self.latencies else 0.0

    def waited(self) -> float:
        """Return the mean units that events of a cube waited at their source to be sent.

        As published, an event waits for the acknowledgements of earlier events.
        """
        since = self._published_ns
        waits_ns = [at_ns - since[event] for event, at_ns in self._sent_ns.items()]
        return fmean(waits_ns) / UNIT_NS if waits_ns else 0.0

    def waits(self) -> list[float]:
        """Return the mean units that copies waited to be sent, for each node."""
        return [card.wait_mean_ns() / UNIT_NS for card in self._cards()]

    def queues(self) -> list[float]:
        """Return the mean queue length of each node, from first publication to last delivery."""
        elapsed_ns = self.last_ns - START_UNITS * UNIT_NS
        now_ns = self.world.now_ns
        return [card.length_mean(elapsed_ns, now_ns=now_ns) for card in self._cards()]

    def longest_queue(self) -> int:
        """Return the maximum queue length over all nodes."""
        return max(card.length_max for card in self._cards())

    def leaves(self) -> int:
        """Return the number of SRPT nodes that sent only their own event to the root."""
        return sum(card.served <= 1 for card in self._cards())

    def _cards(self) -> list[QueueStatistics]:
        cards = [self.world.card(name) for name in self.world.names()]
        return [card for card in cards if card is not None]
