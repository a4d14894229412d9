"""An optional load model: nodes and network cards that take time per frame.

A node serves one frame at a time, in the order of arrival. Serving takes a time by the frame's
type, plus a time per byte, plus the result of `service_of` (per stamp entry, say); the node's
`receive` runs when the service ends. A card sends one frame at a time too, at a bandwidth; the
network's delay starts when the frame has left. Timers and commands do not queue.

Each queue is FIFO with one server, so theory predicts it: the mean wait of M/D/1 is
rho * S / (2 (1 - rho)). `length` counts the waiting frames and the one in service.

Limits: `frames_max` frames waiting at a node, `sends_max` at a card; one more is dropped and
counted.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ensue.protocols.interface import Frame
from ensue.simulation.world.delays import DELAY_NS_MAX, require_between

__all__ = ["Card", "QueueConfig", "QueueStatistics", "Server"]

_SECOND_NS = 1_000_000_000


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of handling and sending frames."""

    service_ns: int = 0
    """Time to handle a frame whose type is not in `service_ns_by_frame`."""
    service_ns_by_frame: Mapping[str, int] = {}
    """Time to handle a frame by the name of its class."""
    service_ns_per_byte: float = 0.0
    service_of: Callable[[str, Frame], int] | None = None
    """Returns further time for a node to handle a frame."""
    bandwidth_bytes_per_s: int | None = None
    """Bandwidth of each node's network card; None: sending takes no time."""
    size_of: Callable[[Frame], int] | None = None
    """The size of a frame where the world has no codec; without either it is 0."""
    frames_max: int = 1_000_000
    sends_max: int = 1_000_000

    def __post_init__(self) -> None:
        require_between("QueueConfig.service_ns", self.service_ns, 0, DELAY_NS_MAX)
        for name, service_ns in self.service_ns_by_frame.items():
            require_between(f"QueueConfig.service_ns_by_frame[{name}]", service_ns, 0, DELAY_NS_MAX)
        require_between(
            "QueueConfig.service_ns_per_byte", self.service_ns_per_byte, 0, DELAY_NS_MAX
        )
        if self.bandwidth_bytes_per_s is not None:
            require_between(
                "QueueConfig.bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, 1, 10**15
            )
        for field in ("frames_max", "sends_max"):
            require_between(f"QueueConfig.{field}", getattr(self, field), 1, 10**9)

    def cost_ns(self, node: str, frame: Frame, size: int) -> int:
        """Return how long handling a frame takes a node."""
        cost_ns = self.service_ns_by_frame.get(type(frame).__name__, self.service_ns)
        if self.service_ns_per_byte:
            cost_ns += round(self.service_ns_per_byte * size)
        if self.service_of is not None:
            cost_ns += self.service_of(node, frame)
        assert cost_ns >= 0
        return cost_ns


class QueueStatistics:
    """Statistics of a queue since the world began; a crash does not reset them."""

    __slots__ = ("_changed_ns", "_length", "_length_ns", "busy_ns", "departures_ns", "dropped",
                 "length_max", "served", "waited_ns")  # fmt: skip

    def __init__(self) -> None:
        self.served = 0
        self.dropped = 0
        self.busy_ns = 0
        """Service time of all frames that were served; on a card also of those yet to leave."""
        self.waited_ns = 0
        """Time that served frames spent before their service, all together."""
        self.length_max = 0
        self.departures_ns: deque[int] = deque()
        """When frames leave that are still counted in the length: known ahead on a card only."""
        self._length = 0
        self._length_ns = 0
        self._changed_ns = 0

    def change(self, now_ns: int, by: int) -> None:
        """Note that the queue grew or shrank."""
        self._length_ns += self._length * (now_ns - self._changed_ns)
        self._changed_ns = now_ns
        self._length += by
        assert self._length >= 0
        self.length_max = max(self.length_max, self._length)

    def depart(self, now_ns: int) -> None:
        """Note the departures that are due."""
        while self.departures_ns and self.departures_ns[0] <= now_ns:
            self.change(self.departures_ns.popleft(), -1)

    def utilisation(self, elapsed_ns: int, *, now_ns: int | None = None) -> float:
        """Return the share of `elapsed_ns`, up to `now_ns`, that the server was busy.

        Without `now_ns` the time began at 0.
        """
        now_ns = self._now_ns(elapsed_ns, now_ns)
        return self.busy_until(now_ns) / elapsed_ns if elapsed_ns else 0.0

    def busy_until(self, now_ns: int) -> int:
        """Return the time spent serving up to `now_ns`."""
        # A card serves without a break until the last of its frames has left.
        ahead_ns = max(0, self.departures_ns[-1] - now_ns) if self.departures_ns else 0
        return self.busy_ns - ahead_ns

    def length_mean(self, elapsed_ns: int, *, now_ns: int | None = None) -> float:
        """Return the mean number in the queue over `elapsed_ns`, which ends at `now_ns`.

        Without `now_ns` the time began at 0. Frames that came before it count in full.
        """
        now_ns = self._now_ns(elapsed_ns, now_ns)
        length_ns = self._length_ns + self._length * (now_ns - self._changed_ns)
        length_ns -= sum(now_ns - left_ns for left_ns in self.departures_ns if left_ns < now_ns)
        return length_ns / elapsed_ns if elapsed_ns else 0.0

    def _now_ns(self, elapsed_ns: int, now_ns: int | None) -> int:
        now_ns = elapsed_ns if now_ns is None else now_ns
        if now_ns < self._changed_ns:
            raise ValueError(f"now_ns must be at least {self._changed_ns}, got {now_ns}")
        return now_ns

    def wait_mean_ns(self) -> float:
        """Return the mean time before service."""
        return self.waited_ns / self.served if self.served else 0.0


