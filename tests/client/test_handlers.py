"""Handlers in parallel, keys in order: `Subscription.run`.

Every handler waits at a gate that the test opens, and every back-off is a fake, so that a schedule
is what the test says it is. "At rest" means that the event loop has turned until nothing moves.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transports.suite import take

import ensue
from ensue.client.handlers import ReadAhead, Runner
from ensue.client.policies import FailurePolicy
from ensue.client.reader import NodeReader
from ensue.protocols.total.subscriber import Subscriber

bounded = settings(derandomize=True, deadline=None, max_examples=60)

TURNS = 40
"""Far more event loop iterations than any test needs to become idle."""


async def rest() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@asynccontextmanager
async def filled(keys: str, **options: Any) -> AsyncIterator[ensue.Subscription]:
    """A subscription with an event for each letter, at positions 1, 2, 3, …; - has no key."""
    async with ensue.connect("memory://") as bus, bus.subscribe("t", **options) as events:
        for key in keys:
            await bus.publish("t", b"", key=None if key == "-" else key.encode())
        yield events


class Gate:
    """A handler whose calls wait until the test lets them go."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        """Positions, as the handler was called with them."""
        self.returned: list[int] = []
        self.cancelled: list[int] = []
        self.inside: dict[int, tuple[bytes | None, asyncio.Future[None]]] = {}
        self.most = 0

    async def __call__(self, event: ensue.ReceivedEvent) -> None:
        if event.key in [key for key, _ in self.inside.values()]:
            pytest.fail("two events of a key at once")  # Which no policy takes for a failure.
        self.calls.append(event.position)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.inside[event.position] = event.key, future
        self.most = max(self.most, len(self.inside))
        try:
            await future
        except asyncio.CancelledError:
            self.cancelled.append(event.position)
            raise
        finally:
            del self.inside[event.position]
        self.returned.append(event.position)

    @property
    def waiting(self) -> list[int]:
        return sorted(self.inside)

    async def open(self, *positions: int) -> None:
        for position in positions:
            self.inside[position][1].set_result(None)
        await rest()

    async def fail(self, position: int, error: BaseException | None = None) -> None:
        self.inside[position][1].set_exception(error or ValueError(f"at {position}"))
        await rest()

    async def open_all(self) -> None:
        while self.inside:
            await self.open(*self.waiting)


async def start(
    events: ensue.Subscription, handler: Any, **options: Any
) -> "asyncio.Task[ensue.Progress]":
    """Begin a run, and wait until it is idle."""
    task = asyncio.create_task(events.run(handler, **options))
    await rest()
    return task


async def end(events: ensue.Subscription, run: "asyncio.Task[ensue.Progress]") -> ensue.Progress:
    events.close()
    async with asyncio.timeout(30):
        return await run


def unacknowledged(events: ensue.Subscription) -> list[int]:
    """The positions without an acknowledgement."""
    assert isinstance(events._reader, NodeReader)
    assert events._reader._driver is not None
    node = events._reader._driver.node
    assert isinstance(node, Subscriber)
    return [position for position, _, _ in node.progress.unacknowledged]


def by_key(keys: str, positions: list[int]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for position in positions:
        found[keys[position - 1]].append(position)
    return dict(found)


# Order and concurrency


@bounded
@given(
    keys=st.text("abcd-", min_size=1, max_size=24),
    workers=st.integers(1, 5),
    room=st.integers(0, 8),
    seed=st.integers(0, 2**32),
)
def test_keys_stay_in_order_however_long_handlers_take(
    keys: str, workers: int, room: int, seed: int
) -> None:
    random = Random(seed)
    pending_max = workers + room
    open_positions = set(range(1, len(keys) + 1))

    async def main() -> None:
        async with filled(keys, acknowledge="manual") as events:
            gate = Gate()
            run = await start(
                events, gate, concurrency=ensue.PerKey(workers), pending_max=pending_max
            )
            while open_positions:
                # The obvious model: of what may be read, the first of each key, as many as workers.
                first = min(open_positions)
                readable = sorted(p for p in open_positions if p < first + pending_max)
                heads = {ps[0] for ps in by_key(keys, readable).values()}
                assert set(gate.waiting) <= heads
                assert len(gate.waiting) == min(workers, len(heads))
                assert unacknowledged(events) == list(range(first, len(keys) + 1))
                for position in random.sample(gate.waiting, random.randint(1, len(gate.waiting))):
                    open_positions.remove(position)
                    await gate.open(position)
            assert unacknowledged(events) == []
            assert (await end(events, run)).handled == len(keys)
            assert by_key(keys, gate.calls) == by_key(keys, list(range(1, len(keys) + 1)))

    asyncio.run(main())


@bounded
@given(
    keys=st.text("abc", min_size=1, max_size=16),
    workers=st.integers(1, 4),
    rest_of_key=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_failures_never_reorder_a_key(
    keys: str, workers: int, rest_of_key: bool, seed: int
) -> None:
    random = Random(seed)
    attempts = 2
    failures = {position: random.choice((0, 0, 0, 1, 2)) for position in range(1, len(keys) + 1)}
    calls: dict[str, list[int]] = defaultdict(list)
    parked: dict[str, list[int]] = defaultdict(list)
    handled = 0
    for position, key in enumerate(keys, 1):  # The obvious model: one key after another.
        if rest_of_key and parked[key]:
            parked[key].append(position)
            continue
        calls[key] += [position] * min(failures[position] + 1, attempts)
        if failures[position] < attempts:
            handled += 1
        else:
            parked[key].append(position)

    async def main() -> None:
        async with filled(keys, acknowledge="manual") as events:
            gate = Gate()
            progress = ensue.Progress()
            runner = Runner(
                events,
                gate,
                concurrency=ensue.PerKey(workers),
                on_failure=ensue.Retry(attempts, then=ensue.Park(rest_of_key=rest_of_key)),
                progress=progress,
                sleep=lambda _seconds: asyncio.sleep(0),
            )
            run = asyncio.create_task(runner.run(ReadAhead()))
            await rest()
            while gate.inside:
                position = random.choice(gate.waiting)
                done = {*gate.returned, *(each.event.position for each in progress.collected)}
                left = [p for p in range(1, len(keys) + 1) if p not in done]
                assert unacknowledged(events) == list(range(left[0], len(keys) + 1))
                if gate.calls.count(position) <= failures[position]:
                    await gate.fail(position)
                else:
                    await gate.open(position)
            assert unacknowledged(events) == []
            assert await end(events, run) is progress
            assert by_key(keys, gate.calls) == {key: ps for key, ps in calls.items() if ps}
            collected = [each.event.position for each in progress.collected]
            assert by_key(keys, collected) == {key: ps for key, ps in parked.items() if ps}
            assert progress.handled == handled
            assert progress.parked == len(collected)
            assert progress.failed == len(gate.calls) - handled

    asyncio.run(main())


def test_as_many_handlers_run_at_once_as_there_are_workers() -> None:
    async def main() -> None:
        async with filled("abcdefgh") as events:
            gate = Gate()
            run = await start(events, gate, concurrency=ensue.PerKey(3))
            assert gate.waiting == [1, 2, 3]
            await gate.open_all()
            assert gate.most == 3
            assert (await end(events, run)).handled == 8

    asyncio.run(main())


def test_default_is_one_handler_at_a_time_in_order() -> None:
    async def main() -> None:
        async with filled("abc") as events:
            gate = Gate()
            run = await start(events, gate)
            await gate.open_all()
            assert gate.most == 1
            assert gate.calls == [1, 2, 3]
            assert (await end(events, run)).handled == 3

    asyncio.run(main())


def test_events_without_key_share_one_key() -> None:
    async def main() -> None:
        async with filled("--a-") as events:
            gate = Gate()
            run = await start(events, gate, concurrency=ensue.PerKey(4))
            assert gate.waiting == [1, 3]
            await gate.open_all()
            await end(events, run)

    asyncio.run(main())


def test_key_function_defines_the_keys() -> None:
    async def main() -> None:
        async with filled("aAbB") as events:
            gate = Gate()
            by_letter = ensue.PerKey(4, key=lambda event: (event.key or b"").lower())
            run = await start(events, gate, concurrency=by_letter)
            assert gate.waiting == [1, 3]
            await gate.open_all()
            await end(events, run)

    asyncio.run(main())


def test_hot_key_takes_turns_with_the_others() -> None:
    async def main() -> None:
        async with filled("aaabc") as events:
            gate = Gate()
            run = await start(events, gate, concurrency=ensue.PerKey(1))
            await gate.open_all()
            assert gate.calls == [1, 4, 5, 2, 3]
            await end(events, run)

    asyncio.run(main())


def test_stuck_key_blocks_others_when_it_fills_pending_max() -> None:
    async def main() -> None:
        async with filled("aabaacd") as events:
            gate = Gate()
            run = await start(events, gate, concurrency=ensue.PerKey(3), pending_max=5)
            assert gate.waiting == [1, 3]
            await gate.open(3)
            # Events finished after the stuck one count too: otherwise there is no limit.
            assert gate.waiting == [1]
            await gate.open(1)
            assert gate.waiting == [2, 6]
            await gate.open_all()
            assert (await end(events, run)).handled == 7

    asyncio.run(main())


def test_next_run_counts_what_the_last_one_finished_as_read_ahead() -> None:
    async def main() -> None:
        async with filled("abcdefgh") as events:
            gate = Gate()
            run = await start(events, gate, concurrency=ensue.PerKey(3), pending_max=5)
            await gate.open(2, 3)
            assert gate.waiting == [1, 4, 5]
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            again = await start(events, gate, concurrency=ensue.PerKey(4), pending_max=5)
            # From 1 on there are 5 events, of which 2 and 3 are finished.
            assert gate.waiting == [1, 4, 5]
            await gate.open(1)
            assert gate.waiting == [4, 5, 6, 7]
            await gate.open_all()
            assert (await end(events, again)).handled == 6

    asyncio.run(main())


async def have_no_room(_parked: ensue.Parked) -> None:
    raise OSError("no room")


@pytest.mark.parametrize(
    "on_failure",
    [ensue.Stop(), ensue.Retry(1), ensue.Park(to=have_no_room), None],
    ids=["stop", "retry", "park", "cancelled"],
)
def test_next_run_counts_what_was_finished_after_the_last_unfinished_event(
    on_failure: FailurePolicy | None,
) -> None:
    async def main() -> None:
        async with filled("abcdefg") as events:
            gate = Gate()
            run = await start(
                events,
                gate,
                concurrency=ensue.PerKey(4),
                pending_max=4,
                on_failure=on_failure or ensue.Stop(),
            )
            await gate.open(2, 3, 4)
            assert gate.waiting == [1]
            if on_failure is None:
                run.cancel()
            else:
                await gate.fail(1)
            await asyncio.gather(run, return_exceptions=True)
            again = await start(events, gate, concurrency=ensue.PerKey(4), pending_max=4)
            # From 1 on there are 4 events, of which 2, 3 and 4 are finished.
            assert gate.waiting == [1]
            await gate.open(1)
            assert gate.waiting == [5, 6, 7]
            await gate.open_all()
            assert (await end(events, again)).handled == 4

    asyncio.run(main())


def test_next_run_counts_what_was_read_without_a_run_as_read_ahead() -> None:
    async def main() -> None:
        async with filled("abcdef") as events:
            gate = Gate()
            run = await start(events, gate, pending_max=1)
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            assert [event.position for event in [await anext(events) for _ in range(2)]] == [2, 3]
            again = await start(events, gate, concurrency=ensue.PerKey(3), pending_max=3)
            assert gate.waiting == [1]
            await gate.open(1)
            assert gate.waiting == [4, 5, 6]
            await gate.open_all()
            await end(events, again)

    asyncio.run(main())


@bounded
@given(
    keys=st.text("abcd-", min_size=1, max_size=24),
    workers=st.integers(1, 5),
    room=st.integers(0, 8),
    seed=st.integers(0, 2**32),
)
def test_limit_of_events_read_ahead_holds_across_runs(
    keys: str, workers: int, room: int, seed: int
) -> None:
    random = Random(seed)
    pending_max = workers + room
    open_positions = set(range(1, len(keys) + 1))

    async def main() -> None:
        async with filled(keys, acknowledge="manual") as events:
            gate = Gate()
            options: dict[str, Any] = {
                "concurrency": ensue.PerKey(workers),
                "pending_max": pending_max,
            }
            run = await start(events, gate, **options)
            while open_positions:
                # The model of one run: where a run begins makes no difference.
                first = min(open_positions)
                readable = sorted(p for p in open_positions if p < first + pending_max)
                heads = {ps[0] for ps in by_key(keys, readable).values()}
                assert set(gate.waiting) <= heads
                assert len(gate.waiting) == min(workers, len(heads))
                position = random.choice(gate.waiting)
                ending = random.choice(("", "", "cancelled", "failed"))
                if ending == "failed":
                    # The others return before the run has ended.
                    others = [p for p in gate.waiting if p != position]
                    await gate.fail(position)
                    await gate.open(*others)
                    open_positions.difference_update(others)
                elif ending == "cancelled":
                    run.cancel()
                else:
                    open_positions.remove(position)
                    await gate.open(position)
                if ending:
                    await asyncio.gather(run, return_exceptions=True)
                    run = await start(events, gate, **options)
            await end(events, run)

    asyncio.run(main())


# Acknowledging and back-pressure


def test_acknowledgement_counts_after_all_earlier_ones() -> None:
    async def main() -> None:
        async with filled("abcd", acknowledge="manual") as events:
            gate = Gate()
            run = await start(events, gate, concurrency=ensue.PerKey(4))
            await gate.open(2, 4)
            assert unacknowledged(events) == [1, 2, 3, 4]
            await gate.open(1)
            assert unacknowledged(events) == [3, 4]
            await gate.open(3)
            assert unacknowledged(events) == []
            await end(events, run)

    asyncio.run(main())


def test_run_takes_over_automatic_acknowledgement() -> None:
    async def main() -> None:
        async with filled("abcd", acknowledge="auto") as events:
            await take(events, 1)
            gate = Gate()
            run = await start(events, gate, concurrency=ensue.PerKey(2))
            # The event read before counts as handled; those in handlers do not.
            assert list(events._acknowledgements.open) == [2, 3, 4]
            await gate.open(3)
            assert list(events._acknowledgements.open) == [2, 4]
            await gate.open_all()
            assert events.pending == 0
            await end(events, run)

    asyncio.run(main())


def test_event_read_before_a_run_needs_its_own_acknowledgement() -> None:
    async def main() -> None:
        async with filled("ab", acknowledge="manual") as events:
            (first,) = await take(events, 1)
            gate = Gate()
            run = await start(events, gate)
            await gate.open_all()
            assert unacknowledged(events) == [1, 2]
            await first.ack()
            assert unacknowledged(events) == []
            await end(events, run)

    asyncio.run(main())


def test_publishers_wait_for_handlers() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("t", pending_max=4) as events:
            gate = Gate()
            run = await start(events, gate, concurrency=ensue.PerKey(2), pending_max=2)

            async def publish() -> None:
                for number in range(10):
                    await bus.publish("t", b"", key=bytes([number]))

            publisher = asyncio.create_task(publish())
            await rest()
            assert not publisher.done()
            assert gate.waiting == [1, 2]
            assert len(events._queue.unread) == 2, "reading has stopped at the limit of the run"
            await gate.open_all()
            async with asyncio.timeout(30):
                await publisher
            await gate.open_all()
            assert (await end(events, run)).handled == 10

    asyncio.run(main())


# Ending


def test_run_ends_after_close_when_received_events_are_handled() -> None:
    async def main() -> None:
        async with filled("aab") as events:
            gate = Gate()
            run = await start(events, gate, concurrency=ensue.PerKey(2), pending_max=2)
            events.close()
            await rest()
            assert not run.done()
            await gate.open_all()
            async with asyncio.timeout(30):
                assert await run == ensue.Progress(handled=3)

    asyncio.run(main())


def test_handler_may_publish_on_its_bus_and_close_its_subscription() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("t") as events:

            async def handle(event: ensue.ReceivedEvent) -> None:
                count = int(event.payload)
                if count:
                    await bus.publish("t", str(count - 1).encode(), key=event.key)
                else:
                    events.close()

            await bus.publish("t", b"5", key=b"k")
            async with asyncio.timeout(30):
                progress = await events.run(handle, concurrency=ensue.PerKey(2))
            assert progress.handled == 6

    asyncio.run(main())


def test_cancelling_cancels_handlers_and_acknowledges_completed_events() -> None:
    async def main() -> None:
        async with filled("abac", acknowledge="manual") as events:
            gate = Gate()
            progress = ensue.Progress()
            run = await start(events, gate, concurrency=ensue.PerKey(3), progress=progress)
            await gate.open(1)
            assert gate.waiting == [2, 3, 4]
            gate.inside[4][1].set_result(None)  # Completed in the turn of the cancellation.
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert gate.inside == {}
            assert sorted(gate.cancelled) == [2, 3]
            assert list(events._acknowledgements.open) == [2, 3]
            assert unacknowledged(events) == [2, 3, 4]
            assert progress == ensue.Progress(handled=2), "to be cancelled is no failure"

    asyncio.run(main())


def test_cancelling_waits_for_cleanup_and_counts_completed_handlers() -> None:
    async def main() -> None:
        async with filled("abb") as events:
            tidied = asyncio.Event()
            calls: list[int] = []

            async def handle(event: ensue.ReceivedEvent) -> None:
                calls.append(event.position)
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if event.key == b"a":
                        await tidied.wait()
                        raise
                    # The other one completes anyway.

            run = await start(events, handle, concurrency=ensue.PerKey(2))
            run.cancel()
            await rest()
            assert not run.done()
            assert list(events._acknowledgements.open) == [1, 3]
            tidied.set()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert calls == [1, 2]
            assert list(events._acknowledgements.open) == [1, 3]

    asyncio.run(main())


def test_second_cancel_interrupts_cleanup_of_handlers() -> None:
    async def main() -> None:
        async with filled("a") as events:
            hurried = False

            async def handle(_event: ensue.ReceivedEvent) -> None:
                nonlocal hurried
                try:
                    await asyncio.Event().wait()
                finally:
                    try:
                        await asyncio.Event().wait()
                    except asyncio.CancelledError:
                        hurried = True
                        raise

            run = await start(events, handle)
            for _ in range(2):
                assert not run.done()
                run.cancel()
                await rest()
            assert run.cancelled()
            assert hurried

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(4))
def test_next_run_begins_with_unfinished_events(turns: int) -> None:
    async def main() -> None:
        async with filled("abab", acknowledge="manual") as events:
            gate = Gate()
            run = await start(events, gate, concurrency=ensue.PerKey(2))
            await gate.open(2)
            run.cancel()
            await rest()
            second = asyncio.create_task(events.run(gate))
            for _ in range(turns):  # However early it is cancelled, it loses nothing either.
                await asyncio.sleep(0)
            second.cancel()
            await rest()
            gate.calls.clear()
            third = await start(events, gate)
            await gate.open_all()
            assert gate.calls == [1, 3, 4]
            assert unacknowledged(events) == []
            await end(events, third)

    asyncio.run(main())


# Failing


def test_stop_lets_running_handlers_finish_and_starts_no_more() -> None:
    async def main() -> None:
        async with filled("abcab", acknowledge="manual") as events:
            gate = Gate()
            run = await start(events, gate, concurrency=ensue.PerKey(2))
            assert gate.waiting == [1, 2]
            await gate.fail(1)
            assert not run.done()
            await gate.open(2)
            with pytest.raises(ensue.HandlerFailed, match="ValueError: at 1") as caught:
                await run
            assert gate.calls == [1, 2]
            error = caught.value
            assert (error.event.key, error.position, error.attempts) == (b"a", 1, 1)
            assert isinstance(error.cause, ValueError)
            assert error.__cause__ is error.cause
            assert list(events._acknowledgements.open) == [1, 3, 4, 5]
            assert unacknowledged(events) == [1, 2, 3, 4, 5]

    asyncio.run(main())


def test_stop_ends_a_run_that_waits_for_events_and_one_that_waits_for_room() -> None:
    async def main(keys: str) -> None:
        async with filled(keys) as events:
            gate = Gate()
            run = await start(events, gate, pending_max=2)
            await gate.fail(1)
            assert run.done()
            with pytest.raises(ensue.HandlerFailed):
                await run

    asyncio.run(main("a"))
    asyncio.run(main("aaa"))


def test_event_acknowledged_after_a_stop_is_skipped() -> None:
    async def main() -> None:
        async with filled("aaa", acknowledge="auto") as events:
            gate = Gate()
            run = await start(events, gate)
            await gate.fail(1)
            with pytest.raises(ensue.HandlerFailed) as caught:
                await run
            events.acknowledge(caught.value.position)
            run = await start(events, gate)
            await gate.open_all()
            assert gate.calls == [1, 2, 3]
            await end(events, run)

    asyncio.run(main())


class End(BaseException):
    """An exception that ends the program."""


def test_failures_while_a_run_ends_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with filled("abc") as events:
            gate = Gate()
            run = await start(events, gate, concurrency=ensue.PerKey(3), on_failure=ensue.Stop())
            await gate.fail(2)
            await gate.fail(1)
            await gate.fail(3, End("at 3"))
            with pytest.raises(ensue.HandlerFailed, match="position 2"):
                await run
            assert list(events._acknowledgements.open) == [1, 2, 3]

    with caplog.at_level(logging.ERROR, logger="ensue"):
        asyncio.run(main())
    assert "handler failed while stopping event=<ReceivedEvent 1:" in caplog.text
    assert "ValueError: at 1" in caplog.text
    assert "End: at 3" in caplog.text


class Waits:
    """Back-offs that the test ends."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.inside: list[asyncio.Future[None]] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.inside.append(asyncio.get_running_loop().create_future())
        await self.inside[-1]

    async def over(self) -> None:
        for future in self.inside:
            if not future.done():
                future.set_result(None)
        await rest()


