"""Deadlines through the client, in process: causal and on time, or dropped, or tagged."""

import asyncio
from pathlib import Path

import pytest
from examples import watch_together

import ensue
from ensue.checkers import Verdict, check
from ensue.core import trace
from ensue.protocols.deadline.delivery import DeadlineCounts
from ensue.store import open_log

LONG = ensue.Deadline(ms=5_000)
"""Longer than any step takes, even on a busy machine."""


async def read(events: ensue.Subscription, count: int) -> list[str]:
    found = []
    async with asyncio.timeout(30):
        for position in range(1, count + 1):
            event = await anext(events)
            assert event.position == position
            found.append(event.payload.decode() + (f" ({event.verdict})" if event.verdict else ""))
    return found


def counts_of(events: ensue.Subscription) -> DeadlineCounts:
    counts = events.counts
    assert isinstance(counts, DeadlineCounts)
    return counts


@pytest.mark.parametrize("seed", range(3))
def test_reply_never_precedes_its_question_and_losses_are_repaired(
    seed: int, tmp_path: Path
) -> None:
    url = f"memory://room?jitter_ms=20&loss=0.2&seed={seed}"

    async def main() -> list[str]:
        async with (
            ensue.connect(url, order=LONG, name="ada", trace=str(tmp_path / "trace")) as ada,
            ensue.connect(url, order=LONG, name="bob") as bob,
            ensue.connect(url, order=LONG, name="eve") as eve,
            bob.subscribe("questions") as asked,
            eve.subscribe("questions", "answers") as heard,
        ):

            async def answer() -> None:
                for _ in range(10):
                    event = await anext(asked)
                    await bob.publish("answers", b"to " + event.payload, receipt=False)

            answering = asyncio.create_task(answer())
            for number in range(10):
                stamped = await ada.publish("questions", str(number).encode())
                assert stamped.stamp is not None
            found = await read(heard, 20)
            await answering
            assert counts_of(heard).delivered == 20
            return found

    found = asyncio.run(main())
    assert found == [each for each in found if not each.endswith(")")]
    for index, text in enumerate(found):
        if text.startswith("to "):
            assert text.removeprefix("to ") in found[:index]
    rows = trace.read(tmp_path / "trace")
    report = check(rows, order="deadline", lossy=True, clock_error_ns=1_000_000_000)
    assert report.verdict is Verdict.VALID, report.sentences()
    assert {row.order for row in rows} == {"deadline"}
    assert all(row.deadline_ns for row in rows if row.action in ("received", "delivered"))


@pytest.mark.parametrize("on_late", ["drop", "tag"])
def test_late_event_is_dropped_or_tagged(on_late: str, tmp_path: Path) -> None:
    """Events take up to 80 ms and live for 1 ms: nearly all of another bus are late."""
    order = ensue.Deadline(ms=1, on_late=on_late)
    url = "memory://slow?jitter_ms=80&seed=3"

    async def main() -> tuple[DeadlineCounts, list[str]]:
        async with (
            ensue.connect(url, order=order, name="shop", record=str(tmp_path / "run")) as shop,
            ensue.connect(url, order=order, name="desk") as desk,
            desk.subscribe("t") as events,
        ):
            for number in range(20):
                await shop.publish("t", str(number).encode())
            counts = counts_of(events)
            async with asyncio.timeout(30):
                while counts.late + counts.delivered < 20:  # noqa: ASYNC110 - counts wake nobody
                    await asyncio.sleep(0.01)
            if on_late == "drop":
                return counts, []
            return counts, [(await anext(events)).verdict for _ in range(events.waiting)]

    counts, verdicts = asyncio.run(main())
    assert counts.received == 20
    assert counts.late > 10
    assert verdicts.count("late") == (counts.late if on_late == "tag" else 0)
    rows = trace.read(tmp_path / "run")
    dropped = [row for row in rows if row.action == "discarded" and row.verdict != "unread"]
    assert [row.verdict for row in dropped] == ["late"] * (0 if on_late == "tag" else counts.late)
    log = open_log(tmp_path / "run" / "log")
    (batch,) = log.read("t", *log.bounds()["t"])
    assert batch.num_rows == 20


def test_subscriptions_share_the_node_and_choose_on_late() -> None:
    async def main() -> None:
        url = "memory://both?jitter_ms=60&seed=1"
        order = ensue.Deadline(ms=1)
        tagging = ensue.Deadline(ms=1, on_late="tag")
        async with (
            ensue.connect(url, order=order) as one,
            ensue.connect(url, order=order) as other,
            other.subscribe("t") as dropping,
            other.subscribe("t", order=tagging) as tagged,
        ):
            for _ in range(10):
                await one.publish("t", b"")
            async with asyncio.timeout(30):
                while counts_of(tagged).late + counts_of(tagged).delivered < 10:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert tagged.waiting == 10
            assert dropping.waiting == 10 - counts_of(tagged).late < 10

    asyncio.run(main())


