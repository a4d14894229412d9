"""Subscriptions by content in total order, on `memory://`."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ensue
from ensue.checkers import check
from ensue.client.subscription import Subscription
from ensue.core import trace
from ensue.core.errors import BadInput, ConfigurationError, FilterError, UnsupportedOrder
from ensue.protocols.content.cells import ContentCounts

TOTAL = ensue.Total()
URL = "memory://?cells=symbol='ACME','BETA'"


async def read(events: Subscription, count: int) -> list[bytes]:
    async with asyncio.timeout(30):
        return [(await anext(events)).payload for _ in range(count)]


def test_filters_that_overlap_get_events_in_one_order(tmp_path: Path) -> None:
    folder = tmp_path / "trace"

    async def main() -> None:
        url = "memory://overlap?nodes=3&jitter_ms=3&cells=symbol/8;price<5"
        filters = ("symbol = 'ACME'", "price > 3", "symbol in ('ACME', 'BETA') and price < 8")
        async with (
            ensue.connect(url, trace=str(folder)) as bus,
            ensue.connect(url) as other,
            bus.subscribe(where=filters[0], order=TOTAL) as first,
            bus.subscribe(where=filters[1], order=TOTAL) as second,
            other.subscribe(where=filters[2], order=TOTAL) as third,
        ):

            async def publish(sender: ensue.Bus) -> None:
                for price in range(10):
                    for symbol in ("ACME", "BETA", "ZINC"):
                        event = {"symbol": symbol, "price": price}
                        await sender.publish(event, symbol.encode(), order=TOTAL)

            await asyncio.gather(publish(bus), publish(other))
            assert len(await read(first, 20)) == 20
            assert len(await read(second, 36)) == 36
            assert len(await read(third, 32)) == 32
            assert {each.waiting for each in (first, second, third)} == {0}

    asyncio.run(main())
    report = check(trace.read(folder), "total")
    assert report.verdict == "valid", report.sentences()
    assert any(row.verdict == "unmatched" for row in trace.read(folder))


def test_events_in_vain_are_counted_and_take_no_position() -> None:
    async def main() -> None:
        async with (
            ensue.connect(URL) as bus,
            bus.subscribe(where="symbol = 'ACME' and price > 2", order=TOTAL) as events,
        ):
            for price in range(5):
                for symbol in ("ACME", "BETA"):
                    sent = {"symbol": symbol, "price": price}
                    await bus.publish(sent, b"%d" % price, order=TOTAL)
            got = [await anext(events), await anext(events)]
            assert [event.position for event in got] == [1, 2]
            assert got[0].attributes == {"price": 3, "symbol": "ACME"}
            counts = events.counts
            # Those of BETA have a cell of their own: they never came.
            assert isinstance(counts, ContentCounts)
            assert (counts.received, counts.delivered, counts.in_vain) == (5, 2, 3)
            assert "where=\"symbol = 'ACME' and price > 2\", order=ensue.Total()" in repr(events)

    asyncio.run(main())


def test_slow_reader_of_one_cell_holds_no_publisher_of_another() -> None:
    async def main() -> None:
        async with (
            ensue.connect(URL) as bus,
            bus.subscribe(where="symbol = 'ACME'", order=TOTAL, pending_max=1) as slow,
            bus.subscribe(where="symbol = 'BETA'", order=TOTAL) as events,
        ):
            await bus.publish({"symbol": "ACME"}, order=TOTAL)
            assert slow.waiting == 1
            async with asyncio.timeout(30):
                await bus.publish({"symbol": "BETA"}, b"free", order=TOTAL)
            assert await read(events, 1) == [b"free"]

    asyncio.run(main())


def test_brokers_and_cells_are_apart() -> None:
    async def main() -> None:
        async with (
            ensue.connect(URL) as bus,
            bus.subscribe(where="symbol exists") as unordered,
            bus.subscribe(where="symbol exists", order=TOTAL) as ordered,
        ):
            await bus.advertise(where="symbol exists")
            await bus.publish({"symbol": "ACME"}, b"broker")
            await bus.publish({"symbol": "ACME"}, b"cell", order=TOTAL, receipt=False)
            await bus.flush()
            assert await read(unordered, 1) == [b"broker"]
            assert await read(ordered, 1) == [b"cell"]
            assert unordered.waiting == ordered.waiting == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "use", "error", "why"),
    [
        (
            "memory://",
            lambda bus: bus.subscribe(where="a = 1", order=TOTAL),
            ConfigurationError,
            r"memory:// has no cells .* with memory://\?cells=symbol/16",
        ),
        (
            "memory://",
            lambda bus: bus.publish({"a": 1}, order=TOTAL),
            ConfigurationError,
            "has no cells",
        ),
        (
            URL,
            lambda bus: bus.subscribe(where="a = 1", order=None),
            UnsupportedOrder,
            "events by content can't have no order: leave order=… out, or use total order",
        ),
        (
            URL,
            lambda bus: bus.subscribe(where="a = 1", order=ensue.Causal()),
            UnsupportedOrder,
            "this bus publishes in total order",
        ),
        (URL, lambda bus: bus.subscribe("t", where="a = 1", order=TOTAL), BadInput, "not both"),
        (
            URL,
            lambda bus: bus.subscribe(where="a >", order=TOTAL),
            FilterError,
            "expected a number",
        ),
        (
            URL,
            lambda bus: bus.subscribe(where="a = 1 and a = 2", order=TOTAL),
            BadInput,
            "where must match some event",
        ),
        (
            URL,
            lambda bus: bus.publish("t", b"", order=TOTAL),
            BadInput,
            "order is for events by content",
        ),
        (
            URL,
            lambda bus: bus.publish({"a": 1}, b"", key=b"k", order=TOTAL),
            BadInput,
            "has no key and no headers",
        ),
        (
            URL,
            lambda bus: bus.publish({"a": None}, order=TOTAL),
            BadInput,
            "must be text, a number",
        ),
        (
            URL,
            lambda bus: bus.publish("content:12345678:1", b""),
            BadInput,
            "topics that begin with 'content:' are for events by content",
        ),
        (URL, lambda bus: bus.subscribe("content:x"), BadInput, "are for events by content"),
        (
            URL,
            lambda bus: bus.subscribe(where="a = 1", order=TOTAL, durable=True, name="n"),
            ConfigurationError,
            "memory:// keeps no positions",
        ),
    ],
)
def test_wrong_use_is_refused_by_name(
    url: str, use: Callable[[ensue.Bus], Any], error: type[Exception], why: str
) -> None:
    async def main() -> None:
        async with ensue.connect(url) as bus:
            with pytest.raises(error, match=why):
                await use(bus)

    asyncio.run(main())


def test_order_is_that_of_the_bus() -> None:
    async def main() -> None:
        async with ensue.connect(URL, order=ensue.Total(causal=False)) as bus:
            why = "the order of their bus, ensue.Total\\(causal=False\\): use order=bus.order"
            with pytest.raises(UnsupportedOrder, match=why):
                bus.subscribe(where="symbol = 'ACME'", order=TOTAL)
            async with bus.subscribe(where="symbol = 'ACME'", order=bus.order) as events:
                await bus.publish({"symbol": "ACME"}, b"alike", order=bus.order)
                assert await read(events, 1) == [b"alike"]

    asyncio.run(main())


def test_topics_of_a_filter_do_not_change() -> None:
    async def main() -> None:
        async with (
            ensue.connect(URL) as bus,
            bus.subscribe(where="symbol = 'ACME'", order=TOTAL) as events,
        ):
            with pytest.raises(ensue.LocalProtocolError, match="by content has no topics"):
                await events.subscribe("t")

    asyncio.run(main())


def test_wrong_cells_of_a_hub_are_refused() -> None:
    async def main() -> None:
        with pytest.raises(BadInput, match="cells 'symbol': '' is no division of 'symbol'"):
            await ensue.connect("memory://?cells=symbol").__aenter__()

    asyncio.run(main())