async def start_retrying(
    events: ensue.Subscription, gate: Gate, waits: Waits, workers: int, policy: ensue.Retry
) -> "asyncio.Task[ensue.Progress]":
    runner = Runner(events, gate, concurrency=ensue.PerKey(workers), on_failure=policy, sleep=waits)
    task = asyncio.create_task(runner.run(ReadAhead()))
    await rest()
    return task


def test_no_event_of_its_key_overtakes_a_retried_event() -> None:
    async def main() -> None:
        async with filled("aab", acknowledge="manual") as events:
            gate, waits = Gate(), Waits()
            # A waiting event occupies no worker, so one is enough for the other key.
            run = await start_retrying(events, gate, waits, 1, ensue.Retry(3))
            await gate.fail(1)
            assert gate.waiting == [3]
            await gate.open(3)
            assert gate.waiting == []
            await waits.over()
            assert gate.waiting == [1]
            await gate.open_all()
            assert gate.calls == [1, 3, 1, 2]
            assert unacknowledged(events) == []
            assert await end(events, run) == ensue.Progress(handled=3, failed=1)

    asyncio.run(main())


def test_backoff_grows_to_its_maximum_and_then_attempts_end() -> None:
    async def main() -> None:
        async with filled("a", acknowledge="manual") as events:
            gate, waits = Gate(), Waits()
            policy = ensue.Retry(5, backoff_s=1, factor=3, backoff_s_max=10)
            run = await start_retrying(events, gate, waits, 1, policy)
            for _ in range(5):
                await gate.fail(1)
                await waits.over()
            with pytest.raises(ensue.HandlerFailed, match="after 5 attempts") as caught:
                await run
            assert caught.value.attempts == 5
            assert waits.seconds == [1, 3, 9, 10]
            assert unacknowledged(events) == [1]

    asyncio.run(main())


