"""Content and transactions on `memory://`: calls, and their errors."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from examples import consolidation, dispatch

import ensue

URL = "memory://content?brokers=3"


def connected(name: str) -> ensue.Bus:
    return ensue.connect(URL, order=None, name=name)


async def payloads(events: ensue.Subscription, count: int) -> list[bytes]:
    return [(await asyncio.wait_for(anext(events), 30)).payload for _ in range(count)]


def test_events_reach_subscribers_of_their_content() -> None:
    async def main() -> None:
        async with connected("a") as a, connected("b") as b, connected("c") as c:
            await a.advertise(where="symbol = 'ACME'")
            async with (
                b.subscribe(where="symbol = 'ACME' and price > 10") as dear,
                c.subscribe(where="symbol starts with 'AC'") as every,
            ):
                cheap = await a.publish({"symbol": "ACME", "price": 5}, b"cheap")
                await a.publish({"symbol": "ACME", "price": 12.5, "urgent": True}, b"dear")
                assert cheap.publisher == "a"
                event = await asyncio.wait_for(anext(dear), 30)
                assert event.attributes == {"symbol": "ACME", "price": 12.5, "urgent": True}
                assert (event.payload, event.publisher) == (b"dear", "a")
                assert await payloads(every, 2) == [b"cheap", b"dear"]

    asyncio.run(main())


def test_errors_name_the_mistake() -> None:
    async def main() -> None:
        async with connected("a") as a:
            with pytest.raises(ensue.FilterError, match="found the end at character 8"):
                a.subscribe(where="price >")
            with pytest.raises(ensue.FilterError):
                await a.advertise(where="price > > 1")
            with pytest.raises(ensue.EventRefused, match="no advertisement of"):
                await a.publish({"price": 1})
            with pytest.raises(ensue.BadInput, match="not both"):
                a.subscribe("topic", where="x = 1")
            with pytest.raises(ensue.BadInput, match="can't have start: "):
                a.subscribe(where="x = 1", durable=True, start="earliest")
            with pytest.raises(ensue.UnsupportedOrder, match="can't have no order: "):
                a.subscribe(where="x = 1", order=None)
            with pytest.raises(ensue.BadInput, match="no key and no headers"):
                await a.publish({"price": 1}, key=b"1")
            with pytest.raises(ensue.BadInput, match="attribute 'price' must be a finite number"):
                await a.publish({"price": float("inf")})
            with pytest.raises(ensue.BadInput, match="an attribute's name must be text, got 1"):
                await a.publish({1: 2})  # type: ignore[dict-item]
            async with a.subscribe(where="x = 1") as events:
                for change in (events.subscribe, events.unsubscribe):
                    with pytest.raises(ensue.LocalProtocolError, match="has no topics, got"):
                        await change("topic")
            with pytest.raises(ensue.BadInput, match=r"attributes such as .* got 'topic'"):
                async with a.transaction() as tx:
                    await tx.publish("topic", b"x")  # type: ignore[arg-type]
            with pytest.raises(ensue.BadInput, match="isolation"):
                a.transaction(isolation="chaotic")
            for timeout in (0, 1e-10, 600.1, float("nan"), True):
                with pytest.raises(ensue.BadInput, match="timeout must be a number of seconds"):
                    a.transaction(timeout=timeout)
            with pytest.raises(ensue.LocalProtocolError, match="inside"):
                await a.transaction().publish({"x": 1})

    asyncio.run(main())


@pytest.mark.parametrize("isolation", ["serializable", "atomic"])
def test_transaction_is_all_or_nothing(isolation: str) -> None:
    async def main() -> None:
        async with connected("a") as a, connected("b") as b:
            await a.advertise(where="x exists")
            async with b.subscribe(where="x = 1") as events:

                async def fail() -> None:
                    async with a.transaction(isolation=isolation, timeout=60) as tx:
                        await tx.publish({"x": 1}, b"never")
                        raise ZeroDivisionError

                with pytest.raises(ZeroDivisionError):
                    await fail()
                async with a.transaction(isolation=isolation, timeout=60) as tx:
                    await tx.publish({"x": 1}, b"one")
                    await asyncio.sleep(0.01)
                    assert not events.waiting
                    await tx.publish({"x": 1}, b"two")
                assert await payloads(events, 2) == [b"one", b"two"]

    asyncio.run(main())


@pytest.mark.parametrize("isolation", ["serializable", "atomic"])
def test_transaction_with_a_refused_operation_is_not_committed(isolation: str) -> None:
    """However the program handles the error, a transaction is all or nothing."""

    async def main() -> None:
        async with connected("a") as a, connected("b") as b:
            await a.advertise(where="n > 0")
            async with b.subscribe(where="n exists") as events:

                async def continue_later() -> None:
                    async with a.transaction(isolation=isolation) as tx:
                        with pytest.raises(ensue.TransactionAborted):
                            await tx.publish({"n": -1}, b"not advertised")
                        await tx.publish({"n": 5}, b"of no use")

                with pytest.raises(ensue.TransactionAborted, match="no advertisement"):
                    await continue_later()
                await a.publish({"n": 6}, b"after it")
                assert await payloads(events, 1) == [b"after it"]

    asyncio.run(main())


def test_transaction_with_a_refused_operation_of_a_handler_is_not_committed() -> None:
    async def main() -> None:
        async with connected("a") as a, connected("b") as b:

            async def act(given: ensue.InvitedTransaction) -> None:
                with pytest.raises(ensue.TransactionAborted):
                    await given.publish({"n": 1})

            await b.on_invitation(act)
            with pytest.raises(ensue.TransactionAborted, match="no advertisement"):
                async with a.transaction() as tx:
                    await tx.invite("b")

    asyncio.run(main())


@pytest.mark.parametrize("isolation", ["serializable", "atomic"])
def test_transaction_is_not_committed_before_all_operations_are_awaited(isolation: str) -> None:
    """The agent has done half of its work when its inviter gives up waiting."""

    async def main() -> None:
        async with connected("a") as a, connected("b") as b:
            await a.advertise(where="n exists")
            await b.advertise(where="n exists")
            half, rest = asyncio.Event(), asyncio.Event()

            async def act(given: ensue.InvitedTransaction) -> None:
                await given.publish({"n": 1}, b"half of it")
                half.set()
                await rest.wait()

            await b.on_invitation(act)
            async with a.subscribe(where="n exists") as events:

                async def lose_patience() -> None:
                    async with a.transaction(isolation=isolation, timeout=60) as tx:
                        inviting = asyncio.ensure_future(tx.invite("b"))
                        await half.wait()
                        inviting.cancel()

                with pytest.raises(ensue.TransactionAborted, match="await all operations in it"):
                    await lose_patience()
                rest.set()
                await a.publish({"n": 2}, b"after it")
                assert await payloads(events, 1) == [b"after it"]

    asyncio.run(main())


def test_handler_that_does_not_await_its_operations_aborts() -> None:
    async def main() -> None:
        async with connected("a") as a, connected("b") as b:
            await b.advertise(where="n exists")
            begun: list[asyncio.Task[None]] = []

            async def act(given: ensue.InvitedTransaction) -> None:
                begun.append(asyncio.ensure_future(given.publish({"n": 1})))
                await asyncio.sleep(0)

            await b.on_invitation(act)
            with pytest.raises(ensue.TransactionAborted, match="await all operations in it"):
                async with a.transaction(timeout=60) as tx:
                    await tx.invite("b")
            await asyncio.gather(*begun, return_exceptions=True)

    asyncio.run(main())


def test_handler_must_be_a_coroutine_function() -> None:
    async def main() -> None:
        async with connected("a") as a, connected("b") as b:
            await b.on_invitation(lambda given: None)  # type: ignore[arg-type,return-value]
            with pytest.raises(ensue.TransactionAborted, match="must be an `async def` function"):
                async with a.transaction() as tx:
                    await tx.invite("b")

    asyncio.run(main())


@pytest.mark.parametrize("isolation", ["serializable", "planned"])
def test_reader_ends_when_a_transaction_withdraws_its_subscription(isolation: str) -> None:
    async def main() -> None:
        async with connected("a") as a:
            async with a.subscribe(where="n exists") as moved:
                reading = asyncio.ensure_future(anext(moved, None))
                async with a.transaction(isolation=isolation) as tx:
                    await tx.unsubscribe(moved)
                assert await asyncio.wait_for(reading, 30) is None
            made: list[ensue.Subscription] = []

            async def change_its_mind() -> None:
                async with a.transaction(isolation=isolation) as tx:
                    made.append(await tx.subscribe("n exists"))
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await change_its_mind()
            assert await asyncio.wait_for(anext(made[0], None), 30) is None

    asyncio.run(main())


def test_invited_bus_acts_and_invites_another() -> None:
    async def main() -> None:
        async with connected("a") as a, connected("b") as b, connected("c") as c:
            await a.advertise(where="x exists")
            opened: list[ensue.Subscription] = []

            async def pass_on(tx: ensue.InvitedTransaction) -> None:
                assert (tx.inviter, tx.payload) == ("a", b"please")
                await tx.invite("c", {"where": "x = 1"})

            async def subscribe(tx: ensue.InvitedTransaction) -> None:
                opened.append(await tx.subscribe(str(tx.attributes["where"])))

            b.on_invitation(pass_on)
            c.on_invitation(subscribe)
            async with a.transaction(timeout=60) as tx:
                await tx.invite("b", payload=b"please")
                await tx.publish({"x": 1}, b"for c")
            assert await payloads(opened[0], 1) == [b"for c"]

    asyncio.run(main())


def test_failed_or_missing_handler_aborts() -> None:
    async def main() -> None:
        async with connected("a") as a, connected("b") as b:
            await a.advertise(where="x exists")

            async def fail(tx: ensue.InvitedTransaction) -> None:
                await tx.subscribe("x = 1")
                raise ValueError("no room")

            b.on_invitation(fail)
            with pytest.raises(ensue.TransactionAborted, match="no room"):
                async with a.transaction(timeout=60) as tx:
                    await tx.invite("b")
            with pytest.raises(ensue.TransactionAborted, match="no client is called"):
                async with a.transaction(timeout=60) as tx:
                    await tx.invite("nobody")
            async with a.transaction(timeout=60) as tx:
                await tx.publish({"x": 1})

    asyncio.run(main())


def test_hanging_handler_affects_its_own_transaction_only() -> None:
    async def main() -> None:
        async with connected("a") as a, connected("b") as b:
            await a.advertise(where="x exists")

            async def hang(tx: ensue.InvitedTransaction) -> None:
                await asyncio.Event().wait()

            b.on_invitation(hang)
            async with b.subscribe(where="x = 1") as events:

                async def wait_in_vain() -> None:
                    async with a.transaction(timeout=0.5) as tx:
                        await tx.publish({"x": 1}, b"never")
                        await tx.invite("b")

                waited = (
                    "its timeout of 0.5 s passed while it waited for the handler of 'b', which it "
                    "invited: have it return sooner"
                )
                with pytest.raises(ensue.TransactionAborted, match=waited) as caught:
                    await wait_in_vain()
                assert (caught.value.reason, caught.value.retriable) == ("timeout", True)
                await a.publish({"x": 1}, b"regular")
                assert await payloads(events, 1) == [b"regular"]

    asyncio.run(main())


def test_subscription_ends_with_the_commit_or_continues_after_an_abort() -> None:
    async def main() -> None:
        async with connected("a") as a, connected("b") as b:
            await a.advertise(where="x exists")
            async with b.subscribe(where="x = 1") as events:

                async def fail() -> None:
                    async with b.transaction(timeout=60) as tx:
                        await tx.unsubscribe(events)
                        raise ZeroDivisionError

                with pytest.raises(ZeroDivisionError):
                    await fail()
                await a.publish({"x": 1}, b"still")
                assert await payloads(events, 1) == [b"still"]
                async with b.transaction(timeout=60) as tx:
                    await tx.unsubscribe(events)
                    again = await tx.subscribe("x = 1")
                await a.publish({"x": 1}, b"new")
                assert await payloads(again, 1) == [b"new"]
                assert not events.waiting

    asyncio.run(main())


def test_closed_bus_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with connected("a") as a:
            await a.advertise(where="x exists")
            async with connected("b") as b:
                events = await b.subscribe(where="x = 1").__aenter__()
                assert not events.waiting
            await a.publish({"x": 1}, b"to nobody")
            with pytest.raises(ensue.TransactionAborted, match="no client is called"):
                async with a.transaction(timeout=60) as tx:
                    await tx.invite("b")

    asyncio.run(main())


def test_broker_tree_has_brokers() -> None:
    with pytest.raises(ensue.BadInput, match="brokers must be between"):
        ensue.connect("memory://?brokers=0")


def test_examples_lose_and_duplicate_events_only_without_a_transaction() -> None:
    assert 0 in asyncio.run(dispatch.dispatch("unsubscribe, then subscribe"))
    assert 2 in asyncio.run(dispatch.dispatch("subscribe, then unsubscribe"))
    assert set(asyncio.run(dispatch.dispatch("in one transaction"))) == {1}
    assert 0 in asyncio.run(consolidation.consolidate(in_one_transaction=False))
    assert set(asyncio.run(consolidation.consolidate(in_one_transaction=True))) == {1}


async def forget(tx: Any) -> None:
    """Forget to await an operation, in one of the usual ways."""
    tx.publish({"n": 1}, b"forgotten")


async def begin_last(tx: Any) -> None:
    TASKS.append(asyncio.create_task(tx.publish({"n": 1}, b"begun last")))


async def forget_to_subscribe(tx: Any) -> None:
    tx.subscribe("n = 9")


TASKS: list[asyncio.Task[None]] = []
UNAWAITED = [(forget, "publish"), (begin_last, "publish"), (forget_to_subscribe, "subscribe")]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("act", "called"), UNAWAITED)
@pytest.mark.parametrize("isolation", ["serializable", "atomic", "planned"])
def test_forgotten_await_aborts_and_names_the_operation(
    isolation: str,
    act: Callable[[Any], Awaitable[None]],
    called: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An operation is begun by its call: half of a transaction must not be committed."""

    async def main() -> None:
        async with connected("a") as a, connected("b") as b:
            await a.advertise(where="n exists")
            async with b.subscribe(where="n exists") as events:

                async def leave() -> None:
                    async with a.transaction(isolation=isolation, timeout=60) as tx:
                        await tx.publish({"n": 1}, b"awaited")
                        await act(tx)

                said = rf"{called}\(…\) was not awaited to the end: await all operations in it"
                with pytest.raises(ensue.TransactionAborted, match=said):
                    await leave()
                await asyncio.gather(*TASKS, return_exceptions=True)
                await a.publish({"n": 2}, b"after it")
                assert await payloads(events, 1) == [b"after it"]

    TASKS.clear()
    asyncio.run(main())
    gc.collect()
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("act", "called"), UNAWAITED)
def test_forgotten_await_of_an_invited_handler_aborts(
    act: Callable[[Any], Awaitable[None]], called: str
) -> None:
    async def main() -> None:
        async with connected("a") as a, connected("b") as b:
            await b.advertise(where="n exists")
            await b.on_invitation(act)
            with pytest.raises(ensue.TransactionAborted, match=rf"{called}\(…\) was not awaited"):
                async with a.transaction(timeout=60) as tx:
                    await tx.invite("b")
            await asyncio.gather(*TASKS, return_exceptions=True)

    TASKS.clear()
    asyncio.run(main())


@pytest.mark.parametrize("isolation", ["serializable", "atomic", "planned"])
def test_operations_can_be_gathered_and_awaited_later(isolation: str) -> None:
    async def main() -> None:
        async with connected("a") as a:
            await a.advertise(where="n exists")
            async with a.subscribe(where="n exists") as events:
                async with a.transaction(isolation=isolation, timeout=60) as tx:
                    first = tx.publish({"n": 1}, b"1")
                    await asyncio.gather(first, tx.publish({"n": 2}, b"2"))
                    task = asyncio.create_task(tx.publish({"n": 3}, b"3"))
                    assert "publish" in repr(task)
                    await asyncio.wait_for(tx.publish({"n": 4}, b"4"), 30)
                    await task
                assert sorted(await payloads(events, 4)) == [b"1", b"2", b"3", b"4"]

    asyncio.run(main())
