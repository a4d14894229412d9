"""How buses and subscriptions on a server end: what they leave behind, and who is told."""

import asyncio
from pathlib import Path

from tests.server.helpers import serving, until, within

import ensue
from ensue.server.config import Limits


def test_a_subscription_that_was_closed_leaves_no_name_behind(tmp_path: Path) -> None:
    async def main() -> None:
        limits = Limits(names_per_connection=5)
        async with (
            serving(tmp_path / "d", limits=limits) as server,
            ensue.connect(server.url) as bus,
        ):
            assert server.listener is not None
            routes = server.listener.routes
            for _ in range(10):
                async with bus.subscribe("x") as events:
                    await within(bus.publish("x", b"1"))
                    await within(anext(events))
                await until(lambda: list(routes) == [bus.name], "only the bus has a name")
            assert not server.listener.errors

    asyncio.run(main())


def test_a_durable_subscription_that_never_got_its_records_can_be_entered_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d") as server, ensue.connect(server.url) as bus:
            listener = server.listener
            assert listener is not None
            receive, listener._receive = listener._receive, None
            entering = asyncio.create_task(bus.subscribe("x", name="d", durable=True).__aenter__())
            await until(lambda: "d" in listener.routes)
            entering.cancel()
            await asyncio.wait((entering,))
            await until(lambda: list(listener.routes) == [bus.name], "the name was left")
            listener._receive = receive
            async with bus.subscribe("x", name="d", durable=True) as events:
                await within(bus.publish("x", b"1"))
                assert (await within(anext(events))).payload == b"1"

    asyncio.run(main())