def test_backoff_does_not_overflow() -> None:
    assert ensue.Retry(10_000).wait_s(9_999) == 30.0
    assert ensue.Retry(10_000, backoff_s=0).wait_s(9_999) == 0.0


def test_stop_does_not_wait_for_retries() -> None:
    async def main() -> None:
        async with filled("ab", acknowledge="manual") as events:
            gate, waits = Gate(), Waits()
            run = await start_retrying(events, gate, waits, 2, ensue.Retry(2))
            await gate.fail(1)
            await waits.over()
            await gate.fail(2)
            assert len(waits.seconds) == 2
            await gate.fail(1)
            assert run.done()
            with pytest.raises(ensue.HandlerFailed, match="position 1"):
                await run
            assert gate.calls == [1, 2, 1]
            assert list(events._acknowledgements.open) == [1, 2]

    asyncio.run(main())


def test_later_events_of_a_key_are_parked_behind_the_one_that_failed() -> None:
    async def main() -> None:
        async with filled("aabaca", acknowledge="manual") as events:
            gate = Gate()
            run = await start(
                events, gate, concurrency=ensue.PerKey(2), on_failure=ensue.Park(), pending_max=4
            )
            await gate.fail(1)
            await gate.open_all()
            assert gate.calls == [1, 3, 5]
            assert unacknowledged(events) == []
            progress = await end(events, run)
            assert (progress.handled, progress.failed, progress.parked) == (2, 1, 4)
            parked = progress.collected
            assert [each.event.position for each in parked] == [1, 2, 4, 6]
            assert [each.attempts for each in parked] == [1, 0, 0, 0]
            assert [str(each.cause) for each in parked] == ["at 1", "None", "None", "None"]

    asyncio.run(main())


