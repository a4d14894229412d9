"""Play a scenario and judge what came of it.

A run has two parts. For the scenario's duration events flow and faults strike. Then everything is
healed and the liveness bound starts: within `settle_ns` every event must be settled at its
publisher, nobody may hold anything back, every change of subscription must be through, and every
subscriber must have come to the end of its topics. A run that does not get there is stuck. Whether
stuck or not, its trace is judged by the checkers.
"""

from collections.abc import Iterator

import msgspec

from ensue.checkers import Report, Verdict, check
from ensue.event import Event
from ensue.protocols.core import Node
from ensue.protocols.link import Linked
from ensue.protocols.sequencer.node import SequencerNode
from ensue.protocols.sequencer.publisher import Publisher
from ensue.protocols.sequencer.subscriber import Subscriber
from ensue.protocols.station import Station
from ensue.protocols.topic_log import TopicLog
from ensue.protocols.unordered import UnorderedPublisher
from ensue.recorder import Recorder
from ensue.simulation.deployment import Deployment, Roles
from ensue.simulation.scenario import Scenario
from ensue.trace import Row

__all__ = ["Outcome", "play"]

POLL_NS = 100_000_000
"""How often, in simulated time, a healed run is looked at."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run."""

    scenario: str
    seed: int
    report: Report
    stuck: tuple[str, ...]
    """Who waits for what after the liveness bound; empty if nobody does."""
    steps: int
    """Frames received and timers handled by nodes."""
    published: int
    delivered: int
    simulated_ns: int
    healed_ns: int
    """How long after healing the run took to come to rest."""
    rows: list[Row]
    events: list[tuple[int, Event]]
    """What the notification service holds at the end, each with its slot in its topic, if asked for.
    A service without a log keeps no payloads."""

    @property
    def valid(self) -> bool:
        """Whether nothing is wrong. A run with nothing to deliver has nothing wrong."""
        verdict = self.report.verdict
        idle = verdict is Verdict.UNKNOWN and not self.delivered
        return not self.stuck and (verdict is Verdict.VALID or idle)

    def sentences(self) -> list[str]:
        """Say what is wrong, in words."""
        stuck = [f"stuck: {each}" for each in self.stuck]
        return stuck if self.report.verdict is Verdict.VALID else stuck + self.report.sentences()


def play(
    scenario: Scenario,
    seed: int,
    *,
    encode: bool | None = None,
    peer_frames: bool = False,
    keep_events: bool = False,
    roles: Roles | None = None,
) -> Outcome:
    """Run a scenario with a seed to its end and judge it.

    `encode` overrides what the scenario says. `keep_events` asks for the events as well.
    """
    if encode is None:
        encode = scenario.encode
    recorder = Recorder(f"{scenario.name}-{seed}", scenario.order, peer_frames=peer_frames)
    deployment = Deployment(scenario, seed, recorder=recorder, encode=encode, roles=roles)
    world = deployment.world
    world.run(until_ns=scenario.duration_ns)
    world.heal()
    deadline_ns = scenario.duration_ns + scenario.settle_ns
    stuck = tuple(waits(deployment))
    while stuck and world.now_ns < deadline_ns:
        world.run(until_ns=min(world.now_ns + POLL_NS, deadline_ns))
        stuck = tuple(waits(deployment))
    rows = recorder.rows
    report = check(
        rows,
        order=scenario.order,
        causal=scenario.order == "total" and _promises_causality(scenario),
        lossy=not scenario.ens_config.keeps_log,
    )
    return Outcome(
        scenario=scenario.name,
        seed=seed,
        report=report,
        stuck=stuck,
        steps=world.steps,
        published=sum(row.action == "published" for row in rows),
        delivered=sum(row.action == "delivered" for row in rows),
        simulated_ns=world.now_ns,
        healed_ns=world.now_ns - scenario.duration_ns,
        rows=rows,
        events=list(_accepted(deployment)) if keep_events else [],
    )


def _accepted(deployment: Deployment) -> Iterator[tuple[int, Event]]:
    """Yield what the nodes of the notification service hold."""
    for name in deployment.world.names():
        for part in _parts(deployment.world.node(name)):
            if isinstance(part, TopicLog):
                yield from part.contents()


def _parts(node: Node | None) -> tuple[Node | None, ...]:
    """Return what a process runs: a station is a sequencer node and a log."""
    inner = node.inner if isinstance(node, Linked) else node
    return (inner.node, inner.log) if isinstance(inner, Station) else (inner,)


def _promises_causality(scenario: Scenario) -> bool:
    """Tell whether all topics of a subscription are ordered, with nothing given up."""
    config = scenario.sequencer
    return config.groups == 1 and config.reliable and config.publisher_order


def waits(deployment: Deployment) -> Iterator[str]:
    """Say who still waits for what."""
    world = deployment.world
    yield from (f"{name} has yet to act" for name in world.busy())
    ends: dict[str, int] = {}
    nodes: list[tuple[str, Node | None]] = []
    for name in world.names():
        for part in _parts(world.node(name)):
            nodes.append((name, part))
            if isinstance(part, TopicLog):
                ends.update(part.ends())
    for name, node in nodes:
        if isinstance(node, Publisher | UnorderedPublisher) and node.unsettled_count:
            yield f"{name} has {node.unsettled_count} unsettled events"
        elif isinstance(node, SequencerNode) and node.open_count:
            yield f"{name} has {node.open_count} open stamps"
        elif isinstance(node, Subscriber):
            yield from (f"{name} {why}" for why in node.waits(ends))
