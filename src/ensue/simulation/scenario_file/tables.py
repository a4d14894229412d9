"""The tables of a scenario file, one class each: their keys and defaults.

Field names are the keys of the file, but for `from`, which Python keeps for itself. Defaults are
those of the configurations the tables become, so there is one place where each is decided.
`docs/how-to/simulator.md` explains every key to people.
"""

from typing import Literal

import msgspec

from ensue.protocols.content.config import ContentConfig
from ensue.simulation.deployments.transaction_clients import TransactionSpec
from ensue.simulation.scenario import Publication, Reply, Scenario
from ensue.simulation.scenario_file.values import (
    Chance,
    Delay,
    Duration,
    Names,
    SignedDuration,
    Size,
)
from ensue.simulation.world.disks import DiskConfig
from ensue.simulation.world.load_model import QueueConfig
from ensue.simulation.world.network import NetworkConfig

__all__ = [
    "ContentEntry",
    "FaultsTable",
    "File",
    "Member",
    "OperationTable",
    "PairDelay",
    "Topics",
    "TransactionTable",
]

_SCENARIO = Scenario(name="defaults")
_SEQUENCER = _SCENARIO.sequencer
_HYPERCUBE = _SCENARIO.hypercube
_MERGE = _SCENARIO.merge.config
_GOSSIP = _SCENARIO.deadline.config
_NETWORK = NetworkConfig()
_LINK = _SCENARIO.link
_LOG = _SCENARIO.topic_log_config
_DISK = DiskConfig()
_QUEUE = QueueConfig()
_CONTENT = ContentConfig()
_TRANSACTION = TransactionSpec(client="", at_ns=0, acts=())
_NOBODY = Names()


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table that rejects unknown keys."""


class Topics(Table, frozen=True, kw_only=True):
    """Topics by number, `name-1`, `name-2` and so on."""

    name: str
    count: int = 1


class Member(Table, frozen=True, kw_only=True):
    """One node, or with `count` several alike, `name-1`, `name-2` and so on."""

    name: str
    count: int | None = None
    site: Names = _NOBODY
    """Several sites are taken in turn by the members."""


class ChainNode(Member, frozen=True, kw_only=True):
    """A node of the chain; with `count` the topics are dealt out in rank order."""

    topics: Names = _NOBODY


class TopicLogNode(Member, frozen=True, kw_only=True):
    """A node of the event notification service."""


class EventTable(Table, frozen=True, kw_only=True):
    """One event a topic, at one time."""

    at: Duration
    topics: Names
    size: Size = Size(Publication(at_ns=0, topics=()).size)


class RateTable(Table, frozen=True, kw_only=True):
    """Events at random times."""

    topics: Names
    per_second: float
    from_: Duration = msgspec.field(default=Duration(0), name="from")
    until: Duration | None = None
    size: Size = Size(Publication(at_ns=0, topics=()).size)


class PublisherTable(Member, frozen=True, kw_only=True):
    """A publisher."""

    events: tuple[EventTable, ...] = ()
    rates: tuple[RateTable, ...] = ()


class ChangeTable(Table, frozen=True, kw_only=True):
    """A change of a subscription."""

    at: Duration
    subscribe: Names = _NOBODY
    unsubscribe: Names = _NOBODY


class ReplyTable(Table, frozen=True, kw_only=True):
    """A reply of a subscriber."""

    on: str
    topic: str
    share: Chance = Chance(Reply(on="", topic="").share)


class SubscriberTable(Member, frozen=True, kw_only=True):
    """A subscriber."""

    topics: Names = _NOBODY
    changes: tuple[ChangeTable, ...] = ()
    replies: tuple[ReplyTable, ...] = ()


Attributes = dict[str, bool | int | float | str]
"""The attributes of an event by content."""


class BrokerTable(Member, frozen=True, kw_only=True):
    """A content broker."""

    parent: str = ""
    """An earlier broker; empty: that of a binary tree, by its rank."""


class ContentEntry(Table, frozen=True, kw_only=True):
    """A content subscription or an advertisement of a client."""

    where: str
    name: str = ""
    """To withdraw it by, in a transaction."""
    at: Duration = Duration(0)
    until: Duration | None = None


class ContentEventTable(Table, frozen=True, kw_only=True):
    """One event by content."""

    at: Duration
    publish: Attributes
    size: Size = Size(0)


class ContentRateTable(Table, frozen=True, kw_only=True):
    """Events by content at random times."""

    publish: tuple[Attributes, ...]
    """Drawn evenly."""
    per_second: float
    from_: Duration = msgspec.field(default=Duration(0), name="from")
    until: Duration | None = None
    size: Size = Size(0)


class ClientTable(Member, frozen=True, kw_only=True):
    """A client of content brokers."""

    home: Names
    """Several brokers are taken in turn by the members."""
    advertisements: tuple[ContentEntry, ...] = ()
    subscriptions: tuple[ContentEntry, ...] = ()
    events: tuple[ContentEventTable, ...] = ()
    rates: tuple[ContentRateTable, ...] = ()


class OperationTable(Table, frozen=True, kw_only=True):
    """An operation of a transaction. Exactly one of the first six keys is set."""

    publish: Attributes | None = None
    subscribe: str | None = None
    unsubscribe: str | None = None
    advertise: str | None = None
    unadvertise: str | None = None
    invite: str | None = None
    name: str = ""
    size: Size = Size(0)
    operations: tuple["OperationTable", ...] = ()


class TransactionTable(Table, frozen=True, kw_only=True):
    """A transaction."""

    client: str
    at: Duration
    operations: tuple[OperationTable, ...]
    isolation: Literal["serializable", "atomic", "planned"] = "serializable"
    timeout: Duration = Duration(_TRANSACTION.timeout_ns)
    commit: bool = _TRANSACTION.commit
    hold: bool = _TRANSACTION.hold
    attempts: int = _TRANSACTION.attempts


class ContentTable(Table, frozen=True, kw_only=True):
    """Content brokers and their clients."""

    lease: Duration = Duration(_CONTENT.lease_ns)
    grace: Duration = Duration(_CONTENT.grace_ns)
    away: Duration = Duration(_CONTENT.away_ns)
    beat: Duration = Duration(_CONTENT.beat_ns)
    hello: Duration = Duration(_CONTENT.hello_ns)
    retry: Duration = Duration(_CONTENT.retry_ns)
    retry_max: Duration = Duration(_CONTENT.retry_ns_max)
    timeout_max: Duration = Duration(_CONTENT.timeout_ns_max)
    subscriptions_max: int = _CONTENT.subscriptions_max
    advertisements_max: int = _CONTENT.advertisements_max
    requests_max: int = _CONTENT.requests_max
    transactions_max: int = _CONTENT.transactions_max
    operations_max: int = _CONTENT.operations_max
    journal_bytes_min: int = _CONTENT.journal_bytes_min


class SequencerTable(Table, frozen=True, kw_only=True):
    """The sequencers of the chain."""

    groups: int = _SEQUENCER.groups
    reliable: bool = _SEQUENCER.reliable
    leave_out: bool | None = None
    publisher_order: bool = _SEQUENCER.publisher_order
    carries: bool = _SEQUENCER.carries
    lease: Duration = Duration(_SEQUENCER.lease_ns)
    lease_lost: Duration = Duration(_SEQUENCER.lease_lost_ns)
    retry: Duration = Duration(_SEQUENCER.retry_ns)
    retry_min: Duration = Duration(_SEQUENCER.retry_ns_min)
    poll: Duration = Duration(_SEQUENCER.poll_ns)
    gap: Duration = Duration(_SEQUENCER.gap_ns)
    time_to_live: Duration = Duration(_SEQUENCER.time_to_live_ns)
    window: int = _SEQUENCER.window
    runs_max: int = _SEQUENCER.runs_max
    outgoing_max: int = _SEQUENCER.outgoing_max
    held_max: int = _SEQUENCER.held_max
    missing_max: int = _SEQUENCER.missing_max
    topics_max: int = _SEQUENCER.topics_max
    clients_max: int = _SEQUENCER.clients_max


class HypercubeTable(Table, frozen=True, kw_only=True):
    """The nodes of causal order."""

    across_topics: bool = _HYPERCUBE.across_topics
    retry: Duration = Duration(_HYPERCUBE.retry_ns)
    retry_max: Duration = Duration(_HYPERCUBE.retry_ns_max)
    retry_min: Duration = Duration(_HYPERCUBE.retry_ns_min)
    suspect: Duration = Duration(_HYPERCUBE.suspect_ns)
    beat: Duration = Duration(_HYPERCUBE.beat_ns)
    digest: Duration = Duration(_HYPERCUBE.digest_ns)
    digest_max: Duration = Duration(_HYPERCUBE.digest_ns_max)
    gap: Duration = Duration(_HYPERCUBE.gap_ns)
    patience: Duration = Duration(_HYPERCUBE.patience_ns)
    window: int = _HYPERCUBE.window
    batch_max: int = _HYPERCUBE.batch_max
    outgoing_max: int = _HYPERCUBE.outgoing_max
    held_max: int = _HYPERCUBE.held_max
    retained_max: int = _HYPERCUBE.retained_max


class LinkTable(Table, frozen=True, kw_only=True):
    """The numbered links between chain nodes."""

    retry: Duration = Duration(_LINK.retry_ns)
    retry_max: Duration = Duration(_LINK.retry_ns_max)
    retry_min: Duration = Duration(_LINK.retry_ns_min)
    burst: int = _LINK.burst
    unacknowledged_max: int = _LINK.unacknowledged_max
    early_max: int = _LINK.early_max
    acknowledge: Duration = Duration(_LINK.acknowledge_ns)
    group_bytes: int = _LINK.group_bytes


class LogTable(Table, frozen=True, kw_only=True):
    """The logs of the notification service."""

    retained_max: int = _LOG.retained_max
    batch_max: int = _LOG.batch_max
    probe: Duration = Duration(_LOG.probe_ns)


class DiskTable(Table, frozen=True, kw_only=True):
    """The disks of all nodes."""

    sync: Delay = Delay(_DISK.sync)
    crash_loses_all: bool = _DISK.crash_loses_all
    batches_max: int = _DISK.batches_max


class PairDelay(Table, frozen=True, kw_only=True):
    """The delay between two sites, or two nodes."""

    source: Names
    target: Names
    delay: Delay
    both_ways: bool = True


class NetworkTable(Table, frozen=True, kw_only=True):
    """The behavior of the network until it is healed."""

    default: Delay = Delay(_NETWORK.default)
    within_site: Delay | None = None
    between_sites: Delay | None = None
    sites: tuple[PairDelay, ...] = ()
    links: tuple[PairDelay, ...] = ()
    fifo: bool = _NETWORK.fifo
    loss: Chance = Chance(_NETWORK.loss)
    duplication: Chance = Chance(_NETWORK.duplication)
    reordering: Chance = Chance(_NETWORK.reordering)
    reordering_delay: Delay = Delay(_NETWORK.reordering_delay)
    clogged_max: int = _NETWORK.clogged_max


class QueueingTable(Table, frozen=True, kw_only=True):
    """The cost of handling and sending frames."""

    service: Duration = Duration(_QUEUE.service_ns)
    service_by_frame: dict[str, Duration] = {}
    service_per_kilobyte: Duration = Duration(0)
    bandwidth: Size | None = None
    frames_max: int = _QUEUE.frames_max
    sends_max: int = _QUEUE.sends_max


class ClockTable(Table, frozen=True, kw_only=True):
    """The difference of a clock from true time."""

    skew: SignedDuration = SignedDuration(0)
    drift_ppm: float = 0.0


class CrashTable(Table, frozen=True, kw_only=True):
    """A crash of a node."""

    node: Names
    at: Duration
    restart_after: Duration | None = None


class MergeTable(Table, frozen=True, kw_only=True):
    """Merged order."""

    epsilon: Duration = Duration(_MERGE.epsilon_ticks * _MERGE.tick_ns)
    delta: Duration = Duration(_MERGE.delta_ticks * _MERGE.tick_ns)
    tick: Duration = Duration(_MERGE.tick_ns)
    array: bool = _MERGE.array
    deliver_late: bool = _MERGE.deliver_late
    held_max: int = _MERGE.held_max
    eager: Names = _NOBODY


class DeadlineTable(Table, frozen=True, kw_only=True):
    """Deadline order."""

    lifetime: Duration = Duration(_GOSSIP.lifetime_ns)
    lifetime_max: Duration = Duration(_GOSSIP.lifetime_ns_max)
    period: Duration = Duration(_GOSSIP.period_ns)
    subscribers_max: int | None = None
    alpha: int = _GOSSIP.alpha
    fan_out: int = _GOSSIP.fan_out
    near_percent: int = _GOSSIP.near_percent
    view_max: int = _GOSSIP.view_max
    push_rounds: int = _GOSSIP.push_rounds
    colors: int | None = _GOSSIP.colors
    copy_age_rounds: int | None = _GOSSIP.copy_age_rounds
    rounds_ahead_max: int = _GOSSIP.rounds_ahead_max
    announce_rounds: int = _GOSSIP.announce_rounds
    expire_rounds: int = _GOSSIP.expire_rounds
    skew: Duration = Duration(_GOSSIP.skew_ns)
    slack: Duration = Duration(_GOSSIP.slack_ns)
    retry: Duration = Duration(_GOSSIP.retry_ns)
    join: Duration = Duration(_GOSSIP.join_ns)
    deliver_late: bool = _GOSSIP.deliver_late
    held_max: int = _GOSSIP.held_max
    retained_max: int = _GOSSIP.retained_max
    listening: Names = _NOBODY


class Lasting(Table, frozen=True, kw_only=True):
    """A fault with a duration."""

    from_: Duration = msgspec.field(default=Duration(0), name="from")
    until: Duration | None = None


class PauseTable(Lasting, frozen=True, kw_only=True):
    """A paused node."""

    node: Names


class PartitionTable(Lasting, frozen=True, kw_only=True):
    """A partition of the network."""

    side: Names
    other: Names = _NOBODY
    one_way: bool = False


class ClogTable(Lasting, frozen=True, kw_only=True):
    """Delayed frames."""

    sources: Names = _NOBODY
    targets: Names = _NOBODY


class NoiseTable(ClogTable, frozen=True, kw_only=True):
    """Frames lost, repeated or delayed by chance."""

    loss: Chance = Chance(0)
    duplication: Chance = Chance(0)
    reordering: Chance = Chance(0)


class ClockJumpTable(Table, frozen=True, kw_only=True):
    """A step of a clock."""

    node: Names
    at: Duration
    by: SignedDuration
    monotone: bool = True


class VanishTable(Table, frozen=True, kw_only=True):
    """The permanent crash of a publisher."""

    publisher: Names
    at: Duration


class FaultsTable(Table, frozen=True, kw_only=True):
    """All faults."""

    crash: tuple[CrashTable, ...] = ()
    pause: tuple[PauseTable, ...] = ()
    partition: tuple[PartitionTable, ...] = ()
    clog: tuple[ClogTable, ...] = ()
    noise: tuple[NoiseTable, ...] = ()
    clock_jump: tuple[ClockJumpTable, ...] = ()
    vanish: tuple[VanishTable, ...] = ()


class File(Table, frozen=True, kw_only=True):
    """A whole file."""

    name: str = ""
    """Empty: the name of the file."""
    order: str = "total"
    """The name of an order of `ensue.orders`."""
    duration: Duration = Duration(_SCENARIO.duration_ns)
    settle: Duration = Duration(_SCENARIO.settle_ns)
    registered: bool = False
    """Whether clients register, as processes do; there is a node `registry` then."""
    sites: Names = _NOBODY
    topics: tuple[str | Topics, ...] = ()
    chain: tuple[ChainNode, ...] = (ChainNode(name="node-1"),)
    ens: tuple[TopicLogNode, ...] = (TopicLogNode(name="ens"),)
    publishers: tuple[PublisherTable, ...] = ()
    subscribers: tuple[SubscriberTable, ...] = ()
    brokers: tuple[BrokerTable, ...] = ()
    clients: tuple[ClientTable, ...] = ()
    transactions: tuple[TransactionTable, ...] = ()
    content: ContentTable = ContentTable()
    sequencer: SequencerTable = SequencerTable()
    hypercube: HypercubeTable = HypercubeTable()
    merge: MergeTable = MergeTable()
    deadline: DeadlineTable = DeadlineTable()
    link: LinkTable = LinkTable()
    ens_log: LogTable = LogTable()
    network: NetworkTable = NetworkTable()
    disk: DiskTable = DiskTable()
    queueing: QueueingTable | None = None
    clocks: dict[str, ClockTable] = {}
    faults: FaultsTable = FaultsTable()
