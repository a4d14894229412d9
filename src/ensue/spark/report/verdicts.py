"""The verdict on each run of a report.

`judge` returns whether the promised order was kept, and the first violation, which the report
draws. The checkers judge a trace of up to `ROWS_MAX` rows in memory; the audit judges a larger one
on Spark. The results are the same, but the checkers are faster.
"""

from collections.abc import Iterator, Mapping

import msgspec
from pyspark.sql import DataFrame

from ensue import checkers
from ensue.checkers import Finding, Report, Verdict, Violation
from ensue.checkers.total import SEARCH_ENDED
from ensue.core.trace import Row
from ensue.spark.audits import audit

__all__ = ["ROWS_MAX", "Judgement", "judge"]

ROWS_MAX = 1_000_000
"""Largest trace, in rows of all runs, that is judged in memory."""
COUNTED_MAX = 1_000
"""Most violations of each rule: the limit of an audit, so that results are the same."""

_FIRST = ("total", "global", "causal", "causal-topic", "deadline")
_LAST = ("fifo", "positions", "complete")
"""Rules whose violations are drawn: a disagreement gives the best picture, a lost event the
poorest. Violations of other rules are not of a single delivery, and not drawn."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on one run."""

    verdict: Verdict
    sentences: tuple[str, ...]
    """The findings, the worst first."""
    counts: dict[str, int] = {}
    """Number of violations of each kind, up to the limit."""
    checked: str = ""
    """The checked rules, and the number of deliveries, events and subscribers."""
    first: Violation | None = None


def judge(trace: DataFrame, runs: Mapping[str, str], *, row_count: int) -> dict[str, Judgement]:
    """Judge each of these runs by the order that it promised."""
    found = {}
    for run, order in runs.items():
        rows = trace.where(trace["run"] == run)
        if row_count > ROWS_MAX:
            report = audit(rows, order, violations_max=COUNTED_MAX).report()
        else:
            report = checkers.check(_rows(rows), order, violations_max=COUNTED_MAX)
        found[run] = _judgement(report)
    return found


def _rows(trace: DataFrame) -> list[Row]:
    table = trace.select(*Row.__struct_fields__).toArrow()
    stamps = table.column("stamp").to_pylist()
    rows = table.drop_columns(["stamp"]).to_pylist()
    return [
        Row(**row, stamp=None if stamp is None else dict(stamp))
        for row, stamp in zip(rows, stamps, strict=True)
    ]


def _judgement(report: Report) -> Judgement:
    counts: dict[str, int] = {}
    for finding in report.findings:
        for anomaly, count in finding.anomaly_counts.items():
            counts[anomaly] = counts.get(anomaly, 0) + count
    violations = [
        violation
        for finding in _worst_first(report)
        if finding.checker in (*_FIRST, *_LAST)
        for violation in finding.violations
    ]
    return Judgement(
        verdict=report.verdict,
        checked=report.sentences()[0].partition(": ")[2],
        sentences=tuple(_sentences(report)),
        counts=counts,
        first=violations[0] if violations else None,
    )


def _worst_first(report: Report) -> list[Finding]:
    places = {checker: at - len(_FIRST) for at, checker in enumerate(_FIRST)}
    places |= {checker: at + 1 for at, checker in enumerate(_LAST)}
    return sorted(report.findings, key=lambda finding: places.get(finding.checker, 0))


def _sentences(report: Report) -> Iterator[str]:
    """Yield for each broken rule the count and the first witness, then notes."""
    for finding in _worst_first(report):
        if finding.violations:
            ended = any(note.startswith(SEARCH_ENDED) for note in finding.notes)
            count = f"{finding.violation_count:,}{' or more' if ended else ''}"
            several = ended or finding.violation_count > 1
            times = f"{count} times, for example: " if several else "once: "
            yield f"{finding.checker} broken {times}{finding.violations[0].because}"
    yield from report.reasons
    for finding in report.findings:
        yield from (f"{finding.checker}: {reason}" for reason in finding.reasons)
        yield from (
            f"{finding.checker}: {note}"
            for note in finding.notes
            if not note.startswith(SEARCH_ENDED)
        )
