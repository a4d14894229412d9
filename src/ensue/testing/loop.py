"""The event loop of one simulated process.

A real process runs callbacks in the sequence in which they were scheduled, one iteration of its
event loop at a time. Processes run side by side, and the operating system decides which one gets
the processor. The simulation does the same with one thread: each process has a `ProcessLoop`, and
the scheduler of the world (`ensue.testing.world`) picks the process whose next iteration runs.

Callbacks, tasks, timers, timeouts and cancellation are asyncio's own: this class only stores
handles and says what time it is. Everything that a real loop does with sockets, signals, threads
and subprocesses either goes to the simulated network or raises `EscapedSimulation`.
"""

import asyncio
import heapq
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from math import inf
from ssl import SSLError
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from weakref import WeakSet

from ensue.testing.errors import EscapedSimulation

if TYPE_CHECKING:
    from ensue.testing.process import Process

__all__ = ["ProcessLoop"]

T = TypeVar("T")
SECOND_NS = 1_000_000_000


class _Task(asyncio.Task[T]):
    """A task with a hash of its own: asyncio and programs iterate over sets of tasks.

    The default hash is an address, so that the sequence would differ from run to run.
    """

    def __init__(self, number: int, *args: Any, **options: Any) -> None:
        self._number = number
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[T]):
    """A future with a hash of its own, for the same reason."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class ProcessLoop(asyncio.AbstractEventLoop):
    """Stores the callbacks and timers of one life of a process."""

    def __init__(self, process: "Process", context: Context) -> None:
        self.process = process
        self.context = context
        """Where callbacks run that the world schedules, such as those of the network."""
        self.dead = False
        """Whether the process was killed: callbacks are dropped."""
        self.ready: deque[asyncio.Handle] = deque()
        self.awake = False
        """Whether the scheduler knows that callbacks are ready."""
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.generators: WeakSet[Any] = WeakSet()
        """Asynchronous generators that were started and not exhausted."""
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._future_count = 0
        self._exception_handler: Callable[[Any, dict[str, Any]], object] | None = None
        self._task_factory: Callable[..., asyncio.Task[Any]] | None = None
        self._closed = False

    # -- For the scheduler ----------------------------------------------------------------------

    def next_timer_ns(self) -> float:
        """Return when the next timer is due; infinity if there is none."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else inf

    def timers(self) -> list[asyncio.TimerHandle]:
        """Return the timers that are not cancelled, the next one first."""
        return [handle for _, _, handle in sorted(self._timers) if not handle.cancelled()]

    def collect_timers(self, now_ns: int) -> None:
        """Move due timers behind the callbacks that are ready."""
        while self._timers and self._timers[0][0] <= now_ns:
            handle = heapq.heappop(self._timers)[2]
            if not handle.cancelled():
                self._make_ready(handle)

    def _make_ready(self, handle: asyncio.Handle) -> None:
        self.ready.append(handle)
        # A life of the process that has ended is not run any more.
        if not self.awake and self.process.loop is self:
            self.process.world.wake(self.process)

    def delay_timers(self, by_ns: int) -> None:
        """Move all timers: the machine was suspended for so long."""
        self._timers = [(due_ns + by_ns, count, each) for due_ns, count, each in self._timers]

    def run_iteration(self) -> None:
        """Run the callbacks that are ready now; those that they schedule run next time."""
        ready = self.ready
        for _ in range(len(ready)):
            if self.dead:
                return
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()  # noqa: SLF001 - what a loop does with a handle

    def kill(self) -> None:
        """Drop everything: not one more line of the process runs."""
        self.dead = True
        self.ready.clear()
        self._timers.clear()

    # -- Callbacks and timers -------------------------------------------------------------------

    def time(self) -> float:
        """Return the monotonic time of the process's machine, in seconds."""
        return self.process.monotonic_ns() / SECOND_NS

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in the next iteration."""
        if context is None and self.process.world.running is not self:
            context = self.context.copy()
        handle = asyncio.Handle(callback, args, self, context)
        if not self.dead:
            self._make_ready(handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback after a delay in seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback at a time of this loop."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.dead:
            self._timer_count += 1
            due_ns = self.process.true_ns_of(round(when * SECOND_NS))
            heapq.heappush(self._timers, (due_ns, self._timer_count, handle))
            self.process.world.expect_timer(due_ns)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled timers are skipped when they are due."""

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in the next iteration: there is one thread."""
        return self.call_soon(callback, *args, context=context)

    # -- Tasks and futures ----------------------------------------------------------------------

    def create_future(self) -> "asyncio.Future[Any]":
        """Return a future of this loop."""
        self._future_count += 1
        return _Future(self._future_count, self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
        **options: Any,
    ) -> "asyncio.Task[T]":
        """Start a task."""
        task: asyncio.Task[T]
        if self._task_factory is not None:
            task = self._task_factory(self, coro, context=context, **options)
            if name is not None:
                task.set_name(name)
        else:
            self._future_count += 1
            task = _Task(self._future_count, coro, loop=self, name=name, context=context, **options)
        self.tasks.add(task)
        return task

    def set_task_factory(self, factory: Any) -> None:
        """Make tasks with a factory."""
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        """Return the factory of tasks; None: asyncio's own."""
        return self._task_factory

    async def shutdown_asyncgens(self) -> None:
        """Close all asynchronous generators."""
        for generator in list(self.generators):
            await generator.aclose()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Do nothing: there are no threads."""

    # -- State ----------------------------------------------------------------------------------

    def is_running(self) -> bool:
        """Return whether an iteration runs."""
        return self.process.world.running is self

    def is_closed(self) -> bool:
        """Return whether the loop was closed or its process killed."""
        return self._closed or self.dead

    def close(self) -> None:
        """Take no more callbacks."""
        self._closed = True

    def get_debug(self) -> bool:
        """Return False: debugging would read the real clock."""
        return False

    def set_debug(self, enabled: bool) -> None:
        """Ignore the request: see `get_debug`."""

    # -- Failures -------------------------------------------------------------------------------

    def set_exception_handler(self, handler: Any) -> None:
        """Handle exceptions of callbacks by a function of the application."""
        self._exception_handler = handler

    def get_exception_handler(self) -> Any:
        """Return the handler of the application."""
        return self._exception_handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an exception that no code handles: the run has failed."""
        self.process.world.unhandled(self.process, context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Handle an exception of a callback or a forgotten task."""
        if self.dead:
            return
        if self._exception_handler is not None:
            self._exception_handler(self, context)
        else:
            self.default_exception_handler(context)

    # -- The network ----------------------------------------------------------------------------

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        **_options: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to a listener in the simulated network."""
        if ssl:
            error = SSLError("TLS is not simulated: leave tls=1 out of the URL")
            error.reason = "NOT_SIMULATED"
            raise error
        if host is None or port is None:
            self._escape("a socket of its own")
        return await self.process.network.connect(self.process, protocol_factory, host, int(port))

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: Any = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        start_serving: bool = True,
        **_options: Any,
    ) -> Any:
        """Listen in the simulated network."""
        if ssl:
            self._escape("TLS")
        return self.process.network.listen(
            self.process, protocol_factory, host, int(port or 0), serving=start_serving
        )

    def remove_reader(self, fd: Any) -> bool:
        """Stop accepting at a listener."""
        return self.process.network.stop_accepting(fd)

    # -- What would leave the simulation --------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Raise: threads are not simulated."""
        del executor, args
        self._escape(f"a thread, to run {func!r}")

    def run_forever(self) -> None:
        """Raise: the world runs this loop."""
        self._escape("an event loop of its own")

    def run_until_complete(self, future: Any) -> Any:
        """Raise: the world runs this loop."""
        del future
        self._escape("an event loop of its own")

    def stop(self) -> None:
        """Raise: the world runs this loop."""
        self._escape("an event loop of its own")

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., object], *args: Any
    ) -> None:
        """Raise: signals are not simulated."""
        del callback, args
        self._escape(f"signal {sig}")

    async def getaddrinfo(self, host: Any, port: Any, **_options: Any) -> Any:
        """Raise: the simulated network resolves names itself."""
        self._escape(f"the address of {host}:{port}")

    def _escape(self, what: str) -> NoReturn:
        raise EscapedSimulation(f"process {self.process.name!r} asked for {what}")


def install_generator_hooks() -> Any:
    """Close abandoned asynchronous generators in their own loops; return the old hooks."""
    before = sys.get_asyncgen_hooks()
    owners: dict[int, ProcessLoop] = {}

    def started(generator: Any) -> None:
        loop = asyncio._get_running_loop()  # noqa: SLF001 - what asyncio offers to loops
        if isinstance(loop, ProcessLoop):
            loop.generators.add(generator)
            owners[id(generator)] = loop

    def abandoned(generator: Any) -> None:
        loop = owners.pop(id(generator), None)
        if loop is not None and not loop.dead:
            loop.call_soon(loop.create_task, generator.aclose())

    sys.set_asyncgen_hooks(firstiter=started, finalizer=abandoned)
    return before
