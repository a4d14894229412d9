"""Error texts about content: the user's names, and what to do next."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import ensue

URL = "memory://wording?brokers=2"


def connected(name: str | None) -> ensue.Bus:
    return ensue.connect(URL, order=None, name=name)


def test_error_shows_the_event_its_advertisements_and_the_call() -> None:
    async def main() -> None:
        async with connected(None) as bus:
            with pytest.raises(ensue.EventRefused) as caught:
                await bus.publish({"price": 1})
            assert str(caught.value) == (
                "no subscriber gets it: no advertisement of this bus covers {'price': 1}: "
                "advertise it by `await bus.advertise(where=…)` first"
            )
            name = await bus.advertise(where="price > 5")
            with pytest.raises(ensue.EventRefused) as caught:
                await bus.publish({"price": -5})
            assert "covers {'price': -5}; it has advertised 'price > 5': advertise it" in str(
                caught.value
            )
            with pytest.raises(ensue.EventRefused, match="'price' is a text, '7', and a number w"):
                await bus.publish({"price": "7"})
            await bus.unadvertise(name)
            await bus.advertise(where="price starts with '7'")
            with pytest.raises(ensue.EventRefused) as caught:
                await bus.publish({"price": 7, "known": True})
            assert "('price' is a number, 7, and a text was advertised)" in str(caught.value)
            assert "price > 5" not in str(caught.value)
            long = "x" * 1_000
            with pytest.raises(ensue.EventRefused) as caught:
                await bus.publish({"text": long})
            assert long not in str(caught.value)

    asyncio.run(main())


@pytest.mark.parametrize("isolation", ["serializable", "atomic", "planned"])
def test_error_within_a_transaction_shows_the_same(isolation: str) -> None:
    own = "plan" if isolation == "planned" else "tx"

    async def main() -> None:
        async with connected(None) as bus:
            async with bus.transaction(isolation=isolation, timeout=60) as tx:
                await tx.advertise("price > 5")

            async def fail() -> None:
                async with bus.transaction(isolation=isolation, timeout=60) as tx:
                    await tx.advertise("n > 5")
                    await tx.publish({"price": -5})

            with pytest.raises(ensue.TransactionAborted) as caught:
                await fail()
            said = str(caught.value)
            assert "no advertisement of this bus covers {'price': -5}" in said
            assert "advertised 'price > 5' and 'n > 5'" in said
            assert f"by `await {own}.advertise(where=…)` first" in said
            with pytest.raises(ensue.EventRefused) as refused:
                await bus.publish({"n": -5})
            assert "advertised 'price > 5':" in str(refused.value), "the other was not committed"

    asyncio.run(main())


def test_errors_use_the_names_of_other_buses() -> None:
    async def main() -> None:
        async with connected("desk") as desk, connected("agent") as agent:
            await agent.advertise(where="x > 5")

            async def plan_it() -> None:
                async with desk.transaction(isolation="planned") as plan:
                    with plan.together():
                        await plan.client("agent").advertise("y > 5")
                        await plan.client("agent").publish({"y": 1})

            with pytest.raises(ensue.TransactionAborted) as caught:
                await plan_it()
            assert caught.value.reason == (
                "operation 2: no advertisement of 'agent' covers {'y': 1}; "
                "it has advertised 'y > 5': "
                "advertise it by `await plan.client('agent').advertise(where=…)` first"
            )

            async def publish(tx: ensue.InvitedTransaction) -> None:
                await tx.publish({"x": 1})

            await agent.on_invitation(publish)
            with pytest.raises(ensue.TransactionAborted, match="no advertisement of 'agent' cov"):
                async with desk.transaction() as tx:
                    await tx.invite("agent")

    asyncio.run(main())


async def invite(bus: ensue.Bus) -> None:
    async with bus.transaction() as tx:
        await tx.invite("agent")


async def plan_for(bus: ensue.Bus) -> None:
    async with bus.transaction(isolation="planned") as plan:
        await plan.client("agent").subscribe("x exists")


@pytest.mark.parametrize(
    ("act", "call"), [(invite, "on_invitation"), (plan_for, "on_subscription")]
)
def test_error_names_an_unknown_client_by_its_user_name(
    act: Callable[[ensue.Bus], Awaitable[None]], call: str
) -> None:
    async def main() -> None:
        async with connected("desk") as desk, connected("agent") as agent:
            with pytest.raises(ensue.TransactionAborted) as caught:
                await act(desk)
            assert caught.value.reason == (
                "no client is called 'agent', or 'agent' takes no part in content yet: "
                "have it call "
                f"`await bus.{call}(…)` first"
            )
            await agent.advertise(where="x exists")
            if act is invite:
                with pytest.raises(
                    ensue.TransactionAborted, match="'agent' takes no invitations: h"
                ):
                    await act(desk)

    asyncio.run(main())


def test_planned_subscription_without_a_handler_names_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with connected("desk") as desk, connected("agent") as agent:
            await agent.advertise(where="x exists")
            await plan_for(desk)

    asyncio.run(main())
    assert "plan subscription withdrawn bus=agent where='x exists'" in caplog.text
    assert "`await bus.on_subscription(handler)`" in caplog.text


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (ValueError("no room"), "the handler of 'agent' failed: ValueError: no room"),
        (ZeroDivisionError(), "the handler of 'agent' failed: ZeroDivisionError"),
        (None, "the handler of 'agent' failed: FilterError: expected a number or a text to"),
    ],
)
def test_failed_handler_is_reported_with_its_bus(
    raised: Exception | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with connected("desk") as desk, connected("agent") as agent:

            async def fail(tx: ensue.InvitedTransaction) -> None:
                if raised is not None:
                    raise raised
                await tx.subscribe("order >")

            await agent.on_invitation(fail)
            with pytest.raises(ensue.TransactionAborted) as caught:
                await invite(desk)
            assert said in str(caught.value)
            assert "\\n" not in str(caught.value)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "handler failed bus=agent handler=on_invitation" in caplog.text
    assert "Traceback" in caplog.text


def test_failed_handler_of_planned_subscriptions_is_reported_with_its_filter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with connected("desk") as desk, connected("agent") as agent:

            async def fail(_events: Any) -> None:
                raise ValueError("no room")

            await agent.on_subscription(fail)
            await plan_for(desk)
            await asyncio.sleep(0.01)

    asyncio.run(main())
    assert "handler failed bus=agent handler=on_subscription" in caplog.text
    assert "in fail" in caplog.text
