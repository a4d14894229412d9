"""The configuration of a chain: its sequencers, publishers and subscribers."""

from collections.abc import Mapping

import msgspec

from ensue.core.errors import ConfigurationError
from ensue.protocols.content.cells import Cells

__all__ = ["SequencerConfig"]

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000


class SequencerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits, waits and options, which must be equal at all nodes and clients."""

    groups: int = 1
    """Topics are ordered together when this many subscriptions share them, 1 or 2. With 2, events
    have one order for all who can compare notes, and it is not causal across topics. Topics that
    are kept at one node (`carries`) are ordered together when one subscription shares them."""
    fixed: Mapping[str, tuple[str, ...]] | None = None
    """Subscriber to topics, fixed: changes are refused."""
    reliable: bool = True
    """Whether topic logs can retransmit lost notifications."""
    leave_out: bool = True
    """Leave stamp entries out that have not changed since the topic's previous event."""
    publisher_order: bool = True
    """Keep a publisher's order across topics, so that order is causal: requests enter the chain at
    one node, and an event is published when all earlier ones have their stamps. False: keep it only
    within a topic; events don't wait for each other."""
    carries: bool = False
    """Each node keeps the log of its topics (`ensue.protocols.total.station`), and publishers send
    events with their requests: an event whose stamp one node can make is published in one step,
    with no lease and nothing to confirm."""
    durable: bool = True
    """False: persist nothing, for a chain that lives and dies with one process."""
    lease_ns: int = 10 * SECOND_NS
    """How long a publisher may take from stamp to publication; after that it loses the slot."""
    retry_ns: int = 500 * MILLISECOND_NS
    """How long to wait for an answer before repeating a request. Publishers wait twice as long each
    time, up to eight times this or a quarter of a lease."""
    publish_retry_ns: int = 0
    """How long publishers wait instead, up to a quarter of a lease, if that is longer. For requests
    over connections, which lose messages only when they end; then open requests are repeated at
    once. A repetition before that recovers only what a node at its limits dropped, and burdens one
    that is merely busy."""
    retry_ns_min: int = 0
    """Where messages get lost: the shortest wait for an answer. Waits then follow the measured
    round trips (`ensue.protocols.shared.round_trips`), and `retry_ns` and `gap_ns` are only the
    first ones. 0: waits are fixed, for connections, which lose messages only when they end."""
    poll_ns: int = 2 * SECOND_NS
    """How often a subscriber asks the topic logs whether it missed events."""
    forget_ns: int = 600 * SECOND_NS
    """How long a publisher must be silent to be forgotten if room is needed, although it may not
    know the fate of all its requests."""
    gap_ns: int = 200 * MILLISECOND_NS
    """How long a subscriber holds events back before it asks the logs for missing ones."""
    window: int = 1024
    """Unanswered requests of one publisher at one node."""
    runs_max: int = 2
    """Open requests, each of many events, before further events wait for an answer, to be requested
    together. More: a busy node gets many small requests, and is busier."""
    outgoing_max: int = 65_536
    """Unsettled events of one publisher."""
    held_max: int = 65_536
    """Events a subscriber may hold back; the `b` of the paper."""
    time_to_live_ns: int = SECOND_NS
    """How long an event is held back for missing ones, if the topic log is lossy."""
    missing_max: int = 65_536
    """Skipped slots that a subscriber remembers, to tell a late event from a repeated one."""
    topics_max: int = 1_000_000
    """Topics a node knows. This limit and the next three are checked where a request enters the
    chain; what a neighbor passes on is always carried out."""
    pairs_max: int = 4_000_000
    """Pairs of topics that subscriptions share, at one node: a subscription to 1,000 topics of its
    own makes a million of them, of about 100 bytes each. Beyond, changes are refused."""
    group_max: int = 20_000
    """Topics that are ordered together with one topic, each of whose stamps may name them all.
    Beyond, changes are refused."""
    clients_max: int = 100_000
    """Publishers, and subscribers, that a node remembers: until they leave, or, for
    publishers, until room is needed and nothing of theirs is open. Beyond, new ones are refused.
    Leave ample room: publishers at the limit of two nodes can wait for each other."""
    lease_lost_ns: int = SECOND_NS
    """The lease of a publisher whose connection is lost, if that is shorter."""
    cells: str | msgspec.UnsetType = msgspec.UNSET
    """How events by content are divided among topics (`ensue.protocols.content.cells`); unset: this
    chain has none."""

    @property
    def partition(self) -> Cells | None:
        """The cells for events by content; None: there are none."""
        return Cells.parse(self.cells) if isinstance(self.cells, str) else None

    def __post_init__(self) -> None:
        if self.groups not in (1, 2):
            raise ConfigurationError(f"groups must be 1 or 2, got {self.groups}")
        if isinstance(self.cells, str):
            Cells.parse(self.cells)
        if not self.reliable and self.leave_out:
            raise ConfigurationError(
                "leave_out needs a reliable log: an entry left out is known only from the topic's "
                "previous event; set leave_out = False"
            )
        for field in (
            "lease_ns",
            "lease_lost_ns",
            "retry_ns",
            "poll_ns",
            "gap_ns",
            "forget_ns",
            "window",
            "runs_max",
            "outgoing_max",
            "held_max",
            "time_to_live_ns",
            "missing_max",
            "topics_max",
            "pairs_max",
            "group_max",
            "clients_max",
        ):
            if getattr(self, field) < 1:
                raise ConfigurationError(f"{field} must be at least 1, got {getattr(self, field)}")
        if self.publish_retry_ns < 0:
            raise ConfigurationError(
                "publish_retry_ns must be at least 0 (retry_ns instead), got "
                f"{self.publish_retry_ns}"
            )
        if not 0 <= self.retry_ns_min <= min(self.retry_ns, self.gap_ns):
            raise ConfigurationError(
                "retry_ns_min must be between 0 and retry_ns, and at most gap_ns, "
                f"got {self.retry_ns_min}"
            )
