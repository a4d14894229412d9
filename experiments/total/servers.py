"""Five servers that make stamps, and clients that request them, with the paper's link delays.

Four systems; three of them are the nodes that run in production and differ only in configuration:

- *Ours, groups by two*: fixed subscriptions, and topics are ordered together if two subscriptions
  share them, as in the paper.
- *Ours*: the default, groups by one common subscription.
- *Ours, placed*: the default, with the placement that `ensue.spark.placement` computes.

None of these skips a server, and all omit unchanged entries. The fourth is for comparison:

- *Published rules*: a model of the paper's rules as far as they decide latency and load. Groups by
  two; a stamp names its whole group and visits only the servers above that host a topic of it.
  Skipping the other servers is what can make a subscriber wait forever.

The paper's requests climb to server 1; here they start at stage 0, so its server 5 is stage 0. A
stamp takes `SERVICE_NS` at each server it visits, so five servers make at most 5,000 a second,
where the paper's prototype peaks. A client is 10 ± 2 ms from the server of its site and
100 ± 10 ms from the others, as servers are from each other.
"""

from collections.abc import Sequence
from random import Random

import msgspec
import numpy as np

from ensue.core.event import Stamp
from ensue.protocols.interface import Effect, Frame, Node, Send
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import Fill, Grant, Stamped, StampRequest
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.sequencer import Sequencer
from ensue.simulation import NetworkConfig, QueueConfig, World
from ensue.simulation.world.delays import Normal
from ensue.simulation.world.network import LinkDelay
from ensue.simulation.world.process import Factory
from experiments.total.workload import SITES, TOPICS, Sites

__all__ = ["SYSTEMS", "Load", "Measured", "measure"]

MS = 1_000_000
SECOND = 1_000_000_000
SERVICE_NS = 1 * MS
NEAR, FAR = Normal(10 * MS, 2 * MS), Normal(100 * MS, 10 * MS)
PUBLISHED, OURS, PLACED = "published rules", "ours", "ours, placed"
TWO = "ours, groups by two"
SYSTEMS = (TWO, OURS, PLACED, PUBLISHED)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load on the servers."""

    shape: float
    per_second: int
    each: int
    """Topics per client."""
    duration_ns: int
    seed: int
    clients: int = 1000


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one load."""

    latency_ms: float
    """Mean time from a request to its stamp.

    Over requests of the second half that were answered within twice the duration.
    """
    per_second: float
    """Rate of stamps received in the second half."""
    outgoing: dict[int, float]
    """By the paper's server number: the share of entries that it forwarded to other servers."""
    entries: float
    """Mean entries per stamp."""


