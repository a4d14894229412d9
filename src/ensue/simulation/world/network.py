"""The simulated network: delay, loss, repetition and order of frames.

Every frame draws its own delay, so frames overtake each other, except between the same two nodes
with `fifo`. The delay model is that of the link, else of the pair of sites, else the default. A
frame of a node to itself takes no time and meets no fault.

Faults apply when a frame is sent, in this order: cut by a partition, lost by chance, waiting at a
clog, held back, duplicated. A frame in flight when a fault begins arrives; a frame at a clog draws
its delay again when the clog ends, in the order sent.

Delays come from one random stream and chances from another, and a delay is drawn before a frame may
be lost: so a new fault does not change the delays of other frames.

Limit: `clogged_max` frames waiting at clogs; one more is lost and counted as `overflowed`.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import msgspec

from ensue.simulation.world.delays import DelayModel, Sampler, Uniform, require_between
from ensue.simulation.world.faults import Clog, LinkFault, Matcher, Noise, Partition

__all__ = ["Endpoint", "LinkDelay", "Network", "NetworkConfig", "NetworkStatistics"]


class LinkDelay(msgspec.Struct, frozen=True, kw_only=True):
    """The delay between two nodes, or between two sites."""

    source: str
    target: str
    delay: DelayModel
    both_ways: bool = True


class NetworkConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The behavior of the network until it is healed."""

    default: DelayModel = Uniform(500_000, 1_500_000)
    sites: tuple[LinkDelay, ...] = ()
    """Delays by pair of sites, a site and itself included."""
    links: tuple[LinkDelay, ...] = ()
    """Delays by pair of nodes."""
    fifo: bool = False
    loss: float = 0.0
    """The chance that a frame never arrives."""
    duplication: float = 0.0
    """The chance that a frame arrives twice."""
    reordering: float = 0.0
    """The chance that a frame is held back by `reordering_delay`, with `fifo` too."""
    reordering_delay: DelayModel = Uniform(0, 10_000_000)
    clogged_max: int = 1_000_000
    """Frames that may wait at clogs."""

    def __post_init__(self) -> None:
        for field in ("loss", "duplication", "reordering"):
            require_between(f"NetworkConfig.{field}", getattr(self, field), 0, 1)
        require_between("NetworkConfig.clogged_max", self.clogged_max, 0, 10**9)


