"""The configuration that brokers and clients of one overlay share."""

import msgspec

from ensue.errors import ConfigurationError

__all__ = ["OverlayConfig"]

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000


class OverlayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Named limits and waits."""

    durable: bool = True
    """False: nothing is persisted, for an overlay that lives and dies with one process."""
    lease_ns: int = 10 * SECOND_NS
    """A client that was not heard for so long is gone."""
    grace_ns: int = SECOND_NS
    """A client whose connection was lost for so long is disconnected: transactions wait for it no longer."""
    away_ns: int = 2 * SECOND_NS
    """A neighbour that has acknowledged nothing for so long is away: clients do not wait for it."""
    beat_ns: int = 2 * SECOND_NS
    """How often a client says that it is there."""
    hello_ns: int = 200 * MILLISECOND_NS
    """How often a client that was not answered says that it has come."""
    retry_ns: int = 20 * MILLISECOND_NS
    """A transaction that could not begin is begun again after so long, then after twice as long, …"""
    retry_ns_max: int = SECOND_NS
    """… but never waits longer than this."""
    timeout_ns_max: int = 600 * SECOND_NS
    """The longest time that a transaction may ask for."""
    subscriptions_max: int = 1_000_000
    """Subscriptions that a broker keeps; more are refused."""
    advertisements_max: int = 100_000
    """Advertisements that a broker keeps, which are those of all clients; more are refused."""
    requests_max: int = 10_000
    """Requests of a client that are not answered yet; more are refused at the client."""
    transactions_max: int = 1_000
    """Transactions that one client coordinates at once; more are refused."""
    operations_max: int = 1_000
    """Operations of a plan; of any other transaction, those of the clients of one broker."""
    journal_bytes_min: int = 64 * 1024
    """A node's journal is replaced by its state when it is longer than this and than the state."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            if field != "durable" and getattr(self, field) < 1:
                raise ConfigurationError(f"OverlayConfig.{field} must be at least 1")
        if self.beat_ns >= self.lease_ns:
            raise ConfigurationError("OverlayConfig.beat_ns must be below lease_ns")
