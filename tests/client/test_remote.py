"""A bus on a real server in the same process, with its network and disk."""

import asyncio
import contextlib
import logging
import socket
from pathlib import Path

import pytest
from tests.server.helpers import People, read, serving, until, within

import ensue
from ensue.core.errors import (
    BadInput,
    ConfigurationError,
    EventRefused,
    LocalProtocolError,
    SubscriptionLost,
    TransportError,
)
from ensue.server import Server, ServerConfig


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


async def publish(bus: ensue.Bus, topic: str, first: int, last: int) -> None:
    """Publish numbers and flush."""
    for payload in numbers(first, last):
        await bus.publish(topic, payload, receipt=False)
    await within(bus.flush())


async def restarted(server: Server) -> Server:
    """Stop a server; start another on its data and its port."""
    assert server.listener is not None
    listen = f"127.0.0.1:{server.listener.port}"
    await server.stop()
    again = Server(ServerConfig(data=server.config.data, listen=listen))
    await again.start()
    return again


async def reached(server: Server, slot: int) -> None:
    """Wait until so many events are published."""
    station = server.station
    assert station is not None
    await until(lambda: station.log.ends().get("x", 0) >= slot)


# -- Publishing ------------------------------------------------------------------------------------


def test_receipt_has_the_place_and_subscribers_get_the_whole_event(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url, name="writer") as bus,
            bus.subscribe("x", "y") as events,
        ):
            first = await within(bus.publish("x", b"1", key=b"k", headers={"h": "v"}))
            second = await within(bus.publish("x", b"2"))
            assert (first.slot, second.slot) == (1, 2)
            assert bus.name.startswith("writer~")
            got = [await within(anext(events)) for _ in range(2)]
            assert [each.position for each in got] == [1, 2]
            assert [each.place for each in got] == [1, 2]
            assert (got[0].payload, got[0].key, dict(got[0].headers)) == (b"1", b"k", {"h": "v"})
            assert got[0].id == first.id == f"{bus.name}/x/1"

    asyncio.run(main())


def test_publish_without_receipt_returns_at_once_and_flush_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url) as bus,
            bus.subscribe("x") as events,
        ):
            event = await bus.publish("x", b"1", receipt=False)
            assert event.stamp is None
            await publish(bus, "x", 2, 500)
            assert server.station is not None
            assert server.station.log.ends() == {"x": 500}
            assert await read(events, 500) == numbers(1, 500)

    asyncio.run(main())


def test_flush_raises_the_first_failure_once(tmp_path: Path) -> None:
    async def main() -> None:
        people = People(alice=(["mine.*"], ["*"]))
        async with (
            serving(tmp_path / "d", access=people.access) as server,
            ensue.connect(people.url(server, "alice")) as bus,
        ):
            fine = await bus.publish("mine.a", b"1", receipt=False)
            bad = await bus.publish("theirs", b"2", receipt=False)
            await bus.publish("theirs", b"3", receipt=False)
            with pytest.raises(EventRefused) as refused:
                await within(bus.flush())
            assert refused.value.event == bad.id
            assert fine.id != bad.id
            await within(bus.flush())
            # Also if the failure was known before.
            await bus.publish("theirs", b"early", receipt=False)
            await within(bus.publish("mine.a", b"behind it"))
            with pytest.raises(EventRefused):
                await within(bus.flush())
            # A failure with a waiting task is raised there, not logged.
            with pytest.raises(EventRefused):
                await within(bus.publish("theirs", b"4"))
            await within(bus.flush())
            assert (await within(bus.publish("mine.a", b"5"))).slot == 3

    asyncio.run(main())


def test_large_payloads_are_delivered(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url) as bus,
            bus.subscribe("x") as events,
        ):
            payloads = [
                bytes([number]) * size for number, size in enumerate((0, 300_000, 5_000_000))
            ]
            for payload in payloads:
                await bus.publish("x", payload, receipt=False)
            await within(bus.flush())
            assert await read(events, 3) == payloads

    asyncio.run(main())


# -- Connecting and closing ------------------------------------------------------------------------


def test_connecting_without_a_server_names_its_address_and_how_to_start_it() -> None:
    async def main() -> None:
        spare = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = spare.sockets[0].getsockname()[1]
        spare.close()
        await spare.wait_closed()
        bus = ensue.connect(f"ensue://127.0.0.1:{port}")
        with pytest.raises(TransportError) as error:
            await within(bus.__aenter__())
        text = str(error.value)
        assert text.startswith(f"no server answers at 127.0.0.1:{port} (")
        assert f"ensue serve --listen 127.0.0.1:{port} --data DIR" in text
        assert error.value.retriable

    asyncio.run(main())