class Server:
    """The queue of frames in front of one node."""

    __slots__ = ("_config", "_service_ns", "_started_ns", "_waiting", "serving", "statistics")

    def __init__(self, config: QueueConfig) -> None:
        self.statistics = QueueStatistics()
        self.serving: tuple[Any, ...] | None = None
        """The arguments of the frame in service."""
        self._config = config
        self._waiting: deque[tuple[int, int, tuple[Any, ...]]] = deque()
        self._service_ns = 0
        self._started_ns = 0

    def add(self, now_ns: int, cost_ns: int, arguments: tuple[Any, ...]) -> bool:
        """Queue a frame; return False if it was dropped because the queue is full."""
        if len(self._waiting) >= self._config.frames_max:
            self.statistics.dropped += 1
            return False
        self._waiting.append((now_ns, cost_ns, arguments))
        self.statistics.change(now_ns, 1)
        return True

    def start(self, now_ns: int) -> int | None:
        """Begin to serve the next frame; return its service time, or None if none waits."""
        assert self.serving is None
        if not self._waiting:
            return None
        arrived_ns, self._service_ns, self.serving = self._waiting.popleft()
        self.statistics.waited_ns += now_ns - arrived_ns
        return self._service_ns

    def finish(self, now_ns: int) -> tuple[Any, ...]:
        """End the service; return the arguments of the frame that was served."""
        assert self.serving is not None
        arguments, self.serving = self.serving, None
        self.statistics.served += 1
        self.statistics.busy_ns += self._service_ns
        self.statistics.change(now_ns, -1)
        return arguments

    def crash(self, now_ns: int) -> None:
        """Lose all frames, waiting and in service."""
        lost = len(self._waiting) + (self.serving is not None)
        self._waiting.clear()
        self.serving = None
        self.statistics.change(now_ns, -lost)


class Card:
    """The network card one node sends through.

    Nothing overtakes in its queue, so the departure of a frame is known when it enters.
    """

    __slots__ = ("_bandwidth", "_free_ns", "_sends_max", "statistics")

    def __init__(self, config: QueueConfig) -> None:
        assert config.bandwidth_bytes_per_s is not None
        self.statistics = QueueStatistics()
        self._bandwidth = config.bandwidth_bytes_per_s
        self._sends_max = config.sends_max
        self._free_ns = 0

    def send(self, now_ns: int, size: int) -> int | None:
        """Hand over a frame; return when it will have left, or None if it was dropped."""
        statistics = self.statistics
        statistics.depart(now_ns)
        if len(statistics.departures_ns) >= self._sends_max:
            statistics.dropped += 1
            return None
        start_ns = max(now_ns, self._free_ns)
        service_ns = -(-size * _SECOND_NS // self._bandwidth)  # Rounded up.
        self._free_ns = start_ns + service_ns
        statistics.departures_ns.append(self._free_ns)
        statistics.change(now_ns, 1)
        statistics.served += 1
        statistics.busy_ns += service_ns
        statistics.waited_ns += start_ns - now_ns
        return self._free_ns
