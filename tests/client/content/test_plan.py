"""Planned transactions, in memory and on servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.server.helpers import People, serving, within
from tests.server.test_server import chain

import ensue
from ensue.core.errors import BadInput, LocalProtocolError, TransactionAborted, TransactionPending
from ensue.protocols.content.config import ContentConfig
from ensue.server import Server

TRANSPORTS = ["memory", "servers"]
SYNC_S = 0.5


@asynccontextmanager
async def three(kind: str, tmp_path: Path) -> AsyncIterator[tuple[ensue.Bus, ensue.Bus, ensue.Bus]]:
    """Three buses at three brokers: `a`, `b` and `c`."""
    servers: list[Server] = []
    urls = ["memory://planned?brokers=3"] * 3
    if kind == "servers":
        servers = await chain(tmp_path, 3, sync_s=SYNC_S)
        urls = [server.url for server in servers]
    try:
        async with (
            ensue.connect(urls[0], order=None, name="a") as a,
            ensue.connect(urls[1], order=None, name="b") as b,
            ensue.connect(urls[2], order=None, name="c") as c,
        ):
            yield a, b, c
    finally:
        for server in servers:
            await server.stop()


async def read(events: ensue.Subscription, count: int) -> list[bytes]:
    return [(await within(anext(events))).payload for _ in range(count)]


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_plan_moves_a_subscription_without_losing_or_duplicating_events(
    kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, c):
            await within(a.advertise(where="x exists"))
            handed: asyncio.Queue[ensue.Subscription] = asyncio.Queue()
            await within(c.on_subscription(handed.put))
            async with b.subscribe(where="x = 1") as old:
                name = b.content_name(old)
                async with a.transaction(isolation="planned", timeout=60) as plan:
                    await plan.publish({"x": 1}, b"for b")
                    await plan.client("b").unsubscribe(name)
                    await plan.client(c.name).subscribe("x = 1")
                    await plan.publish({"x": 1}, b"for c")
                    assert not old.waiting
                assert plan.name
                new = await within(handed.get())
                assert await read(old, 1) == [b"for b"]
                assert await read(new, 1) == [b"for c"]
                await within(a.publish({"x": 1}, b"regular"))
                assert await read(new, 1) == [b"regular"]
                assert not old.waiting

    asyncio.run(main())


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_all_operations_can_be_planned_for_oneself_and_for_others(
    kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, _):
            await within(b.on_subscription(lambda _events: asyncio.sleep(0)))
            async with a.transaction(isolation="planned", timeout=60) as plan:
                mine = await plan.subscribe("x exists")
                with plan.together():
                    promised = await plan.advertise("x < 10")
                    await plan.client("b").advertise("x >= 10")
                await plan.publish({"x": 1}, b"own")
                await plan.client("b").publish({"x": 11}, b"theirs")
                theirs = await plan.client("b").subscribe("x = 0")
            assert sorted(await read(mine, 2)) == [b"own", b"theirs"]
            await within(b.publish({"x": 12}, b"advertised"))
            assert await read(mine, 1) == [b"advertised"]
            async with a.transaction(isolation="planned", timeout=60) as plan:
                await plan.unadvertise(promised)
                await plan.client("b").unsubscribe(theirs)
                await plan.unsubscribe(mine)
            with pytest.raises(ensue.EventRefused):
                await within(a.publish({"x": 1}))
            assert mine.topics == ()

    asyncio.run(main())


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_dropped_or_refused_plan_has_no_effect(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, _):
            await within(a.advertise(where="x exists"))
            made: list[ensue.Subscription] = []

            async def fail() -> None:
                async with a.transaction(isolation="planned", timeout=60) as plan:
                    made.append(await plan.subscribe("x = 1"))
                    await plan.publish({"x": 1}, b"never")
                    raise ZeroDivisionError

            async with b.subscribe(where="x = 1") as events:
                with pytest.raises(ZeroDivisionError):
                    await fail()
                with pytest.raises(TransactionAborted, match="no client is called"):
                    async with a.transaction(isolation="planned", timeout=60) as plan:
                        await plan.client("nobody").publish({"x": 1}, b"never")
                with pytest.raises(TransactionAborted, match="no advertisement of"):
                    async with a.transaction(isolation="planned", timeout=60) as plan:
                        await plan.client("b").publish({"x": 1}, b"never")
                async with a.transaction(isolation="planned", timeout=60):
                    pass
                await within(a.publish({"x": 1}, b"regular"))
                assert await read(events, 1) == [b"regular"]
            assert made[0].topics == ()

    asyncio.run(main())


def test_errors_name_the_mistake() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=None, name="a") as a:
            plan = a.transaction(isolation="planned")
            with pytest.raises(LocalProtocolError, match="inside"):
                await plan.publish({"x": 1})
            async with plan:
                with pytest.raises(ensue.FilterError):
                    await plan.subscribe("x >")
                with pytest.raises(BadInput):
                    await plan.publish({"x": 1}, "text")  # type: ignore[arg-type]
                with (
                    pytest.raises(LocalProtocolError, match="blocks can't be nested"),
                    plan.together(),
                    plan.together(),
                ):
                    pass
            with pytest.raises(LocalProtocolError, match="entered once"):
                await plan.__aenter__()
            with pytest.raises(LocalProtocolError, match="inside"):
                plan.client("b")

    asyncio.run(main())


def test_planned_subscription_without_a_handler_is_withdrawn(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async def main() -> None:
        async with three("memory", tmp_path) as (a, b, _):
            await within(a.advertise(where="x exists"))
            await within(b.advertise(where="y exists"))
            async with a.transaction(isolation="planned", timeout=60) as plan:
                await plan.client("b").subscribe("x = 1")
            await within(a.publish({"x": 1}))
            await within(b.publish({"y": 1}))

    asyncio.run(main())
    assert "plan subscription withdrawn" in caplog.text


def test_plan_that_waits_for_an_away_broker_raises_pending(tmp_path: Path) -> None:
    async def main() -> None:
        servers = await chain(tmp_path, 2, sync_s=SYNC_S)
        try:
            async with (
                ensue.connect(servers[0].url, order=None, name="a") as a,
                ensue.connect(servers[1].url, order=None, name="b") as b,
            ):
                await within(a.advertise(where="x exists"))
                async with b.subscribe(where="x = 1") as events:
                    await servers[1].stop()
                    plan = a.transaction(isolation="planned", timeout=0.3)
                    await plan.__aenter__()
                    await plan.advertise("y exists")  # Has to be echoed.
                    await plan.publish({"x": 1}, b"late")
                    with pytest.raises(TransactionPending, match="do not repeat it"):
                        await plan.__aexit__(None, None, None)
                    servers[1] = Server(servers[1].config)
                    await within(servers[1].start())
                    assert await read(events, 1) == [b"late"]
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(main())


def test_user_plans_for_its_own_clients_only(tmp_path: Path) -> None:
    people = People(alice=(["*"], ["*"]), bob=(["*"], ["*"]))

    async def main() -> None:
        async with (
            serving(tmp_path / "d", access=people.access, sync_s=SYNC_S) as server,
            ensue.connect(people.url(server, "alice"), order=None, name="one") as one,
            ensue.connect(people.url(server, "alice"), order=None, name="two") as two,
            ensue.connect(people.url(server, "bob"), order=None, name="other") as other,
        ):
            for bus in (two, other):
                await within(bus.advertise(where="x exists"))
            async with one.transaction(isolation="planned", timeout=60) as plan:
                await plan.client(two.name).publish({"x": 1})
            for name in (other.name, "other"):
                with pytest.raises(TransactionAborted, match="is not a client of 'alice'"):
                    async with one.transaction(isolation="planned", timeout=60) as plan:
                        await plan.client(name).publish({"x": 1})

    asyncio.run(main())


def test_concurrent_transactions_of_a_client_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    few = ContentConfig(durable=False, transactions_max=2)
    monkeypatch.setattr("ensue.runtime.content_brokers.ContentConfig", lambda **_options: few)

    async def main() -> None:
        async with ensue.connect("memory://", order=None, name="a") as a:
            await within(a.advertise(where="x exists"))
            async with a.transaction(isolation="atomic"), a.transaction(isolation="atomic"):
                with pytest.raises(TransactionAborted, match="transactions_max"):
                    async with a.transaction(isolation="atomic"):
                        """The answer to its begin comes with that to its end."""
                with pytest.raises(TransactionAborted, match="transactions_max"):
                    async with a.transaction(isolation="planned") as plan:
                        await plan.publish({"x": 1})
            async with a.transaction(isolation="atomic"):
                pass

    asyncio.run(main())
