"""Contradictory runs and incomplete rows: the audit agrees with the checkers."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.checkers.helpers import Script

from ensue.checkers import Report, check
from ensue.core import trace
from ensue.core.event import event_id
from ensue.core.trace import Row
from ensue.spark import audit
from ensue.spark.audits import Sizes

CUT_UP = Sizes(whole_rows=0, tile_rows=2)
"""So small that every run is judged as huge ones are."""


class CanonicalScript(Script):
    """Return rows as recorders write them: ids of publisher, topic and number; positions."""

    def publish(self, node: str, event: str, topic: str = "x") -> "CanonicalScript":
        super().publish(node, event, topic)
        number = self.rows[-1].publisher_seq
        assert number is not None
        self.rows[-1] = msgspec.structs.replace(self.rows[-1], event=event_id(node, topic, number))
        return self

    def deliver(
        self,
        node: str,
        *events: str,
        subscription: str = "main",
        verdict: str = "",
        position: int | None = None,
    ) -> "CanonicalScript":
        for event in events:
            super().deliver(node, event, subscription=subscription, verdict=verdict)
            last = self.rows[-1]
            who = [(row.node, row.subscription) for row in self.rows if row.action == "delivered"]
            assert last.publisher is not None
            assert last.topic is not None
            assert last.publisher_seq is not None
            self.rows[-1] = msgspec.structs.replace(
                last,
                event=event_id(last.publisher, last.topic, last.publisher_seq),
                position=position or who.count((node, subscription)),
            )
        return self


def good() -> CanonicalScript:
    script = CanonicalScript()
    script.subscribe("s", "x").publish("p", "e").deliver("s", "e")
    return script


def again(script: Script) -> Script:
    (row,) = [row for row in script.rows if row.action == "published"]
    columns = ("event", "topic", "publisher", "publisher_seq")
    return script.row(row.node, "published", **{name: getattr(row, name) for name in columns})


def two_labels() -> Script:
    script = Script().subscribe("s", "x").publish("p", "e").publish("p", "f").deliver("s", "e", "f")
    script.rows = [
        row if row.event is None else msgspec.structs.replace(row, event="one")
        for row in script.rows
    ]
    return script


def alike() -> Script:
    """Two publishers and topics whose names come to the same, where a name holds what parts ids."""
    script = CanonicalScript()
    script.subscribe("s", "b/c", "c").publish("a", "e", "b/c").publish("a/b", "f", "c")
    return script.deliver("s", "e", "f")


def stranger() -> Script:
    """A subscriber that never subscribed delivers an event of an unknown publisher."""
    return good().deliver("t", "nobody's")


def deliveries_alone() -> Script:
    script = good()
    script.rows = [row for row in script.rows if row.action == "delivered"]
    return script


CASES: Mapping[str, Script] = {
    "good": good(),
    "published again": again(good()),
    "published again before a restart": again(good()).crash("p").restart("p"),
    "published again after a restart": again(good().crash("p").restart("p")),
    "two ids": Script().subscribe("s", "x").publish("p", "e").deliver("s", "e").row(
        "p", "published", event="f", topic="x", publisher="p", publisher_seq=1
    ),
    "two labels": two_labels(),
    "alike": alike(),
    "stranger": stranger(),
    "deliveries alone": deliveries_alone(),
}  # fmt: skip
PLAIN = (
    "good",
    "published again",
    "published again before a restart",
    "published again after a restart",
    "stranger",
    "deliveries alone",
)
"""Runs whose ids are publisher, topic and number; these are read from files."""


def rows_of(names: tuple[str, ...]) -> list[Row]:
    return [msgspec.structs.replace(row, run=name) for name in names for row in CASES[name].rows]


def counts(report: Report) -> dict[str, dict[str, int]]:
    return {one.checker: one.anomaly_counts for one in report.findings}


def unknown_runs(report: Report) -> list[str]:
    return [reason.partition(" is ")[0] for reason in report.reasons]


@pytest.mark.parametrize(
    "names", [pytest.param(PLAIN, marks=pytest.mark.verify), tuple(CASES)], ids=["plain", "all"]
)
def test_audit_agrees_with_checkers(
    spark: SparkSession, tmp_path: Path, names: tuple[str, ...]
) -> None:
    rows = rows_of(names)
    trace.write(rows, tmp_path / "trace")
    expected = check(rows)
    assert len(expected.reasons) == len(names) - 4
    assert audit(tmp_path / "trace").report().to_dict() == expected.to_dict()

    report = audit(tmp_path / "trace", sizes=CUT_UP).report()
    assert counts(report) == counts(expected)
    assert unknown_runs(report) == unknown_runs(expected)
    assert (report.run_count, report.event_count) == (expected.run_count, expected.event_count)
    assert report.delivery_count == expected.delivery_count
    assert report.subscriber_count == expected.subscriber_count


def late(script: Script, **columns: object) -> list[Row]:
    """Return rows whose deliveries are late by the clock, and by their deadline."""
    return [
        msgspec.structs.replace(row, at_ns=row.at_ns + 10**9, deadline_ns=5, **columns)
        if row.action == "delivered"
        else row
        for row in script.rows
    ]


@pytest.mark.verify
def test_times_are_judged_only_of_readable_runs_and_valid_clocks(
    spark: SparkSession, tmp_path: Path
) -> None:
    two = good()
    two.subscribe("s", "x", subscription="other").deliver("s", "e", subscription="other")
    partly = good()
    partly.row("q", "crashed")
    partly.rows[-1] = msgspec.structs.replace(partly.rows[-1], true_ns=None)
    runs = {
        "late by the clock": late(good(), true_ns=4),
        "late in truth": late(good(), true_ns=10**9),
        "late where clocks count": late(partly, true_ns=4),
        "late where truth does not count": [
            msgspec.structs.replace(row, true_ns=10**9) if row.action == "delivered" else row
            for row in partly.rows
        ],
        "late twice": late(two, true_ns=10**9),
        "not believed": late(again(good()), true_ns=10**9),
    }
    rows = [msgspec.structs.replace(row, run=run) for run, its in runs.items() for row in its]
    trace.write(rows, tmp_path / "trace")
    limits = {"lossy": True, "within_ns": 1_000, "clock_error_ns": 7}
    expected = check(rows, "deadline", **limits)  # type: ignore[arg-type]
    assert expected["timely"].anomaly_counts == {"slow": 4}
    assert expected["deadline"].anomaly_counts == {"expired": 5}
    assert len(expected.reasons) == 1

    report = audit(tmp_path / "trace", "deadline", **limits).report()  # type: ignore[arg-type]
    assert report.to_dict() == expected.to_dict()


@pytest.mark.verify
def test_clocks_may_differ_by_any_64_bit_number(spark: SparkSession, tmp_path: Path) -> None:
    script = CanonicalScript()
    script.subscribe("s", "x").publish("p", "e").publish("q", "f").deliver("s", "e", "f")
    clocks = {"s": 0, "p": -(2**63), "q": 2**63 - 10}
    rows = [
        msgspec.structs.replace(
            row, at_ns=clocks[row.node] + row.step, true_ns=None, deadline_ns=-(2**63)
        )
        for row in script.rows
    ]
    trace.write(rows, tmp_path / "trace")
    limits = {"lossy": True, "within_ns": 1_000, "clock_error_ns": 7}
    expected = check(rows, "deadline", **limits)  # type: ignore[arg-type]
    report = audit(tmp_path / "trace", "deadline", sizes=CUT_UP, **limits).report()  # type: ignore[arg-type]
    assert counts(report) == counts(expected)
    assert expected["timely"].anomaly_counts == {"slow": 1}


def test_audit_of_an_empty_trace_agrees_with_checkers(spark: SparkSession, tmp_path: Path) -> None:
    trace.write([], tmp_path / "trace")
    expected = check([], "deadline", within_ns=1).to_dict()
    assert audit(tmp_path / "trace", "deadline", within_ns=1).report().to_dict() == expected
