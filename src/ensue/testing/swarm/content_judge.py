"""Judge the trace of programs by content, brokers' rows included."""

from collections.abc import Sequence
from typing import Any

import msgspec

from ensue.checkers import Verdict, check
from ensue.core.trace import Row

__all__ = ["judge_content"]


INCOMPLETE = frozenset({"torn", "mixed"})
"""Anomalies of events that did not reach all that they should."""


def judge_content(rows: Sequence[Row], *, is_cut: bool = False) -> list[str]:
    """Return what is wrong with a run, in words; nothing: it is valid.

    `is_cut` says whether a broker is away until the end: events to clients behind it wait for it,
    and these clients get others meanwhile.
    """
    kept: dict[Any, Row] = {}
    for row in rows:
        # A broker that restarts may record again what it was not certain to have recorded.
        key: Any = (
            (row.node, row.action, row.event, row.transaction, row.subscription, row.publisher)
            if row.node.startswith("server-")
            else (row.node, row.step)
        )
        kept.setdefault(key, row)
        if row.action == "crashed":
            # Brokers know a bus by the name of its content session.
            session = msgspec.structs.replace(row, node=f"{row.node}.content", step=1)
            kept[session.node, "crashed"] = session
    # Those that are left out must not take the place of others.
    violations_max = 1_000 if is_cut else 20
    report = check(list(kept.values()), order="transactions", violations_max=violations_max)
    if report.verdict is not Verdict.INVALID:
        return [reason for reason in report.reasons if "malformed" in reason]
    return [
        f"{finding.checker}: {each.because}"
        for finding in report.findings
        for each in finding.violations
        if not is_cut or each.anomaly not in INCOMPLETE
    ]
