"""Latency limits, and merged order as a whole."""

from tests.checkers.helpers import Script

from ensue.checkers import Verdict, check


def slow_script(*, simulated: bool = True) -> Script:
    """One row per nanosecond: published at 2, delivered at 3 and at 7."""
    script = Script(simulated=simulated).subscribe("s", "x")
    script.publish("p", "e").deliver("s", "e")
    for _ in range(3):
        script.row("q", "sent")
    return script.subscribe("t", "x").deliver("t", "e")


def test_delivery_beyond_limit_is_explained() -> None:
    assert check(slow_script().rows, "merged", lossy=True, within_ns=6)["timely"].violations == ()
    finding = check(slow_script().rows, "merged", lossy=True, within_ns=5)["timely"]
    (violation,) = finding.violations
    assert finding.verdict is Verdict.INVALID
    assert violation.anomaly == "slow"
    assert violation.nodes == ("t",)
    assert violation.because == (
        "t delivered e (its 1st) 6e-06 ms after p published it; the limit is 5e-06 ms"
    )


def test_clock_error_extends_limit_without_true_time() -> None:
    rows = slow_script(simulated=False).rows
    assert check(rows, "merged", lossy=True, within_ns=5)["timely"].violations
    assert not check(rows, "merged", lossy=True, within_ns=5, clock_error_ns=1)["timely"].violations
    simulated = slow_script().rows
    assert check(simulated, "merged", lossy=True, within_ns=5, clock_error_ns=1)[
        "timely"
    ].violations


def test_tagged_deliveries_are_not_judged_by_time() -> None:
    script = Script().subscribe("s", "x").publish("p", "e").publish("p", "f")
    script.deliver("s", "f").deliver("s", "e", verdict="late")
    report = check(script.rows, "merged", within_ns=1)
    assert report["timely"].violations == ()
    assert report.verdict is Verdict.VALID


def test_merged_order_is_one_order_and_causal() -> None:
    script = Script().subscribe("a", "x", "y").subscribe("b", "x", "y")
    script.publish("p", "question", "x").deliver("a", "question")
    script.publish("a", "answer", "y").deliver("a", "answer").deliver("b", "answer", "question")
    report = check(script.rows, "merged")
    assert report["global"].violation_count == 1
    assert report["causal"].violation_count == 1
    assert [finding.checker for finding in report.findings] == [
        "fifo",
        "global",
        "causal",
        "positions",
        "complete",
    ]
