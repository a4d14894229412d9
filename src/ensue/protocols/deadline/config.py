"""The configuration that the brokers and subscribers of one system share.

*Brokers* send each other messages with a deadline, judged by their own clocks. *Subscribers* get
messages by gossip in rounds of `period_ns`, and all messages live equally long: `lifetime_rounds`,
which is ⌈log₂ N⌉ + alpha for N subscribers. Clocks of two processes differ by at most `skew_ns`.

HAZARD: processes with different values apply different rules: period, alpha, N and colors must be
the same everywhere.
"""

import msgspec

from ensue.core.errors import ConfigurationError

__all__ = ["DeadlineConfig"]

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000
_BOUNDS: dict[str, tuple[int, int]] = {
    "subscribers_max": (1, 1_000_000),
    "alpha": (0, 64),
    "period_ns": (1_000, 3_600 * SECOND_NS),
    "fan_out": (1, 1_000),
    "near_percent": (0, 100),
    "view_max": (1, 100_000),
    "push_rounds": (1, 64),
    "skew_ns": (0, 3_600 * SECOND_NS),
    "lifetime_ns": (1, 86_400 * SECOND_NS),
    "lifetime_ns_max": (1, 86_400 * SECOND_NS),
    "slack_ns": (1, 3_600 * SECOND_NS),
    "held_max": (1, 1 << 30),
    "retained_max": (1, 1 << 30),
    "matrices_bytes_max": (1, 1 << 40),
    "outgoing_max": (1, 1 << 30),
    "remembered_max": (1, 1 << 30),
    "rounds_ahead_max": (1, 1 << 20),
    "batch_max": (1, 65_536),
    "announce_rounds": (1, 1 << 20),
    "expire_rounds": (1, 1 << 24),
    "retry_ns": (1, 3_600 * SECOND_NS),
    "join_ns": (1, 3_600 * SECOND_NS),
}
"""Allowed range of each number."""


class DeadlineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits, timeouts and options."""

    # -- From brokers to subscribers
    subscribers_max: int = 64
    """N: number of subscribers that a message has to reach."""
    alpha: int = 1
    """Rounds that a message lives beyond ⌈log₂ N⌉."""
    period_ns: int = 20 * MILLISECOND_NS
    """Length of a round."""
    fan_out: int = 3
    """Peers that a process gossips to in each round."""
    near_percent: int = 75
    """Share of those, and of known peers, that are of the same site, if there are any."""
    view_max: int = 32
    """Maximum size of the partial view of a topic."""
    push_rounds: int = 2
    """Rounds in which a message is pushed; then only its id is, and peers request it."""
    colors: int | None = None
    """Send rounds modulo this; None sends their numbers."""
    copy_age_rounds: int | None = None
    """With colors: maximum age of a copy on arrival."""
    rounds_ahead_max: int = 64
    """Messages of a broker that may wait for their rounds, one round each."""
    announce_rounds: int = 16
    """Interval at which an idle subscriber announces itself."""
    expire_rounds: int = 256
    """A peer that was silent this long is forgotten."""
    # -- From brokers to brokers
    lifetime_ns: int = 200 * MILLISECOND_NS
    """Default lifetime of a message, from publishing to its deadline."""
    lifetime_ns_max: int = 10 * SECOND_NS
    """Maximum lifetime of a message."""
    slack_ns: int = MILLISECOND_NS
    """A message is in time if it arrives this long before its deadline. It is delivered then, even
    if predecessors are missing: a margin for late timers and for the disk."""
    join_ns: int = SECOND_NS
    """How long a broker that joins a group waits for the others to note it."""
    # -- Both
    skew_ns: int = 0
    """Maximum difference between two clocks."""
    deliver_late: bool = False
    """Deliver events that are late or out of order at once with their verdict, not drop them."""
    spreads: bool = True
    """False: there are only brokers, and no rounds."""
    durable: bool = True
    """False: persist nothing, for processes whose names die with them."""
    held_max: int = 65_536
    """Messages held back; further ones are dropped as `overflow`."""
    retained_max: int = 65_536
    """Messages cached for peers, at most until their deadline."""
    matrices_bytes_max: int = 64 * 1024 * 1024
    """Approximate memory for base matrices, beside the latest of each broker."""
    outgoing_max: int = 65_536
    """Events that may wait to be sent, after a restart."""
    remembered_max: int = 65_536
    """Delivered events that are remembered to detect duplicates."""
    batch_max: int = 256
    """Events in one message of a round; messages or ids in one frame."""
    retry_ns: int = 200 * MILLISECOND_NS
    """Delay until an unanswered request is repeated."""

    def __post_init__(self) -> None:
        for field, (least, most) in _BOUNDS.items():
            value = getattr(self, field)
            if not least <= value <= most:
                raise ConfigurationError(
                    f"DeadlineConfig.{field} must be from {least} to {most}, got {value}"
                )
        if self.lifetime_ns > self.lifetime_ns_max:
            raise ConfigurationError("DeadlineConfig.lifetime_ns must not exceed lifetime_ns_max")
        if self.slack_ns >= self.lifetime_ns:
            raise ConfigurationError(
                f"DeadlineConfig.slack_ns must be below lifetime_ns ({self.lifetime_ns}), got "
                f"{self.slack_ns}: no message would be in time"
            )
        if self.colors is None:
            return
        if self.copy_age_rounds is None or self.copy_age_rounds < 0:
            raise ConfigurationError(
                "DeadlineConfig.colors need copy_age_rounds, or an old round looks like a new one: "
                "leave colors out to send numbers"
            )
        if self.colors < self.colors_min:
            raise ConfigurationError(
                f"DeadlineConfig.colors must be at least {self.colors_min}, got {self.colors}: "
                "an old round would look like a new one"
            )

    @property
    def lifetime_rounds(self) -> int:
        """Lifetime of a message in rounds: C."""
        return max(1, (self.subscribers_max - 1).bit_length() + self.alpha)

    @property
    def skew_rounds(self) -> int:
        """Maximum difference between two clocks in rounds: A."""
        return -(-self.skew_ns // self.period_ns)

    @property
    def colors_min(self) -> int:
        """Minimum number of colors that identifies a round."""
        age = self.copy_age_rounds or 0
        live = 2 * self.lifetime_rounds - 1 + self.skew_rounds
        return max(live, age + 1) + self.skew_rounds

    @property
    def horizon_ns(self) -> int:
        """Age beyond which no process can deliver a message."""
        return self.lifetime_ns_max + 2 * self.skew_ns

    @property
    def silence_ns_max(self) -> int:
        """Maximum time without publishing after a restart, unless the clock went back."""
        rounds = self.lifetime_rounds + 2 * self.skew_rounds + self.rounds_ahead_max + 2
        return max(self.horizon_ns + 1, rounds * self.period_ns if self.spreads else 0)

    def round_of(self, now_ns: int) -> int:
        """Return the round of a clock reading."""
        return now_ns // self.period_ns

    def to_wire(self, number: int) -> int:
        """Return a round as it is sent: its number, or its color."""
        return number if self.colors is None else number % self.colors

    def from_wire(self, sent: int, now_round: int) -> int | None:
        """Return the number of a received round, seen from another; None if it is invalid."""
        if self.colors is None:
            return sent
        if sent >= self.colors:
            return None
        newest = now_round + self.skew_rounds
        return newest - (newest - sent) % self.colors
