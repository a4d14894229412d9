"""The figures behind metrics and status, part by part."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.server.helpers import read, serving, until, within

import ensue
from ensue import orders
from ensue.core.event import Event
from ensue.core.wire import Codec, bundle
from ensue.protocols.interface import Frame, Multicast, Send
from ensue.protocols.topic_log.frames import Accepted, AttachRequest, Put, Taken, topic_of
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import ChangeRequest, OrderRequest, StampRequest
from ensue.protocols.total.groups import Groups
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.sequencer import Sequencer
from ensue.protocols.total.station import Station, StationConfig
from ensue.protocols.total.status import StatusReply, StatusRequest
from ensue.server import Server, status
from ensue.server.status import Status
from ensue.transports.base import Capabilities
from ensue.transports.carrier import Inbox
from ensue.transports.framed import FramedTransport
from ensue.transports.traffic_counts import Traffic


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable caching, so that every status is current."""
    monkeypatch.setattr(status, "FRESH_S", 0.0)
    monkeypatch.setattr(status, "SHARE_MAX", float("inf"))


def view(server: Server) -> Status:
    assert server.status is not None
    return server.status


def event(number: int, topic: str = "x", payload: bytes = b"123") -> Event:
    return Event(topic=topic, payload=payload, publisher="p", publisher_seq=number)


# -- Nodes -----------------------------------------------------------------------------------------


def test_voids_are_counted_and_late_originals_are_not() -> None:
    config = SequencerConfig(lease_ns=10)
    node = Sequencer(name="n", placement=Placement(["n"]), config=config)
    node.receive(StampRequest(number=1, topics=("x", "x"), settled=1), source="p", now_ns=0)
    assert node.open_count == 2
    node.handle_timer(now_ns=10)
    node.receive(Accepted(topic="x", event="n/x/1", slot=1), source="n", now_ns=11)
    node.receive(Taken(topic="x", event="n/x/2", slot=2), source="n", now_ns=11)
    assert (node.voids, node.open_count) == (1, 0)


def test_early_requests_are_counted() -> None:
    node = Sequencer(name="n", placement=Placement(["n"]))
    for number in (3, 2, 5):
        request = OrderRequest(number=number, events=(event(number),), settled=1)
        node.receive(request, source="p", now_ns=0)
    assert node.early_count == 3
    node.receive(OrderRequest(number=1, events=(event(1),), settled=1), source="p", now_ns=0)
    assert node.early_count == 1


def test_expired_subscribers_are_counted() -> None:
    station = Station(
        name="n",
        placement=Placement(["n"]),
        config=SequencerConfig(carries=True),
        station_config=StationConfig(expire_ns=100),
    )
    station.receive(ChangeRequest(number=1, old=(), new=("x",)), source="s~1", now_ns=0)
    station.receive(AttachRequest(topic="x", from_slot=0), source="gone~3", now_ns=0)
    assert station.heard_ns("s~1") == 0
    for due_ns in (0, 25, 50, 75):
        station.handle_timer(now_ns=due_ns)
    station.receive(AttachRequest(topic="x", from_slot=0), source="s~2", now_ns=90)
    station.handle_timer(now_ns=100)
    assert station.expiries == 1  # Who had registered nothing has not vanished from anything.
    assert (station.heard_ns("s~1"), station.heard_ns("s~2")) == (None, 90)


def test_groups_are_measured() -> None:
    groups = Groups(1)
    assert groups.sizes() == (0, 1)
    groups.replace("s", ("a", "b", "c"))
    groups.replace("t", ("c", "d"))
    groups.replace("u", ("e",))
    assert groups.sizes() == (4, 4)
    twice = Groups(2)
    twice.replace("s", ("a", "b", "c"))
    assert twice.sizes() == (0, 1)
    twice.replace("t", ("a", "b"))
    assert twice.sizes() == (2, 2)


def test_node_of_a_chain_counts_its_own_topics() -> None:
    placement = Placement(["a", "b"], topics={"a": ("x",), "b": ("y",)})
    node = Sequencer(name="b", placement=placement)
    node.receive(StampRequest(number=1, topics=("y",), settled=1), source="p", now_ns=0)
    node.state.learn("x", 7)
    assert node.counts() == {"y": 1}
    tick, found = node.counted_since(0)
    assert found == {"y": 1}
    assert node.counted_since(tick) == (tick, {})


def test_simultaneous_status_requests_are_computed_once() -> None:
    station = Station(name="n", placement=Placement(["n"]), config=SequencerConfig(carries=True))
    station.receive(StatusRequest(number=1), source="c", now_ns=0)
    assert station.take_effects() == []  # Nobody says what to answer.
    station.on_status_request = lambda frame, _now: StatusReply(
        number=frame.number, state=b"{}", bounds={}
    )
    for _ in range(2):
        for number in range(1000):
            station.receive(StatusRequest(number=number), source="c", now_ns=0)
        station.receive(StatusRequest(number=7), source="d", now_ns=0)
        sent = [each for each in station.take_effects() if isinstance(each, Send)]
        assert [each.peer for each in sent] == ["c", "d"]


