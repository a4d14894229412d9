"""Descriptions of scenarios, faults and rows of a trace, in words."""

from collections.abc import Iterator, Sequence

from ensue import orders
from ensue.checkers import Violation
from ensue.core.trace import Row
from ensue.simulation.run import Outcome
from ensue.simulation.scenario import Scenario
from ensue.simulation.text import at_site, duration, listed
from ensue.simulation.world.delays import Constant, DelayModel, LogNormal, Normal, Uniform
from ensue.simulation.world.faults import (
    ClockJump,
    Clog,
    Crash,
    InstantFault,
    Noise,
    Partition,
    Pause,
    TimedFault,
)

__all__ = ["row_line", "scenario_lines", "witness_rows"]

CONTEXT_STEPS = 3
"""Rows shown before and after a row of a violation, at the same node."""
LAST_ROWS = 10
"""Rows shown of a node that is stuck."""


def scenario_lines(scenario: Scenario) -> list[str]:
    """Describe the nodes, settings and faults of a scenario."""
    first = (
        f"{scenario.name}: order {scenario.order}, events and faults for "
        f"{duration(scenario.duration_ns)}, then {duration(scenario.settle_ns)} to settle"
    )
    return [
        first,
        *_nodes(scenario),
        *_settings(scenario),
        *_faults(scenario),
    ]


def _nodes(scenario: Scenario) -> Iterator[str]:
    yield from orders.named(scenario.order).deployment().describe_nodes(scenario)
    for publisher in scenario.publishers:
        rates = [
            f"{rate.per_second:.3g}/s on {listed(rate.topics)} from {duration(rate.from_ns)}"
            + ("" if rate.until_ns is None else f" until {duration(rate.until_ns)}")
            for rate in publisher.rates
        ]
        events = [f"{listed(one.topics)} at {duration(one.at_ns)}" for one in publisher.events]
        what = "; ".join([*rates, *events])
        yield f"  publisher {publisher.name}{at_site(publisher.site)}: {what or 'silent'}"
    for subscriber in scenario.subscribers:
        yield (
            f"  subscriber {subscriber.name}{at_site(subscriber.site)} of "
            f"{listed(subscriber.topics)}"
        )
        for change in sorted(subscriber.changes, key=lambda one: one.at_ns):
            # In this order: a change may leave and join the same topic.
            parts = [f"leaves {listed(change.unsubscribe)}"] if change.unsubscribe else []
            if change.subscribe:
                parts.append(f"joins {listed(change.subscribe)}")
            yield f"    at {duration(change.at_ns)} {', then '.join(parts) or 'changes nothing'}"
        for reply in subscriber.replies:
            yield f"    answers {reply.share:.0%} of {reply.on} on {reply.topic}"


def _settings(scenario: Scenario) -> Iterator[str]:
    network = scenario.network
    chances = [
        f"{name} {chance:.1%}"
        for name, chance in (
            ("loss", network.loss),
            ("duplication", network.duplication),
            ("reordering", network.reordering),
        )
        if chance
    ]
    fifo = ", fifo" if network.fifo else ""
    yield f"  network: {_delay(network.default)}{fifo}, {listed(chances, 'no loss')}"
    yield f"  disk: a sync takes {_delay(scenario.disk.sync)}"
    yield from orders.named(scenario.order).deployment().describe_settings(scenario)
    for node, clock in scenario.clocks.items():
        yield f"  clock of {node}: {duration(clock.skew_ns)} ahead, drift {clock.drift_ppm:.0f} ppm"


def _delay(model: DelayModel) -> str:
    match model:
        case Constant(delay_ns=delay_ns):
            return duration(delay_ns)
        case Uniform(low_ns=low_ns, high_ns=high_ns):
            return f"{duration(low_ns)} to {duration(high_ns)}"
        case Normal(mean_ns=mean_ns, std_ns=std_ns):
            return f"{duration(mean_ns)} ± {duration(std_ns)}"
        case LogNormal(mean_ns=mean_ns, std_ns=std_ns):
            return f"{duration(mean_ns)} ± {duration(std_ns)} with a long tail"


