"""A node's disk: a durable map written in batches, with group commit.

Each batch has writes and an output, which runs only once the batch is durable. Batches become
durable in order. One sync runs at a time and covers the batches present when it began; later ones
wait for the next sync. A batch without writes needs no sync but still waits for earlier ones, so
outputs keep the order of batches.

A crash loses the batches that no sync covers. Of those in a sync, any number from the front may
have reached the disk (drawn from the fault stream), and the rest is lost; their outputs never ran
in either case. With `crash_loses_all` no unsynced batch survives. A batch is written completely or
not at all: only a real store has torn batches.

Limit: `batches_max` batches waiting for the disk; one more raises `LimitReached`.
"""

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Generic, TypeVar

import msgspec

from ensue.core.errors import LimitReached
from ensue.protocols.interface import Persist
from ensue.simulation.world.delays import Constant, DelayModel, require_between

__all__ = ["Disk", "DiskConfig"]

Output = TypeVar("Output")


class DiskConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The behavior of all disks of a world."""

    sync: DelayModel = Constant(100_000)
    """How long one sync takes. With a constant of 0 every batch is durable at once."""
    crash_loses_all: bool = False
    """True: a crash never leaves a batch that was not carried out as well: a batch is durable the
    moment it is carried out, and a node that is paused carries nothing out."""
    batches_max: int = 100_000
    """Batches of one node that may wait for its disk."""

    def __post_init__(self) -> None:
        require_between("DiskConfig.batches_max", self.batches_max, 1, 10**9)


class Disk(Generic[Output]):
    """The disk of one node. The driver decides how long a sync takes."""

    __slots__ = ("_batches", "_config", "_covered", "records", "syncs")

    def __init__(self, config: DiskConfig) -> None:
        self.records: dict[str, bytes] = {}
        """The synced records."""
        self.syncs = 0
        """Number of completed syncs."""
        self._config = config
        self._batches: deque[tuple[Sequence[Persist], Output]] = deque()
        self._covered = 0

    @property
    def idle(self) -> bool:
        """Whether no batch waits."""
        return not self._batches

    @property
    def all_or_nothing(self) -> bool:
        """Whether a batch must not be durable before it is carried out."""
        return self._config.crash_loses_all

    @property
    def syncing(self) -> bool:
        """Whether a sync is running."""
        return self._covered > 0

    def add(self, writes: Sequence[Persist], output: Output) -> None:
        """Queue a batch behind those that wait."""
        if len(self._batches) >= self._config.batches_max:
            raise LimitReached(
                "more batches wait for a disk than DiskConfig.batches_max",
                limit="batches_max",
                value=self._config.batches_max,
            )
        for write in writes:
            if write.value is not None and type(write.value) is not bytes:
                raise TypeError(f"record {write.key!r} must be bytes, got {type(write.value)}")
        self._batches.append((writes, output))

    def begin_sync(self) -> None:
        """Start to sync all waiting batches."""
        assert not self.syncing
        assert self._batches
        self._covered = len(self._batches)

    def end_sync(self) -> list[Output]:
        """Make the covered batches durable; return their outputs.

        Outputs are in order.
        """
        assert self.syncing
        outputs = [self._apply() for _ in range(self._covered)]
        self._covered = 0
        self.syncs += 1
        while self._batches and not self._batches[0][0]:
            outputs.append(self._batches.popleft()[1])
        return outputs

    def crash(self, random: Random) -> None:
        """Lose all batches that are not durable, with their outputs."""
        if self._covered and not self._config.crash_loses_all:
            for _ in range(random.randint(0, self._covered)):
                self._apply()
        self._batches.clear()
        self._covered = 0

    def snapshot(self) -> dict[str, bytes]:
        """Return the synced records by key, in an order no node may rely on."""
        return dict(sorted(self.records.items()))

    def _apply(self) -> Output:
        writes, output = self._batches.popleft()
        for write in writes:
            if write.value is None:
                self.records.pop(write.key, None)
            else:
                self.records[write.key] = write.value
        return output