def test_rest_of_a_key_is_handled_with_rest_of_key_false() -> None:
    async def main() -> None:
        async with filled("aab") as events:
            gate = Gate()
            policy = ensue.Park(rest_of_key=False)
            run = await start(events, gate, concurrency=ensue.PerKey(2), on_failure=policy)
            await gate.fail(1)
            await gate.open_all()
            assert gate.calls == [1, 3, 2]
            progress = await end(events, run)
            assert [each.event.position for each in progress.collected] == [1]

    asyncio.run(main())


def test_sequential_events_share_one_key() -> None:
    async def main() -> None:
        async with filled("abc") as events:
            gate = Gate()
            run = await start(events, gate, on_failure=ensue.Park())
            await gate.open(1)
            await gate.fail(2)
            assert gate.calls == [1, 2]
            assert (await end(events, run)).parked == 2

    asyncio.run(main())


class Shelf(Gate):
    """A `Park.to` whose calls wait until the test lets them go."""

    async def put(self, parked: ensue.Parked) -> None:
        await self(parked.event)


def test_parked_event_is_acknowledged_when_park_to_returns() -> None:
    async def main() -> None:
        async with filled("aaba", acknowledge="manual") as events:
            gate, shelf = Gate(), Shelf()
            policy = ensue.Park(to=shelf.put)
            run = await start(events, gate, concurrency=ensue.PerKey(2), on_failure=policy)
            await gate.fail(1)
            assert (gate.waiting, shelf.waiting) == ([3], [1])
            await gate.open(3)
            assert unacknowledged(events) == [1, 2, 3, 4]
            for position in (1, 2, 4):
                assert shelf.waiting == [position]
                await shelf.open(position)
            assert unacknowledged(events) == []
            progress = await end(events, run)
            assert progress == ensue.Progress(handled=1, failed=1, parked=3)
            assert gate.calls == [1, 3]

    asyncio.run(main())


