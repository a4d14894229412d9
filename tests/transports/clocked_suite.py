"""Merged order and no order on every transport: publishers stamp, subscribers sort."""

import asyncio
import logging
from abc import ABC, abstractmethod
from pathlib import Path

import pytest
from tests.brokers.deadlines import until
from tests.transports.suite import take

import ensue
from ensue.checkers import Verdict, check
from ensue.core import platform, trace
from ensue.core.clock import SystemClock
from ensue.protocols.merged.counts import MergedCounts

MERGED = ensue.Merged(epsilon=0.002, delta=1.0)
"""Longer than any delivery on a busy machine; each test waits for it once or twice."""


async def _told(events: ensue.Subscription, verdict: str, count: int) -> list[str]:
    """Wait until `count` events have a verdict; return the verdicts of delivered events."""
    counts = events.counts
    assert isinstance(counts, MergedCounts)
    await until(lambda: getattr(counts, verdict) == count, f"{count} events are {verdict}")
    assert counts.broken >= 1
    assert counts.delivered == 0
    return [(await anext(events)).verdict for _ in range(events.waiting)]


def _check_trace(directory: Path, verdict: str, action: str, count: int) -> None:
    actions = [action] if action == "discarded" else ["node_delivered", "delivered"]
    rows = [row for row in trace.read(directory) if row.verdict]
    assert sorted((row.action, row.verdict) for row in rows) == sorted(
        [(each, verdict) for each in actions] * count
    )


