"""Group commit: callbacks run only after the sync, and a failure of the journal is final."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from ensue.core import platform
from ensue.core.errors import LimitReached
from ensue.journal import Journal
from ensue.protocols.interface import Persist
from ensue.server.group_commit import GroupCommit

DEADLINE_S = 60.0


class FakeJournal:
    """A journal whose disk the test controls."""

    def __init__(self, *, room: int = 1000) -> None:
        self.buffered: list[str] = []
        self.written: list[list[str]] = []
        self.synced = 0
        """Number of durable writes."""
        self.room = room
        self.write_error: Exception | None = None
        self.append_error: Exception | None = None
        self.sync_error: Exception | None = None
        self.disk = threading.Semaphore(0)
        """Released once for each sync that may return."""
        self.syncing = threading.Semaphore(0)
        """Released by each sync that has started."""
        self.free = False
        """Whether syncs return at once."""

    def append(self, writes: Sequence[Persist]) -> None:
        if self.append_error is not None:
            raise self.append_error
        if len(self.buffered) + len(writes) > self.room:
            raise LimitReached("full", limit="batch", value=self.room)
        self.buffered += (write.key for write in writes)

    def write(self) -> int:
        if self.write_error is not None:
            raise self.write_error
        if self.buffered:
            self.written.append(self.buffered)
            self.buffered = []
        return len(self.written)

    @property
    def batch_count(self) -> int:
        return len(self.written) + bool(self.buffered)

    def sync(self) -> int:
        number = len(self.written)
        self.syncing.release()
        if not self.free:
            assert self.disk.acquire(timeout=DEADLINE_S)
        if self.sync_error is not None:
            raise self.sync_error
        self.synced = max(self.synced, number)
        return number


class Bench:
    """A group commit on a fake journal, and the callbacks that ran, in order."""

    def __init__(self, journal: FakeJournal, *, sync_s: float = 0.0) -> None:
        self.journal = journal
        self.failures: list[BaseException] = []
        self.done: list[str] = []
        self.commit = GroupCommit(
            cast("Journal", journal), sync_s=sync_s, on_failure=self.failures.append
        )

    @property
    def thread(self) -> threading.Thread:
        """The thread that syncs."""
        worker = self.commit._worker
        assert isinstance(worker, platform._Thread)
        return worker._thread

    def write(self, *keys: str, name: str = "") -> None:
        name = name or "+".join(keys)
        self.commit.write([Persist(key, b"") for key in keys], lambda: self.done.append(name))

    async def begun(self) -> None:
        """Wait until a sync has started."""
        await until(lambda: self.journal.syncing.acquire(blocking=False))

    async def close(self) -> None:
        self.journal.free = True
        for _ in range(10):
            self.journal.disk.release()
        await self.commit.close()


async def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "never came true"
        await asyncio.sleep(0.001)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


# -- Sync before callbacks -------------------------------------------------------------------------


def test_callbacks_wait_for_the_sync() -> None:
    async def main() -> None:
        bench = Bench(FakeJournal())
        bench.write("a")
        await bench.begun()
        await turns()
        assert bench.done == []
        assert bench.commit.waiting == 1
        bench.journal.disk.release()
        await until(lambda: bench.done)
        assert (bench.done, bench.journal.synced) == (["a"], 1)
        assert bench.commit.waiting == 0
        await bench.close()

    run(main())


@pytest.mark.parametrize("sync_s", [0.0, 60.0])
def test_explicit_sync_does_not_wait_for_the_interval(sync_s: float) -> None:
    async def main() -> None:
        bench = Bench(FakeJournal(), sync_s=sync_s)
        bench.write("a")
        syncing = asyncio.ensure_future(bench.commit.sync())
        await bench.begun()
        await turns()
        bench.write("b")
        await turns()
        assert not syncing.done()
        assert bench.journal.synced == 0
        bench.journal.disk.release()
        await syncing
        assert bench.journal.synced == 1
        await bench.close()
        assert bench.done == ["a", "b"]

    run(main())


def test_batches_of_one_iteration_share_one_write_and_one_sync() -> None:
    async def main() -> None:
        bench = Bench(FakeJournal())
        for number in range(20):
            bench.write(f"k{number}")
        bench.journal.free = True
        await until(lambda: len(bench.done) == 20)
        assert bench.done == [f"k{number}" for number in range(20)]
        assert bench.journal.written == [bench.done]
        assert bench.commit.syncs == 1
        await bench.close()

    run(main())


def test_batches_during_a_sync_share_the_next_one() -> None:
    async def main() -> None:
        bench = Bench(FakeJournal())
        bench.write("a")
        await bench.begun()
        for name in ("b", "c"):
            bench.write(name)
            await turns()
        bench.journal.disk.release()
        await bench.begun()
        await turns()
        # The first sync started before these were written, and does not cover them.
        assert bench.done == ["a"]
        bench.journal.disk.release()
        await until(lambda: len(bench.done) == 3)
        assert bench.done == ["a", "b", "c"]
        assert bench.commit.syncs == 2
        await bench.close()

    run(main())


def test_empty_batch_waits_only_for_earlier_ones() -> None:
    async def main() -> None:
        bench = Bench(FakeJournal())
        bench.write(name="at once")
        assert bench.done == ["at once"]
        bench.write("a")
        bench.write(name="behind a")
        await bench.begun()
        bench.write(name="behind all")
        await turns()
        assert bench.done == ["at once"]
        bench.journal.free = True
        bench.journal.disk.release()
        await until(lambda: len(bench.done) == 4)
        assert bench.done == ["at once", "a", "behind a", "behind all"]
        await bench.close()

    run(main())


def test_full_buffer_is_written_first() -> None:
    async def main() -> None:
        bench = Bench(FakeJournal(room=3))
        bench.journal.free = True
        for number in range(8):
            bench.write(f"k{number}")
        await until(lambda: len(bench.done) == 8)
        assert bench.done == [f"k{number}" for number in range(8)]
        assert [key for batch in bench.journal.written for key in batch] == bench.done
        assert bench.failures == []
        await bench.close()

    run(main())


# -- An interval -----------------------------------------------------------------------------------


def test_with_an_interval_callbacks_run_after_the_write() -> None:
    async def main() -> None:
        bench = Bench(FakeJournal(), sync_s=0.005)
        bench.write("a")
        assert bench.done == []
        await turns()
        assert (bench.done, bench.journal.written) == (["a"], [["a"]])
        await bench.begun()
        # One sync at a time: later batches run their callbacks, and the next sync covers them.
        bench.write("b")
        await turns()
        assert bench.done == ["a", "b"]
        bench.journal.disk.release()
        await bench.begun()
        bench.journal.disk.release()
        await until(lambda: bench.journal.synced == 2)
        await bench.close()

    run(main())


def test_with_an_interval_an_idle_journal_is_not_synced() -> None:
    async def main() -> None:
        bench = Bench(FakeJournal(), sync_s=0.001)
        bench.journal.free = True
        bench.write("a")
        await until(lambda: bench.commit.syncs)
        bench.write(name="nothing")
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert (bench.commit.syncs, bench.done) == (1, ["a", "nothing"])
        await bench.close()

    run(main())


# -- Failing ---------------------------------------------------------------------------------------


async def fails_at_append(bench: Bench) -> None:
    bench.journal.append_error = OSError("no space")
    bench.write("a")


async def fails_at_write(bench: Bench) -> None:
    bench.journal.write_error = OSError("no space")
    bench.write("a")
    await turns()


async def fails_at_sync(bench: Bench) -> None:
    bench.journal.sync_error = OSError("no space")
    bench.write("a")
    await bench.begun()
    bench.write("b")
    await turns()
    bench.journal.disk.release()
    await until(lambda: bench.failures)


@pytest.mark.parametrize("fail", [fails_at_append, fails_at_write, fails_at_sync])
def test_failure_is_reported_once_and_final(
    fail: Callable[[Bench], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        bench = Bench(FakeJournal())
        with caplog.at_level(logging.CRITICAL, logger="ensue"):
            await fail(bench)
        assert [str(each) for each in bench.failures] == ["no space"]
        assert bench.commit.failed
        # The disk may have recovered, but the journal can't be trusted any more.
        journal = bench.journal
        journal.append_error = journal.write_error = journal.sync_error = None
        journal.free = True
        bench.write("later")
        bench.write(name="nothing to write")
        await turns(20)
        await bench.close()
        assert bench.done == []
        assert len(bench.failures) == 1

    run(main())
    assert caplog.text.count("journal write failed, server stops") == 1


def test_with_an_interval_a_failed_sync_is_final_too(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        bench = Bench(FakeJournal(), sync_s=0.001)
        bench.journal.sync_error = OSError("no space")
        bench.write("a")
        await bench.begun()
        bench.journal.disk.release()
        await until(lambda: bench.failures)
        bench.write("b")
        await turns()
        assert bench.done == ["a"]
        await bench.close()

    with caplog.at_level(logging.CRITICAL, logger="ensue"):
        run(main())


# -- Closing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync_s", [0.0, 3600.0])
def test_close_writes_and_syncs_all_batches(sync_s: float) -> None:
    async def main() -> None:
        bench = Bench(FakeJournal(), sync_s=sync_s)
        bench.journal.free = True
        bench.write("a")
        bench.write("b")
        await bench.close()
        assert bench.journal.written == [["a", "b"]]
        assert bench.journal.synced == 1

    run(main())


def test_close_runs_callbacks_that_wait_for_a_running_sync() -> None:
    async def main() -> None:
        bench = Bench(FakeJournal())
        raised: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, what: raised.append(what))
        bench.write("a")
        await bench.begun()
        bench.write("b")
        closing = asyncio.create_task(bench.commit.close())
        await turns()
        bench.write("too late")
        assert bench.done == []
        bench.journal.free = True
        bench.journal.disk.release()
        await closing
        await turns()
        assert bench.done == ["a", "b"]
        assert bench.journal.written == [["a"], ["b"]]
        assert bench.journal.synced == 2
        assert raised == []

    run(main())


@pytest.mark.parametrize("sync_s", [0.0, 3600.0])
def test_close_completes_if_the_last_sync_fails(
    sync_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        bench = Bench(FakeJournal(), sync_s=sync_s)
        bench.journal.sync_error = OSError("no space")
        bench.write("a")
        await asyncio.wait_for(bench.close(), DEADLINE_S)
        assert [str(each) for each in bench.failures] == ["no space"]
        assert bench.done == ([] if sync_s == 0 else ["a"])
        assert not bench.thread.is_alive()

    with caplog.at_level(logging.CRITICAL, logger="ensue"):
        run(main())


def test_thread_ends_after_a_sync_that_outlives_the_event_loop() -> None:
    benches: list[Bench] = []

    async def main() -> None:
        bench = Bench(FakeJournal())
        bench.write("a")
        await bench.begun()
        benches.append(bench)

    run(main())
    (bench,) = benches
    thread = bench.thread
    assert thread.is_alive()
    assert thread.daemon, "a process that ends does not wait for it"
    bench.journal.disk.release()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert bench.done == []


def test_real_journal_has_all_confirmed_batches(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Journal(tmp_path / "j")
        commit = GroupCommit(journal, sync_s=0, on_failure=lambda _error: None)
        done: list[int] = []
        for number in range(50):
            writes = [Persist(f"k/{number}", b"%d" % number), Persist("last", b"%d" % number)]
            commit.write(writes, lambda number=number: done.append(number))  # type: ignore[misc]
            if number % 10 == 9:
                await until(lambda number=number: number in done)  # type: ignore[misc]
        assert done == list(range(50))
        await commit.close()
        journal.close()
        again = Journal(tmp_path / "j")
        assert again.records["last"] == b"49"
        assert len([key for key in again.records if key.startswith("k/")]) == 50
        again.close()

    run(main())
