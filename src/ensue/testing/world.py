"""The world: virtual time, and which process runs next.

One thread runs everything. Time stands still while a process runs, passes a little after each
iteration of an event loop, and jumps to the next timer or network event when all processes wait. So
an hour of virtual time with nothing to do costs nothing.

Whenever several processes are ready, the seed picks the one whose event loop runs its next
iteration. Within a process callbacks run in asyncio's own sequence. All other choices (latencies,
cut writes, names, faults) come from generators derived from the seed too, one for each purpose, so
that a change of one does not move all others.
"""

import asyncio
import heapq
import logging
import traceback
from bisect import insort
from collections.abc import Awaitable, Callable
from contextlib import suppress
from inspect import CORO_CLOSED, getcoroutinestate, iscoroutine
from math import inf
from random import Random
from typing import Any

import msgspec

from ensue.core.trace import Row
from ensue.testing.errors import SimulationFailed, Stuck
from ensue.testing.loop import ProcessLoop
from ensue.testing.network import Network, NetworkOptions
from ensue.testing.process import Host, Main, Process

__all__ = ["MAIN", "RUN", "World"]

SECOND_NS = 1_000_000_000
ITERATION_NS_MAX = 20_000
"""The longest time that one iteration of an event loop takes."""
ITERATIONS_MAX = 20_000_000
MAIN = "main"
RUN = "ensue"
"""What buses call their run in traces."""
CLOSES_MAX = 1000
"""How often the coroutine of a killed process may wait in `finally` blocks when it is freed."""

_log = logging.getLogger("ensue.testing")


