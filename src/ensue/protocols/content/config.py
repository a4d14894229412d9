"""The configuration that brokers and clients of one tree share."""

import msgspec

from ensue.core.errors import ConfigurationError

__all__ = ["ContentConfig"]

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000


class ContentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and times of content brokers and their clients."""

    durable: bool = True
    """False: persist nothing, for brokers in one process."""
    lease_ns: int = 10 * SECOND_NS
    """Silence after which the session of a client ends."""
    grace_ns: int = SECOND_NS
    """Time without a connection after which transactions do not wait for a client."""
    away_ns: int = 2 * SECOND_NS
    """Time without acknowledgement after which clients do not wait for a neighbor."""
    beat_ns: int = 2 * SECOND_NS
    """Interval at which a client renews its lease."""
    hello_ns: int = 200 * MILLISECOND_NS
    """Interval at which an unanswered `Hello` is repeated."""
    retry_ns: int = 20 * MILLISECOND_NS
    """The pause of a transaction that gives way to another; it doubles each time."""
    retry_ns_max: int = SECOND_NS
    """The longest such pause."""
    timeout_ns_max: int = 600 * SECOND_NS
    """The longest timeout of a transaction."""
    subscriptions_max: int = 1_000_000
    """Subscriptions at a broker; more are refused."""
    advertisements_max: int = 100_000
    """Advertisements at a broker, which has those of all clients; more are refused."""
    requests_max: int = 10_000
    """Requests of a client without an answer; more are refused at the client."""
    transactions_max: int = 1_000
    """Transactions that one client coordinates at once; more are refused."""
    operations_max: int = 1_000
    """Operations of a plan; in other transactions, those of one broker's clients."""
    window: int = 1_000
    """Events of a durable subscription that its reader has not acknowledged; others wait."""
    mailboxes_max: int = 10_000
    """Durable subscriptions at a broker; more are refused."""
    mailbox_expire_ns: int = 0
    """Time without a reader after which a durable subscription ends; 0: it never does."""
    kept_max: int = 100_000
    """Events that a broker keeps for a durable subscription; it loses those beyond."""
    kept_bytes_max: int = 128 * 1024 * 1024
    """Bytes of events that a broker keeps for all durable subscriptions; further ones are lost."""
    journal_bytes_min: int = 64 * 1024
    """A snapshot replaces the input log when it is longer than this and the state."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            least = 0 if field in ("durable", "mailbox_expire_ns") else 1
            if getattr(self, field) < least:
                raise ConfigurationError(f"ContentConfig.{field} must be at least {least}")
        if self.beat_ns >= self.lease_ns:
            raise ConfigurationError("ContentConfig.beat_ns must be below lease_ns")
