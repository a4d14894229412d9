"""Judge the trace of programs by content, brokers' rows included."""

from collections.abc import Sequence
from typing import Any

import msgspec

from ensue.checkers import Verdict, check
from ensue.core.trace import Row

__all__ = ["judge_content"]


def judge_content(rows: Sequence[Row]) -> list[str]:
    """Return what is wrong with a run, in words; nothing: it is valid."""
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
    report = check(list(kept.values()), order="transactions")
    if report.verdict is not Verdict.INVALID:
        return [reason for reason in report.reasons if "malformed" in reason]
    return [
        f"{finding.checker}: {each.because}"
        for finding in report.findings
        for each in finding.violations
    ]
