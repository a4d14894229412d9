"""The configuration that sequencer nodes, publishers and subscribers of one chain share."""

from collections.abc import Mapping

import msgspec

from ensue.errors import ConfigurationError

__all__ = ["SequencerConfig"]

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000


class SequencerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Named limits, waits and choices. Everybody on one chain must be given the same values."""

    groups: int = 1
    """Topics are ordered together when this many subscriptions share them: 1, or 2 with `fixed`."""
    fixed: Mapping[str, tuple[str, ...]] | None = None
    """Subscriber to topics, for ever. Needed by `groups=2`; changes are refused."""
    reliable: bool = True
    """Whether lost notifications can be had again from the ENS."""
    leave_out: bool = True
    """Leave stamp entries out that have not changed since the topic's previous event."""
    publisher_order: bool = True
    """A publisher's events keep their order across topics, so that order is causal: a request to
    another node waits for the stamps of all earlier ones. False: only within a topic, and
    requests to different nodes don't wait for each other."""
    carries: bool = False
    """Each node keeps the log of its topics (`ensue.protocols.station`), and publishers send their
    events along with the requests: an event whose stamp one node can make is out in one step, with
    no lease and nothing to confirm."""
    durable: bool = True
    """False: nothing is persisted, for a chain that lives and dies with one process."""
    lease_ns: int = 10 * SECOND_NS
    """A publisher that has not got its event out so long after the stamp was made loses the slot."""
    retry_ns: int = 500 * MILLISECOND_NS
    """Requests that got no answer are repeated after so long. Publishers wait twice as long each time,
    up to eight times this or a quarter of a lease."""
    poll_ns: int = 2 * SECOND_NS
    """A subscriber asks the ENS so often whether it missed something."""
    forget_ns: int = 600 * SECOND_NS
    """A publisher not heard of for so long may be forgotten if room is needed, although it has not
    said that it knows the fate of everything it asked for."""
    gap_ns: int = 200 * MILLISECOND_NS
    """A subscriber that holds something back asks the ENS for the missing after so long."""
    window: int = 1024
    """Events a publisher may have asked one node for and not heard of."""
    runs_max: int = 2
    """Requests, each of many events, that a publisher has under way before what it publishes waits for an
    answer, to go together. More: a busy node gets many small requests, and is busier."""
    outgoing_max: int = 65_536
    """Events a publisher may have under way."""
    held_max: int = 65_536
    """Events a subscriber may hold back; the `b` of the paper."""
    time_to_live_ns: int = SECOND_NS
    """How long an event is held back for missing ones, if the ENS is unreliable."""
    missing_max: int = 65_536
    """Slots given up that a subscriber remembers, to tell a late event from a repeated one."""
    topics_max: int = 1_000_000
    """Topics a node knows. This limit and the next three are looked at where a request enters the chain;
    what a neighbour passes on is always carried out."""
    pairs_max: int = 4_000_000
    """Pairs of topics that subscriptions share, at one node: a subscription to 1,000 topics of its own
    makes a million of them, of about 100 bytes each. Beyond, changes are refused."""
    group_max: int = 20_000
    """Topics that are ordered together with one topic, each of whose stamps may name them all. Beyond,
    changes are refused."""
    clients_max: int = 100_000
    """Publishers, and subscribers, that a node remembers: until they say goodbye, or, for
    publishers, until room is needed and nothing of theirs is open. Then newcomers are refused.
    Leave ample room: publishers at the limit of two nodes can come to wait for each other."""
    lease_lost_ns: int = SECOND_NS
    """The lease of a publisher whose connection is lost, if that is shorter: it has so long to come back."""

    def __post_init__(self) -> None:
        if self.groups not in (1, 2):
            raise ConfigurationError(f"groups must be 1 or 2, not {self.groups}")
        if self.groups == 2 and self.fixed is None:
            raise ConfigurationError(
                "groups = 2 orders correctly only while subscriptions don't change: "
                "name them all in `fixed`, or use groups = 1"
            )
        if not self.reliable and self.leave_out:
            raise ConfigurationError(
                "leave_out needs a reliable ENS: an entry left out is known only from the topic's "
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
                raise ConfigurationError(f"{field} must be at least 1, not {getattr(self, field)}")
