"""One durable name, two processes, and a network between them and the server that fails."""

import asyncio
from pathlib import Path

import pytest
from tests.brokers.proxy import Proxy
from tests.server.helpers import serving, until, within
from tests.server.raw import Raw

import ensue
from ensue.core.errors import SubscriptionLost
from ensue.server import Server
from ensue.server.connection import Connection
from ensue.transports.tcp.messages import Enter, Entered


def port(server: Server) -> int:
    assert server.listener is not None
    return server.listener.port


def through(proxy: Proxy) -> str:
    return f"ensue://127.0.0.1:{proxy.port}"


async def took_over(
    first: ensue.Subscription, second: ensue.Subscription, writer: ensue.Bus
) -> None:
    """The earlier reader ends without another event; the later one continues."""
    with pytest.raises(SubscriptionLost, match="another process took over its name"):
        await within(anext(first))
    await within(writer.publish("t", b"3"))
    event = await within(anext(second))
    assert event.payload == b"3"
    await within(event.ack())


@pytest.mark.parametrize("back_first", ["only the earlier was away", "earlier", "later"])
def test_later_reader_keeps_a_name_when_the_earlier_one_reconnects(
    tmp_path: Path, back_first: str
) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            Proxy(port(server)) as one,
            Proxy(port(server)) as two,
            ensue.connect(server.url) as writer,
            ensue.connect(through(one)) as earlier,
            ensue.connect(through(two)) as later,
            earlier.subscribe("t", name="b", durable=True, acknowledge="manual") as first,
        ):
            assert server.listener is not None
            routes = server.listener.routes
            await within(writer.publish("t", b"1"))
            await within((await within(anext(first))).ack())
            one.refuse()
            one.cut()
            async with later.subscribe("t", name="b", durable=True, acknowledge="manual") as second:
                await within(writer.publish("t", b"2"))
                await within((await within(anext(second))).ack())
                if back_first == "only the earlier was away":
                    one.accept()
                else:
                    two.refuse()
                    two.cut()
                    await until(lambda: not server.listener or "b" not in routes)
                    first_back, then_back = (one, two) if back_first == "earlier" else (two, one)
                    first_back.accept()
                    await until(lambda: "b" in routes, "it has entered again")
                    then_back.accept()
                await took_over(first, second, writer)

    asyncio.run(main())


def test_reader_that_reconnects_under_its_name_continues(tmp_path: Path) -> None:
    """Also while the server has not detected its lost connection."""

    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            Proxy(port(server)) as proxy,
            ensue.connect(server.url) as writer,
            ensue.connect(through(proxy)) as bus,
            bus.subscribe("t", name="b", durable=True, acknowledge="manual") as events,
        ):
            hub = bus._hub
            assert hub is not None
            for number in range(3):
                if number == 1:
                    proxy.cut()
                elif number == 2:
                    # Only the client's end is closed.
                    (link,) = hub.transport.carrier._links.values()  # type: ignore[attr-defined]
                    proxy.hold()
                    link.connection.abort()
                    proxy.release()
                await within(writer.publish("t", b"%d" % number))
                event = await within(anext(events))
                assert event.payload == b"%d" % number
                await within(event.ack())

    asyncio.run(main())


def test_repeated_enter_on_one_connection_is_answered_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            raw = await Raw.hello(server)
            raw.control(Enter(name="a~1"))
            entered = await raw.message()
            assert isinstance(entered, Entered)
            for turn in (0, 1, entered.turn, entered.turn + 1):
                raw.control(Enter(name="a~1", turn=turn))
                assert await raw.message() == entered
            other = await Raw.hello(server)
            other.control(Enter(name="a~1", turn=entered.turn - 1))
            assert (await other.message()).reason == "taken over"
            assert await other.enter("a~1") is None
            raw.close()
            other.close()

    asyncio.run(main())


@pytest.mark.parametrize("name", ["a~1", "a~1.content", "durable"])
def test_enter_from_an_abandoned_connection_comes_late(tmp_path: Path, name: str) -> None:
    """A process keeps its name on its latest connection; a durable name has several processes."""

    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            assert server.listener is not None
            abandoned = await Raw.hello(server)
            latest = await Raw.hello(server)
            assert await latest.enter(name) is None
            keeps = server.listener.routes[name]
            refusal = await abandoned.enter(name)
            assert (refusal is not None) == ("~" in name)
            assert (server.listener.routes[name] is keeps) == ("~" in name)
            abandoned.close()
            latest.close()

    asyncio.run(main())


@pytest.mark.parametrize("lost", ["the first answer", "the answer after a reconnection"])
def test_lost_answer_is_requested_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr("ensue.transports.tcp.link.HEARTBEAT_S", 0.05)
    lose = [False]
    tell = Connection.entered

    def entered(connection: Connection, name: str, turn: int) -> None:
        if lose[0]:
            lose[0] = False
            connection.names[name] = turn  # As if too much had been pending.
        else:
            tell(connection, name, turn)

    monkeypatch.setattr(Connection, "entered", entered)

    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            Proxy(port(server)) as proxy,
            ensue.connect(through(proxy)) as bus,
        ):
            lose[0] = True
            if lost == "the answer after a reconnection":
                proxy.cut()
                await until(lambda: not lose[0], "it has come back, and was not answered")
            events = bus.subscribe("t")
            await within(events.__aenter__(), 10)
            await within(bus.publish("t", b"1"), 10)
            assert (await within(anext(events))).payload == b"1"
            assert not lose[0]

    asyncio.run(main())
