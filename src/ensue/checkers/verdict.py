"""What checkers say: a verdict, the violations behind it with their witnesses, and notes.

A verdict is valid, invalid or unknown. Invalid always comes with at least one violation, and
unknown with a reason; valid means that every rule was applied to every delivery. Invalid wins
over unknown: a witness stays true however little is known of the rest.

A checker may find as many violations as there are rows. All are counted; only the first
`violations_max` are kept and explained, because a person reads the first and a program needs
the count.
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
    """Empty if the trace names none."""


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One broken rule and the smallest witness of it."""

    anomaly: str
    """`fifo`, `duplicate`, `total`, `global`, `causal`, `position`, `slow`, `expired`, `missed`,
    `lost`, `phantom`, `uninvited` or `void`."""
    subscribers: tuple[Subscriber, ...]
    """Where it was seen: one subscriber, or the two that disagree."""
    first_event: str
    """The event that the first subscriber delivered first, or the only one concerned."""
    second_event: str | None = None
    """The event that the first subscriber delivered second, if two are concerned."""
    because: str
    """The witness in words."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the subscribers, in the same sequence."""
        return tuple(subscriber.node for subscriber in self.subscribers)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one checker found."""

    checker: str
    verdict: Verdict
    anomaly_counts: dict[str, int] = {}
    """How many violations there are of each kind, kept or not."""
    violations: tuple[Violation, ...] = ()
    """The first of them, explained."""
    notes: tuple[str, ...] = ()
    """Facts worth knowing that break no rule."""
    reasons: tuple[str, ...] = ()
    """Why something could not be judged."""

    @property
    def violation_count(self) -> int:
        """How many violations there are, kept or not."""
        return sum(self.anomaly_counts.values())


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What all the checkers asked for found in a trace."""

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
        """Tell the verdict, then every witness kept, reason and note: one line each."""
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
            untold = finding.violation_count - len(finding.violations)
            if untold:
                lines.append(f"{finding.checker}: and {untold} more")
            lines += [f"{finding.checker}: unknown: {reason}" for reason in finding.reasons]
            lines += [f"{finding.checker}: note: {note}" for note in finding.notes]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, ready for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


class Collector:
    """Gathers what one checker finds, over all runs of a trace."""

    def __init__(self, checker: str, *, violations_max: int) -> None:
        self._checker = checker
        self._violations_max = violations_max
        self._violations: list[Violation] = []
        self._counts: dict[str, int] = {}
        self._notes: list[str] = []
        self._reasons: list[str] = []
        self.facts: dict[str, int] = {}
        """Counts to report once for all runs, by name."""

    @property
    def full(self) -> bool:
        """Whether further violations will only be counted."""
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
        """Say why something could not be judged; once, if several topics of a run tell the same."""
        if reason not in self._reasons:
            self._reasons.append(reason)

    def tally(self, counts: Mapping[str, int]) -> None:
        """Add to the counts reported once for all runs."""
        for name, count in counts.items():
            self.facts[name] = self.facts.get(name, 0) + count

    def finding(self) -> Finding:
        """Sum up."""
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