# -- Traffic ---------------------------------------------------------------------------------------


class Wire:
    """A carrier that records what it is given."""

    name = "wire://"
    dropped = 0
    on_reconnect: Callable[[], None] | None = None

    def __init__(self, *, multicast: bool) -> None:
        self.capabilities = Capabilities(
            fifo=True,
            durable=True,
            replay=True,
            conditional=True,
            multicast=multicast,
        )
        self.sent: list[bytes] = []
        self.receive: Inbox | None = None

    async def start(self) -> None: ...

    async def open(self, peer: str, receive: Inbox) -> None:
        self.receive = receive

    async def shut(self, peer: str) -> None: ...

    async def join(self, topic: str, receive: Inbox) -> None: ...

    async def leave(self, topic: str) -> None: ...

    def send(self, peer: str, data: bytes) -> None:
        self.sent.append(data)

    def multicast(self, topic: str, data: bytes) -> None:
        self.sent.append(data)

    async def close(self) -> None: ...


@pytest.mark.parametrize("multicast", [False, True])
def test_sent_frames_and_bytes_are_counted_per_peer(multicast: bool) -> None:
    async def main() -> None:
        wire = Wire(multicast=multicast)
        codec = Codec(orders.wire_frames())
        transport = FramedTransport(wire, codec, home=lambda _topic: "n", topic_of=topic_of)
        traffic = transport.traffic = Traffic(publishes=OrderRequest)
        await transport.enter("n")
        taken: list[Frame] = []
        port = transport.open("n", lambda frames, _source: taken.extend(frames))
        port.multicast(Multicast("x", ("a", "b", "c"), Put(event=event(1))))
        port.send("a", Put(event=event(2)))
        port.send("a", Put(event=event(3)))
        transport.flush()
        assert traffic.frames_out == (1 if multicast else 3) + 2
        assert traffic.bytes_out == sum(map(len, wire.sent))
        request = OrderRequest(number=1, events=(event(1), event(2, payload=b"12")), settled=1)
        bodies = [
            codec.body(frame)
            for frame in (request, StatusRequest(number=1), StatusRequest(number=2))
        ]
        assert wire.receive is not None
        for data in (bundle("n", "p", bodies), b"nonsense"):
            wire.receive(data)
        assert len(taken) == traffic.frames_in == 3
        assert traffic.bytes_in == len(bundle("n", "p", bodies))
        assert traffic.kinds_in == {"OrderRequest": 1, "StatusRequest": 2}
        assert (traffic.requested_events, traffic.requested_bytes) == (2, 5)

    asyncio.run(main())


# -- Lag -------------------------------------------------------------------------------------------


def test_lag_of_a_subscription_that_stopped_earlier(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            for topic in ("x", "y") * 5:
                await bus.publish(topic, b"1")
            desk = bus.subscribe(
                "x", "y", name="desk", durable=True, start="earliest", acknowledge="manual"
            )
            async with desk as events:
                for _ in range(3):
                    received = await within(anext(events))
                    await within(received.ack())
            (progress,) = view(server).progress()
            assert (progress.position, progress.lag) == (3, 7)

    asyncio.run(main())


def test_dropped_events_are_not_lag(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            async with bus.subscribe("x", name="desk", durable=True, acknowledge="manual"):
                pass
            for _ in range(10):
                await bus.publish("x", b"1")
            assert view(server).progress()[0].lag == 10
            assert server._driver is not None
            assert server.station is not None
            server._driver.begin()
            server.station.trim("x", 7)
            server._driver.end()
            assert view(server).progress()[0].lag == 4

    asyncio.run(main())


def test_progress_on_other_servers_topics_is_returned(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            async with bus.subscribe("x", "y", name="desk", durable=True) as events:
                await bus.publish("x", b"1")
                await bus.publish("y", b"1")
                await read(events, 2)
            it = view(server)
            it.config = msgspec.structs.replace(it.config, name="another")
            (progress,) = it.progress()
            assert progress.lag == 0
            assert progress.elsewhere.keys() == {"x", "y"}
            answer = it.answer(StatusRequest(number=1, topics=("x", "z"), readable=("x",)), 0)
            assert isinstance(answer, StatusReply)
            assert answer.bounds == {"x": (1, 2)}

    asyncio.run(main())


def test_durable_subscription_is_listed_until_it_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            assert server.station is not None
            station = server.station
            assert station.heard_ns("desk") is None
            async with bus.subscribe("x", name="desk", durable=True) as events:
                assert station.heard_ns("desk") is not None
                await events.forget()
            await until(lambda: station.heard_ns("desk") is None)

    asyncio.run(main())
