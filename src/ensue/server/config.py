"""What a server is told: where to listen, where its data is, who else is in its chain."""

import msgspec

from ensue.errors import ConfigurationError
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.transports.tcp_messages import Member
from ensue.transports.tcp_options import DEFAULT_PORT, parse_address

__all__ = ["Limits", "Retention", "ServerConfig"]

MIB = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients may ask of a server at the most."""

    connections: int = 1_000
    names_per_connection: int = 1_000
    """Publishers and subscriptions of one connection."""
    topics_per_subscription: int = 10_000
    message_bytes: int = 32 * MIB
    """Of one message on a connection."""
    pending_bytes: int = 8 * MIB
    """Waiting for one connection; what comes on top is dropped, and the client asks for it again."""
    unauthenticated_s: float = 5.0
    """How long somebody may be connected without having said hello."""
    silence_s: float = 60.0
    """A connection that says nothing for so long is closed."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"limits.{name} must be above 0")


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long events are kept. The log is dropped in pieces of `segment_bytes`, the oldest first."""

    bytes: int | None = None
    """The whole log, of all topics; None: without limit."""
    age_s: float | None = None
    segment_bytes: int = 64 * MIB

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigurationError(f"retention.{name} must be above 0")


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One server."""

    data: str
    """The directory of its journal."""
    listen: str = f"127.0.0.1:{DEFAULT_PORT}"
    name: str = "node-1"
    """Its name in the chain."""
    chain: tuple[Member, ...] = ()
    """All stations, this one included, in rank order; empty: it is alone."""
    closed: bool = False
    """Whether there are no topics but those that the chain places by name."""
    sync_s: float = 0.0
    """0: what clients are told is on the disk; else it is synced so often."""
    retention: Retention = Retention()
    limits: Limits = Limits()
    sequencer: SequencerConfig = SequencerConfig(carries=True)
    expire_s: float = 60.0
    """How long a subscription that nobody named may be without its client."""
    trace: str = ""
    """A directory to write the station's trace to."""

    def __post_init__(self) -> None:
        parse_address(self.listen, what="the address to listen on")
        names = [member.name for member in self.chain]
        if self.chain and self.name not in names:
            raise ConfigurationError(
                f"this server is {self.name!r}, and the chain has only {', '.join(names)}"
            )
        if len(set(names)) != len(names):
            raise ConfigurationError(f"the chain names a server twice: {', '.join(names)}")
        for member in self.chain:
            parse_address(member.address, what=f"the address of {member.name!r}")
        if not self.sequencer.carries or not self.sequencer.durable:
            raise ConfigurationError("a server keeps the log of its topics, and is durable")
        if self.sync_s < 0 or self.expire_s <= 0:
            raise ConfigurationError("sync_s must be at least 0, and expire_s above 0")

    @property
    def members(self) -> tuple[Member, ...]:
        """The chain, this server alone if there is none."""
        return self.chain or (Member(self.name, ""),)
