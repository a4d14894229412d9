"""A server from start to stop: order, restarts and failures."""

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.server.helpers import read, serving, until, within

import ensue
from ensue.core.errors import InternalError, LimitReached, LogInUse, TransportError
from ensue.journal.files import JournalFailed
from ensue.protocols.interface import Persist
from ensue.protocols.total.config import SequencerConfig
from ensue.server import Server, ServerConfig
from ensue.server.config import Retention
from ensue.transports.tcp.messages import Member


def test_two_subscriptions_see_one_order_of_two_publishers(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url) as one,
            ensue.connect(server.url) as two,
            one.subscribe("x", "y") as first,
            two.subscribe("y", "x") as second,
        ):
            for number in range(50):
                await one.publish("x", b"x%d" % number, receipt=False)
                await two.publish("y", b"y%d" % number, receipt=False)
            seen = await read(first, 100)
            assert seen == await read(second, 100)
            assert len(set(seen)) == 100

    asyncio.run(main())


def test_events_and_progress_survive_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url) as bus,
            bus.subscribe("x", name="desk", durable=True) as desk,
        ):
            for number in range(3):
                await bus.publish("x", b"%d" % number)
            assert await read(desk, 1) == [b"0"]
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url) as bus,
            bus.subscribe("x", name="desk", durable=True) as desk,
        ):
            await bus.publish("x", b"3")
            assert await read(desk, 3) == [b"1", b"2", b"3"]

    asyncio.run(main())


async def chain(tmp_path: Path, count: int, **options: Any) -> list[Server]:
    """Start the servers of a chain on spare ports, found before they start."""
    sockets = [await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) for _ in range(count)]
    ports = [each.sockets[0].getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
        await each.wait_closed()
    members = tuple(
        Member(f"s{number}", f"127.0.0.1:{port}", (f"t{number}",))
        for number, port in enumerate(ports)
    )
    servers = [
        Server(
            ServerConfig(
                data=str(tmp_path / member.name),
                listen=member.address,
                name=member.name,
                chain=members,
                **options,
            )
        )
        for member in members
    ]
    for server in servers:
        await server.start()
    return servers


def test_server_that_stops_leaves_no_connection_to_one_that_has_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        first, second = await chain(tmp_path, 2)
        listener = first.listener
        assert listener is not None
        await second.stop()
        asked: list[object] = []
        monkeypatch.setattr(listener, "enter_name", lambda *each: asked.append(each))
        second = Server(second.config)
        await second.start()
        await until(lambda: bool(asked))
        await second.stop()
        await until(lambda: not any(each.station for each in listener.connections))
        await first.stop()

    asyncio.run(main())


def test_chain_orders_topics_of_all_its_servers(tmp_path: Path) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 3)
        try:
            async with (
                ensue.connect(servers[0].url) as one,
                ensue.connect(servers[2].url) as two,
                one.subscribe("t0", "t1", "t2") as first,
                two.subscribe("t2", "t0", "t1") as second,
            ):
                for number in range(30):
                    await one.publish(f"t{number % 3}", b"a%d" % number, receipt=False)
                    await two.publish(f"t{(number + 1) % 3}", b"b%d" % number, receipt=False)
                seen = await read(first, 60)
                assert seen == await read(second, 60)
                assert sorted(seen) == sorted(
                    b"%s%d" % (w, n) for w in (b"a", b"b") for n in range(30)
                )
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


@pytest.mark.parametrize("kept", [True, False], ids=["publisher order", "none"])
def test_without_publisher_order_a_stopped_server_does_not_delay_others(
    kept: bool, tmp_path: Path
) -> None:
    async def main() -> None:
        config = SequencerConfig(carries=True, publisher_order=kept)
        servers = await chain(tmp_path, 2, sequencer=config)
        try:
            async with (
                ensue.connect(servers[0].url) as bus,
                bus.subscribe("t0") as here,
            ):
                await servers[1].stop()
                await bus.publish("t1", b"there", receipt=False)
                await bus.publish("t0", b"here", receipt=False)
                if kept:
                    async with ensue.connect(servers[0].url) as other:
                        await other.publish("t0", b"another's")
                    # Another publisher's event was accepted meanwhile, and this one was not.
                    assert await read(here, 1) == [b"another's"]
                else:
                    assert await read(here, 1) == [b"here"]
                servers[1] = Server(servers[1].config)
                await servers[1].start()
                await within(bus.flush())
                if kept:
                    assert await read(here, 1) == [b"here"]
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_port_in_use_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            assert server.listener is not None
            other = Server(
                ServerConfig(data=str(tmp_path / "e"), listen=f"127.0.0.1:{server.listener.port}")
            )
            with pytest.raises(TransportError, match=r"can't listen on 127\.0\.0\.1:\d+: .*in use"):
                await other.start()
            # It released everything.
            async with serving(tmp_path / "e"):
                pass

    asyncio.run(main())


