"""Readers of a subscription: one at a time, while it is open, with acknowledgements."""

import asyncio
from itertools import permutations

import pytest
from tests.transports.suite import take

import ensue
from ensue.client.reader import NodeReader
from ensue.client.subscription import Subscription
from ensue.protocols.total.subscriber import Subscriber
from ensue.runtime.hub_memory import Slow


async def read_one(events: ensue.Subscription) -> bytes:
    return (await anext(events)).payload


def test_second_reader_is_refused_and_the_first_gets_its_event() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("a") as events:
            first = asyncio.create_task(read_one(events))
            await asyncio.sleep(0)
            with pytest.raises(ensue.LocalProtocolError, match="another task is already reading"):
                async with asyncio.timeout(10):
                    await anext(events)
            await bus.publish("a", b"1")
            async with asyncio.timeout(10):
                assert await first == b"1"

    asyncio.run(main())


def test_reader_that_takes_over_from_a_cancelled_one_is_woken() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("a") as events:
            first = asyncio.create_task(read_one(events))
            await asyncio.sleep(0)
            publishing: list[asyncio.Task[object]] = []
            first.add_done_callback(
                lambda _task: publishing.append(asyncio.create_task(bus.publish("a", b"1")))
            )
            first.cancel()
            # In the same iteration: the cancelled reader has not cleaned up yet.
            async with asyncio.timeout(10):
                assert await read_one(events) == b"1"
                await asyncio.gather(*publishing)
            assert first.cancelled()

    asyncio.run(main())


def test_reading_a_subscription_that_was_never_entered_is_refused() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            events = bus.subscribe("a")
            with pytest.raises(ensue.LocalProtocolError, match="the subscription is not open"):
                async with asyncio.timeout(10):
                    await anext(aiter(events))

    asyncio.run(main())


def test_subscription_and_a_bus_are_entered_once() -> None:
    async def main() -> None:
        bus = ensue.connect("memory://")
        async with bus:
            with pytest.raises(ensue.LocalProtocolError, match="a bus is entered once"):
                await bus.__aenter__()
            unused = bus.subscribe("a")
            async with bus.subscribe("a") as events:
                with pytest.raises(ensue.LocalProtocolError, match="is entered once"):
                    await events.__aenter__()
            with pytest.raises(ensue.LocalProtocolError, match="is entered once"):
                await events.__aenter__()
        with pytest.raises(ensue.LocalProtocolError, match="a bus is entered once"):
            await bus.__aenter__()
        with pytest.raises(ensue.LocalProtocolError, match="closed before it was entered"):
            await unused.__aenter__()

    asyncio.run(main())


def unacknowledged(events: Subscription) -> list[int]:
    """The positions without an acknowledgement."""
    assert isinstance(events._reader, NodeReader)
    assert events._reader._driver is not None
    node = events._reader._driver.node
    assert isinstance(node, Subscriber)
    return [position for position, _, _ in node.progress.unacknowledged]


@pytest.mark.parametrize("sequence", [*permutations((1, 2, 3)), tuple(range(10, 0, -1))], ids=str)
def test_only_the_unbroken_run_of_acknowledgements_counts(sequence: tuple[int, ...]) -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://") as bus,
            bus.subscribe("a", acknowledge="manual") as events,
        ):
            for _ in sequence:
                await bus.publish("a", b"")
            got = {event.position: event for event in await take(events, len(sequence))}
            open_positions = set(sequence)
            for position in sequence:
                await got[position].ack()
                open_positions.remove(position)
                expected = range(min(open_positions, default=99), len(sequence) + 1)
                assert unacknowledged(events) == list(expected)

    asyncio.run(main())


def test_new_subscription_has_room() -> None:
    assert Slow("s").room.is_set()
