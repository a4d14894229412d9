"""The output of checkers: a verdict, violations with their witnesses, and notes.

A verdict is valid, invalid or unknown. Invalid has at least one violation, and unknown a reason;
valid means that every rule was applied to every delivery. Invalid wins over unknown: a witness
remains true even if the rest is unknown.

A checker may find as many violations as there are rows. It counts all of them, but keeps and
explains only the first `violations_max`: a person reads the first ones, and a program needs the
count.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

__all__ = ["Collector", "Finding", "Report", "Subscriber", "Verdict", "Violation"]


class Verdict(StrEnum):
    """The outcome of a check."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"

    @staticmethod
    def worst(verdicts: "Iterable[Verdict]") -> "Verdict":
        """Join verdicts: one invalid makes all invalid, else one unknown makes all unknown."""
        found = set(verdicts)
        for verdict in (Verdict.INVALID, Verdict.UNKNOWN):
            if verdict in found:
                return verdict
        return Verdict.VALID


class Subscriber(msgspec.Struct, frozen=True, order=True):
    """One sequence of deliveries: one subscription of one node in one run."""

    run: str
    node: str
    subscription: str
    """Empty if the trace has no subscription names."""


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One broken rule and the smallest witness of it."""

    anomaly: str
    """`fifo`, `duplicate`, `total`, `global`, `causal`, `position`, `again`, `slow`, `expired`,
    `missed`, `lost`, `phantom`, `uninvited` or `void`."""
    subscribers: tuple[Subscriber, ...]
    """The subscriber that shows it, or the two that disagree."""
    first_event: str
    """The event that the first subscriber delivered first, or the only event."""
    second_event: str | None = None
    """The event that the first subscriber delivered second, if there are two."""
    because: str
    """The witness in words."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the subscribers, in the same sequence."""
        return tuple(subscriber.node for subscriber in self.subscribers)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one checker."""

    checker: str
    verdict: Verdict
    anomaly_counts: dict[str, int] = {}
    """By kind: the number of violations, kept or not."""
    violations: tuple[Violation, ...] = ()
    """The first violations, explained."""
    notes: tuple[str, ...] = ()
    """Facts that break no rule."""
    reasons: tuple[str, ...] = ()
    """Why something could not be judged."""

    @property
    def violation_count(self) -> int:
        """The number of violations, kept or not."""
        return sum(self.anomaly_counts.values())


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all checkers on a trace."""

    verdict: Verdict
    order: str
    """The order that was promised, and so checked."""
    findings: tuple[Finding, ...]
    reasons: tuple[str, ...] = ()
    """Why runs could not be judged at all."""
    run_count: int
    event_count: int
    delivery_count: int
    subscriber_count: int

    def __getitem__(self, checker: str) -> Finding:
        """Return the finding of one checker by name."""
        for finding in self.findings:
            if finding.checker == checker:
                return finding
        raise KeyError(checker)

    def sentences(self) -> list[str]:
        """Return one line each for the verdict, every kept witness, reason and note."""
        names = ", ".join(finding.checker for finding in self.findings) or "nothing"
        deliveries = _plural(self.delivery_count, "delivery")
        events = _plural(self.event_count, "event")
        subscribers = _plural(self.subscriber_count, "subscriber")
        lines = [f"{self.verdict}: checked {names} on {deliveries} of {events} to {subscribers}"]
        lines += [f"unknown: {reason}" for reason in self.reasons]
        for finding in self.findings:
            for violation in finding.violations:
                run = f"in run {violation.subscribers[0].run}, " if self.run_count > 1 else ""
                kind = f" ({violation.anomaly})" if violation.anomaly != finding.checker else ""
                lines.append(f"{finding.checker}{kind}: {run}{violation.because}")
            omitted = finding.violation_count - len(finding.violations)
            if omitted:
                lines.append(f"{finding.checker}: and {omitted} more")
            lines += [f"{finding.checker}: unknown: {reason}" for reason in finding.reasons]
            lines += [f"{finding.checker}: note: {note}" for note in finding.notes]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, ready for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


class Collector:
    """Collects the results of one checker over all runs of a trace."""

    def __init__(self, checker: str, *, violations_max: int) -> None:
        self._checker = checker
        self._violations_max = violations_max
        self._violations: list[Violation] = []
        self._counts: dict[str, int] = {}
        self._notes: list[str] = []
        self._reasons: list[str] = []
        self.facts: dict[str, int] = {}
        """By name: counts over all runs, reported once."""

    @property
    def full(self) -> bool:
        """Whether further violations are only counted."""
        return len(self._violations) >= self._violations_max

    def violation(
        self,
        anomaly: str,
        subscribers: tuple[Subscriber, ...],
        events: tuple[str] | tuple[str, str],
        explain: Callable[[], str],
    ) -> None:
        """Count a violation; keep and explain it if there is room."""
        self._counts[anomaly] = self._counts.get(anomaly, 0) + 1
        if self.full:
            return
        violation = Violation(
            anomaly=anomaly,
            subscribers=subscribers,
            first_event=events[0],
            second_event=events[1] if len(events) == 2 else None,
            because=explain(),
        )
        self._violations.append(violation)

    def note(self, text: str) -> None:
        """Add a fact that breaks no rule."""
        self._notes.append(text)

    def unknown(self, reason: str) -> None:
        """Add a reason why something could not be judged; a repeated reason counts once."""
        if reason not in self._reasons:
            self._reasons.append(reason)

    def tally(self, counts: Mapping[str, int]) -> None:
        """Add to the counts over all runs."""
        for name, count in counts.items():
            self.facts[name] = self.facts.get(name, 0) + count

    def finding(self) -> Finding:
        """Return the result."""
        verdict = Verdict.VALID
        if self._counts:
            verdict = Verdict.INVALID
        elif self._reasons:
            verdict = Verdict.UNKNOWN
        return Finding(
            checker=self._checker,
            verdict=verdict,
            anomaly_counts=dict(sorted(self._counts.items())),
            violations=tuple(self._violations),
            notes=tuple(self._notes),
            reasons=tuple(self._reasons),
        )


def _plural(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"