class _Client:
    """A client that requests stamps. Command: `request`."""

    def __init__(self, name: str, hosts: Sequence[str]) -> None:
        self.name = name
        self._hosts = hosts
        self._numbers: dict[str, int] = {}
        self._requested_ns: dict[tuple[str, int], int] = {}
        self.waits: list[tuple[int, int, int]] = []
        """Per stamp: when it was requested, when it arrived, and its entries."""
        self._effects: list[Effect] = []

    def request(self, topic: int, now_ns: int) -> None:
        """Request a stamp."""
        host = self._hosts[topic]
        number = self._numbers[host] = self._numbers.get(host, 0) + 1
        self._requested_ns[host, number] = now_ns
        request = StampRequest(number=number, topics=(f"t{topic}",), settled=1)
        self._effects.append(Send(host, request))

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Record the stamps of a frame."""
        del source
        if isinstance(frame, Stamped):
            for grant in frame.grants:
                requested_ns = self._requested_ns.pop((frame.origin, grant.number))
                self.waits.append((requested_ns, now_ns, len(grant.stamp.entries)))

    def handle_timer(self, *, now_ns: int) -> None:
        """Do nothing: there are no timers."""

    def next_timer_ns(self) -> int | None:
        """Return None: there are no timers."""
        return None

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        effects, self._effects = self._effects, []
        return effects


class _Traffic:
    """Count of stamp entries that leave a server, to other servers or to clients."""

    def __init__(self) -> None:
        self.onward = 0
        self.done = 0

    def count(self, effects: Sequence[Effect]) -> Sequence[Effect]:
        """Count the entries of effects; return the effects."""
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.frame, Fill):
                self.onward += len(effect.frame.stamp.entries)
            elif isinstance(effect, Send) and isinstance(effect.frame, Stamped):
                self.done += sum(len(grant.stamp.entries) for grant in effect.frame.grants)
        return effects


class _Ours(Sequencer):
    """A production node with a traffic counter."""

    traffic: _Traffic

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        return self.traffic.count(super().take_effects())

    def next_timer_ns(self) -> None:
        """Return None: a run is shorter than a lease."""


class _Published:
    """A server of the paper's topic managers: every server on the route fills in the stamp."""

    def __init__(self, name: str, ways: Sequence[tuple[str, ...]], sizes: Sequence[int]) -> None:
        self.name = name
        self.traffic = _Traffic()
        self._ways = ways
        """By topic: the servers above this one that its stamps visit."""
        self._stamps = [Stamp({f"{index}": 1 for index in range(size)}) for size in sizes]
        """By topic: a stamp with the right number of entries; their content does not matter."""
        self._effects: list[Effect] = []

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Fill in a stamp and forward it."""
        del now_ns
        if isinstance(frame, StampRequest):
            topic = frame.topics[0]
            self._onward(topic, source, self.name, frame.number, 0)
        elif isinstance(frame, Fill):
            self._onward(frame.topic, frame.publisher, frame.origin, frame.number, frame.last)

    def _onward(self, topic: str, client: str, origin: str, number: int, step: int) -> None:
        index = int(topic[1:])
        way, stamp = self._ways[index], self._stamps[index]
        if step < len(way):
            fill = Fill(
                publisher=client,
                origin=origin,
                number=number,
                topic=topic,
                stamp=stamp,
                last=step + 1,
            )
            self._effects.append(Send(way[step], fill))
        else:
            stamped = Stamped(origin=origin, grants=(Grant(number, stamp),))
            self._effects.append(Send(client, stamped))

    def handle_timer(self, *, now_ns: int) -> None:
        """Do nothing: there are no timers."""

    def next_timer_ns(self) -> int | None:
        """Return None: there are no timers."""
        return None

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        effects, self._effects = self._effects, []
        return self.traffic.count(effects)


def _stages(system: str, sites: Sites) -> tuple[list[int], list[int]]:
    """Return the stage of each topic, and the site of each stage."""
    own = TOPICS // SITES
    if system != PLACED:
        return [SITES - 1 - topic // own for topic in range(TOPICS)], list(reversed(range(SITES)))
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


def measure(system: str, load: Load) -> Measured:
    """Run clients that request stamps, and measure."""
    sites = Sites.draw(load.shape, load.clients, load.each, load.seed)
    stages, where = _stages(system, sites)
    names = [f"server-{stage}" for stage in range(SITES)]
    pairs = tuple(
        LinkDelay(
            source=f"site-{a}", target=f"site-{b}", delay=NEAR if a == b else FAR, both_ways=False
        )
        for a in range(SITES)
        for b in range(SITES)
    )
    world = World(
        load.seed,
        network=NetworkConfig(sites=pairs, fifo=True),
        queueing=QueueConfig(
            service_ns_by_frame={"StampRequest": SERVICE_NS, "Fill": SERVICE_NS, "Stamped": 0}
        ),
    )
    servers = _servers(system, sites, stages, names)
    for stage, server in enumerate(servers):
        world.add(names[stage], _existing(server), site=f"site-{where[stage]}")
    hosts = [names[stage] for stage in stages]
    clients = [_Client(f"client-{number}", hosts) for number in range(load.clients)]
    for number, client in enumerate(clients):
        world.add(client.name, _existing(client), site=f"site-{number * SITES // load.clients}")
    _schedule_requests(world, load, sites)
    world.run(until_ns=2 * load.duration_ns)
    half_ns = load.duration_ns // 2
    waits = [each for client in clients for each in client.waits]
    latencies_ns = [
        arrived - requested
        for requested, arrived, _ in waits
        if half_ns <= requested < load.duration_ns
    ]
    made = sum(half_ns <= arrived < load.duration_ns for _, arrived, _ in waits)
    return Measured(
        latency_ms=sum(latencies_ns) / len(latencies_ns) / MS,
        per_second=made / (half_ns / SECOND),
        outgoing={
            SITES - stage: traffic.onward / max(1, traffic.onward + traffic.done)
            for stage, traffic in enumerate(server.traffic for server in servers)
        },
        entries=sum(size for _, _, size in waits) / len(waits),
    )


def _existing(node: Node) -> Factory:
    """Return a factory for an existing node: no node crashes here, so it runs once."""
    return lambda _records, _now_ns: node


def _servers(
    system: str, sites: Sites, stages: Sequence[int], names: Sequence[str]
) -> Sequence[_Ours | _Published]:
    if system == PUBLISHED:
        grouped = sites.counts >= 2
        ways = []
        for topic in range(TOPICS):
            partners = np.flatnonzero(grouped[topic]).tolist()
            above = {stages[each] for each in partners if stages[each] > stages[topic]}
            ways.append(tuple(names[stage] for stage in sorted(above)))
        sizes = (grouped.sum(axis=1) + 1).tolist()
        return [_Published(name, ways, sizes) for name in names]
    topics = {name: [f"t{t}" for t in range(TOPICS) if names[stages[t]] == name] for name in names}
    fixed = {
        f"s{number}": tuple(f"t{topic}" for topic in chosen)
        for number, chosen in enumerate(sites.subscriptions)
    }
    placement = Placement(names, topics=topics, closed=True)
    config = SequencerConfig(
        groups=2 if system == TWO else 1,
        fixed=fixed,
        durable=False,
        publisher_order=False,
        window=1_000_000,
    )
    made = []
    for name in names:
        node = _Ours(name=name, placement=placement, config=config)
        node.traffic = _Traffic()
        made.append(node)
    return made


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

        def command(node: _Client, now_ns: int, topic: int = topic) -> None:
            node.request(topic, now_ns)

        world.call(f"client-{number}", command, at_ns=int(at_ns))
