"""Turn the tables of a scenario file into a `Scenario`.

Names are looked up in a `Directory`, and every time is compared with the scenario's duration: what
would happen after it would not happen at all. Errors begin with the place in the file.
"""

import msgspec

from ensue import orders
from ensue.core.errors import BadInput
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.merged.config import MergedConfig, ticks_of
from ensue.protocols.shared.link import LinkConfig
from ensue.protocols.topic_log.log import TopicLogConfig
from ensue.protocols.total.config import SequencerConfig
from ensue.simulation.scenario import (
    Change,
    DeadlineSpec,
    MergeSpec,
    Publication,
    PublisherSpec,
    Rate,
    RegistrySpec,
    Reply,
    Scenario,
    SequencerSpec,
    SubscriberSpec,
    TopicLogSpec,
)
from ensue.simulation.scenario_file.content import ContentBuilder
from ensue.simulation.scenario_file.faults import FaultsBuilder
from ensue.simulation.scenario_file.names import REGISTRY, Directory, placed, unknown
from ensue.simulation.scenario_file.tables import File, PairDelay
from ensue.simulation.scenario_file.values import Names
from ensue.simulation.world.clocks import ClockConfig
from ensue.simulation.world.delays import DelayModel
from ensue.simulation.world.disks import DiskConfig
from ensue.simulation.world.load_model import QueueConfig
from ensue.simulation.world.network import LinkDelay, NetworkConfig

__all__ = ["build"]


def build(file: File, *, name: str) -> Scenario:
    """Return the scenario that a file describes."""
    return _Builder(file).scenario(name)


