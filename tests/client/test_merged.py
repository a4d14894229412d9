"""Merged order on a bus: clock stamps, and sorting at each subscription."""

import asyncio
import logging
from pathlib import Path

import pytest

import ensue
from ensue.checkers import Verdict, check
from ensue.core import trace
from ensue.protocols.merged.counts import MergedCounts

MERGED = ensue.Merged(epsilon=0.002, delta=1.5)
"""Far more than any step takes on a busy machine."""


async def take(events: ensue.Subscription, count: int) -> list[ensue.ReceivedEvent]:
    async with asyncio.timeout(20):
        return [await anext(events) for _ in range(count)]


def test_two_services_see_one_order_across_topics_and_publishers(tmp_path: Path) -> None:
    async def main() -> tuple[list[str], list[str]]:
        url = "memory://merged-shop?jitter_ms=20"
        async with (
            ensue.connect(url, order=MERGED, trace=str(tmp_path / "run")) as one,
            ensue.connect(url, order=MERGED) as other,
            one.subscribe("orders", "payments", name="a") as first,
            other.subscribe("payments", "orders", name="b") as second,
        ):
            for number in range(30):
                await one.publish("orders", b"%d" % number)
                await other.publish("payments", b"%d" % number)
                await asyncio.sleep(0.001)
            seen = await asyncio.gather(take(first, 60), take(second, 60))
            for events in (first, second):
                assert isinstance(events.counts, MergedCounts)
                assert events.counts.delivered == 60
            return [each.id for each in seen[0]], [each.id for each in seen[1]]

    one, other = asyncio.run(main())
    assert one == other
    assert len(set(one)) == 60
    report = check(trace.read(tmp_path / "run"), "merged")
    assert report.verdict is Verdict.VALID, report.sentences()


def test_reply_to_an_early_event_comes_after_it() -> None:
    """A subscription without order gets events at once; its answers have later stamps."""

    async def main() -> list[bytes]:
        url = "memory://merged-questions"
        async with (
            ensue.connect(url, order=MERGED) as asking,
            ensue.connect(url, order=MERGED) as answering,
            asking.subscribe("questions", "answers") as events,
            answering.subscribe("questions", order=None) as early,
        ):
            await asking.publish("questions", b"why?")
            (question,) = await take(early, 1)
            assert question.verdict == "early"
            answer = await answering.publish("answers", b"because")
            assert answer.stamp is not None
            assert question.stamp is not None
            (first, second) = await take(events, 2)
            return [first.payload, second.payload]

    assert asyncio.run(main()) == [b"why?", b"because"]


def test_tokens_carry_causality_outside_of_the_bus() -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://merged-tokens", order=MERGED) as one,
            ensue.connect("memory://merged-tokens", order=MERGED) as other,
        ):
            before = await one.publish("t", b"")
            token = one.token()
            assert other.observe(token)
            after = await other.publish("t", b"")
            assert before.stamp is not None
            assert after.stamp is not None
            keys = [
                (each.get("@r", 0) + each.get("@c", 0), each.get("@k", 0))
                for each in (before.stamp.entries, token, after.stamp.entries)
            ]
            assert keys[0] <= keys[1] < keys[2]
            assert not other.observe({"@r": token["@r"] + 10**9})
            with pytest.raises(ensue.BadInput, match="token must be the value"):
                other.observe({"@r": "soon"})  # type: ignore[dict-item]

    asyncio.run(main())


def test_token_needs_stamps_of_all_published_events() -> None:
    async def main() -> None:
        order = ensue.Merged(epsilon=0.05, delta=1.5)
        async with (
            ensue.connect("memory://merged-unstamped", order=order) as asking,
            ensue.connect("memory://merged-unstamped", order=order) as answering,
            answering.subscribe("t") as events,
        ):
            await answering.publish("t", b"at last")
            async with ensue.connect("memory://merged-unstamped", order=order) as late:
                await late.publish("t", b"question", receipt=False)
                with pytest.raises(ensue.LocalProtocolError, match="without a stamp"):
                    late.token()
                await late.flush()
                assert answering.observe(late.token())
                await answering.publish("t", b"answer")
                assert [each.payload for each in await take(events, 3)][1:] == [
                    b"question",
                    b"answer",
                ]
            assert asking.token()

    asyncio.run(main())