def _faults(scenario: Scenario) -> Iterator[str]:
    faults = [(fault.from_ns, _timed(fault)) for fault in scenario.faults.timed()]
    faults += [(fault.at_ns, _instant(fault)) for fault in scenario.faults.instant()]
    faults += [(one.at_ns, f"{one.publisher} vanishes permanently") for one in scenario.vanish]
    for at_ns, text in sorted(faults):
        yield f"  {at_ns / 1e9:9.6f}s {text}"
    if not faults:
        yield "  no faults except those of the network"


def _timed(fault: TimedFault) -> str:
    end = "healed" if fault.until_ns is None else duration(fault.until_ns)
    match fault:
        case Partition(side=side, other=other, one_way=one_way):
            arrow = "to" if one_way else "from"
            rest = listed(other, "the others")
            return f"partition of {listed(side)} {arrow} {rest} until {end}"
        case Clog(sources=sources, targets=targets):
            return f"clog from {listed(sources, 'all')} to {listed(targets, 'all')} until {end}"
        case Noise(sources=sources, targets=targets):
            return (
                f"noise from {listed(sources, 'all')} to {listed(targets, 'all')} until {end}: "
                f"loss {fault.loss:.0%}, duplication {fault.duplication:.0%}, "
                f"reordering {fault.reordering:.0%}"
            )
        case Pause(node=node):
            return f"{node} pauses until {end}"


def _instant(fault: InstantFault) -> str:
    match fault:
        case Crash(node=node, restart_after_ns=restart_after_ns):
            if restart_after_ns is None:
                return f"{node} crashes until healed"
            return f"{node} crashes for {duration(restart_after_ns)}"
        case ClockJump(node=node, by_ns=by_ns, monotone=monotone):
            back = "" if monotone else ", and may go backwards"
            return f"clock of {node} jumps by {duration(by_ns)}{back}"


def row_line(row: Row) -> str:
    """Format one row of a trace as a line."""
    time_ns = row.at_ns if row.true_ns is None else row.true_ns
    parts = [f"{time_ns / 1e9:12.6f}s", f"{row.node:<14}", f"{row.step:>5}", f"{row.action:<12}"]
    parts.append(row.event or row.topic or "")
    if row.position is not None:
        parts.append(f"position {row.position}")
    if row.verdict:
        parts.append(f"as {row.verdict}")
    if row.stamp is not None:
        parts.append("{" + ", ".join(f"{topic}:{n}" for topic, n in row.stamp.items()) + "}")
    return " ".join(parts).rstrip()


def witness_rows(outcome: Outcome) -> list[Row]:
    """Return the rows around the first failure, in time order."""
    shown: dict[tuple[str, int], Row] = {}
    for finding in outcome.report.findings:
        for violation in finding.violations[:1]:
            for row in _around(outcome.rows, violation):
                shown[row.node, row.step] = row
        if shown:
            break
    if not shown:
        names = {sentence.partition(" ")[0].removesuffix(".replies") for sentence in outcome.stuck}
        for name in names:
            for row in [row for row in outcome.rows if row.node == name][-LAST_ROWS:]:
                shown[row.node, row.step] = row
    return sorted(shown.values(), key=lambda row: (row.true_ns or row.at_ns, row.node, row.step))


def _around(rows: Sequence[Row], violation: Violation) -> Iterator[Row]:
    events = {violation.first_event, violation.second_event} - {None}
    steps: dict[str, set[int]] = {}
    for row in rows:
        if row.event in events:
            yield row
            if row.node in violation.nodes:
                near = range(row.step - CONTEXT_STEPS, row.step + CONTEXT_STEPS + 1)
                steps.setdefault(row.node, set()).update(near)
    yield from (row for row in rows if row.step in steps.get(row.node, ()))
