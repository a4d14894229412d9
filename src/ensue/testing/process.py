"""One simulated process, and the host that it runs on.

A host has a name in the network, a disk and a clock; they outlive the process. The process is a
coroutine on an event loop of its own (`ProcessLoop`), in a context of its own: `platform.current()`
is its host's. Killing it drops the loop: no `finally` runs, no buffer is flushed. Starting it again
makes a new loop on the same host.
"""

import asyncio
import contextvars
import traceback
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Any, cast

from ensue.core import platform
from ensue.core.clock import Clock, SystemClock
from ensue.core.trace import Row
from ensue.testing.disk import Disk
from ensue.testing.loop import ProcessLoop
from ensue.testing.network import Network

if TYPE_CHECKING:
    from ensue.testing.world import World

__all__ = ["Process", "ProcessKilled"]

SECOND_NS = 1_000_000_000
MILLISECOND_NS = 1_000_000
EPOCH_NS = 1_767_225_600 * SECOND_NS
"""The wall time at which a simulation begins: 2026-01-01."""

Main = Callable[..., Awaitable[Any]]


class ProcessKilled(BaseException):
    """The process that was awaited was killed."""


class _Worker:
    """Runs a function after a while, in the event loop: the disk takes that long."""

    def __init__(
        self, process: "Process", work: Callable[[], Any], done: Callable[..., None]
    ) -> None:
        self._process, self._work, self._done = process, work, done
        self._loop = process.loop
        self._context = contextvars.copy_context()

    def request(self) -> None:
        world = self._process.world
        world.at(world.now_ns + self._process.sync_ns(), self._run)

    def close(self) -> None:
        pass

    def _run(self) -> None:
        if self._loop.dead:
            return
        if self._process.stopped:
            self._process.world.at(self._process.world.now_ns + MILLISECOND_NS, self._run)
            return
        try:
            outcome = self._context.copy().run(self._work)
        except BaseException as error:  # noqa: BLE001 - handled in the event loop
            outcome = error
        self._loop.call_soon(self._done, outcome, context=self._context.copy())


class _RowSink:
    """Adds the rows of one bus to the trace of the world."""

    def __init__(self, host: "Host") -> None:
        self._host = host
        self.node = ""
        """The bus; empty before its first row."""

    def append(self, row: Row, /) -> None:
        self.node = row.node
        self._host.world.record(self._host, row)


