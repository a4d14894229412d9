"""Many events at once: `publish_many`, and `batches` of a subscription."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.client.test_deadline import be_busy_until_after, until_waiting
from tests.client.test_remote import restarted
from tests.server.helpers import serving, until, within

import ensue
from ensue.checkers import Verdict, check
from ensue.client import publications
from ensue.client.receipts import Receipts
from ensue.core.trace import read
from ensue.protocols.interface import Outcome, Settle
from ensue.runtime.driver import Driver
from ensue.transports import memory

SHORT_S = 0.05
PART = publications.BURST_MAX


def numbered(first: int, last: int, topic: str = "t") -> list[tuple[str, bytes]]:
    """Return pairs with the numbers from `first` on, before `last`."""
    return [(topic, b"%d" % number) for number in range(first, last)]


async def take(events: ensue.Subscription, count: int) -> list[int]:
    """Read so many numbers in batches."""
    got: list[int] = []
    async with asyncio.timeout(30):
        async for batch in events.batches():
            got += [int(event.payload) for event in batch]
            if len(got) >= count:
                return got
    return got


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def settling(bus: ensue.Bus, outcome: Callable[[Settle], Settle | None]) -> None:
    """Replace the receipts of a bus; None: there is none."""
    real = bus._outcomes

    def replace(outcomes: Sequence[Outcome]) -> None:
        settled = [outcome(each) for each in outcomes if isinstance(each, Settle)]
        real([each for each in settled if each is not None])

    assert bus._driver is not None
    bus._driver._on_outcomes = replace


# -- publish_many: what it takes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (("t", "text"), r"pairs\[2\]: payload must be bytes, got str: encode it"),
        (("", b""), r"pairs\[2\]: .*1 to 255 bytes"),
        ((["t"], b""), r"pairs\[2\]: a topic must be a str, got list"),
        (("a.>", b""), r"pairs\[2\]: .*wildcard"),
        (("t",), r"pairs\[2\]: an event must be a tuple \(topic, payload\), or .*got \('t',\)"),
        (("t", b"", b"", {}, 5), r"pairs\[2\]: an event must be a tuple"),
        ("tx", r"pairs\[2\]: an event must be a tuple .*got 'tx'"),
        (("t", b"", "key"), r"pairs\[2\]: key must be bytes or None, got str"),
        (("t", b"", None, {"a": 1}), r"pairs\[2\]: headers must be .*got int in 'a'"),
        (("t", b"x" * (16 * 1024 * 1024 + 1)), r"pairs\[2\]: payload must have at most 16777216"),
        (({"x": 1}, b""), r"pairs\[2\]: attributes need order=…, such as order=ensue.Total\(\)"),
    ],
)
def test_one_wrong_pair_publishes_nothing_and_is_named(wrong: Any, complaint: str) -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("t") as events:
            with pytest.raises(ensue.BadInput, match=complaint):
                await bus.publish_many([*numbered(0, 2), wrong, *numbered(3, 5)])
            assert bus.unsettled == 0
            assert (await bus.publish("t", b"7")).slot == 1
            assert await take(events, 1) == [7]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        ({"t": b"1"}, "got a mapping: give its items"),
        (7, "pairs must be an iterable of .topic, payload., got int"),
        ("t", r"pairs\[0\]: an event must be a tuple"),
    ],
)
def test_what_has_no_pairs_is_refused(pairs: Any, complaint: str) -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            with pytest.raises(ensue.BadInput, match=complaint):
                await bus.publish_many(pairs)

    asyncio.run(main())


def test_a_topic_that_the_order_refuses_publishes_nothing() -> None:
    async def main() -> None:
        merged = ensue.Merged(epsilon=0.01, delta=0.1)
        async with ensue.connect("memory://", order=merged) as bus:
            with pytest.raises(ensue.BadInput, match=r"pairs\[1\]: a topic in merged order must"):
                await bus.publish_many([("t", b"1"), ("@t", b"2")])
            assert bus.unsettled == 0
            assert (await bus.publish("t", b"3")).publisher_seq == 1

    asyncio.run(main())


def test_pairs_that_raise_publish_nothing() -> None:
    def pairs() -> Iterator[tuple[str, bytes]]:
        yield "t", b"1"
        raise ZeroDivisionError

    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            with pytest.raises(ZeroDivisionError):
                await bus.publish_many(pairs())
            assert (await bus.publish("t", b"2")).slot == 1

    asyncio.run(main())


def test_keys_and_headers_are_copied_and_arrive() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("t") as events:
            headers, payload = {"h": "v"}, bytearray(b"xyz")
            publishing = asyncio.create_task(
                bus.publish_many(
                    [("t", b"1", b"key"), ("t", b"2", None, headers), ("t", payload, None, None)]
                )
            )
            await publishing
            headers["h"], payload[0] = "changed", 0
            batch = await anext(events.batches())
            assert [(each.payload, each.key, dict(each.headers)) for each in batch] == [
                (b"1", b"key", {}),
                (b"2", None, {"h": "v"}),
                (b"xyz", None, {}),
            ]

    asyncio.run(main())


def test_events_by_content_are_published_in_order() -> None:
    async def main() -> None:
        total = ensue.Total()
        async with (
            ensue.connect("memory://?cells=symbol/16;price<10", order=total) as bus,
            bus.subscribe(where="price > 20", order=total) as events,
        ):
            pairs: list[tuple[dict[str, object], bytes]] = [
                ({"symbol": "A", "price": 12}, b"1"),
                ({"symbol": "B", "price": 30}, b"2"),
                ({"symbol": "C", "price": 40}, b"3"),
            ]
            await bus.publish_many(pairs, order=total)
            assert await take(events, 2) == [2, 3]
            with pytest.raises(ensue.BadInput, match=r"pairs\[0\]: order is for events by co"):
                await bus.publish_many([("t", b"")], order=total)
            with pytest.raises(ensue.BadInput, match=r"pairs\[0\]: an event by content has no"):
                await bus.publish_many([({"symbol": "A"}, b"", b"key")], order=total)

    asyncio.run(main())


def test_no_pairs_are_no_events_and_a_closed_bus_takes_none() -> None:
    async def main() -> None:
        bus = ensue.connect("memory://")
        with pytest.raises(ensue.LocalProtocolError, match="not open"):
            await bus.publish_many([])
        async with bus:
            assert await bus.publish_many([]) == []
            with pytest.raises(ensue.BadInput, match=r"timeout must be .* above 0"):
                await bus.publish_many([], timeout=0)

    asyncio.run(main())


# -- publish_many: parts, room and limits ----------------------------------------------------------


def test_a_part_is_one_command_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            begun = 0
            begin = Driver.begin

            def count(self: Driver[Any]) -> Any:
                nonlocal begun
                begun += self is bus._driver
                return begin(self)

            monkeypatch.setattr(Driver, "begin", count)
            await bus.publish_many(numbered(0, 3 * PART))
            assert begun == 3

    asyncio.run(main())


def test_other_tasks_get_their_turn_between_parts() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("t", "other") as events:
            many = asyncio.create_task(bus.publish_many(numbered(0, 5 * PART), receipt=False))
            other = asyncio.create_task(bus.publish("other", b"0"))
            await asyncio.gather(many, other)
            topics = [(await anext(events)).topic for _ in range(5 * PART + 1)]
            assert topics.index("other") == PART
            other = asyncio.create_task(bus.publish("other", b"0"))
            for _ in range(PART):  # Small calls add up.
                await bus.publish_many(numbered(0, 1), receipt=False)
            assert other.done()

    asyncio.run(main())


def test_it_waits_for_a_reader_without_room_and_keeps_the_sequence() -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://") as bus,
            bus.subscribe("t", pending_max=10) as events,
        ):
            publishing = asyncio.create_task(bus.publish_many(numbered(0, 1000)))
            await until(lambda: events.pending >= 10)
            await turns(100)
            assert events.pending <= PART
            assert not publishing.done()
            assert await take(events, 1000) == list(range(1000))
            assert len(await publishing) == 1000

    asyncio.run(main())


def test_a_subscription_gets_a_whole_part_beyond_its_room() -> None:
    """As documented: what a part delivers comes behind it."""

    async def main() -> None:
        async with (
            ensue.connect("memory://") as bus,
            bus.subscribe("t", pending_max=4) as events,
        ):
            publishing = asyncio.create_task(bus.publish_many(numbered(0, 1000)))
            await until(lambda: events.pending >= 4)
            await turns(100)
            assert events.pending == PART
            assert await take(events, 1000) == list(range(1000))
            await publishing

    asyncio.run(main())


def test_a_part_ends_before_an_event_to_a_full_subscription() -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://") as bus,
            bus.subscribe("full", pending_max=1) as full,
            bus.subscribe("free", "full") as both,
        ):
            await bus.publish("full", b"0")
            pairs = [*numbered(1, 3, "free"), *numbered(3, 4, "full"), *numbered(4, 6, "free")]
            publishing = asyncio.create_task(bus.publish_many(pairs))
            assert await take(both, 3) == [0, 1, 2]
            await turns(100)
            assert both.waiting == 0
            assert await take(full, 2) == [0, 3]
            assert await take(both, 3) == [3, 4, 5]
            await publishing

    asyncio.run(main())


def test_no_more_events_lack_a_receipt_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publications, "UNSETTLED_MAX", 10)
    most = 0
    expect_with = Receipts.expect_with

    def watch(self: Receipts, *args: Any, **options: Any) -> None:
        nonlocal most
        expect_with(self, *args, **options)
        most = max(most, len(self.open))

    monkeypatch.setattr(Receipts, "expect_with", watch)

    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("t") as events:
            both = [bus.publish_many(numbered(0, 300)) for _ in range(2)]
            await within(asyncio.gather(*both), 30)
            assert sorted(await take(events, 600)) == sorted([*range(300)] * 2)
            assert most == 10

    asyncio.run(main())


# -- publish_many: what it raises ------------------------------------------------------------------


def test_without_room_nothing_is_published_at_the_timeout() -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://") as bus,
            bus.subscribe("t", pending_max=1) as events,
        ):
            await bus.publish("t", b"0")
            with pytest.raises(ensue.PublishTimeout, match="nothing was published"):
                await within(bus.publish_many(numbered(1, 5), timeout=SHORT_S), 30)
            assert await take(events, 1) == [0]
            last = asyncio.create_task(bus.publish("t", b"9"))
            assert await take(events, 1) == [9]
            await last

    asyncio.run(main())


@pytest.mark.parametrize("receipt", [True, False])
def test_room_for_a_part_is_told_at_the_timeout(receipt: bool) -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://") as bus,
            bus.subscribe("t", pending_max=10) as events,
        ):
            many = bus.publish_many(numbered(0, 1000), receipt=receipt, timeout=SHORT_S)
            with pytest.raises(ensue.PublishedInPart) as caught:
                await within(many, 30)
            assert 0 < caught.value.published <= 2 * PART
            assert caught.value.failures == {}
            assert isinstance(caught.value.__cause__, ensue.PublishTimeout)
            published = caught.value.published
            assert f"only the first {published} of 1,000 events were" in str(caught.value)
            rest = asyncio.create_task(bus.publish_many(numbered(published, published + 5)))
            assert await take(events, published + 5) == [*range(published + 5)]
            await rest

    asyncio.run(main())


def test_events_without_a_receipt_are_named_at_the_timeout() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", name="p", close_timeout=SHORT_S) as bus:
            settling(bus, lambda each: each if each.event.publisher_seq % 2 else None)
            with pytest.raises(ensue.EventsInDoubt) as caught:
                await within(bus.publish_many(numbered(1, 7), timeout=SHORT_S), 30)
            assert caught.value.count == 3
            assert [each.rpartition("/")[2] for each in caught.value.events] == ["2", "4", "6"]
            assert caught.value.__cause__ is None
            assert "publish_many timed out before all receipts arrived; 3 ev" in str(caught.value)
            settling(bus, lambda each: each)
            with pytest.raises(ensue.EventsInDoubt):
                await bus.close()

    asyncio.run(main())


def test_events_that_fail_are_told_by_index_and_the_others_have_receipts() -> None:
    def void(each: Settle) -> Settle:
        number = int(each.event.payload)
        verdict, reason = {3: ("void", ""), 5: ("void", "may not publish")}.get(number, ("", ""))
        return Settle(each.event, verdict, reason)

    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            settling(bus, void)
            with pytest.raises(ensue.PublishedInPart) as caught:
                await bus.publish_many(numbered(0, 8))
            failures = caught.value.failures
            assert {index: type(error) for index, error in failures.items()} == {
                3: ensue.EventVoided,
                5: ensue.EventRefused,
            }
            assert caught.value.published == 8
            assert str(caught.value).startswith("2 of 8 events failed, first pairs[3]: ")
            assert bus.unsettled == 0
            assert len(await bus.publish_many(numbered(6, 8))) == 2

    asyncio.run(main())


def test_events_come_back_in_their_sequence_whatever_that_of_their_receipts() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            real, held = bus._outcomes, list[Settle]()

            def reverse(outcomes: Sequence[Outcome]) -> None:
                held.extend(each for each in outcomes if isinstance(each, Settle))
                if len(held) == 5:
                    real(held[::-1])

            assert bus._driver is not None
            bus._driver._on_outcomes = reverse
            events = await within(bus.publish_many(numbered(0, 5)), 30)
            assert [int(event.payload) for event in events] == [0, 1, 2, 3, 4]
            assert [event.slot for event in events] == [1, 2, 3, 4, 5]

    asyncio.run(main())


def test_failures_are_the_cause_of_events_in_doubt() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", close_timeout=SHORT_S) as bus:
            settling(
                bus, lambda each: Settle(each.event, "void") if int(each.event.payload) else None
            )
            with pytest.raises(ensue.EventsInDoubt) as caught:
                await within(bus.publish_many(numbered(0, 2), timeout=SHORT_S), 30)
            assert caught.value.count == 1
            assert isinstance(caught.value.__cause__, ensue.PublishedInPart)
            assert list(caught.value.__cause__.failures) == [1]
            with pytest.raises(ensue.EventsInDoubt):
                await bus.close()

    asyncio.run(main())


def test_failures_without_wanted_receipts_are_raised_by_flush() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            settling(bus, lambda each: Settle(each.event, "void"))
            await bus.publish_many(numbered(0, 3), receipt=False)
            with pytest.raises(ensue.EventVoided):
                await bus.flush()

    asyncio.run(main())


def test_closing_the_bus_ends_a_call_that_waits_for_room() -> None:
    async def main() -> None:
        bus = await ensue.connect("memory://").__aenter__()
        events = await bus.subscribe("t", pending_max=10).__aenter__()
        publishing = asyncio.create_task(bus.publish_many(numbered(0, 1000)))
        await until(lambda: events.pending >= 10)
        await turns(20)
        await bus.close()
        with pytest.raises(ensue.PublishedInPart, match="the bus was closed") as caught:
            await within(publishing, 30)
        assert await take(events, 1) == list(range(caught.value.published))

    asyncio.run(main())


def test_without_a_server_events_are_in_doubt(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server:
            bus = await ensue.connect(server.url, name="p", close_timeout=SHORT_S).__aenter__()
            await bus.publish("t", b"first", timeout=30)
            await server.stop()
            with pytest.raises(ensue.EventsInDoubt, match="publish_many timed out") as caught:
                await within(bus.publish_many(numbered(0, 300), timeout=SHORT_S), 30)
            assert caught.value.count == 300
            waiting = asyncio.create_task(bus.publish_many(numbered(0, 7)))
            await until(lambda: bus.unsettled == 307)
            with pytest.raises(ensue.EventsInDoubt, match="the bus was closed"):
                await within(bus.close(), 30)
            with pytest.raises(ensue.EventsInDoubt, match="the bus was closed be") as caught:
                await within(waiting, 30)
            assert caught.value.count == 7

    asyncio.run(main())


def test_a_server_that_comes_back_gets_the_rest(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path) as server,
            ensue.connect(server.url) as bus,
            bus.subscribe("t") as events,
        ):
            publishing = asyncio.create_task(bus.publish_many(numbered(0, 1000)))
            await until(lambda: bus.unsettled > 0)
            again = await restarted(server)
            try:
                assert await take(events, 1000) == list(range(1000))
                assert [event.slot for event in await publishing] == list(range(1, 1001))
            finally:
                await bus.close()
                await again.stop()

    asyncio.run(main())


@pytest.mark.parametrize("wait", ["parts", "room", "receipts"])
def test_a_call_cancelled_anywhere_has_published_a_first_part(
    wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wait == "receipts":
        monkeypatch.setattr(memory, "BURST_MAX", 1)  # One frame a turn of the event loop.

    async def play(cancel_after: int) -> bool:
        async with (
            ensue.connect("memory://?nodes=3") as bus,
            bus.subscribe("t", pending_max=100 if wait == "room" else 10_000) as events,
        ):
            count = PART // 2 if wait == "receipts" else 3 * PART
            publishing = asyncio.create_task(bus.publish_many(numbered(0, count)))
            await turns(cancel_after)
            in_time = publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
            assert publishing.cancelled() == in_time
            last = asyncio.create_task(bus.publish("t", b"%d" % count))
            got: list[int] = []
            while count not in got:
                got += await take(events, 1)
            assert got == [*range(len(got) - 1), count]
            await last
            await within(bus.flush(), 30)
            return in_time

    after = 0
    while asyncio.run(play(after)):
        after += 1
        if wait == "room" and after == 30:
            return  # Nothing makes room.
    assert after > 1


# -- batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "complaint"),
    [
        (0, "max must be at least 1, got 0"),
        (1.5, "max must be a whole number, got 1.5"),
        (True, "max must be a whole number, got True"),
    ],
)
def test_invalid_batches_are_refused(size: Any, complaint: str) -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("t") as events:
            with pytest.raises(ensue.BadInput, match=complaint):
                events.batches(max=size)

    asyncio.run(main())


def test_batches_of_a_subscription_that_is_not_open_are_refused() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            with pytest.raises(ensue.LocalProtocolError, match="is not open"):
                await anext(bus.subscribe("t").batches())

    asyncio.run(main())


def test_a_batch_has_what_is_there_up_to_its_limit() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("t") as events:
            batches = events.batches(max=4)
            waiting = asyncio.ensure_future(anext(batches))
            await bus.publish("t", b"0")
            assert [each.position for each in await waiting] == [1]
            await bus.publish_many(numbered(1, 10))
            await until(lambda: events.waiting == 9)
            assert [len(await anext(batches)) for _ in range(3)] == [4, 4, 1]

    asyncio.run(main())


def test_asking_for_more_acknowledges_the_whole_batch() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("t") as events:
            await bus.publish_many(numbered(0, 10))
            await until(lambda: events.waiting == 10)
            batches = events.batches(max=3)
            await anext(batches)
            assert (events.waiting, events.pending) == (7, 10)
            await anext(batches)
            assert (events.waiting, events.pending) == (4, 7)
            assert (await anext(events)).position == 7  # In turns with single events.
            assert (events.waiting, events.pending) == (3, 4)
            assert [each.position for each in await anext(batches)] == [8, 9, 10]
            assert (events.waiting, events.pending) == (0, 3)
            ended = asyncio.ensure_future(anext(events))
            await turns(1)
            assert events.pending == 0
            ended.cancel()

    asyncio.run(main())


def test_a_batch_makes_room_when_the_next_one_is_asked_for() -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://") as bus,
            bus.subscribe("t", pending_max=10) as events,
        ):
            await bus.publish_many(numbered(0, 10))
            await until(lambda: events.waiting == 10)
            blocked = asyncio.create_task(bus.publish("t", b"10"))
            await anext(events.batches())
            await turns(50)
            assert not blocked.done()
            assert await take(events, 1) == [10]
            await within(blocked, 30)

    asyncio.run(main())


def test_manual_acknowledgements_count_event_by_event(tmp_path: Path) -> None:
    async def enter(url: str, acknowledged: Sequence[int]) -> list[int]:
        async with (
            ensue.connect(url) as bus,
            bus.subscribe("t", name="s", durable=True, acknowledge="manual") as events,
        ):
            if not acknowledged:
                await bus.publish_many(numbered(0, 6))
            await until(lambda: events.waiting == 6 - sum(acknowledged))
            batch = await anext(events.batches())
            assert events.pending == len(batch)
            for index in (1, 0, 3):
                await batch[index].ack()
            return [int(each.payload) for each in batch]

    async def main() -> None:
        async with serving(tmp_path) as server:
            assert await enter(server.url, ()) == [0, 1, 2, 3, 4, 5]
            assert await enter(server.url, (2,)) == [2, 3, 4, 5]

    asyncio.run(main())


@pytest.mark.parametrize("ended_by", ["exception", "asking", "leaving"])
def test_a_batch_is_delivered_again_unless_it_was_handled(tmp_path: Path, ended_by: str) -> None:
    async def enter(url: str) -> list[int]:
        async with (
            ensue.connect(url) as bus,
            bus.subscribe("t", name="s", durable=True) as events,
        ):
            if not events.pending:
                await bus.publish_many(numbered(0, 6))
            await until(lambda: events.waiting == 6)
            batch = await anext(events.batches(max=4))
            if ended_by == "exception":
                raise ZeroDivisionError
            if ended_by == "asking":
                batch = await anext(events.batches(max=1))
                raise ZeroDivisionError
        return [int(each.payload) for each in batch]

    async def main() -> None:
        async with serving(tmp_path) as server:
            if ended_by == "leaving":
                await enter(server.url)
            else:
                with pytest.raises(ZeroDivisionError):
                    await enter(server.url)
            async with (
                ensue.connect(server.url) as bus,
                bus.subscribe("t", name="s", durable=True) as events,
            ):
                rest = 0 if ended_by == "exception" else 4
                assert await take(events, 6 - rest) == list(range(rest, 6))

    asyncio.run(main())


def test_a_cancelled_task_has_taken_no_batch() -> None:
    async def play(cancel_after: int) -> bool:
        async with ensue.connect("memory://") as bus, bus.subscribe("t") as events:
            reading = asyncio.ensure_future(anext(events.batches(max=5)))
            publishing = asyncio.create_task(bus.publish_many(numbered(0, 20)))
            await turns(cancel_after)
            in_time = reading.cancel()
            (found,) = await asyncio.gather(reading, return_exceptions=True)
            got = [] if isinstance(found, BaseException) else [int(each.payload) for each in found]
            assert reading.cancelled() == in_time
            await publishing
            assert got + await take(events, 20 - len(got)) == list(range(20))
            return in_time

    after = 0
    while asyncio.run(play(after)):
        after += 1
    assert after > 1


def test_batches_end_with_the_subscription() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("t") as events:
            await bus.publish_many(numbered(0, 5))
            await until(lambda: events.waiting == 5)
            events.close()
            got = [len(batch) async for batch in events.batches(max=3)]
            assert got == [3, 2]

    asyncio.run(main())


def test_one_task_reads_at_a_time() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("t") as events:
            first = asyncio.ensure_future(anext(events.batches()))
            await turns(1)
            for second in (anext(events.batches()), anext(events)):
                with pytest.raises(ensue.LocalProtocolError, match="another task is already read"):
                    await second
            await bus.publish("t", b"1")
            assert len(await first) == 1

    asyncio.run(main())


@pytest.mark.parametrize("on_late", ["drop", "tag"])
def test_deadlines_are_checked_when_a_batch_is_handed_over(on_late: str) -> None:
    order = ensue.Deadline(ms=60_000, on_late=on_late)

    async def main() -> None:
        async with (
            ensue.connect("memory://late-batch", order=order) as shop,
            ensue.connect("memory://late-batch", order=order) as desk,
            desk.subscribe("t") as events,
        ):
            sent = await shop.publish_many(numbered(0, 3))
            await until_waiting(events, 3)
            be_busy_until_after(desk, sent[-1])
            batch = asyncio.ensure_future(anext(events.batches()))
            await turns(10)
            if on_late == "tag":
                assert [each.verdict for each in await batch] == ["late"] * 3
            else:
                assert not batch.done()
                assert events.waiting == 0
                batch.cancel()

    asyncio.run(main())


def test_a_recorded_run_of_batches_is_valid(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://?nodes=3&jitter_ms=2", trace=str(tmp_path)) as bus,
            bus.subscribe("a", "b") as first,
            bus.subscribe("b", "a") as second,
        ):
            await asyncio.gather(
                *(bus.publish_many([*numbered(0, 9, "a"), *numbered(9, 99, "b")]) for _ in "ab")
            )
            await take(first, 198)
            await take(second, 150)

    asyncio.run(main())
    rows = read(tmp_path)
    report = check(rows, "total")
    assert report.verdict is Verdict.VALID, report.sentences()
    delivered = [row for row in rows if row.action == "delivered"]
    unread = [row for row in rows if row.verdict == "unread"]
    assert len(delivered) + len(unread) == 2 * 198
    assert sum(row.action == "published" for row in rows) == 198
