"""Over connections nothing is sent twice to a busy peer; a new one gets all again at once."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

import ensue
from ensue.protocols.interface import Frame, Node
from ensue.protocols.shared.link import CONNECTED, LinkAck, LinkData, Linked
from ensue.testing import NetworkOptions, Simulation, simulate

SECOND_NS = 1_000_000_000
TOPICS = ("low", "high")
PUBLISHERS, EVENTS = 20, 10
FAR = NetworkOptions(latency_ms=(150.0, 200.0), slow=0.0)
"""An acknowledgement takes longer than a link waits where messages get lost."""


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[tuple[str, int]]]:
    """Count the frames between servers: by receiver and number, and acknowledgements as 0."""
    counts: Counter[tuple[str, int]] = Counter()
    receive = Linked.receive

    def count(self: Linked[Node], frame: Frame, **given: object) -> None:
        if isinstance(frame, LinkData):
            counts[self.name, frame.number] += 1
        elif isinstance(frame, LinkAck):
            counts[self.name, 0] += 1
        receive(self, frame, **given)

    monkeypatch.setattr(Linked, "receive", count)
    yield counts


async def publish(url: str) -> None:
    """Publish with a receipt each: several publishers, so that many requests are under way."""
    async with ensue.connect(url) as bus:
        for _ in range(EVENTS):
            await bus.publish("low", b"")


async def read(url: str, got: list[bytes]) -> None:
    async with ensue.connect(url) as bus, bus.subscribe(*TOPICS) as events:
        async for event in events:
            got.append(event.payload)


async def publish_all(simulation: Simulation, url: str, got: list[bytes]) -> None:
    """Return when all events of all publishers are delivered."""
    for number in range(PUBLISHERS):
        simulation.start(f"publisher-{number}", publish, url)
    while len(got) < PUBLISHERS * EVENTS:
        await asyncio.sleep(0.01)


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
        await asyncio.sleep(1)
        assert not got
        network.reset("right")
        network.heal()
        began_s = simulation.now_s
        while not got:
            await asyncio.sleep(0.01)
        assert simulation.now_s - began_s < CONNECTED.retry_ns / SECOND_NS / 4
        await publishing

    simulate(main, seed=1)