def test_buses_join_and_leave_and_get_their_own_events() -> None:
    async def main() -> None:
        url = "memory://many"
        async with ensue.connect(url, order=LONG) as stays, stays.subscribe("t") as heard:
            for number in range(5):
                async with (
                    ensue.connect(url, order=LONG) as guest,
                    guest.subscribe("t") as own,
                ):
                    await guest.publish("t", str(number).encode())
                    assert await read(own, 1) == [str(number)]
            assert await read(heard, 5) == ["0", "1", "2", "3", "4"]
            await heard.unsubscribe("t")
            await stays.publish("t", b"unheard")
            assert heard.waiting == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ms": 0}, "ms must be from 1"),
        ({"ms": 10**9}, "ms must be from 1"),
        ({"ms": "200"}, "ms must be a number"),
        ({"ms": 200, "on_late": "keep"}, "on_late must be 'drop' or 'tag'"),
        ({"ms": 200, "held_max": 0}, "held_max must be at least 1"),
    ],
)
def test_invalid_deadlines_are_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ensue.BadInput, match=said):
        ensue.Deadline(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("ms", [1, 86_400_000])
def test_shortest_and_longest_deadline_are_accepted(ms: float) -> None:
    async def main() -> list[str]:
        order = ensue.Deadline(ms=ms, on_late="tag")
        async with ensue.connect("memory://", order=order) as bus, bus.subscribe("t") as events:
            await bus.publish("t", b"own")
            return await read(events, 1)

    assert asyncio.run(main()) == ["own"]


def test_incompatible_orders_are_refused_by_name() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=LONG) as bus:
            for wanted, said in (
                (ensue.Total(), "publishes in deadline order"),
                (ensue.Deadline(ms=7), "lifetime of 5000 ms"),
            ):
                with pytest.raises(ensue.UnsupportedOrder, match=said):
                    bus.subscribe("t", order=wanted)
            with pytest.raises(ensue.LocalProtocolError, match="tokens"):
                bus.token()

    asyncio.run(main())


def test_watch_party_never_undoes_a_pause_or_rewinds() -> None:
    """Players apply commands in order, though some are dropped; without order they do not."""
    players = asyncio.run(watch_together.watch(ensue.Deadline(ms=watch_together.USEFUL_MS)))
    assert sum(player.applied for player in players) > 0
    assert [(player.too_early, player.moved_back) for player in players] == [(0, 0)] * 3
    without = asyncio.run(watch_together.watch(None))
    assert sum(player.moved_back for player in without) > 0
    assert sum(player.too_early for player in without) > 0


@pytest.mark.parametrize("order", [ensue.Deadline(ms=1_000), ensue.Causal()])
def test_bus_gets_its_own_events_despite_losses(order: ensue.Order) -> None:
    """As the reference page of the bus promises."""

    async def main() -> None:
        url = "memory://?jitter_ms=50000&loss=0.99"
        async with ensue.connect(url, order=order) as bus, bus.subscribe("t") as events:
            for number in range(20):
                await bus.publish("t", b"%d" % number, receipt=False)
            own = [await asyncio.wait_for(anext(events), 30) for _ in range(20)]
            assert [event.payload for event in own] == [b"%d" % number for number in range(20)]
            assert not any(event.verdict for event in own)

    asyncio.run(main())
    page = (Path(__file__).parents[2] / "docs" / "reference" / "bus.md").read_text()
    assert (
        "In causal and deadline order a bus delivers its own events to its subscriptions at once"
        in page
    )


# -- Unread ----------------------------------------------------------------------------------------


class Late:
    """A clock that jumps ahead, as after a busy application."""

    def __init__(self, now_ns: int) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        return self._now_ns


def be_busy_until_after(bus: ensue.Bus, event: ensue.Event) -> None:
    """Move the clock of a bus past the deadline of an event."""
    assert event.stamp is not None
    assert bus._shared_node is not None
    bus._shared_node._clock = Late(event.stamp.entries["@d"] + 1)


async def until_waiting(events: ensue.Subscription, count: int) -> None:
    async with asyncio.timeout(30):
        while events.waiting < count:  # noqa: ASYNC110 - nothing wakes who does not read
            await asyncio.sleep(0)


