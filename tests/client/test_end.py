"""The end of buses and subscriptions on a server: cleanup and notification."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.server.helpers import People, serving, until, within

import ensue
from ensue.core.errors import AccessDenied, BadInput, SubscriptionLost
from ensue.protocols.total.discovery import DISCOVERY_NAME
from ensue.runtime.hub_remote import RemoteHub
from ensue.server import Server, ServerConfig
from ensue.server.config import Limits


def test_closed_subscription_releases_its_name(tmp_path: Path) -> None:
    async def main() -> None:
        limits = Limits(names_per_connection=5)
        async with (
            serving(tmp_path / "d", limits=limits) as server,
            ensue.connect(server.url) as bus,
        ):
            assert server.listener is not None
            routes = server.listener.routes
            for _ in range(10):
                async with bus.subscribe("x") as events:
                    await within(bus.publish("x", b"1"))
                    await within(anext(events))
                await until(lambda: list(routes) == [bus.name], "only the bus has a name")
            assert not server.listener.errors

    asyncio.run(main())


def test_durable_subscription_that_never_got_its_records_can_be_entered_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            listener = server.listener
            assert listener is not None
            receive, listener._receive = listener._receive, None
            entering = asyncio.create_task(bus.subscribe("x", name="d", durable=True).__aenter__())
            await until(lambda: "d" in listener.routes)
            entering.cancel()
            await asyncio.wait((entering,))
            await until(lambda: list(listener.routes) == [bus.name], "the name was left")
            listener._receive = receive
            async with bus.subscribe("x", name="d", durable=True) as events:
                await within(bus.publish("x", b"1"))
                assert (await within(anext(events))).payload == b"1"

    asyncio.run(main())


@pytest.fixture
def refused_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without a delay."""
    monkeypatch.setattr("ensue.transports.tcp.link.REFUSED_S", 0.0)


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[None]:
    """A server that was made before, while it runs."""
    await server.start()
    try:
        yield
    finally:
        await server.stop()


async def refused_later(data: Path) -> tuple[ensue.Bus, Server]:
    """A bus whose server restarted and no longer knows it."""
    people = People(somebody=(["*"], ["*"]))
    async with serving(data) as server:
        assert server.listener is not None
        listen = f"127.0.0.1:{server.listener.port}"
        bus = ensue.connect(server.url)
        await within(bus.__aenter__())
        await within(bus.publish("x", b"0"))
    again = Server(ServerConfig(data=str(data), listen=listen, access=people.access))
    return bus, again


@pytest.mark.usefixtures("refused_for_good")
def test_refused_client_learns_that_its_events_are_in_doubt(tmp_path: Path) -> None:
    async def main() -> None:
        bus, server = await refused_later(tmp_path / "d")
        for _ in range(5):
            await bus.publish("x", b"1", receipt=False)
        async with running(server):
            await until(lambda: not bus._receipts, "all of them are given up")
            with pytest.raises(AccessDenied, match="a token is needed"):
                await within(bus.flush())
            # It can't be used, and every call raises the reason.
            with pytest.raises(AccessDenied, match="a token is needed"):
                await within(bus.publish("x", b"2", receipt=False))
            with pytest.raises(AccessDenied, match="a token is needed"):
                bus.subscribe("x")
            await within(bus.close())

    asyncio.run(main())


@pytest.mark.usefixtures("refused_for_good")
def test_refused_bus_can_be_closed(tmp_path: Path) -> None:
    async def main() -> None:
        bus, server = await refused_later(tmp_path / "d")
        hub = bus._hub
        assert isinstance(hub, RemoteHub)
        async with running(server):
            driver = bus._driver
            assert driver is not None
            await until(lambda: driver.closed, "it was refused")
            await within(bus.close())
            assert hub.users == 0
            (link,) = hub.transport.carrier._links.values()  # type: ignore[attr-defined]
            assert link._task.done()

    asyncio.run(main())


def test_bus_refused_before_it_is_entered_raises_on_entry(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            hub = bus._hub
            assert isinstance(hub, RemoteHub)
            enter = hub.enter

            async def refused_meanwhile(name: str) -> None:
                await enter(name)
                hub._refused(AccessDenied("no", reason="not you"))

            hub.enter = refused_meanwhile  # type: ignore[method-assign]
            with pytest.raises(SubscriptionLost, match="not you"):
                await within(bus.subscribe("x").__aenter__())

    asyncio.run(main())


def test_name_refused_on_reconnection_reports_the_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url) as bus,
            bus.subscribe("x", name="d", durable=True) as events,
        ):
            assert server.listener is not None
            visitor = server.listener.routes["d"]
            visitor.exited("d", "the name belongs to another user")
            with pytest.raises(SubscriptionLost, match="the name belongs to another user"):
                await within(anext(events))

    asyncio.run(main())


@pytest.mark.parametrize("name", ["node-1", DISCOVERY_NAME])
def test_subscription_cannot_have_the_name_of_a_server(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            assert server.config.name == "node-1"
            with pytest.raises(BadInput, match="belongs to the chain itself"):
                await within(bus.subscribe("x", name=name, durable=True).__aenter__())

    asyncio.run(main())


def test_durable_subscription_without_topics_can_be_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url) as bus,
            bus.subscribe("x", name="d", durable=True) as events,
        ):
            assert server.station is not None
            assert "d" in server.station.state_store.names()
            await within(events.unsubscribe("x"))
            await within(events.forget())
            assert events.closed
            assert "d" not in server.station.state_store.names()

    asyncio.run(main())


def test_entry_cancelled_while_the_name_is_left_releases_it(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server, ensue.connect(server.url) as bus:
            events = await bus.subscribe("t", name="reader", durable=True).__aenter__()
            events.close()
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await bus.subscribe("t", name="reader", durable=True).__aenter__()
            task.uncancel()
            async with bus.subscribe("t", name="reader", durable=True) as again:
                assert again.topics == ("t",)

    asyncio.run(main())