def test_directory_is_for_one_server(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d"):
            with pytest.raises(LogInUse, match="is open in another process"):
                await Server(ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0")).start()

    asyncio.run(main())


def test_journal_failure_stops_the_server_and_sends_no_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        server = Server(ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0"))
        await server.start()
        assert server.journal is not None
        async with ensue.connect(server.url) as bus:
            await bus.publish("x", b"fine")

            def broken() -> int:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(server.journal, "sync", broken)
            under_way = asyncio.ensure_future(bus.publish("x", b"lost"))
            with pytest.raises(JournalFailed, match="No space left on device"):
                await within(server.wait())
            assert not under_way.done()
            under_way.cancel()
            server.journal.failed = OSError(28, "No space left on device")
            with pytest.raises(JournalFailed):
                await server.wait()
            await server.stop()
            # The bus would wait for a receipt that never arrives.
            closing = asyncio.ensure_future(bus.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.gather(closing, under_way, return_exceptions=True)

    asyncio.run(main())


def test_batch_rejected_by_the_journal_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        server = Server(ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0"))
        await server.start()
        assert server.journal is not None
        done: list[int] = []
        assert server._commit is not None

        def refuse(_writes: object) -> None:
            raise ValueError("no such key")

        monkeypatch.setattr(server.journal, "append", refuse)
        server._commit.write([Persist("a", b"b")], lambda: done.append(1))
        with pytest.raises(JournalFailed, match="no such key"):
            await within(server.wait())
        server._commit.write([], lambda: done.append(2))
        assert done == []
        monkeypatch.undo()
        await server.stop()

    asyncio.run(main())


def test_more_than_the_journal_buffers_is_written_in_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            journal = server.journal
            assert journal is not None
            append, full = journal.append, [True]

            def crowded(writes: Sequence[Persist]) -> None:
                if full:
                    full.clear()
                    raise LimitReached("no room", limit="BUFFER_BYTES_MAX", value=1)
                append(writes)

            monkeypatch.setattr(journal, "append", crowded)
            async with ensue.connect(server.url) as bus:
                assert (await within(bus.publish("x", b"1"))).slot == 1
            assert full == []

    asyncio.run(main())


def test_disk_failure_during_retention_stops_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensue.server.station_builder.RETAIN_EVERY_S", 0.01)

    async def main() -> None:
        retention = Retention(bytes=20_000, segment_bytes=5_000)
        server = Server(
            ServerConfig(data=str(tmp_path / "d"), listen="127.0.0.1:0", retention=retention)
        )
        await server.start()
        station, journal = server.station, server.journal
        assert station is not None
        assert journal is not None
        async with ensue.connect(server.url) as bus:
            for _ in range(100):
                await within(bus.publish("x", bytes(1000)))
            await until(lambda: station.log.bounds()["x"][0] > 70)
            assert station.log.bounds()["x"][1] == 101

            def broken(**_options: object) -> None:
                raise OSError(5, "Input/output error")

            monkeypatch.setattr(journal, "find_old", broken)
            with pytest.raises(JournalFailed, match="Input/output error"):
                await within(server.wait())
            monkeypatch.undo()
        await server.stop()

    asyncio.run(main())


def test_small_retention_is_respected_and_mostly_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensue.server.station_builder.RETAIN_EVERY_S", 0.01)

    async def main() -> None:
        limit = 2_000_000
        async with serving(tmp_path / "d", retention=Retention(bytes=limit)) as server:
            station, journal = server.station, server.journal
            assert station is not None
            assert journal is not None
            async with ensue.connect(server.url) as bus:
                for _ in range(300):
                    await within(bus.publish("x", bytes(20_000)))
            await until(lambda: journal.size_bytes <= limit)
            first, following = station.log.bounds()["x"]
            assert (following - first) * 20_000 > limit // 2

    asyncio.run(main())


def test_cancelled_stop_continues_and_a_second_stop_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            asked, disk, fsync = threading.Event(), threading.Event(), os.fsync

            def slow(descriptor: int) -> None:
                asked.set()
                assert disk.wait(60)
                fsync(descriptor)

            journal = server.journal
            assert journal is not None
            journal.append([Persist("something", b"new")])
            monkeypatch.setattr(os, "fsync", slow)
            stopping = asyncio.ensure_future(server.stop())
            await until(asked.is_set)
            stopping.cancel()
            await asyncio.wait([stopping])
            assert stopping.cancelled()
            again = asyncio.ensure_future(server.stop())
            await asyncio.sleep(0.02)
            assert not again.done()
            disk.set()
            await within(again)
            monkeypatch.undo()
        async with serving(tmp_path / "d"):  # Its lock was let go.
            pass

    asyncio.run(main())


def test_clients_reconnect_after_a_stop(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            assert server.listener is not None
            port = server.listener.port
            bus = ensue.connect(server.url)
            await bus.__aenter__()
            await bus.publish("x", b"1")
        under_way = asyncio.ensure_future(bus.publish("x", b"2"))
        async with serving(tmp_path / "d", listen=f"127.0.0.1:{port}") as again:
            await within(under_way)
            assert again.listener is not None
            listener = again.listener
            await until(lambda: len(listener.connections) == 1)
            await bus.close()
            await until(lambda: not listener.connections)

    asyncio.run(main())


def test_station_failure_stops_the_server_and_a_bad_message_only_its_sender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_args: object, **_named: object) -> NoReturn:
        raise RuntimeError("a fault")

    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            assert server._driver is not None
            assert server.listener is not None
            ended = asyncio.ensure_future(server.wait())
            with monkeypatch.context() as patch:
                patch.setattr(server._driver.node, "receive", fault)
                publishing = asyncio.create_task(bus.publish("x", b"1"))
                await until(lambda: server.listener and server.listener.errors["internal"])
            assert (await within(publishing)).slot == 1
            assert not ended.done()
            monkeypatch.setattr(server._driver.node, "next_timer_ns", lambda: 0)
            monkeypatch.setattr(server._driver.node, "handle_timer", fault)
            server._driver.command(lambda _node, _now: None)
            with pytest.raises(InternalError, match=r"so the server has stopped: .*a fault"):
                await within(ended)

    asyncio.run(main())
