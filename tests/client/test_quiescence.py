"""Closed durable subscriptions: late acknowledgements count, and no task waits forever."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.server.helpers import read, serving, until, within

import ensue
from ensue.runtime.hub_memory import CLOSE_TIMEOUT_S
from ensue.server import Server, ServerConfig

IMPATIENT_S = 0.3


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = ensue.connect.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "close_timeout", IMPATIENT_S)


@asynccontextmanager
async def away(data: Path) -> AsyncIterator[tuple[ensue.Bus, Server]]:
    """A bus, and a server that a test stops."""
    server = Server(ServerConfig(data=str(data), listen="127.0.0.1:0"))
    await server.start()
    bus = ensue.connect(server.url)
    await bus.__aenter__()
    try:
        yield bus, server
    finally:
        await within(bus.close())
        await server.stop()


async def left(bus: ensue.Bus, name: str = "reader") -> list[bytes]:
    """The payloads of a durable subscription, up to a last event."""
    await bus.publish("t", b"last")
    async with bus.subscribe("t", name=name, durable=True, acknowledge="manual") as events:
        payloads: list[bytes] = []
        while payloads[-1:] != [b"last"]:
            payloads += await read(events, 1)
    return payloads[:-1]


async def fill(bus: ensue.Bus, count: int) -> None:
    for number in range(count):
        await bus.publish("t", b"%d" % number, key=b"%d" % (number % 8))


# -- Acknowledged after closing --------------------------------------------------------------------


def test_no_event_is_repeated_after_a_handler_closes_the_subscription(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server, ensue.connect(server.url) as bus:
            handled: list[bytes] = []
            events = bus.subscribe("t", name="reader", durable=True)
            await events.__aenter__()
            await fill(bus, 60)

            async def handle(event: ensue.ReceivedEvent) -> None:
                handled.append(event.payload)
                if len(handled) == 10:
                    events.close()
                await asyncio.sleep(0.002)

            done = await within(events.run(handle, concurrency=ensue.PerKey(4)))
            # The name can be entered again before the block ends: the run left it.
            assert set(handled).isdisjoint(await left(bus))
            assert done.handled == len(handled) >= 10

    asyncio.run(main())


def test_closing_a_bus_waits_for_a_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server, ensue.connect(server.url) as other:
            bus = ensue.connect(server.url)
            await bus.__aenter__()
            events = await bus.subscribe("t", name="reader", durable=True).__aenter__()
            await fill(other, 40)
            handled: list[bytes] = []

            async def handle(event: ensue.ReceivedEvent) -> None:
                await asyncio.sleep(0.01)
                handled.append(event.payload)

            run = asyncio.create_task(events.run(handle, concurrency=ensue.PerKey(4)))
            await until(lambda: handled)
            await within(bus.close())
            await within(run)
            assert set(handled).isdisjoint(await left(other))

    asyncio.run(main())


def test_handler_that_closes_its_bus_does_not_deadlock(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server:
            bus = ensue.connect(server.url)
            await bus.__aenter__()
            events = await bus.subscribe("t", name="reader", durable=True).__aenter__()
            await fill(bus, 1)

            async def handle(_event: ensue.ReceivedEvent) -> None:
                await bus.close()

            await within(events.run(handle), CLOSE_TIMEOUT_S - 1)

    asyncio.run(main())


def test_event_acknowledged_after_closing_is_not_delivered_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server, ensue.connect(server.url) as bus:
            events = bus.subscribe("t", name="reader", durable=True, acknowledge="manual")
            await events.__aenter__()
            await fill(bus, 3)
            first = await within(anext(events))
            await until(lambda: events.waiting == 2)
            events.close()
            await within(first.ack())
            second = await within(anext(events))
            await within(second.ack())
            assert await left(bus) == [b"2"]

    asyncio.run(main())


def test_block_that_ends_normally_acknowledges_the_last_event(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server, ensue.connect(server.url) as bus:
            async with bus.subscribe("t", name="reader", durable=True) as events:
                await fill(bus, 1)
                await within(anext(events))
                events.close()
            assert await left(bus) == []

    asyncio.run(main())


def test_closed_subscription_leaves_its_name_when_all_is_acknowledged(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server, ensue.connect(server.url) as bus:
            assert bus._hub is not None
            events = await bus.subscribe("t", name="reader", durable=True).__aenter__()
            await fill(bus, 2)
            await within(anext(events))
            await until(lambda: events.waiting == 1)
            events.close()
            assert list(bus._hub.lingering) == ["reader"]
            assert [event.payload async for event in events] == [b"1"]
            await until(lambda: bus._hub is not None and not bus._hub.lingering)
            assert await left(bus) == []

    asyncio.run(main())


def test_late_acknowledgement_raises(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server, ensue.connect(server.url) as bus:
            events = bus.subscribe("t", name="reader", durable=True, acknowledge="manual")
            async with events:
                await fill(bus, 2)
                first, second = await within(anext(events)), await within(anext(events))
                await within(first.ack())
            await first.ack()  # Harmless: it is safe.
            with pytest.raises(ensue.LocalProtocolError, match="may be delivered again"):
                await within(second.ack())
            assert await left(bus) == [b"1"]

    asyncio.run(main())


def test_name_of_closed_subscription_with_open_events_is_entered_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server, ensue.connect(server.url) as bus:
            events = bus.subscribe("t", name="reader", durable=True, acknowledge="manual")
            await events.__aenter__()
            await fill(bus, 3)
            taken = [await within(anext(events)) for _ in range(3)]
            events.acknowledge(taken[0].position)
            events.close()
            events.acknowledge(taken[1].position)
            assert await left(bus) == [b"2"]
            with pytest.raises(ensue.LocalProtocolError, match="may be delivered again"):
                await within(taken[2].ack())

    asyncio.run(main())


# -- The server is away ----------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
def test_close_fails_tasks_that_wait_for_an_acknowledgement(tmp_path: Path) -> None:
    async def main() -> None:
        async with away(tmp_path) as (bus, server):
            events = bus.subscribe("t", name="reader", durable=True, acknowledge="manual")
            await events.__aenter__()
            await fill(bus, 2)
            first, second = await within(anext(events)), await within(anext(events))
            await server.stop()
            acknowledging = asyncio.create_task(first.ack())
            await asyncio.sleep(0.05)
            events.close()
            with pytest.raises(ensue.LocalProtocolError, match="may be delivered again"):
                await within(acknowledging, 10)
            with pytest.raises(ensue.LocalProtocolError, match="may be delivered again"):
                await within(second.ack(), 10)

    asyncio.run(main())


@pytest.mark.usefixtures("impatient")
def test_run_ends_and_logs_when_acknowledgements_are_not_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with away(tmp_path) as (bus, server):
            events = await bus.subscribe("t", name="reader", durable=True).__aenter__()
            await fill(bus, 1)

            async def handle(_event: ensue.ReceivedEvent) -> None:
                await server.stop()
                events.close()

            with caplog.at_level(logging.WARNING, "ensue"):
                assert (await within(events.run(handle), 10)).handled == 1
            assert (
                "subscription 'reader' ended before its acknowledgement was stored: the event may "
                "be delivered again"
            ) in caplog.text

    asyncio.run(main())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("entered", [False, True])
def test_close_fails_tasks_that_enter_or_forget(tmp_path: Path, entered: bool) -> None:
    async def main() -> None:
        async with away(tmp_path) as (bus, server):
            events = bus.subscribe("t", name="reader", durable=True)
            if entered:
                await events.__aenter__()
            await server.stop()
            await asyncio.sleep(0.05)
            waiting = asyncio.create_task(events.forget() if entered else _enter(events))
            await asyncio.sleep(0.1)
            await within(bus.close(), 10)
            with pytest.raises(ensue.LocalProtocolError, match="closed"):
                await within(waiting, 10)

    asyncio.run(main())


async def _enter(events: ensue.Subscription) -> None:
    await events.__aenter__()


def test_cancelled_close_closes_everything_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with away(tmp_path) as (bus, server):
            opened = [
                await bus.subscribe("t", name=name, durable=True, acknowledge="manual").__aenter__()
                for name in "abc"
            ]
            await fill(bus, 1)
            taken = [(events, await within(anext(events))) for events in opened]
            await server.stop()
            for events, event in taken:
                events.acknowledge(event.position)
            reading = asyncio.create_task(_next(opened[0]))
            closing = asyncio.create_task(bus.close())
            await asyncio.sleep(0.1)
            assert not closing.done()
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await within(closing, 3)
            assert all(events.closed for events in opened)
            with pytest.raises(StopAsyncIteration):
                await within(reading, 1)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


async def _next(events: ensue.Subscription) -> bytes:
    return (await events.__anext__()).payload


@pytest.mark.usefixtures("impatient")
def test_close_waits_for_all_subscriptions_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with away(tmp_path) as (bus, server):
            for number in range(8):
                events = await bus.subscribe("t", name=f"r{number}", durable=True).__aenter__()
                events._acknowledgements.acknowledged = 1
            await server.stop()
            begun_s = loop.time()
            await within(bus.close())
            assert loop.time() - begun_s < 8 * IMPATIENT_S

    asyncio.run(main())


def test_name_can_be_entered_again_after_a_cancelled_block(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server, ensue.connect(server.url) as bus:

            async def use() -> None:
                async with bus.subscribe("t", name="reader", durable=True) as events:
                    events._acknowledgements.acknowledged = 1  # That will never be safe.

            using = asyncio.create_task(use())
            await asyncio.sleep(0.3)
            using.cancel()
            with pytest.raises(asyncio.CancelledError):
                await within(using)
            await fill(bus, 1)
            assert await left(bus) == [b"0"]

    asyncio.run(main())


# -- Forgetting ------------------------------------------------------------------------------------


def test_subscription_ends_when_a_cancelled_forget_completes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with away(tmp_path) as (bus, server):
            events = await bus.subscribe("t", name="reader", durable=True).__aenter__()
            assert server.listener is not None
            port = server.listener.port
            await server.stop()
            with pytest.raises(asyncio.TimeoutError):
                await within(events.forget(), 0.2)
            async with serving(tmp_path, listen=f"127.0.0.1:{port}"):
                with pytest.raises(StopAsyncIteration):
                    await within(anext(events))
                assert events.closed
                async with bus.subscribe("t", name="reader", durable=True) as again:
                    await fill(bus, 1)
                    assert await read(again, 1) == [b"0"]
        assert "node failed" not in caplog.text

    asyncio.run(main())
