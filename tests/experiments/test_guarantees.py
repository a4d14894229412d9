"""The comparison of guarantees: all deliver without faults, only reliable ones after losses."""

import pytest
from experiments.experiment import Point, Table
from experiments.guarantees.cases import FAULTS, MIDDLE, ORDERS, run_choice
from experiments.guarantees.figures import EXPERIMENTS


def found(order: str, faults: str) -> dict[str, float]:
    rows = run_choice({"order": order, "faults": faults, "seed": 1})
    return {each["series"]: each["value"] for each in rows if each["figure"] == faults}


@pytest.mark.parametrize("order", ORDERS)
def test_without_faults_every_event_is_delivered(order: str) -> None:
    seen = found(order, "calm")
    assert seen["not delivered, %"] == 0
    # At least one hop of 1 to 5 ms; the event itself takes 100 bytes.
    assert 1 <= seen["latency, mean ms"] <= seen["99 %, ms"] <= seen["longest, ms"] < 100
    assert seen["messages a delivery"] >= 1
    assert seen["bytes a delivery"] > 100


def test_causal_order_repairs_losses_and_merged_order_does_not() -> None:
    assert found("causal", "loss")["not delivered, %"] == 0
    assert found("merged", "loss")["not delivered, %"] > 1


def test_cube_has_no_node_in_the_middle() -> None:
    assert found("causal", "middle") == {}
    assert found("total", "middle")["longest, ms"] > 400


def test_no_loss_is_judged_under_every_fault() -> None:
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