def test_closing_waits_for_unsettled_events(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            async with ensue.connect(server.url) as bus:
                for payload in numbers(1, 300):
                    await bus.publish("x", payload, receipt=False)
            async with (
                ensue.connect(server.url) as bus,
                bus.subscribe("x", start="earliest") as events,
            ):
                assert await read(events, 300) == numbers(1, 300)

    asyncio.run(main())


def test_cancelled_close_fails_unsettled_events(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            bus = ensue.connect(server.url)
            await within(bus.__aenter__())
            await server.stop()
            waiting = asyncio.create_task(bus.publish("x", b"1"))
            closing = asyncio.create_task(bus.close())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not closing.done()
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await within(closing)
            with pytest.raises(ensue.EventsInDoubt, match="closed before the receipt arrived"):
                await within(waiting)
            with pytest.raises(LocalProtocolError, match="the bus is not open"):
                await bus.publish("x", b"2")

    asyncio.run(main())


# -- Subscribing -----------------------------------------------------------------------------------


def test_topics_are_joined_and_left_while_connected(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url) as bus,
            bus.subscribe("x") as events,
        ):
            await bus.publish("y", b"before")
            await within(events.subscribe("y", "z"))
            assert set(events.topics) == {"x", "y", "z"}
            await bus.publish("y", b"1")
            assert await read(events, 1) == [b"1"]
            await within(events.unsubscribe("x", "y"))
            assert events.topics == ("z",)
            await bus.publish("x", b"unheard")
            await bus.publish("z", b"2")
            assert await read(events, 1) == [b"2"]
            await within(events.unsubscribe("z"))
            await within(events.subscribe("x"))
            await bus.publish("x", b"3")
            assert await read(events, 1) == [b"3"]

    asyncio.run(main())


def test_server_forgets_a_subscription_that_was_closed(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            station = server.station
            assert station is not None
            async with bus.subscribe("x", "y"):
                assert len(station.node.subscribers()) == 1
            await until(lambda: not station.node.subscribers())
            assert not any(station.log.listeners().values())

    asyncio.run(main())


@pytest.mark.parametrize("count", [5, 9_000])
def test_backfill_comes_before_new_events(tmp_path: Path, count: int) -> None:
    """More than `pending_max`: events must be read as they arrive."""

    async def main() -> None:
        async with serving(tmp_path / "d", sync_s=1.0) as server, ensue.connect(server.url) as bus:
            await publish(bus, "x", 1, count)
            async with bus.subscribe("x", start="earliest", pending_max=100) as events:
                assert events.topics == ("x",)
                await publish(bus, "x", count + 1, count + 5)
                assert await read(events, count + 5) == numbers(1, count + 5)

    asyncio.run(main())


def test_subscription_starts_at_a_place_of_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            for number in range(1, 11):
                await bus.publish("xy"[number % 2], b"%d" % number)
            async with bus.subscribe("x", "y", start=7) as events:
                got = [await within(anext(events)) for _ in range(4)]
                assert [(each.place, each.payload) for each in got] == [
                    (place, b"%d" % place) for place in range(7, 11)
                ]
            with pytest.raises(BadInput, match="a place in the log, counted from 1"):
                bus.subscribe("x", start=0)

    asyncio.run(main())


def test_slow_reader_pauses_in_bounded_memory_and_catches_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=1.0) as server,
            ensue.connect(server.url) as bus,
            ensue.connect(server.url) as other,
            other.subscribe("x", pending_max=50) as slow,
            other.subscribe("x") as quick,
        ):
            padding = bytes(1_000)
            most = 0
            for number in range(1, 5_001):
                await bus.publish("x", b"%d " % number + padding, receipt=False)
                most = max(most, slow.pending)
            # Publishers don't wait for it, and other subscribers get all events.
            await within(bus.flush())
            assert len(await read(quick, 5_000)) == 5_000
            most = max(most, slow.pending)
            # Only a few bundles were in flight when it ran out of room.
            assert 50 <= most < 2_000
            got = [int(payload.split()[0]) for payload in await read(slow, 5_000)]
            assert got == list(range(1, 5_001))

    asyncio.run(main())


# -- Durable subscriptions -------------------------------------------------------------------------


