"""Round trips: how long to wait for an answer before a request is sent again.

A fixed time-out is too long on a fast network, where one lost frame delays all events behind it,
and too short on a slow one, which then carries everything twice. So the time-out follows the
measured round trips, as in TCP (RFC 6298) and QUIC (RFC 9002): the smoothed round-trip time plus
four times its mean deviation. It doubles with each repetition, and stays doubled for all requests
until there is a new sample.

Rules
- Only an answer to a request that was sent once is a sample (Karn's rule): the answer to a repeated
  one may belong to either. The owner of the requests keeps to this.
- The time-out is never below `least_ns`, which covers timers and scheduling, nor above `most_ns`.
  Without a sample it is `FIRST_GUESS` times `least_ns`, or `initial_ns` if that is less. If that is
  too short, the first few requests to a peer are repeated in vain, and no others.
- With `least_ns` of 0 the time-out stays at `initial_ns`: over a connection that loses nothing
  before it ends, a repetition only burdens a peer that is busy.

HAZARD: if answers suddenly take longer than the time-out, the requests under way are repeated in
vain. Receivers discard the copies.
"""

__all__ = ["GRANULARITY_NS", "REORDERED_MAX", "RETRY_NS_MIN", "RoundTrips"]

GRANULARITY_NS = 1_000_000
"""The least that a time-out allows for variation: the granularity of timers (RFC 9002, 6.1.2)."""
RETRY_NS_MIN = 10_000_000
"""The least time-out where messages get lost, unless a configuration says otherwise."""
FIRST_GUESS = 5
"""The time-out before the first sample, in times the shortest one."""
REORDERED_MAX = 3
"""A frame that so many later ones overtook is taken for lost (RFC 9002, 6.1.1), unless frames
overtake each other there (RFC 8985, 6.2)."""


class RoundTrips:
    """The round-trip time to one peer, and the time-outs that follow from it."""

    __slots__ = (
        "_backoff_ns",
        "_initial_ns",
        "_latest_ns",
        "_least_ns",
        "_most_ns",
        "_smoothed_ns",
        "_variation_ns",
    )

    def __init__(self, *, initial_ns: int, least_ns: int, most_ns: int) -> None:
        self._initial_ns = min(initial_ns, FIRST_GUESS * least_ns) if least_ns else initial_ns
        """The time-out while there is no sample."""
        self._backoff_ns = 0
        """The time-out after the last repetition, until there is a sample."""
        self._least_ns = least_ns
        self._most_ns = max(most_ns, initial_ns)
        self._smoothed_ns = 0
        self._variation_ns = 0
        self._latest_ns = 0

    @property
    def adapts(self) -> bool:
        """Whether time-outs follow the samples."""
        return self._least_ns > 0

    def sample(self, round_trip_ns: int) -> None:
        """Take in a round-trip time: from a request that was sent once to its answer."""
        if not self.adapts or round_trip_ns < 0:
            return  # A clock that was set back measures nothing.
        self._latest_ns, self._backoff_ns = round_trip_ns, 0
        if not self._smoothed_ns:
            self._smoothed_ns = max(1, round_trip_ns)
            self._variation_ns = round_trip_ns // 2
            return
        deviation_ns = abs(self._smoothed_ns - round_trip_ns)
        self._variation_ns = (3 * self._variation_ns + deviation_ns) // 4
        self._smoothed_ns = max(1, (7 * self._smoothed_ns + round_trip_ns) // 8)

    @property
    def timeout_ns(self) -> int:
        """How long to wait for the first answer."""
        timeout_ns = self._initial_ns
        if self._smoothed_ns:
            timeout_ns = self._smoothed_ns + max(4 * self._variation_ns, GRANULARITY_NS)
        return min(max(timeout_ns, self._least_ns, self._backoff_ns), self._most_ns)

    @property
    def overtaken_ns(self) -> int:
        """How long a frame may take when one that was sent later has arrived."""
        if not self._smoothed_ns:
            return self._initial_ns
        longest_ns = self._smoothed_ns + 4 * self._variation_ns
        return max(max(self._smoothed_ns, self._latest_ns) * 9 // 8, longest_ns, GRANULARITY_NS)

    def after(self, wait_ns: int) -> int:
        """Return how long to wait after a wait without an answer."""
        wait_ns = min(2 * wait_ns, self._most_ns)
        if self.adapts:
            self._backoff_ns = max(wait_ns, self._backoff_ns)
        return wait_ns

    def reset(self) -> None:
        """Forget repetitions: the connection is new."""
        self._backoff_ns = 0