class Host(platform.Platform):
    """The machine of a process: clock, disk and randomness, drawn from the seed."""

    def __init__(self, world: "World", name: str, random: Random) -> None:
        self.world, self.name, self.random = world, name, random
        self.disk = Disk(world.generator(f"disk {name}"))
        self.files = self.disk
        self.process: Process | None = None
        self.nodes: dict[str, None] = {}
        """The buses of its process with rows in the trace."""
        self.last_sink = _RowSink(self)
        self.suspended_ns = 0
        """How long the machine was suspended, altogether."""
        self._offset_ns = 0
        """Wall clock minus true time."""
        self._drift_ppm = 0.0
        self._drift_since_ns = 0
        self._clock: Clock | None = None

    @property
    def trace_sink(self) -> "_RowSink":  # type: ignore[override]
        """Takes the rows of a new bus, with the true time."""
        self.last_sink = _RowSink(self)
        return self.last_sink

    @property
    def clock(self) -> Clock:
        """Wall time of this host that never goes back; a new one for each life of a process."""
        if self._clock is None:
            self._clock = SystemClock(wall_ns=self.wall_ns, steady_ns=self.steady_ns)
        return self._clock

    def wall_ns(self) -> int:
        """Return the wall clock, which may step."""
        true_ns = self.world.now_ns
        drifted = (true_ns - self._drift_since_ns) * self._drift_ppm / 1_000_000
        return EPOCH_NS + true_ns + self._offset_ns + int(drifted)

    def steady_ns(self) -> int:
        """Return the monotonic clock, which stands still while the machine is suspended."""
        return SECOND_NS + self.world.now_ns - self.suspended_ns

    def step_clock(self, by_ns: int) -> None:
        """Step the wall clock."""
        before_ns = self.wall_ns()
        self._offset_ns += by_ns
        self.note_gap(before_ns, stepped=True)

    def correct_clock(self) -> None:
        """Set the wall clock to the true time, without drift."""
        before_ns = self.wall_ns()
        self._offset_ns, self._drift_ppm = 0, 0.0
        self.note_gap(before_ns, stepped=True)

    def note_gap(self, before_ns: int, *, stepped: bool = False) -> None:
        """Note the times of the wall clock since `before_ns`, which its process did not see.

        If the clock was stepped, timers that were set before fire as much too late.
        """
        after_ns = self.wall_ns()
        if after_ns > before_ns:
            if stepped:
                after_ns += after_ns - before_ns
            for node in self.nodes:
                self.world.gaps.setdefault(node, []).append((before_ns, after_ns))

    def drift(self, ppm: float) -> None:
        """Set the drift of the wall clock from now on."""
        self._offset_ns = self.wall_ns() - EPOCH_NS - self.world.now_ns
        self._drift_ppm, self._drift_since_ns = ppm, self.world.now_ns

    def monotonic_s(self) -> float:
        """Return the monotonic time in seconds."""
        return self.steady_ns() / SECOND_NS

    def token_bytes(self, count: int) -> bytes:
        """Return bytes from the seed."""
        return self.random.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        """Return a random number from the seed."""
        return self.random.uniform(low, high)

    def worker(self, work: Callable[[], Any], done: Callable[[Any], None]) -> platform.Worker:
        """Return a worker that takes virtual time."""
        assert self.process is not None
        return _Worker(self.process, work, done)

    def usage(self) -> platform.Usage:
        """Return what does not depend on the real process."""
        return platform.Usage(pid=1, cpu_s=self.monotonic_s(), resident_bytes=0)

    def booted(self) -> None:
        """Start with a new clock, as each process does."""
        self._clock = None


