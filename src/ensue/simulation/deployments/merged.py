"""Merged order in a world: publishers, a notification service that only carries, mergers if there are levels, subscribers.

A subscriber that replies is two nodes, one that subscribes and one that publishes, and one name in the trace. An eager one replies to what it
has not been handed in its turn, so its publisher observes the stamps: that is how effects come to know clocks that are ahead of their own.

A run that breaks the assumptions is judged from `judged_from_ns` on: by what was published after its faults and the time to
recover from them.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b

import msgspec

from ensue.checkers import Report, Verdict, check
from ensue.event import Event
from ensue.protocols import ens, exchange
from ensue.protocols.core import Deliver, Node, Outcome
from ensue.protocols.merge.config import MergeConfig
from ensue.protocols.merge.publisher import MergePublisher
from ensue.protocols.merge.relay import MergeRelay
from ensue.protocols.merge.subscriber import MergeSubscriber
from ensue.protocols.topic_log import TopicLog
from ensue.simulation.deployment import Deployment
from ensue.simulation.faults import Faults
from ensue.simulation.process import Factory
from ensue.simulation.tampering import Tampering, scramble
from ensue.trace import Row
from ensue.wire import Codec

__all__ = ["MergedDeployment", "published_from"]

Records = Mapping[str, bytes]

REPLIES_MAX = 4
"""Replies to replies to replies, at the most, that a run waits for."""


class MergedDeployment(Deployment):
    """Everybody stamps and sorts for themselves."""

    def _prepare(self) -> Codec:
        self._ens = [each.name for each in self.scenario.ens]
        return Codec((*ens.FRAMES, *exchange.FRAMES))

    def ens_for(self, topic: str) -> str:
        """Return the node that carries a topic."""
        digest = blake2b(topic.encode(), digest_size=8, salt=b"ens").digest()
        return self._ens[int.from_bytes(digest, "big") % len(self._ens)]

    def _add_nodes(self) -> None:
        scenario, world, merge = self.scenario, self.world, self.scenario.merge
        for each in scenario.ens:
            world.add(each.name, self._ens_factory(each.name), site=each.site)
        for name in merge.relays:
            world.add(name, self._relay_factory(name), clock=scenario.clock_of(name))
        for publisher in scenario.publishers:
            self._add_publisher(publisher.name, publisher.name, publisher.site)
        for subscriber in scenario.subscribers:
            world.add(
                subscriber.name,
                self._subscriber_factory(subscriber.name),
                site=subscriber.site,
                clock=scenario.clock_of(subscriber.name),
                disk=self._client_disk,
            )
            if subscriber.replies:
                self._add_publisher(
                    self._replier(subscriber.name), subscriber.name, subscriber.site
                )
        self._corrupt()

    def _corrupt(self) -> None:
        """Fill memories with anything, and let every clock tick once after the last fault.

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

    def _add_publisher(self, name: str, seen_as: str, site: str) -> None:
        role, config = self.roles.merge_publisher, self.scenario.merge.config

        def build(records: Records, now_ns: int) -> Node:
            return role(name=name, config=config, records=records, now_ns=now_ns)

        clock = self.scenario.clock_of(seen_as)
        self.world.add(name, build, site=site, clock=clock, seen_as=seen_as, disk=self._client_disk)

    def _ens_factory(self, name: str) -> Factory:
        config, role = self.scenario.ens_config, self.roles.ens
        return lambda records, _now: role(name=name, config=config, records=records)

    def _relay_factory(self, name: str) -> Factory:
        role, config = self.roles.merge_relay, self.scenario.merge.config

        def build(records: Records, now_ns: int) -> Node:
            return self._tampered(role(name=name, config=config, records=records, now_ns=now_ns))

        return build

    def _subscriber_factory(self, name: str) -> Factory:
        merge, role = self.scenario.merge, self.roles.merge_subscriber
        above = name in merge.stacked
        config: MergeConfig = merge.config.above(merge.link_delta_ticks) if above else merge.config

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

    def _tampered(self, node: MergeSubscriber | MergeRelay) -> Node:
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
        """Let whoever replies crash as a whole: it is one process, though two nodes."""
        super()._schedule()
        for crash in self.scenario.faults.crashes:
            if crash.node in self._repliers:
                self.world.inject(
                    Faults(
                        crashes=(msgspec.structs.replace(crash, node=self._replier(crash.node)),)
                    )
                )

    def _outcome(self, name: str, outcome: Outcome) -> None:
        if isinstance(outcome, Deliver) and outcome.verdict and name in self._repliers:
            # At once, before anything else that this process does: it is one process, though two nodes.
            replier = self.world.node(self._replier(name))
            stamp = outcome.event.stamp
            if isinstance(replier, MergePublisher) and stamp is not None:
                replier.observe(stamp.entries, now_ns=self.world.clock_ns(replier.name))
        super()._outcome(name, outcome)

    # -- What came of it ------------------------------------------------------------------------

    def judge(self, rows: list[Row]) -> Report:
        """Judge what was published late enough after the assumptions were broken: everything, if they were not."""
        merge = self.scenario.merge
        judged = published_from(rows, merge.judged_from_ns)
        report = check(judged, order="merged", lossy=merge.lossy, within_ns=merge.within_ns)
        if merge.judged_from_ns and not any(row.action == "delivered" for row in judged):
            # Nobody was left to deliver to: what was owed is judged all the same.
            verdict = Verdict.worst(finding.verdict for finding in report.findings)
            report = msgspec.structs.replace(report, verdict=verdict, reasons=())
        return report

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield what the nodes of the notification service hold."""
        for name in self._ens:
            node = self.world.node(name)
            if isinstance(node, TopicLog):
                yield from node.contents()

    def waits(self) -> Iterator[str]:
        """Say who still waits for what."""
        yield from super().waits()
        merge = self.scenario.merge
        level = merge.config.above(merge.link_delta_ticks) if merge.stacked else merge.config
        longest = level.span_ticks * merge.config.tick_ns
        if self.world.now_ns < self.scenario.duration_ns + 2 * (1 + REPLIES_MAX) * longest:
            # Nobody waits for an answer here, so nobody knows what is still on its way.
            yield "messages may be on their way"
        for name in self.world.names():
            node = self.world.node(name)
            inner = node.inner if isinstance(node, Tampering) else node
            if isinstance(inner, MergePublisher) and inner.unsettled_count:
                yield f"{name} has {inner.unsettled_count} events that are not stamped"
            elif isinstance(inner, MergeSubscriber | MergeRelay) and inner.held_count:
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
