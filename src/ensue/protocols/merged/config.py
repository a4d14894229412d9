"""The configuration that publishers, relays and subscribers of one merged system share.

Time is counted in ticks of each process's own clock. Clocks differ by at most `epsilon_ticks`; a
message arrives before its sender's clock has advanced by more than `delta_ticks`, or counts as
lost. Everything else follows: valid stamps, how long an event waits, and how large a modulus has
to be.

HAZARD: processes with different values accept, refuse and sort by different rules. A process with
a larger epsilon or delta only waits longer; one with a smaller value takes events for late that
others deliver. With other ticks, kinds of timestamps or moduli, all stamps of the others look
corrupt.
"""

import msgspec

from ensue.core.errors import ConfigurationError
from ensue.protocols.merged.terms import MergedTerms

__all__ = ["MergedConfig", "ticks_of"]

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000
TICKS_MAX = 1_000_000_000
"""Maximum of epsilon and delta."""


def ticks_of(period_ns: int, tick_ns: int) -> int:
    """Return a period in ticks, rounded up."""
    return -(-period_ns // tick_ns)


class MergedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds, limits and options; the same at all processes of one merged system."""

    epsilon_ticks: int
    """Maximum difference between two clocks."""
    delta_ticks: int
    """Maximum message delay, on its sender's clock."""
    tick_ns: int = MILLISECOND_NS
    array: bool = False
    """False: one counter per timestamp. True: one count per relevant tick, which is larger."""
    modulus: int | None = None
    """Send clock readings modulo this; None sends them in full."""
    lateness_ticks: int = 0
    """With a modulus: by how much the network may exceed delta. A later message looks new."""
    processes_max: int = 10_000
    events_per_tick_max: int = 10_000
    """Events that one process stamps per tick; more wait for the next tick."""
    deliver_late: bool = False
    """Deliver late and skewed events at once with their verdict, instead of dropping them."""
    held_max: int = 65_536
    """Events held at one subscriber; further ones are dropped as `overflow`."""
    outgoing_max: int = 65_536
    """Events of a publisher that may wait to be stamped."""
    remembered_max: int = 65_536
    """Delivered events that are remembered to detect duplicates."""
    peers_max: int = 10_000
    """Publishers whose clocks and delays are monitored."""
    warn_percent: int = 80
    """Share of its bound at which a clock or a delay causes a warning."""
    durable: bool = True
    """False: persist nothing, for a process whose name dies with it."""
    retry_ns: int = 500 * MILLISECOND_NS
    """Delay until an unanswered request for a topic is repeated."""
    retry_ns_min: int = 0
    """Where messages get lost: the shortest wait for the answer to an event, which then follows the
    measured round trips. 0: `poll_ns`, for connections, which lose messages only when they end."""
    poll_ns: int = 2 * SECOND_NS
    """Interval at which attached topics are requested again, in case the service forgot them."""
    listeners_max: int = 65_536
    """Listeners of one relay, over all topics; further ones are declined."""

    def __post_init__(self) -> None:
        for field in ("epsilon_ticks", "delta_ticks", "lateness_ticks"):
            if not 0 <= getattr(self, field) <= TICKS_MAX:
                raise ConfigurationError(
                    f"{field} must be between 0 and {TICKS_MAX:,}, got {getattr(self, field)}"
                )
        for field in (
            "tick_ns",
            "processes_max",
            "events_per_tick_max",
            "held_max",
            "outgoing_max",
            "remembered_max",
            "peers_max",
            "retry_ns",
            "poll_ns",
            "listeners_max",
        ):
            if getattr(self, field) < 1:
                raise ConfigurationError(f"{field} must be at least 1, got {getattr(self, field)}")
        if not 0 <= self.retry_ns_min <= self.poll_ns:
            raise ConfigurationError(
                f"retry_ns_min must be between 0 and poll_ns, got {self.retry_ns_min}"
            )
        if not 1 <= self.warn_percent <= 100:
            raise ConfigurationError(f"warn_percent must be 1 to 100, got {self.warn_percent}")
        if self.modulus is not None and self.modulus < self.modulus_min:
            raise ConfigurationError(
                f"modulus must be at least {self.modulus_min} (2 epsilon + delta + 1 + lateness), "
                f"got {self.modulus}: an old reading would look like a new one"
            )

    @property
    def terms(self) -> MergedTerms:
        """The values that all processes must share."""
        return MergedTerms(self.tick_ns, self.epsilon_ticks, self.delta_ticks)

    @property
    def modulus_min(self) -> int:
        """The smallest modulus that identifies a reading."""
        return 2 * self.epsilon_ticks + self.delta_ticks + 1 + self.lateness_ticks

    @property
    def wait_ticks(self) -> int:
        """An event is due once the clock is more than this beyond its r + c."""
        return self.delta_ticks + self.epsilon_ticks

    @property
    def span_ticks(self) -> int:
        """Maximum wait and recovery time: delta + 3 epsilon, to the end of the tick."""
        return self.delta_ticks + 3 * self.epsilon_ticks + 1

    @property
    def count_max(self) -> int:
        """Maximum number of events of all processes in one tick of their clocks."""
        return self.processes_max * self.events_per_tick_max

    def above(self, link_delta_ticks: int = 0) -> "MergedConfig":
        """Return the configuration of a level whose input is this level's output.

        For a listener of a relay, an event takes its delay to the relay, at most the span of this
        level, and up to `link_delta_ticks` from there. Stamps pass unchanged, so all levels use one
        modulus: it has to be large enough for the topmost.
        """
        delta_ticks = self.span_ticks + link_delta_ticks
        needed = self.modulus_min - self.delta_ticks + delta_ticks
        if self.modulus is not None and self.modulus < needed:
            raise ConfigurationError(
                f"a level above this one needs a modulus of at least {needed}, got {self.modulus}: "
                f"give modulus={needed} on all levels, or None"
            )
        return msgspec.structs.replace(self, delta_ticks=delta_ticks)

    def tick(self, now_ns: int) -> int:
        """Return the tick of a clock reading."""
        return now_ns // self.tick_ns
