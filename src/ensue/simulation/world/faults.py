"""The faults of a simulated world, in one frozen value.

`Faults` is data: a scenario file states it, a swarm draws it from a seed, a replay repeats it.
Times are true times in nanoseconds. `until_ns = None` means until `World.heal`. Names are node
names; an empty tuple of names means every node (for `Partition.other`: every node not in `side`).
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from ensue.core.errors import ConfigurationError
from ensue.simulation.world.delays import require_between

__all__ = [
    "ClockJump",
    "Clog",
    "Crash",
    "Faults",
    "InstantFault",
    "LinkFault",
    "Matcher",
    "Noise",
    "Partition",
    "Pause",
    "TimedFault",
]


Matcher: TypeAlias = Callable[[str, str], bool]


def _between(sources: tuple[str, ...], targets: tuple[str, ...]) -> Matcher:
    """Match frames from any of the sources to any of the targets; empty means all."""
    froms, tos = frozenset(sources), frozenset(targets)
    return lambda source, target: (not froms or source in froms) and (not tos or target in tos)


def _check_span(name: str, from_ns: int, until_ns: int | None) -> None:
    if from_ns < 0:
        raise ConfigurationError(f"{name}.from_ns must be at least 0, got {from_ns}")
    if until_ns is not None and until_ns <= from_ns:
        raise ConfigurationError(f"{name}.until_ns must be above from_ns ({from_ns})")


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """Loses frames between two sides while it lasts.

    Frames that were in flight when it began arrive.
    """

    side: tuple[str, ...]
    other: tuple[str, ...] = ()
    from_ns: int = 0
    until_ns: int | None = None
    one_way: bool = False
    """True: only frames from `side` to `other` are lost; answers pass."""

    def __post_init__(self) -> None:
        _check_span("Partition", self.from_ns, self.until_ns)
        if not self.side:
            raise ConfigurationError("Partition.side must name at least 1 node")
        if both := sorted(set(self.side) & set(self.other)):
            raise ConfigurationError(f"Partition.other must not repeat nodes of side: {both}")

    def matcher(self) -> Matcher:
        """Return a test for whether a frame from a source to a target is lost."""
        side, other, one_way = frozenset(self.side), frozenset(self.other), self.one_way

        def beyond(node: str) -> bool:
            return node in other if other else node not in side

        def hits(source: str, target: str) -> bool:
            if source in side:
                return beyond(target)
            return not one_way and target in side and beyond(source)

        return hits


class Clog(msgspec.Struct, frozen=True, kw_only=True):
    """Delays frames: those sent while it lasts are delivered after it ends."""

    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    from_ns: int = 0
    until_ns: int | None = None

    def __post_init__(self) -> None:
        _check_span("Clog", self.from_ns, self.until_ns)

    def matcher(self) -> Matcher:
        """Return a test for whether a frame from a source to a target has to wait."""
        return _between(self.sources, self.targets)


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Loses, repeats or delays frames by chance; of several, the worst applies."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    from_ns: int = 0
    until_ns: int | None = None

    def __post_init__(self) -> None:
        _check_span("Noise", self.from_ns, self.until_ns)
        for field in ("loss", "duplication", "reordering"):
            require_between(f"Noise.{field}", getattr(self, field), 0, 1)

    def matcher(self) -> Matcher:
        """Return a test for whether a frame from a source to a target is at risk."""
        return _between(self.sources, self.targets)


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Stops a node: its frames, timers, commands and pending sends wait."""

    node: str
    from_ns: int = 0
    until_ns: int | None = None

    def __post_init__(self) -> None:
        _check_span("Pause", self.from_ns, self.until_ns)


class Crash(msgspec.Struct, frozen=True, kw_only=True):
    """Takes a node down, without its volatile state; optionally restarts it later."""

    node: str
    at_ns: int = 0
    restart_after_ns: int | None = None
    """None: it stays down until `World.restart` or `World.heal`."""

    def __post_init__(self) -> None:
        if self.at_ns < 0:
            raise ConfigurationError(f"Crash.at_ns must be at least 0, got {self.at_ns}")
        if self.restart_after_ns is not None and self.restart_after_ns < 0:
            raise ConfigurationError("Crash.restart_after_ns must be at least 0")


class ClockJump(msgspec.Struct, frozen=True, kw_only=True):
    """Steps the clock of a node, forward or back."""

    node: str
    at_ns: int = 0
    by_ns: int
    monotone: bool = True
    """False: after a jump back the node is given times that go back too; see `clocks`."""

    def __post_init__(self) -> None:
        if self.at_ns < 0:
            raise ConfigurationError(f"ClockJump.at_ns must be at least 0, got {self.at_ns}")
        if self.by_ns == 0:
            raise ConfigurationError("ClockJump.by_ns must not be 0")


LinkFault: TypeAlias = Partition | Clog | Noise
TimedFault: TypeAlias = LinkFault | Pause
InstantFault: TypeAlias = Crash | ClockJump


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """All faults of one run."""

    partitions: tuple[Partition, ...] = ()
    clogs: tuple[Clog, ...] = ()
    noises: tuple[Noise, ...] = ()
    pauses: tuple[Pause, ...] = ()
    crashes: tuple[Crash, ...] = ()
    clock_jumps: tuple[ClockJump, ...] = ()

    def timed(self) -> list[TimedFault]:
        """Return the faults with a duration."""
        return [*self.partitions, *self.clogs, *self.noises, *self.pauses]

    def instant(self) -> list[InstantFault]:
        """Return the faults that happen at one instant."""
        return [*self.crashes, *self.clock_jumps]

    def nodes(self) -> set[str]:
        """Return all node names in it, to find a misspelled one before the run."""
        named: set[str] = set()
        for fault in self.timed():
            match fault:
                case Partition(side=side, other=other):
                    named.update(side, other)
                case Clog(sources=sources, targets=targets):
                    named.update(sources, targets)
                case Noise(sources=sources, targets=targets):
                    named.update(sources, targets)
                case Pause(node=node):
                    named.add(node)
        named.update(fault.node for fault in self.instant())
        return named
