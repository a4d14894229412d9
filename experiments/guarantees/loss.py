"""What a lost message costs, at high and at low rates.

The workload of the comparison (`experiments.guarantees.cases`), without losses and with 2 % of all
messages lost, at 25 events a second and publisher and at 1. At the low rate every event is the last
one before a silence: no later event shows that it is missing.

- *total*, *causal*, *transactions*, *deadline*: as in the comparison.
- *total, servers*: the server that orders also keeps the log, as in production.
- *total, multicast*: so too, and only what goes from the log to the subscribers is lost: a broker
  whose publish/subscribe loses messages.
- *merged*: as in the comparison; messages within 12 ms leave no time to send one again.
- *merged, 40 ms*: behind a fan-out that answers, with messages within 40 ms.
"""

from collections.abc import Iterator
from itertools import product

import msgspec

from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.shared.round_trips import RETRY_NS_MIN
from ensue.simulation import run as simulation
from ensue.simulation.scenario import MergeSpec, Scenario
from ensue.simulation.world.faults import Faults, Noise
from experiments.experiment import Case, Chart, Claim, Experiment, Row, Table, claim, row
from experiments.guarantees.cases import BUSY, Load, choice, figures_of

__all__ = ["EXPERIMENT", "LOADS", "VARIANTS", "run_loss", "scenario_of"]

SHARE = 0.02
RELIABLE = ("total", "total, servers", "total, multicast", "causal", "transactions")
VARIANTS = (*RELIABLE, "deadline", "merged", "merged, 40 ms")
LOADS = {"busy": BUSY, "quiet": Load(1, 60)}
RATES = {"busy": "25 events a second and publisher", "quiet": "1 event a second and publisher"}
DELTA_MS = 40
SETTING = (
    "The workload above, without losses and with 2 % of all messages lost, at 25 events a second "
    "and publisher and at 1. At the low rate every event is the last one before a silence, and no "
    "later event shows that it is missing. Servers: the server that orders also keeps the log. "
    "Multicast: so too, and only what goes from the log to the subscribers is lost, as on a broker "
    "whose publish/subscribe loses messages. Merged, 40 ms: behind a fan-out that answers, with "
    "messages within 40 ms instead of 12."
)
TIMES = 5


def scenario_of(variant: str, load: str, seed: int, *, lost: bool) -> Scenario:
    """Return the scenario of a variant, with losses or without."""
    order = variant.partition(",")[0]
    multicast = variant == "total, multicast"
    faults = "loss" if lost and not multicast else "calm"
    scenario = choice(order, faults, seed, LOADS[load])
    if variant in ("total, servers", "total, multicast"):
        sequencer = msgspec.structs.replace(scenario.sequencer, carries=True)
        scenario = msgspec.structs.replace(scenario, sequencer=sequencer)
    if multicast and lost:
        listeners = tuple(each.name for each in scenario.subscribers)
        noise = Noise(loss=SHARE, sources=("node-1",), targets=listeners)
        scenario = msgspec.structs.replace(scenario, faults=Faults(noises=(noise,)))
    if variant == "merged, 40 ms":
        config = MergedConfig(epsilon_ticks=2, delta_ticks=DELTA_MS, retry_ns_min=RETRY_NS_MIN)
        merge = MergeSpec(config=config)
        scenario = msgspec.structs.replace(scenario, merge=merge, fan_out=True)
    return scenario


def run_loss(case: Case) -> Iterator[Row]:
    """Run one variant at one rate, without losses and with them."""
    variant, load, seed = case["variant"], case["load"], case["seed"]
    at, found = VARIANTS.index(variant), {}
    for lost in (False, True):
        scenario = scenario_of(variant, load, seed, lost=lost)
        outcome = simulation.play(scenario, seed, peer_frames=True)
        assert outcome.valid or variant not in RELIABLE, outcome.sentences()
        found[lost] = figures_of(outcome.rows, LOADS[load])
    for name in ("99 %, ms", "messages a delivery"):
        for lost, which in ((False, "lossless"), (True, "2 % lost")):
            yield row(load, f"{name}, {which}", at, found[lost][name])
    yield row(load, "99 %, times", at, found[True]["99 %, ms"] / found[False]["99 %, ms"])
    yield row(load, "longest, ms, 2 % lost", at, found[True]["longest, ms"])
    yield row(load, "not delivered, %", at, found[True]["not delivered, %"])


def _cases(quick: bool) -> list[Case]:
    return [
        {"variant": variant, "load": load, "seed": seed}
        for variant, load, seed in product(VARIANTS, LOADS, range(2 if quick else 20))
    ]


def _judge(table: Table) -> list[Claim]:
    def at(load: str, name: str, *variants: str) -> list[float | None]:
        return [table.at(load, name, VARIANTS.index(variant)) for variant in variants]

    return [
        claim(
            "",
            "total, causal and transactional order deliver every event",
            "nothing is not delivered, at both rates",
            [each for load in LOADS for each in at(load, "not delivered, %", *RELIABLE)],
            lambda *all_: f"at most {max(all_):.2f} % not delivered",
            lambda *all_: max(all_) <= 0,
        ),
        *(
            claim(
                "",
                f"a lost message costs a few round trips at {RATES[load]}",
                f"99 % of deliveries take at most {TIMES} times as long as without loss",
                at(load, "99 %, times", *RELIABLE),
                lambda *all_: ", ".join(
                    f"{name}: {each:.1f}" for name, each in zip(RELIABLE, all_, strict=True)
                ),
                lambda *all_: max(all_) <= TIMES,
            )
            for load in LOADS
        ),
        claim(
            "",
            "deadline order delivers a lost event in time, or not at all",
            "at most 0.1 % not delivered within 100 ms, at both rates",
            [each for load in LOADS for each in at(load, "not delivered, %", "deadline")],
            lambda *all_: f"at most {max(all_):.2f} % not delivered",
            lambda *all_: max(all_) <= 0.1,
        ),
        claim(
            "",
            "merged order delivers what is sent again in time; the relay sends once",
            "between 12 and 40 ms more is delivered, and at 40 ms at most 3 % is not",
            [
                each
                for load in LOADS
                for each in at(load, "not delivered, %", "merged", "merged, 40 ms")
            ],
            lambda *all_: ", ".join(f"{each:.1f} %" for each in all_),
            lambda a, b, c, d: b < a and d < c and max(b, d) <= 3,
        ),
    ]


EXPERIMENT = Experiment(
    name="loss",
    paper="",
    figures="",
    title="What a lost message costs",
    setting=(SETTING,),
    cases=_cases,
    run_case=run_loss,
    charts=tuple(
        Chart(
            figure=load,
            title=title,
            x_label="guarantee",
            y_label="",
            names=VARIANTS,
            drawn=False,
        )
        for load, title in RATES.items()
    ),
    judge=_judge,
)