class World:
    """Processes, their hosts and the network between them."""

    def __init__(
        self,
        seed: int,
        *,
        network: NetworkOptions,
        disk_sync_ms: tuple[float, float],
    ) -> None:
        self.seed = seed
        self.now_ns = 0
        """True time since the beginning."""
        self.disk_sync_ms = disk_sync_ms
        self.random = self.generator("program")
        """For the program's own choices."""
        self.network = Network(self, self.generator("network"), network)
        self.processes: dict[str, Process] = {}
        self.rows: list[Row] = []
        """The trace: what the applications did and got."""
        self.gaps: dict[str, list[tuple[int, int]]] = {}
        """By bus: times of its wall clock that its process did not see, as it was paused or its
        clock set forward, or in which its timers are late; the clock before and after."""
        self.pauses: dict[str, list[tuple[int, int]]] = {}
        """By bus: when its process was paused and continued, in true time."""
        self.failures: list[str] = []
        """Exceptions that no code handled."""
        self.iterations = 0
        self.running: ProcessLoop | None = None
        """The loop whose iteration runs."""
        self._entered: ProcessLoop | None = None
        """The loop that asyncio takes for the running one, which stays that between iterations:
        setting it is slow."""
        self._closed = False
        self._starts = 0
        self._steps: dict[str, int] = {}
        """By node: the step of its last row."""
        self._bits = self.generator("scheduler").getrandbits
        self._hosts: dict[str, Host] = {}
        self._events: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._event_count = 0
        self._running: dict[Process, int] = {}
        """By process: its place in the sequence in which processes were started."""
        self._ready: list[Process] = []
        """Processes with callbacks to run, by place."""
        self._timer_ns: float = inf
        """No timer of a process is due before."""
        self._graveyard: list[Any] = []
        """What killed processes left: freed at the end, so that no `finally` of theirs runs."""

    def generator(self, purpose: str) -> Random:
        """Return a random generator of the seed, for one purpose."""
        return Random(f"{self.seed}/{purpose}")  # noqa: S311 - replays a seed

    # -- For programs ---------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """True time since the beginning, in seconds."""
        return self.now_ns / SECOND_NS

    def host(self, name: str) -> Host:
        """Return a host: its disk and its clock."""
        if name not in self._hosts:
            self._hosts[name] = Host(self, name, self.generator(f"host {name}"))
        return self._hosts[name]

    def start(self, name: str, main: Main, *args: Any) -> Process:
        """Start a process on a host of its own: `main(*args)` is its program."""
        known = self.processes.get(name)
        if known is not None and known.alive:
            raise ValueError(f"there is a process {name!r} already: choose another name")
        process = self.processes[name] = Process(self, self.host(name), name, main, args)
        return process

    def at(self, when_ns: int, callback: Callable[..., object], *args: Any) -> None:
        """Call a function of the world itself at a true time."""
        self._event_count += 1
        heapq.heappush(self._events, (when_ns, self._event_count, callback, args))

    def record(self, host: Host | None, row: Row) -> None:
        """Take a row of the trace; `host` is that of the process whose crash ends the node."""
        if self._closed:
            return
        step = self._steps[row.node] = self._steps.get(row.node, 0) + 1
        self.rows.append(msgspec.structs.replace(row, step=step, true_ns=self.now_ns))
        if host is not None:
            host.nodes[row.node] = None

    def crashed(self, host: Host) -> None:
        """Record that the buses of a killed process are gone."""
        for node in tuple(host.nodes):
            at_ns = host.wall_ns()
            self.record(None, Row(run=RUN, node=node, step=0, at_ns=at_ns, action="crashed"))
        host.nodes.clear()

    # -- For processes --------------------------------------------------------------------------

    def started(self, process: Process) -> None:
        """Give a new process its share of the processor."""
        self._starts += 1
        self._running.setdefault(process, self._starts)

    def ended(self, process: Process) -> None:
        """Note that a process ended: what its tasks still do is dropped."""
        if process.killed:
            self._running.pop(process, None)

    def wake(self, process: Process) -> None:
        """Run the callbacks of a process, which had none or was stopped."""
        if not process.stopped and process in self._running:
            process.loop.awake = True
            insort(self._ready, process, key=self._running.__getitem__)

    def sleep(self, process: Process) -> None:
        """Run no callbacks of a process: it has none, is stopped, or was killed."""
        if process.loop.awake:
            process.loop.awake = False
            self._ready.remove(process)

    def expect_timer(self, due_ns: float) -> None:
        """Look at the timers of all processes at a time."""
        self._timer_ns = min(self._timer_ns, due_ns)

    def bury(self, process: Process) -> None:
        """Keep what a process left that was killed or is started again."""
        self._graveyard.append((list(process.loop.tasks), list(process.loop.ready), process.loop))

    def unhandled(self, process: Process, context: dict[str, Any]) -> None:
        """Take an exception that no code of a process handled."""
        error = context.get("exception")
        text = "" if error is None else "".join(traceback.format_exception(error))
        self.failures.append(f"{process.name}: {context.get('message')}\n{text}".strip())

    # -- Running --------------------------------------------------------------------------------

    def run(self, main: Callable[[], Awaitable[Any]], *, until_s: float) -> Any:
        """Run until the main process ends; return its result."""
        process = self.start(MAIN, main)
        until_ns = int(until_s * SECOND_NS)
        try:
            while process.alive:
                if not self._step():
                    raise Stuck(self._describe("nothing is left that could happen"))
                if self.now_ns > until_ns:
                    why = f"it has not ended after {until_s:g} virtual seconds"
                    raise Stuck(self._describe(why))
                if self.iterations > ITERATIONS_MAX:
                    raise Stuck(self._describe(f"more than {ITERATIONS_MAX} iterations"))
        finally:
            self._enter(None)
        if process.killed:
            raise SimulationFailed("the main process was killed")
        return process.task.result()

    def _step(self) -> bool:
        """Run one iteration of one process, or let time pass; return False if nothing is left."""
        now_ns = self.now_ns
        while self._events and self._events[0][0] <= now_ns:
            _, _, callback, args = heapq.heappop(self._events)
            callback(*args)
        if self._timer_ns <= now_ns:
            self._collect_timers(now_ns)
        ready = self._ready
        if ready:
            count = len(ready)
            chosen = ready[0] if count == 1 else ready[self._below(count)]
            self.iterations += 1
            loop = chosen.loop
            if self._entered is not loop:
                self._enter(loop)
            self.running = loop
            try:
                loop.run_iteration()
            finally:
                self.running = None
            if loop.awake and not loop.ready:
                self.sleep(chosen)
            self.now_ns += 1 + self._below(ITERATION_NS_MAX)
            return True
        due_ns = min(self._timer_ns, self._events[0][0] if self._events else inf)
        if due_ns == inf:
            return False
        self.now_ns = max(now_ns, int(due_ns))
        return True

    def _enter(self, loop: ProcessLoop | None) -> None:
        """Make a loop the one that asyncio takes for the running one; None: none."""
        self._entered = loop
        asyncio._set_running_loop(loop)  # noqa: SLF001 - what asyncio offers to loops

    def _below(self, limit: int) -> int:
        """Draw an integer below a limit, as `Random.randrange` does, in less time."""
        bits = limit.bit_length()
        drawn = self._bits(bits)
        while drawn >= limit:
            drawn = self._bits(bits)
        return drawn

    def _collect_timers(self, now_ns: int) -> None:
        """Make due timers ready, and note when the next one is due."""
        next_ns = inf
        for process in self._running:
            if not process.stopped:
                process.loop.collect_timers(now_ns)
                next_ns = min(next_ns, process.loop.next_timer_ns())
        self._timer_ns = next_ns

    def raise_failures(self) -> None:
        """Raise if there was an exception that no code handled."""
        for process in self.processes.values():
            # What asyncio logs as "never retrieved" when such a task is collected.
            if process.task.done() and getattr(process.task, "_log_traceback", False):
                error = process.task.exception()
                self.unhandled(process, {"message": "the process ended", "exception": error})
        if self.failures:
            raise SimulationFailed("an exception was not handled: " + "\n".join(self.failures))

    def broken(self) -> list[tuple[Process, BaseException]]:
        """Return the processes that ended with an exception."""
        found = []
        for process in self.processes.values():
            if process.task.done() and not process.task.cancelled():
                error = process.task.exception()
                if error is not None:
                    found.append((process, error))
        return found

    def _describe(self, what: str) -> str:
        lines = [f"{what}, at {self.now_s:.3f} s"]
        for process in self._running:
            if process.alive and not process.stopped:
                lines.append(f"process {process.name}:")
                lines += [f"  {each}" for each in process.waits()]
        return "\n".join(lines)

    def close(self) -> None:
        """Drop all processes: nothing of them runs any more."""
        for process in self._running:
            self.bury(process)
            process.loop.kill()
        self._running.clear()
        self._ready.clear()
        self._events.clear()
        self._closed = True

    def free(self) -> None:
        """Free what dropped processes left; what their `finally` blocks attempt is ignored."""
        try:
            for tasks, _, loop in self._graveyard:
                # What `finally` blocks schedule goes to the dead loop, not to a new real one.
                self._enter(loop)
                left, known = list(tasks), set[Any]()
                while left:
                    for task in left:
                        task._log_destroy_pending = False  # noqa: SLF001 - dropped on purpose
                        _finish(task.get_coro())
                    known.update(left)
                    left = [task for task in loop.tasks if task not in known]
        finally:
            self._enter(None)
        self._graveyard.clear()
        self.processes.clear()
        self._hosts.clear()


def _finish(coroutine: Any) -> None:
    """Close a coroutine until it has left all of its blocks, also if it waits in them.

    From the innermost outwards: one that waits while it is closed fails the one that awaits it, and
    is left behind.
    """
    for _ in range(CLOSES_MAX):
        if getcoroutinestate(coroutine) == CORO_CLOSED:
            return
        innermost = coroutine
        while iscoroutine(inner := innermost.cr_await) and getcoroutinestate(inner) != CORO_CLOSED:
            innermost = inner
        with suppress(BaseException):
            innermost.close()
