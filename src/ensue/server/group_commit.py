"""Group commit: batches of many frames share one journal write and one sync.

Batches of one event loop iteration are written together. With `sync_s = 0`, a thread syncs them and
then their callbacks run, while the next batches collect. Otherwise callbacks run as soon as the
operating system has the data, and a sync follows every `sync_s` seconds: killing the process loses
nothing, and a power failure loses everything since the last sync.

A failure of the journal is final: `on_failure` is called once, and no waiting callback ever runs.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from ensue.core import platform
from ensue.core.errors import LimitReached, LogDamaged
from ensue.journal import Journal
from ensue.protocols.interface import Persist
from ensue.server.metrics import Histogram

__all__ = ["GroupCommit"]

SYNC_BUCKETS_S = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)

_log = logging.getLogger("ensue")


class GroupCommit:
    """The journal as the store of a station."""

    def __init__(
        self, journal: Journal, *, sync_s: float, on_failure: Callable[[BaseException], None]
    ) -> None:
        self._journal = journal
        self._sync_s = sync_s
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._platform = platform.current()
        self._worker = self._platform.worker(self._sync_journal, self._synced)
        self._unwritten: deque[Callable[[], None]] = deque()
        """Callbacks of batches that are not written."""
        self._unsynced: deque[tuple[int, Callable[[], None]]] = deque()
        """Callbacks that wait for a sync, with the number of the last batch they need."""
        self._scheduled = False
        self._syncing = False
        self._sync_done = asyncio.Event()
        """Set after each sync, for `close`."""
        self._closed = False
        self._dirty = False
        self._timer: asyncio.TimerHandle | None = None
        self.failed = False
        self.failure: BaseException | None = None
        """The error that made the journal fail."""
        self.syncs = 0
        self.sync_seconds = Histogram(SYNC_BUCKETS_S)
        self._sync_started_s: float | None = None
        """Start of the current sync."""

    @property
    def waiting(self) -> int:
        """Number of batches that are not persisted."""
        return len(self._unwritten) + len(self._unsynced)

    @property
    def syncing_s(self) -> float:
        """Duration so far of the current sync; 0 if there is none."""
        if self._sync_started_s is None:
            return 0.0
        return self._platform.monotonic_s() - self._sync_started_s

    def write(self, writes: Sequence[Persist], done: Callable[[], None]) -> None:
        """Persist a batch, then call `done`."""
        if self.failed or self._closed:
            return
        if not writes and not self._unwritten and not self._unsynced:
            done()
            return
        if writes and not self._append(writes):
            return
        self._unwritten.append(done)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._write)

    def _append(self, writes: Sequence[Persist]) -> bool:
        """Append a batch to the journal; return False if it failed."""
        try:
            try:
                self._journal.append(writes)
            except LimitReached:
                # The buffer is full: write it first.
                self._write()
                if not self.failed:
                    self._journal.append(writes)
        except BaseException as error:  # noqa: BLE001 - the node counts on this write
            self._fail(error)
        return not self.failed

    async def sync(self) -> None:
        """Wait until all earlier batches are synced, whatever `sync_s` is.

        It never returns if the journal fails.
        """
        self._write()
        synced = asyncio.Event()
        self._unsynced.append((self._journal.batch_count, synced.set))
        self._sync()
        await synced.wait()

    async def close(self) -> None:
        """Write and sync all batches, run their callbacks, and accept no more."""
        self._closed = True
        self._write()
        if self._timer is not None:
            self._timer.cancel()
        self._dirty = True  # The last sync also covers batches without a waiting callback.
        while not self.failed and (self._syncing or self._unsynced or self._dirty):
            if not self._syncing:
                self._dirty = False
                self._start_sync()
            self._sync_done.clear()
            await self._sync_done.wait()
        self._worker.close()

    def _write(self) -> None:
        self._scheduled = False
        if self.failed:
            return
        try:
            number = self._journal.write()
        except BaseException as error:  # noqa: BLE001 - no callback may run after any failure
            self._fail(error)
            return
        waiting, self._unwritten = self._unwritten, deque()
        if self._sync_s > 0:
            self._dirty = True
            if self._timer is None:
                self._timer = self._loop.call_later(self._sync_s, self._on_timer)
            for done in waiting:
                done()
            return
        self._unsynced.extend((number, done) for done in waiting)
        self._sync()

    def _on_timer(self) -> None:
        self._timer = None
        if self._dirty and not self._syncing and not self.failed:
            self._dirty = False
            self._start_sync()
        elif self._dirty:
            self._timer = self._loop.call_later(self._sync_s, self._on_timer)

    def _sync(self) -> None:
        if self._unsynced and not self._syncing and not self.failed:
            self._start_sync()

    def _start_sync(self) -> None:
        self._syncing = True
        self._sync_started_s = self._platform.monotonic_s()
        self._worker.request()

    def _sync_journal(self) -> int:
        """Sync, in the worker's thread; return the number of the last synced batch."""
        return self._journal.sync()

    def _synced(self, outcome: int | BaseException) -> None:
        self._syncing = False
        took_s, self._sync_started_s = self.syncing_s, None
        self._sync_done.set()
        if isinstance(outcome, BaseException):
            self._fail(outcome)
            return
        self.syncs += 1
        self.sync_seconds.observe(took_s)
        unsynced = self._unsynced
        while unsynced and unsynced[0][0] <= outcome:
            unsynced.popleft()[1]()
        self._sync()

    def _fail(self, error: BaseException) -> None:
        if not self.failed:
            self.failed = True
            self.failure = error
            if not isinstance(error.__cause__, LogDamaged):  # Damage is logged where it is found.
                _log.critical("journal write failed, server stops: %s", error)
            self._on_failure(error)
