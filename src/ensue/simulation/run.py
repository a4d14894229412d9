"""Run a scenario and judge its trace.

A run has two phases. For the duration of the scenario, clients publish and faults strike. Then all
faults are healed and the liveness bound starts: within `settle_ns` every event must be settled at
its publisher, no node may hold events back, every change of subscription must be complete, and
every subscriber must have reached the end of its topics. A run that does not get there is stuck.
The checkers judge the trace in either case.
"""

import msgspec

from ensue import orders
from ensue.checkers import Report, Verdict
from ensue.core.event import Event
from ensue.core.trace import Row
from ensue.protocols.recorder import Recorder
from ensue.simulation.deployments.base import Roles
from ensue.simulation.scenario import Scenario

__all__ = ["Outcome", "play"]

POLL_NS = 100_000_000
"""How often, in simulated time, a healed run is checked."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    scenario: str
    seed: int
    report: Report
    stuck: tuple[str, ...]
    """What each node waits for after the liveness bound; empty if none waits."""
    steps: int
    """Frames received and timers handled by nodes."""
    published: int
    delivered: int
    simulated_ns: int
    healed_ns: int
    """Time from healing until the run was idle."""
    rows: list[Row]
    events: list[tuple[int, Event]]
    """The events in the topic logs at the end with their slots, if `keep_events` is set. Relays
    retain none."""

    @property
    def valid(self) -> bool:
        """Whether the run is not stuck and its trace valid; zero deliveries are valid."""
        verdict = self.report.verdict
        idle = verdict is Verdict.UNKNOWN and not self.delivered
        return not self.stuck and (verdict is Verdict.VALID or idle)

    def sentences(self) -> list[str]:
        """Return one sentence per fault."""
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

    `encode` overrides that of the scenario. `keep_events` returns the events as well.
    """
    if encode is None:
        encode = scenario.encode
    build = orders.named(scenario.order).deployment()
    label = build.order_label(scenario)
    recorder = Recorder(f"{scenario.name}-{seed}", label, peer_frames=peer_frames)
    deployment = build(scenario, seed, recorder=recorder, encode=encode, roles=roles)
    world = deployment.world
    world.run(until_ns=scenario.duration_ns)
    world.heal()
    deadline_ns = scenario.duration_ns + scenario.settle_ns
    stuck = tuple(deployment.waits())
    while stuck and world.now_ns < deadline_ns:
        world.run(until_ns=min(world.now_ns + POLL_NS, deadline_ns))
        stuck = tuple(deployment.waits())
    rows = recorder.rows
    report = deployment.judge(rows)
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
        events=list(deployment.events()) if keep_events else [],
    )
