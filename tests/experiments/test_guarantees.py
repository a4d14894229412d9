"""The comparison of all guarantees: each delivers everything in calm, and only the reliable ones after losses."""

import pytest
from experiments.experiment import Point, Table
from experiments.guarantees.cases import FAULTS, MIDDLE, ORDERS, play_choice
from experiments.guarantees.figures import EXPERIMENTS


def found(order: str, faults: str) -> dict[str, float]:
    rows = play_choice({"order": order, "faults": faults, "seed": 1})
    return {each["series"]: each["value"] for each in rows if each["figure"] == faults}


@pytest.mark.parametrize("order", ORDERS)
def test_everything_is_delivered_where_nothing_goes_wrong(order: str) -> None:
    seen = found(order, "calm")
    assert seen["not delivered, %"] == 0
    # One hop of 1 to 5 ms at the least; the event itself takes 100 bytes.
    assert 1 <= seen["latency, mean ms"] <= seen["99 %, ms"] <= seen["longest, ms"] < 100
    assert seen["messages a delivery"] >= 1
    assert seen["bytes a delivery"] > 100


def test_losses_are_made_up_for_or_not_as_promised() -> None:
    assert found("causal", "loss")["not delivered, %"] == 0
    assert found("merged", "loss")["not delivered, %"] > 1


def test_nobody_is_in_the_middle_of_a_cube() -> None:
    assert found("causal", "middle") == {}
    assert found("total", "middle")["longest, ms"] > 400


def test_to_lose_nothing_is_judged_under_every_fault() -> None:
    def judged(lost: dict[tuple[str, str], float]) -> bool | None:
        points = [
            Point(figure=faults, series="not delivered, %", x=float(at), cases=1, deviation=0.0,
                  mean=lost.get((order, faults), 0.0), least=0.0, most=0.0)
            for at, order in enumerate(ORDERS)
            for faults in FAULTS
            if faults != "middle" or order in MIDDLE
        ]  # fmt: skip
        return EXPERIMENTS[0].judge(Table(points))[0].met

    assert judged({}) is True
    assert judged({("total", "middle"): 1.0}) is False
    assert judged({("causal", "loss"): 1.0}) is False
    assert judged({("merged", "loss"): 1.0}) is True
