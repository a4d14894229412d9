"""Servers whose log is damaged, replaced or rolled back: clients and operators get an error."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.server.helpers import read, serving, until, within

import ensue
from ensue.core.errors import LogDamaged
from ensue.core.lineage import Lineage
from ensue.journal import Journal
from ensue.protocols.total.placement import Placement
from ensue.server import Server, ServerConfig
from ensue.server.config import Retention
from ensue.server.station_builder import begin_incarnation
from ensue.transports.tcp.messages import Member


def logs(data: Path) -> list[Path]:
    return sorted(data.glob("*.log"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def cut_as_by_a_power_failure(log: Path, size: int) -> None:
    """Truncate a log, and remove the record of the last synced batch."""
    with log.open("r+b") as file:
        file.truncate(size)
    log.with_name("lock").write_bytes(b"made\n")


async def publish(url: str, payloads: list[bytes]) -> None:
    async with ensue.connect(url) as bus:
        for payload in payloads:
            await bus.publish("t", payload)


def test_damaged_segment_stops_the_server_and_clients_get_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retention = Retention(segment_bytes=2_000)

    async def main() -> None:
        started = serving(tmp_path / "d", retention=retention)
        async with started as server, ensue.connect(server.url) as bus:
            for _ in range(24):  # More than a server reads when it starts.
                await asyncio.gather(*(bus.publish("t", bytes(100)) for _ in range(50)))
        damaged = logs(tmp_path / "d")[0]
        flip(damaged, damaged.stat().st_size // 2)
        async with serving(tmp_path / "d", retention=retention) as server:
            ended = asyncio.ensure_future(server.wait())
            async with ensue.connect(server.url) as bus:
                await bus.publish("other", b"1")
                assert server.status is not None
                assert server.status.unhealthy_reason() == ""
                async with bus.subscribe("t", start="earliest") as events:
                    with pytest.raises(ensue.SubscriptionLost) as caught:
                        await read(events, 1_200)
                    assert caught.value.reason == "damaged"
                    assert f"{damaged.name} is damaged at byte" in str(caught.value)
                    assert str(tmp_path) not in str(caught.value)
                with pytest.raises(ensue.LogLost, match=damaged.name) as lost:
                    await within(bus.publish("other", b"2"))
                assert (lost.value.server, lost.value.reason) == ("node-1", "damaged")
            assert "is damaged at byte" in server.status.unhealthy_reason()
            with pytest.raises(LogDamaged, match=rf"{damaged} is damaged at byte \d+.*has stopped"):
                await within(ended)

    with caplog.at_level(logging.WARNING, "ensue"):
        asyncio.run(main())
    said = [each for each in caplog.records if each.levelno == logging.CRITICAL]
    assert [each.getMessage().count("is damaged at byte") for each in said] == [1]
    assert not any(each.exc_info for each in caplog.records)


@asynccontextmanager
async def moved(server: Server, data: Path) -> AsyncIterator[Server]:
    """Stop the server, and start another one at its address, on other data."""
    assert server.listener is not None
    address = f"127.0.0.1:{server.listener.port}"
    await server.stop()
    async with serving(data, listen=address) as other:
        yield other


def older_copy(data: Path, copy: Path) -> Path:
    """Roll back to a copy, and publish more to it than the original had."""

    async def go_on() -> None:
        for _ in range(3):
            async with serving(copy) as server:
                await publish(server.url, [b"other"] * 5)

    asyncio.run(go_on())
    return copy


def emptied(_data: Path, _copy: Path) -> Path:
    return _data.with_name("new")


@pytest.mark.parametrize(("lose", "reason"), [(emptied, "replaced"), (older_copy, "rolled back")])
def test_connected_clients_get_an_error_if_the_log_is_replaced_or_older(
    tmp_path: Path, lose: Callable[[Path, Path], Path], reason: str
) -> None:
    data, copy = tmp_path / "d", tmp_path / "copy"

    async def main() -> None:
        async with serving(data) as server:
            await publish(server.url, [b"0", b"1"])
        shutil.copytree(data, copy)
        left = await asyncio.to_thread(lose, data, copy)
        async with serving(data) as server:
            bus = ensue.connect(server.url)
            await bus.__aenter__()
            idle = ensue.connect(server.url)
            await idle.__aenter__()
            durable = bus.subscribe("t", name="desk", durable=True, start="earliest")
            live = bus.subscribe("t", start="earliest")
            async with durable, live:
                await bus.publish("t", b"2")
                assert await read(live, 3) == [b"0", b"1", b"2"]
                assert await read(durable, 3) == [b"0", b"1", b"2"]
                async with moved(server, left) as other:
                    for events in (live, durable):
                        with pytest.raises(ensue.SubscriptionLost, match="node-1") as caught:
                            await within(anext(events))
                        assert caught.value.reason == reason
                        assert isinstance(caught.value.__cause__, ensue.LogLost)
                    for each in (bus, idle):
                        with pytest.raises(ensue.LogLost, match="connect again") as lost:
                            await within(each.publish("t", b"3"))
                        assert lost.value.reason == reason
                        await within(each.close())
                        assert (lost.value.server, lost.value.retriable) == ("node-1", False)
                    await publish(other.url, [b"a new client goes on"])

    asyncio.run(main())


def test_subscription_fails_if_the_log_lost_its_events_and_resumes_otherwise(
    tmp_path: Path,
) -> None:
    """As after a power failure, if the disk was not synced before the receipts."""
    data = tmp_path / "d"

    async def main(lost: int) -> str:
        shutil.rmtree(data, ignore_errors=True)
        left = tmp_path / f"left-{lost}"
        async with (
            serving(data) as server,
            ensue.connect(server.url) as bus,
            bus.subscribe("t") as events,
        ):
            await bus.publish("t", b"0")
            assert await read(events, 1) == [b"0"]
            size = logs(data)[0].stat().st_size
            await bus.publish("t", b"1")
            assert await read(events, 1) == [b"1"]
            shutil.copytree(data, left)  # As a killed process leaves it.
            if lost:
                cut_as_by_a_power_failure(logs(left)[0], size)
            async with moved(server, left) as other:
                await publish(other.url, [b"2", b"3", b"4"])
                try:
                    assert await read(events, 3) == [b"2", b"3", b"4"]
                except ensue.SubscriptionLost as error:
                    return error.reason
        return ""

    assert asyncio.run(main(0)) == ""
    assert asyncio.run(main(1)) == "rolled back"


def test_each_start_persists_an_incarnation_before_clients_get_it(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        lineages = []
        for count in range(3):
            async with serving(tmp_path / "d") as server:
                assert server.journal is not None
                assert server.lineage is not None
                left = tmp_path / f"killed-{count}"
                shutil.copytree(tmp_path / "d", left)
                with Journal(left) as journal:
                    assert (
                        msgspec.msgpack.decode(journal.records["lineage"], type=Lineage)
                        == server.lineage
                    )
                lineages.append(server.lineage)
                assert server._welcome().log == server.lineage
                await publish(server.url, [b"x"] * count)
        assert [each.identity for each in lineages] == [lineages[0].identity] * 3
        assert [each.number for each in lineages[2].incarnations] == [1, 2, 3]
        assert [each.begun for each in lineages[2].incarnations] == [0, 0, 1]
        assert lineages[2].incarnations[:2] == lineages[1].incarnations

    asyncio.run(main())


def test_incarnation_is_synced_when_it_begins(tmp_path: Path) -> None:
    """Sent and then lost in a power cut, it would make an intact log look rolled back."""
    with Journal(tmp_path / "d") as journal:
        lineage = begin_incarnation(journal, 7)
        assert journal._durable == journal.batch_count > 0
        shutil.copytree(tmp_path / "d", tmp_path / "killed")
    assert [(each.number, each.begun) for each in lineage.incarnations] == [(1, 7)]
    with Journal(tmp_path / "killed") as journal:
        assert msgspec.msgpack.decode(journal.records["lineage"], type=Lineage) == lineage


def test_accepted_loss_creates_another_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "d"

    async def main() -> None:
        async with serving(data) as server:
            await publish(server.url, [b"0", b"1", b"2"])
            assert server.lineage is not None
            identity = server.lineage.identity
        (log,) = logs(data)
        with log.open("r+b") as file:
            file.truncate(log.stat().st_size - 1)
        with pytest.raises(LogDamaged, match=rf"{log.name} is damaged at byte \d+"):
            async with serving(data):
                pass
        async with serving(data, accept_loss=True) as server:
            assert server.lineage is not None
            assert server.lineage.identity != identity
            assert [each.number for each in server.lineage.incarnations] == [1, 2]
            accepted = server.lineage.identity
            await publish(server.url, [b"3"])
        async with serving(data) as server:
            assert server.lineage is not None
            assert server.lineage.identity == accepted

    with caplog.at_level(logging.WARNING, "ensue"):
        asyncio.run(main())
    assert "loss accepted" in caplog.text


def test_damage_is_reported_to_clients_that_do_not_read(tmp_path: Path) -> None:
    """A client that never reads gets the error too."""

    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            assert server.journal is not None
            ended = asyncio.ensure_future(server.wait())
            damage = LogDamaged("/x/1.log is damaged at byte 3: as a test has it", path="/x/1.log")
            assert server.journal.on_damage is not None
            server.journal.on_damage(damage)
            with pytest.raises(LogDamaged):
                await within(ended)
            await server.stop()
            await until(lambda: bus._failure is not None)
            with pytest.raises(
                ensue.LogLost, match=r"'node-1' can't read its log: 1.log is damaged"
            ):
                await within(bus.publish("t", b"1"))

    asyncio.run(main())


async def free_addresses(count: int) -> list[str]:
    sockets = [await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.sockets[0].getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
        await each.wait_closed()
    return addresses


@pytest.mark.parametrize("old", [False, True])
def test_server_of_a_chain_stops_if_it_returns_with_another_or_older_log(
    tmp_path: Path, old: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The other server notifies it, and continues with it once it has its own log."""

    async def main() -> None:
        members = tuple(
            Member(f"s{number}", address, (f"t{number}",))
            for number, address in enumerate(await free_addresses(2))
        )

        def server(number: int, data: str, **options: Any) -> Server:
            member = members[number]
            config = ServerConfig(
                data=str(tmp_path / data),
                listen=member.address,
                name=member.name,
                chain=members,
                **options,
            )
            return Server(config)

        async def publish_on_both(first: Server) -> None:
            async with ensue.connect(first.url) as bus, bus.subscribe("t0", "t1") as events:
                await within(bus.publish("t0", b"0"))
                await within(bus.publish("t1", b"1"))
                assert await read(events, 2) == [b"0", b"1"]

        first, second = server(0, "s0"), server(1, "s1")
        await first.start()
        await second.start()
        try:
            await publish_on_both(first)
            await second.stop()
            if old:
                shutil.copytree(tmp_path / "s1", tmp_path / "other")
                second = server(1, "s1")
                await second.start()
                await publish_on_both(first)
                await second.stop()
            second = server(1, "other")
            await second.start()
            reason = "rolled back" if old else "replaced"
            with pytest.raises(ensue.LogLost, match=r"'s1' .* --accept-loss") as lost:
                await within(second.wait())
            assert (lost.value.server, lost.value.reason) == ("s1", reason)
            await second.stop()
            assert first._ended is not None
            assert not first._ended.done()
            second = server(1, "s1")
            await second.start()
            await publish_on_both(first)
        finally:
            await first.stop()
            await second.stop()

    asyncio.run(main())
    assert "'s1'" in caplog.text