class _Builder:
    """Turns one file into a scenario, table by table."""

    def __init__(self, file: File) -> None:
        known = [each.name for each in orders.every()]
        if file.order not in known:
            raise unknown("order", "order", file.order, known)
        self.file = file
        self.guarantee = orders.named(file.order)
        self.names = Directory(file)

    def scenario(self, name: str) -> Scenario:
        """Return the whole scenario."""
        file = self.file
        subscribers = self._subscribers()
        overlay = ContentBuilder(file, self.names).overlay()
        faults = FaultsBuilder(file.faults, self.names)
        with placed("link"):
            link = LinkConfig(
                retry_ns=file.link.retry,
                retry_ns_max=file.link.retry_max,
                retry_ns_min=file.link.retry_min,
                burst=file.link.burst,
                unacknowledged_max=file.link.unacknowledged_max,
                early_max=file.link.early_max,
                acknowledge_ns=file.link.acknowledge,
                group_bytes=file.link.group_bytes,
            )
        with placed("ens_log"):
            topic_log_config = TopicLogConfig(
                keeps_log=file.sequencer.reliable,
                retained_max=file.ens_log.retained_max,
                batch_max=file.ens_log.batch_max,
                probe_ns=file.ens_log.probe,
            )
        with placed("disk"):
            disk = DiskConfig(
                sync=file.disk.sync.model,
                crash_loses_all=file.disk.crash_loses_all,
                batches_max=file.disk.batches_max,
            )
        with placed("scenario"):
            return Scenario(
                name=name,
                order=file.order,
                duration_ns=file.duration,
                settle_ns=file.settle,
                chain=self._chain(),
                ens=self._ens(),
                publishers=self._publishers(),
                subscribers=subscribers,
                sequencer=self._sequencer(),
                hypercube=self._hypercube(),
                merge=self._merge(),
                deadline=self._deadline(),
                overlay=overlay,
                registry=RegistrySpec(name=REGISTRY) if file.registered else None,
                table=self._table(),
                topic_log_config=topic_log_config,
                link=link,
                network=self._network(),
                disk=disk,
                queueing=self._queueing(),
                clocks=self._clocks(),
                faults=faults.faults(),
                vanish=faults.vanish(),
            )

    # -- Who is there -----------------------------------------------------------------------------

    def _chain(self) -> tuple[SequencerSpec, ...]:
        if not self.names.chain:
            raise BadInput("chain: needs at least 1 node; leave it out to get one")
        chain = []
        hosted: set[str] = set()
        for index, table in enumerate(self.file.chain):
            place = f"chain[{index}].topics"
            topics = self.names.topics(place, table.topics)
            if again := sorted(hosted.intersection(topics)):
                raise BadInput(f"{place}: {again[0]!r} is placed twice; each topic has one node")
            hosted.update(topics)
            members = self.names.chain[index]
            share, rest = divmod(len(topics), len(members))
            start = 0
            for number, (name, site) in enumerate(members):
                end = start + share + (number < rest)
                chain.append(SequencerSpec(name=name, site=site, topics=topics[start:end]))
                start = end
        return tuple(chain)

    def _ens(self) -> tuple[TopicLogSpec, ...]:
        if not self.names.ens:
            raise BadInput("ens: needs at least 1 node; leave it out to get one")
        return tuple(
            TopicLogSpec(name=name, site=site)
            for members in self.names.ens
            for name, site in members
        )

    def _publishers(self) -> tuple[PublisherSpec, ...]:
        publishers: list[PublisherSpec] = []
        for index, table in enumerate(self.file.publishers):
            events = []
            for number, event in enumerate(table.events):
                place = f"publishers[{index}].events[{number}]"
                topics = self.names.topics(f"{place}.topics", event.topics)
                at_ns = self.names.within(f"{place}.at", event.at)
                events.append(
                    Publication(at_ns=at_ns, topics=topics, size=self.names.size(place, event.size))
                )
            rates = []
            for number, rate in enumerate(table.rates):
                place = f"publishers[{index}].rates[{number}]"
                self.names.span(place, rate.from_, rate.until)
                if rate.until is not None:
                    self.names.within(f"{place}.until", rate.until)
                with placed(place):
                    rates.append(
                        Rate(
                            topics=self.names.topics(f"{place}.topics", rate.topics),
                            per_second=rate.per_second,
                            from_ns=rate.from_,
                            until_ns=rate.until,
                            size=self.names.size(place, rate.size),
                        )
                    )
            for _ in self.names.publishers[index]:
                for rate in table.rates:
                    self.names.count_events(
                        f"publishers[{index}].rates", rate.per_second, rate.from_, rate.until
                    )
            publishers += [
                PublisherSpec(name=name, site=site, events=tuple(events), rates=tuple(rates))
                for name, site in self.names.publishers[index]
            ]
        return tuple(publishers)

    def _subscribers(self) -> tuple[SubscriberSpec, ...]:
        subscribers = []
        for index, table in enumerate(self.file.subscribers):
            place = f"subscribers[{index}]"
            topics = self.names.topics(f"{place}.topics", table.topics)
            changes = self._changes(index)
            replies = tuple(
                Reply(
                    on=self.names.topic(f"{place}.replies[{number}].on", reply.on),
                    topic=self.names.topic(f"{place}.replies[{number}].topic", reply.topic),
                    share=reply.share,
                )
                for number, reply in enumerate(table.replies)
            )
            subscribers += [
                SubscriberSpec(
                    name=name, site=site, topics=topics, changes=changes, replies=replies
                )
                for name, site in self.names.subscribers[index]
            ]
        return tuple(subscribers)

    def _changes(self, subscriber: int) -> tuple[Change, ...]:
        changes = []
        for number, change in enumerate(self.file.subscribers[subscriber].changes):
            place = f"subscribers[{subscriber}].changes[{number}]"
            if not change.subscribe and not change.unsubscribe:
                raise BadInput(f"{place}: changes nothing; name topics to subscribe or unsubscribe")
            changes.append(
                Change(
                    at_ns=self.names.within(f"{place}.at", change.at),
                    subscribe=self.names.topics(f"{place}.subscribe", change.subscribe),
                    unsubscribe=self.names.topics(f"{place}.unsubscribe", change.unsubscribe),
                )
            )
        return tuple(changes)

    # -- How they work ----------------------------------------------------------------------------

    def _sequencer(self) -> SequencerConfig:
        table = self.file.sequencer
        with placed("sequencer"):
            return SequencerConfig(
                groups=table.groups,
                reliable=table.reliable,
                leave_out=table.reliable if table.leave_out is None else table.leave_out,
                publisher_order=table.publisher_order,
                carries=table.carries,
                lease_ns=table.lease,
                lease_lost_ns=table.lease_lost,
                retry_ns=table.retry,
                retry_ns_min=table.retry_min,
                poll_ns=table.poll,
                gap_ns=table.gap,
                time_to_live_ns=table.time_to_live,
                window=table.window,
                runs_max=table.runs_max,
                outgoing_max=table.outgoing_max,
                held_max=table.held_max,
                missing_max=table.missing_max,
                topics_max=table.topics_max,
                clients_max=table.clients_max,
            )

    def _merge(self) -> MergeSpec:
        table = self.file.merge
        if table.tick < 1:
            raise BadInput("merge.tick: must be above 0")
        with placed("merge"):
            config = MergedConfig(
                epsilon_ticks=ticks_of(table.epsilon, table.tick),
                delta_ticks=ticks_of(table.delta, table.tick),
                tick_ns=table.tick,
                array=table.array,
                deliver_late=table.deliver_late,
                held_max=table.held_max,
            )
        return MergeSpec(config=config, eager=self.names.nodes("merge.eager", table.eager))

    def _deadline(self) -> DeadlineSpec:
        table = self.file.deadline
        # The number of subscribers, unless the file sets it.
        count = sum(map(len, self.names.subscribers)) or DeadlineConfig().subscribers_max
        with placed("deadline"):
            config = DeadlineConfig(
                subscribers_max=table.subscribers_max or count,
                alpha=table.alpha,
                period_ns=table.period,
                fan_out=table.fan_out,
                near_percent=table.near_percent,
                view_max=table.view_max,
                push_rounds=table.push_rounds,
                colors=table.colors,
                copy_age_rounds=table.copy_age_rounds,
                rounds_ahead_max=table.rounds_ahead_max,
                announce_rounds=table.announce_rounds,
                expire_rounds=table.expire_rounds,
                lifetime_ns=table.lifetime,
                lifetime_ns_max=max(table.lifetime_max, table.lifetime),
                skew_ns=table.skew,
                slack_ns=table.slack,
                retry_ns=table.retry,
                join_ns=table.join,
                deliver_late=table.deliver_late,
                held_max=table.held_max,
                retained_max=table.retained_max,
            )
        listening = self.names.nodes("deadline.listening", table.listening)
        return DeadlineSpec(config=config, listening=listening)

    def _table(self) -> msgspec.Struct | None:
        """Return the table of an order in its own package: as stated, or its defaults."""
        for each in orders.every():
            stated = getattr(self.file, each.name, None) if each.scenario_table() else None
            if stated is not None and each is not self.guarantee:
                raise BadInput(
                    f"{each.name}: this table is for that order, not for order = "
                    f'"{self.file.order}"; leave it out'
                )
        kind = self.guarantee.scenario_table()
        if kind is None:
            return None
        table: msgspec.Struct = getattr(self.file, self.guarantee.name, None) or kind()
        return table

    def _hypercube(self) -> CausalConfig:
        table = self.file.hypercube
        with placed("hypercube"):
            return CausalConfig(
                across_topics=table.across_topics,
                retry_ns=table.retry,
                retry_ns_max=table.retry_max,
                retry_ns_min=table.retry_min,
                suspect_ns=table.suspect,
                beat_ns=table.beat,
                digest_ns=table.digest,
                digest_ns_max=table.digest_max,
                gap_ns=table.gap,
                patience_ns=table.patience,
                window=table.window,
                batch_max=table.batch_max,
                outgoing_max=table.outgoing_max,
                held_max=table.held_max,
                retained_max=table.retained_max,
            )

    def _network(self) -> NetworkConfig:
        table = self.file.network
        sites: dict[tuple[str, str], DelayModel] = {}
        known = list(self.names.sites)
        for source in known:
            for target in known:
                general = table.within_site if source == target else table.between_sites
                if general is not None:
                    sites[source, target] = general.model
        for where, chosen in (
            ("within_site", table.within_site),
            ("between_sites", table.between_sites),
        ):
            if chosen is not None and not known:
                raise BadInput(f"network.{where}: no node has a site; give nodes a `site`")
        links: dict[tuple[str, str], DelayModel] = {}
        self._pairs("sites", table.sites, sites)
        self._pairs("links", table.links, links)
        with placed("network"):
            return NetworkConfig(
                default=table.default.model,
                sites=_one_way(sites),
                links=_one_way(links),
                fifo=table.fifo,
                loss=table.loss,
                duplication=table.duplication,
                reordering=table.reordering,
                reordering_delay=table.reordering_delay.model,
                clogged_max=table.clogged_max,
            )

    def _pairs(
        self,
        where: str,
        tables: tuple[PairDelay, ...],
        pairs: dict[tuple[str, str], DelayModel],
    ) -> None:
        """Add delays of pairs of sites or nodes; a stated one wins over a reversed one."""
        stated: dict[tuple[str, str], DelayModel] = {}
        for index, table in enumerate(tables):
            ends = []
            for key, names in (("source", table.source), ("target", table.target)):
                place = f"network.{where}[{index}].{key}"
                if where == "sites":
                    ends.append(tuple(self.names.site(place, name) for name in names))
                else:
                    ends.append(self.names.nodes(place, names))
            for source in ends[0]:
                for target in ends[1]:
                    stated[source, target] = table.delay.model
                    if table.both_ways:
                        pairs[target, source] = table.delay.model
        pairs.update(stated)

    def _queueing(self) -> QueueConfig | None:
        table = self.file.queueing
        if table is None:
            return None
        known = [frame.__name__ for frame in self.guarantee.frames()]
        for name in table.service_by_frame:
            if name not in known:
                raise unknown(f"queueing.service_by_frame.{name}", "frame", name, known)
        with placed("queueing"):
            return QueueConfig(
                service_ns=table.service,
                service_ns_by_frame={
                    name: int(one) for name, one in table.service_by_frame.items()
                },
                service_ns_per_byte=table.service_per_kilobyte / 1_000,
                bandwidth_bytes_per_s=table.bandwidth,
                frames_max=table.frames_max,
                sends_max=table.sends_max,
            )

    def _clocks(self) -> dict[str, ClockConfig]:
        clocks = {}
        for name, table in self.file.clocks.items():
            place = f"clocks.{name}"
            with placed(place):
                config = ClockConfig(skew_ns=table.skew, drift_ppm=table.drift_ppm)
            for node in self.names.nodes(place, Names((name,))):
                clocks[node] = config
        return clocks


def _one_way(pairs: dict[tuple[str, str], DelayModel]) -> tuple[LinkDelay, ...]:
    return tuple(
        LinkDelay(source=source, target=target, delay=delay, both_ways=False)
        for (source, target), delay in pairs.items()
    )
