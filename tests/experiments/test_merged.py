"""Experiments with merged order: our bounds hold, those of the published rules break."""

from experiments.experiment import Row
from experiments.merged import cases


def values(rows: list[Row], figure: str) -> dict[str, float]:
    return {each["series"]: each["value"] for each in rows if each["figure"] == figure}


def test_waits_stay_within_bound() -> None:
    rows = list(cases.run_delay({"epsilon_ms": 5, "delta_ms": 20, "seed": 1}))
    assert values(rows, "beyond") == {"all": 0}
    longest = values(rows, "delay")
    # Delivery comes no earlier than delta + epsilon after publication, on the publisher's clock.
    assert 20 < longest["ε = 5 ms"] <= longest["δ + 3ε"] + 1


def test_recovery_time_is_positive_and_within_bound() -> None:
    found = [
        values(
            list(cases.run_recovery({"epsilon_ms": 10, "delta_ms": 10, "seed": seed})),
            "recovery",
        )
        for seed in range(3)
    ]
    assert max(each["ε = 10 ms"] for each in found) > 0, "the faults had no effect"
    assert all(each["ε = 10 ms"] <= 41 for each in found)


def test_array_grows_with_epsilon_and_counter_does_not() -> None:
    def size(*, array: bool, epsilon: int) -> float:
        case = {"processes": 10, "epsilon_ticks": epsilon, "usual": 10, "array": array}
        (found,) = values(list(cases.run_sizes(case)), "epsilon").values()
        return found

    assert size(array=True, epsilon=30) > 5 * size(array=True, epsilon=3)
    assert size(array=False, epsilon=30) < 20


def test_c_grows_without_bound_under_published_rule_only() -> None:
    def largest(*, ours: bool, every: int, local: bool) -> float:
        case = {"epsilon_ticks": 5, "rounds": 300, "window_every": every, "local": local}
        rows = list(cases.run_growth({**case, "ours": ours}))
        return float(rows[-1]["value"])

    assert largest(ours=False, every=0, local=False) > 300
    assert largest(ours=False, every=100, local=True) < 60
    assert largest(ours=False, every=100, local=False) > 100, "as printed, windows bound nothing"
    assert largest(ours=True, every=0, local=False) <= 5
