"""Five servers that make stamps, and clients that request them, with the paper's link delays.

The systems differ in their nodes, and in the order of the servers in the chain:

- *Ours, groups by two*: production nodes as `causal = false` configures them (`stations`), with the
  servers in the paper's order, by the identifiers of their topics.
- *Ours, groups by two, ordered*: the same nodes and topics, and the servers in the order in which
  events take the fewest hops.
- *Ours*: the default, groups by one common subscription.
- *Ours, placed*: the default, with the placement that `ensue.spark.placement` computes.
- *Published rules*, and *published rules, ordered*: a model of the paper's rules (`published`) with
  the servers in the same two orders.

The paper's requests climb to server 1; here they start at stage 0, so its server 5 is stage 0. A
stamp takes `Load.service_ns` at each server that adds to it. Ensue alone passes stamps on with
nothing to add, and its clients alone repeat requests; these take a measured share of that time
(`PASSED`, `REPEATED`). With 1 ms, five servers make at most 5,000 stamps a second, where the
paper's prototype peaks. Publishing takes no time, as in the paper. A client is 10 ± 2 ms from the
server of its site and 100 ± 10 ms from the others, as servers are from each other.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from random import Random

import msgspec
import numpy as np

from ensue.protocols.interface import Frame, Node
from ensue.protocols.shared.link import LinkData, unpacked
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import Fill, OrderRequest, StampRequest
from ensue.protocols.total.placement import Placement
from ensue.server.config import connected, sequenced
from ensue.simulation import NetworkConfig, QueueConfig, World
from ensue.simulation.world.delays import Normal
from ensue.simulation.world.network import LinkDelay
from ensue.simulation.world.process import Factory
from experiments.total.published import PublishedClient, PublishedServer, published
from experiments.total.stations import CODEC, MeasuredPublisher, MeasuredStation, chain, linked
from experiments.total.workload import SITES, TOPICS, Flags, Ints, Sites

__all__ = ["SYSTEMS", "Load", "Measured", "measure", "server_order"]

MS = 1_000_000
SECOND = 1_000_000_000
SERVICE_NS = 1 * MS
PASSED, REPEATED = 0.6, 0.4
"""What a visit costs that adds nothing to a stamp, and a repeated request, as a share of what a
stamped request costs. Measured by `benchmarks/visits.py`."""
NEAR, FAR = Normal(10 * MS, 2 * MS), Normal(100 * MS, 10 * MS)
PUBLISHED, PUBLISHED_ORDERED = "published rules", "published rules, ordered"
OURS, PLACED = "ours", "ours, placed"
TWO, ORDERED = "ours, groups by two", "ours, groups by two, ordered"
SYSTEMS = (TWO, ORDERED, OURS, PLACED, PUBLISHED, PUBLISHED_ORDERED)

Nodes = tuple[
    Sequence[MeasuredStation | PublishedServer], Sequence[MeasuredPublisher | PublishedClient]
]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load on the servers."""

    shape: float
    per_second: int
    each: int
    """Topics per client."""
    duration_ns: int
    seed: int
    clients: int = 1000
    service_ns: int = SERVICE_NS
    """How long a request takes at a server."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one load."""

    latency_ms: float
    """Mean time from a request to its stamp.

    Over requests of the second half that were answered within twice the duration.
    """
    per_second: float
    """Rate of stamps received in the second half."""
    outgoing: Mapping[int, float]
    """By the paper's server number: the share of entries that it forwarded to other servers."""


def measure(system: str, load: Load) -> Measured:
    """Run clients that request stamps, and measure."""
    sites = Sites.draw(load.shape, load.clients, load.each, load.seed)
    placement, config = deployment(system, sites)
    servers, clients = _nodes(system, sites, placement, config)
    world = _world(load, sites, placement, config)
    for server in servers:
        node = linked(server) if isinstance(server, MeasuredStation) else server
        world.add(server.name, _existing(node), site=f"site-{_number(server.name) - 1}")
    for number, client in enumerate(clients):
        world.add(client.name, _existing(client), site=f"site-{number * SITES // load.clients}")
    _schedule_requests(world, load, sites)
    world.run(until_ns=2 * load.duration_ns)
    half_ns = load.duration_ns // 2
    waits = [each for client in clients for each in client.waits]
    latencies_ns = [
        arrived - requested
        for requested, arrived in waits
        if half_ns <= requested < load.duration_ns
    ]
    made = sum(half_ns <= arrived < load.duration_ns for _, arrived in waits)
    return Measured(
        latency_ms=sum(latencies_ns) / len(latencies_ns) / MS,
        per_second=made / (half_ns / SECOND),
        outgoing={_number(server.name): server.traffic.share for server in servers},
    )


def _number(server: str) -> int:
    """Return the paper's number of a server."""
    return int(server.rpartition("-")[2])


class VisitCost:
    """How long a frame takes a server: requests by what it does with them, and others nothing."""

    def __init__(self, service_ns: int, sites: Sites, placement: Placement, groups: int) -> None:
        self._service_ns = service_ns
        self._passed_ns, self._repeated_ns = int(PASSED * service_ns), int(REPEATED * service_ns)
        self._requested: set[str] = set()
        """The events that were requested before."""
        self._passed: set[tuple[str, str, str, int]] = set()
        """The stamps that were passed on before: to whom, and the request."""
        stages = np.array([placement.stage(f"t{topic}") for topic in range(TOPICS)])
        self._needed = reached(sites.counts >= groups, stages)
        self._stage = {name: stage for stage, name in enumerate(placement.nodes)}

    def __call__(self, node: str, frame: Frame) -> int:
        """Return the time."""
        if isinstance(frame, LinkData):
            return sum(self(node, CODEC.decode(part)) for part in unpacked(frame.payload))
        if isinstance(frame, Fill):
            passed = (node, frame.publisher, frame.origin, frame.number)
            if passed in self._passed:
                return self._repeated_ns
            self._passed.add(passed)
            needs = self._needed[int(frame.topic[1:]), self._stage[node]]
            return self._service_ns if needs else self._passed_ns
        if isinstance(frame, OrderRequest):
            fresh = {event.id for event in frame.events} - self._requested
            self._requested |= fresh
            repeated = len(frame.events) - len(fresh)
            return self._service_ns * len(fresh) + self._repeated_ns * repeated
        return self._service_ns if isinstance(frame, StampRequest) else 0


