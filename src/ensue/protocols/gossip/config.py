"""What brokers and subscribers of one system agree on beforehand.

Two levels. *Brokers* send each other messages that have a deadline each, on their clocks. *Subscribers* get theirs by gossip,
in rounds of `period_ns` of everybody's own clock, and all messages live equally long: `lifetime_rounds`, which is
⌈log₂ N⌉ + alpha for N subscribers. Clocks of any two processes differ by at most `skew_ns`.

HAZARD: processes with different values judge by different rules: periods, alpha, N and colours must be the same everywhere.

HAZARD: a clock further off than `skew_ns` makes punctual messages late at its process, and may have a broker forget a cause that
somebody else can still deliver: then an effect comes before its cause.
"""

import msgspec

from ensue.errors import ConfigurationError

__all__ = ["GossipConfig"]

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
"""Each number and what it may be."""


class GossipConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Named limits, waits and choices."""

    # -- From brokers to subscribers
    subscribers_max: int = 64
    """N: how many subscribers a message has to reach."""
    alpha: int = 1
    """Rounds that a message lives beyond ⌈log₂ N⌉."""
    period_ns: int = 20 * MILLISECOND_NS
    """How long a round is."""
    fan_out: int = 3
    """To how many peers each of them passes on what it has, in each round."""
    near_percent: int = 75
    """How many of those, and of the peers that are known, are of the same site, where there are any."""
    view_max: int = 32
    """Peers of one topic that are known: nobody knows them all."""
    push_rounds: int = 2
    """For so many rounds a message is passed on; then only its name is, and whoever lacks it asks."""
    colours: int | None = None
    """Send rounds modulo this; None sends their numbers."""
    copy_age_rounds: int | None = None
    """With colours: no copy arrives when it is older than this."""
    rounds_ahead_max: int = 64
    """A broker has one round for each of its messages: so many may wait for theirs."""
    announce_rounds: int = 16
    """How often a subscriber says that it is there, beside what it says while it passes messages on."""
    expire_rounds: int = 256
    """Who was not heard of for so long is forgotten."""
    # -- From brokers to brokers
    lifetime_ns: int = 200 * MILLISECOND_NS
    """The deadline of a message, unless it has one of its own: so long after it was published."""
    lifetime_ns_max: int = 10 * SECOND_NS
    """No deadline is further away."""
    slack_ns: int = MILLISECOND_NS
    """A message is in time if it arrives so long before its deadline, and is handed over then even if others are missing: time for
    timers that fire late, and for the disk."""
    join_ns: int = SECOND_NS
    """A broker that joins a group waits so long for the others to take note."""
    # -- Both
    skew_ns: int = 0
    """By how much two clocks may differ."""
    deliver_late: bool = False
    """What comes too late, or would break the order, is delivered at once with its verdict, and not dropped."""
    spreads: bool = True
    """False: there are brokers alone, and no rounds."""
    durable: bool = True
    """False: nothing is persisted, for processes whose names die with them."""
    held_max: int = 65_536
    """Messages that wait for others; further ones are dropped as `overflow`."""
    retained_max: int = 65_536
    """Messages that are kept for whoever lacks them, at the most until their deadline."""
    matrices_bytes_max: int = 64 * 1024 * 1024
    """Bytes of matrices, about, that differences are read from and written to, beside the latest of each broker."""
    outgoing_max: int = 65_536
    """Events that wait until they may be sent, after a restart."""
    remembered_max: int = 65_536
    """Events handed out that are remembered, so that none is handed out of turn twice."""
    batch_max: int = 256
    """Events in one message of a round; messages named or passed on in one frame."""
    retry_ns: int = 200 * MILLISECOND_NS
    """What was asked for in vain is asked for again after so long."""

    def __post_init__(self) -> None:
        for field, (least, most) in _BOUNDS.items():
            value = getattr(self, field)
            if not least <= value <= most:
                raise ConfigurationError(
                    f"GossipConfig.{field} must be from {least} to {most}, not {value}"
                )
        if self.lifetime_ns > self.lifetime_ns_max:
            raise ConfigurationError("GossipConfig.lifetime_ns must not exceed lifetime_ns_max")
        if self.slack_ns >= self.lifetime_ns:
            raise ConfigurationError(
                f"GossipConfig.slack_ns must be below lifetime_ns ({self.lifetime_ns}), not "
                f"{self.slack_ns}: nothing would be in time"
            )
        if self.colours is None:
            return
        if self.copy_age_rounds is None or self.copy_age_rounds < 0:
            raise ConfigurationError(
                "GossipConfig.colours need copy_age_rounds: without a bound on the age of copies an old "
                "round looks like a new one; leave colours out to send numbers"
            )
        if self.colours < self.colours_min:
            raise ConfigurationError(
                f"GossipConfig.colours must be at least {self.colours_min}, not {self.colours}: "
                "an old round would look like a new one"
            )

    @property
    def lifetime_rounds(self) -> int:
        """For how many rounds a message lives: C."""
        return max(1, (self.subscribers_max - 1).bit_length() + self.alpha)

    @property
    def skew_rounds(self) -> int:
        """By how many rounds two clocks may differ: A."""
        return -(-self.skew_ns // self.period_ns)

    @property
    def colours_min(self) -> int:
        """With fewer colours a round is taken for another."""
        age = self.copy_age_rounds or 0
        live = 2 * self.lifetime_rounds - 1 + self.skew_rounds
        return max(live, age + 1) + self.skew_rounds

    @property
    def horizon_ns(self) -> int:
        """A message that was stamped longer ago can't be delivered by anybody any more."""
        return self.lifetime_ns_max + 2 * self.skew_ns

    @property
    def silence_ns_max(self) -> int:
        """For so long a restarted broker may publish nothing, at the most; unless its clock went back."""
        rounds = self.lifetime_rounds + 2 * self.skew_rounds + self.rounds_ahead_max + 2
        return max(self.horizon_ns + 1, rounds * self.period_ns if self.spreads else 0)

    def round_of(self, now_ns: int) -> int:
        """Return which round a clock shows."""
        return now_ns // self.period_ns

    def to_wire(self, number: int) -> int:
        """Return the number of a round as it is sent: itself, or its colour."""
        return number if self.colours is None else number % self.colours

    def from_wire(self, sent: int, now_round: int) -> int | None:
        """Return the number of a round that was sent, as seen from another; None if nobody can have sent it."""
        if self.colours is None:
            return sent
        if sent >= self.colours:
            return None
        newest = now_round + self.skew_rounds
        return newest - (newest - sent) % self.colours
