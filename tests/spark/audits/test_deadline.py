"""The audit of deadlines agrees with the checker on good and broken runs."""

from pathlib import Path
from random import Random

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.checkers.helpers import Script

from ensue.checkers import Report, Verdict, check
from ensue.core import trace
from ensue.core.trace import Row
from ensue.simulation.run import play
from ensue.simulation.swarms.deadline import draw
from ensue.spark import audit

SEEDS = (0, 3, 4)
CLOCK_ERROR_NS = 1


def runs() -> list[Row]:
    return [row for seed in SEEDS for row in play(draw(seed), seed).rows]


def broken(rows: list[Row]) -> list[Row]:
    """Delay some deliveries, drop some, and excuse some of those."""
    random = Random(7)
    found: list[Row] = []
    for row in rows:
        if row.action == "delivered" and not row.verdict and row.deadline_ns is not None:
            chance = random.random()
            if chance < 0.05:
                found.append(msgspec.structs.replace(row, deadline_ns=row.at_ns - 5))
                continue
            if chance < 0.1:
                continue
            if chance < 0.15:
                verdict = "unread" if chance < 0.125 else "overflow"
                excused = {"action": "discarded", "verdict": verdict, "position": None}
                found.append(msgspec.structs.replace(row, **excused))
                continue
            if chance < 0.2:
                found.append(msgspec.structs.replace(row, verdict="overtaken"))
                continue
        found.append(row)
    return found


def reported(report: Report) -> set[tuple[str, str, str, str]]:
    return {
        (one.anomaly, one.nodes[0], one.first_event, one.because)
        for one in report["deadline"].violations
    }


@pytest.mark.verify
def test_audit_of_good_runs_agrees_with_checker(spark: SparkSession, tmp_path: Path) -> None:
    rows = runs()
    trace.write(rows, tmp_path / "runs")
    expected = check(rows, "deadline", lossy=True, clock_error_ns=CLOCK_ERROR_NS)
    report = audit(
        str(tmp_path / "runs"), "deadline", lossy=True, clock_error_ns=CLOCK_ERROR_NS
    ).report()
    assert report["deadline"].verdict is Verdict.VALID
    assert report["deadline"].notes == expected["deadline"].notes
    assert [one.checker for one in report.findings] == [one.checker for one in expected.findings]


def test_audit_of_broken_runs_agrees_with_checker(spark: SparkSession, tmp_path: Path) -> None:
    rows = broken(runs())
    trace.write(rows, tmp_path / "runs")
    expected = check(rows, "deadline", lossy=True, violations_max=9_999)
    report = audit(str(tmp_path / "runs"), "deadline", lossy=True, violations_max=2).report()
    assert report["deadline"].anomaly_counts == expected["deadline"].anomaly_counts
    assert set(report["deadline"].anomaly_counts) == {"expired", "missed"}
    assert len(report["deadline"].violations) == 4, "two of each, and the others are counted"
    assert reported(report) < reported(expected)


@pytest.mark.verify
def test_another_subscription_that_leaves_excuses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    script = Script().subscribe("s", "x").subscribe("s", "x", subscription="other")
    script.publish("p", "e").deliver("s", "e", subscription="other")
    columns = {"topic": "x", "publisher": "p", "publisher_seq": 1, "subscription": "main"}
    script.row("s", "received", event="e", deadline_ns=8, **columns)
    script.leave("s", "x", subscription="other").row("s", "sent").row("s", "sent")
    trace.write(script.rows, tmp_path / "run")
    expected = check(script.rows, "deadline", lossy=True)["deadline"]
    assert expected.anomaly_counts == {"missed": 1}

    found = audit(tmp_path / "run", "deadline", lossy=True).report()["deadline"]
    assert found.violations == expected.violations
