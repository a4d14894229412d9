"""Servers and simulated worlds: starting, stopping, healing, waiting for them."""

import asyncio

import msgspec
from tests.testing.cancelled import Client, Operation

import ensue
from ensue.server import Server

HOST = "client"
"""The host of the process of an operation."""


async def start(client: Client) -> None:
    """A start that is cancelled frees the address and the log; what was stored stays."""
    stored: list[bytes] = []
    for cut in client.cuts():
        server = _server(client)
        attempt = await cut(server.start())
        if not attempt.cancelled:
            await client.soon("stopping", server.stop())
        await _use(client, stored, cut.label)


async def stop(client: Client) -> None:
    """A stop goes on although its caller is cancelled; another call waits for it."""
    stored: list[bytes] = []
    for cut in client.cuts():
        server = _server(client)
        await client.soon("starting", server.start())
        async with ensue.connect(f"ensue://{HOST}:7400") as bus:
            await client.soon("publishing", bus.publish("t", cut.label.encode()))
        stored.append(cut.label.encode())
        await cut(server.stop())
        await client.soon("stopping", server.stop())
        await client.soon("its end", server.wait())
        await _use(client, stored, f"after {cut.label}")


async def wait(client: Client) -> None:
    """A server goes on if a caller that waits for its end is cancelled."""
    stored: list[bytes] = []
    for cut in client.cuts():
        server = _server(client)
        await client.soon("starting", server.start())
        stopping = asyncio.create_task(server.stop())
        await cut(server.wait())
        await client.soon("its end", server.wait())
        await client.soon("stopping", stopping)
        await _use(client, stored, cut.label)


async def wait_for_process(client: Client) -> None:
    """A process goes on if a program that waits for it is cancelled."""

    async def work() -> str:
        await asyncio.sleep(1)
        return "done"

    for number, cut in enumerate(client.cuts()):
        process = client.simulation.start(f"process-{number}", work)
        await cut(process.wait() if number % 2 else process.ended())
        client.expect("its result", await client.soon("its end", process), "done")


async def heal(client: Client) -> None:
    """A world whose healing is cancelled can be healed."""
    for cut in client.cuts():
        client.simulation.strike()
        await asyncio.sleep(3)
        await cut(client.simulation.heal())
        await client.soon("healing", client.simulation.heal())
        async with client.bus() as bus:
            await client.soon("publishing", bus.publish("t", cut.label.encode()))


def _server(client: Client) -> Server:
    config = client.cluster.configs[client.cluster.names[0]]
    return Server(msgspec.structs.replace(config, name=HOST, chain=(), admin="127.0.0.1:7401"))


async def _use(client: Client, stored: list[bytes], payload: str) -> None:
    """Start a server, publish, and read everything that was ever published."""
    server = _server(client)
    await client.soon("starting", server.start())
    async with ensue.connect(f"ensue://{HOST}:7400") as bus:
        await client.soon("publishing", bus.publish("t", payload.encode()))
        stored.append(payload.encode())
        async with bus.subscribe("t", start="earliest") as events:
            got = [(await client.soon("an event", anext(events))).payload for _ in stored]
            client.expect("stored", got, stored)
    await client.soon("stopping", server.stop())


OPERATIONS: tuple[Operation, ...] = (start, stop, wait, wait_for_process, heal)
