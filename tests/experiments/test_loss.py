"""What a lost message costs: the scenarios, and how their figures are judged."""

import pytest
from experiments.experiment import Point, Table
from experiments.guarantees.loss import EXPERIMENT, LOADS, RELIABLE, VARIANTS, run_loss, scenario_of


def judged(**changed: float) -> list[bool | None]:
    """Judge a table in which all is well but for some figures of total order at the low rate."""
    points = []
    for load in LOADS:
        for at, variant in enumerate(VARIANTS):
            merged = {"merged": 4.0, "merged, 40 ms": 2.0}.get(variant, 0.0)
            figures = {"times": 3.0, "missing": merged}
            if load == "quiet" and variant == "total":
                figures |= changed
            names = {"times": "99 %, times", "missing": "not delivered, %"}
            points += [
                Point(figure=load, series=names[key], x=float(at), cases=1, mean=value,
                      deviation=0.0, least=value, most=value)
                for key, value in figures.items()
            ]  # fmt: skip
    return [each.met for each in EXPERIMENT.judge(Table(points))]


def test_costs_and_losses_are_judged_at_each_rate() -> None:
    assert judged() == [True] * 5
    assert judged(times=5.1) == [True, True, False, True, True]
    assert judged(missing=0.1) == [False, True, True, True, True]


@pytest.mark.parametrize("variant", VARIANTS)
def test_scenarios_without_losses_lose_nothing(variant: str) -> None:
    scenario = scenario_of(variant, "quiet", 1, lost=False)
    assert scenario.network.loss == 0
    assert not scenario.faults.noises


def test_multicast_loses_only_what_goes_to_subscribers() -> None:
    scenario = scenario_of("total, multicast", "quiet", 1, lost=True)
    (noise,) = scenario.faults.noises
    assert scenario.network.loss == 0
    assert noise.sources == (scenario.chain[0].name,)
    assert set(noise.targets) == {each.name for each in scenario.subscribers}


def test_case_yields_the_figures_of_its_variant() -> None:
    rows = list(run_loss({"variant": "total, multicast", "load": "quiet", "seed": 1}))
    assert {each["x"] for each in rows} == {float(RELIABLE.index("total, multicast"))}
    found = {each["series"]: each["value"] for each in rows}
    assert found["not delivered, %"] == 0
    assert 1 < found["99 %, times"] <= 5
    assert found["99 %, ms, 2 % lost"] > found["99 %, ms, lossless"]
