import asyncio
from typing import Any

import pytest
from tests.brokers.bus_suite import BusSuite
from tests.brokers.carrier_suite import CarrierSuite, Taker, Watch, missing_extra
from tests.brokers.servers import Redis, Server

from ensue.core.errors import BadInput
from ensue.transports.brokers.base import BrokerCarrier
from ensue.transports.brokers.redis import (
    STREAM_IDLE_S,
    STREAM_MESSAGES_MAX,
    RedisCarrier,
    RedisOptions,
)


class RedisSuite(CarrierSuite):
    server_fixture = "redis_server"

    def carrier(self, url: str, **settings: Any) -> BrokerCarrier:
        return RedisCarrier(RedisOptions.parse(url), **settings)


class TestRedis(RedisSuite):
    def test_channels_do_not_outlive_the_server(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            async with self.started(server, prefix) as a:
                assert not a.capabilities.durable

        asyncio.run(main())


class TestRedisStreams(RedisSuite):
    options = "streams=1"
    topic_resumes = True
    inbox_resumes = True

    async def ask(self, carrier: BrokerCarrier, *command: str | int) -> Any:
        assert isinstance(carrier, RedisCarrier)
        (answer,) = await carrier._execute(command)
        return answer

    def test_a_server_with_an_appendonly_file_is_durable(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            async with self.started(server, prefix) as a:
                assert a.capabilities.durable
                await self.ask(a, "CONFIG", "SET", "appendonly", "no")
                try:
                    async with self.started(server, prefix) as b:
                        assert not b.capabilities.durable
                finally:
                    await self.ask(a, "CONFIG", "SET", "appendonly", "yes")

        asyncio.run(main())

    def test_cancelled_open_leaves_no_answer_for_the_next_command(
        self, server: Server, prefix: str
    ) -> None:
        async def main() -> None:
            async with self.started(server, prefix) as a:
                watch = Watch(a)
                for number in range(48):
                    opening = asyncio.create_task(a.open(f"x{number}", Taker()))
                    for _ in range(number % 12):
                        await asyncio.sleep(0)
                    opening.cancel()
                    await asyncio.wait([opening])
                    assert await self.ask(a, "PING") == b"PONG"
                    if not opening.cancelled():
                        await a.shut(f"x{number}")
                assert watch.count == 0
            async with self.started(server, prefix) as a:
                # Closing has waited for pending removals.
                assert await self.ask(a, "KEYS", f"{prefix}:i:*") == []

        asyncio.run(main())

    def test_closing_an_inbox_deletes_its_stream(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            inbox = Taker()
            async with self.started(server, prefix) as a:
                async with self.started(server, prefix) as b:
                    await b.open("shut", inbox)
                    await b.open("closed", inbox)
                    await b.join("topic", inbox)
                    assert (
                        await self.ask(a, "EXISTS", f"{prefix}:i:shut", f"{prefix}:i:closed") == 2
                    )
                    assert 0 < await self.ask(a, "TTL", f"{prefix}:i:shut") <= STREAM_IDLE_S
                    await b.shut("shut")
                    assert await self.ask(a, "EXISTS", f"{prefix}:i:shut") == 0
                assert await self.ask(a, "EXISTS", f"{prefix}:i:closed") == 0
                a.send("shut", b"without a reader")
                a.multicast("topic", b"without a reader")
                await a.open("a", inbox)
                a.send("a", b"out")
                await inbox.wait_for(b"out")
                # A message to a closed inbox creates no stream; a topic's stream expires later.
                assert await self.ask(a, "EXISTS", f"{prefix}:i:shut") == 0
                assert 0 < await self.ask(a, "TTL", f"{prefix}:t:topic") <= STREAM_IDLE_S

        asyncio.run(main())

    def test_expiry_of_a_topic_is_reset_once_per_period(
        self, server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            topic = Taker()
            async with self.started(server, prefix) as a:
                await a.join("topic", topic)

                async def said() -> int:
                    stats = (await self.ask(a, "INFO", "commandstats")).decode()
                    return int(stats.partition("cmdstat_expire:calls=")[2].partition(",")[0])

                async def say(word: bytes) -> None:
                    a.multicast("topic", word)
                    await topic.wait_for(word)

                before = await said()
                for word in (b"one", b"two", b"three"):
                    await say(word)
                assert await said() == before + 1
                assert isinstance(a, RedisCarrier)
                a._refresh_at_s.clear()
                monkeypatch.setattr("ensue.transports.brokers.redis.REFRESH_S", 0.0)
                await say(b"four")
                await say(b"five")
                assert await said() == before + 3

        asyncio.run(main())

    def test_a_stream_is_capped(
        self, server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ensue.transports.brokers.redis.STREAM_MESSAGES_MAX", 500)
        assert STREAM_MESSAGES_MAX >= 10_000

        async def main() -> None:
            topic = Taker()
            async with self.started(server, prefix) as a:
                await a.join("t", topic)
                for number in range(5_000):
                    a.multicast("t", b"%d" % number)
                await topic.wait_for(b"4999")
                assert 500 <= await self.ask(a, "XLEN", f"{prefix}:t:t") < 1_000

        asyncio.run(main())

    def test_carrier_waits_while_the_server_loads_its_data(
        self, server: Server, prefix: str
    ) -> None:
        assert isinstance(server, Redis)

        async def main() -> None:
            inbox = Taker()
            async with self.started(server, prefix) as a, self.started(server, prefix) as b:
                # One has nothing open, so only the server's error makes it wait.
                back = [Watch(a), Watch(b)]
                await a.open("a", inbox)
                assert isinstance(a, RedisCarrier)
                # While loading, it serves clients every thousand commands or so.
                await a._execute(*(("SET", f"{prefix}:k", number) for number in range(10_000)))
                server.slowly = True
                await server.restart(gracefully=True)
                for watch in back:
                    await watch.wait()
                b.send("a", b"after")
                await inbox.wait_for(b"after")
                assert [watch.count for watch in back] == [1, 1]

        try:
            asyncio.run(main())
        finally:
            server.slowly = False

    def test_messages_survive_a_restart_while_the_reader_is_disconnected(
        self, server: Server, prefix: str
    ) -> None:
        async def main() -> None:
            async with self.started(server, prefix) as a:
                # By default an answer may precede the write, which waits while a sync is slow.
                await self.ask(a, "CONFIG", "SET", "appendfsync", "always")
            await self.outlive_a_restart(server, prefix)

        asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis://", "the host is missing; expected redis://HOST:6379"),
        ("redis://a:x", "could not be cast to integer"),
        ("redis://a/b", "the database must be a number, got 'b'"),
        ("redis://a/0/1", "the database must be a number, got '0/1'"),
        ("redis://a/0?streams=2", "streams must be 0 or 1, got '2'"),
        ("redis://a?prefix=a:b", "prefix must be 1 to 32 letters, digits"),
        (
            "redis://a?jetstream=1",
            "no option 'jetstream'; expected streams, prefix, tls, ca, cert or key",
        ),
        ("rediss://a", "starts with rediss://; expected redis://HOST:6379"),
    ],
)
def test_a_bad_url_is_refused_in_words(url: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        RedisOptions.parse(url)


def test_a_url_is_read() -> None:
    options = RedisOptions.parse("redis://:hush@a:1/7?streams=1&prefix=shop")
    address = options.address
    assert (address.host, address.port, address.user, address.password) == ("a", 1, "", "hush")
    assert (options.database, options.prefix, options.streams) == (7, "shop", True)
    assert address.url == "redis://:***@a:1/7?streams=1&prefix=shop"
    assert RedisOptions.parse("redis://a").database == 0


def test_missing_client_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = missing_extra("ensue.transports.brokers.redis", "redis")(monkeypatch)
    assert said == "redis:// needs an extra: pip install 'ensue[redis]'"


class TestRedisBus(BusSuite):
    server_fixture = "redis_server"


class TestRedisStreamsBus(BusSuite):
    server_fixture = "redis_server"
    options = "streams=1"