@pytest.mark.parametrize("early", [False, True])
def test_subscription_continues_when_its_bus_can_not_publish(early: bool) -> None:
    async def main() -> None:
        url = "memory://merged-crippled"
        async with (
            ensue.connect(url, order=MERGED) as well,
            ensue.connect(url, order=MERGED) as ill,
            ill.subscribe("t", order=None if early else MERGED) as events,
        ):
            assert ill._driver is not None
            ill._driver.fail(RuntimeError("planted"))
            for number in range(2):
                await well.publish("t", b"%d" % number)
            assert [each.payload for each in await take(events, 2)] == [b"0", b"1"]

    asyncio.run(main())


def test_only_a_merged_bus_has_tokens() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            with pytest.raises(ensue.LocalProtocolError, match="only a bus with merged order"):
                bus.token()

    asyncio.run(main())


@pytest.mark.parametrize("late", ["drop", "deliver"])
def test_event_beyond_delta_is_dropped_or_tagged(late: str) -> None:
    """Notifications take up to 80 ms and only 1 ms is allowed for: nearly all are late."""

    async def main() -> tuple[MergedCounts, list[str]]:
        order = ensue.Merged(epsilon=0, delta=0.001, late=late)
        async with (
            ensue.connect("memory://?jitter_ms=80&seed=3", order=order) as bus,
            bus.subscribe("t") as events,
        ):
            for _ in range(20):
                await bus.publish("t", b"")
            verdicts = []
            counts = events.counts
            assert isinstance(counts, MergedCounts)
            async with asyncio.timeout(20):
                while counts.late + counts.delivered < 20:  # noqa: ASYNC110 - counts wake nobody
                    await asyncio.sleep(0.01)
            while events.waiting:
                verdicts.append((await anext(events)).verdict)
            return counts, verdicts

    counts, verdicts = asyncio.run(main())
    assert counts.late > 10
    assert counts.broken >= 1
    assert verdicts.count("late") == (counts.late if late == "deliver" else 0)


def test_broken_bound_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        order = ensue.Merged(epsilon=0, delta=0.001)
        async with (
            ensue.connect("memory://?jitter_ms=50", order=order, name="shop") as bus,
            bus.subscribe("t", name="desk") as events,
        ):
            await bus.publish("t", b"")
            counts = events.counts
            assert isinstance(counts, MergedCounts)
            async with asyncio.timeout(20):
                while not counts.broken:
                    await bus.publish("t", b"")
                    await asyncio.sleep(0.01)

    with caplog.at_level(logging.WARNING, logger="ensue"):
        asyncio.run(main())
    messages = [each.getMessage() for each in caplog.records]
    assert any(
        "delay beyond bound by=subscription 'desk' peer=shop" in each and "bound_ms=1" in each
        for each in messages
    ), messages


def test_incompatible_orders_are_refused_by_name() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=MERGED) as bus:
            with pytest.raises(ensue.UnsupportedOrder, match="publishes in merged order"):
                bus.subscribe("t", order=ensue.Total())
            with pytest.raises(ensue.UnsupportedOrder, match="must have the same"):
                bus.subscribe("t", order=ensue.Merged(epsilon=0.5, delta=1.5))
            bus.subscribe("t", order=ensue.Merged(epsilon=0.002, delta=9.0))
            with pytest.raises(ensue.BadInput, match="must not begin with '@'"):
                await bus.publish("@r", b"")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epsilon": -1}, "epsilon must be from 0"),
        ({"epsilon": "1"}, "epsilon must be a number of seconds"),
        ({"delta": float("nan")}, "delta must be from 0"),
        ({"tick": 0}, "tick must be at least a microsecond"),
        ({"delta": 10_000}, "at most a million ticks"),
        ({"late": "keep"}, "late must be 'drop' or 'deliver'"),
        ({"held_max": 0}, "held_max must be at least 1"),
    ],
)
def test_bounds_are_checked(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ensue.BadInput, match=said):
        ensue.Merged(**{"epsilon": 0.001, "delta": 0.01, **wrong})  # type: ignore[arg-type]
