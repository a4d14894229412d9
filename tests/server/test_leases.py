"""Publishers whose connections are lost while they hold stamps of a chain."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.server.helpers import read, until, within

import ensue
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.station import Station
from ensue.runtime.hub_remote import RemoteHub
from ensue.server import Server, ServerConfig, server
from ensue.transports.tcp.messages import Member

MINUTE_NS = 60_000_000_000
SHORT_NS = 50_000_000


@asynccontextmanager
async def chain(data: Path, **config: Any) -> AsyncIterator[list[Server]]:
    """Two servers: the lower one hosts `a`, the higher one `b` and completes stamps of both."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    members = tuple(
        Member(f"s{place}", f"127.0.0.1:{each.getsockname()[1]}", (topic,))
        for place, (each, topic) in enumerate(zip(sockets, "ab", strict=True))
    )
    for each in sockets:
        each.close()
    async with AsyncExitStack() as stack:
        servers = []
        for member in members:
            server = Server(
                ServerConfig(
                    data=str(data / member.name),
                    listen=member.address,
                    name=member.name,
                    chain=members,
                    sequencer=SequencerConfig(carries=True, **config),
                )
            )
            await server.start()
            stack.push_async_callback(server.stop)
            servers.append(server)
        yield servers


async def stalled(bus: ensue.Bus, monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """Have a publisher get a stamp for `a` and not send its event."""
    driver = bus._driver
    assert driver is not None
    monkeypatch.setattr(driver.node, "_broadcast", lambda *_: None)
    await bus.publish("a", b"stalled", receipt=False)
    assert server.station is not None
    node = server.station.node
    await until(lambda: node.open_count == 1, "its stamp is complete")


def links(bus: ensue.Bus) -> list[Any]:
    hub = bus._hub
    assert isinstance(hub, RemoteHub)
    carrier: Any = hub.transport.carrier
    return list(carrier._links.values())


def test_dead_publisher_delays_others_for_less_than_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        leases = {"lease_ns": MINUTE_NS, "lease_lost_ns": SHORT_NS}
        async with (
            chain(tmp_path, **leases) as (low, high),
            ensue.connect(low.url) as bus,
            bus.subscribe("a", "b") as events,
        ):
            dying = await ensue.connect(low.url, close_timeout=0).__aenter__()
            await stalled(dying, monkeypatch, high)
            for link in links(dying):
                link._task.cancel()
                link.connection.abort()
            await within(bus.publish("a", b"next"))
            assert await within(read(events, 1), 30) == [b"next"]
            with pytest.raises(ensue.EventsInDoubt):
                await dying.close()

    asyncio.run(main())


def test_publisher_that_reconnects_in_time_keeps_its_stamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        leases = {"lease_ns": 2 * MINUTE_NS, "lease_lost_ns": MINUTE_NS}
        async with (
            chain(tmp_path, **leases) as (low, high),
            ensue.connect(low.url) as bus,
            bus.subscribe("a", "b") as events,
            ensue.connect(low.url) as blinking,
        ):
            await stalled(blinking, monkeypatch, high)
            assert high.station is not None
            node = high.station.node
            due_ns = node.next_timer_ns()
            lost: list[str] = []
            lose = node.lose

            def heard(name: str, *, now_ns: int) -> None:
                lose(name, now_ns=now_ns)
                if name == blinking.name:
                    lost.append(name)
                    assert node.next_timer_ns() != due_ns

            monkeypatch.setattr(node, "lose", heard)
            driver: Any = blinking._driver
            monkeypatch.delattr(driver.node, "_broadcast")  # It is the class's own again.
            for link in links(blinking):
                link.connection.abort()
            await until(lambda: lost, "the loss was noticed")
            await until(lambda: blinking.name not in node.lost, "it is back")
            await within(blinking.flush())
            assert await read(events, 1) == [b"stalled"]

    asyncio.run(main())


def test_restarted_server_does_not_wait_for_a_dead_publisher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(server, "RETURN_S", 0.0)
        leases = {"lease_ns": MINUTE_NS, "lease_lost_ns": SHORT_NS}
        async with (
            chain(tmp_path, **leases) as (low, high),
            ensue.connect(low.url) as bus,
            bus.subscribe("a", "b") as events,
        ):
            dying = await ensue.connect(low.url, close_timeout=0).__aenter__()
            await stalled(dying, monkeypatch, high)
            await low.stop()  # Else it sees that the publisher is gone, and says so.
            await high.stop()
            for link in links(dying):
                link._task.cancel()
                if link.connection is not None:
                    link.connection.abort()
            again = [Server(each.config) for each in (low, high)]
            for each in again:
                await each.start()
            try:
                await within(bus.publish("a", b"next"))
                assert await within(read(events, 1), 30) == [b"next"]
                with pytest.raises(ensue.EventsInDoubt):
                    await dying.close()
            finally:
                for each in again:
                    await each.stop()

    asyncio.run(main())


def test_server_that_stops_does_not_take_its_publishers_for_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with chain(tmp_path) as (low, _), ensue.connect(low.url) as bus:
            await within(bus.publish("a", b"e"))
            lost: list[str] = []
            monkeypatch.setattr(Station, "lose", lambda _self, name, **_: lost.append(name))
            await low.stop()
            assert lost == []

    asyncio.run(main())