def test_parking_occupies_a_worker() -> None:
    async def main() -> None:
        async with filled("abc") as events:
            gate, shelf = Gate(), Shelf()
            policy = ensue.Park(to=shelf.put)
            run = await start(events, gate, concurrency=ensue.PerKey(1), on_failure=policy)
            await gate.fail(1)
            assert (gate.waiting, shelf.waiting) == ([], [1])
            await shelf.open(1)
            await gate.open_all()
            await end(events, run)

    asyncio.run(main())


def test_failure_to_park_ends_the_run() -> None:
    async def main() -> None:
        async with filled("ab", acknowledge="manual") as events:
            gate, shelf = Gate(), Shelf()
            policy = ensue.Retry(1, then=ensue.Park(to=shelf.put))
            run = await start(events, gate, concurrency=ensue.PerKey(1), on_failure=policy)
            await gate.fail(1)
            await shelf.fail(1, OSError("the shelf broke"))
            with pytest.raises(ensue.HandlerFailed, match=r"could not be parked .*shelf broke"):
                await run
            assert unacknowledged(events) == [1, 2]
            assert gate.calls == [1]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("keys", "policy", "limit", "stopped_at", "attempts"),
    [
        ("aaa", ensue.Park(collected_max=2), "collected_max", 3, 0),
        ("abc", ensue.Park(collected_max=2), "collected_max", 3, 1),
        ("aba", ensue.Park(keys_max=1), "keys_max", 2, 1),
    ],
)
def test_limit_of_parking_ends_the_run(
    keys: str, policy: ensue.Park, limit: str, stopped_at: int, attempts: int
) -> None:
    async def fail(_event: ensue.ReceivedEvent) -> None:
        raise ValueError

    async def main() -> None:
        async with filled(keys) as events:
            with pytest.raises(ensue.HandlerFailed, match=f"give Park a larger {limit}") as caught:
                await events.run(fail, concurrency=ensue.PerKey(1), on_failure=policy)
            assert isinstance(caught.value.cause, ensue.LimitReached)
            assert caught.value.cause.limit == limit
            assert caught.value.position == stopped_at
            assert caught.value.attempts == attempts
            said = "1 attempt" if attempts == 1 else f"{attempts} attempts"
            assert f" after {said}: " in str(caught.value)
            assert stopped_at in events._acknowledgements.open
            assert 1 not in events._acknowledgements.open

    asyncio.run(main())


