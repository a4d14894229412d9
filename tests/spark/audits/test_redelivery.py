"""The audit of durable subscriptions agrees with the checker and with brute force."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.checkers import brute
from tests.checkers.durable_lives import generate
from tests.checkers.helpers import Script

from ensue.checkers import Report, check
from ensue.core import trace
from ensue.core.trace import Row
from ensue.spark import audit

MANY = 1_000_000


def runs(count: int) -> dict[str, list[Row]]:
    """Return runs with a durable subscription each, by name."""
    return {
        f"seed-{seed}": [msgspec.structs.replace(row, run=f"seed-{seed}") for row in generate(seed)]
        for seed in range(count)
    }


def planted() -> list[Row]:
    """Return a run in which a second process gets what the first one acknowledged."""
    script = Script(run="planted").publish("p1", "a").publish("p1", "b")
    for node in ("s1", "s2"):
        script.subscribe(node, "x", subscription="billing")
        for position, event in enumerate("ab", 1):
            script.deliver(node, event, subscription="billing", position=position)
        script.row(node, "acknowledged", subscription="billing", position=2)
    return script.rows


def again(report: Report) -> list[tuple[str, str, str, str]]:
    return sorted(
        (one.subscribers[0].run, one.subscribers[0].node, one.first_event, one.because)
        for one in report["positions"].violations
        if one.anomaly == "again"
    )


@pytest.mark.parametrize("count", [60, pytest.param(2_000, marks=pytest.mark.verify)])
def test_what_comes_again_is_judged_as_by_the_checkers(
    spark: SparkSession, tmp_path: Path, count: int
) -> None:
    del spark
    named = {**runs(count), "planted": planted()}
    rows = [row for each in named.values() for row in each]
    limits = {"lossy": True, "clock_error_ns": 3, "violations_max": MANY}
    expected = check(rows, "none", **limits)  # type: ignore[arg-type]
    trace.write(rows, tmp_path / "trace")
    found = audit(tmp_path / "trace", "none", **limits)  # type: ignore[arg-type]
    report = found.report(violations_max=MANY)
    assert again(report) == again(expected)
    assert [each[1:3] for each in again(report) if each[0] == "planted"] == [
        ("s2", "a"),
        ("s2", "b"),
    ]
    assert report["positions"].anomaly_counts == expected["positions"].anomaly_counts
    by_run: dict[str, brute.Found] = {name: Counter() for name in named}
    for run, node, event, _ in again(report):
        by_run[run]["again", (node, "billing"), event] += 1
    wrong = sum(bool(each) for each in by_run.values())
    assert count // 10 < wrong < count * 9 // 10
    for name, each in by_run.items():
        assert each == brute.again(named[name], clock_error_ns=3), name


def test_violations_beyond_the_limit_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    del spark
    (rows, *_) = (each for each in runs(60).values() if sum(again_of(each).values()) > 2)
    trace.write(rows, tmp_path / "trace")
    expected = check(rows, "none", lossy=True)["positions"].anomaly_counts
    report = audit(tmp_path / "trace", "none", lossy=True, violations_max=1).report()
    assert report["positions"].anomaly_counts == expected


def again_of(rows: list[Row]) -> brute.Found:
    return brute.again(rows, clock_error_ns=0)
