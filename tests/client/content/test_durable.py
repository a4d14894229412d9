"""Durable subscriptions by content: resumed by name, acknowledged, and bounded in flight."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.client.content.test_plan import TRANSPORTS, three
from tests.server.helpers import read, within

import ensue
from ensue.checkers import Verdict, check
from ensue.core import trace as traces
from ensue.core.errors import (
    BadInput,
    ConfigurationError,
    LocalProtocolError,
    SubscriptionLost,
    SubscriptionRefused,
    TransactionAborted,
)

WHERE = "x exists"
NAMES = ["billing", "shipping", "audit", "search"]
"""Together they are kept at each of three brokers."""


def durable(bus: ensue.Bus, name: str = "billing", **options: Any) -> ensue.Subscription:
    return bus.subscribe(where=WHERE, name=name, durable=True, **options)


async def publish(bus: ensue.Bus, *payloads: bytes) -> None:
    for payload in payloads:
        await within(bus.publish({"x": 1}, payload))


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_another_bus_resumes_after_the_last_acknowledged_event(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, c):
            await within(a.advertise(where=WHERE))
            for name in NAMES:
                async with durable(b, name, acknowledge="manual") as events:
                    await publish(a, b"1", b"2", b"3")
                    for _ in range(2):
                        await within((await within(anext(events))).ack())
                    assert (await within(anext(events))).payload == b"3"
                await publish(a, b"4")
                async with durable(c, name) as events:
                    got = [await within(anext(events)) for _ in range(2)]
                    assert [event.payload for event in got] == [b"3", b"4"]
                    assert [event.position for event in got] == [3, 4]
                async with durable(a, name) as events:
                    await publish(a, b"5")
                    assert await read(events, 1) == [b"5"]
                    await within(events.forget())

    asyncio.run(main())


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_forgotten_subscription_begins_anew(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, c):
            await within(a.advertise(where=WHERE))
            async with durable(b) as events:
                await publish(a, b"1")
                await within(events.forget())
                assert events.closed
            await publish(a, b"lost")
            async with c.subscribe(where="x = 1", name="billing", durable=True) as events:
                await publish(a, b"2")
                assert (await within(anext(events))).position == 1

    asyncio.run(main())


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_later_reader_takes_over(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, c):
            await within(a.advertise(where=WHERE))
            async with durable(b, acknowledge="manual") as old:
                await publish(a, b"1")
                first = await within(anext(old))
                async with durable(c) as new:
                    assert await read(new, 1) == [b"1"]
                    with pytest.raises(SubscriptionLost, match="took over its name"):
                        await within(anext(old))
                    with pytest.raises(SubscriptionLost):
                        await within(first.ack())

    asyncio.run(main())


def test_no_more_than_pending_max_events_are_in_flight(tmp_path: Path) -> None:
    async def main() -> None:
        async with three("servers", tmp_path) as (a, b, _):
            await within(a.advertise(where=WHERE))
            async with durable(b, pending_max=3, acknowledge="manual") as events:
                await publish(a, *(b"%d" % number for number in range(10)))
                got = [await within(anext(events)) for _ in range(3)]
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await anext(events)
                await within(got[1].ack())  # The run from the start has not grown.
                assert events.waiting == 0
                await within(got[0].ack())
                assert await read(events, 2) == [b"3", b"4"]
                assert events.pending <= 3

    asyncio.run(main())


def test_events_of_transactions_wait_in_the_mailbox(tmp_path: Path) -> None:
    async def main() -> None:
        async with three("servers", tmp_path) as (a, b, _):
            await within(a.advertise(where=WHERE))
            async with durable(b):
                pass
            for isolation in ("serializable", "atomic", "planned"):
                async with a.transaction(isolation=isolation, timeout=60) as tx:
                    await tx.publish({"x": 1}, isolation.encode())
                    await tx.publish({"x": 2}, b"too")
            async with durable(b, pending_max=1) as events:
                got = await read(events, 6)
            assert got[::2] == [b"serializable", b"atomic", b"planned"]

    asyncio.run(main())


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_transactions_do_not_change_it(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, _), durable(a) as events:
            refused = pytest.raises(LocalProtocolError, match="transactions do not change it")
            with refused:
                a.content_name(events)
            with pytest.raises(LocalProtocolError, match="is closed or forgotten"):
                await events.unsubscribe("content")
            for isolation in ("serializable", "atomic", "planned"):
                with refused:
                    async with a.transaction(isolation=isolation, timeout=60) as tx:
                        await tx.unsubscribe(events)
            with pytest.raises(TransactionAborted, match="no client is called"):
                async with b.transaction(timeout=60) as tx:
                    await tx.invite("durable/billing")

    asyncio.run(main())


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"durable": True}, ConfigurationError, "needs a name"),
    ({"durable": True, "name": "a/b"}, BadInput, "must not contain '/'"),
    ({"durable": True, "name": "a", "start": "earliest"}, BadInput, "can't have start"),
    (
        {"durable": True, "name": "a", "order": ensue.Total()},
        ensue.UnsupportedOrder,
        "publishes with no order",
    ),
    ({"name": "a", "accept_loss": True}, ConfigurationError, "is for durable subscriptions"),
    ({"durable": True, "name": "a", "pending_max": 0}, BadInput, "pending_max must be"),
    (
        {"durable": True, "name": "a", "where": "x >"},
        ensue.FilterError,
        "the filter of the durable subscription 'a' can't be read: expected a number",
    ),
]


@pytest.mark.parametrize(("options", "error", "text"), WRONG)
def test_wrong_options_are_refused(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=None) as bus:
            with pytest.raises(error, match=text):
                bus.subscribe(**{"where": WHERE, **options})

    asyncio.run(main())


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_other_filter_is_refused(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with three(kind, tmp_path) as (a, b, _):
            async with durable(a):
                pass
            with pytest.raises(SubscriptionRefused, match="'x exists', got 'x = 1': enter it"):
                async with b.subscribe(where="x = 1", name="billing", durable=True):
                    pass

    asyncio.run(main())


def test_handlers_acknowledge(tmp_path: Path) -> None:
    async def main() -> None:
        async with three("servers", tmp_path) as (a, b, _):
            await within(a.advertise(where=WHERE))
            handled: list[bytes] = []
            async with durable(b) as events:

                async def handle(event: ensue.ReceivedEvent) -> None:
                    handled.append(event.payload)
                    if len(handled) == 3:
                        events.close()

                await publish(a, b"1", b"2", b"3")
                await within(events.run(handle))
            assert handled == [b"1", b"2", b"3"]
            async with durable(b) as events:
                await publish(a, b"4")
                assert await read(events, 1) == [b"4"]

    asyncio.run(main())


def test_trace_has_what_was_delivered_and_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        url, trace = "memory://traced", str(tmp_path / "trace")
        async with ensue.connect(url, order=None, name="a", trace=trace) as bus:
            await within(bus.advertise(where=WHERE))
            async with durable(bus, acknowledge="manual") as events:
                await publish(bus, b"1", b"2")
                await within((await within(anext(events))).ack())
                await within(anext(events))
            async with durable(bus) as events:
                assert await read(events, 1) == [b"2"]
                await within(events.forget())

    asyncio.run(main())
    rows = [
        row for row in traces.read(tmp_path / "trace") if row.subscription == "durable/billing.sub1"
    ]
    seen = [(row.action, row.position, row.verdict) for row in rows if row.node == "a"]
    assert seen == [
        ("subscribed", None, ""),
        ("delivered", 1, ""),
        ("acknowledged", 1, ""),
        ("delivered", 2, ""),
        ("unsubscribed", None, "closed"),
        ("subscribed", None, ""),
        ("delivered", 2, "redelivered"),
        ("unsubscribed", None, ""),
    ]
    report = check(traces.read(tmp_path / "trace"), order="transactions")
    assert report.verdict is Verdict.VALID, report.findings
