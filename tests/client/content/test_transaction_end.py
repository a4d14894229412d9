"""Transactions that end during operations leave nothing behind and block no client."""

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest
from tests.server.helpers import until, within

import ensue
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.interface import Outcome
from ensue.protocols.transactions.client import TransactionClient
from ensue.runtime import content_brokers

LONG_S = 600


def connected(name: str) -> ensue.Bus:
    return ensue.connect("memory://ending?brokers=3", order=None, name=name)


def subscriptions() -> list[str]:
    """Return the subscriptions at all brokers."""
    drivers = [driver for each in content_brokers._trees.values() for driver in each._drivers]
    return [name for each in drivers for name in each.node.broker.tables.subscriptions]


@pytest.mark.parametrize("turns", range(10))
def test_cancelled_begin_does_not_block_other_transactions(turns: int) -> None:
    async def main() -> None:
        async with connected("a") as a, connected("b") as b:
            await within(a.on_invitation(lambda _tx: asyncio.sleep(0)))
            await within(b.advertise(where="x exists"))

            async def begin() -> None:
                async with a.transaction(timeout=LONG_S):
                    await asyncio.sleep(LONG_S)

            async def commit() -> None:
                async with b.transaction(timeout=LONG_S) as tx:
                    await tx.publish({"x": 1})

            beginning = asyncio.create_task(begin())
            for _ in range(turns):
                await asyncio.sleep(0)
            beginning.cancel()
            await within(commit())

    asyncio.run(main())


@pytest.mark.parametrize("isolation", ["serializable", "atomic"])
def test_subscription_closed_in_its_transaction_is_removed_from_brokers(
    isolation: str,
) -> None:
    async def main() -> None:
        async with connected("a") as a, connected("b") as b:
            await within(b.advertise(where="x exists"))
            async with a.transaction(isolation=isolation, timeout=60) as tx:
                (await tx.subscribe("x = 1")).close()
            await until(lambda: not subscriptions(), "nothing is kept")

    asyncio.run(main())


def test_subscription_ends_if_its_transaction_aborts_as_it_is_answered() -> None:
    async def main() -> None:
        async with connected("a") as a:
            await within(a.advertise(where="x exists"))
            tx = a.transaction(timeout=60)
            await within(tx.__aenter__())
            client = a._content.session
            assert client._driver is not None
            held: list[Outcome] = []

            def hold(outcomes: Sequence[Outcome]) -> None:
                held.extend(outcomes)

            client._driver._on_outcomes = hold
            subscribing = asyncio.create_task(tx.subscribe("x = 1"))
            await until(lambda: held, "the answer")

            def abort(node: TransactionClient, now_ns: int) -> int:
                return node.end(tx.name, commit=False, now_ns=now_ns)

            client.ask(abort)
            await until(lambda: len(held) > 2, "the end")
            client._driver._on_outcomes = client._outcomes
            client._outcomes(held)  # As if they arrived together.
            with pytest.raises(ensue.TransactionAborted, match="the transaction is over"):
                await within(subscribing)
            with pytest.raises(ensue.TransactionAborted, match="the transaction is over"):
                await within(tx.subscribe("x = 2"))
            with pytest.raises(ensue.TransactionAborted, match="the transaction is over"):
                await within(tx.advertise("x = 2"))
            assert not client._concluded, "ended transactions are forgotten"

    asyncio.run(main())


def test_cancelled_handler_aborts_at_once() -> None:
    async def main() -> None:
        async with connected("a") as a, connected("b") as b:

            async def act(_tx: ensue.InvitedTransaction) -> None:
                other = asyncio.create_task(asyncio.sleep(LONG_S))
                other.cancel()
                await other

            await within(b.on_invitation(act))

            async def invite() -> None:
                async with a.transaction(timeout=LONG_S) as tx:
                    await tx.invite("b")

            with pytest.raises(
                ensue.TransactionAborted, match="handler of 'b' failed: CancelledError"
            ):
                await within(invite())

    asyncio.run(main())


@pytest.mark.parametrize("isolation", ["serializable", "planned"])
def test_exception_of_a_block_is_raised_even_if_the_bus_is_closed(isolation: str) -> None:
    async def main() -> None:
        async with connected("a") as a:

            async def fail() -> None:
                async with a.transaction(isolation=isolation, timeout=60):
                    await a.close()
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await within(fail())

    asyncio.run(main())


def test_failed_coordinator_does_not_block_other_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_lease = partial(ContentConfig, lease_ns=10**15)
    monkeypatch.setattr(content_brokers, "ContentConfig", without_lease)

    async def main() -> None:
        async with connected("b") as b:
            await within(b.advertise(where="x exists"))
            failing = await connected("a").__aenter__()
            await within(failing.transaction(timeout=LONG_S).__aenter__())
            driver = failing._content.session._driver
            assert driver is not None
            driver.fail(ZeroDivisionError())

            async def commit() -> None:
                async with b.transaction(timeout=LONG_S) as tx:
                    await tx.publish({"x": 1})

            await within(commit())
            await within(failing.__aexit__(None, None, None))

    asyncio.run(main())


def test_limits_of_brokers_are_named_with_their_value(monkeypatch: pytest.MonkeyPatch) -> None:
    few = partial(ContentConfig, advertisements_max=1, subscriptions_max=1, transactions_max=1)
    monkeypatch.setattr(content_brokers, "ContentConfig", few)

    async def main() -> None:
        async with connected("a") as a:
            await within(a.advertise(where="x exists"))
            with pytest.raises(ensue.LimitReached) as advertised:
                await within(a.advertise(where="y exists"))
            async with a.subscribe(where="x exists"), a.transaction(timeout=LONG_S):
                with pytest.raises(ensue.SubscriptionRefused) as subscribed:
                    await within(a.subscribe(where="x = 1").__aenter__())
                with pytest.raises(ensue.TransactionAborted) as begun:
                    async with a.transaction(timeout=LONG_S) as tx:
                        await within(tx.publish({"x": 1}))
            for caught, limit in (
                (advertised, "advertisements_max"),
                (subscribed, "subscriptions_max"),
                (begun, "transactions_max"),
            ):
                error = caught.value
                assert isinstance(error, ensue.LimitReached)
                assert (error.limit, error.value) == (limit, 1)

    asyncio.run(main())
