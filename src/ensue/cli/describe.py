"""Tell a scenario, and the rows of a trace, in words."""

from collections.abc import Iterator, Sequence

from ensue.checkers import Violation
from ensue.protocols.hypercube.config import HypercubeConfig
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.simulation.acting import Act
from ensue.simulation.delays import Constant, DelayModel, LogNormal, Normal, Uniform
from ensue.simulation.faults import (
    ClockJump,
    Clog,
    Crash,
    InstantFault,
    Noise,
    Partition,
    Pause,
    TimedFault,
)
from ensue.simulation.overlay_spec import OverlaySpec
from ensue.simulation.run import Outcome
from ensue.simulation.scenario import DeadlineSpec, MergeSpec, Scenario
from ensue.trace import Row

__all__ = ["duration", "row_line", "scenario_lines", "witness_rows"]

CONTEXT_STEPS = 3
"""Rows shown before and after one that matters, at the same node."""
LAST_ROWS = 10
"""Rows shown of a node that is stuck."""


def duration(ns: int) -> str:
    """Write a duration for people."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)):
        if abs(ns) >= size:
            return f"{ns / size:.4g}{unit}"
    return f"{ns}ns"


def scenario_lines(scenario: Scenario) -> list[str]:
    """Tell who takes part, how things are set, and what goes wrong when."""
    first = (
        f"{scenario.name}: order {scenario.order}, events and faults for "
        f"{duration(scenario.duration_ns)}, then {duration(scenario.settle_ns)} to settle"
    )
    return [
        first,
        *_people(scenario),
        *_settings(scenario),
        *_faults(scenario),
    ]


def _names(names: Sequence[str], empty: str = "nothing") -> str:
    return ", ".join(names) or empty


def _people(scenario: Scenario) -> Iterator[str]:
    for node in scenario.chain if scenario.order == "total" else ():
        yield f"  chain node {node.name}{_site(node.site)} hosts {_names(node.topics, 'by hash')}"
    if scenario.order == "transactions":
        yield from _overlay(scenario.overlay)
        return
    for ens in scenario.ens if scenario.order != "causal" else ():
        yield f"  notification service {ens.name}{_site(ens.site)}"
    for publisher in scenario.publishers:
        rates = [
            f"{rate.per_second:.3g}/s on {_names(rate.topics)} from {duration(rate.from_ns)}"
            + ("" if rate.until_ns is None else f" until {duration(rate.until_ns)}")
            for rate in publisher.rates
        ]
        events = [f"{_names(one.topics)} at {duration(one.at_ns)}" for one in publisher.events]
        what = "; ".join([*rates, *events])
        yield f"  publisher {publisher.name}{_site(publisher.site)}: {what or 'silent'}"
    for subscriber in scenario.subscribers:
        yield (
            f"  subscriber {subscriber.name}{_site(subscriber.site)} of {_names(subscriber.topics)}"
        )
        for change in sorted(subscriber.changes, key=lambda one: one.at_ns):
            # In this order, also where a topic is left and joined at once.
            parts = [f"leaves {_names(change.unsubscribe)}"] if change.unsubscribe else []
            if change.subscribe:
                parts.append(f"joins {_names(change.subscribe)}")
            yield f"    at {duration(change.at_ns)} {', then '.join(parts) or 'changes nothing'}"
        for reply in subscriber.replies:
            yield f"    answers {reply.share:.0%} of {reply.on} on {reply.topic}"


def _overlay(overlay: OverlaySpec) -> Iterator[str]:
    for broker, neighbours in overlay.brokers.items():
        clients = [client for client, home in overlay.clients.items() if home == broker]
        yield f"  broker {broker} next to {_names(neighbours)}, home of {_names(clients, 'nobody')}"
    for one in sorted(overlay.regular, key=lambda spec: spec.at_ns):
        yield f"  at {duration(one.at_ns)} {one.client}: {_act(one.act)}"
    for spec in sorted(overlay.transactions, key=lambda spec: spec.at_ns):
        acts = ", ".join(_act(act) for act in spec.acts)
        end = "" if spec.commit else ", then abort"
        yield f"  at {duration(spec.at_ns)} {spec.client}, {spec.isolation}: {acts}{end}"
    for node, count in overlay.crash_after_frames:
        yield f"  {node} crashes after {count} frames"


def _act(act: Act) -> str:
    if act.action == "invite":
        return f"{act.client} ({', '.join(_act(each) for each in act.acts) or 'nothing'})"
    if act.action == "pub":
        told = " and ".join(f"{name} = {value}" for name, value in act.attributes.items())
        return f"pub {told}"
    return f"{act.action} {act.label}{' ' if act.where else ''}{act.where}"


def _site(site: str) -> str:
    return f" in {site}" if site else ""


def _settings(scenario: Scenario) -> Iterator[str]:
    network, chain = scenario.network, scenario.sequencer
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
    yield f"  network: {_delay(network.default)}{fifo}, {_names(chances, 'no loss')}"
    yield f"  disk: a sync takes {_delay(scenario.disk.sync)}"
    if scenario.order == "causal":
        yield _cube(scenario.hypercube)
    elif scenario.order == "merged":
        yield from _merge(scenario.merge)
    elif scenario.order == "transactions":
        yield f"  a client is gone after {duration(scenario.overlay.config.lease_ns)} of silence"
    elif scenario.order == "deadline":
        yield from _deadline(scenario.deadline)
    else:
        yield _sequencer(chain)
    for node, clock in scenario.clocks.items():
        yield f"  clock of {node}: {duration(clock.skew_ns)} ahead, drift {clock.drift_ppm:.0f} ppm"


def _merge(merge: MergeSpec) -> Iterator[str]:
    config = merge.config
    yield (
        f"  clocks differ by {config.epsilon_ticks} ticks, messages take {config.delta_ticks}, of "
        f"{duration(config.tick_ns)} each; {'arrays' if config.array else 'counters'}, "
        f"{'whole' if config.modulus is None else f'modulo {config.modulus}'}; what is late is "
        f"{'delivered with a tag' if config.deliver_late else 'dropped'}"
    )
    if merge.eager:
        yield f"  handed events as they come: {_names(merge.eager, '')}"
    if merge.relays:
        yield f"  {_names(merge.stacked, 'nobody')} behind {_names(merge.relays, '')}"
    for each in merge.corruptions:
        yield f"  {duration(each.at_ns)}: the memory of {each.node} is filled with anything"
    if merge.tampered_share:
        share, until = merge.tampered_share, duration(merge.tampered_until_ns)
        yield f"  {share:.0%} of events are tampered with until {until}"
    if merge.judged_from_ns:
        yield f"  judged by what is published from {duration(merge.judged_from_ns)} on"


def _deadline(deadline: DeadlineSpec) -> Iterator[str]:
    config = deadline.config
    rounds = "numbers" if config.colours is None else f"{config.colours} colours"
    yield (
        f"  between brokers events are of use for {duration(config.lifetime_ns)}, at most "
        f"{duration(config.lifetime_ns_max)}; clocks differ by {duration(config.skew_ns)}"
    )
    yield (
        f"  to subscribers for {config.lifetime_rounds} rounds of {duration(config.period_ns)}, sent as "
        f"{rounds}; each tells {config.fan_out} of {config.view_max} that it knows, "
        f"{config.near_percent}% of them near; what is late is "
        f"{'delivered with a tag' if config.deliver_late else 'dropped'}"
    )
    if deadline.listening:
        yield f"  listening as brokers: {_names(deadline.listening, '')}"
    for name, lifetime_ns in deadline.lifetimes_ns.items():
        yield f"  events of {name} are of use for {duration(lifetime_ns)}"


def _cube(cube: HypercubeConfig) -> str:
    return (
        f"  cube: order kept {'across topics' if cube.across_topics else 'within a topic'}, "
        f"retry {duration(cube.retry_ns)}, suspect {duration(cube.suspect_ns)}, "
        f"beat {duration(cube.beat_ns)}, digest {duration(cube.digest_ns)}, "
        f"gap {duration(cube.gap_ns)}, window {cube.window}, batch_max {cube.batch_max}, "
        f"held_max {cube.held_max}, retained_max {cube.retained_max}"
    )


def _sequencer(chain: SequencerConfig) -> str:
    return (
        f"  sequencer: groups {chain.groups}, {'reliable' if chain.reliable else 'unreliable'}, "
        f"{'leaves out' if chain.leave_out else 'sends all'} entries, "
        f"publishers' order kept {'across topics' if chain.publisher_order else 'within a topic'}, "
        f"lease {duration(chain.lease_ns)}, retry {duration(chain.retry_ns)}, "
        f"gap {duration(chain.gap_ns)}, window {chain.window}, held_max {chain.held_max}"
    )


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
    told = [(fault.from_ns, _timed(fault)) for fault in scenario.faults.timed()]
    told += [(fault.at_ns, _instant(fault)) for fault in scenario.faults.instant()]
    told += [(one.at_ns, f"{one.publisher} vanishes for ever") for one in scenario.vanish]
    for at_ns, text in sorted(told):
        yield f"  {at_ns / 1e9:9.6f}s {text}"
    if not told:
        yield "  no faults but those of the network"


def _timed(fault: TimedFault) -> str:
    end = "healed" if fault.until_ns is None else duration(fault.until_ns)
    match fault:
        case Partition(side=side, other=other, one_way=one_way):
            arrow = "to" if one_way else "from"
            return f"{_names(side)} cut off {arrow} {_names(other, 'the others')} until {end}"
        case Clog(sources=sources, targets=targets):
            return f"clog from {_names(sources, 'all')} to {_names(targets, 'all')} until {end}"
        case Noise(sources=sources, targets=targets):
            return (
                f"noise from {_names(sources, 'all')} to {_names(targets, 'all')} until {end}: "
                f"loss {fault.loss:.0%}, duplication {fault.duplication:.0%}, "
                f"reordering {fault.reordering:.0%}"
            )
        case Pause(node=node):
            return f"{node} stands still until {end}"


def _instant(fault: InstantFault) -> str:
    match fault:
        case Crash(node=node, restart_after_ns=restart_after_ns):
            if restart_after_ns is None:
                return f"{node} crashes until healed"
            return f"{node} crashes for {duration(restart_after_ns)}"
        case ClockJump(node=node, by_ns=by_ns, monotone=monotone):
            back = "" if monotone else ", and may be seen to go back"
            return f"clock of {node} jumps by {duration(by_ns)}{back}"


def row_line(row: Row) -> str:
    """Write one row of a trace in one line."""
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
    """Return the rows around what went wrong first, in the order things happened."""
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
