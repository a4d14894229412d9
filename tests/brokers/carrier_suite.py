"""The behavior of every carrier on a broker: a class for each carrier and mode inherits it.

Each test uses its own prefix, so that tests do not disturb each other.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from secrets import token_hex
from typing import Any, ClassVar

import pytest
from tests.brokers.deadlines import until
from tests.brokers.proxy import DOWN, Proxy
from tests.brokers.servers import PASSWORD, PASSWORD_IN_URL, Server, spare_port

from ensue.core.errors import BadInput, LimitReached, LocalProtocolError, TransportError
from ensue.transports.brokers.base import BrokerCarrier
from ensue.transports.carrier import Carrier

SEED = 20260116
ODD_NAMES = [
    *("plain", "PLAIN", "a.b", "a", "b", "a b", " ", "*", "a.*", ">", "a.>", "#", "a/#", "+", "/"),
    *("a/b", "a//b", "a=2Eb", "=", "%", "%2E", "$SYS", "$JS.API.INFO", "_", "-", "~", "?", "&"),
    *("line\nbreak", "\r\n", "\x00", "\t", "ünïcødé", "日本語", "🙂", "{}", "[]", "'", '"', "\\"),
    *("x" * 255, "." * 255, "é" * 127 + "x", "\U0001f642" * 63 + "xyz"),
]


class Taker:
    """A receiver that stores messages and waits for some."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    def __call__(self, data: bytes) -> None:
        self.got.append(data)

    async def wait_for(self, *wanted: bytes) -> None:
        await until(
            lambda: set(wanted) <= set(self.got), f"{wanted!r:.200} among {self.got!r:.500}"
        )

    async def wait_for_count(self, count: int) -> None:
        try:
            await until(lambda: len(self.got) >= count, "")
        except AssertionError:
            raise AssertionError(f"{len(self.got)} of {count} messages arrived") from None


class Watch:
    """A counter of a carrier's reconnects."""

    def __init__(self, carrier: BrokerCarrier) -> None:
        self.count = 0
        carrier.on_reconnect = self._count

    def _count(self) -> None:
        self.count += 1

    async def wait(self, count: int = 1) -> None:
        await until(lambda: self.count >= count, "on_reconnect is called")


