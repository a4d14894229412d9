"""The result of an audit: a verdict, violations as a data frame, sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ensue.checkers.verdict import Finding, Report, Subscriber, Verdict, Violation

__all__ = ["Audit", "Totals"]

VIOLATIONS_SHOWN = 20
"""Violations of each rule in a report by default, as in `ensue.checkers.check`."""

VIOLATION_COLUMNS = (
    "run",
    "anomaly",
    "node",
    "first",
    "second",
    "because",
    "checker",
    "subscription",
    "other_node",
    "other_subscription",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Size of the audited trace."""

    runs: int
    events: int
    deliveries: int
    subscribers: int


class Audit:
    """The result of `ensue.spark.audit`."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        order: str,
        rules: Sequence[str],
        totals: Totals,
        judged: pa.Table,
        reasons: Sequence[str],
        notes: Mapping[str, Sequence[str]],
    ) -> None:
        self.order = order
        self.totals = totals
        self._spark = spark
        self._rules = tuple(rules)
        self._reasons = tuple(reasons)
        self._notes = notes
        self._violations = _distinct(judged)
        self._judged = judged

    @cached_property
    def violations(self) -> DataFrame:
        """One row per violation: run, anomaly, node, first, second, because, other nodes."""
        return self._spark.createDataFrame(self._violations.select(list(VIOLATION_COLUMNS)))

    @property
    def verdict(self) -> Verdict:
        """Whether the promised order was kept."""
        return self.report(violations_max=1).verdict

    @property
    def violation_count(self) -> int:
        """Number of rows in `violations`."""
        return self._violations.num_rows

    def report(self, *, violations_max: int = VIOLATIONS_SHOWN) -> Report:
        """Return a report like `ensue.checkers.check`, with up to `violations_max` per rule."""
        rows = self._violations.to_pylist()
        findings = tuple(self._finding(rule, rows, violations_max) for rule in self._rules)
        unknown = [Verdict.UNKNOWN for _ in self._reasons]
        return Report(
            verdict=Verdict.worst([*(finding.verdict for finding in findings), *unknown]),
            order=self.order,
            findings=findings,
            reasons=self._reasons,
            run_count=self.totals.runs,
            event_count=self.totals.events,
            delivery_count=self.totals.deliveries,
            subscriber_count=self.totals.subscribers,
        )

    def sentences(self, *, violations_max: int = VIOLATIONS_SHOWN) -> list[str]:
        """Return the verdict, then witnesses of each rule, reasons and notes, as lines.

        As with `ensue.checkers.check`, a line counts further violations;
        `violations_max=audit.violation_count` lists all.
        """
        return self.report(violations_max=violations_max).sentences()

    def _finding(self, rule: str, rows: Sequence[dict[str, Any]], violations_max: int) -> Finding:
        mine = [row for row in rows if row["checker"] == rule]
        counts: dict[str, int] = {}
        for row in mine:
            counts[row["anomaly"]] = counts.get(row["anomaly"], 0) + 1
        others = [row for row in self._judged.to_pylist() if row["checker"] == rule]
        for row in others:
            if row["what"] == "unreported":
                counts[row["anomaly"]] = counts.get(row["anomaly"], 0) + row["count"]
        unknown = _texts(others, "unknown")
        verdict = Verdict.INVALID if counts else Verdict.UNKNOWN if unknown else Verdict.VALID
        return Finding(
            checker=rule,
            verdict=verdict,
            anomaly_counts=dict(sorted(counts.items())),
            violations=tuple(_violation(row) for row in mine[:violations_max]),
            notes=(*_texts(others, "note"), *self._notes.get(rule, ())),
            reasons=unknown,
        )


def _texts(rows: Sequence[dict[str, Any]], what: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row["because"] for row in rows if row["what"] == what))


def _distinct(judged: pa.Table) -> pa.Table:
    """Return the violations, each once: adjacent tiles may both find it.

    A tile may find equal violations, as of an event that was delivered three times. The tile with
    the most of them has them all.
    """
    found: dict[tuple[Any, ...], dict[int, list[dict[str, Any]]]] = {}
    for row in judged.to_pylist():
        if row["what"] == "violation":
            key = tuple(row[name] for name in VIOLATION_COLUMNS if name != "because")
            found.setdefault(key, {}).setdefault(row["tile"], []).append(row)
    rows = [row for tiles in found.values() for row in max(tiles.values(), key=len)]
    rows.sort(key=lambda row: (row["run"], row["tile"], row["place"]))
    return pa.Table.from_pylist(rows, schema=judged.schema)


def _violation(row: Mapping[str, Any]) -> Violation:
    subscribers = [Subscriber(row["run"], row["node"], row["subscription"])]
    if row["other_node"] is not None:
        subscribers.append(Subscriber(row["run"], row["other_node"], row["other_subscription"]))
    return Violation(
        anomaly=row["anomaly"],
        subscribers=tuple(subscribers),
        first_event=row["first"],
        second_event=row["second"],
        because=row["because"],
    )
