"""Closing, leaving and failing while something is under way.

`BURST_MAX` of 1 makes the hub hand over one frame a turn of the event loop, so that a change or a
publish takes several turns and can be caught half-way, as on a transport with latency.
"""

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.transports.suite import take

import ensue
from ensue.client import backpressure
from ensue.client.reader import NodeReader
from ensue.protocols.total import pending_requests
from ensue.runtime.hub_memory import MemoryHub
from ensue.testing import Simulation, simulate
from ensue.transports import memory


@pytest.fixture
def slow_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "BURST_MAX", 1)
    # Events are not bundled either, so that many of them take many iterations.
    monkeypatch.setattr(pending_requests, "TOGETHER", 1)


async def until(condition: Callable[[], bool]) -> None:
    """Run the event loop until a condition holds: some iterations, without waiting."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


def known_to_the_chain(bus: ensue.Bus) -> list[str]:
    """Subscribers that some station still knows."""
    hub = bus._hub
    assert isinstance(hub, MemoryHub)
    known: list[str] = []
    for driver in hub._chain:
        station = driver.node
        known += station.node.groups.subscriptions
        known += station.node.changes.seen
        for log in station.log._topics.values():
            known += log.attached
    return known


@pytest.mark.usefixtures("slow_hub")
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("turns", range(1, 16))
def test_subscription_closed_at_any_moment_leaves_the_chain(nodes: int, turns: int) -> None:
    async def main() -> None:
        async with ensue.connect(f"memory://?nodes={nodes}") as bus:
            events = bus.subscribe("a", "b", "c")
            entering = asyncio.create_task(events.__aenter__())
            for _ in range(turns):
                await asyncio.sleep(0)
            events.close()
            assert events.closed
            await asyncio.gather(entering, return_exceptions=True)
            hub = bus._hub
            assert hub is not None
            assert isinstance(events._reader, NodeReader)
            driver = events._reader._driver
            assert driver is not None
            await until(lambda: driver.closed and not known_to_the_chain(bus))
            async with asyncio.timeout(10):
                await bus.publish("a", b"goes on")

    asyncio.run(main())


@pytest.mark.usefixtures("slow_hub")
def test_unconfirmed_leave_ends_with_its_hub() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            events = bus.subscribe("a")
            entering = asyncio.create_task(events.__aenter__())
            await asyncio.sleep(0)
            events.close()
            assert isinstance(events._reader, NodeReader)
            driver = events._reader._driver
            assert driver is not None
            assert not driver.closed
        await asyncio.gather(entering, return_exceptions=True)
        assert driver.closed, "it would repeat its leave to a dead hub for ever"

    asyncio.run(main())


@pytest.mark.usefixtures("slow_hub")
def test_closing_fails_tasks_that_wait_to_join() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("a") as events:
            joining = asyncio.create_task(events.subscribe("b", "c"))
            await asyncio.sleep(0)
            events.close()
            with pytest.raises(ensue.LocalProtocolError, match="the subscription was closed"):
                async with asyncio.timeout(10):
                    await joining

    asyncio.run(main())


@pytest.mark.usefixtures("slow_hub")
def test_leaving_a_topic_fails_tasks_that_wait_to_join_it() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("a") as events:
            joining = asyncio.create_task(events.subscribe("b"))
            await asyncio.sleep(0)
            await events.unsubscribe("b")
            with pytest.raises(ensue.LocalProtocolError, match="'b' was left before it was joined"):
                async with asyncio.timeout(10):
                    await joining
            async with asyncio.timeout(10):
                await events.subscribe("b")
            assert sorted(events.topics) == ["a", "b"]

    asyncio.run(main())


def test_several_refused_topics_raise_one_error() -> None:
    noise: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: noise.append(context)
        )
        async with ensue.connect("memory://") as bus:
            assert isinstance(bus._hub, MemoryHub)
            node = bus._hub._chain[0].node.node
            node.state.config = msgspec.structs.replace(node.config, topics_max=1)
            with pytest.raises(ensue.SubscriptionRefused):
                async with bus.subscribe("a", "b", "c"):
                    pass
        gc.collect()

    asyncio.run(main())
    gc.collect()
    assert noise == []


def test_cancelled_close_fails_unsettled_events(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        bus = ensue.connect("memory://h")
        await bus.__aenter__()
        monkeypatch.setattr(memory, "BURST_MAX", 0)  # No answer arrives.
        publishing = [asyncio.create_task(bus.publish("a", b"")) for _ in range(50)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(bus.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(ensue.EventsInDoubt, match="may be delivered or not: client~1/a/50"):
            async with asyncio.timeout(10):
                await publishing[-1]
        async with asyncio.timeout(10):
            await asyncio.gather(*publishing, return_exceptions=True)
        assert closing.cancelled()
        async with ensue.connect("memory://h", order=None):
            pass

    asyncio.run(main())


@pytest.mark.usefixtures("slow_hub")
def test_concurrent_closes_leave_the_hub_once() -> None:
    async def main() -> None:
        async with ensue.connect("memory://h") as keeper:
            bus = ensue.connect("memory://h")
            await bus.__aenter__()
            publishing = asyncio.create_task(bus.publish("a", b"1"))
            await asyncio.sleep(0)
            async with asyncio.timeout(10):
                await asyncio.gather(bus.close(), bus.close())
                first = await publishing
                second = await keeper.publish("a", b"2")
            assert (first.slot, second.slot) == (1, 2)

    asyncio.run(main())


@pytest.mark.parametrize("reader", ["own", "other"])
def test_publish_that_waits_for_room_fails_on_close(reader: str) -> None:
    async def main() -> None:
        async with ensue.connect("memory://h") as other:
            bus = ensue.connect("memory://h")
            await bus.__aenter__()
            events = (bus if reader == "own" else other).subscribe("a", pending_max=1)
            await events.__aenter__()
            await bus.publish("a", b"1")
            waiting = asyncio.create_task(bus.publish("a", b"2"))
            await asyncio.sleep(0)
            await bus.close()
            with pytest.raises(
                ensue.LocalProtocolError, match="the bus was closed while this publish waited"
            ):
                async with asyncio.timeout(10):
                    await waiting

    asyncio.run(main())


def test_warnings_give_the_total_wait_of_a_publish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backpressure, "PATIENCE_S", 0.02)

    async def main() -> list[str]:
        said: asyncio.Queue[str] = asyncio.Queue()

        class Listener(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                said.put_nowait(record.getMessage())

        listener = Listener()
        logging.getLogger("ensue").addHandler(listener)
        try:
            async with (
                ensue.connect("memory://") as bus,
                bus.subscribe("a", pending_max=1) as events,
                asyncio.timeout(10),
            ):
                await bus.publish("a", b"1")
                waiting = asyncio.create_task(bus.publish("a", b"2"))
                heard = [await said.get() for _ in range(3)]
                await take(events, 2)
                await waiting
                return heard
        finally:
            logging.getLogger("ensue").removeHandler(listener)

    heard = asyncio.run(main())
    for message, waited in zip(heard, ("0.02", "0.04", "0.06"), strict=True):
        assert f"publish waits topic=a waited_s={waited} " in message


def test_server_reads_the_farewell_of_a_client_that_closes_while_events_arrive() -> None:
    """A socket that is closed while data arrives answers it by a reset, which loses the farewell.

    Without an orderly end, that happens in one of these seeds.
    """

    async def leave(url: str) -> None:
        async with ensue.connect(url) as bus, bus.subscribe("busy") as events:
            await bus.publish("own", b"")
            await take(events, 2)

    async def load(url: str, left: list[str]) -> None:
        async with ensue.connect(url) as bus:
            while not left:
                await bus.publish("busy", b"")

    async def main(simulation: Simulation) -> None:
        servers = await simulation.serve("server")
        left: list[str] = []
        simulation.start("load", load, servers.url("server"), left)
        for number in range(20):
            await simulation.start(f"leaver-{number}", leave, servers.url("server"))
        left.append("all")
        await asyncio.sleep(2)
        station = servers.servers["server"].station
        assert station is not None
        assert list(station.node.sessions.by_name) == []

    for seed in range(20):
        simulate(main, seed=seed)
