"""Topics that move between the servers of a chain while events flow."""

import asyncio
import logging
import shutil
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from tests.server.helpers import People, read, serving, until, within
from tests.server.test_server import chain

import ensue
from ensue.core.errors import BadInput, OffsetsGone, SubscriptionRefused, TransportError
from ensue.core.event import Stamp
from ensue.core.wire import Codec
from ensue.protocols.shared.link import LinkData, Linked, LinkState
from ensue.protocols.total.frames import Fill, KnownMoves, Move
from ensue.protocols.total.move_coordinator import MoveUnderWay
from ensue.protocols.total.station import FRAMES, Station
from ensue.protocols.total.topic_moves import FREEZE, MoveConfig
from ensue.runtime.status import chain_status
from ensue.runtime.topic_move import move_topic
from ensue.server import Server, station_builder
from ensue.server.config import sequenced
from ensue.store.reader import LogReader, open_log


async def restart(server: Server) -> Server:
    await server.stop()
    again = Server(server.config)
    await again.start()
    return again


@pytest.mark.parametrize("to", ["s0", "s2"])
@pytest.mark.parametrize("causal", [True, False])
def test_events_keep_their_order_while_a_topic_moves(tmp_path: Path, to: str, causal: bool) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 3, sequencer=sequenced(causal=causal))
        order = ensue.Total(causal=causal)
        try:
            async with (
                ensue.connect(servers[0].url, order=order) as bus,
                ensue.connect(servers[2].url, order=order) as other,
                bus.subscribe("t0", "t1", "t2") as first,
                other.subscribe("t1", "t2", "t0") as second,
                other.subscribe("t1") as third,
            ):

                async def publish(start: int) -> None:
                    for number in range(start, start + 100):
                        await bus.publish(f"t{number % 3}", b"a%d" % number, receipt=False)
                        await other.publish("t1", b"b%d" % number)

                publishing = asyncio.create_task(publish(0))
                await within(move_topic(servers[1].url, "t1", to))
                await within(publishing)
                await within(publish(100))
                seen = await read(first, 400)
                assert seen == await read(second, 400)
                assert len(set(seen)) == 400
                of_t1 = [each for each in seen if each[:1] == b"b" or int(each[1:]) % 3 == 1]
                assert await read(third, len(of_t1)) == of_t1
                mine = [int(each[1:]) for each in seen if each[:1] == b"a" and causal]
                assert mine == sorted(mine)
            for server in servers:
                assert server.placement.node("t1") == to
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_servers_remember_a_move_and_clients_find_both_parts(tmp_path: Path) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 3)
        try:
            async with ensue.connect(servers[0].url) as bus:
                desk = bus.subscribe("t1", "t2", name="desk", durable=True, acknowledge="manual")
                async with desk as events:
                    for number in range(10):
                        await bus.publish("t1", b"%d" % number)
                    for _ in range(4):
                        event = await within(anext(events))
                        await within(event.ack())
                await within(move_topic(servers[2].url, "t1", "s2"))
                await bus.publish("t1", b"10")
            servers = [await restart(server) for server in servers]
            async with ensue.connect(servers[1].url) as bus:
                await bus.publish("t1", b"11")
                async with bus.subscribe("t1", "t2", name="desk", durable=True) as events:
                    assert await read(events, 8) == [b"%d" % each for each in range(4, 12)]
                async with bus.subscribe("t1", start="earliest") as events:
                    assert await read(events, 12) == [b"%d" % each for each in range(12)]
                with pytest.raises(SubscriptionRefused, match="only with topics of one server"):
                    async with bus.subscribe("t1", "t2", start="earliest"):
                        pass
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_log_readers_read_all_parts(tmp_path: Path) -> None:
    def payloads(log: LogReader, start: int, end: int) -> list[bytes]:
        batches = log.read("t1", start, end)
        return [row["value"] for batch in batches for row in batch.to_pylist()]

    async def main() -> None:
        servers = await chain(tmp_path, 3)
        log = await asyncio.to_thread(open_log, servers[0].url)
        try:
            async with ensue.connect(servers[0].url) as bus:
                for number in range(5):
                    await bus.publish("t1", b"%d" % number)
                assert await asyncio.to_thread(payloads, log, 0, 2) == [b"0", b"1"]
                for to in ("s0", "s2"):
                    await within(move_topic(servers[2].url, "t1", to))
                    for number in range(5):
                        await bus.publish("t1", b"%s%d" % (to.encode(), number))
            bounds = await asyncio.to_thread(log.bounds)
            assert bounds["t1"] == (0, 15)
            found = await asyncio.to_thread(payloads, log, 3, 15)
            assert found[:3] == [b"3", b"4", b"s00"]
            assert found[6:] == [b"s04", *(b"s2%d" % number for number in range(5))]
            with pytest.raises(OffsetsGone, match="ends before offset 15"):
                await asyncio.to_thread(payloads, log, 14, 16)
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_moves_that_are_refused_are_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 2)
        url = servers[1].url
        try:
            with pytest.raises(BadInput, match="the chain has no server 'x'; it has s0, s1"):
                await move_topic(url, "t0", "x")
            await within(move_topic(url, "t0", "s0"))  # It is there.
            await within(move_topic(url, "t0", "s1"))
            with pytest.raises(BadInput, match="s0 still keeps an earlier part of it"):
                await move_topic(url, "t0", "s0")
            await servers[1].stop()
            with pytest.raises(TransportError, match="is at the step 'ask', and waits for s1"):
                await move_topic(servers[0].url, "t1", "s0", within_s=0.3)
            with pytest.raises(TransportError, match=r"the move of 't1' to s0 .*: try again"):
                await move_topic(servers[0].url, "t2", "s0", within_s=0.3)
            # It is asked again and again.
            with pytest.raises(TransportError, match=r"s1 did not answer within 1000 ms|for s1"):
                await move_topic(servers[0].url, "t1", "s0", within_s=5)
            servers[1] = await restart(servers[1])
            await within(move_topic(url, "t1", "s0"))
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