def cancelled_by_itself() -> Awaitable[object]:
    raise asyncio.CancelledError


def cancelling_itself() -> Awaitable[object]:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return asyncio.sleep(0)


@pytest.mark.parametrize("fault", [cancelled_by_itself, cancelling_itself])
def test_handler_that_cancels_itself_has_failed(
    fault: Callable[[], Awaitable[object]],
) -> None:
    async def main() -> None:
        async with filled("aab") as events:
            gate = Gate()

            async def handle(event: ensue.ReceivedEvent) -> None:
                if event.position == 1:
                    await fault()
                await gate(event)

            policy = ensue.Park(rest_of_key=False)
            run = await start(events, handle, concurrency=ensue.PerKey(2), on_failure=policy)
            await gate.open_all()
            progress = await end(events, run)
            assert (progress.handled, progress.failed, progress.parked) == (2, 1, 1)
            assert isinstance(progress.collected[0].cause, asyncio.CancelledError)

    asyncio.run(main())


@pytest.mark.parametrize("kind", [End, KeyboardInterrupt, SystemExit])
def test_base_exception_is_no_failure_of_a_handler(kind: type[BaseException]) -> None:
    calls: list[int] = []
    acknowledged: list[int] = []

    async def handle(event: ensue.ReceivedEvent) -> None:
        calls.append(event.position)
        if event.position == 2:
            raise kind

    async def main() -> None:
        async with filled("aaa") as events:
            try:
                await events.run(handle, on_failure=ensue.Retry(3, then=ensue.Park()))
            finally:
                acknowledged.extend(p for p in (1, 2, 3) if p not in events._acknowledgements.open)

    with pytest.raises(kind):
        asyncio.run(main())
    assert calls == [1, 2]
    assert acknowledged == [1]


