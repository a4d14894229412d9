"""A scenario: nodes and sites, publications, subscriptions, and faults.

A scenario is a value. A file states it (`scenario_file`), a swarm draws it from a seed (`swarms`),
and `run` plays it. Together with a seed it decides a run completely.
"""

import msgspec

from ensue import orders
from ensue.core.errors import ConfigurationError
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.shared.link import LOSSY, LinkConfig
from ensue.protocols.shared.round_trips import RETRY_NS_MIN
from ensue.protocols.topic_log.log import TopicLogConfig
from ensue.protocols.topic_log.tail_probes import PROBE_NS
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.topic_moves import MoveConfig
from ensue.simulation.content_spec import ContentSpec
from ensue.simulation.world.clocks import ClockConfig
from ensue.simulation.world.disks import DiskConfig
from ensue.simulation.world.faults import Faults
from ensue.simulation.world.load_model import QueueConfig
from ensue.simulation.world.network import NetworkConfig

__all__ = [
    "Change",
    "Corruption",
    "DeadlineSpec",
    "Departure",
    "MergeSpec",
    "Publication",
    "PublisherSpec",
    "Rate",
    "RegistrySpec",
    "Reply",
    "Scenario",
    "SequencerSpec",
    "SubscriberSpec",
    "TopicLogSpec",
    "Vanish",
]

SECOND_NS = 1_000_000_000


class SequencerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the chain."""

    name: str
    site: str = ""
    topics: tuple[str, ...] = ()
    """In rank order. Topics that no node lists go where their hash puts them."""


class TopicLogSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the event notification service; topics are spread over all of them."""

    name: str = "ens"
    site: str = ""


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """One event, or as many as there are topics, at one time."""

    at_ns: int
    topics: tuple[str, ...]
    size: int = 16


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Events at random times, on topics drawn evenly."""

    topics: tuple[str, ...]
    per_second: float
    from_ns: int = 0
    until_ns: int | None = None
    """None: until the end of the scenario's duration."""
    size: int = 16

    def __post_init__(self) -> None:
        if not self.topics or self.per_second <= 0:
            raise ConfigurationError("a rate needs topics, and per_second above 0")


class PublisherSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One publisher."""

    name: str
    site: str = ""
    events: tuple[Publication, ...] = ()
    rates: tuple[Rate, ...] = ()


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a subscription."""

    at_ns: int
    subscribe: tuple[str, ...] = ()
    unsubscribe: tuple[str, ...] = ()


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a subscriber publishes in reply to a delivered one."""

    on: str
    """The topic of the event answered."""
    topic: str
    share: float = 1.0
    """Number of replies."""


class SubscriberSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One subscriber. With replies it publishes too, under its own name."""

    name: str
    site: str = ""
    topics: tuple[str, ...] = ()
    """Subscribed from the start."""
    changes: tuple[Change, ...] = ()
    replies: tuple[Reply, ...] = ()


class Vanish(msgspec.Struct, frozen=True, kw_only=True):
    """The permanent crash of a publisher."""

    publisher: str
    at_ns: int


