"""The checkers agree with the slow, obvious definitions on thousands of small traces."""

from collections import Counter
from random import Random

import pytest
from tests.checkers import brute
from tests.checkers.generator import generate

from ensue.checkers import Finding, Violation, check, inversions
from ensue.core.trace import Row

CHUNK = 1_000
CHUNKS = 4
CHUNKS_VERIFY = 12
ANOMALIES = {
    "fifo",
    "duplicate",
    "total",
    "global",
    "causal",
    "position",
    "lost",
    "phantom",
    "uninvited",
    "void",
}
MANY = 1_000_000
"""More violations than any small trace has: all are kept."""


@pytest.mark.parametrize(
    "chunk",
    [
        *range(CHUNKS),
        *(pytest.param(chunk, marks=pytest.mark.verify) for chunk in range(CHUNKS, CHUNKS_VERIFY)),
    ],
)
def test_checkers_agree_with_brute_force(chunk: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        rows = generate(seed)
        if not brute.of_action(rows, "delivered"):
            continue
        try:
            seen.update(compare(rows, Random(seed)))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    # Every anomaly, every outcome of the total check and many good traces must have occurred.
    for outcome in sorted(ANOMALIES | {"valid", "circle", "in doubt"}):
        assert seen[outcome] >= 5, (outcome, seen)


def compare(rows: list[Row], random: Random) -> set[str]:
    """Compare every checker with its definition; return its findings."""
    settle_ns = random.choice((None, 0, 5, 20))
    clock_error_ns = random.choice((0, 3, 10))
    order = random.choice(("total", "fifo", "causal", "none"))
    lossy = random.random() < 0.2
    report = check(
        rows,
        order,
        causal=True,
        settle_ns=settle_ns,
        clock_error_ns=clock_error_ns,
        lossy=lossy,
        violations_max=MANY,
    )
    assert not report.reasons
    expected = brute.complete(
        rows, settle_ns=settle_ns, clock_error_ns=clock_error_ns, gaps=order != "none"
    )
    lost_count = sum(1 for anomaly, _, _ in expected if anomaly == "lost")
    if lossy:
        expected = Counter({key: n for key, n in expected.items() if key[0] != "lost"})
        notes = [note for note in report["complete"].notes if "are missing" in note]
        assert [int(note.split()[0]) for note in notes] == ([lost_count] if lost_count else [])
    assert found(report["complete"]) == expected
    assert found(report["causal"]) == brute.causal(rows)
    assert found(report["positions"]) == brute.positions(rows)
    if order != "none":
        assert found(report["fifo"]) == brute.fifo(rows)
    full = check(rows, "total", causal=False, lossy=lossy, violations_max=MANY)
    outcomes = compare_total(rows, full["total"])
    merged = check(rows, "merged", lossy=lossy, violations_max=MANY)
    compare_global(rows, full["total"], merged["global"])
    if any("in doubt" in note for note in report["complete"].notes):
        outcomes.add("in doubt")
    if full.verdict == "valid":
        outcomes.add("valid")
    findings = (*report.findings, *full.findings, *merged.findings)
    return outcomes.union(*(finding.anomaly_counts for finding in findings))


def found(finding: Finding) -> brute.Found:
    """List violations as brute force does: by the event delivered last."""
    assert finding.violation_count == len(finding.violations)
    assert not finding.reasons
    return Counter(
        (violation.anomaly, who(violation, 0), violation.second_event or violation.first_event)
        for violation in finding.violations
    )


def who(violation: Violation, which: int) -> brute.Who:
    subscriber = violation.subscribers[which]
    return subscriber.node, subscriber.subscription


def compare_total(rows: list[Row], finding: Finding) -> set[str]:
    inverted = set(brute.inverted(rows))
    counted = inversions(rows)
    assert counted.count == len(inverted)
    assert counted.common_count == brute.common_count(rows)
    assert (finding.verdict == "invalid") == bool(inverted)
    for violation in finding.violations:
        one, other = who(violation, 0), who(violation, 1)
        first, second = violation.first_event, violation.second_event
        assert second is not None
        assert {(one, other, first, second), (other, one, second, first)} & inverted
        assert brute.neighbours(rows, one, other, {first, second})
    if inverted:
        assert distance(rows, finding.violations[0]) == smallest(rows, inverted)
        assert counted.because == finding.violations[0].because
        return {"total"}
    circle = not brute.one_order_fits(rows)
    assert bool(finding.notes) == circle
    return {"circle"} if circle else set()


def compare_global(rows: list[Row], pairs: Finding, finding: Finding) -> None:
    """Compare `global` with its definition: every disagreement, or else a cycle."""
    assert (finding.verdict == "valid") == brute.one_order_fits(rows)
    disagreements = [one for one in finding.violations if one.anomaly == "total"]
    assert disagreements == list(pairs.violations)
    for cycle in (one for one in finding.violations if one.anomaly == "global"):
        assert cycle.second_event is not None
        order = [row.event for row in brute.judged(rows, who(cycle, 0))]
        assert order.index(cycle.first_event) < order.index(cycle.second_event)


def distance(rows: list[Row], violation: Violation) -> int:
    assert violation.second_event is not None
    pair = violation.first_event, violation.second_event
    return sum(brute.distance(rows, who(violation, which), *pair) for which in (0, 1))


def smallest(rows: list[Row], inverted: set[tuple[brute.Who, brute.Who, str, str]]) -> int:
    return min(
        brute.distance(rows, one, first, second) + brute.distance(rows, other, first, second)
        for one, other, first, second in inverted
        if brute.neighbours(rows, one, other, {first, second})
    )
