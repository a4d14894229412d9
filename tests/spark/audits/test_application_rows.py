"""Traces of applications: Spark judges what was submitted and confirmed as the checkers do."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.spark.audits.application_rows import Application, random_application

from ensue.checkers import Report, check
from ensue.core import trace
from ensue.core.trace import Row
from ensue.spark import audit, read_trace
from ensue.spark.audits import Sizes

MANY = 1_000_000
CUT_UP = Sizes(whole_rows=0, tile_rows=4)
"""So small that every run is judged as huge ones are."""


def effect_before_its_cause(named: bool) -> Application:
    """q answers e before the receipt of its own answer; s gets the answer first."""
    script = Application(named=named)
    script.subscribe("q", "x").subscribe("s", "x", "y")
    script.submit("p", "e").hand_over("q", "e").submit("q", "f", topic="y")
    return script.confirm("p", "e").confirm("q", "f").hand_over("s", "f", "e")


def receipt_after_a_delivery(named: bool) -> Application:
    """q submits f, and reads e before it gets the receipt: e does not cause f."""
    script = Application(named=named)
    script.subscribe("q", "x").subscribe("s", "x", "y")
    script.submit("q", "f", topic="y").submit("p", "e").hand_over("q", "e")
    return script.confirm("p", "e").confirm("q", "f").hand_over("s", "f", "e")


def own_event_before_its_receipt(named: bool) -> Application:
    """A publisher may read its event before it gets the receipt."""
    script = Application(named=named)
    return script.subscribe("p", "x").submit("p", "e").hand_over("p", "e").confirm("p", "e")


def never_confirmed(named: bool) -> Application:
    script = Application(named=named)
    script.subscribe("s", "x").submit("p", "e", "f").confirm("p", "f")
    return script.hand_over("s", "f")


def delivered_and_never_confirmed(named: bool) -> Application:
    return Application(named=named).subscribe("s", "x").submit("p", "e").hand_over("s", "e")


def lost_after_its_receipt(named: bool) -> Application:
    script = Application(named=named)
    script.subscribe("s", "x").submit("p", "e", "f").confirm("p", "e", "f")
    return script.hand_over("s", "f")


def lost_by_a_crash(named: bool) -> Application:
    """The publisher of a confirmed event stays down: the event is in doubt."""
    script = Application(named=named)
    script.subscribe("s", "x").submit("p", "e", "f", "g").confirm("p", "e", "f").crash("p")
    return script.hand_over("s", "e")


def submitted_before_the_subscription(named: bool) -> Application:
    """The receipt comes after the subscription took effect: the event is not owed."""
    script = Application(named=named)
    script.submit("p", "e").subscribe("s", "x").confirm("p", "e")
    return script.submit("p", "f").confirm("p", "f").hand_over("s", "f")


def confirmed_near_the_end(named: bool) -> Application:
    """Submitted long before the subscription ended, confirmed right before it."""
    script = Application(named=named)
    script.subscribe("s", "x").submit("p", "e", "f").confirm("p", "e").hand_over("s", "e")
    for _ in range(20):
        script.row("p", "sent")
    script.confirm("p", "f").row("s", "unsubscribed", topic="x", subscription="main")
    return script


def confirmed_long_before_the_end(named: bool) -> Application:
    script = Application(named=named)
    script.subscribe("s", "x").submit("p", "e", "f").confirm("p", "e", "f").hand_over("s", "e")
    for _ in range(20):
        script.row("p", "sent")
    script.row("s", "unsubscribed", topic="x", subscription="main", verdict="lost")
    return script


def gap_in_an_ended_subscription(named: bool) -> Application:
    """A later event of the publisher came; of the two before it one was never confirmed."""
    script = Application(named=named)
    script.subscribe("s", "x").submit("p", "e").confirm("p", "e").submit("p", "f", "g")
    script.confirm("p", "g").hand_over("s", "g")
    script.row("s", "unsubscribed", topic="x", subscription="main", verdict="lost")
    return script


def submitted_again(named: bool) -> Application:
    script = Application(named=named).subscribe("s", "x").submit("p", "e").confirm("p", "e")
    return script.submit_again("p", "e").hand_over("s", "e")


def submitted_again_after_a_restart(named: bool) -> Application:
    script = Application(named=named).subscribe("s", "x").submit("p", "e").crash("p").restart("p")
    return script.submit_again("p", "e").confirm("p", "e").hand_over("s", "e")


def published_again(named: bool) -> Application:
    script = Application(named=named)
    script.subscribe("s", "x").submit("p", "e").confirm("p", "e").confirm("p", "e")
    return script.hand_over("s", "e")


def published_again_after_a_restart(named: bool) -> Application:
    script = Application(named=named)
    script.subscribe("s", "x").submit("p", "e").confirm("p", "e").crash("p").restart("p")
    return script.confirm("p", "e").hand_over("s", "e")


def confirmed_after_a_restart(named: bool) -> Application:
    script = Application(named=named)
    script.subscribe("s", "x").submit("p", "e").crash("p").restart("p").confirm("p", "e")
    return script


def unread_positions(named: bool) -> Application:
    """An application leaves x, and goes on with y: positions of x are skipped."""
    script = Application(named=named)
    script.subscribe("s", "x", "y").submit("p", "a", "b", "c").submit("p", "d", "e", topic="y")
    script.hand_over("s", "a").leave_unread("s", "b", position=2).leave_unread("s", "c", position=4)
    script.row("s", "unsubscribed", topic="x", subscription="main")
    return script.hand_over("s", "d", position=3).hand_over("s", "e", position=5)


def unmatched(named: bool) -> Application:
    """A subscription by content gets a and c; another one was owed all of them."""
    script = Application(named=named)
    script.subscribe("s", "x").subscribe("s", "x", subscription="other")
    script.submit("p", "a", "b", "c").confirm("p", "a", "b", "c")
    script.leave_unread("s", "b", position=9)
    script.rows[-1] = msgspec.structs.replace(script.rows[-1], verdict="unmatched", position=None)
    script.hand_over("s", "a", position=1).hand_over("s", "c", position=2)
    return script.hand_over("s", "a", subscription="other").hand_over(
        "s", "c", subscription="other"
    )


def skipped_positions(named: bool) -> Application:
    """As `unread_positions`, but nothing says what became of position 4."""
    script = Application(named=named)
    script.subscribe("s", "x", "y").submit("p", "a", "b", "c").submit("p", "d", "e", topic="y")
    script.hand_over("s", "a").leave_unread("s", "b", position=2)
    script.row("s", "unsubscribed", topic="x", subscription="main")
    return script.hand_over("s", "d", position=3).hand_over("s", "e", position=5)


def unread_at_another_subscription(named: bool) -> Application:
    script = Application(named=named)
    script.subscribe("s", "x").subscribe("s", "x", subscription="other").submit("p", "a", "b", "c")
    script.leave_unread("s", "b", subscription="other", position=2)
    return script.hand_over("s", "a").hand_over("s", "c", position=3)


def unread_without_a_subscription(named: bool) -> Application:
    script = Application(named=named).submit("p", "a", "b", "c")
    return script.hand_over("s", "a").leave_unread("s", "b").hand_over("s", "c")


def backward_over_unread_positions(named: bool) -> Application:
    script = Application(named=named).subscribe("s", "x").submit("p", "a", "b", "c")
    script.leave_unread("s", "b", position=2)
    return script.hand_over("s", "a", position=3).hand_over("s", "c", position=1)


def slow_by_the_submission(named: bool) -> Application:
    """The receipt comes late, and the delivery right after it."""
    script = Application(named=named).subscribe("s", "x").submit("p", "e")
    for _ in range(60):
        script.row("p", "sent")
    return script.confirm("p", "e").hand_over("s", "e")


def submitted_without_a_label(named: bool) -> Application:
    script = never_confirmed(named)
    script.row("p", "submitted", event="p/x/9", topic="x", publisher="p")
    return script


def submitted_without_true_time(named: bool) -> Application:
    """One row without true time, and the clocks of nodes decide."""
    script = lost_after_its_receipt(named)
    script.row("p", "submitted", event="p/x/9", topic="x", publisher="p", publisher_seq=9)
    script.rows[-1] = msgspec.structs.replace(script.rows[-1], true_ns=None)
    at = {"subscribed": 10**6}
    script.rows = [
        msgspec.structs.replace(row, at_ns=at.get(row.action, row.at_ns)) for row in script.rows
    ]
    return script


MAKERS = (
    effect_before_its_cause,
    receipt_after_a_delivery,
    own_event_before_its_receipt,
    never_confirmed,
    delivered_and_never_confirmed,
    lost_after_its_receipt,
    lost_by_a_crash,
    submitted_before_the_subscription,
    confirmed_near_the_end,
    confirmed_long_before_the_end,
    gap_in_an_ended_subscription,
    submitted_again,
    submitted_again_after_a_restart,
    published_again,
    published_again_after_a_restart,
    confirmed_after_a_restart,
    unread_positions,
    unmatched,
    skipped_positions,
    unread_at_another_subscription,
    unread_without_a_subscription,
    backward_over_unread_positions,
    slow_by_the_submission,
    submitted_without_a_label,
    submitted_without_true_time,
)
ANOMALIES: Mapping[str, dict[str, int]] = {
    "effect_before_its_cause": {"causal": 1},
    "lost_after_its_receipt": {"lost": 1},
    "confirmed_long_before_the_end": {"lost": 1},
    "gap_in_an_ended_subscription": {"lost": 1},
    "confirmed_after_a_restart": {"lost": 1},
    "unmatched": {"lost": 1},
    "skipped_positions": {"position": 1},
    "unread_at_another_subscription": {"position": 1},
    "unread_without_a_subscription": {"uninvited": 2},
    "backward_over_unread_positions": {"position": 1},
    "slow_by_the_submission": {"slow": 1},
}
"""By run: its violations, of any rule; other runs have none."""
UNKNOWN = ["run confirmed_after_a_restart has no deliveries", "run published_again is malformed",
           "run submitted_again is malformed", "run submitted_without_a_label is malformed"]  # fmt: skip
LIMITS = {"settle_ns": 15, "within_ns": 50, "violations_max": MANY}


def rows_of_cases(*, named: bool) -> list[Row]:
    return [
        msgspec.structs.replace(row, run=make.__name__)
        for make in MAKERS
        for row in make(named).rows
    ]


def anomalies(report: Report) -> dict[str, Counter[str]]:
    """Return by run the violations of all rules."""
    found: dict[str, Counter[str]] = {}
    for finding in report.findings:
        for one in finding.violations:
            found.setdefault(one.subscribers[0].run, Counter())[one.anomaly] += 1
    return found


Violations = Counter[tuple[object, ...]]


def violations(report: Report) -> Violations:
    return Counter(
        (one.checker, each.anomaly, each.subscribers, each.first_event, each.second_event)
        for one in report.findings
        for each in one.violations
    )


def totals(report: Report) -> tuple[int, ...]:
    counts = (report.run_count, report.event_count, report.delivery_count)
    return (*counts, report.subscriber_count)


@pytest.mark.parametrize(
    ("named", "is_frame"),
    [
        (False, False),
        pytest.param(False, True, marks=pytest.mark.verify),
        pytest.param(True, False, marks=pytest.mark.verify),
        pytest.param(True, True, marks=pytest.mark.verify),
    ],
)
def test_planted_violations_are_judged_as_by_the_checkers(
    spark: SparkSession, tmp_path: Path, named: bool, is_frame: bool
) -> None:
    rows = rows_of_cases(named=named)
    expected = check(rows, **LIMITS)  # type: ignore[arg-type]
    assert anomalies(expected) == ANOMALIES
    assert sorted(why.partition(": ")[0] for why in expected.reasons) == UNKNOWN
    path = tmp_path / "trace"
    trace.write(rows, path)
    report = audit(path, **LIMITS).report(violations_max=MANY)  # type: ignore[arg-type]
    assert sorted(report.sentences()) == sorted(expected.sentences())
    source = read_trace(spark, path) if is_frame else path
    report = audit(source, sizes=CUT_UP, **LIMITS).report(violations_max=MANY)  # type: ignore[arg-type]
    assert violations(report) == violations(expected)
    assert [one.notes for one in report.findings] == [one.notes for one in expected.findings]
    assert sorted(why.partition(": ")[0] for why in report.reasons) == UNKNOWN
    assert totals(report) == totals(expected)


def random_applications(count: int) -> dict[str, list[Row]]:
    named = {f"seed-{seed}": random_application(seed) for seed in range(count)}
    return {
        name: [msgspec.structs.replace(row, run=name) for row in rows]
        for name, rows in named.items()
        if any(row.action == "delivered" for row in rows)
    }


@pytest.mark.parametrize(
    ("order", "terms", "count"),
    [
        ("total", {"within_ns": 30}, 80),
        pytest.param("total", {"within_ns": 30}, 2_000, marks=pytest.mark.verify),
        pytest.param("merged", {}, 400, marks=pytest.mark.verify),
        pytest.param(
            "causal", {"settle_ns": 5, "clock_error_ns": 3}, 400, marks=pytest.mark.verify
        ),
        pytest.param("causal-topic", {}, 400, marks=pytest.mark.verify),
        pytest.param("none", {"lossy": True}, 400, marks=pytest.mark.verify),
    ],
)
def test_random_traces_are_judged_as_by_the_checkers(
    spark: SparkSession, tmp_path: Path, order: str, terms: dict[str, int], count: int
) -> None:
    rows = [row for each in random_applications(count).values() for row in each]
    limits = {"violations_max": MANY, **terms}
    expected = check(rows, order, **limits)  # type: ignore[arg-type]
    trace.write(rows, tmp_path / "trace")
    report = audit(tmp_path / "trace", order, **limits).report(violations_max=MANY)  # type: ignore[arg-type]
    assert report.verdict == expected.verdict
    assert violations(report) == violations(expected)
    assert untimed(report) == untimed(expected)


def untimed(report: Report) -> list[str]:
    """Return what is said of all rules but timely.

    Its sentences give the position of a delivery on Spark, and a count of deliveries otherwise.
    """
    return sorted(one for one in report.sentences() if not one.startswith("timely ("))


@pytest.mark.parametrize(
    ("as_frame", "count"),
    [
        (False, 700),
        (True, 200),
    ],
)
@pytest.mark.verify
def test_random_traces_that_are_cut_up_are_judged_the_same(
    spark: SparkSession, tmp_path: Path, as_frame: bool, count: int
) -> None:
    # Of events that nobody published, a large run is told only that they are phantoms.
    rows = [
        row
        for each in random_applications(count).values()
        if not check(each, "none")["complete"].anomaly_counts.get("phantom")
        for row in each
    ]
    limits = {"causal": True, "settle_ns": 5, "violations_max": MANY}
    expected = check(rows, **limits)  # type: ignore[arg-type]
    trace.write(rows, tmp_path / "trace")
    source = read_trace(spark, tmp_path / "trace") if as_frame else tmp_path / "trace"
    report = audit(source, sizes=CUT_UP, **limits).report(violations_max=MANY)  # type: ignore[arg-type]
    assert totals(report) == totals(expected)
    assert report["complete"].notes == expected["complete"].notes
    for rule in ("positions", "complete"):
        assert of_rule(violations(report), rule) == of_rule(violations(expected), rule)
    for rule in ("fifo", "causal"):
        # Which earlier event is told beside a late one may differ: any that is too early will do.
        assert late(violations(report), rule) == late(violations(expected), rule)
    assert wrong_runs(report, "total") == wrong_runs(expected, "total")


def of_rule(found: Violations, rule: str) -> Violations:
    return Counter({key: count for key, count in found.items() if key[0] == rule})


def late(found: Violations, rule: str) -> set[tuple[object, ...]]:
    return {(*key[1:3], key[4] or key[3]) for key in of_rule(found, rule)}


def wrong_runs(report: Report, rule: str) -> set[str]:
    return {one.subscribers[0].run for one in report[rule].violations}
