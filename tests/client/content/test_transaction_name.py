"""`tx.name` and `TransactionAborted.transaction` are the name that brokers give, or empty."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.server.helpers import serving, within

import ensue
from ensue.core.errors import TransactionLimitReached
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.transactions.frames import BEGUN

KINDS = ["memory://", "ensue://"]


@asynccontextmanager
async def buses(kind: str, data: Path, *names: str) -> AsyncIterator[list[ensue.Bus]]:
    """Connect clients of one hub or server."""
    async with AsyncExitStack() as stack:
        url = "memory://names?brokers=3"
        if kind == "ensue://":
            url = (await stack.enter_async_context(serving(data, sync_s=0.001))).url
        yield [
            await stack.enter_async_context(ensue.connect(url, order=None, name=name))
            for name in names
        ]


@pytest.mark.parametrize("isolation", ["serializable", "atomic"])
@pytest.mark.parametrize("kind", KINDS)
def test_name_is_that_of_the_brokers(kind: str, isolation: str, tmp_path: Path) -> None:
    async def main() -> None:
        seen: list[str] = []

        async def act(tx: ensue.InvitedTransaction) -> None:
            seen.append(tx.name)

        async with buses(kind, tmp_path / "d", "a", "b") as (a, b):
            await within(a.advertise(where="x exists"))
            await within(b.on_invitation(act))
            tx = a.transaction(isolation=isolation)
            assert tx.name == ""
            async with tx:
                assert not tx.name.startswith(BEGUN)
                await within(tx.publish({"x": 1}))
                name = tx.name
                await within(tx.invite("b"))
            assert name
            assert seen == [name]
            assert tx.name == name

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_error_has_the_name(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with buses(kind, tmp_path / "d", "a") as (a,):
            with pytest.raises(ensue.TransactionAborted) as caught:
                async with a.transaction() as tx:
                    await within(tx.publish({"y": 1}))
            assert caught.value.transaction == tx.name
            assert not tx.name.startswith(BEGUN)
            assert tx.name

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_transaction_that_did_not_begin_has_no_name(kind: str, tmp_path: Path) -> None:
    async def begin(tx: ensue.Transaction, *, acts: bool) -> None:
        async with tx:
            if acts:
                await within(tx.publish({"x": 1}))

    async def main() -> None:
        async with buses(kind, tmp_path / "d", "a") as (a,):
            await within(a.advertise(where="x exists"))
            async with AsyncExitStack() as others:
                for _ in range(ContentConfig().transactions_max):
                    await others.enter_async_context(a.transaction(timeout=60))
                for acts in (True, False):
                    tx = a.transaction()
                    with pytest.raises(TransactionLimitReached) as caught:
                        await begin(tx, acts=acts)
                    assert (caught.value.transaction, tx.name) == ("", "")

    asyncio.run(main())