def test_durable_subscription_continues_after_the_last_handled_event(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            async with bus.subscribe("x", name="desk", durable=True) as desk:
                await publish(bus, "x", 1, 10)
                # Reading the fourth acknowledges three; a normal end of the block, the fourth.
                assert await read(desk, 4) == numbers(1, 4)
            await publish(bus, "x", 11, 12)
            async with (
                ensue.connect(server.url) as other,
                other.subscribe("x", name="desk", durable=True) as desk,
            ):
                first = await within(anext(desk))
                assert (first.payload, first.position) == (b"5", 5)
                assert await read(desk, 7) == numbers(6, 12)

    asyncio.run(main())


def test_unacknowledged_event_is_delivered_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            options = {"name": "desk", "durable": True, "acknowledge": "manual"}
            async with bus.subscribe("x", **options) as desk:  # type: ignore[arg-type]
                await publish(bus, "x", 1, 6)
                got = [await within(anext(desk)) for _ in range(5)]
                for place in (0, 1, 3):
                    await within(got[place].ack())
            # The third was not: the unbroken run ends before it.
            async with bus.subscribe("x", **options) as desk:  # type: ignore[arg-type]
                assert await read(desk, 4) == numbers(3, 6)

    asyncio.run(main())


def test_exception_in_the_reader_leaves_the_last_event_unacknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            with contextlib.suppress(ZeroDivisionError):
                async with bus.subscribe("x", name="desk", durable=True) as desk:
                    await publish(bus, "x", 1, 3)
                    assert await read(desk, 2) == numbers(1, 2)
                    raise ZeroDivisionError
            async with bus.subscribe("x", name="desk", durable=True) as desk:
                assert await read(desk, 2) == numbers(2, 3)

    asyncio.run(main())


def test_later_process_takes_over_a_name_and_the_earlier_one_is_notified(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url) as one,
            ensue.connect(server.url) as two,
            one.subscribe("x") as bystander,
        ):
            earlier = one.subscribe("x", name="desk", durable=True, acknowledge="manual")
            await within(earlier.__aenter__())
            await publish(two, "x", 1, 4)
            got = [await within(anext(earlier)) for _ in range(3)]
            await within(got[0].ack())
            async with two.subscribe("x", name="desk", durable=True) as later:
                assert await read(later, 3) == numbers(2, 4)
                with pytest.raises(SubscriptionLost) as lost:
                    await within(got[1].ack())
                with pytest.raises(SubscriptionLost):
                    await read(earlier, 100)
                assert lost.value.reason == "superseded"
                assert "another process took over its name" in str(lost.value)
                earlier.close()
                await publish(two, "x", 5, 6)
                assert await read(later, 2) == numbers(5, 6)
            # Other subscriptions of the earlier process continue.
            assert await read(bystander, 6) == numbers(1, 6)
            # Later acknowledgements of the earlier process have no effect.
            async with two.subscribe("x", name="desk", durable=True) as later:
                await publish(one, "x", 7, 7)
                assert await read(later, 1) == [b"7"]

    with caplog.at_level(logging.CRITICAL, logger="ensue"):
        asyncio.run(main())


def test_name_is_used_once_on_one_bus(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url) as bus,
            bus.subscribe("x", name="desk", durable=True) as desk,
        ):
            with pytest.raises(BadInput, match="'desk' is taken on this bus"):
                await within(bus.subscribe("x", name="desk", durable=True).__aenter__())
            await publish(bus, "x", 1, 1)
            assert await read(desk, 1) == [b"1"]

    asyncio.run(main())


def test_forgotten_subscription_starts_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            station = server.station
            assert station is not None
            async with bus.subscribe("x", name="desk", durable=True) as desk:
                await publish(bus, "x", 1, 3)
                assert await read(desk, 1) == [b"1"]
                assert dict(station.state_store.names())["desk"] > 0
                await within(desk.forget())
                assert desk.closed
            await until(lambda: "desk" not in station.state_store.names())
            await until(lambda: "desk" not in station.node.subscribers())
            await publish(bus, "x", 4, 4)
            async with bus.subscribe("x", name="desk", durable=True) as desk:
                await publish(bus, "x", 5, 5)
                got = await within(anext(desk))
                assert (got.payload, got.position) == (b"5", 1)
            async with bus.subscribe("x") as plain:
                with pytest.raises(LocalProtocolError, match="only a durable subscription"):
                    await plain.forget()

    asyncio.run(main())


