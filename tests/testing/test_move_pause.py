"""How long a topic move holds publishers up, in virtual time."""

import asyncio

import pytest

import ensue
from ensue.core.errors import TransportError
from ensue.protocols.total.frames import Move
from ensue.protocols.total.topic_moves import TopicMoves
from ensue.runtime.topic_move import move_topic
from ensue.testing import Simulation, simulate

NAMES = ("s0", "s1", "s2")
TOPICS = ("t0", "t1", "t2")
"""One at each server."""
PAUSE_S_MAX = 1.0
SEEDS = range(4)


class Publisher:
    """Publishes one event after the other, and notes the longest wait for a receipt."""

    def __init__(self) -> None:
        self.count = 0
        self.longest_s = 0.0
        self._progress = asyncio.Event()

    async def run(self, url: str, topics: tuple[str, ...]) -> None:
        clock = asyncio.get_running_loop()
        async with ensue.connect(url) as bus:
            while True:
                began_s = clock.time()
                await bus.publish(topics[self.count % len(topics)], b"")
                self.longest_s = max(self.longest_s, clock.time() - began_s)
                self.count += 1
                self._progress.set()

    async def more(self) -> None:
        wanted = self.count + 20
        while self.count < wanted:
            self._progress.clear()
            await self._progress.wait()


@pytest.mark.parametrize("seed", SEEDS)
def test_publishers_wait_at_most_a_second_while_topics_move(seed: int) -> None:
    publishers = [Publisher() for _ in NAMES]

    async def main(simulation: Simulation) -> None:
        servers = await simulation.serve(*NAMES, topics=TOPICS)
        for name, each in zip(NAMES, publishers, strict=True):
            simulation.start(f"publisher-{name}", each.run, servers.url(name), TOPICS)
        async with ensue.connect(servers.url("s1")) as bus, bus.subscribe(*TOPICS) as events:
            reading = asyncio.create_task(_read(events))
            for topic, to in (("t0", "s1"), ("t1", "s2"), ("t2", "s0"), ("t0", "s2")):
                await asyncio.gather(*(each.more() for each in publishers))
                await move_topic(servers.url("s1"), topic, to)
            await asyncio.gather(*(each.more() for each in publishers))
            reading.cancel()

    simulate(main, seed=seed)
    for each in publishers:
        assert 0 < each.longest_s <= PAUSE_S_MAX


@pytest.mark.parametrize("seed", SEEDS)
def test_publishers_wait_at_most_a_second_if_a_server_does_not_answer(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move is given up: its server is cut off between the question and the freeze."""
    publishers = [Publisher() for _ in range(2)]

    async def main(simulation: Simulation) -> None:
        servers = await simulation.serve(*NAMES, topics=TOPICS)
        network = simulation.world.network
        freeze, frozen = TopicMoves.freeze, list[str]()

        def cut_and_freeze(moves: TopicMoves, frame: Move, now_ns: int) -> Move:
            frozen.append(moves._state.name)
            network.cut(["s2"], ["s0", "s1"])
            return freeze(moves, frame, now_ns)

        for name, each in zip(NAMES, publishers, strict=False):
            simulation.start(f"publisher-{name}", each.run, servers.url(name), ("t0", "t1"))
        async with (
            ensue.connect(servers.url("s1")) as bus,
            bus.subscribe("t0", "t1") as events,
        ):
            reading = asyncio.create_task(_read(events))
            await asyncio.gather(*(each.more() for each in publishers))
            monkeypatch.setattr(TopicMoves, "freeze", cut_and_freeze)
            with pytest.raises(TransportError, match=r"'t1' has not moved .* within 0\.3 s"):
                await move_topic(servers.url("s1"), "t1", "s0", within_s=0.3)
            assert frozen == ["s0", "s1"]
            await asyncio.gather(*(each.more() for each in publishers))
            reading.cancel()

    simulate(main, seed=seed)
    for each in publishers:
        assert 0.3 < each.longest_s <= PAUSE_S_MAX


async def _read(events: ensue.Subscription) -> None:
    async for _ in events:
        pass
