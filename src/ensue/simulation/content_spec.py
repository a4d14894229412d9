"""Transactions in a scenario: brokers, clients, and their operations."""

import msgspec

from ensue.core.errors import ConfigurationError
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.topology import check_tree
from ensue.simulation.deployments.durable_readers import ReaderSpec
from ensue.simulation.deployments.transaction_clients import RegularSpec, TransactionSpec

__all__ = ["ContentRate", "ContentSpec"]


class ContentRate(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a client at random times, with attributes drawn evenly."""

    client: str
    attributes: tuple[dict[str, bool | int | float | str], ...]
    per_second: float
    from_ns: int = 0
    until_ns: int | None = None
    """None: until the end of the scenario's duration."""
    size: int = 0

    def __post_init__(self) -> None:
        if not self.attributes or self.per_second <= 0:
            raise ConfigurationError("a rate needs attributes, and per_second above 0")


class ContentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tree of brokers, their clients, and their operations.

    See `ensue.simulation.deployments.transactions`.
    """

    brokers: dict[str, tuple[str, ...]] = {}
    """By broker: its neighbors."""
    clients: dict[str, str] = {}
    """Each with its home."""
    config: ContentConfig = ContentConfig()
    transactions: tuple[TransactionSpec, ...] = ()
    regular: tuple[RegularSpec, ...] = ()
    """Operations outside of transactions."""
    rates: tuple[ContentRate, ...] = ()
    readers: tuple[ReaderSpec, ...] = ()
    """What readers of durable subscriptions do; those of one name have one home."""
    sites: dict[str, str] = {}
    """By broker or client: its site, if it has one."""
    crash_after_frames: tuple[tuple[str, int], ...] = ()
    """By node: the number of received frames after which it crashes and restarts."""
    silent_crashes: bool = False
    """Whether a crash may lose the frames and trace rows of batches that a broker has persisted."""

    def __post_init__(self) -> None:
        if not self.brokers:
            return
        check_tree(self.brokers)
        lost = [client for client, home in self.clients.items() if home not in self.brokers]
        if lost:
            raise ConfigurationError(f"clients without a broker: {', '.join(lost)}")
