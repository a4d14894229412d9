"""The experiments with merged order: bounds that can be broken, and published rules that break theirs."""

from experiments.experiment import Row
from experiments.merged import cases


def values(rows: list[Row], figure: str) -> dict[str, float]:
    return {each["series"]: each["value"] for each in rows if each["figure"] == figure}


def test_events_wait_for_delta_and_epsilon_and_no_longer_than_the_bound() -> None:
    rows = list(cases.play_delay({"epsilon_ms": 5, "delta_ms": 20, "seed": 1}))
    assert values(rows, "beyond") == {"all": 0}
    longest = values(rows, "delay")
    # Nobody is handed anything before delta + epsilon have passed on the clock of who publishes, at least as seen from there.
    assert 20 < longest["ε = 5 ms"] <= longest["δ + 3ε"] + 1


def test_recovery_is_found_and_within_its_bound() -> None:
    found = [
        values(
            list(cases.play_recovery({"epsilon_ms": 10, "delta_ms": 10, "seed": seed})),
            "recovery",
        )
        for seed in range(3)
    ]
    assert max(each["ε = 10 ms"] for each in found) > 0, "faults that nobody notices are none"
    assert all(each["ε = 10 ms"] <= 41 for each in found)


def test_an_array_grows_with_epsilon_and_a_counter_does_not() -> None:
    def size(*, array: bool, epsilon: int) -> float:
        case = {"processes": 10, "epsilon_ticks": epsilon, "usual": 10, "array": array}
        (found,) = values(list(cases.play_sizes(case)), "epsilon").values()
        return found

    assert size(array=True, epsilon=30) > 5 * size(array=True, epsilon=3)
    assert size(array=False, epsilon=30) < 20


def test_c_grows_for_ever_under_the_published_rule_and_not_under_ours() -> None:
    def largest(*, ours: bool, every: int, local: bool) -> float:
        case = {"epsilon_ticks": 5, "rounds": 300, "window_every": every, "local": local}
        rows = list(cases.play_growth({**case, "ours": ours}))
        return float(rows[-1]["value"])

    assert largest(ours=False, every=0, local=False) > 300
    assert largest(ours=False, every=100, local=True) < 60
    assert largest(ours=False, every=100, local=False) > 100, "as printed, windows bound nothing"
    assert largest(ours=True, every=0, local=False) <= 5