class Process:
    """A process. Made by `World.start`; await it for its result."""

    def __init__(self, world: "World", host: Host, name: str, main: Main, args: Any) -> None:
        self.world, self.machine, self.name = world, host, name
        self._main, self._args = main, args
        self.loop: ProcessLoop
        self.task: asyncio.Task[Any]
        self.stopped = False
        """Whether it is paused, as by SIGSTOP."""
        self.killed = False
        self.lives = 0
        self._paused_wall_ns = 0
        self._paused_ns = 0
        """The wall clock when it was paused."""
        self._suspended_since_ns: int | None = None
        self._waiters: list[tuple[ProcessLoop, asyncio.Future[None]]] = []
        self._start()

    # -- For the loop ---------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The name of its host in the network."""
        return self.machine.name

    @property
    def network(self) -> Network:
        """The network of its world."""
        return self.world.network

    def monotonic_ns(self) -> int:
        """Return the monotonic time of its host."""
        return self.machine.steady_ns()

    def true_ns_of(self, steady_ns: int) -> int:
        """Return the true time of a monotonic one, if the host is not suspended until then."""
        return steady_ns - SECOND_NS + self.machine.suspended_ns

    def sync_ns(self) -> int:
        """Draw how long the disk takes for a sync."""
        low, high = self.world.disk_sync_ms
        return int(self.machine.random.uniform(low, high) * MILLISECOND_NS)

    # -- Its life -------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether it runs, or is paused."""
        return not self.killed and not self.task.done()

    def _start(self) -> None:
        self.lives += 1
        self.killed = self.stopped = self._terminated = False
        self._suspended_since_ns = None
        self.machine.process = self
        self.machine.booted()
        context = contextvars.Context()
        context.run(platform.use, self.machine)
        self.loop = ProcessLoop(self, context.copy())  # type: ignore[abstract]
        self.world.started(self)
        coroutine = context.run(self._main, *self._args)
        self.task = self.loop.create_task(cast("Any", coroutine), name=self.name, context=context)
        self.task.add_done_callback(self._ended, context=context)

    def _ended(self, _task: "asyncio.Task[Any]") -> None:
        for loop, waiter in self._waiters:
            loop.call_soon(_wake, waiter)
        self._waiters.clear()
        self.world.ended(self)

    def kill(self, *, power: bool = False) -> None:
        """End it at once: `kill -9`, or with `power` a power cut of its host."""
        if not self.alive:
            return
        if self.stopped:
            self._note_pause()
        self.killed = True
        self.world.bury(self)
        self.world.crashed(self.machine)
        self.world.sleep(self)
        self.loop.kill()
        self.network.killed(self, power=power)
        if power:
            self.machine.disk.lose_power()
        else:
            self.machine.disk.process_ended()
        self._ended(self.task)

    def terminate(self) -> None:
        """Cancel its main task, once, as a program does that handles SIGTERM."""
        if self.alive and not self._terminated:
            self._terminated = True
            self.loop.call_soon(self.task.cancel)

    def restart(self) -> None:
        """Start it again on the same host, with the disk as it is."""
        if self.alive:
            raise RuntimeError(f"{self.name} is running: kill it first")
        self.network.powered(self.host)
        self.world.sleep(self)  # What its last life left to do is dropped.
        self._start()

    def pause(self) -> None:
        """Stop it, as SIGSTOP does; its connections stay open and its clocks run."""
        if not self.stopped:
            self._paused_wall_ns = self.machine.wall_ns()
            self._paused_ns = self.world.now_ns
        self.stopped = True
        self.world.sleep(self)

    def suspend(self) -> None:
        """Suspend its machine, as closing a laptop does: the monotonic clock stands still.

        The network does not reach it. Connections stay open.
        """
        self.pause()
        self.network.darken(self.host)
        self._suspended_since_ns = self.world.now_ns

    def resume(self) -> None:
        """Continue after `pause` or `suspend`."""
        if self.stopped:
            self.machine.note_gap(self._paused_wall_ns)
            if not self.killed:
                self._note_pause()
        self.stopped = False
        if self._suspended_since_ns is not None:
            slept_ns = self.world.now_ns - self._suspended_since_ns
            self._suspended_since_ns = None
            self.machine.suspended_ns += slept_ns
            self.loop.delay_timers(slept_ns)
            if not self.killed:
                self.network.powered(self.host)
        self.world.expect_timer(0)
        if self.loop.ready and not self.loop.awake:
            self.world.wake(self)

    def _note_pause(self) -> None:
        for node in self.machine.nodes:
            self.world.pauses.setdefault(node, []).append((self._paused_ns, self.world.now_ns))

    @property
    def last_bus(self) -> str:
        """The bus that connected last; empty: none, or it has no rows."""
        return self.machine.last_sink.node

    def waits(self) -> list[str]:
        """Return where its tasks wait, to debug a hang."""
        pending = sorted(
            (task for task in self.loop.tasks if not task.done()), key=lambda task: task.get_name()
        )
        return [f"{task.get_name()} waits in {_where(task.get_coro())}" for task in pending]

    def __await__(self) -> Any:
        return self.wait().__await__()

    async def ended(self) -> None:
        """Wait until it ends, in any way."""
        while self.alive:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append((cast("ProcessLoop", loop), waiter))
            await waiter

    def error(self) -> str | None:
        """Return the traceback of the exception that it ended with, if it did."""
        if self.killed or not self.task.done() or self.task.cancelled():
            return None
        error = self.task.exception()
        return None if error is None else "".join(traceback.format_exception(error)).strip()

    async def wait(self) -> Any:
        """Wait until it ends; return its result, or raise what it raised."""
        await self.ended()
        if self.killed:
            raise ProcessKilled(f"process {self.name!r} was killed")
        return self.task.result()


def _where(coroutine: Any) -> str:
    """Return the functions that wait for each other, the outermost first."""
    places = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            places.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return " > ".join(places)


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
