"""Judge whether a trace keeps the order that was promised.

Checkers share no code with the protocols. They read only the rows of a trace, and trust only what a
node can observe: that it published, delivered, subscribed, left, discarded, crashed or restarted,
and in which sequence. They never trust stamps: a wrong stamp that every node follows must still be
detected.

`check` picks the rules that an order promises and returns a `Report`. Each rule has its own module,
which opens with its exact definition: `fifo`, `total` (with `global`), `causal` (with
`causal-topic`), `deadline`, `positions` with `redelivery`, `completeness`, `latency`,
`transactions`.
"""

from collections.abc import Collection, Iterable, Sequence

from ensue.checkers import causal as causal_order
from ensue.checkers import (
    completeness,
    deadline,
    fifo,
    latency,
    positions,
    redelivery,
    total,
    transactions,
)
from ensue.checkers.disagreement import Inversions, Side, inversions
from ensue.checkers.history import History, histories
from ensue.checkers.verdict import Collector, Finding, Report, Subscriber, Verdict, Violation
from ensue.core.errors import BadInput
from ensue.core.order import ORDERS, Order, Promise
from ensue.core.trace import Row

__all__ = [
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
    "named_order",
    "order_of_rows",
    "promise_of",
    "promises",
    "rules_of",
    "sum_up",
]

_FIFO = Promise(rules=("fifo", "positions", "complete"))
"""The promise of most brokers: no order of Ensue promises so little, but traces can be checked."""
_TRANSACTIONS = Promise(rules=transactions.RULES, check=transactions.check)


def promises() -> dict[str, Promise]:
    """Return what each order promises, by the name of the order in traces."""
    found = {name: each for order in ORDERS for name, each in order.promises.items()}
    return {**found, "fifo": _FIFO, **Order.promises, "transactions": _TRANSACTIONS}


def promise_of(order: str) -> Promise:
    """Return what an order promises, by its name in traces."""
    known = promises()
    if order not in known:
        raise BadInput(f"there is no order {order!r} to check; expected one of {', '.join(known)}")
    return known[order]


def named_order(names: Collection[str], where: object, *, default: str = "") -> str:
    """Return the order that a trace names; raise unless it is one that can be checked.

    `names` are all that its rows have, and `transactions` if some belong to any. Rows without order
    don't count beside others. `default` is for runs without order, and for empty traces.
    """
    names = set(names) - {Order.name} or names
    if len(names) > 1:
        raise BadInput(
            f"{where} has rows of several orders ({', '.join(sorted(names))}): name the one to "
            "judge by, with --order or order="
        )
    (name,) = names or (Order.name,)
    if name == Order.name and not default:
        raise BadInput(
            f"{where} is of a run without order: name the one to judge by, with --order or order="
        )
    if name not in promises():
        raise BadInput(
            f"{where} names the order {name!r}, which is not known here: install its package, or "
            f"name one of {', '.join(promises())}"
        )
    return default if name == Order.name else name


def order_of_rows(rows: Iterable[Row], where: object = "the trace") -> str:
    """Return the order that the rows of a trace name; see `named_order`."""
    names: set[str] = set()
    for row in rows:
        names.add(row.order)
        if row.transaction is not None:
            names.add("transactions")
    return named_order(names, where)


def check(
    rows: Sequence[Row],
    order: str | None = "total",
    *,
    causal: bool | None = None,
    lossy: bool = False,
    settle_ns: int | None = None,
    clock_error_ns: int = 0,
    within_ns: int | None = None,
    violations_max: int = 20,
) -> Report:
    """Judge a trace by the order that was promised; None: by the one that its rows name.

    `causal` adds that rule to any order or leaves it out; None means as the order promises. `lossy`
    accepts lost events. `settle_ns` and `clock_error_ns` define which deliveries are owed (see
    `completeness`) and on time (see `deadline`). `within_ns` adds the rule `timely`. At most
    `violations_max` violations of each rule are explained.
    """
    if violations_max < 1:
        raise BadInput(f"violations_max is {violations_max}; expected at least 1")
    order = order or order_of_rows(rows)
    promise = promise_of(order)
    if promise.check is not None:
        report: Report = promise.check(rows, violations_max=violations_max)
        return report
    rules = rules_of(order, causal=causal, lossy=lossy)
    terms = completeness.Terms(
        settle_ns=settle_ns, clock_error_ns=clock_error_ns, lossy=lossy, gaps=promise.owes_gaps
    )
    runs, reasons = histories(rows)
    if within_ns is not None:
        rules.insert(-1, "timely")
    collectors = {rule: Collector(rule, violations_max=violations_max) for rule in rules}
    dated = _rows_by_run(rows) if "deadline" in rules else {}
    for history in runs:
        if not any(history.delivered.values()):
            # The order is unknown, but owed events are lost.
            reasons.append(f"run {history.run} has no deliveries")
        judge(history, collectors, terms, violations_max)
        for rule, judge_own in promise.judges.items():
            judge_own(history, collectors[rule])
        _judge_times(history, dated.get(history.run, ()), collectors, within_ns, clock_error_ns)
    _judge_redelivery(rows, runs, collectors, clock_error_ns)
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
    """Return, by run, the rows of each node in step order."""
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
    """Judge one run by the rules on time that have a collector.

    `dated` are the rows of each node, in step order.
    """
    if "deadline" in collectors:
        found = collectors["deadline"]
        deadline.judge(history.run, dated, found, clock_error_ns=clock_error_ns)
    if within_ns is not None:
        found = collectors["timely"]
        latency.judge(history, found, within_ns=within_ns, clock_error_ns=clock_error_ns)


def _judge_redelivery(
    rows: Sequence[Row],
    runs: Iterable[History],
    collectors: dict[str, Collector],
    clock_error_ns: int,
) -> None:
    if positions.RULE in collectors:
        simulated = {history.run: history.simulated for history in runs}
        found = collectors[positions.RULE]
        redelivery.judge(rows, found, simulated, clock_error_ns=clock_error_ns)


def rules_of(order: str, *, causal: bool | None = None, lossy: bool = False) -> list[str]:
    """List the rules that an order promises.

    `causal` adds that rule or leaves it out. None means as the order promises: total order is
    causal unless the transport is `lossy`.
    """
    promise = promise_of(order)
    rules = list(promise.rules)
    if causal is False and not promise.causal_unless_lossy and "causal" in rules:
        raise BadInput(
            f"{order} order includes causal order: only total order can be judged without it"
        )
    if causal is None and promise.causal_unless_lossy and lossy:
        causal = False
    if causal and "causal" not in rules:
        rules.insert(-1, "causal")
    if causal is False and "causal" in rules:
        rules.remove("causal")
    return rules


def judge(
    history: History,
    collectors: dict[str, Collector],
    terms: completeness.Terms,
    violations_max: int,
) -> None:
    """Judge one run by the rules that have a collector."""
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
            completeness.judge(history, collector, terms)


def sum_up(collector: Collector) -> None:
    """Add notes with the counts of all runs."""
    facts = collector.facts
    if facts.get("received"):
        share = facts["on time"] / facts["received"]
        collector.note(
            f"{facts['on time']} of {facts['received']} events that arrived were delivered in "
            f"order and on time ({share:.1%})"
        )
    if facts.get("lost"):
        collector.note(f"{facts['lost']} of {facts['owed']} owed deliveries are missing")
    if facts.get("in doubt"):
        collector.note(
            f"{facts['in doubt']} events are in doubt: their publisher never restarted and "
            "no subscriber delivered them"
        )
