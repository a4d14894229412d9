"""Judge what applications got in a simulated run.

The rows of plain subscriptions go to the checkers as they are. A durable subscription lives in
several processes, one after the other, each with a name of its own in the trace. Its rules, over
all its lives:

- `acknowledged`: what was acknowledged, and known to be safe, never comes again;
- `renumbered`: a position is always the same event;
- and, with repeated deliveries left out, it is a subscriber like any other.
"""

from collections.abc import Iterable, Sequence

import msgspec

from ensue.checkers import Verdict, check
from ensue.client.trace_rows import CLOSED
from ensue.core.trace import Row

__all__ = ["judge"]

SECOND_NS = 1_000_000_000
_GOES_ON = frozenset({CLOSED, "superseded"})
"""Verdicts of `unsubscribed` after which a durable subscription goes on in another life."""


def judge(
    rows: Sequence[Row],
    order: str,
    *,
    settle_s: float,
    durable: Iterable[str] = (),
    lossy: bool = False,
) -> list[str]:
    """Return what is wrong with a run, in words; nothing: it is valid."""
    problems: list[str] = []
    names = set(durable)
    kept = [row for row in rows if row.subscription not in names]
    for name in sorted(names):
        lives = sorted(
            (row for row in rows if row.subscription == name), key=lambda row: row.true_ns or 0
        )
        problems += _redeliveries(name, lives)
        kept += _one_life(name, lives)
    report = check(kept, order, settle_ns=int(settle_s * SECOND_NS), lossy=lossy)
    if report.verdict is Verdict.INVALID:
        for finding in report.findings:
            problems += [f"{finding.checker}: {each.because}" for each in finding.violations]
    problems += [reason for reason in report.reasons if "malformed" in reason]
    return problems


def _redeliveries(name: str, lives: Sequence[Row]) -> list[str]:
    problems = []
    safe = 0
    events: dict[int, str | None] = {}
    for row in lives:
        position = row.position or 0
        if row.action == "acknowledged":
            safe = max(safe, position)
        elif row.action == "delivered":
            if position <= safe:
                problems.append(
                    f"acknowledged: {name} got {row.event} at position {position} again at "
                    f"{row.node}, after it had acknowledged up to {safe}"
                )
            known = events.setdefault(position, row.event)
            if known != row.event:
                problems.append(
                    f"renumbered: position {position} of {name} was {known}, and is {row.event}"
                )
    return problems


def _one_life(name: str, lives: Sequence[Row]) -> list[Row]:
    """Return the rows of a durable subscription as those of one subscriber, without repeats."""
    found: list[Row] = []
    seen: set[int] = set()
    joined: set[str] = set()
    for row in lives:
        if row.action == "delivered":
            if row.position in seen:
                continue
            seen.add(row.position or 0)
        elif row.action == "subscribed":
            if row.topic in joined and not row.verdict:
                continue
            joined.add(row.topic or "")
        elif row.action == "unsubscribed":
            if row.verdict in _GOES_ON:
                continue
            joined.discard(row.topic or "")
        else:
            continue
        found.append(msgspec.structs.replace(row, node=f"durable {name}", step=len(found) + 1))
    return found
