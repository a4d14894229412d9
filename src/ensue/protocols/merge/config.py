"""What publishers, mergers and subscribers of one merged system agree on beforehand.

Time is counted in ticks of everybody's own clock. Clocks of any two processes differ by at most `epsilon_ticks`; a message
arrives before its sender's clock has moved on by more than `delta_ticks`, or counts as lost. Everything else follows:
what a stamp may look like, how long an event waits, and how large a bounded clock has to be.

HAZARD: processes with different values accept, refuse and sort by different rules. Whoever has a larger epsilon or delta
than the others only waits longer; whoever has a smaller one calls events late that the others deliver. Different ticks,
kinds of timestamps or moduli make everything that comes from the others look corrupt.
"""

import msgspec

from ensue.errors import ConfigurationError
from ensue.protocols.merge.terms import MergeTerms

__all__ = ["MergeConfig", "ticks_of"]

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000
TICKS_MAX = 1_000_000_000
"""Of epsilon and delta: more ticks than that are no bound that anybody could wait for."""


def ticks_of(period_ns: int, tick_ns: int) -> int:
    """Return by how many ticks two readings can differ that are no more than a period apart."""
    return -(-period_ns // tick_ns)


class MergeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Named bounds, limits and choices. Everybody in one merged system must be given the same values."""

    epsilon_ticks: int
    """By how much two clocks may differ."""
    delta_ticks: int
    """How long a message may take, on its sender's clock."""
    tick_ns: int = MILLISECOND_NS
    array: bool = False
    """Timestamps of one counter, or the larger ones of one count for each tick that may matter."""
    modulus: int | None = None
    """Send clock readings modulo this; None sends them whole."""
    lateness_ticks: int = 0
    """By how much the network may exceed delta, for a modulus: a message later than that looks fresh."""
    processes_max: int = 10_000
    events_per_tick_max: int = 10_000
    """Events that one process stamps in one tick; more wait for the next one."""
    deliver_late: bool = False
    """What came too late, or from a clock too far ahead, is delivered at once with its verdict, and not dropped."""
    held_max: int = 65_536
    """Events that wait for their turn at one subscriber; further ones are dropped as `overflow`."""
    outgoing_max: int = 65_536
    """Events of a publisher that wait until they may be stamped."""
    remembered_max: int = 65_536
    """Events handed out that are remembered, so that none is handed out of turn twice."""
    peers_max: int = 10_000
    """Publishers whose clocks and delays are watched."""
    warn_percent: int = 80
    """Warn when a clock or a delay has used up so much of its bound."""
    durable: bool = True
    """False: nothing is persisted, for a process whose name dies with it."""
    retry_ns: int = 500 * MILLISECOND_NS
    """A topic that was asked for in vain is asked for again after so long …"""
    poll_ns: int = 2 * SECOND_NS
    """… and one that was not after so long, in case that whoever carries it has forgotten."""
    listeners_max: int = 65_536
    """Who listens to one relay, for all topics together; further ones are declined."""

    def __post_init__(self) -> None:
        for field in ("epsilon_ticks", "delta_ticks", "lateness_ticks"):
            if not 0 <= getattr(self, field) <= TICKS_MAX:
                raise ConfigurationError(
                    f"{field} must be between 0 and {TICKS_MAX:,}, not {getattr(self, field)}"
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
                raise ConfigurationError(f"{field} must be at least 1, not {getattr(self, field)}")
        if not 1 <= self.warn_percent <= 100:
            raise ConfigurationError(f"warn_percent must be 1 to 100, not {self.warn_percent}")
        if self.modulus is not None and self.modulus < self.modulus_min:
            raise ConfigurationError(
                f"modulus must be at least {self.modulus_min} (2 epsilon + delta + 1 + lateness), "
                f"not {self.modulus}: an old reading would look like a new one"
            )

    @property
    def terms(self) -> MergeTerms:
        """What all processes must have alike."""
        return MergeTerms(self.tick_ns, self.epsilon_ticks, self.delta_ticks)

    @property
    def modulus_min(self) -> int:
        """The smallest modulus with which a reading is never taken for another."""
        return 2 * self.epsilon_ticks + self.delta_ticks + 1 + self.lateness_ticks

    @property
    def wait_ticks(self) -> int:
        """An event is due once the clock has passed its r + c by more than this."""
        return self.delta_ticks + self.epsilon_ticks

    @property
    def span_ticks(self) -> int:
        """No event waits longer, and no fault is felt longer: delta + 3 epsilon, to the end of the tick."""
        return self.delta_ticks + 3 * self.epsilon_ticks + 1

    @property
    def count_max(self) -> int:
        """How many events within one tick of their clocks all processes can have: no count is larger."""
        return self.processes_max * self.events_per_tick_max

    def above(self, link_delta_ticks: int = 0) -> "MergeConfig":
        """Return the configuration of a level whose input is this level's output.

        To whoever listens to a merger, an event takes what it took to the merger, at most the span of this level, and up to
        `link_delta_ticks` from there. Stamps pass unchanged, so readings are reduced by one modulus on all levels: it has to be
        large enough for the uppermost.
        """
        delta_ticks = self.span_ticks + link_delta_ticks
        needed = self.modulus_min - self.delta_ticks + delta_ticks
        if self.modulus is not None and self.modulus < needed:
            raise ConfigurationError(
                f"a level above this one needs a modulus of at least {needed}, not {self.modulus}: "
                f"give modulus={needed} on all levels, or None"
            )
        return msgspec.structs.replace(self, delta_ticks=delta_ticks)

    def tick(self, now_ns: int) -> int:
        """Return which tick a clock shows."""
        return now_ns // self.tick_ns