class TopicMove(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's move to another node of a chain that keeps its topics' logs."""

    topic: str
    to: str
    at_ns: int


class Corruption(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a node of merged order is filled with arbitrary values."""

    node: str
    at_ns: int


class MergeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Merged order in a scenario; see `ensue.simulation.deployments.merged`."""

    config: MergedConfig = MergedConfig(epsilon_ticks=10, delta_ticks=100)
    eager: tuple[str, ...] = ()
    """Subscribers that get every event on arrival, tagged."""
    relays: tuple[str, ...] = ()
    """Mergers between the notification service and the stacked subscribers."""
    stacked: tuple[str, ...] = ()
    link_delta_ticks: int = 0
    """How long a message from a relay may take."""
    corruptions: tuple[Corruption, ...] = ()
    tampered_share: float = 0.0
    """How many events are tampered with on their way to a subscriber or relay …"""
    tampered_until_ns: int = 0
    """… until then."""
    judged_from_ns: int = 0
    """Events published earlier are not judged."""
    lossy: bool = True
    """Whether events may be missing."""
    within_ns: int | None = None
    """How long a delivery may take, if that is judged."""


class DeadlineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Deadline order in a scenario; see `ensue.simulation.deployments.deadline`."""

    config: DeadlineConfig = DeadlineConfig()
    listening: tuple[str, ...] = ()
    """Subscribers that are brokers, beside those that reply."""
    lifetimes_ns: dict[str, int] = {}
    """By publisher: the lifetime of its events, if it differs from the default."""
    wishes: dict[str, str] = {}
    """By subscriber that gets events in rounds: a filter of the events that it wants, by their
    `mark`."""
    lossy: bool = True
    """Whether events may be missing."""


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """A registered client that leaves once its events are settled."""

    client: str
    at_ns: int
    back_after_ns: int | None = None
    """When it registers again, after it has left; None: never."""


class RegistrySpec(msgspec.Struct, frozen=True, kw_only=True):
    """Clients that register; see `ensue.simulation.deployments.registered`."""

    name: str = "registry"
    site: str = ""
    expire_ns: int = 40 * SECOND_NS
    """How long a client may be silent before the registry evicts it."""
    arrivals: dict[str, int] = {}
    """By client: when it starts, if not at once."""
    departures: tuple[Departure, ...] = ()
    """At most one for each client."""
    reconnects: bool = True
    """Whether clients notice that the registry has restarted, as from a new connection."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """The complete description of a run, apart from its seed."""

    name: str
    order: str = "total"
    """The name of an order of `ensue.orders`."""
    duration_ns: int = 10 * SECOND_NS
    """How long events flow and faults strike. Then everything is healed."""
    settle_ns: int = 120 * SECOND_NS
    """All owed events must be delivered within this time after healing."""
    chain: tuple[SequencerSpec, ...] = (SequencerSpec(name="node-1"),)
    ens: tuple[TopicLogSpec, ...] = (TopicLogSpec(),)
    publishers: tuple[PublisherSpec, ...] = ()
    subscribers: tuple[SubscriberSpec, ...] = ()
    sequencer: SequencerConfig = SequencerConfig(retry_ns_min=RETRY_NS_MIN)
    topic_log_config: TopicLogConfig = TopicLogConfig(probe_ns=PROBE_NS)
    hypercube: CausalConfig = CausalConfig(retry_ns_min=RETRY_NS_MIN)
    """For order `causal`, which has no chain and no notification service."""
    merge: MergeSpec = MergeSpec()
    """For order `merged`, which has no chain."""
    overlay: ContentSpec = ContentSpec()
    """Brokers and clients, for `transactions`."""
    deadline: DeadlineSpec = DeadlineSpec()
    """For order `deadline`, which has no chain and no notification service."""
    registry: RegistrySpec | None = None
    """For orders `causal` and `deadline`: clients register as they do in production; None: all
    nodes know each other from the start."""
    fan_out: bool = False
    """For orders `merged` and `none`: the notification service is a fan-out, as on servers, and
    keeps no log."""
    table: msgspec.Struct | None = None
    """For an order in its own package: its table, see `ensue.orders.Guarantee.scenario_table`."""
    link: LinkConfig = LOSSY
    network: NetworkConfig = NetworkConfig()
    disk: DiskConfig = DiskConfig()
    queueing: QueueConfig | None = None
    clocks: dict[str, ClockConfig] = {}
    faults: Faults = Faults()
    vanish: tuple[Vanish, ...] = ()
    moves: tuple[TopicMove, ...] = ()
    """For order `total`, as `move`."""
    move: MoveConfig = MoveConfig()
    encode: bool = False
    """Send every frame as bytes, which exercises the wire and gives sizes to the trace."""

    def __post_init__(self) -> None:
        known = [each.name for each in orders.every()]
        if self.order not in known:
            one_of = f"{', '.join(known[:-1])} or {known[-1]}"
            raise ConfigurationError(f"order must be {one_of}, got {self.order!r}")
        names = [
            each.name
            for group in (self.chain, self.ens, self.publishers, self.subscribers)
            for each in group
        ]
        names += [] if self.registry is None else [self.registry.name]
        names += [*self.merge.relays, *self.overlay.brokers, *self.overlay.clients]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ConfigurationError(f"names must be unique; used twice: {', '.join(repeated)}")
        slashed = [name for name in names if "/" in name]
        if slashed:
            raise ConfigurationError(f"names must not contain a slash: {', '.join(slashed)}")
        known_names = frozenset(names)
        for what, used in (
            ("faults", self.faults.nodes()),
            ("clocks", self.clocks.keys()),
            ("vanish", {each.publisher for each in self.vanish}),
        ):
            unknown = sorted(frozenset(used) - known_names)
            if unknown:
                raise ConfigurationError(f"{what} must name nodes of this scenario, got {unknown}")
        if not self.chain or not self.ens:
            raise ConfigurationError("a scenario needs a chain node and an ENS node")
        self._check_service()

    def _check_service(self) -> None:
        """Refuse what the order of the scenario does not have."""
        order = orders.named(self.order)
        if self.registry is not None and not order.registries():
            raise ConfigurationError(f"clients in order {self.order!r} do not register")
        if self.fan_out and not order.uses_topics_alone:
            raise ConfigurationError(f"order {self.order!r} has no fan-out")
        if self.sequencer.carries and not self.topic_log_config.keeps_log:
            raise ConfigurationError("sequencer.carries needs a log: stations keep one")
        if self.sequencer.reliable != self.topic_log_config.keeps_log:
            raise ConfigurationError(
                "sequencer.reliable and topic_log_config.keeps_log must agree: only a topic log "
                "makes a chain reliable"
            )

    def clock_of(self, name: str) -> ClockConfig | None:
        """Return a node's clock, never negative, in an order that sends its readings.

        Where a clock would go below zero, all clocks of the scenario start later by as much: their
        differences stay.
        """
        clock, base_ns = self.clocks.get(name), self.clock_base_ns
        if not base_ns:
            return clock
        clock = clock or ClockConfig()
        return msgspec.structs.replace(clock, skew_ns=clock.skew_ns + base_ns)

    @property
    def clock_base_ns(self) -> int:
        """By how much all clocks start later: as far as any could go below zero."""
        lowest = {name: clock.skew_ns for name, clock in self.clocks.items()}
        for jump in self.faults.clock_jumps:
            if jump.by_ns < 0:
                lowest[jump.node] = lowest.get(jump.node, 0) + jump.by_ns
        return -min(0, *lowest.values()) if lowest else 0