def test_chain_accepts_a_loss_of_old_events_together(tmp_path: Path) -> None:
    retention = Retention(segment_bytes=20_000)

    async def main() -> None:
        members = tuple(
            Member(f"s{number}", address, (f"t{number}",))
            for number, address in enumerate(await free_addresses(2))
        )
        configs = [
            ServerConfig(
                data=str(tmp_path / member.name),
                listen=member.address,
                name=member.name,
                chain=members,
                retention=retention,
            )
            for member in members
        ]
        servers: list[Server] = []

        async def start(**options: Any) -> None:
            servers[:] = [Server(msgspec.structs.replace(each, **options)) for each in configs]
            for each in servers:
                await each.start()

        async def stop() -> None:
            for each in servers:
                await each.stop()

        await start()
        async with ensue.connect(servers[0].url) as bus, bus.subscribe("t0", "t1") as events:
            for _ in range(24):
                await asyncio.gather(*(bus.publish("t1", bytes(100)) for _ in range(50)))
            await bus.publish("t0", b"0")
            await read(events, 1_201)
        await stop()
        damaged = logs(tmp_path / "s1")[0]
        flip(damaged, damaged.stat().st_size // 2)
        await start(accept_loss=True)
        async with ensue.connect(servers[0].url) as bus, bus.subscribe("t0", "t1") as events:
            await within(bus.publish("t1", b"1"))
            await within(bus.publish("t0", b"2"))
            assert await read(events, 2) == [b"1", b"2"]
        await stop()
        log = logs(tmp_path / "s1")[-1]
        with log.open("r+b") as file:
            file.truncate(log.stat().st_size - 1)
        with pytest.raises(LogDamaged, match="loses state which the servers of a chain share"):
            await start(accept_loss=True)
        await servers[0].stop()

    asyncio.run(main())


def test_durable_subscription_fails_after_an_accepted_loss_unless_it_accepts_it(
    tmp_path: Path,
) -> None:
    data = tmp_path / "d"

    async def main() -> None:
        def desk(bus: ensue.Bus, **options: Any) -> ensue.Subscription:
            return bus.subscribe("t", name="desk", durable=True, **options)

        async with serving(data) as server, ensue.connect(server.url) as bus, desk(bus) as events:
            for payload in (b"0", b"1", b"2", b"3"):
                await bus.publish("t", payload)
            assert await read(events, 2) == [b"0", b"1"]
        async with serving(data, accept_loss=True) as server, ensue.connect(server.url) as bus:
            with pytest.raises(ensue.SubscriptionLost, match="accept_loss=True") as lost:
                await within(desk(bus).__aenter__())
            assert lost.value.reason == "replaced"
            async with desk(bus, accept_loss=True) as events:
                assert await read(events, 1) == [b"2"]
        async with serving(data) as server, ensue.connect(server.url) as bus, desk(bus) as events:
            assert await read(events, 1) == [b"3"]
            assert events.missed == ()

    asyncio.run(main())


def test_durable_subscription_reads_another_log_from_its_start_if_it_accepts_it(
    tmp_path: Path,
) -> None:
    """Another server of the chain keeps its records, with its progress on this one."""

    async def main() -> None:
        members = tuple(
            Member(f"s{number}", address, (f"t{number}",))
            for number, address in enumerate(await free_addresses(2))
        )
        placement = Placement([each.name for each in members])
        name = next(f"desk-{n}" for n in range(99) if placement.state_store(f"desk-{n}") == "s0")

        async def start(data: str, **options: Any) -> list[Server]:
            servers = [
                Server(
                    ServerConfig(
                        data=str(tmp_path / each_data),
                        listen=member.address,
                        name=member.name,
                        chain=members,
                        **options,
                    )
                )
                for member, each_data in zip(members, ("s0", data), strict=True)
            ]
            for each in servers:
                await each.start()
            return servers

        async def stop(servers: list[Server]) -> None:
            for each in servers:
                await each.stop()

        def desk(bus: ensue.Bus, **options: Any) -> ensue.Subscription:
            return bus.subscribe("t1", name=name, durable=True, **options)

        servers = await start("s1")
        async with ensue.connect(servers[0].url) as bus, desk(bus) as events:
            for payload in (b"0", b"1", b"2"):
                await within(bus.publish("t1", payload))
            assert await read(events, 3) == [b"0", b"1", b"2"]
        await stop(servers)
        servers = await start("other", accept_loss=True)
        async with ensue.connect(servers[0].url) as bus:
            for payload in (b"a", b"b", b"c", b"d"):
                await within(bus.publish("t1", payload))
            hub = bus._hub
            assert hub is not None
            await until(lambda: len(hub.logs) == 2)
            with pytest.raises(ensue.SubscriptionLost, match="accept_loss=True") as lost:
                await within(desk(bus).__aenter__())
            assert lost.value.reason == "replaced"
            async with desk(bus, accept_loss=True) as events:
                assert await read(events, 4) == [b"a", b"b", b"c", b"d"]
        await stop(servers)

    asyncio.run(main())


def test_only_a_durable_subscription_accepts_a_loss(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            with pytest.raises(ensue.BadInput, match="accept_loss is for durable subscriptions"):
                bus.subscribe("t", accept_loss=True)
            with pytest.raises(ensue.BadInput, match="accept_loss must be True or False, got 1"):
                bus.subscribe("t", name="n", durable=True, accept_loss=1)  # type: ignore[arg-type]

    asyncio.run(main())


def test_durable_subscription_fails_later_if_a_log_lost_its_events(tmp_path: Path) -> None:
    """Another server of the chain keeps its records."""

    async def main() -> None:
        members = tuple(
            Member(f"s{number}", address, (f"t{number}",))
            for number, address in enumerate(await free_addresses(2))
        )
        placement = Placement([each.name for each in members])
        name = next(f"desk-{n}" for n in range(99) if placement.state_store(f"desk-{n}") == "s0")

        def server(number: int) -> Server:
            member = members[number]
            data = str(tmp_path / member.name)
            return Server(
                ServerConfig(data=data, listen=member.address, name=member.name, chain=members)
            )

        def desk(bus: ensue.Bus, **options: Any) -> ensue.Subscription:
            return bus.subscribe("t1", name=name, durable=True, **options)

        first, second = server(0), server(1)
        await first.start()
        await second.start()
        async with ensue.connect(first.url) as bus, desk(bus) as events:
            await within(bus.publish("t1", b"0"))
            assert await read(events, 1) == [b"0"]
            (log,) = logs(tmp_path / "s1")
            size = log.stat().st_size
            await within(bus.publish("t1", b"1"))
            assert await read(events, 1) == [b"1"]
            killed = tmp_path / "killed"
            shutil.copytree(tmp_path / "s1", killed)  # As a killed process leaves it.
        await second.stop()
        shutil.rmtree(tmp_path / "s1")
        cut_as_by_a_power_failure(killed / log.name, size)
        killed.rename(tmp_path / "s1")
        second = server(1)
        await second.start()
        async with ensue.connect(first.url) as bus:
            for payload in (b"2", b"3", b"4"):
                await within(bus.publish("t1", payload))
            hub = bus._hub
            assert hub is not None
            await until(lambda: len(hub.logs) == 2)
            with pytest.raises(ensue.SubscriptionLost, match="accept_loss=True") as lost:
                await within(desk(bus).__aenter__())
            assert lost.value.reason == "rolled back"
            async with desk(bus, accept_loss=True) as events:
                assert await read(events, 4) == [b"0", b"2", b"3", b"4"]
        async with ensue.connect(first.url) as bus:
            await until(lambda: bus._hub is not None and len(bus._hub.logs) == 2)
            async with desk(bus) as events:
                await within(bus.publish("t1", b"5"))
                assert await read(events, 1) == [b"5"]
        await first.stop()
        await second.stop()

    asyncio.run(main())


def test_content_and_causal_order_end_with_the_log_and_no_order_continues(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            buses = [
                ensue.connect(server.url, order=order) for order in (None, ensue.Causal(), None)
            ]
            for bus in buses:
                await bus.__aenter__()
            content, causal, plain = buses
            await content.advertise(where="price exists")
            by_content = content.subscribe(where="price > 1")
            by_cause, as_they_come = causal.subscribe("c"), plain.subscribe("t")
            for events in (by_content, by_cause, as_they_come):
                await events.__aenter__()
            await content.publish({"price": 2}, b"1")
            assert await read(by_content, 1) == [b"1"]
            async with moved(server, tmp_path / "new"):
                for events in (by_content, by_cause):
                    with pytest.raises(ensue.SubscriptionLost, match="has another log") as lost:
                        await within(anext(events))
                    assert lost.value.reason == "replaced"
                with pytest.raises(ensue.LogLost):
                    await within(content.publish({"price": 3}, b"2"))
                with pytest.raises(ensue.LogLost):
                    await within(causal.publish("c", b"2"))
                while not as_they_come.waiting:  # It has to come back first, and nothing is kept.
                    await within(plain.publish("t", b"2"))
                    await asyncio.sleep(0.01)
                assert await read(as_they_come, 1) == [b"2"]
                for bus in buses:
                    await within(bus.close())

    asyncio.run(main())