class NetworkStatistics:
    """Counts of frames, by what happened to them."""

    __slots__ = ("clogged", "cut", "duplicated", "lost", "overflowed", "reordered", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.cut = 0
        """Lost to a partition."""
        self.lost = 0
        """Lost by chance."""
        self.clogged = 0
        """Delayed by a clog, delivered since or not."""
        self.overflowed = 0
        """Lost because too many waited."""
        self.duplicated = 0
        self.reordered = 0


class Endpoint(Protocol):
    """A node, as the network sees it."""

    @property
    def name(self) -> str:
        """Unique in the world."""

    @property
    def place(self) -> str:
        """Its name in faults and delays."""

    @property
    def site(self) -> str:
        """Its site."""


Schedule = Callable[[int, Callable[..., None], tuple[Any, ...]], None]


class Network:
    """The network: schedules `arrive(target, source, *message)` at endpoints."""

    def __init__(
        self,
        config: NetworkConfig,
        *,
        schedule: Schedule,
        arrive: Callable[..., None],
        delay_random: Random,
        fault_random: Random,
    ) -> None:
        self.config = config
        self.statistics = NetworkStatistics()
        self._fifo = config.fifo
        self._schedule = schedule
        self._arrive = arrive
        self._chance = fault_random.random
        self._held_back = config.reordering_delay.sampler(fault_random)
        self._default = config.default.sampler(delay_random)
        self._sites = _samplers(config.sites, delay_random)
        self._links = _samplers(config.links, delay_random)
        self._last_arrival_ns: dict[tuple[str, str], int] = {}
        self._partitions: list[tuple[Partition, Matcher]] = []
        self._clogs: list[tuple[Clog, Matcher]] = []
        self._noises: list[tuple[Noise, Matcher]] = []
        self._waiting: deque[tuple[Endpoint, Endpoint, tuple[Any, ...]]] = deque()
        self._base = (config.loss, config.duplication, config.reordering)
        self._faultless = not any(self._base)

    def send(
        self, now_ns: int, source: Endpoint, target: Endpoint, message: tuple[Any, ...]
    ) -> None:
        """Schedule the delivery of a message, or lose it."""
        self.statistics.sent += 1
        if source is target:
            self._schedule(now_ns, self._arrive, (target, source.name, *message))
        elif self._faultless and not self._fifo:
            arrival_ns = now_ns + self._delay_ns(source, target)
            self._schedule(arrival_ns, self._arrive, (target, source.name, *message))
        else:
            self._send_at_risk(now_ns, source, target, message)

    def begin(self, fault: LinkFault) -> None:
        """Start a fault."""
        match fault:
            case Partition():
                self._partitions.append((fault, fault.matcher()))
            case Clog():
                self._clogs.append((fault, fault.matcher()))
            case Noise():
                self._noises.append((fault, fault.matcher()))
        self._faultless = False

    def end(self, fault: LinkFault, now_ns: int) -> None:
        """End a fault; release the frames of a clog, unless another one holds them."""
        match fault:
            case Partition():
                _remove(self._partitions, fault)
            case Clog():
                _remove(self._clogs, fault)
                self._flow(now_ns)
            case Noise():
                _remove(self._noises, fault)
        faults = self._partitions or self._clogs or self._noises
        self._faultless = not faults and not any(self._base)

    def heal(self, now_ns: int) -> None:
        """Remove all faults, configured chances included; release frames at clogs."""
        self._partitions.clear()
        self._clogs.clear()
        self._noises.clear()
        self._base = (0.0, 0.0, 0.0)
        self._faultless = True
        self._flow(now_ns)

    def _delay_ns(self, source: Endpoint, target: Endpoint) -> int:
        if self._links:
            sampler = self._links.get((source.place, target.place))
            if sampler is not None:
                return sampler()
        if self._sites:
            return self._sites.get((source.site, target.site), self._default)()
        return self._default()

    def _fly(
        self,
        arrival_ns: int,
        source: Endpoint,
        target: Endpoint,
        message: tuple[Any, ...],
        *,
        overtaken: bool = False,
    ) -> None:
        if self._fifo and not overtaken:
            link = (source.place, target.place)
            arrival_ns = max(arrival_ns, self._last_arrival_ns.get(link, 0))
            self._last_arrival_ns[link] = arrival_ns
        self._schedule(arrival_ns, self._arrive, (target, source.name, *message))

    def _send_at_risk(
        self, now_ns: int, source: Endpoint, target: Endpoint, message: tuple[Any, ...]
    ) -> None:
        names = source.place, target.place
        delay_ns = self._delay_ns(source, target)
        loss, duplication, reordering = self._chances(*names)
        statistics = self.statistics
        if any(hits(*names) for _, hits in self._partitions):
            statistics.cut += 1
            return
        if loss and self._chance() < loss:
            statistics.lost += 1
            return
        if any(hits(*names) for _, hits in self._clogs):
            if len(self._waiting) >= self.config.clogged_max:
                statistics.overflowed += 1
                return
            statistics.clogged += 1
            self._waiting.append((source, target, message))
            return
        overtaken = bool(reordering) and self._chance() < reordering
        if overtaken:
            statistics.reordered += 1
            delay_ns += self._held_back()
        self._fly(now_ns + delay_ns, source, target, message, overtaken=overtaken)
        if duplication and self._chance() < duplication:
            statistics.duplicated += 1
            self._fly(now_ns + self._delay_ns(source, target), source, target, message)

    def _chances(self, source: str, target: str) -> tuple[float, float, float]:
        loss, duplication, reordering = self._base
        for noise, hits in self._noises:
            if hits(source, target):
                loss = max(loss, noise.loss)
                duplication = max(duplication, noise.duplication)
                reordering = max(reordering, noise.reordering)
        return loss, duplication, reordering

    def _flow(self, now_ns: int) -> None:
        waiting, self._waiting = self._waiting, deque()
        for source, target, message in waiting:
            if any(hits(source.place, target.place) for _, hits in self._clogs):
                self._waiting.append((source, target, message))
            else:
                self._fly(now_ns + self._delay_ns(source, target), source, target, message)


def _samplers(delays: tuple[LinkDelay, ...], random: Random) -> dict[tuple[str, str], Sampler]:
    """Index samplers by pair; a stated direction wins over a reversed one."""
    samplers: dict[tuple[str, str], Sampler] = {}
    for entry in delays:
        samplers[entry.source, entry.target] = entry.delay.sampler(random)
    for entry in delays:
        if entry.both_ways:
            samplers.setdefault((entry.target, entry.source), entry.delay.sampler(random))
    return samplers


def _remove(active: list[Any], fault: LinkFault) -> None:
    """Remove one occurrence of a fault: the same fault may have begun twice."""
    for index, (present, _) in enumerate(active):
        if present == fault:
            del active[index]
            return
    raise AssertionError("a fault ended that had not begun")