def test_durable_subscription_adds_topics(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            async with bus.subscribe("x", "y", name="desk", durable=True):
                pass
            await publish(bus, "x", 1, 2)
            await publish(bus, "y", 3, 4)
            async with bus.subscribe("x", "y", "z", name="desk", durable=True) as desk:
                await within(desk.unsubscribe("x"))
                assert set(desk.topics) == {"y", "z"}
                await publish(bus, "z", 5, 5)
                assert await read(desk, 3) == numbers(3, 5)

    asyncio.run(main())


def test_durable_subscription_resumes_in_the_middle_of_its_backfill(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", sync_s=1.0) as server, ensue.connect(server.url) as bus:
            await publish(bus, "x", 1, 200)
            options = {"name": "desk", "durable": True, "pending_max": 10}
            got: list[bytes] = []
            for start in ("earliest", "latest", 150):
                subscribed = bus.subscribe("x", start=start, **options)  # type: ignore[arg-type]
                async with subscribed as desk:
                    got += await read(desk, 60)
            assert got == numbers(1, 180)

    asyncio.run(main())


def test_invalid_durable_subscriptions_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            with pytest.raises(ConfigurationError, match="needs a name to be found by"):
                bus.subscribe("x", durable=True)
            with pytest.raises(BadInput, match="which marks generated names"):
                bus.subscribe("x", durable=True, name="de~sk")
        async with ensue.connect("memory://") as bus:
            with pytest.raises(ConfigurationError, match="keeps no positions"):
                bus.subscribe("x", durable=True, name="desk")
            with pytest.raises(ConfigurationError, match="keeps no log to start from"):
                bus.subscribe("x", start="earliest")

    asyncio.run(main())


# -- A server that goes away -----------------------------------------------------------------------


def test_server_restart_loses_and_duplicates_no_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        server = Server(ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0"))
        await server.start()
        try:
            async with (
                ensue.connect(server.url) as bus,
                ensue.connect(server.url) as other,
                bus.subscribe("x") as plain,
                other.subscribe("x", name="desk", durable=True) as desk,
            ):

                async def write() -> None:
                    for payload in numbers(1, 3_000):
                        await bus.publish("x", payload, receipt=False)
                        await asyncio.sleep(0)

                writing = asyncio.create_task(write())
                for out in (400, 1_200):
                    await reached(server, out)
                    server = await restarted(server)
                await within(writing)
                await within(bus.flush())
                assert await read(plain, 3_000) == numbers(1, 3_000)
                assert await read(desk, 3_000) == numbers(1, 3_000)
                assert server.station is not None
                assert server.station.log.ends() == {"x": 3_000}
        finally:
            await server.stop()

    with caplog.at_level(logging.CRITICAL, logger="ensue"):
        asyncio.run(main())


def test_publish_and_join_wait_for_an_absent_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        server = Server(ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0"))
        await server.start()
        try:
            async with ensue.connect(server.url) as bus, bus.subscribe("x") as events:
                assert server.listener is not None
                listen = f"127.0.0.1:{server.listener.port}"
                await server.stop()
                receipt = asyncio.create_task(bus.publish("x", b"1"))
                joining = asyncio.create_task(events.subscribe("y"))
                await asyncio.sleep(0)
                assert not receipt.done()
                server = Server(ServerConfig(data=str(tmp_path / "d"), listen=listen))
                await server.start()
                assert (await within(receipt)).slot == 1
                await within(joining)
                await within(bus.publish("y", b"2"))
                assert await read(events, 2) == [b"1", b"2"]
        finally:
            await server.stop()

    with caplog.at_level(logging.CRITICAL, logger="ensue"):
        asyncio.run(main())


@pytest.mark.parametrize("turns", range(8))
def test_connection_during_shutdown_is_closed(tmp_path: Path, turns: int) -> None:
    """A client must distinguish a stopped server from a slow one."""

    async def main() -> bytes:
        async with serving(tmp_path / "d") as server:
            assert server.listener is not None
            with socket.create_connection(("127.0.0.1", server.listener.port)) as late:
                late.setblocking(False)
                for _ in range(turns):
                    await asyncio.sleep(0)
                await server.stop()
                heard = b""
                with contextlib.suppress(ConnectionResetError):
                    while chunk := await within(
                        asyncio.get_running_loop().sock_recv(late, 4096), 60
                    ):
                        heard += chunk
                return heard

    heard = asyncio.run(main())
    assert heard == b"" or b"shutting down" in heard
