"""Subscriptions that a plan makes and withdraws get all their events, and then end."""

import asyncio
from pathlib import Path

import pytest
from tests.client.content.test_plan import SYNC_S, TRANSPORTS, read, three
from tests.server.helpers import until, within
from tests.server.test_server import chain

import ensue
from ensue.client.content.client import ContentClient
from ensue.core.errors import TransactionPending
from ensue.protocols.content.frames import PLANNED_FROM
from ensue.server import Server

LARGE = bytes(200_000)


async def rest_of(events: ensue.Subscription) -> list[bytes]:
    """Read until the subscription ends."""
    return [event.payload async for event in events]


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_subscription_gets_events_its_plan_published_before_withdrawing_it(
    kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, _):
            await within(a.advertise(where="x exists"))
            mine = await within(a.subscribe(where="x exists").__aenter__())
            theirs = await within(b.subscribe(where="x exists").__aenter__())
            reading = [asyncio.create_task(rest_of(each)) for each in (mine, theirs)]
            async with a.transaction(isolation="planned", timeout=60) as plan:
                for number in range(40):
                    await plan.publish({"x": number}, LARGE)
                await plan.unsubscribe(mine)
                await plan.client("b").unsubscribe(b.content_name(theirs))
                await plan.publish({"x": 40}, b"for nobody")
            for each in reading:
                assert await within(each) == [LARGE] * 40
            assert mine.topics == theirs.topics == ()

    asyncio.run(main())


def test_slow_plan_settles_its_subscriptions_when_it_ends(tmp_path: Path) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 2, sync_s=SYNC_S)
        try:
            async with (
                ensue.connect(servers[0].url, order=None, name="a") as a,
                ensue.connect(servers[1].url, order=None, name="b") as b,
            ):
                await within(a.advertise(where="x exists"))
                await within(b.on_subscription(rest_of))  # type: ignore[arg-type]
                old = await within(a.subscribe(where="x = 1").__aenter__())
                await servers[1].stop()
                plan = a.transaction(isolation="planned", timeout=0.3)
                await plan.__aenter__()
                await plan.advertise("y exists")  # Has to be echoed.
                await plan.unsubscribe(old)
                with pytest.raises(TransactionPending):
                    await plan.__aexit__(None, None, None)
                assert not plan.name
                servers[1] = Server(servers[1].config)
                await within(servers[1].start())
                assert await within(rest_of(old)) == []
                await until(lambda: plan.name)
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_closing_a_subscription_within_a_plan_raises_only_the_cause() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=None, name="a") as a:
            await within(a.advertise(where="x exists"))

            async def fail() -> None:
                async with a.transaction(isolation="planned", timeout=60) as plan:
                    (await plan.subscribe("x = 1")).close()
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            async with a.subscribe(where="x = 1") as events:
                await within(a.publish({"x": 1}, b"goes on"))
                assert await read(events, 1) == [b"goes on"]

    asyncio.run(main())


def test_planned_events_have_unique_ids() -> None:
    async def main() -> None:
        url = "memory://names?brokers=3"
        async with (
            ensue.connect(url, order=None, name="a") as a,
            ensue.connect(url, order=None, name="b") as b,
            ensue.connect(url, order=None, name="c") as c,
        ):
            for bus in (a, b):
                await within(bus.advertise(where="x exists"))
            async with c.subscribe(where="x exists") as events:
                for planner in (a, b, c):
                    for bus in (a, b):
                        await within(bus.publish({"x": 0}))
                    async with planner.transaction(isolation="planned", timeout=60) as plan:
                        for name in ("a", "b", "a"):
                            await plan.client(name).publish({"x": 1})
                        if planner is not c:
                            await plan.publish({"x": 2})
                            await plan.publish({"x": 2})
                    for bus in (a, b):
                        await within(bus.publish({"x": 3}))
                came = [await within(anext(events)) for _ in range(25)]
            assert len({event.id for event in came}) == 25
            for bus in (a, b):
                mine = [event.id for event in came if event.publisher == bus.name]
                numbers = [int(name.rpartition("/")[2]) for name in mine]
                own = [number for number in numbers if number < PLANNED_FROM]
                assert own == list(range(1, len(own) + 1)), "its own are counted, in its order"
                planned = [number for number in numbers if number > PLANNED_FROM]
                assert planned == sorted(planned)

    asyncio.run(main())


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_subscription_that_its_bus_fails_to_open_is_withdrawn(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, _):
            await within(a.advertise(where="x exists"))
            await within(b.on_subscription(rest_of))  # type: ignore[arg-type]

            def fail(_self: ContentClient, _request: object) -> ensue.Subscription:
                raise ZeroDivisionError

            with monkeypatch.context() as patched:
                patched.setattr(ContentClient, "_open", fail)
                async with a.transaction(isolation="planned", timeout=60) as plan:
                    name = await plan.client("b").subscribe("x = 1")
                    await plan.publish({"x": 1}, b"kept")
                await until(lambda: "handler=on_subscription" in caplog.text)
            session = b._content.session
            await until(lambda: not session._left)
            assert name not in session._readers
            with pytest.raises(ensue.TransactionAborted, match="there is no"):
                async with a.transaction(isolation="planned", timeout=60) as plan:
                    await plan.client("b").unsubscribe(name)

    asyncio.run(main())
