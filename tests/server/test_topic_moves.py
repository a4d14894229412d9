"""Topics that move between the servers of a chain while events flow."""

import asyncio
from pathlib import Path

import pytest
from tests.server.helpers import People, read, serving, within
from tests.server.test_server import chain

import ensue
from ensue.core.errors import BadInput, OffsetsGone, SubscriptionRefused, TransportError
from ensue.runtime.topic_move import move_topic
from ensue.server import Server
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
            with pytest.raises(TransportError, match="the move goes on when it is back"):
                await move_topic(servers[0].url, "t1", "s0", within_s=0.3)
            with pytest.raises(TransportError, match="another topic is being moved: try again"):
                await move_topic(servers[0].url, "t2", "s0", within_s=0.3)
            servers[1] = await restart(servers[1])
            await within(move_topic(url, "t1", "s0"))
        finally:
            for server in servers:
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