@pytest.mark.parametrize("on_late", ["drop", "tag"])
@pytest.mark.parametrize("by", ["anext", "run"])
def test_event_unread_at_its_deadline_is_late_at_hand_over(
    on_late: str, by: str, tmp_path: Path
) -> None:
    order = ensue.Deadline(ms=60_000, on_late=on_late)

    async def main() -> list[tuple[bytes, str, int]]:
        got: list[tuple[bytes, str, int]] = []
        async with (
            ensue.connect("memory://unread", order=order, trace=str(tmp_path)) as shop,
            ensue.connect("memory://unread", order=order, name="desk") as desk,
            desk.subscribe("t", name="all") as events,
        ):
            await shop.publish("t", b"1")
            assert (await anext(events)).deadline is not None
            last = [await shop.publish("t", text) for text in (b"2", b"3")][-1]
            await until_waiting(events, 2)
            be_busy_until_after(desk, last)
            new = await shop.publish("t", b"4")
            await until_waiting(events, 3)
            assert new.deadline is not None
            assert last.deadline is not None
            assert new.deadline > last.deadline

            async def handle(event: ensue.ReceivedEvent) -> None:
                got.append((event.payload, event.verdict, event.position))
                if event.payload == b"4":
                    events.close()

            if by == "run":
                await events.run(handle)
            else:
                async for event in events:
                    await handle(event)
            counts = counts_of(events)
            assert (counts.received, counts.delivered, counts.late) == (4, 2, 2)
        return got

    got = asyncio.run(main())
    if on_late == "drop":
        assert got == [(b"4", "", 2)]
    else:
        assert got == [(b"2", "late", 2), (b"3", "late", 3), (b"4", "", 4)]
    rows = [row for row in trace.read(tmp_path) if row.node == "desk" and row.event is not None]
    outcomes = [(row.action, row.verdict, row.position) for row in rows if row.action != "received"]
    late: list[tuple[str, str, int | None]] = [("discarded", "unread", None)]
    if on_late == "tag":
        assert outcomes == [
            ("delivered", "", 1),
            *late,
            ("delivered", "late", 2),
            *late,
            ("delivered", "late", 3),
            ("delivered", "", 4),
        ]
    else:
        assert outcomes == [("delivered", "", 1), *late, *late, ("delivered", "", 2)]
    _check_deadlines(tmp_path)


def _check_deadlines(directory: Path) -> None:
    report = check(trace.read(directory), order="deadline", lossy=True)
    assert report.verdict is Verdict.VALID, report.sentences()


def test_handler_is_not_called_after_the_deadline(tmp_path: Path) -> None:
    """A run reads ahead: an event may be in time when it is read, and late when its turn comes."""
    order = ensue.Deadline(ms=60_000)

    async def main() -> list[bytes]:
        got: list[bytes] = []
        async with (
            ensue.connect("memory://ahead", order=order, trace=str(tmp_path)) as shop,
            ensue.connect("memory://ahead", order=order, name="desk") as desk,
            desk.subscribe("t") as events,
        ):
            published = [await shop.publish("t", text) for text in (b"1", b"2", b"3")]
            await until_waiting(events, 3)

            async def handle(event: ensue.ReceivedEvent) -> None:
                got.append(event.payload)
                async with asyncio.timeout(30):
                    while events.waiting:  # noqa: ASYNC110 - until all are read ahead
                        await asyncio.sleep(0)
                be_busy_until_after(desk, published[1])
                if event.payload == b"3":
                    events.close()

            progress = await events.run(handle)
            assert progress.handled == 2
            assert counts_of(events).late == 1
        return got

    assert asyncio.run(main()) == [b"1", b"3"]
    _check_deadlines(tmp_path)


def test_unread_events_violate_no_rule(tmp_path: Path) -> None:
    """Leave topics and close a subscription that holds events past their deadline."""
    order = ensue.Deadline(ms=60_000)

    async def main() -> list[bytes]:
        async with (
            ensue.connect("memory://never", order=order, trace=str(tmp_path)) as shop,
            ensue.connect("memory://never", order=order, name="desk") as desk,
            desk.subscribe("t", "u") as events,
        ):
            await shop.publish("t", b"read")
            await anext(events)
            for topic in ("t", "u", "u"):
                last = await shop.publish(topic, topic.encode())
            await until_waiting(events, 3)
            be_busy_until_after(desk, last)
            await events.unsubscribe("t")
            events.close()
            return [event.payload async for event in events]

    assert asyncio.run(main()) == []
    rows = [row for row in trace.read(tmp_path) if row.action == "discarded"]
    assert [(row.topic, row.verdict) for row in rows] == [("t", "unread"), *[("u", "unread")] * 2]
    _check_deadlines(tmp_path)


def test_late_events_make_room() -> None:
    async def main() -> None:
        order = ensue.Deadline(ms=60_000)
        async with (
            ensue.connect("memory://room", order=order, name="shop") as shop,
            ensue.connect("memory://room", order=order, name="desk") as desk,
            desk.subscribe("t", pending_max=2) as events,
        ):
            last = [await shop.publish("t", b"") for _ in range(2)][-1]
            await until_waiting(events, 2)
            be_busy_until_after(desk, last)
            waiting = asyncio.create_task(shop.publish("t", b"new"))
            async with asyncio.timeout(30):
                assert (await anext(events)).payload == b"new"
            await waiting

    asyncio.run(main())
