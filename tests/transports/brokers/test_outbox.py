"""How many pending messages are written at once, on networks of every rate."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from ensue.testing import Simulation, simulate
from ensue.transports.brokers.outbox import (
    BATCH_BYTES_FIRST,
    BATCH_BYTES_MAX,
    MESSAGE_BYTES_OVERHEAD,
    SLOW_S,
    Outbox,
)
from ensue.transports.brokers.session import Place

KIB = 1024
PLACE = ("t", "news")
Batch = list[tuple[Place, bytes]]


class Written:
    """The batches of an outbox, as a network carries them that takes a time for each."""

    def __init__(self, takes_s: Callable[[int], float]) -> None:
        self.sizes: list[int] = []
        self.took_s: list[float] = []
        self.messages: list[bytes] = []
        self._takes_s = takes_s

    async def write(self, batch: Batch) -> None:
        size = sum(len(data) + MESSAGE_BYTES_OVERHEAD for _, data in batch)
        self.sizes.append(size)
        self.took_s.append(self._takes_s(size))
        await asyncio.sleep(self.took_s[-1])
        self.messages += [data for _, data in batch]


def play(written: Written, count: int, *, size: int = KIB) -> None:
    """Write messages of a size until all are written."""
    sent = [
        number.to_bytes(4) + bytes(size - MESSAGE_BYTES_OVERHEAD - 4) for number in range(count)
    ]

    async def main(_simulation: Simulation) -> None:
        outbox = Outbox(bytes_max=1 << 30)
        for data in sent:
            assert outbox.put(PLACE, data)
        writing = asyncio.create_task(outbox.drain(written.write, repeats=True))
        await outbox.idle.wait()
        assert outbox.bytes == 0
        writing.cancel()
        await asyncio.wait([writing])

    simulate(main)
    assert written.messages == sent


def test_batches_of_a_fast_network_double_up_to_the_limit() -> None:
    written = Written(lambda _size: 0.001)
    play(written, 8_000, size=4 * KIB)
    doubled = [64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, 1024 * KIB]
    assert doubled[0] == BATCH_BYTES_FIRST
    assert doubled[-1] == BATCH_BYTES_MAX
    assert written.sizes[:5] == doubled
    assert set(written.sizes[5:-1]) == {BATCH_BYTES_MAX}


@pytest.mark.parametrize("round_trip_s", [0.001, 0.6])
@pytest.mark.parametrize("bytes_per_s", [20_000, 100_000, 400_000])
def test_batches_take_about_a_second_each(bytes_per_s: int, round_trip_s: float) -> None:
    written = Written(lambda size: round_trip_s + size / bytes_per_s)
    play(written, 4_000)
    assert max(written.took_s) < 2 * SLOW_S
    settled = written.took_s[5:-1]
    assert max(settled) <= SLOW_S
    assert min(settled) > SLOW_S / 4


def test_batches_of_one_large_message_each_are_written_on_any_network() -> None:
    written = Written(lambda size: size / 1_000)
    play(written, 5, size=100 * KIB)
    assert written.sizes == [100 * KIB] * 5


def test_batches_without_enough_messages_do_not_grow() -> None:
    """What is quick with few bytes says nothing of many."""
    written = Written(lambda size: size / 20_000)

    async def main(_simulation: Simulation) -> None:
        outbox = Outbox(bytes_max=1 << 30)
        writing = asyncio.create_task(outbox.drain(written.write, repeats=True))
        for _ in range(50):
            outbox.put(PLACE, bytes(KIB))
            await outbox.idle.wait()
        for _ in range(1_000):
            outbox.put(PLACE, bytes(KIB))
        await outbox.idle.wait()
        writing.cancel()
        await asyncio.wait([writing])

    simulate(main)
    assert max(written.took_s) < 2 * SLOW_S


@pytest.mark.parametrize("count", [40, 200])
@pytest.mark.parametrize("answer_s", [[5.0] * 10, [0.5] * 2])
def test_a_batch_that_ended_its_session_comes_again_in_halves(
    answer_s: list[float], count: int
) -> None:
    """A session ends if a batch takes longer than the broker, or the network, has patience."""
    written = Written(lambda size: size / 1_500)
    patience_s = list(answer_s)
    losses = 0

    async def write(batch: Batch) -> None:
        async with asyncio.timeout(patience_s[0] if patience_s else None):
            await written.write(batch)

    async def main(_simulation: Simulation) -> None:
        nonlocal losses
        outbox = Outbox(bytes_max=1 << 30)
        for number in range(count):
            outbox.put(PLACE, b"%3d" % number + bytes(500))
        while outbox.bytes:
            outbox.wake.set()
            writing = asyncio.create_task(outbox.drain(write, repeats=True))
            idle = asyncio.create_task(outbox.idle.wait())
            await asyncio.wait([writing, idle], return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                losses += 1
                patience_s.pop(0)
            for task in (writing, idle):
                task.cancel()
            await asyncio.wait([writing, idle])

    simulate(main)
    assert [int(data[:3]) for data in written.messages] == list(range(count))
    assert 1 < losses < 10
    tried = written.sizes[: losses + 1]
    halves = [later / earlier for earlier, later in pairwise(tried)]
    assert all(0.4 < half < 0.6 for half in halves), tried
