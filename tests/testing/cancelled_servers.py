"""Starting and stopping a server, cancelled wherever they suspend."""

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


OPERATIONS: tuple[Operation, ...] = (start, stop)
