"""Handlers with small limits: of events read ahead, of events parked and of their keys.

- Handlers get no event farther than `pending_max` from the first unfinished one.
- A run ends with `LimitReached` when `Park` has no more room, and not before. The event is not
  acknowledged: the next run begins with it. Taking parked events away makes room.
- `Progress` counts what handlers did, over several runs, and no event is lost between them.
"""

import asyncio
from collections.abc import Iterator

import ensue
from ensue.core.errors import LimitReached
from ensue.testing.swarm.call_context import CallContext, Main
from ensue.testing.swarm.rare_calls import BOUNDS

__all__ = ["BoundedRuns"]

FAILURE_RATE = 0.1


class BoundedRuns:
    """The client of a run that handles events within small limits."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._random = context.world.generator("bounded runs")

    def mains(self) -> Iterator[tuple[str, Main]]:
        """Yield the processes that are to be started: their names and programs."""
        if BOUNDS in self._context.drawn.calls:
            yield "parker", self._run

    async def _run(self) -> None:
        random, context = self._random, self._context
        async with (
            context.connect("parker", random) as bus,
            bus.subscribe(*context.drawn.topics) as events,
        ):
            handled = _Handled(context, events)

            async def close() -> None:
                await context.until_over()
                events.close()

            closing = asyncio.create_task(close())
            try:
                while not await handled.run():
                    handled.take_away()
            finally:
                closing.cancel()
                await asyncio.gather(closing, return_exceptions=True)
            handled.end()


class _Handled:
    """What the handlers of one subscription did, in all its runs."""

    def __init__(self, context: CallContext, events: ensue.Subscription) -> None:
        self._context, self._events = context, events
        random = self._random = context.world.generator(f"bounded {events.name}")
        self._in_turn = random.random() < 0.5
        workers = 1 if self._in_turn else random.choice((1, 3))
        self._concurrency = (
            ensue.Sequential()
            if self._in_turn
            else ensue.PerKey(workers, key=lambda event: event.topic)
        )
        self._park = ensue.Park(
            rest_of_key=random.random() < 0.7,
            collected_max=random.choice((1, 3, 10)),
            keys_max=random.choice((1, 2)),
        )
        self._pending_max = random.choice((workers, 5, 20))
        self._progress = ensue.Progress()
        self._is_late = isinstance(context.drawn.order, ensue.Deadline)
        """Whether events may be dropped before their handler is called."""
        self._finished: set[int] = set()
        self._first = 1
        """The first position that is not finished."""
        self._last = 0
        self._handled = self._failed = self._away = 0
        self._next: int | None = None
        """The position that the next run begins with, in turn."""

    async def run(self) -> bool:
        """Handle events until a limit is reached; return whether the subscription ended."""
        retry = self._random.random() < 0.3
        policy = ensue.Retry(attempts=2, backoff_s=0.0, then=self._park) if retry else self._park
        try:
            progress = await self._events.run(
                self._handle,
                concurrency=self._concurrency,
                on_failure=policy,
                pending_max=self._pending_max,
                progress=self._progress,
            )
        except ensue.HandlerFailed as failed:
            self._note_collected()
            self._judge_limit(failed)
            self._compare()
            return False
        if progress is not self._progress:
            self._report("got another progress than it had passed")
        self._note_collected()
        self._compare()
        return True

    async def _handle(self, event: ensue.ReceivedEvent) -> None:
        self._note_collected()
        position = event.position
        self._last = max(self._last, position)
        if self._next is not None and self._in_turn and position != self._next:
            self._report(f"began with position {position} after it could not park {self._next}")
        self._next = None
        if not self._is_late and position - self._first >= self._pending_max:
            self._report(f"got position {position} beside {self._first}, over {self._pending_max}")
        if position in self._finished:
            self._report(f"handled position {position} twice")
        if self._random.random() < 0.2:
            await asyncio.sleep(self._random.choice((0.0, 0.01)))
        if self._random.random() < FAILURE_RATE:
            self._failed += 1
            raise ValueError("a handler fails now and then")
        self._handled += 1
        self._finish(position)

    def _finish(self, position: int) -> None:
        self._last = max(self._last, position)
        self._finished.add(position)
        while self._first in self._finished:
            self._first += 1

    def _note_collected(self) -> None:
        for parked in self._progress.collected:
            self._finish(parked.event.position)

    def _judge_limit(self, failed: ensue.HandlerFailed) -> None:
        cause, park, collected = failed.cause, self._park, self._progress.collected
        if not isinstance(cause, LimitReached):
            self._report(f"ended with {cause!r}")
            return
        self._next = failed.position
        limits = {"collected_max": park.collected_max, "keys_max": park.keys_max}
        if limits.get(cause.limit) != cause.value:
            self._report(f"ended with {cause!r}, and its limits are {limits}")
        if cause.limit == "collected_max" and len(collected) != park.collected_max:
            self._report(f"parked {len(collected)} of {park.collected_max} events and had no room")
        if failed.position in self._finished:
            self._report(f"could not park position {failed.position}, and finished it")

    def take_away(self) -> None:
        """Take some parked events away, which makes room."""
        collected = self._progress.collected
        count = self._random.randint(1, len(collected)) if collected else 0
        self._away += count
        del collected[:count]

    def _compare(self) -> None:
        """Compare the progress with what handlers did."""
        progress, park = self._progress, self._park
        parked = self._away + len(progress.collected)
        if (progress.handled, progress.failed, progress.parked) != (
            self._handled,
            self._failed,
            parked,
        ):
            self._report(
                f"has {progress.handled} handled, {progress.failed} failed, {progress.parked} "
                f"parked; its handlers {self._handled}, {self._failed}, {parked}"
            )
        if len(progress.collected) > park.collected_max:
            self._report(f"parked {len(progress.collected)} events, over {park.collected_max}")

    def end(self) -> None:
        """Judge that every event was handled or parked."""
        if not self._is_late and self._first <= self._last:
            self._report(f"neither handled nor parked position {self._first} of {self._last}")
        if self._events.pending:
            self._report(f"ended with {self._events.pending} pending events")

    def _report(self, what: str) -> None:
        self._context.problems.append(f"bounds: {self._events.name} {what}")
