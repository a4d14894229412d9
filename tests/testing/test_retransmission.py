"""Over connections little is sent twice to a busy peer; a new one gets all again at once."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

import ensue
from ensue.protocols.interface import Frame, Node
from ensue.protocols.shared.link import CONNECTED, LinkAck, LinkData, Linked
from ensue.protocols.topic_log.frames import Notify
from ensue.protocols.total.frames import OrderRequest
from ensue.protocols.total.station import Station
from ensue.protocols.total.subscriber import Subscriber
from ensue.testing import NetworkOptions, Simulation, simulate

SECOND_NS = 1_000_000_000
TOPICS = ("low", "high")
PUBLISHERS, EVENTS = 20, 10
FAR = NetworkOptions(latency_ms=(150.0, 200.0), slow=0.0)
"""An acknowledgement takes longer than a link waits where messages get lost, …"""
BUSY_MS = (300.0, 400.0)
"""… and an answer longer than a publisher does: until a server has synced."""


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """Count the frames between servers: by receiver and number, and acknowledgements as 0."""
    counts: Counter[tuple[str, int]] = Counter()
    receive = Linked.receive

    def count(self: Linked[Node], frame: Frame, *, source: str, now_ns: int) -> None:
        if isinstance(frame, LinkData):
            counts[self.name, frame.number] += 1
        elif isinstance(frame, LinkAck):
            counts[self.name, 0] += 1
        receive(self, frame, source=source, now_ns=now_ns)

    monkeypatch.setattr(Linked, "receive", count)
    return counts


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """Count the requests that reach servers, by publisher and number."""
    counts: Counter[tuple[str, int]] = Counter()
    receive = Station.receive

    def count(self: Station, frame: Frame, *, source: str, now_ns: int) -> None:
        if isinstance(frame, OrderRequest):
            counts.update((source, frame.number + place) for place in range(len(frame.events)))
        receive(self, frame, source=source, now_ns=now_ns)

    monkeypatch.setattr(Station, "receive", count)
    return counts


async def publish(url: str) -> None:
    """Publish with a receipt each: several publishers, so that many requests are under way."""
    async with ensue.connect(url) as bus:
        await asyncio.sleep(1)  # Until it is connected to all servers: each is a new connection.
        for _ in range(EVENTS):
            await bus.publish("low", b"")


async def read(url: str, got: list[bytes]) -> None:
    async with ensue.connect(url) as bus, bus.subscribe(*TOPICS) as events:
        async for event in events:
            got.append(event.payload)  # noqa: PERF401 - it never ends


async def until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 - set by another event loop
        await asyncio.sleep(0.001)


async def publish_all(simulation: Simulation, url: str, got: list[bytes]) -> None:
    """Return when all events of all publishers have receipts and are delivered."""
    names = [f"publisher-{number}" for number in range(PUBLISHERS)]
    for process in [simulation.start(name, publish, url) for name in names]:
        await process
    await until(lambda: len(got) == PUBLISHERS * EVENTS)


def test_no_frame_is_sent_twice_to_a_server_that_is_far_away(
    received: Counter[tuple[str, int]],
) -> None:
    async def main(simulation: Simulation) -> None:
        got: list[bytes] = []
        servers = await simulation.serve("left", "right", topics=TOPICS)
        simulation.start("reader", read, servers.url("left"), got)
        await asyncio.sleep(5)
        received.clear()
        await publish_all(simulation, servers.url("left"), got)
        await asyncio.sleep(5)

    simulate(main, seed=1, network=FAR)
    acknowledgements = received.pop(("left", 0))
    assert received, "no event needed both servers"
    assert set(received.values()) == {1}
    assert 2 * acknowledgements < len(received), "each frame has its own acknowledgement"


def test_frames_that_a_lost_connection_took_along_are_sent_again_at_once() -> None:
    async def main(simulation: Simulation) -> None:
        got: list[bytes] = []
        network = simulation.world.network
        servers = await simulation.serve("left", "right", topics=TOPICS)
        simulation.start("reader", read, servers.url("left"), got)
        await asyncio.sleep(5)
        network.cut(["left"], ["right"])
        publishing = asyncio.create_task(publish_all(simulation, servers.url("left"), got))
        await asyncio.sleep(2)
        assert not got
        network.reset("right")
        network.heal()
        began_s = simulation.now_s
        await until(lambda: bool(got))
        assert simulation.now_s - began_s < CONNECTED.retry_ns / SECOND_NS / 4
        await publishing

    simulate(main, seed=1)


def test_no_request_is_sent_twice_to_a_busy_server(
    requested: Counter[tuple[str, int]],
) -> None:
    async def main(simulation: Simulation) -> None:
        got: list[bytes] = []
        servers = await simulation.serve("left", "right", topics=TOPICS)
        simulation.start("reader", read, servers.url("left"), got)
        await asyncio.sleep(5)
        await publish_all(simulation, servers.url("left"), got)

    simulate(main, seed=1, disk_sync_ms=BUSY_MS)
    assert len(requested) == PUBLISHERS * EVENTS
    assert set(requested.values()) == {1}


def test_requests_that_a_lost_connection_took_along_are_sent_again_at_once(
    requested: Counter[tuple[str, int]],
) -> None:
    async def main(simulation: Simulation) -> None:
        got: list[bytes] = []
        network = simulation.world.network
        servers = await simulation.serve()
        simulation.start("reader", read, servers.url("server"), got)
        await asyncio.sleep(5)
        publishing = simulation.start("publisher-0", publish, servers.url("server"))
        await until(lambda: bool(got))
        network.cut(["publisher-0"], ["server"])
        await asyncio.sleep(0.1)
        network.reset("publisher-0")
        network.heal()
        began_s = simulation.now_s
        await publishing
        assert simulation.now_s - began_s < CONNECTED.retry_ns / SECOND_NS / 4

    simulate(main, seed=1)
    assert len(requested) == EVENTS


def test_slow_reader_gets_few_events_that_it_has_no_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It pauses at `pending_max`, drops what comes until then, and requests that again."""

    received: list[str] = []
    receive = Subscriber.receive

    def count(self: Subscriber, frame: Frame, *, source: str, now_ns: int) -> None:
        if isinstance(frame, Notify):
            received.append(frame.event.id)
        receive(self, frame, source=source, now_ns=now_ns)

    async def read(url: str, handled: list[bytes]) -> None:
        async with ensue.connect(url) as bus, bus.subscribe("low", pending_max=4) as events:
            async for event in events:
                handled.append(event.payload)
                await asyncio.sleep(0.01)
                if len(handled) == 200:
                    return

    async def main(simulation: Simulation) -> list[bytes]:
        servers = await simulation.serve("server")
        handled: list[bytes] = []
        reader = simulation.start("reader", read, servers.url("server"), handled)
        await asyncio.sleep(1)
        async with ensue.connect(servers.url("server")) as bus:
            for number in range(200):
                await bus.publish("low", b"%d" % number)
        await reader
        return handled

    monkeypatch.setattr(Subscriber, "receive", count)
    simulated = simulate(main, seed=1)
    assert simulated.result == [b"%d" % number for number in range(200)]
    assert len(received) < 300, len(received)