# Misuse


def no_key(_event: ensue.ReceivedEvent) -> bytes:
    raise LookupError("no such customer")


async def key_of(event: ensue.ReceivedEvent) -> bytes | None:
    return event.key


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        (no_key, r"gave no key for .*/t/2: LookupError: no such customer"),
        (lambda _event: [], r"gave no key for .*/t/2: TypeError: unhashable type: 'list'"),
        (key_of, "must be a plain function, not an async one"),
    ],
)
def test_key_function_without_a_key_ends_the_run(key: Any, complaint: str) -> None:
    async def main() -> None:
        async with filled("aba") as events:
            gate = Gate()
            policy = ensue.PerKey(2, key=lambda e: key(e) if e.position == 2 else e.key)
            run = await start(events, gate, concurrency=policy)
            assert not run.done(), "the first one is still being handled"
            await gate.open(1)
            with pytest.raises(ensue.BadInput, match=complaint):
                await run
            assert gate.calls == [1]
            run = await start(events, gate)
            await gate.open_all()
            assert gate.calls == [1, 2, 3], "nothing is lost"
            await end(events, run)

    asyncio.run(main())


def test_subscription_has_one_run_at_a_time_and_one_reader() -> None:
    async def main() -> None:
        async with filled("a") as events:
            gate = Gate()
            run = await start(events, gate, pending_max=1)
            with pytest.raises(ensue.LocalProtocolError, match="being run already"):
                await events.run(gate)
            await gate.open_all()
            assert (await end(events, run)).handled == 1
        async with filled("") as events:
            reader = asyncio.ensure_future(anext(events))
            await rest()
            with pytest.raises(ensue.LocalProtocolError, match="another task is already reading"):
                await events.run(gate)
            reader.cancel()

    asyncio.run(main())


def test_running_a_subscription_that_was_never_entered_is_refused() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            events = bus.subscribe("t")
            with pytest.raises(ensue.LocalProtocolError, match="the subscription is not open"):
                await events.run(Gate())
            assert events._handover.automatic

    asyncio.run(main())


def test_handlers_are_async_functions() -> None:
    """If it is not known beforehand, the first call raises."""

    async def fail(_event: object) -> None:
        raise ValueError

    async def main() -> None:
        async with filled("ab") as events:
            plain: Any = lambda _event: None  # noqa: E731 - known not to be async
            with pytest.raises(ensue.BadInput, match="this one returned NoneType"):
                await events.run(plain, on_failure=ensue.Park())
            with pytest.raises(ensue.BadInput, match=r"Park\.to must be an async function"):
                await events.run(fail, on_failure=ensue.Park(to=plain))
            assert list(events._acknowledgements.open) == [1, 2]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"handler": None}, "a handler must be an async function of an event, got None"),
        ({"concurrency": 16}, "concurrency must be a value such as"),
        ({"concurrency": ensue.PerKey}, "concurrency must be a value such as"),
        ({"on_failure": "stop"}, "on_failure must be a value such as"),
        ({"pending_max": 0}, "pending_max must be at least 1"),
        (
            {"concurrency": ensue.PerKey(9), "pending_max": 8},
            "pending_max must be at least the number of workers, 9, got 8",
        ),
    ],
)
def test_invalid_options_of_a_run_are_refused(given: dict[str, Any], complaint: str) -> None:
    async def main() -> None:
        async with filled("ab") as events:
            await take(events, 1)
            with pytest.raises(ensue.BadInput, match=complaint):
                await events.run(**{"handler": Gate(), **given})
            assert events.pending == 2, "nothing was acknowledged"

    asyncio.run(main())