def reached(grouped: Flags, stages: Ints) -> Flags:
    """Return by topic and stage whether the stage hosts the topic, or another of its group."""
    own = np.eye(TOPICS, dtype=np.bool_)
    return np.stack([(grouped | own)[:, stages == at].any(axis=1) for at in range(SITES)], axis=1)


def server_order(sites: Sites) -> tuple[int, ...]:
    """Return the sites in the order, from stage 0 on, in which events take the fewest hops.

    A server keeps its topics. An event travels from the server of its topic to the last one that
    hosts a topic of its group, through all between them.
    """
    home = np.arange(TOPICS) // (TOPICS // SITES)
    shared = reached(sites.counts >= 2, home)
    rate = sites.chances.sum(axis=0)

    def hops(order: tuple[int, ...]) -> float:
        stage = np.argsort(order)
        last = np.where(shared, stage, 0).max(axis=1)
        return float((rate * (last - stage[home])).sum())

    return min(permutations(range(SITES)), key=hops)


def _stages(system: str, sites: Sites) -> tuple[list[int], list[int]]:
    """Return the stage of each topic, and the site of each stage."""
    if system == PLACED:
        return _placed(sites)
    ordered = system in (ORDERED, PUBLISHED_ORDERED)
    where = server_order(sites) if ordered else tuple(reversed(range(SITES)))
    return [where.index(topic // (TOPICS // SITES)) for topic in range(TOPICS)], list(where)


def _placed(sites: Sites) -> tuple[list[int], list[int]]:
    # Imported here, so that listing experiments works without the Spark extra.
    from ensue.spark.chain_partition import Problem, solve  # noqa: PLC0415

    rate = sites.chances.sum(axis=0)
    left, right = np.nonzero(np.triu(sites.counts))
    solution = solve(
        Problem(
            rate=rate,
            component=np.zeros(TOPICS, dtype=np.int64),
            away=rate[:, None] - sites.chances.T,
            left=left,
            right=right,
            shared=sites.counts[left, right].astype(np.float64),
            crowded=np.zeros(TOPICS, dtype=np.bool_),
            balance=1.2,
        )
    )
    return solution.stage.tolist(), list(solution.chain)


def deployment(system: str, sites: Sites) -> tuple[Placement, SequencerConfig]:
    """Return the placement of topics on servers, and the configuration of the production nodes."""
    stages, where = _stages(system, sites)
    names = [f"server-{site + 1}" for site in where]
    topics: dict[str, list[str]] = {name: [] for name in names}
    for topic, stage in enumerate(stages):
        topics[names[stage]].append(f"t{topic}")
    config = connected(sequenced(causal=system not in (TWO, ORDERED)))
    return Placement(names, topics=topics, closed=True), config


def named(topics: Sequence[int]) -> tuple[str, ...]:
    """Return the names of topics."""
    return tuple(f"t{topic}" for topic in topics)


def _nodes(system: str, sites: Sites, placement: Placement, config: SequencerConfig) -> Nodes:
    """Return the servers, by stage, and the clients."""
    if system in (PUBLISHED, PUBLISHED_ORDERED):
        return published(sites, placement)
    clients = [
        MeasuredPublisher(f"client-{number}", placement, config)
        for number in range(len(sites.subscriptions))
    ]
    return chain(placement, config, map(named, sites.subscriptions)), clients


def _world(load: Load, sites: Sites, placement: Placement, config: SequencerConfig) -> World:
    pairs = tuple(
        LinkDelay(
            source=f"site-{a}", target=f"site-{b}", delay=NEAR if a == b else FAR, both_ways=False
        )
        for a in range(SITES)
        for b in range(SITES)
    )
    cost = VisitCost(load.service_ns, sites, placement, config.groups)
    return World(
        load.seed,
        network=NetworkConfig(sites=pairs, fifo=True),
        queueing=QueueConfig(service_of=cost),
        ens_for=placement.node,
    )


def _existing(node: Node) -> Factory:
    """Return a factory for an existing node: no node crashes here, so it runs once."""
    return lambda _records, _now_ns: node


def _schedule_requests(world: World, load: Load, sites: Sites) -> None:
    """Schedule requests of random clients at random times, with topics by their site's law."""
    random = Random(f"asking/{load.shape}/{load.per_second}/{load.each}/{load.seed}")
    chooser = np.random.default_rng([load.per_second, load.each, load.seed])
    total = int(load.per_second * load.duration_ns / SECOND)
    drawn = [
        chooser.choice(TOPICS, size=total, p=sites.chances[site]).tolist() for site in range(SITES)
    ]
    at_ns = 0.0
    for index in range(total):
        at_ns += random.expovariate(load.per_second) * SECOND
        number = random.randrange(load.clients)
        topic = drawn[number * SITES // load.clients][index]

        def command(
            node: MeasuredPublisher | PublishedClient, now_ns: int, topic: int = topic
        ) -> None:
            node.request(topic, now_ns)

        world.call(f"client-{number}", command, at_ns=int(at_ns))
