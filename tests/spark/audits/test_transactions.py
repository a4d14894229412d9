"""The audit of transactions agrees with the checker on good and broken runs."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import msgspec
import pytest
from pyspark.sql import SparkSession

from ensue.checkers import Report, Verdict, check
from ensue.checkers.transactions import RULES
from ensue.core import trace
from ensue.core.errors import BadInput
from ensue.core.trace import Row
from ensue.simulation.run import play
from ensue.simulation.swarms.transactions import draw
from ensue.spark import audit, read_trace

SEEDS = (0, 1, 4, 12)
"""With every kind of transaction, commits and aborts, and without unrecorded crashes."""
ALL = 9_999


FEW_SEEDS = (1, 12)
"""Enough for every anomaly."""


def simulated(seeds: Sequence[int]) -> list[Row]:
    return [row for seed in seeds for row in play(draw(seed), seed).rows]


@pytest.fixture(scope="module")
def runs() -> list[Row]:
    return simulated(SEEDS)


def reported(report: Report) -> list[tuple[object, ...]]:
    """Return all violations of a report, sorted."""
    return sorted(
        (
            one.checker,
            each.anomaly,
            str(each.subscribers),
            each.first_event,
            str(each.second_event),
            each.because,
        )
        for one in report.findings
        for each in one.violations
    )


def assert_same(mine: Report, theirs: Report) -> None:
    assert mine.verdict is theirs.verdict
    assert [one.checker for one in mine.findings] == [one.checker for one in theirs.findings]
    for rule in RULES:
        assert mine[rule].anomaly_counts == theirs[rule].anomaly_counts, rule
        assert mine[rule].verdict is theirs[rule].verdict, rule
    assert reported(mine) == reported(theirs)
    assert mine.reasons == theirs.reasons
    assert (mine.run_count, mine.event_count, mine.delivery_count, mine.subscriber_count) == (
        theirs.run_count, theirs.event_count, theirs.delivery_count, theirs.subscriber_count,
    )  # fmt: skip


@pytest.mark.verify
def test_audit_of_good_runs_agrees_with_checker(
    spark: SparkSession, tmp_path: Path, runs: list[Row]
) -> None:
    trace.write(runs, tmp_path / "runs")
    expected = check(runs, "transactions")
    assert expected.verdict is Verdict.VALID
    assert expected.delivery_count > 20
    assert any(row.action == "held" for row in runs)
    assert_same(audit(tmp_path / "runs", "transactions").report(), expected)


Break = Callable[[list[Row], Random], list[Row]]


def _replaced(rows: list[Row], old: Row, **changed: object) -> list[Row]:
    return [msgspec.structs.replace(row, **changed) if row is old else row for row in rows]


def _added(rows: list[Row], like: Row, **changed: object) -> list[Row]:
    """Add a row at the end of its node."""
    step = max(row.step for row in rows if (row.run, row.node) == (like.run, like.node)) + 1
    return [*rows, msgspec.structs.replace(like, step=step, **changed)]


def _some(rows: list[Row], random: Random, wanted: Callable[[Row], bool]) -> Row:
    return random.choice([row for row in rows if wanted(row)])


def split(rows: list[Row], random: Random) -> list[Row]:
    """A broker aborts a transaction that others commit."""
    one = _some(rows, random, lambda row: row.action == "committed")
    return _replaced(rows, one, action="aborted")


def dirty(rows: list[Row], random: Random) -> list[Row]:
    """A transaction that no broker committed delivers."""
    one = _some(rows, random, lambda row: row.action == "delivered" and bool(row.transaction))
    return [
        row
        for row in rows
        if not (
            row.action == "committed" and (row.run, row.transaction) == (one.run, one.transaction)
        )
    ]


def duplicate(rows: list[Row], random: Random) -> list[Row]:
    one = _some(rows, random, lambda row: row.action == "delivered")
    return _added(rows, one)


def torn(rows: list[Row], random: Random) -> list[Row]:
    """Nothing of any transaction is delivered to some client."""
    one = _some(rows, random, lambda row: row.action == "delivered" and bool(row.transaction))
    return [
        row
        for row in rows
        if not (
            row.action == "delivered"
            and row.transaction
            and (row.run, row.node) == (one.run, one.node)
        )
    ]


def unread(rows: list[Row], random: Random) -> list[Row]:
    """An event is unread when the bus is closed, which is valid."""
    one = _some(rows, random, lambda row: row.action == "delivered")
    return _replaced(rows, one, action="discarded", verdict="unread")


def dropped(rows: list[Row], random: Random) -> list[Row]:
    """A client drops an event, and records it."""
    one = _some(rows, random, lambda row: row.action == "delivered")
    return _replaced(rows, one, action="discarded", verdict="not_subscribed")


def mixed(rows: list[Row], random: Random) -> list[Row]:
    """No client receives regular events."""
    one = _some(rows, random, lambda row: row.action == "delivered" and not row.transaction)
    return [
        row
        for row in rows
        if not (row.action == "delivered" and not row.transaction and row.run == one.run)
    ]


def stale(rows: list[Row], random: Random) -> list[Row]:
    """A client receives a regular event that it did not subscribe to."""
    one = _some(rows, random, lambda row: row.action == "delivered" and not row.transaction)
    return _added(rows, one, subscription=f"{one.node}.nothing")


def stray(rows: list[Row], random: Random) -> list[Row]:
    """A client receives an event of a transaction at a subscription that does not exist."""
    one = _some(rows, random, lambda row: row.action == "delivered" and bool(row.transaction))
    return _added(rows, one, subscription=f"{one.node}.nothing")


def sequential(rows: list[Row], random: Random) -> list[Row]:
    """A broker processes an operation again, after all others."""
    one = _some(
        rows,
        random,
        lambda row: row.action == "received" and (row.event or "").endswith("#1"),
    )
    last_ns = max(row.true_ns or 0 for row in rows if row.run == one.run)
    again = _added(rows, one, event=f"{one.transaction}#7", true_ns=last_ns)
    return _added(again, one, event=f"{one.transaction}#6", true_ns=last_ns)


def cycle(rows: list[Row], random: Random) -> list[Row]:
    """A broker commits two transactions that conflict in the opposite order."""
    began = {
        (row.run, row.transaction)
        for row in rows
        if row.action == "began" and row.topic == "serializable"
    }
    commits: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.action == "committed" and row.node[0] == "b" and (row.run, row.transaction) in began:
            commits.setdefault((row.run, row.node), []).append(row)
    pairs = [pair for found in commits.values() for pair in pairwise(found)]
    random.shuffle(pairs)
    for one, other in pairs:
        swapped = _replaced(rows, one, transaction=other.transaction)
        swapped = _replaced(swapped, other, transaction=one.transaction)
        judged = check([row for row in swapped if row.run == one.run], "transactions")
        if any("cycle" in finding.anomaly_counts for finding in judged.findings):
            return swapped
    raise AssertionError("no two transactions conflict")


def behind(rows: list[Row], random: Random) -> list[Row]:
    one = _some(rows, random, lambda row: row.verdict == "tables" and bool(row.publisher_seq))
    return _replaced(rows, one, publisher_seq=0)


def tables(rows: list[Row], random: Random) -> list[Row]:
    """A broker lacks an entry."""
    for verdict in ("advertisement", "subscription", "sent"):
        one = _some(rows, random, lambda row, verdict=verdict: row.verdict == verdict)  # type: ignore[misc]
        rows = [row for row in rows if row is not one]
    return rows


def orphan(rows: list[Row], random: Random) -> list[Row]:
    """A broker holds an entry of a client that is not connected."""
    one = _some(rows, random, lambda row: row.verdict in ("advertisement", "subscription"))
    return _replaced(rows, one, publisher="c9")


BREAKS: tuple[Break, ...] = (
    split, dirty, duplicate, torn, unread, dropped, mixed, stale, sequential, cycle, behind, tables,
    orphan, stray,
)  # fmt: skip
ANOMALIES = {
    "split", "dirty", "duplicate", "torn", "mixed", "stale", "sequential", "cycle", "behind",
    "unadvertised", "differ", "orphan",
}  # fmt: skip


def broken(runs: list[Row], times: int) -> list[Row]:
    """Return the runs as they are, and broken in each way, so many times, under other names."""
    rows = list(runs)
    for number, change in enumerate(BREAKS):
        for seed in range(times):
            random = Random(f"{number}/{seed}")
            rows += (
                msgspec.structs.replace(row, run=f"{row.run}-{change.__name__}-{seed}")
                for row in change(runs, random)
            )
    return rows


@pytest.mark.parametrize(
    ("seeds", "times"), [(FEW_SEEDS, 1), pytest.param(SEEDS, 2, marks=pytest.mark.verify)]
)
def test_audit_of_broken_runs_agrees_with_checker(
    spark: SparkSession, tmp_path: Path, seeds: Sequence[int], times: int
) -> None:
    rows = broken(simulated(seeds), times)
    trace.write(rows, tmp_path / "runs")
    expected = check(rows, "transactions", violations_max=ALL)
    found = {name for one in expected.findings for name in one.anomaly_counts}
    assert found == ANOMALIES, "every way to break a run was found"
    report = audit(tmp_path / "runs", "transactions", violations_max=ALL).report(violations_max=ALL)
    assert_same(report, expected)
    strays = [
        each
        for each in report["atomic"].violations
        if each.anomaly == "stale" and "-stray-" in each.subscribers[0].run
    ]
    assert len(strays) == times


@pytest.mark.verify
def test_audit_counts_violations_beyond_the_limit(
    spark: SparkSession, tmp_path: Path, runs: list[Row]
) -> None:
    rows = broken(runs, 2)
    trace.write(rows, tmp_path / "runs")
    expected = check(rows, "transactions", violations_max=ALL)
    some = audit(read_trace(spark, tmp_path / "runs"), "transactions", violations_max=1)
    for rule in RULES:
        assert some.report()[rule].anomaly_counts == expected[rule].anomaly_counts, rule


def test_trace_without_content_is_not_judged(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        Row(
            run="r",
            node="c",
            step=1,
            at_ns=1,
            action="subscribed",
            topic="orders",
            subscription="c.s",
        ),
        Row(
            run="r",
            node="p",
            step=1,
            at_ns=2,
            action="published",
            event="p/orders/1",
            topic="orders",
        ),
    ]
    trace.write(rows, tmp_path / "runs")
    assert_same(audit(tmp_path / "runs", "transactions").report(), check(rows, "transactions"))
    trace.write([], tmp_path / "empty")
    assert_same(audit(tmp_path / "empty", "transactions").report(), check([], "transactions"))
    with pytest.raises(BadInput, match="at least 1"):
        audit(tmp_path / "runs", "transactions", violations_max=0)


@pytest.mark.verify
def test_operation_without_a_readable_place_makes_a_run_unknown(
    spark: SparkSession, tmp_path: Path, runs: list[Row]
) -> None:
    rows = list(runs)
    done = {row.transaction for row in runs if row.action == "committed"}
    for action in ("published", "received"):
        one = next(row for row in runs if row.action == action and row.transaction in done)
        for place in ("second", "2 ", "-1", "1.", "9" * 19, "٣"):
            spoilt = _replaced(runs, one, event=f"{one.transaction}#{place}")
            rows += [
                msgspec.structs.replace(row, run=f"{action} {place}")
                for row in sequential(spoilt, Random(1))
                if row.run == one.run
            ]
    # Operations after a zero have no place.
    like = next(row for row in runs if row.action == "received" and row.transaction)
    for place in ("2.0", "2", "0.3", "2.0.9", "2.0.1"):
        rows = _added(rows, like, event=f"{like.transaction}#{place}")
    trace.write(rows, tmp_path / "runs")
    expected = check(rows, "transactions", violations_max=ALL)
    assert len(expected.reasons) == 12
    report = audit(tmp_path / "runs", "transactions", violations_max=ALL).report(violations_max=ALL)
    assert_same(report, expected)
