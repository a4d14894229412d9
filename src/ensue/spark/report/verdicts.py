"""The verdict on each run, for its report.

One function, `judge`, says whether the order that was promised was kept, and names the first
violation, which the report draws. A trace of up to `ROWS_MAX` rows is judged by the checkers, in
memory; a larger one by the audit, on Spark. Both say the same, but the checkers sooner.
"""

from collections.abc import Iterator, Sequence

import msgspec
from pyspark.sql import DataFrame

from ensue import checkers
from ensue.checkers import Finding, Report, Verdict, Violation
from ensue.checkers.total import SEARCH_ENDED
from ensue.core.trace import Row
from ensue.spark.audits import audit

__all__ = ["ROWS_MAX", "Judgement", "judge"]

ROWS_MAX = 1_000_000
"""Rows of a trace that are judged in memory, all runs together."""
COUNTED_MAX = 1_000
"""Violations of each rule that are looked for: as many as an audit does, so that both say the
same."""

_FIRST = ("total", "global", "causal", "causal-topic", "deadline")
_LAST = ("fifo", "positions", "complete")
"""A disagreement is the best picture; an event lost is the poorest. What breaks other rules is no
single delivery, and not drawn."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of one run."""

    verdict: Verdict
    sentences: tuple[str, ...]
    """What was found, the worst first."""
    counts: dict[str, int] = {}
    """How many violations there are of each kind, as far as they were looked for."""
    checked: str = ""
    """What was judged."""
    first: Violation | None = None


def judge(
    trace: DataFrame, runs: Sequence[str], *, order: str, row_count: int
) -> dict[str, Judgement]:
    """Judge each of these runs by the order that was promised."""
    found = {}
    for run in runs:
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
    """Yield how often each rule was broken with its first witness, then notes."""
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
