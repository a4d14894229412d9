"""Merged order in a world: publishers, a notification service, subscribers.

The relay does not order. With levels, mergers are between relay and subscribers. Behind fan-outs
(`Scenario.fan_out`) publishers agree on their terms and retransmit what is not answered, as behind
servers.

A subscriber that replies is two nodes, one that subscribes and one that publishes, with one name in
the trace. An eager subscriber replies to events before their turn, so its publisher observes their
stamps: so effects depend on clocks ahead of their own.

A run that breaks the assumptions is judged from `judged_from_ns` on: by the events published after
its faults and the time to recover.
"""

from collections.abc import Iterator

import msgspec

from ensue.checkers import Report, Verdict, check
from ensue.core.trace import Row
from ensue.core.wire import Codec
from ensue.protocols.interface import Deliver, Node, Outcome, Refuse
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.merged.publisher import MergedPublisher
from ensue.protocols.merged.relay import MergedRelay
from ensue.protocols.merged.subscriber import MergedSubscriber
from ensue.simulation.deployments.topic_log import Records, TopicLogDeployment
from ensue.simulation.scenario import MergeSpec, Scenario
from ensue.simulation.text import duration, listed
from ensue.simulation.world.clocks import ClockConfig
from ensue.simulation.world.corruption import Tampering, scramble
from ensue.simulation.world.faults import Faults
from ensue.simulation.world.process import Factory

__all__ = ["MergedDeployment", "published_from"]

REPLIES_MAX = 4
"""Replies to replies to replies, at the most, that a run waits for."""


class MergedDeployment(TopicLogDeployment):
    """Nodes that stamp and sort for themselves."""

    def _clock(self, name: str) -> ClockConfig | None:
        return self.scenario.clock_of(name)

    def _prepare(self) -> Codec:
        self._refused: dict[str, str] = {}
        """Publishers whose terms a fan-out refused."""
        return super()._prepare()

    def _add_servers(self) -> None:
        super()._add_servers()
        for name in self.scenario.merge.relays:
            self.world.add(name, self._relay_factory(name), clock=self._clock(name))

    def _add_nodes(self) -> None:
        super()._add_nodes()
        self._corrupt()

    def _corrupt(self) -> None:
        """Scramble memories, and let every clock tick once after the last fault.

        A clock ticks whether or not anything happens; nodes are only called when something does.
        """
        world, merge = self.world, self.scenario.merge
        if merge.judged_from_ns:
            for name in (*merge.relays, *(each.name for each in self.scenario.subscribers)):
                world.call(name, _tick, at_ns=merge.tampered_until_ns + 1)
        random = world.stream("corruption")
        for corruption in merge.corruptions:
            for name in (corruption.node, self._replier(corruption.node)):
                if name in world.names():
                    world.call(
                        name,
                        lambda node, now_ns: scramble(node, random, now_ns),
                        at_ns=corruption.at_ns,
                    )

    def _publisher_factory(self, name: str) -> Factory:
        role, config = self.roles.merge_publisher, self.scenario.merge.config
        fan_out = self.scenario.fan_out
        fanouts = tuple(self._ens) if fan_out else ()

        def build(records: Records, now_ns: int) -> Node:
            return role(
                name=name,
                config=config,
                answered=fan_out,
                fanouts=fanouts,
                records=records,
                now_ns=now_ns,
            )

        return build

    def _relay_factory(self, name: str) -> Factory:
        role, config = self.roles.merge_relay, self.scenario.merge.config

        def build(records: Records, now_ns: int) -> Node:
            return self._tampered(role(name=name, config=config, records=records, now_ns=now_ns))

        return build

    def _subscriber_factory(self, name: str) -> Factory:
        merge, role = self.scenario.merge, self.roles.merge_subscriber
        above = name in merge.stacked
        config: MergedConfig = merge.config.above(merge.link_delta_ticks) if above else merge.config

        def build(records: Records, now_ns: int) -> Node:
            return self._tampered(
                role(
                    name=name,
                    config=config,
                    eager=name in merge.eager,
                    mergers=merge.relays if above else (),
                    records=records,
                    now_ns=now_ns,
                )
            )

        return build

    def _tampered(self, node: MergedSubscriber | MergedRelay) -> Node:
        merge = self.scenario.merge
        if not merge.tampered_share:
            return node
        clock = self.scenario.clock_of(node.name)
        return Tampering(
            node,
            self.world.stream(f"tampering/{node.name}"),
            share=merge.tampered_share,
            until_ns=merge.tampered_until_ns + (0 if clock is None else clock.skew_ns),
        )

    def _schedule(self) -> None:
        """Make a node that replies crash as a whole: it is one process, though two nodes."""
        super()._schedule()
        for crash in self.scenario.faults.crashes:
            if crash.node in self._repliers:
                self.world.inject(
                    Faults(
                        crashes=(msgspec.structs.replace(crash, node=self._replier(crash.node)),)
                    )
                )

    def _outcome(self, name: str, outcome: Outcome) -> None:
        if isinstance(outcome, Refuse) and not outcome.topics:
            self._refused[name] = outcome.reason
        if isinstance(outcome, Deliver) and outcome.verdict and name in self._repliers:
            # At once, before anything else that this process does: it is one process, though two
            # nodes.
            replier = self.world.node(self._replier(name))
            stamp = outcome.event.stamp
            if isinstance(replier, MergedPublisher) and stamp is not None:
                replier.observe(stamp.entries, now_ns=self.world.clock_ns(replier.name))
        super()._outcome(name, outcome)

    # -- What came of it ------------------------------------------------------------------------

    def judge(self, rows: list[Row]) -> Report:
        """Judge what was published late enough after the assumptions were broken.

        That is everything, if they were not.
        """
        merge = self.scenario.merge
        judged = published_from(rows, merge.judged_from_ns)
        report = check(judged, order="merged", lossy=merge.lossy, within_ns=merge.within_ns)
        if merge.judged_from_ns and not any(row.action == "delivered" for row in judged):
            # No subscriber was left to deliver to: what was owed is judged all the same.
            verdict = Verdict.worst(finding.verdict for finding in report.findings)
            report = msgspec.structs.replace(report, verdict=verdict, reasons=())
        return report

    @classmethod
    def describe_settings(cls, scenario: Scenario) -> Iterator[str]:
        """Describe the configuration of the protocol."""
        yield from _describe(scenario.merge)

    def waits(self) -> Iterator[str]:
        """Yield which node still waits for what."""
        yield from super().waits()
        yield from (f"{name} was refused: {reason}" for name, reason in self._refused.items())
        merge = self.scenario.merge
        level = merge.config.above(merge.link_delta_ticks) if merge.stacked else merge.config
        longest = level.span_ticks * merge.config.tick_ns
        if self.world.now_ns < self.scenario.duration_ns + 2 * (1 + REPLIES_MAX) * longest:
            # No node waits for an answer here, so none knows what is still on its way.
            yield "messages may be on their way"
        for name in self.world.names():
            node = self.world.node(name)
            inner = node.inner if isinstance(node, Tampering) else node
            if isinstance(inner, MergedPublisher) and inner.unsettled_count:
                yield f"{name} has {inner.unsettled_count} events that are not stamped"
            elif isinstance(inner, MergedSubscriber | MergedRelay) and inner.held_count:
                yield f"{name} holds {inner.held_count} events back"


