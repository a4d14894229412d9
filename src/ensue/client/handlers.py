"""Handlers of a subscription: in parallel across keys, one at a time within a key.

Guarantees. Handlers of one key start in the order of delivery, each after the previous one has
returned or its event was parked. An event is acknowledged when its handler has returned or it was
parked; the acknowledgement counts once all earlier positions have theirs. A handler that fails is
retried, its event is parked, or the run stops; no event of its key overtakes it (`policies`).
Events of a topic that was left before their turn are skipped; so are events that are late by then.

Lanes. Each key with unfinished events has a lane: a queue whose first event is running, waiting for
a worker, or waiting for a retry. Lanes take turns, so that a hot key does not starve the others.
Each call of a handler runs in its own task: a handler that cancels itself does not cancel the run.

Limits. `workers` handlers at once. At most `pending_max` events from the first unfinished one to
the last one read, including finished ones in between, also those read before the run: at most so
many are delivered again when a subscription is resumed. At that limit reading stops, the
subscription fills up, and publishers wait as they do for a plain reader.

HAZARD: a handler that never returns stops the whole run once the events after it fill
`pending_max`. Give handlers a time limit, such as `asyncio.timeout`: then it is a failure.

HAZARD: a handler that publishes on a topic of its subscription waits for room as all publishers do.
If all handlers wait for room that only they can make, the run is deadlocked.

HAZARD: when a subscription is resumed, events that were handled after an unfinished one are
delivered again.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable
from functools import partial
from typing import Any, Protocol, TypeVar

from ensue.client.policies import (
    Concurrency,
    FailurePolicy,
    Handler,
    Park,
    Parked,
    PerKey,
    Progress,
    Retry,
    Sequential,
    Stop,
)
from ensue.client.received_event import ReceivedEvent
from ensue.client.validation import check_handler, check_pending_max
from ensue.core.errors import (
    BadInput,
    ConfigurationError,
    HandlerFailed,
    LimitReached,
    LocalProtocolError,
    limit_reason,
)

__all__ = ["READ_AHEAD_MAX", "ReadAhead", "Runner"]

READ_AHEAD_MAX = 1_000
"""Default for events from the first unfinished one to the last one read."""

T = TypeVar("T")
Task = asyncio.Task[None]

_log = logging.getLogger("ensue")


class Source(Protocol):
    """A subscription as a run uses it."""

    async def __anext__(self) -> ReceivedEvent: ...

    def acknowledge(self, position: int) -> None:
        """Acknowledge the event at a position."""


class _NotAsync(TypeError):
    """A function that should be async is not."""


class _Taken:
    """An event that was read."""

    __slots__ = ("attempts", "begun", "event", "finished", "left")

    def __init__(self, event: ReceivedEvent) -> None:
        self.event = event
        self.attempts = 0
        self.begun = False
        """Whether its handler was started."""
        self.left = False
        """Whether its topic was left before that."""
        self.finished = False


class _Lane:
    """The unfinished events of a key; the first is the one being handled."""

    __slots__ = ("events", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.events: deque[_Taken] = deque()


class ReadAhead:
    """The unfinished events between two runs of a subscription, and whether one is active."""

    def __init__(self) -> None:
        self.left: list[ReceivedEvent] = []
        """Events that the last run read and did not finish."""
        self.last_read = 0
        """The last position read, by runs or without one."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[Task] = set()
        self._pass_over: Callable[[Collection[str]], None] | None = None

    @property
    def running(self) -> bool:
        """Whether a run is active."""
        return not self._idle.is_set()

    def begin(self, tasks: set[Task], pass_over: Callable[[Collection[str]], None]) -> None:
        """Note that a run has begun.

        `tasks` is the changing set of its tasks; `pass_over` is called with topics that are left.
        """
        self._idle.clear()
        self._tasks = tasks
        self._pass_over = pass_over

    def end(self) -> None:
        """Note that the run has ended."""
        self._idle.set()
        self._pass_over = None

    def leave(self, topics: Collection[str]) -> list[int]:
        """Skip the unfinished events of topics that are left.

        Return their positions if no active run acknowledges them.
        """
        if self._pass_over is not None:
            self._pass_over(topics)
            return []
        gone = [event.position for event in self.left if event.topic in topics]
        self.left = [event for event in self.left if event.topic not in topics]
        return gone

    async def until_idle(self) -> None:
        """Wait until no run is active; a handler does not wait for its own run."""
        if asyncio.current_task() not in self._tasks:
            await self._idle.wait()


