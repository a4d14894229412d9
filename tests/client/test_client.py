import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.transports.suite import take

import ensue
from ensue.checkers import Verdict, check
from ensue.client import backpressure
from ensue.core.trace import read
from ensue.protocols.interface import Outcome, Settle


def test_publishers_wait_for_a_reader_that_has_no_room() -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://") as bus,
            bus.subscribe("a", pending_max=10) as events,
            bus.subscribe("b") as others,
        ):

            async def publish() -> None:
                for number in range(100):
                    await bus.publish("a", str(number).encode())

            publisher = asyncio.create_task(publish())
            for _ in range(200):
                await asyncio.sleep(0)
            assert events.pending == 10
            assert not publisher.done()
            await bus.publish("b", b"other topics go on")
            await take(others, 1)
            got = [int(event.payload) for event in await take(events, 100)]
            assert got == list(range(100))
            await publisher

    asyncio.run(main())


def test_reader_that_leaves_unblocks_publishers() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            async with bus.subscribe("a", pending_max=1):
                await bus.publish("a", b"1")
                waiting = asyncio.create_task(bus.publish("a", b"2"))
                await asyncio.sleep(0)
                assert not waiting.done()
            async with asyncio.timeout(30):
                await waiting

    asyncio.run(main())


def test_long_wait_is_logged_with_the_name_of_the_slow_subscription(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backpressure, "PATIENCE_S", 0.01)

    async def main() -> None:
        logged = asyncio.Event()

        class Listener(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                logged.set()

        logging.getLogger("ensue").addHandler(Listener())
        async with (
            ensue.connect("memory://") as bus,
            bus.subscribe("a", pending_max=1, name="sleepy") as events,
        ):
            await bus.publish("a", b"1")
            waiting = asyncio.create_task(bus.publish("a", b"2"))
            async with asyncio.timeout(30):
                await logged.wait()
            await take(events, 2)
            await waiting

    with caplog.at_level(logging.WARNING, logger="ensue"):
        asyncio.run(main())
    assert "subscription=sleepy: it has no room" in caplog.text


def test_asking_for_the_next_event_acknowledges_the_last() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus, bus.subscribe("a") as events:
            await bus.publish("a", b"1")
            await bus.publish("a", b"2")
            (first,) = await take(events, 1)
            assert events.pending == 2
            await first.ack()
            assert events.pending == 1
            await first.ack()
            await take(events, 1)
            assert events.pending == 1

    asyncio.run(main())


def test_manual_acknowledgements_count_in_any_order() -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://") as bus,
            bus.subscribe("a", acknowledge="manual", pending_max=3) as events,
        ):
            for number in range(3):
                await bus.publish("a", str(number).encode())
            got = await take(events, 3)
            assert events.pending == 3
            await got[2].ack()
            await got[0].ack()
            assert events.pending == 1
            await got[1].ack()
            assert events.pending == 0

    asyncio.run(main())


def test_cancelling_a_publish_does_not_take_the_event_back() -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://") as bus,
            bus.subscribe("a") as events,
        ):
            task = asyncio.create_task(bus.publish("a", b"1"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await bus.publish("a", b"2")
            assert [event.payload for event in await take(events, 2)] == [b"1", b"2"]

    asyncio.run(main())


def test_event_that_lost_its_place_is_reported_to_its_publisher() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            waiting = asyncio.create_task(bus.publish("a", b"1"))
            real = bus._outcomes

            def void(outcomes: Sequence[Outcome]) -> None:
                settled = [each for each in outcomes if isinstance(each, Settle)]
                real([Settle(each.event, "void") for each in settled])

            assert bus._driver is not None
            bus._driver._on_outcomes = void
            with pytest.raises(ensue.EventVoided, match="publish it again") as caught:
                await waiting
            assert caught.value.event == f"{bus.name}/a/1"
            assert caught.value.retriable

    asyncio.run(main())


def test_run_writes_a_trace_that_the_checkers_accept(tmp_path: Path) -> None:
    trace = tmp_path / "trace"

    async def main() -> None:
        async with (
            ensue.connect("memory://traced?jitter_ms=2&seed=1", trace=str(trace)) as bus,
            ensue.connect("memory://traced?jitter_ms=2&seed=1") as other,
            bus.subscribe("a", "b") as one,
            other.subscribe("b", "a") as two,
        ):
            for number in range(40):
                await (bus, other)[number % 2].publish("ab"[number % 3 % 2], b"x")
            await take(one, 40)
            await take(two, 40)

    asyncio.run(main())
    rows = read(trace)
    report = check(rows, order="total", causal=True)
    assert report.verdict is Verdict.VALID, report.sentences()
    assert report.event_count == 40
    assert report.delivery_count == 80
    sent = [row for row in rows if row.action == "sent"]
    published = {row.event: row for row in rows if row.action == "node_published"}
    for row in sent:
        size, before = row.bytes, published[row.event].bytes
        assert size is not None
        assert before is not None
        assert size > before, "the stamp takes room on the wire"
        assert row.stamp


def test_trace_needs_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "something").write_text("")

    async def main() -> None:
        with pytest.raises(ensue.BadInput, match="is not empty"):
            await ensue.connect("memory://", trace=str(tmp_path)).__aenter__()

    asyncio.run(main())


def test_client_name_is_used_once_on_a_hub() -> None:
    async def main() -> None:
        async with ensue.connect("memory://n", name="alice"):
            async with ensue.connect("memory://n", name="bob"):
                pass
            for name in ("alice", "bob"):
                with pytest.raises(ensue.ConfigurationError, match=f"'{name}' is or was in use"):
                    await ensue.connect("memory://n", name=name).__aenter__()

    asyncio.run(main())


def test_subscription_without_order_gets_events_of_ordered_bus_as_they_arrive() -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://") as bus,
            bus.subscribe("a", order=None) as events,
        ):
            await bus.publish("a", b"1")
            (event,) = await take(events, 1)
            assert event.payload == b"1"

    asyncio.run(main())


def test_total_order_on_a_bus_without_order_is_refused() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=None) as bus:
            with pytest.raises(ensue.UnsupportedOrder, match="publishes with no order"):
                bus.subscribe("a", order=ensue.Total())

    asyncio.run(main())


def test_repr_of_bus_and_subscription_shows_their_state() -> None:
    async def main() -> None:
        bus = ensue.connect("memory://", name="desk")
        assert repr(bus) == "<ensue.Bus 'desk', order=ensue.Total(), not entered>"
        async with bus:
            assert repr(bus) == "<ensue.Bus 'desk', order=ensue.Total(), open>"
            events = bus.subscribe("a", "b", name="billing")
            about = "<ensue.Subscription 'billing' to 'a', 'b', order=ensue.Total(),"
            assert repr(events) == f"{about} not entered, 0 waiting>"
            async with events:
                await bus.publish("a", b"1")
                assert repr(events) == f"{about} open, 1 waiting>"
            assert repr(events).endswith(", closed, 1 waiting>")
            await bus.advertise(where="n exists")
            async with bus.subscribe(where="n > 1") as found:
                assert "where='n > 1', open, 0 waiting>" in repr(found)
        assert repr(bus) == "<ensue.Bus 'desk', order=ensue.Total(), closed>"
        assert (
            repr(ensue.connect("memory://", order=None)) == "<ensue.Bus, order=None, not entered>"
        )
        deadline = ensue.connect("memory://", order=ensue.Deadline(ms=5))
        assert "order=ensue.Deadline(ms=5)" in repr(deadline)

    asyncio.run(main())