def _tick(node: Node, now_ns: int) -> None:
    node.handle_timer(now_ns=now_ns)


def published_from(rows: list[Row], from_ns: int) -> list[Row]:
    """Leave out what is about events that were published before a true time.

    Positions count deliveries that are left out, so they are left out as well.
    """
    if not from_ns:
        return rows
    early = {
        row.event for row in rows if row.action == "published" and (row.true_ns or 0) < from_ns
    }
    return [
        row if row.position is None else msgspec.structs.replace(row, position=None)
        for row in rows
        if row.event is None or row.event not in early
    ]


def _describe(merge: MergeSpec) -> Iterator[str]:
    config = merge.config
    yield (
        f"  clocks differ by {config.epsilon_ticks} ticks, messages take {config.delta_ticks}, of "
        f"{duration(config.tick_ns)} each; {'arrays' if config.array else 'counters'}, "
        f"{'whole' if config.modulus is None else f'modulo {config.modulus}'}; late events are "
        f"{'delivered with a tag' if config.deliver_late else 'dropped'}"
    )
    if merge.eager:
        yield f"  get events on arrival: {listed(merge.eager, '')}"
    if merge.relays:
        yield f"  {listed(merge.stacked, 'no subscriber')} behind {listed(merge.relays, '')}"
    for each in merge.corruptions:
        yield f"  {duration(each.at_ns)}: the memory of {each.node} is corrupted"
    if merge.tampered_share:
        share, until = merge.tampered_share, duration(merge.tampered_until_ns)
        yield f"  {share:.0%} of events are tampered with until {until}"
    if merge.judged_from_ns:
        yield f"  judged by what is published from {duration(merge.judged_from_ns)} on"
