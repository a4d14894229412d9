"""Plans about which the client decides later, in memory and on servers."""

import asyncio
from pathlib import Path

import pytest
from tests.client.content.test_plan import TRANSPORTS, read, three
from tests.server.helpers import within

import ensue
from ensue.client.content.plan import PlannedTransaction
from ensue.core.errors import LocalProtocolError, TransactionAborted
from ensue.testing import Simulation, simulate


async def hold_a_move(a: ensue.Bus, b: ensue.Bus, old: ensue.Subscription) -> PlannedTransaction:
    """Hold a plan that moves a subscription of `b` to `c`, and publishes."""
    plan = a.transaction(isolation="planned", timeout=60)
    await plan.__aenter__()
    await plan.publish({"x": 1}, b"for b")
    await plan.client("b").unsubscribe(b.content_name(old))
    await plan.client("c").subscribe("x = 1")
    await plan.publish({"x": 1}, b"for c")
    await within(plan.hold())
    return plan


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("leaves", [True, False], ids=["leaving", "commit"])
def test_events_of_a_held_plan_are_delivered_with_its_commit(
    kind: str, tmp_path: Path, *, leaves: bool
) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, c):
            await within(a.advertise(where="x exists"))
            handed: asyncio.Queue[ensue.Subscription] = asyncio.Queue()
            await within(c.on_subscription(handed.put))
            async with b.subscribe(where="x = 1") as old, b.subscribe(where="x = 2") as other:
                plan = await hold_a_move(a, b, old)
                assert plan.name
                await within(a.publish({"x": 2}, b"meanwhile"))
                assert await read(other, 1) == [b"meanwhile"]
                assert not old.waiting
                assert handed.empty()
                if leaves:
                    await within(plan.__aexit__(None, None, None))
                else:
                    await within(plan.commit())
                    await within(plan.__aexit__(None, None, None))
                assert await read(old, 1) == [b"for b"]
                assert await read(await within(handed.get()), 1) == [b"for c"]

    asyncio.run(main())


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("raises", [True, False], ids=["exception", "abort"])
def test_aborted_plan_leaves_subscriptions_as_they_were(
    kind: str, tmp_path: Path, *, raises: bool
) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, c):
            await within(a.advertise(where="x exists"))
            handed: asyncio.Queue[ensue.Subscription] = asyncio.Queue()
            await within(c.on_subscription(handed.put))
            async with b.subscribe(where="x = 1") as old:
                plan = await hold_a_move(a, b, old)
                if raises:
                    error = ZeroDivisionError()
                    await within(plan.__aexit__(type(error), error, None))
                else:
                    await within(plan.abort())
                    await within(plan.__aexit__(None, None, None))
                while not old.waiting:  # Brokers undo it one after the other.
                    await within(a.publish({"x": 1}, b"regular"))
                assert await read(old, 1) == [b"regular"]
                assert handed.empty()

    asyncio.run(main())


def test_plan_that_is_not_decided_in_time_is_aborted() -> None:
    async def main(_: Simulation) -> None:
        async with ensue.connect("memory://", order=None, name="a") as a:
            await a.advertise(where="x exists")
            async with a.subscribe(where="x exists") as events:
                plan = a.transaction(isolation="planned", timeout=2)
                await plan.__aenter__()
                await plan.publish({"x": 1}, b"never")
                await plan.hold()
                await asyncio.sleep(3)
                with pytest.raises(TransactionAborted) as found:
                    await plan.__aexit__(None, None, None)
                assert found.value.reason == "timeout"
                assert found.value.transaction == plan.name
                assert plan.name
                assert "commit or abort it sooner, or pass a longer timeout=" in str(found.value)
                async with a.transaction(isolation="planned", timeout=2) as plan:
                    await plan.publish({"x": 2}, b"never")
                    await plan.hold()
                    await asyncio.sleep(3)
                    await plan.abort()
                await a.publish({"x": 3}, b"regular")
                assert (await anext(events)).payload == b"regular"

    simulate(main, seed=1)


def test_plan_is_aborted_when_the_bus_that_holds_it_is_closed() -> None:
    async def main(_: Simulation) -> None:
        async with (
            ensue.connect("memory://held", order=None, name="b") as b,
            ensue.connect("memory://held", order=None, name="a") as a,
        ):
            await b.advertise(where="x exists")
            async with b.subscribe(where="x exists") as events:
                plan = a.transaction(isolation="planned", timeout=600)
                await plan.__aenter__()
                await plan.client("b").publish({"x": 1}, b"never")
                await plan.client("b").unsubscribe(b.content_name(events))
                await plan.hold()
                await a.close()
                await asyncio.sleep(1)
                await b.publish({"x": 2}, b"regular")
                assert (await anext(events)).payload == b"regular"

    simulate(main, seed=1)


def test_plan_that_no_server_answers_is_not_committed_later(tmp_path: Path) -> None:
    async def main() -> None:
        async with three("servers", tmp_path) as (a, b, _):
            await within(a.advertise(where="x exists"))
            async with b.subscribe(where="x exists") as events:
                plan = a.transaction(isolation="planned", timeout=60)
                await plan.__aenter__()
                await plan.publish({"x": 1}, b"never")
                holding = asyncio.ensure_future(plan.hold())
                await asyncio.sleep(0)
                holding.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await holding
                await within(plan.__aexit__(None, None, None))
                await within(a.publish({"x": 2}, b"regular"))
                assert await read(events, 1) == [b"regular"]

    asyncio.run(main())


def test_errors_of_held_plans_name_the_mistake() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=None, name="a") as a:
            await within(a.advertise(where="x exists"))
            async with a.transaction(isolation="planned") as plan:
                with pytest.raises(LocalProtocolError, match="no operations"):
                    await plan.hold()
                await plan.publish({"x": 1})
                await plan.hold()
                with pytest.raises(LocalProtocolError, match="the plan is held"):
                    await plan.publish({"x": 1})
                with pytest.raises(LocalProtocolError, match="the plan is held"):
                    await plan.hold()
                await plan.commit()
                for call in (plan.commit, plan.abort, plan.hold):
                    with pytest.raises(LocalProtocolError, match="not after commit or abort"):
                        await call()
            async with a.subscribe(where="x exists") as events:
                async with a.transaction(isolation="planned") as plan:
                    await plan.publish({"x": 2}, b"dropped")
                    await plan.abort()
                async with a.transaction(isolation="planned") as plan:
                    await plan.publish({"x": 3}, b"now")
                    await plan.commit()
                    assert await read(events, 1) == [b"now"]
                async with a.transaction(isolation="planned") as plan:
                    _forgotten = plan.publish({"x": 4})
                    with pytest.raises(TransactionAborted, match="was not awaited"):
                        await plan.hold()
            async with a.transaction(isolation="planned") as plan:
                await plan.publish({"y": 1})
                with pytest.raises(TransactionAborted, match="no advertisement of this bus covers"):
                    await plan.hold()

    asyncio.run(main())
