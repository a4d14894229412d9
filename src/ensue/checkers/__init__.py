"""Judge a trace: say whether the order that was promised was kept.

Checkers are separate from the protocols and share no code with them. They read rows of a trace
and nothing else, and believe only what a node can observe: that it published, delivered,
subscribed, left, discarded, crashed or restarted, and in which sequence. Stamps are never
believed: a wrong stamp that every node obeys must still be found out.

`check` picks the rules that an order promises and returns a `Report`. Each rule has a module of
its own, which opens with its exact definition: `fifo`, `total` (with `global`), `causal`, `deadline`,
`positions`, `complete`, `timely`, `transactional`.
"""

from collections.abc import Iterable, Sequence

from ensue.checkers import causal as causal_order
from ensue.checkers import complete, deadline, fifo, positions, timely, total, transactional
from ensue.checkers.disagreement import Inversions, Side, inversions
from ensue.checkers.history import History, histories
from ensue.checkers.verdict import Collector, Finding, Report, Subscriber, Verdict, Violation
from ensue.errors import BadInput
from ensue.trace import Row

__all__ = [
    "ORDERS",
    "Finding",
    "Inversions",
    "Report",
    "Side",
    "Subscriber",
    "Verdict",
    "Violation",
    "check",
    "inversions",
    "judge",
    "rules_of",
    "sum_up",
]

ORDERS = {
    "total": ("fifo", "total", "causal", "positions", "complete"),
    "causal": ("fifo", "causal", "positions", "complete"),
    "causal-topic": ("fifo", "causal-topic", "positions", "complete"),
    "merged": ("fifo", "global", "causal", "positions", "complete"),
    "deadline": ("fifo", "causal", "deadline", "positions", "complete"),
    "fifo": ("fifo", "positions", "complete"),
    "none": ("positions", "complete"),
    "transactions": transactional.RULES,
}
"""Each order and the rules it promises."""


def check(
    rows: Sequence[Row],
    order: str = "total",
    *,
    causal: bool | None = None,
    lossy: bool = False,
    settle_ns: int | None = None,
    clock_error_ns: int = 0,
    within_ns: int | None = None,
    violations_max: int = 20,
) -> Report:
    """Judge a trace by the order that was promised.

    `causal` adds that rule to any order, or leaves it out; None: as the order promises. `lossy` accepts
    that events are lost. `settle_ns` and
    `clock_error_ns` say what counts as owed, see `complete`, and what counts as in time, see `deadline`. `within_ns` adds the rule `timely`. At most
    `violations_max` violations of each rule are explained.
    """
    if violations_max < 1:
        raise BadInput(f"violations_max is {violations_max}; expected at least 1")
    if order == "transactions":
        return transactional.check(rows, violations_max=violations_max)
    rules = rules_of(order, causal=causal, lossy=lossy)
    terms = complete.Terms(
        settle_ns=settle_ns, clock_error_ns=clock_error_ns, lossy=lossy, gaps=order != "none"
    )
    runs, reasons = histories(rows)
    if within_ns is not None:
        rules.insert(-1, "timely")
    collectors = {rule: Collector(rule, violations_max=violations_max) for rule in rules}
    dated = _rows_by_run(rows) if "deadline" in rules else {}
    for history in runs:
        if not any(history.delivered.values()):
            # Nothing can be said of the order; but if something was owed, it was lost.
            reasons.append(f"run {history.run} has no deliveries")
        judge(history, collectors, terms, violations_max)
        _judge_times(history, dated.get(history.run, ()), collectors, within_ns, clock_error_ns)
    if not rows:
        reasons.append("the trace is empty")
    for rule in ("complete", "deadline"):
        if rule in collectors:
            sum_up(collectors[rule])
    findings = tuple(collector.finding() for collector in collectors.values())
    verdicts = [finding.verdict for finding in findings]
    return Report(
        verdict=Verdict.worst([*verdicts, *(Verdict.UNKNOWN for _ in reasons)]),
        order=order,
        findings=findings,
        reasons=tuple(reasons),
        run_count=len({row.run for row in rows}),
        event_count=sum(len(history.published) for history in runs),
        delivery_count=sum(len(one) for history in runs for one in history.delivered.values()),
        subscriber_count=sum(len(history.delivered) for history in runs),
    )


def _rows_by_run(rows: Sequence[Row]) -> dict[str, list[list[Row]]]:
    """Return by run the rows of each of its nodes, in step order."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        found.setdefault(row.run, {}).setdefault(row.node, []).append(row)
    for nodes in found.values():
        for node_rows in nodes.values():
            node_rows.sort(key=lambda row: row.step)
    return {run: list(nodes.values()) for run, nodes in found.items()}


def _judge_times(
    history: History,
    dated: Iterable[Sequence[Row]],
    collectors: dict[str, Collector],
    within_ns: int | None,
    clock_error_ns: int,
) -> None:
    """Judge one run by the rules that ask for times, if there are collectors for them.

    `dated` are the rows of each node, in step order.
    """
    if "deadline" in collectors:
        found = collectors["deadline"]
        deadline.judge(history.run, dated, found, clock_error_ns=clock_error_ns)
    if within_ns is not None:
        found = collectors["timely"]
        timely.judge(history, found, within_ns=within_ns, clock_error_ns=clock_error_ns)


def rules_of(order: str, *, causal: bool | None = None, lossy: bool = False) -> list[str]:
    """List the rules that an order promises.

    `causal` adds that rule or leaves it out. None is what the order promises: total order is causal
    on a transport that loses nothing, and not where it is `lossy`.
    """
    if order not in ORDERS:
        raise BadInput(f"there is no order {order!r} to check; expected one of {', '.join(ORDERS)}")
    rules = list(ORDERS[order])
    if causal is False and order != "total" and "causal" in rules:
        raise BadInput(f"{order} order is always judged with causal order; only total order is not")
    if causal is None and order == "total" and lossy:
        causal = False
    if causal and "causal" not in rules:
        rules.insert(-1, "causal")
    if causal is False and "causal" in rules:
        rules.remove("causal")
    return rules


def judge(
    history: History, collectors: dict[str, Collector], terms: complete.Terms, violations_max: int
) -> None:
    """Judge one run by the rules that there are collectors for."""
    for rule, collector in collectors.items():
        if rule == "fifo":
            fifo.judge(history, collector)
        elif rule == "total":
            total.judge(history, collector, disagreements_max=violations_max)
        elif rule == "global":
            total.judge_global(history, collector, disagreements_max=violations_max)
        elif rule == "causal":
            causal_order.judge(history, collector)
        elif rule == "causal-topic":
            causal_order.judge_topics(history, collector)
        elif rule == "positions":
            positions.judge(history, collector)
        elif rule == "complete":
            complete.judge(history, collector, terms)


def sum_up(collector: Collector) -> None:
    """Tell the counts of all runs as notes."""
    facts = collector.facts
    if facts.get("received"):
        share = facts["on time"] / facts["received"]
        collector.note(
            f"{facts['on time']} of {facts['received']} events that arrived were delivered in order "
            f"and on time ({share:.1%})"
        )
    if facts.get("lost"):
        collector.note(f"{facts['lost']} of {facts['owed']} owed deliveries never came")
    if facts.get("in doubt"):
        collector.note(
            f"{facts['in doubt']} events are in doubt: their publisher crashed for good and "
            "nobody delivered them"
        )