def station(server: Server) -> Station:
    assert server.station is not None
    return server.station


def test_topic_whose_state_is_too_large_is_refused_before_anything_stops(tmp_path: Path) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 2)
        try:
            async with ensue.connect(servers[1].url) as bus, bus.subscribe("t1", "t0"):
                station(servers[1]).node.moves.config = MoveConfig(bytes_max=20)
                with pytest.raises(
                    BadInput, match=r"take \d+ bytes, above the limit of 20: move it"
                ):
                    await within(move_topic(servers[0].url, "t1", "s0"))
                assert station(servers[1]).node.moves.seen == 0
                station(servers[1]).node.moves.config = MoveConfig(bytes_max=200)
                await within(move_topic(servers[0].url, "t1", "s0"))
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_move_that_a_server_holds_up_is_given_up_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 3)
        hears: list[Move] = []
        moves = station(servers[2]).node.moves
        try:
            async with ensue.connect(servers[1].url) as bus, bus.subscribe("t0", "t1") as events:
                take = moves.on_move

                def stay_away(frame: Move, source: str, now_ns: int) -> None:
                    if frame.phase == FREEZE:
                        hears.append(frame)
                    else:
                        take(frame, source, now_ns)

                with mock.patch.object(moves, "on_move", stay_away):
                    moving = asyncio.create_task(move_topic(servers[0].url, "t1", "s2"))
                    await until(lambda: hears)
                    # Only the first server ends the freeze, after a while.
                    await within(bus.publish("t1", b"0"))
                    await within(bus.publish("t0", b"1"))
                    assert station(servers[0]).placement.node("t1") == "s1"
                await within(moving)  # It was tried again.
                await within(bus.publish("t1", b"2"))
                assert await read(events, 3) == [b"0", b"1", b"2"]
                for server in servers:
                    assert server.placement.node("t1") == "s2"
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_decided_move_holds_up_only_the_server_that_is_down(tmp_path: Path) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 3)
        decided: list[Move] = []
        moves = station(servers[1]).node.moves
        try:
            async with ensue.connect(servers[2].url) as bus, bus.subscribe("t2") as events:

                def stop_before(move: Move) -> bool:
                    decided.append(move)
                    return True

                with mock.patch.object(moves, "decide", stop_before):
                    moving = asyncio.create_task(move_topic(servers[0].url, "t0", "s2"))
                    await until(lambda: decided)
                    await servers[1].stop()
                await within(bus.publish("t2", b"0"))
                async with ensue.connect(servers[2].url) as other:
                    await within(other.publish("t0", b"1"))
                assert await read(events, 1) == [b"0"]
                under_way = station(servers[0]).node.coordinator.under_way()
                assert under_way == MoveUnderWay("t0", "s2", "switch", ("s1",))
                servers[1] = await restart(servers[1])
                await within(moving)
                assert servers[1].placement.node("t0") == "s2"
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("stale", ["s0", "s1", "s2"])
def test_server_with_a_lost_or_older_directory_learns_the_moves_from_the_others(
    tmp_path: Path,
    stale: str,
    lost: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After --accept-loss the newest placement wins, and one server alone counts the topic."""
    monkeypatch.setattr(station_builder, "RETAIN_EVERY_S", 0.01)
    caplog.set_level(logging.INFO, "ensue")

    def logged(start: str) -> bool:
        return any(each.getMessage().startswith(start) for each in caplog.records)

    async def main() -> None:
        servers = await chain(tmp_path, 3)
        async with ensue.connect(servers[0].url) as bus:
            await bus.publish("t1", b"0")
        for server in servers:
            await server.stop()
        shutil.copytree(tmp_path / stale, tmp_path / "copy")
        servers = [await restart(server) for server in servers]
        await within(move_topic(servers[0].url, "t1", "s2"))
        await until(lambda: logged("topic moved topic='t1' from=s1 to=s2 last=1"))
        async with ensue.connect(servers[0].url) as bus:
            await bus.publish("t1", b"1")
        for server in servers:
            await server.stop()
        shutil.rmtree(tmp_path / stale)
        if not lost:
            (tmp_path / "copy").rename(tmp_path / stale)
        configs = [msgspec.structs.replace(each.config, accept_loss=True) for each in servers]
        servers = [Server(config) for config in configs]
        named = {server.config.name: server for server in servers}
        try:
            await named[stale].start()
            async with ensue.connect(named[stale].url) as bus:
                publishing = asyncio.create_task(bus.publish("t1", b"2"))
                if stale != "s0":
                    await named["s0"].start()
                with pytest.raises(TransportError, match=r"does not know yet which moves .* knows"):
                    await move_topic(servers[0].url, "t1", "s1", within_s=1.0)
                await until(lambda: logged("moves compared servers="))
                for server in servers:
                    if server.station is None:
                        await server.start()
                await within(publishing)
                for server in servers:
                    assert server.placement.parts == {"t1": (("s1", 1), ("s2", 0))}
                    end = station(server).log.bounds_of("t1")[1]
                    assert end > 2 if server.config.name == "s2" else end <= 2
                await until(lambda: logged("topic corrected topic='t1' server=s2: this server"))
                found = await chain_status(named[stale].url)
                current = [
                    each for each in found["topics"] if each["topic"] == "t1" and each["current"]
                ]
                assert [each["server"] for each in current] == ["s2"]
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_server_that_compares_takes_no_frame_of_another_before_it_knows_the_moves(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 3)
        for server in servers:
            await server.stop()
        server = Server(msgspec.structs.replace(servers[1].config, accept_loss=True))
        await server.start()
        try:
            driver, node = server._driver, station(server).node
            assert driver is not None
            linked = driver.node
            assert isinstance(linked, Linked)
            fill = Fill(publisher="p", origin="s0", number=1, topic="t1", stamp=Stamp({}), last=1)
            data = LinkData(number=1, payload=Codec(FRAMES).encode(fill))
            for other in ("s0", "s2"):
                linked.receive(LinkState(first=1, next=2, expected=1), source=other, now_ns=1)
            linked.receive(data, source="s0", now_ns=1)
            assert node.count("t1") == 0
            for other in ("s0", "s2"):
                linked.receive(KnownMoves(parts={}, seen=0), source=other, now_ns=1)
            linked.receive(data, source="s0", now_ns=1)
            assert node.count("t1") == 1
        finally:
            await server.stop()

    asyncio.run(main())


def test_only_users_who_may_do_everything_move_topics(tmp_path: Path) -> None:
    people = People(operator=(["*"], ["*"]), alice=(["*"], ["t0"]))

    async def main() -> None:
        async with serving(tmp_path, access=people.access) as server:
            with pytest.raises(BadInput, match="'alice' may not move topics"):
                await move_topic(people.url(server, "alice"), "t0", "node-1")
            await within(move_topic(people.url(server, "operator"), "t0", "node-1"))

    asyncio.run(main())


def test_other_orders_have_a_moved_topic_where_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 2)
        order = ensue.Merged(epsilon=0.05, delta=0.5)
        try:
            async with ensue.connect(servers[0].url, order=order) as before:
                await within(move_topic(servers[0].url, "t0", "s1"))
                async with (
                    ensue.connect(servers[1].url, order=order) as after,
                    after.subscribe("t0") as events,
                ):
                    await within(before.publish("t0", b"1"))
                    await within(after.publish("t0", b"2"))
                    assert sorted(await read(events, 2)) == [b"1", b"2"]
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())