class Runner:
    """One run, made for one `await runner.run(…)`."""

    def __init__(
        self,
        source: Source,
        handler: Handler,
        *,
        concurrency: Concurrency,
        on_failure: FailurePolicy,
        pending_max: int = READ_AHEAD_MAX,
        progress: Progress | None = None,
        check: Callable[[ReceivedEvent], ReceivedEvent | None] | None = None,
        on_call: Callable[[ReceivedEvent], None] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        check_handler(handler, "a handler", "an event")
        if not isinstance(concurrency, Sequential | PerKey):
            raise BadInput(
                "concurrency must be a value such as ensue.Sequential() or ensue.PerKey(16), "
                f"got {concurrency!r}"
            )
        if not isinstance(on_failure, Stop | Park | Retry):
            raise BadInput(
                "on_failure must be a value such as ensue.Stop(), ensue.Park() or ensue.Retry(), "
                f"got {on_failure!r}"
            )
        check_pending_max(pending_max)
        self._workers = concurrency.workers if isinstance(concurrency, PerKey) else 1
        if pending_max < self._workers:
            raise ConfigurationError(
                f"pending_max must be at least the number of workers, {self._workers}, got "
                f"{pending_max}"
            )
        self._source = source
        self._handler = handler
        self._concurrency = concurrency
        self._policy = on_failure
        self._pending_max = pending_max
        self._progress = Progress() if progress is None else progress
        self._check = check
        """Returns the event that the handler is called with; None: it is skipped."""
        self._on_call = on_call
        """Called before each call of the handler."""
        self._sleep = sleep
        self._window: deque[_Taken] = deque()
        """Events read, from the first unfinished one on; of earlier runs the unfinished ones."""
        self._last_read = 0
        """The last position read: behind the window if an earlier run finished what followed."""
        self._lanes: dict[Hashable, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        """Lanes whose first event waits for a worker."""
        self._parked_keys: set[Hashable] = set()
        self._tasks: set[Task] = set()
        """The reader, and everything that runs for a lane."""
        self._waits: set[Task] = set()
        """Those of the tasks that wait for a retry."""
        self._working = 0
        """How many workers are busy."""
        self._reader: Task | None = None
        self._room = asyncio.Event()
        self._all_ended = asyncio.Event()
        self._stopping = False
        self._cancelled = False
        self._error: BaseException | None = None

    async def run(self, ahead: ReadAhead) -> Progress:
        """Handle what the last run left unfinished, then new events, until the source ends."""
        if ahead.running:
            raise LocalProtocolError("this subscription is being run already: one run at a time")
        ahead.begin(self._tasks, self._pass_over)
        # Before anything can be cancelled: these events must not be lost.
        self._window.extend(map(_Taken, ahead.left))
        self._last_read = ahead.last_read
        self._reader = self._spawn(self._read(tuple(self._window)), self._read_ended)
        try:
            await self._until_over()
        finally:
            ahead.end()
            open_ones = [taken for taken in self._window if not taken.finished]
            ahead.left = [taken.event for taken in open_ones if not taken.left]
            for taken in open_ones:
                if taken.left:
                    self._source.acknowledge(taken.event.position)
        return self._progress

    async def _until_over(self) -> None:
        cancelled: asyncio.CancelledError | None = None
        while not self._all_ended.is_set():
            try:
                await self._all_ended.wait()
            except asyncio.CancelledError as error:
                # Handlers are awaited, however often the run is cancelled.
                cancelled = error
                self._cancel()
        if cancelled is not None:
            if isinstance(self._error, Exception):
                _log.error("run cancelled while failing", exc_info=self._error)
            raise cancelled
        if self._error is not None:
            raise self._error

    async def _read(self, left: tuple[_Taken, ...]) -> None:
        for taken in left:
            self._enter(taken)
        while True:
            while self._is_full():
                self._room.clear()
                await self._room.wait()
            try:
                event = await anext(self._source)
            except StopAsyncIteration:
                return
            # Nothing is awaited between reading an event and adding it to the window.
            taken = _Taken(event)
            self._window.append(taken)
            self._last_read = event.position
            self._enter(taken)

    def _is_full(self) -> bool:
        """Return whether no more events may be read; those an earlier run finished count too."""
        if not self._window:
            return False
        return self._last_read - self._window[0].event.position + 1 >= self._pending_max

    def _read_ended(self, task: Task) -> None:
        error = _outcome(task)
        if error is not None and not self._stopping:
            self._stop(error)

    def _enter(self, taken: _Taken) -> None:
        key = self._key_of(taken.event)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key)
            self._ready.append(lane)
        lane.events.append(taken)
        self._start()

    def _pass_over(self, topics: Collection[str]) -> None:
        """Skip events of topics that are left, unless their handler was started."""
        for taken in self._window:
            if not taken.begun and taken.event.topic in topics:
                taken.left = True

    def _key_of(self, event: ReceivedEvent) -> Hashable:
        if isinstance(self._concurrency, Sequential):
            return None
        key_of = self._concurrency.key
        if key_of is None:
            return event.key
        try:
            key = key_of(event)
            hash(key)
        except Exception as error:
            raise BadInput(
                f"the key function of PerKey gave no key for {event.id}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if inspect.isawaitable(key):
            if inspect.iscoroutine(key):
                key.close()
            raise BadInput("the key function of PerKey must be a plain function, not an async one")
        return key

    def _start(self) -> None:
        """Start handlers while there are ready lanes and idle workers."""
        while self._ready and self._working < self._workers and not self._stopping:
            lane = self._ready.popleft()
            taken = lane.events[0]
            if taken.left:
                self._finish(lane)
                continue
            taken.begun = True
            if self._check is not None:
                checked = self._check(taken.event)
                if checked is None:
                    self._finish(lane)
                    continue
                taken.event = checked
            if self._on_call is not None:
                self._on_call(taken.event)
            if lane.key in self._parked_keys:
                self._park(lane, None)
            else:
                self._work(_call(self._handler, taken.event), partial(self._handled, lane))

    def _work(self, call: Coroutine[Any, Any, None], then: Callable[[Task], None]) -> None:
        self._working += 1
        assert self._working <= self._workers
        self._spawn(call, partial(self._worked, then))

    def _worked(self, then: Callable[[Task], None], task: Task) -> None:
        self._working -= 1
        then(task)

    def _handled(self, lane: _Lane, task: Task) -> None:
        """Finish, retry, park or stop after a call of the handler."""
        taken = lane.events[0]
        error = _outcome(task)
        if error is None:
            taken.attempts += 1
            self._progress.handled += 1
            self._finish(lane)
        elif isinstance(error, _NotAsync):
            self._stop(BadInput(f"a handler must be an async function: this one {error}"))
        elif isinstance(error, Exception | asyncio.CancelledError):
            if self._cancelled and task.cancelled():
                return  # Cancelled by this run: no failure.
            taken.attempts += 1
            self._progress.failed += 1
            self._failed(lane, error)
        else:
            self._stop(error)  # The program is to end.

    def _failed(self, lane: _Lane, error: BaseException) -> None:
        taken = lane.events[0]
        if self._stopping:
            _log.error("handler failed while stopping event=%r", taken.event, exc_info=error)
            return
        policy = self._policy
        if isinstance(policy, Retry):
            if taken.attempts < policy.attempts:
                wait = _call(self._sleep, policy.wait_s(taken.attempts))
                self._waits.add(self._spawn(wait, partial(self._waited, lane)))
                return
            policy = policy.then
        if isinstance(policy, Park):
            self._park(lane, error)
        else:
            self._give_up(taken, error, "its handler failed")

    def _waited(self, lane: _Lane, task: Task) -> None:
        self._waits.discard(task)
        error = _outcome(task)
        if self._stopping:
            return
        if error is not None:
            self._stop(error)
        else:
            self._ready.append(lane)

    def _park(self, lane: _Lane, cause: BaseException | None) -> None:
        """Park the first event of a lane."""
        taken = lane.events[0]
        policy = self._policy.then if isinstance(self._policy, Retry) else self._policy
        assert isinstance(policy, Park)
        parked = Parked(taken.event, taken.attempts, cause)
        if policy.rest_of_key and lane.key not in self._parked_keys:
            if len(self._parked_keys) >= policy.keys_max:
                self._limit(taken, cause, "keys_max", policy.keys_max)
                return
            self._parked_keys.add(lane.key)
        if policy.to is not None:
            self._work(_call(policy.to, parked), partial(self._set_aside, lane))
        elif len(self._progress.collected) >= policy.collected_max:
            self._limit(taken, cause, "collected_max", policy.collected_max)
        else:
            self._progress.collected.append(parked)
            self._progress.parked += 1
            self._finish(lane)

    def _set_aside(self, lane: _Lane, task: Task) -> None:
        """Finish or stop after a call of `Park.to`."""
        error = _outcome(task)
        if error is None:
            self._progress.parked += 1
            self._finish(lane)
        elif isinstance(error, _NotAsync):
            self._stop(BadInput(f"Park.to must be an async function: this one {error}"))
        elif not isinstance(error, Exception | asyncio.CancelledError):
            self._stop(error)
        elif not (self._cancelled and task.cancelled()):
            self._give_up(lane.events[0], error, "it could not be parked")

    def _limit(self, taken: _Taken, cause: BaseException | None, limit: str, value: int) -> None:
        text = limit_reason("Park has no more room", limit, value, f"give Park a larger {limit}")
        reached = LimitReached(text, limit=limit, value=value)
        reached.__cause__ = cause
        self._give_up(taken, reached, "it could not be parked")

    def _give_up(self, taken: _Taken, cause: BaseException, why: str) -> None:
        event = taken.event
        attempts = "1 attempt" if taken.attempts == 1 else f"{taken.attempts} attempts"
        self._stop(
            HandlerFailed(
                f"the run has stopped at {event.id}, position {event.position}: {why} after "
                f"{attempts}: {type(cause).__name__}: {cause}",
                event=event.event,
                position=event.position,
                attempts=taken.attempts,
                cause=cause,
            )
        )

    def _finish(self, lane: _Lane) -> None:
        """Acknowledge the first event of a lane, and let the next one have its turn."""
        taken = lane.events.popleft()
        taken.finished = True
        if lane.events:
            self._ready.append(lane)
        else:
            del self._lanes[lane.key]
        while self._window and self._window[0].finished:
            self._window.popleft()
        if not self._is_full():
            self._room.set()
        self._source.acknowledge(taken.event.position)

    def _stop(self, error: BaseException) -> None:
        """Start no more handlers, and raise an error when the running ones have ended."""
        if self._error is None:
            self._error = error
        else:
            _log.error("run failed while stopping", exc_info=error)
        self._stopping = True
        assert self._reader is not None
        self._reader.cancel()
        for task in self._waits:
            task.cancel()

    def _cancel(self) -> None:
        self._stopping = self._cancelled = True
        for task in self._tasks:
            task.cancel()

    def _spawn(self, call: Coroutine[Any, Any, None], then: Callable[[Task], None]) -> Task:
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, then))
        return task

    def _ended(self, then: Callable[[Task], None], task: Task) -> None:
        """Go on after a task; an error must not leave the run waiting."""
        self._tasks.discard(task)
        try:
            then(task)
            self._start()
        except Exception as error:  # noqa: BLE001 - the run raises it
            self._stop(error)
        if not self._tasks:
            assert self._stopping or not self._lanes
            self._all_ended.set()


async def _call(function: Callable[[T], Awaitable[object]], argument: T) -> None:
    result = function(argument)
    if not inspect.isawaitable(result):
        raise _NotAsync(f"returned {type(result).__name__}")
    await result


def _outcome(task: Task) -> BaseException | None:
    """Return the exception of a task; None if it returned."""
    try:
        return task.exception()
    except asyncio.CancelledError as error:
        return error