class ClockedSuite(ABC):
    """The behavior of merged order and no order on every transport."""

    @abstractmethod
    def url(self) -> str:
        """Return the URL of a bus that no other test uses."""

    def test_merged_order_is_one_for_all_across_topics_and_publishers(self, tmp_path: Path) -> None:
        traces = [str(tmp_path / "one"), str(tmp_path / "other")]

        async def main() -> None:
            url = self.url()
            if url.startswith("memory:"):
                del traces[1:]  # The first bus to connect writes the trace of all.
            async with (
                ensue.connect(url, order=MERGED, trace=traces[0]) as one,
                ensue.connect(url, order=MERGED, trace=(*traces, None)[1]) as other,
                one.subscribe("m-orders", "m-payments", name="a") as first,
                other.subscribe("m-payments", "m-orders", name="b") as second,
            ):
                for number in range(20):
                    await one.publish("m-orders", b"%d" % number)
                    await other.publish("m-payments", b"%d" % number, receipt=False)
                await other.flush()
                seen = await asyncio.gather(take(first, 40), take(second, 40))
                assert [event.id for event in seen[0]] == [event.id for event in seen[1]]
                assert {event.topic for event in seen[0]} == {"m-orders", "m-payments"}
                for events in (first, second):
                    assert events.counts is not None
                    assert (events.counts.delivered, events.counts.late) == (40, 0)

        asyncio.run(main())
        rows = trace.read(tmp_path)
        assert {row.order for row in rows} == {"merged"}
        report = check(rows, "merged")
        assert report.verdict is Verdict.VALID, report.sentences()

    def test_merged_order_puts_answers_after_questions_that_were_seen_early(self) -> None:
        async def main() -> None:
            url = self.url()
            async with (
                ensue.connect(url, order=MERGED) as asking,
                ensue.connect(url, order=MERGED) as answering,
                asking.subscribe("m-questions", "m-answers") as events,
                answering.subscribe("m-questions", order=None) as early,
            ):
                for number in range(5):
                    await asking.publish("m-questions", b"%d" % number)
                    (seen,) = await take(early, 1)
                    assert (seen.verdict, seen.payload) == ("early", b"%d" % number)
                    await answering.publish("m-answers", b"%d" % number)
                token = answering.token()
                assert asking.observe(token)
                got = [(event.payload, event.topic) for event in await take(events, 10)]
                for number in range(5):
                    question, answer = (
                        (b"%d" % number, "m-questions"),
                        (b"%d" % number, "m-answers"),
                    )
                    assert got.index(question) < got.index(answer)

        asyncio.run(main())

    def test_merged_subscriptions_come_and_go(self) -> None:
        async def main() -> None:
            async with ensue.connect(self.url(), order=MERGED) as bus:
                async with bus.subscribe("m-a") as events:
                    await events.subscribe("m-b")
                    assert set(events.topics) == {"m-a", "m-b"}
                    await events.unsubscribe("m-a")
                    await bus.publish("m-a", b"left")
                    await bus.publish("m-b", b"kept", key=b"k", headers={"h": "v"})
                    (event,) = await take(events, 1)
                    assert (event.payload, event.key, event.headers) == (b"kept", b"k", {"h": "v"})
                    await events.subscribe("m-a")
                    await bus.publish("m-a", b"again")
                    assert [each.payload for each in await take(events, 1)] == [b"again"]
                with pytest.raises(ensue.ConfigurationError, match="no positions"):
                    bus.subscribe("m-a", name="x", durable=True)
                with pytest.raises(ensue.ConfigurationError, match="keeps no log"):
                    bus.subscribe("m-a", start="earliest")

        asyncio.run(main())

    @pytest.mark.parametrize("late", ["drop", "deliver"])
    def test_event_later_than_delta_is_counted_logged_and_traced(
        self, late: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Delta is a microsecond: every message takes longer."""

        async def main() -> list[str]:
            url, order = self.url(), ensue.Merged(epsilon=0, delta=0, tick=1e-6, late=late)
            async with (
                ensue.connect(url, order=order, trace=str(tmp_path), name="desk") as reading,
                ensue.connect(url, order=order, name="shop") as bus,
                reading.subscribe("m-late", name="all") as events,
            ):
                for number in range(3):
                    await bus.publish("m-late", b"%d" % number)
                return await _told(events, "late", 3)

        with caplog.at_level(logging.WARNING, logger="ensue"):
            tagged = asyncio.run(main())
        assert tagged == (["late"] * 3 if late == "deliver" else [])
        messages = [each.getMessage() for each in caplog.records]
        assert any(
            "delay beyond bound" in each and "peer=shop" in each and "bound_ms=0" in each
            for each in messages
        ), messages
        _check_trace(tmp_path, "late", "delivered" if late == "deliver" else "discarded", 3)

    def test_without_order_events_are_delivered_on_arrival(self) -> None:
        async def main() -> None:
            url = self.url()
            async with (
                ensue.connect(url, order=None) as one,
                ensue.connect(url, order=None) as other,
                one.subscribe("n-a", "n-b") as events,
            ):
                for number in range(30):
                    await other.publish(("n-a", "n-b")[number % 2], b"%d" % number)
                got = {int(event.payload) for event in await take(events, 30)}
                assert got == set(range(30))

        asyncio.run(main())


class Ahead(SystemClock):
    """A clock that is an hour ahead."""

    def now_ns(self) -> int:
        return super().now_ns() + 3_600_000_000_000


class AheadMachine(platform.Machine):
    """This machine with such a clock."""

    clock = Ahead()


class RemoteClockedSuite(ClockedSuite):
    """The behavior that only transports between processes have."""

    @pytest.mark.parametrize(
        ("wrong", "named"),
        [
            ({"tick": 0.01}, "epsilon=0.01, delta=1, tick=0.01"),
            ({"epsilon": 0.003}, "epsilon=0.003, delta=1, tick=0.001"),
            ({"delta": 2.0}, "epsilon=0.002, delta=2, tick=0.001"),
        ],
        ids=["tick", "epsilon", "delta"],
    )
    def test_client_with_other_terms_of_merged_order_is_refused_with_both(
        self, wrong: dict[str, float], named: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A server refuses it at connect; on the topics of a broker subscribers log it."""
        own = "epsilon=0.002, delta=1, tick=0.001"

        async def main() -> None:
            url = self.url()
            other = ensue.Merged(**{"epsilon": 0.002, "delta": 1.0, **wrong})  # type: ignore[arg-type]
            async with (
                ensue.connect(url, order=MERGED, name="desk") as bus,
                bus.subscribe("m-terms") as events,
            ):
                counts = events.counts
                assert isinstance(counts, MergedCounts)
                if url.startswith("ensue:"):
                    with pytest.raises(ensue.AccessDenied) as refused:
                        await ensue.connect(url, order=other).__aenter__()
                    assert f"has {own}, this bus has {named}" in str(refused.value)
                    expected = [b"right"]
                else:
                    async with ensue.connect(url, order=other, name="shop") as wrongly:
                        for _ in range(3):
                            await wrongly.publish("m-terms", b"wrong")
                        await until(lambda: counts.mismatched == 3, "three events are mismatched")
                    expected = [b"wrong"] * (0 if "delta" not in wrong else 3) + [b"right"]
                    (line,) = [
                        each.getMessage()
                        for each in caplog.records
                        if "merged terms differ" in each.getMessage()
                    ]
                    assert f"theirs=({named}) ours=({own})" in line
                    assert "publisher=shop" in line
                await bus.publish("m-terms", b"right")
                assert [event.payload for event in await take(events, len(expected))] == expected
                assert counts.delivered == len(expected)
            # All clients have left: the next one decides.
            async with (
                ensue.connect(url, order=other) as later,
                later.subscribe("m-terms") as events,
            ):
                await later.publish("m-terms", b"later")
                assert [event.payload for event in await take(events, 1)] == [b"later"]

        with caplog.at_level(logging.WARNING, logger="ensue"):
            asyncio.run(main())

    def test_orders_are_separate(self) -> None:
        """A topic of a bus in one order is not that of a bus in another."""

        async def main() -> None:
            url = self.url()
            async with (
                ensue.connect(url) as total,
                ensue.connect(url, order=MERGED) as merged,
                ensue.connect(url, order=None) as none,
                total.subscribe("shared") as in_total,
                merged.subscribe("shared") as in_merged,
                none.subscribe("shared") as in_none,
            ):
                for bus, text in ((total, b"t"), (merged, b"m"), (none, b"n")):
                    for _ in range(3):
                        await bus.publish("shared", text)
                for events, text in ((in_total, b"t"), (in_none, b"n"), (in_merged, b"m")):
                    assert [event.payload for event in await take(events, 3)] == [text] * 3
                assert in_merged.counts is not None
                assert in_merged.counts.received == 3
                with pytest.raises(ensue.UnsupportedOrder, match="total order only"):
                    total.subscribe("shared", order=None)

        asyncio.run(main())

    @pytest.mark.parametrize("late", ["drop", "deliver"])
    def test_clock_beyond_epsilon_is_counted_logged_and_traced(
        self,
        late: str,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        async def main() -> list[str]:
            url = self.url()
            order = ensue.Merged(epsilon=0.002, delta=1.0, late=late)
            async with ensue.connect(url, order=order, trace=str(tmp_path), name="desk") as reading:
                platform.use(AheadMachine())
                async with (
                    ensue.connect(url, order=order, name="shop") as bus,
                    reading.subscribe("m-ahead", name="all") as events,
                ):
                    for number in range(3):
                        await bus.publish("m-ahead", b"%d" % number)
                    return await _told(events, "skewed", 3)

        with caplog.at_level(logging.WARNING, logger="ensue"):
            tagged = asyncio.run(main())
        assert tagged == (["skewed"] * 3 if late == "deliver" else [])
        messages = [each.getMessage() for each in caplog.records]
        assert any(
            "clock lead beyond bound" in each and "peer=shop" in each and "bound_ms=2" in each
            for each in messages
        ), messages
        _check_trace(tmp_path, "skewed", "delivered" if late == "deliver" else "discarded", 3)

    def test_slow_reader_of_merged_order_delays_no_other_and_counts_losses(self) -> None:
        async def main() -> None:
            url = self.url()
            async with (
                ensue.connect(url, order=MERGED) as bus,
                ensue.connect(url, order=MERGED) as other,
                bus.subscribe("m-slow") as quick,
                other.subscribe("m-slow", pending_max=10) as slow,
            ):
                counts = slow.counts
                assert counts is not None
                number = 0
                while not counts.overflow:
                    # A few at a time: events that are due together are delivered together.
                    for _ in range(20):
                        await bus.publish("m-slow", b"%d" % number)
                        number += 1
                    await asyncio.sleep(0.02)
                all_of_them = [int(event.payload) for event in await take(quick, number)]
                assert all_of_them == list(range(number))
                await until(
                    lambda: counts.delivered + counts.overflow == number, "all have come or gone"
                )
                got = [int(event.payload) for event in await take(slow, counts.delivered)]
                assert got == sorted(set(got))
                await bus.publish("m-slow", b"-1")
                assert [event.payload for event in await take(slow, 1)] == [b"-1"]

        asyncio.run(main())
