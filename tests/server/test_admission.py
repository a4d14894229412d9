"""Admission: replayed sessions, silent connections, limits per address, and other servers."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.server.helpers import People, read, serving, until, within
from tests.server.raw import Raw

import ensue
from ensue.core.errors import AccessDenied
from ensue.core.event import Event
from ensue.protocols.total import tombstones
from ensue.protocols.total.frames import Forget, OrderRequest, Out
from ensue.server.admission import STATION_CONNECTIONS_MAX, Admission, source_of
from ensue.server.config import Limits
from ensue.server.listener import Listener
from ensue.transports.tcp.messages import Begin, Enter, Hello, Member, Welcome, encode_control

# -- Sessions --------------------------------------------------------------------------------------


class Recorder(Raw):
    """A connection whose bytes an eavesdropper records."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.recorded = b""

    def send(self, data: bytes) -> None:
        """Send bytes, and record them."""
        self.recorded += data
        super().send(data)


def order(name: str, topic: str) -> OrderRequest:
    one = Event(topic=topic, payload=b"once", publisher=name, publisher_seq=1, published_at_ns=1)
    return OrderRequest(number=1, events=(one,), settled=1)


def test_recorded_session_can_not_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The limit is so low that the publisher is forgotten when the session is replayed.
    monkeypatch.setattr(tombstones, "TOMBSTONES_MAX", 1)

    async def publish(raw: Raw, name: str, topic: str) -> None:
        assert await raw.enter(name) is None
        raw.bundle(name, order(name, topic))
        assert isinstance(await raw.frame(), Out)
        raw.bundle(name, Forget(number=2, publisher=True))

    async def main() -> None:
        async with serving(tmp_path / "d") as server:
            victim = await Recorder.hello(server)
            await publish(victim, "victim~1", "t")
            victim.close()
            others = await Raw.hello(server)
            for number in range(3):
                await publish(others, f"other~{number}", "u")
            others.close()
            replay = await Raw.connect(server)
            replay.send(victim.recorded)
            assert isinstance(await replay.message(), Welcome)
            assert "session of another connection" in (await replay.farewell()).reason
            async with ensue.connect(server.url) as bus, bus.subscribe("t", start=1) as events:
                await within(bus.publish("t", b"next"))
                assert await read(events, 2) == [b"once", b"next"]

    asyncio.run(main())


def test_messages_before_begin_are_rejected(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", limits=Limits(unauthenticated_s=0.2)) as server:
            for sent in (encode_control(Enter(name="a~1")), encode_control(Hello(client="c"))):
                raw = await Raw.connect(server)
                raw.control(Hello(client="c"))
                assert isinstance(await raw.message(), Welcome)
                raw.send(sent)
                assert (await raw.farewell()).reason == "expected begin after welcome"
            raw = await Raw.connect(server)
            raw.control(Hello(client="c"))
            first = await raw.message()
            raw.bundle("a~1", Forget(number=1, publisher=True))
            assert (await raw.farewell()).reason == "expected begin after welcome"
            silent = await Raw.connect(server)
            silent.control(Hello(client="c"))
            second = await silent.message()
            assert "within 0.2 s" in (await silent.farewell()).reason
            assert len({first.session, second.session, b""}) == 3
            short = await Raw.connect(server)
            short.control(Hello(client="c"))
            welcome = await short.message()
            short.control(Begin(session=welcome.session[:-1]))
            assert "session of another" in (await short.farewell()).reason

    asyncio.run(main())


# -- Silent connections ----------------------------------------------------------------------------


def test_silent_connections_do_not_block_clients(tmp_path: Path) -> None:
    people = People(alice=(["*"], ["*"]))

    async def main() -> None:
        limits = Limits(connections=10, unauthenticated_connections=50, unauthenticated_s=3_600)
        async with serving(tmp_path / "d", access=people.access, limits=limits) as server:
            listener = server.listener
            assert listener is not None
            silent = []
            for _ in range(10):
                silent += [await Raw.connect(server) for _ in range(100)]
                async with ensue.connect(people.url(server, "alice")) as bus:
                    await within(bus.publish("t", b"x"))
            await until(lambda: listener.accepted >= 1_010)
            assert len(listener.connections) <= 51
            assert listener.errors["limit"] >= 950
            assert listener.admission.waiting in (49, 50)
            for raw in silent:
                raw.close()

    asyncio.run(main())


def test_connections_per_address_are_limited(tmp_path: Path) -> None:
    async def main() -> None:
        limits = Limits(connections=10, connections_per_address=2)
        async with serving(tmp_path / "d", limits=limits) as server:
            both = [await Raw.hello(server) for _ in range(2)]
            with pytest.raises(
                AccessDenied, match=r"from 127.0.0.1 \(limit connections_per_address=2\)"
            ):
                await Raw.hello(server)
            both[0].close()
            assert server.listener is not None
            listener = server.listener
            await until(lambda: len(listener.connections) == 1)
            both.append(await Raw.hello(server))
            for raw in both:
                raw.close()

    asyncio.run(main())


class Peer:
    """A connection from an address."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.aborted = False

    def abort(self) -> None:
        """Close the connection."""
        self.aborted = True


def test_address_with_the_most_connections_is_evicted_first() -> None:
    limits = Limits(unauthenticated_connections=3)
    admission = Admission(limits, time_s=lambda: 0.0, errors=Counter())
    single, *others = peers = [Peer("10.0.0.1"), *(Peer("10.0.0.2") for _ in range(5))]
    for peer in peers:
        admission.add(peer)
    assert not single.aborted
    assert [peer.aborted for peer in others] == [True, True, True, False, False]
    assert admission.waiting == 3
    admission.remove(others[-1])
    admission.remove(others[-1])
    assert admission.admit(single, "") is None
    assert admission.waiting == 1


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        (("10.1.2.3", 5), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        (("::ffff:10.1.2.3", 5, 0, 0), "10.1.2.3"),
        (("unix", 0), "unix"),
        (None, "?"),
        ("", "?"),
    ],
)
def test_source_of_an_address(peer: object, source: str) -> None:
    assert source_of(peer) == source


# -- Other servers ---------------------------------------------------------------------------------


def test_server_full_of_clients_accepts_other_servers(tmp_path: Path) -> None:
    members = (Member("n1", "127.0.0.1:1"), Member("n2", "127.0.0.1:2"))

    async def main() -> None:
        limits = Limits(connections=2)
        async with serving(tmp_path / "d", name="n1", chain=members, limits=limits) as server:
            clients = [await Raw.hello(server) for _ in range(2)]
            with pytest.raises(AccessDenied, match="limit connections=2"):
                await Raw.hello(server)
            others = []
            for _ in range(STATION_CONNECTIONS_MAX):
                other = await Raw.hello(server, client="n2", role="station")
                assert await other.enter("n2") is None
                others.append(other)
            listener = server.listener
            assert isinstance(listener, Listener)
            # It reconnects before its old connections are detected as lost.
            again = await Raw.hello(server, client="n2", role="station")
            assert await others[0].hung_up() is None
            assert await again.enter("n2") is None
            for raw in (*clients, *others, again):
                raw.close()

    asyncio.run(main())