untyped: Any = ensue


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: untyped.PerKey(0), "workers must be at least 1, got 0"),
        (lambda: untyped.PerKey(True), "workers must be a whole number, got True"),
        (lambda: untyped.PerKey(1, key=b"k"), "key must be a function of an event or None"),
        (
            lambda: untyped.Park(to=b"x"),
            r"Park\.to must be an async function of what is parked, got",
        ),
        (lambda: untyped.Park(rest_of_key=1), "rest_of_key must be True or False, got 1"),
        (lambda: untyped.Park(collected_max=0), "collected_max must be at least 1"),
        (lambda: untyped.Park(keys_max=1.5), "keys_max must be a whole number"),
        (lambda: untyped.Retry(0), "attempts must be at least 1"),
        (lambda: untyped.Retry(backoff_s=-1), "backoff_s must be at least 0 and finite"),
        (lambda: untyped.Retry(factor=0.5), "factor must be at least 1 and finite"),
        (
            lambda: untyped.Retry(backoff_s_max=float("inf")),
            "backoff_s_max must be at least 0.1 and",
        ),
        (lambda: untyped.Retry(backoff_s=60), "backoff_s_max must be at least 60 and"),
        (lambda: untyped.Retry(backoff_s="1"), "backoff_s must be a number, got '1'"),
        (lambda: untyped.Retry(then=ensue.Retry()), "then must be ensue.Stop"),
    ],
)
def test_invalid_values_of_policies_are_refused(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(ensue.BadInput, match=complaint):
        make()


class Broken:
    """A source that takes no acknowledgements."""

    def __init__(self, events: ensue.Subscription) -> None:
        self._events = events

    async def __anext__(self) -> ensue.ReceivedEvent:
        return await anext(self._events)

    def acknowledge(self, position: int) -> None:
        raise OSError("disk full")


def test_run_that_can_not_acknowledge_fails() -> None:
    async def main() -> None:
        async with filled("ab") as events:
            gate = Gate()
            runner = Runner(
                Broken(events), gate, concurrency=ensue.Sequential(), on_failure=ensue.Park()
            )
            run = asyncio.create_task(runner.run(ReadAhead()))
            await rest()
            await gate.open_all()
            with pytest.raises(OSError, match="disk full"):
                async with asyncio.timeout(30):
                    await run
            assert gate.calls == [1]

    asyncio.run(main())


# -- Topics that are left --------------------------------------------------------------------------


@asynccontextmanager
async def on_two_topics(count: int) -> AsyncIterator[tuple[ensue.Bus, ensue.Subscription]]:
    """A subscription that has received so many events of a, and of b, in turn."""
    async with ensue.connect("memory://") as bus, bus.subscribe("a", "b") as events:
        for number in range(count):
            for topic in ("a", "b"):
                await bus.publish(topic, str(number).encode(), key=topic.encode())
        yield bus, events


@pytest.mark.parametrize("concurrency", [ensue.Sequential(), ensue.PerKey(2)])
def test_events_of_a_topic_that_a_handler_leaves_are_skipped(
    concurrency: ensue.Sequential | ensue.PerKey,
) -> None:
    seen: dict[str, list[bytes]] = {"a": [], "b": []}

    async def main() -> None:
        async with on_two_topics(5) as (bus, events):

            async def handle(event: ensue.ReceivedEvent) -> None:
                seen[event.topic].append(event.payload)
                if (event.topic, event.payload) == ("a", b"1"):
                    await rest()  # All that there is has been read.
                    await events.unsubscribe("a")
                    await events.subscribe("a")
                    await bus.publish("a", b"new", key=b"a")
                if b"new" in seen["a"] and b"4" in seen["b"]:
                    events.close()

            progress = await events.run(handle, concurrency=concurrency)
            assert progress.handled == 8
            assert events.pending == 0

    asyncio.run(main())
    assert seen == {"a": [b"0", b"1", b"new"], "b": [b"0", b"1", b"2", b"3", b"4"]}


def test_next_run_skips_unfinished_events_of_a_left_topic() -> None:
    seen: list[tuple[str, bytes]] = []

    async def main() -> None:
        async with on_two_topics(3) as (bus, events):

            async def leave_and_fail(_event: ensue.ReceivedEvent) -> None:
                await rest()
                await events.unsubscribe("b")
                raise ValueError

            async def handle(event: ensue.ReceivedEvent) -> None:
                seen.append((event.topic, event.payload))
                events.close()

            with pytest.raises(ensue.HandlerFailed):
                await events.run(leave_and_fail)
            assert events.pending == 3, "those of a"
            await events.unsubscribe("a")
            assert events.pending == 0
            await events.subscribe("a")
            await bus.publish("a", b"new")
            await events.run(handle)

    asyncio.run(main())
    assert seen == [("a", b"new")]
