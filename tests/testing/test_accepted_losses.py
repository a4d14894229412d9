"""A chain that accepts a loss goes on, and its durable readers with it."""

import asyncio
from collections.abc import Callable

import msgspec

import ensue
from ensue.server.config import Retention
from ensue.testing import Simulation, simulate
from ensue.testing.cluster import DATA, Cluster


async def read(events: ensue.Subscription, count: int) -> list[bytes]:
    async with asyncio.timeout(60.0):
        return [(await anext(events)).payload for _ in range(count)]


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(120.0):
        while not reached():  # noqa: ASYNC110 - a process of another loop sets it
            await asyncio.sleep(0.1)


async def stop(cluster: Cluster, name: str) -> None:
    cluster.down[name] = None
    cluster.processes[name].terminate()
    await cluster.processes[name].ended()


def accept_loss(cluster: Cluster, name: str) -> None:
    config = msgspec.structs.replace(cluster.configs[name], accept_loss=True)
    cluster.processes[name] = cluster.world.start(name, cluster.serve, config)
    del cluster.down[name]


def test_durable_reader_of_a_chain_that_accepts_a_loss_continues() -> None:
    """An event that the first server counted was on its way to the second one."""

    async def before(cluster: Cluster, steps: list[str]) -> None:
        async with (
            ensue.connect(cluster.url("s0"), close_timeout=1.0) as bus,
            bus.subscribe("t0", "t1", name="both", durable=True),
            bus.subscribe("t0", name="desk", durable=True, start="earliest") as desk,
        ):
            await bus.publish_many([("t1", bytes(100))] * 1_200)
            await bus.publish("t0", b"0")
            assert await read(desk, 1) == [b"0"]
            steps.append("read")
            await until(lambda: "down" in steps)
            await bus.publish("t0", b"lost", receipt=False)
            await asyncio.sleep(1.0)
            steps.append("counted")
            await asyncio.sleep(600.0)

    async def after(cluster: Cluster) -> list[bytes]:
        async with (
            ensue.connect(cluster.url("s0")) as bus,
            bus.subscribe("t0", name="desk", durable=True, accept_loss=True) as desk,
        ):
            await bus.publish("t0", b"1")
            return await read(desk, 2)

    async def main(simulation: Simulation) -> list[bytes]:
        cluster = await simulation.serve(
            "s0", "s1", topics=["t0", "t1"], retention=Retention(segment_bytes=20_000)
        )
        steps: list[str] = []
        client = simulation.start("before", before, cluster, steps)
        await until(lambda: "read" in steps or not client.alive)
        await stop(cluster, "s1")
        steps.append("down")
        await until(lambda: "counted" in steps or not client.alive)
        client.kill()
        await stop(cluster, "s0")
        disk = cluster.processes["s1"].machine.disk
        oldest = min(each for each in disk.names(DATA) if each.endswith(".log"))
        size = disk.size_of(DATA / oldest)
        disk.truncate(DATA / oldest, size // 2)
        for name in cluster.names:
            accept_loss(cluster, name)
        found: list[bytes] = await simulation.start("after", after, cluster)
        return found

    assert simulate(main, seed=3).result == [b"0", b"1"]