class CarrierSuite:
    server_fixture: ClassVar[str]
    options: ClassVar[str] = ""
    """Options of the URL that select the mode."""
    topic_resumes: ClassVar[bool] = False
    """Whether messages multicast to a disconnected reader reach it later."""
    inbox_resumes: ClassVar[bool] = False

    def carrier(self, url: str, **settings: Any) -> BrokerCarrier:
        raise NotImplementedError

    @pytest.fixture
    def server(self, request: pytest.FixtureRequest) -> Server:
        server = request.getfixturevalue(self.server_fixture)
        assert isinstance(server, Server)
        server.ensure()
        return server

    @pytest.fixture
    def prefix(self) -> str:
        return f"t{token_hex(6)}"

    def url(self, server: Server, prefix: str, *, port: int | None = None) -> str:
        return server.url("&".join(filter(None, (f"prefix={prefix}", self.options))), port=port)

    @asynccontextmanager
    async def started(
        self,
        server: Server,
        prefix: str,
        *,
        port: int | None = None,
        heartbeat_s: float | None = None,
        **settings: Any,
    ) -> AsyncIterator[BrokerCarrier]:
        carrier = self.carrier(self.url(server, prefix, port=port), **settings)
        if heartbeat_s is not None:
            carrier.heartbeat_s = heartbeat_s
        await carrier.start()
        try:
            yield carrier
        finally:
            await carrier.close()

    # -- Sending ----------------------------------------------------------------------------------
    def test_sends_reach_an_inbox_whole_and_in_order(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            random = Random(SEED)
            sent = [
                b"%d " % number + random.randbytes(random.choice((0, 1, 100, 1000)))
                for number in range(10_000)
            ]
            inbox = Taker()
            async with self.started(server, prefix) as a, self.started(server, prefix) as b:
                await b.open("b", inbox)
                for data in sent:
                    a.send("b", data)
                await inbox.wait_for_count(len(sent))
                assert a.dropped == 0
            assert inbox.got == sent

        asyncio.run(main())

    def test_multicasts_reach_a_topic_whole_and_in_order(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            sent = [b"%d" % number for number in range(3_000)]
            topic = Taker()
            async with self.started(server, prefix) as a, self.started(server, prefix) as b:
                await b.join("t", topic)
                for data in sent:
                    a.multicast("t", data)
                await topic.wait_for_count(len(sent))
            assert topic.got == sent

        asyncio.run(main())

    def test_names_are_any_text_and_never_collide(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            takers = {(kind, name): Taker() for kind in "it" for name in ODD_NAMES}
            async with self.started(server, prefix) as a, self.started(server, prefix) as b:
                for name in ODD_NAMES:
                    await b.open(name, takers["i", name])
                    await b.join(name, takers["t", name])
                for name in ODD_NAMES:
                    a.send(name, f"to inbox {name}".encode())
                    a.multicast(name, f"to topic {name}".encode())
                for name in ODD_NAMES:
                    await takers["i", name].wait_for(f"to inbox {name}".encode())
                    await takers["t", name].wait_for(f"to topic {name}".encode())
            for taker in takers.values():
                assert len(taker.got) == 1

        asyncio.run(main())

    @pytest.mark.parametrize(
        ("name", "complaint"),
        [
            ("", "1 to 255 bytes; the empty one"),
            ("é" * 128, "1 to 255 bytes; 'é"),
            ("\ud800", "must be valid UTF-8"),
        ],
    )
    def test_invalid_names_are_refused(
        self, server: Server, prefix: str, name: str, complaint: str
    ) -> None:
        async def main() -> None:
            async with self.started(server, prefix) as a:
                with pytest.raises(BadInput, match=complaint):
                    await a.open(name, Taker())
                with pytest.raises(BadInput, match=complaint):
                    await a.join(name, Taker())

        asyncio.run(main())

    def test_the_largest_message_arrives_and_a_larger_one_is_refused(
        self, server: Server, prefix: str
    ) -> None:
        async def main() -> None:
            inbox, topic = Taker(), Taker()
            async with self.started(server, prefix) as a, self.started(server, prefix) as b:
                await b.open("b", inbox)
                await b.join("t", topic)
                largest = a.capabilities.message_bytes_max
                assert largest >= 1024 * 1024
                data = Random(SEED).randbytes(largest)
                for too_large in (a.send, a.multicast):
                    with pytest.raises(LimitReached, match="send smaller payloads") as caught:
                        too_large("t", data + b"x")
                    assert caught.value.limit == "message_bytes_max"
                    assert caught.value.value == largest
                a.send("b", data)
                a.multicast("t", data)
                a.send("b", b"after")
                a.multicast("t", b"after")
                await inbox.wait_for(b"after")
                await topic.wait_for(b"after")
                assert inbox.got == [data, b"after"]
                assert topic.got == [data, b"after"]

        asyncio.run(main())

    def test_multicast_reaches_members_of_the_topic_only(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            first, second, gone, inbox = Taker(), Taker(), Taker(), Taker()
            async with (
                self.started(server, prefix) as a,
                self.started(server, prefix) as b,
                self.started(server, prefix) as c,
            ):
                assert a.capabilities.multicast
                await a.join("t", first)
                await b.join("t", second)
                await c.join("t", gone)
                await c.open("c", inbox)
                a.multicast("t", b"1")
                for taker in (first, second, gone):
                    await taker.wait_for(b"1")
                await c.leave("t")
                a.multicast("t", b"2")
                a.send("c", b"last")
                for taker in (first, second):
                    await taker.wait_for(b"2")
                await inbox.wait_for(b"last")
            assert gone.got == [b"1"]
            assert first.got == second.got == [b"1", b"2"]

        asyncio.run(main())

    def test_prefixes_are_separate(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            here, there = Taker(), Taker()
            async with self.started(server, prefix) as a, self.started(server, prefix + "-") as b:
                for carrier, taker in ((a, here), (b, there)):
                    await carrier.open("n", taker)
                    await carrier.join("n", taker)
                a.send("n", b"a")
                a.multicast("n", b"a too")
                b.send("n", b"b")
                b.multicast("n", b"b too")
                await here.wait_for(b"a", b"a too")
                await there.wait_for(b"b", b"b too")
            assert sorted(here.got) == [b"a", b"a too"]
            assert sorted(there.got) == [b"b", b"b too"]

        asyncio.run(main())

    def test_nothing_arrives_after_closing_and_reopening_starts_at_new_messages(
        self, server: Server, prefix: str
    ) -> None:
        async def main() -> None:
            old, new, other = Taker(), Taker(), Taker()
            async with self.started(server, prefix) as a, self.started(server, prefix) as b:
                await b.open("b", old)
                await b.join("t", old)
                await b.open("other", other)
                await b.shut("b")
                await b.leave("t")
                a.send("b", b"lost")
                a.multicast("t", b"lost")
                a.send("other", b"through")
                await other.wait_for(b"through")
                await b.open("b", new)
                await b.join("t", new)
                a.send("b", b"inbox")
                a.multicast("t", b"topic")
                await new.wait_for(b"inbox", b"topic")
                await b.shut("b")
                await b.shut("b")
                await b.leave("unknown")
            assert old.got == []
            assert sorted(new.got) == [b"inbox", b"topic"]

        asyncio.run(main())

    def test_closing_unsubscribes_at_the_broker(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            topic, inbox = Taker(), Taker()
            async with (
                Proxy(server.port) as proxy,
                self.started(server, prefix) as a,
                self.started(server, prefix, port=proxy.port) as b,
            ):
                await b.open("b", inbox)
                await b.open("other", topic)
                await b.join("t", topic)
                await b.shut("other")
                await b.leave("t")
                before = proxy.carried[DOWN]
                for _ in range(20):
                    a.send("other", bytes(10_000))
                    a.multicast("t", bytes(10_000))
                a.send("b", b"last")
                await inbox.wait_for(b"last")
                assert proxy.carried[DOWN] - before < 100_000
            assert topic.got == []

        asyncio.run(main())

    def test_message_to_a_closed_inbox_is_lost_silently(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            early, inbox = Taker(), Taker()
            async with self.started(server, prefix) as a, self.started(server, prefix) as b:
                await b.open("other", inbox)
                a.send("b", b"early")
                a.multicast("t", b"early")
                a.send("other", b"through")
                await inbox.wait_for(b"through")
                await b.open("b", early)
                await b.join("t", early)
                a.send("b", b"inbox")
                a.multicast("t", b"topic")
                await early.wait_for(b"inbox", b"topic")
                assert a.dropped == 0
            assert sorted(early.got) == [b"inbox", b"topic"]

        asyncio.run(main())

    def test_failing_receiver_is_logged_and_gets_the_next_message(
        self, server: Server, prefix: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            inbox = Taker()

            def fail(data: bytes) -> None:
                inbox(data)
                raise OSError("not today")

            async with self.started(server, prefix) as a:
                watch = Watch(a)
                await a.open("a", fail)
                a.send("a", b"1")
                await inbox.wait_for(b"1")
                a.send("a", b"2")
                await inbox.wait_for(b"2")
                assert watch.count == 0

        with caplog.at_level(logging.ERROR, logger="ensue"):
            asyncio.run(main())
        assert "receiver failed" in caplog.text
        assert "not today" in caplog.text

    def test_open_inbox_cannot_be_opened_again(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            inbox = Taker()
            async with self.started(server, prefix) as a:
                await a.open("a", inbox)
                with pytest.raises(BadInput, match="the inbox 'a' is open"):
                    await a.open("a", Taker())
                a.send("a", b"still")
                await inbox.wait_for(b"still")

        asyncio.run(main())

    # -- Cancellation -----------------------------------------------------------------------------
    async def give_up_entering(self, carrier: BrokerCarrier, taker: Taker) -> None:
        """Open and join repeatedly, and cancel each time a little sooner than before."""
        for number in range(48, 0, -1):
            opening = asyncio.create_task(carrier.open("x", taker))
            joining = asyncio.create_task(carrier.join("x", taker))
            for _ in range(number % 16):
                await asyncio.sleep(0)
            for task, leave in ((opening, carrier.shut), (joining, carrier.leave)):
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    task.result()
                    await leave("x")

    def test_inbox_can_be_opened_after_a_cancelled_open(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            given_up, taker = Taker(), Taker()
            async with self.started(server, prefix) as a, self.started(server, prefix) as b:
                watch = Watch(b)
                await self.give_up_entering(b, given_up)
                await b.open("x", taker)
                await b.join("x", taker)
                for data in (b"1", b"last"):
                    a.send("x", b"inbox " + data)
                    a.multicast("x", b"topic " + data)
                await taker.wait_for(b"inbox last", b"topic last")
                assert watch.count == 0
            assert sorted(taker.got) == [b"inbox 1", b"inbox last", b"topic 1", b"topic last"]
            assert given_up.got == []

        asyncio.run(main())

    def test_cancelled_open_unsubscribes_at_the_broker(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            given_up, inbox = Taker(), Taker()
            async with (
                Proxy(server.port) as proxy,
                self.started(server, prefix) as a,
                self.started(server, prefix, port=proxy.port) as b,
            ):
                await self.give_up_entering(b, given_up)
                await b.open("b", inbox)
                # These return when the pending requests for them have ended.
                await b.shut("x")
                await b.leave("x")
                before = proxy.carried[DOWN]
                for _ in range(20):
                    a.send("x", bytes(10_000))
                    a.multicast("x", bytes(10_000))
                a.send("b", b"last")
                await inbox.wait_for(b"last")
                assert proxy.carried[DOWN] - before < 100_000
            assert given_up.got == []

        asyncio.run(main())

    # -- Lost connections -------------------------------------------------------------------------
    @pytest.mark.parametrize("gracefully", [True, False], ids=["stopped", "killed"])
    def test_carrier_reconnects_to_a_restarted_broker(
        self, server: Server, prefix: str, *, gracefully: bool
    ) -> None:
        async def main() -> None:
            inbox, topic = Taker(), Taker()
            async with self.started(server, prefix) as a, self.started(server, prefix) as b:
                back = [Watch(a), Watch(b)]
                await b.open("b", inbox)
                await b.join("t", topic)
                a.send("b", b"before")
                a.multicast("t", b"before")
                await inbox.wait_for(b"before")
                await topic.wait_for(b"before")
                await server.restart(gracefully=gracefully)
                for watch in back:
                    await watch.wait()
                a.send("b", b"after")
                a.multicast("t", b"after")
                await inbox.wait_for(b"after")
                await topic.wait_for(b"after")
                assert [watch.count for watch in back] == [1, 1]
            assert inbox.got == [b"before", b"after"]
            assert topic.got == [b"before", b"after"]

        asyncio.run(main())

    def test_carrier_reconnects_after_a_cut_and_reopens_everything(
        self, server: Server, prefix: str
    ) -> None:
        async def main() -> None:
            inbox, topic = Taker(), Taker()
            async with (
                Proxy(server.port) as proxy,
                self.started(server, prefix, port=proxy.port) as a,
            ):
                watch = Watch(a)
                await a.open("a", inbox)
                await a.join("t", topic)
                for number in range(1, 4):
                    proxy.cut()
                    await watch.wait(number)
                    a.send("a", b"%d" % number)
                    a.multicast("t", b"%d" % number)
                    await inbox.wait_for(b"%d" % number)
                    await topic.wait_for(b"%d" % number)
            assert inbox.got == topic.got == [b"1", b"2", b"3"]

        asyncio.run(main())

    def test_message_to_a_disconnected_reader_arrives_if_the_broker_stores_it(
        self, server: Server, prefix: str
    ) -> None:
        async def main() -> None:
            inbox, topic, other = Taker(), Taker(), Taker()
            sent = [b"%d" % number for number in range(500)]
            async with (
                Proxy(server.port) as proxy,
                self.started(server, prefix) as a,
                self.started(server, prefix, port=proxy.port) as b,
            ):
                watch = Watch(b)
                await a.open("a", other)
                await b.open("b", inbox)
                await b.join("t", topic)
                a.send("b", b"before")
                a.multicast("t", b"before")
                await inbox.wait_for(b"before")
                await topic.wait_for(b"before")
                await self.keep_away(proxy)
                for data in sent:
                    a.send("b", data)
                    a.multicast("t", data)
                # When this one arrives, the broker has all messages.
                a.send("a", b"out")
                await other.wait_for(b"out")
                proxy.accept()
                await watch.wait()
                a.send("b", b"after")
                a.multicast("t", b"after")
                await inbox.wait_for(b"after")
                await topic.wait_for(b"after")
            kept = [b"before", *sent, b"after"]
            assert topic.got == (kept if self.topic_resumes else [b"before", b"after"])
            assert inbox.got == (kept if self.inbox_resumes else [b"before", b"after"])

        asyncio.run(main())

    async def outlive_a_restart(self, server: Server, prefix: str) -> None:
        """Multicast while a reader is disconnected, kill the broker, and expect all messages."""
        topic, mine = Taker(), Taker()
        sent = [b"%d" % number for number in range(500)]
        async with (
            Proxy(server.port) as proxy,
            self.started(server, prefix) as a,
            self.started(server, prefix, port=proxy.port) as b,
        ):
            back = [Watch(a), Watch(b)]
            await a.join("t", mine)
            await b.join("t", topic)
            await self.keep_away(proxy)
            for data in sent:
                a.multicast("t", data)
            await mine.wait_for_count(len(sent))
            await server.restart(gracefully=False)
            await back[0].wait()
            proxy.accept()
            await back[1].wait()
            a.multicast("t", b"after")
            await topic.wait_for(b"after")
        assert topic.got == [*sent, b"after"]

    async def keep_away(self, proxy: Proxy) -> None:
        """Cut and refuse connections; return when the carrier tries to reconnect."""
        tried = proxy.accepted
        proxy.refuse()
        proxy.cut()
        await until(lambda: proxy.accepted > tried, "the carrier tries again")

    def test_silent_broker_is_disconnected(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            inbox = Taker()
            async with (
                Proxy(server.port) as proxy,
                self.started(server, prefix, port=proxy.port, heartbeat_s=1) as a,
            ):
                watch = Watch(a)
                await a.open("a", inbox)
                accepted = proxy.accepted
                proxy.hold()
                # The connection stays open: only silence shows that the broker is away.
                await until(lambda: proxy.accepted > accepted, "the carrier notices the silence")
                proxy.cut()
                proxy.release()
                await watch.wait()
                a.send("a", b"after")
                await inbox.wait_for(b"after")

        asyncio.run(main())

    def test_messages_beyond_the_pending_limit_are_dropped_and_counted(
        self, server: Server, prefix: str
    ) -> None:
        async def main() -> None:
            inbox = Taker()
            async with (
                Proxy(server.port) as proxy,
                self.started(server, prefix) as b,
                self.started(server, prefix, port=proxy.port, pending_bytes_max=100_000) as a,
            ):
                watch = Watch(a)
                await b.open("b", inbox)
                await self.keep_away(proxy)
                for number in range(10_000):
                    a.send("b", b"%05d" % number + bytes(995))
                assert 0 < a.pending_bytes <= 100_000
                assert 9_800 < a.dropped < 10_000
                for _ in range(100_000):
                    a.send("b", b"")
                assert a.pending_bytes <= 100_000
                dropped = a.dropped
                proxy.accept()
                await watch.wait()
                await until(lambda: a.pending_bytes == 0, "what is pending goes out")
                a.send("b", b"after")
                await inbox.wait_for(b"after")
                assert a.dropped == dropped
                assert len(inbox.got) == 110_000 - dropped + 1
                whole = [data[:5] for data in inbox.got if len(data) == 1000]
                # The oldest are kept.
                assert whole == [b"%05d" % number for number in range(len(whole))]
                assert len(whole) > 80

        asyncio.run(main())

    def test_open_waits_for_a_broker_that_is_away(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            inbox, topic, left = Taker(), Taker(), Taker()
            async with (
                Proxy(server.port) as proxy,
                self.started(server, prefix, port=proxy.port) as a,
                self.started(server, prefix) as b,
            ):
                await a.join("left", left)
                await self.keep_away(proxy)
                opening = asyncio.gather(a.open("a", inbox), a.join("t", topic))
                await asyncio.sleep(0)
                assert not opening.done()
                await a.leave("left")
                proxy.accept()
                async with asyncio.timeout(30):
                    await opening
                b.multicast("left", b"nothing")
                b.send("a", b"inbox")
                b.multicast("t", b"topic")
                await inbox.wait_for(b"inbox")
                await topic.wait_for(b"topic")
            assert inbox.got == [b"inbox"]
            assert topic.got == [b"topic"]
            assert left.got == []

        asyncio.run(main())

    # -- Start and close --------------------------------------------------------------------------
    def test_closing_flushes_pending_messages(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            inbox = Taker()
            async with self.started(server, prefix) as b:
                await b.open("b", inbox)
                async with self.started(server, prefix) as a:
                    for number in range(200):
                        a.send("b", b"%d" % number)
                await inbox.wait_for_count(200)
            assert inbox.got == [b"%d" % number for number in range(200)]

        asyncio.run(main())

    @pytest.mark.parametrize("way", ["cut", "silent"])
    def test_closing_is_quick_when_the_broker_is_away(
        self, server: Server, prefix: str, way: str
    ) -> None:
        async def main() -> None:
            async with (
                Proxy(server.port) as proxy,
                self.started(server, prefix, port=proxy.port) as a,
            ):
                await a.open("a", Taker())
                await a.join("t", Taker())
                if way == "cut":
                    await self.keep_away(proxy)
                else:
                    proxy.hold()
                a.send("a", b"lost")
                a.multicast("t", b"lost")
                async with asyncio.timeout(4):
                    await a.close()
                await a.close()
                a.send("a", b"dropped")
                assert a.dropped == 1
                with pytest.raises(LocalProtocolError, match="not open"):
                    await a.open("b", Taker())

        asyncio.run(main())

    def test_refused_connection_names_the_command_that_starts_a_server(
        self, server: Server, prefix: str
    ) -> None:
        async def main() -> None:
            port = spare_port()
            carrier = self.carrier(self.url(server, prefix, port=port))
            with pytest.raises(TransportError, match=f"no {carrier.name} server answers") as caught:
                await carrier.start()
            text = str(caught.value)
            assert f"127.0.0.1:{port}" in text
            assert f"start one: {carrier.how_to_start}" in text
            self.assert_no_secret(text)
            await carrier.close()

        asyncio.run(main())

    def test_wrong_password_fails_the_handshake(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            url = self.url(server, prefix).replace(PASSWORD_IN_URL, "wrong-one")
            carrier = self.carrier(url)
            with pytest.raises(TransportError, match=r"refuses this .*password") as caught:
                await carrier.start()
            assert "start one" not in str(caught.value)
            assert "wrong-one" not in str(caught.value)
            await carrier.close()

        asyncio.run(main())

    def test_logs_never_show_the_password(
        self, server: Server, prefix: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with (
                Proxy(server.port) as proxy,
                self.started(server, prefix, port=proxy.port) as a,
            ):
                watch = Watch(a)
                await self.keep_away(proxy)
                proxy.accept()
                await watch.wait()

        with caplog.at_level(logging.DEBUG, logger="ensue"):
            asyncio.run(main())
        assert "connection lost" in caplog.text
        self.assert_no_secret(caplog.text)

    def assert_no_secret(self, text: str) -> None:
        assert PASSWORD not in text
        assert PASSWORD_IN_URL not in text

    def test_carrier_can_be_started_only_once(self, server: Server, prefix: str) -> None:
        async def main() -> None:
            async with self.started(server, prefix) as a:
                with pytest.raises(LocalProtocolError, match="was started before"):
                    await a.start()

        asyncio.run(main())

    def test_capabilities_claim_only_what_survives_a_lost_connection(
        self, server: Server, prefix: str
    ) -> None:
        async def main() -> None:
            async with self.started(server, prefix) as a:
                contract: Carrier = a
                assert contract.name.endswith("://")
                assert not a.capabilities.conditional
                # A lost connection loses or repeats frames: no broker delivers exactly once.
                assert not a.capabilities.fifo
                assert not a.capabilities.replay

        asyncio.run(main())


def missing_extra(module: str, client: str) -> Callable[[pytest.MonkeyPatch], str]:
    """Import a carrier's module as if its client library were missing; return the error."""
    import importlib  # noqa: PLC0415
    import sys  # noqa: PLC0415

    from ensue.core.errors import MissingExtra  # noqa: PLC0415

    def attempt(monkeypatch: pytest.MonkeyPatch) -> str:
        for name in list(sys.modules):
            if name == client or name.startswith(f"{client}."):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, client, None)
        monkeypatch.delitem(sys.modules, module, raising=False)
        with pytest.raises(MissingExtra) as caught:
            importlib.import_module(module)
        return str(caught.value)

    return attempt
