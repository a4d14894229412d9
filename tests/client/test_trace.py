"""The trace of a bus: what the application did and got, so that no loss stays unseen."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.helpers import Shell
from tests.server.helpers import read, serving, until, within
from tests.transports.suite import take

import ensue
from ensue.checkers import Verdict, check
from ensue.client.subscription import Subscription
from ensue.core import trace
from ensue.core.errors import SubscriptionLost
from ensue.core.trace import Row
from ensue.protocols.interface import Deliver, Outcome, Refuse, Settle

LONG = ensue.Deadline(ms=60_000)
MERGED = ensue.Merged(epsilon=0.001, delta=0.05)
APPLICATION = (
    "submitted",
    "published",
    "delivered",
    "acknowledged",
    "discarded",
    "subscribed",
    "unsubscribed",
)
"""The actions of rows that the client writes, and of topics joined and left."""


def rows_of(directory: Path, *actions: str) -> list[Row]:
    """Return the rows of an application, in sequence; all its actions, or some."""
    rows = sorted(trace.read(directory), key=lambda row: (row.node, row.step))
    return [row for row in rows if row.action in (actions or APPLICATION)]


def story(directory: Path, *actions: str) -> list[str]:
    """Return rows as `action topic/number @position verdict`."""
    lines = []
    for row in rows_of(directory, *actions):
        what = row.topic if row.event is None else f"{row.topic}/{row.publisher_seq}"
        parts = [row.action, what, row.position and f"@{row.position}", row.verdict]
        lines.append(" ".join(part for part in parts if part))
    return lines


def assert_valid(directory: Path, order: str = "total", *, lossy: bool = False) -> None:
    report = check(trace.read(directory), order=order, lossy=lossy)
    assert report.verdict is Verdict.VALID, report.sentences()


# -- Publishing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("receipt", [True, False])
@pytest.mark.parametrize("order", [ensue.Total(), ensue.Causal(), MERGED, LONG, None])
def test_publishing_is_submitted_then_published(
    tmp_path: Path, order: ensue.Order | None, receipt: bool
) -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=order, trace=str(tmp_path)) as bus:
            for _ in range(2):
                await bus.publish("t", b"x", receipt=receipt)
                await bus.flush()

    asyncio.run(main())
    assert story(tmp_path) == ["submitted t/1", "published t/1", "submitted t/2", "published t/2"]
    nodes = rows_of(tmp_path, "submitted", "node_published", "published")
    assert [row.action for row in nodes[:3]] == ["submitted", "node_published", "published"]


@contextmanager
def no_receipts(bus: ensue.Bus) -> Iterator[None]:
    """Hold receipts back within the block."""
    real = bus._outcomes
    held: list[Outcome] = []

    def hold(outcomes: Sequence[Outcome]) -> None:
        held.extend(each for each in outcomes if isinstance(each, Settle))
        real([each for each in outcomes if not isinstance(each, Settle)])

    assert bus._driver is not None
    bus._driver._on_outcomes = hold
    yield
    bus._driver._on_outcomes = real
    real(held)


def test_cancelled_publish_is_submitted_and_not_published(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://", trace=str(tmp_path)) as bus,
            bus.subscribe("t") as events,
        ):
            with no_receipts(bus):
                task = asyncio.create_task(bus.publish("t", b"1"))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await bus.publish("t", b"2")
            await take(events, 2)

    asyncio.run(main())
    assert story(tmp_path, "submitted", "published", "delivered") == [
        "submitted t/1",
        "submitted t/2",
        "published t/2",
        "delivered t/1 @1",
        "delivered t/2 @2",
    ]
    assert_valid(tmp_path)


def test_publish_that_times_out_is_submitted_and_not_published(tmp_path: Path) -> None:
    async def main() -> None:
        async with ensue.connect("memory://", trace=str(tmp_path)) as bus:
            with no_receipts(bus), pytest.raises(ensue.EventsInDoubt):
                await bus.publish("t", b"1", timeout=0.001)

    asyncio.run(main())
    assert story(tmp_path) == ["submitted t/1"]


@pytest.mark.parametrize("receipt", [True, False])
def test_voided_event_is_submitted_and_not_published(tmp_path: Path, receipt: bool) -> None:
    async def main() -> None:
        async with ensue.connect("memory://", trace=str(tmp_path)) as bus:
            real = bus._outcomes

            def void(outcomes: Sequence[Outcome]) -> None:
                settled = [each for each in outcomes if isinstance(each, Settle)]
                real([Settle(each.event, "void") for each in settled])

            assert bus._driver is not None
            bus._driver._on_outcomes = void
            publishing = bus.publish("t", b"1", receipt=receipt)
            if not receipt:
                await publishing
            with pytest.raises(ensue.EventVoided):
                await (publishing if receipt else bus.flush())

    asyncio.run(main())
    assert story(tmp_path) == ["submitted t/1"]


# -- Reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [ensue.Total(), ensue.Causal(), MERGED, LONG, None])
def test_events_are_delivered_when_the_application_reads_them(
    tmp_path: Path, order: ensue.Order | None
) -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://", order=order, trace=str(tmp_path)) as bus,
            bus.subscribe("t") as events,
        ):
            for _ in range(3):
                await bus.publish("t", b"x")
            await until(lambda: events.waiting == 3)
            for number in range(2):
                await anext(events)
                await bus.publish("out", b"%d" % number)

    asyncio.run(main())
    lines = story(tmp_path, "delivered", "submitted", "discarded", "unsubscribed")
    unread = "discarded t/3 unread" if order is LONG else "discarded t/3 @3 unread"
    assert lines == [
        *(f"submitted t/{number}" for number in (1, 2, 3)),
        "delivered t/1 @1",
        "submitted out/1",
        "delivered t/2 @2",
        "submitted out/2",
        unread,
        "unsubscribed t",
    ]


def test_events_read_after_close_are_recorded_as_unread_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://", trace=str(tmp_path)) as bus,
            bus.subscribe("t") as events,
        ):
            for _ in range(2):
                await bus.publish("t", b"x")
            await take(events, 1)
            events.close()
            assert len([event async for event in events]) == 1

    asyncio.run(main())
    assert story(tmp_path, "delivered", "discarded", "unsubscribed") == [
        "delivered t/1 @1",
        "discarded t/2 @2 unread",
        "unsubscribed t",
    ]
    assert_valid(tmp_path)


def test_unread_events_of_topics_that_are_left_keep_their_positions(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://", trace=str(tmp_path)) as bus,
            bus.subscribe("t", "u") as events,
        ):
            for topic in "tutu":
                await bus.publish(topic, b"x")
            await take(events, 1)
            await events.unsubscribe("t")
            await take(events, 2)

    asyncio.run(main())
    assert story(tmp_path, "delivered", "discarded") == [
        "delivered t/1 @1",
        "discarded t/2 @3 unread",
        "delivered u/1 @2",
        "delivered u/2 @4",
    ]
    assert_valid(tmp_path)


@pytest.mark.parametrize(
    ("order", "rule"),
    [
        (ensue.Total(), "complete"),
        (ensue.Causal(), "complete"),
        (MERGED, "complete"),
        (ensue.Deadline(ms=2_000), "deadline"),
        (None, "positions"),
    ],
)
@pytest.mark.parametrize("dropped", [0, 2])
def test_event_dropped_between_node_and_application_is_found(
    tmp_path: Path,
    order: ensue.Order | None,
    rule: str,
    dropped: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The node delivers event 2, and the subscription loses it."""
    real = Subscription._outcomes

    def swallow(self: Subscription, outcomes: Sequence[Outcome]) -> None:
        real(
            self,
            [
                each
                for each in outcomes
                if not (isinstance(each, Deliver) and each.event.publisher_seq == dropped)
            ],
        )

    monkeypatch.setattr(Subscription, "_outcomes", swallow)

    async def main() -> None:
        async with (
            ensue.connect("memory://", order=order, trace=str(tmp_path), name="bus") as bus,
            bus.subscribe("t", name="all") as events,
        ):
            for _ in range(4):
                await bus.publish("t", b"x")
            last = (await take(events, 3 if dropped else 4))[-1]
            due = last.deadline
            if due is not None:  # An event is missed when its deadline is over.
                await until(lambda: time.time() > due)

    asyncio.run(main())
    kind = "none" if order is None else order.label
    lossy = ["--lossy"] if rule == "deadline" else []
    shell = Shell(capsys, monkeypatch)
    found = shell("check", str(tmp_path), "--order", kind, *lossy)
    if not dropped:
        assert found.code == 0, found.stdout
        return
    assert found.code == 1, found.stdout
    assert f"{rule} invalid" in " ".join(found.stdout.split())
    assert "bus/t/2" in found.stdout or rule == "positions"


# -- Handlers --------------------------------------------------------------------------------------


def test_events_of_a_run_are_delivered_when_their_handler_is_called(tmp_path: Path) -> None:
    """The run has read all of them ahead by then."""

    async def main() -> None:
        async with (
            ensue.connect("memory://", trace=str(tmp_path)) as bus,
            bus.subscribe("t") as events,
        ):
            for _ in range(3):
                await bus.publish("t", b"x")

            async def handle(event: ensue.ReceivedEvent) -> None:
                await until(lambda: not events.waiting)
                await bus.publish("out", b"x")
                if event.position == 2:
                    raise ValueError

            async def close(event: ensue.ReceivedEvent) -> None:
                await handle(event)
                if event.position == 3:
                    events.close()

            park = ensue.Park(rest_of_key=False)
            await events.run(close, on_failure=ensue.Retry(attempts=2, backoff_s=0, then=park))

    asyncio.run(main())
    lines = [
        line for line in story(tmp_path, "delivered", "submitted") if "submitted t" not in line
    ]
    assert lines == [
        "delivered t/1 @1",
        "submitted out/1",
        "delivered t/2 @2",
        "submitted out/2",
        "submitted out/3",
        "delivered t/3 @3",
        "submitted out/4",
    ]
    assert_valid(tmp_path)


def test_events_of_concurrent_handlers_are_delivered_when_they_are_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://", trace=str(tmp_path)) as bus,
            bus.subscribe("t") as events,
        ):
            for number in range(3):
                await bus.publish("t", b"x", key=b"%d" % number)

            async def handle(event: ensue.ReceivedEvent) -> None:
                await until(lambda: not events.waiting)
                await bus.publish("out", b"x")
                if event.position == 3:
                    events.close()

            await events.run(handle, concurrency=ensue.PerKey(1))

    asyncio.run(main())
    lines = [
        line for line in story(tmp_path, "delivered", "submitted") if "submitted t" not in line
    ]
    assert lines[:3] == [f"delivered t/{number} @{number}" for number in (1, 2, 3)]
    assert_valid(tmp_path)


class Halt(Exception):
    """Stops a run."""


@pytest.mark.parametrize("then", ["run", "run per key", "read", "close"])
def test_event_of_two_runs_is_delivered_once(tmp_path: Path, then: str) -> None:
    """The first run reads all events and stops at the second."""
    last = 4 if then == "run per key" else 5

    async def main() -> None:
        async with (
            ensue.connect("memory://", trace=str(tmp_path)) as bus,
            bus.subscribe("t") as events,
        ):
            for _ in range(4):
                await bus.publish("t", b"x")

            async def stop(event: ensue.ReceivedEvent) -> None:
                await until(lambda: not events.waiting)
                if event.position == 2:
                    raise Halt

            with pytest.raises(ensue.HandlerFailed):
                await events.run(stop)
            if then != "run per key":
                await bus.publish("t", b"x")

            async def close_at_last(event: ensue.ReceivedEvent) -> None:
                if event.position == last:
                    events.close()

            if then == "read":
                await take(events, 1)
            elif then != "close":
                per_key = ensue.PerKey(2) if then == "run per key" else ensue.Sequential()
                await events.run(close_at_last, concurrency=per_key)

    asyncio.run(main())
    lines = story(tmp_path, "delivered", "discarded")
    count = 2 if then == "close" else last
    assert lines == [
        *(f"delivered t/{number} @{number}" for number in range(1, count + 1)),
        *(f"discarded t/{number} @{number} unread" for number in range(count + 1, last + 1)),
    ]
    assert_valid(tmp_path)


@pytest.mark.parametrize("during", [True, False])
def test_events_read_ahead_of_topics_that_are_left_are_unread(tmp_path: Path, during: bool) -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://", trace=str(tmp_path)) as bus,
            bus.subscribe("t", "u") as events,
        ):
            for topic in "ttuu":
                await bus.publish(topic, b"x")

            async def handle(event: ensue.ReceivedEvent) -> None:
                await until(lambda: not events.waiting)
                if event.topic == "t":
                    if not during:
                        raise Halt
                    await events.unsubscribe("t")
                if event.position == 4:
                    events.close()

            if not during:
                with pytest.raises(ensue.HandlerFailed):
                    await events.run(handle)
                await events.unsubscribe("t")
            await events.run(handle)

    asyncio.run(main())
    assert story(tmp_path, "delivered", "discarded") == [
        "delivered t/1 @1",
        "discarded t/2 @2 unread",
        "delivered u/1 @3",
        "delivered u/2 @4",
    ]
    assert_valid(tmp_path)


# -- The end of subscriptions ----------------------------------------------------------------------


@pytest.mark.parametrize("order", [ensue.Total(), ensue.Causal(), LONG])
def test_lost_subscription_is_unsubscribed_once(tmp_path: Path, order: ensue.Order) -> None:
    """What is read of it afterwards is not recorded: it would look uninvited."""

    async def main() -> None:
        async with (
            ensue.connect("memory://", order=order, trace=str(tmp_path), name="ada") as ada,
            ensue.connect("memory://", order=order, name="bob") as bob,
        ):
            del bob
            async with ada.subscribe("t", "u") as events:
                for _ in range(2):
                    await ada.publish("t", b"x")
                await until(lambda: events.waiting == 2)
                await take(events, 1)
                if ada._shared_node is None:
                    events._outcomes((Refuse((), "expired"),))
                else:
                    ada._shared_node.end(Refuse((), "expired"))
                await take(events, 1)
                with pytest.raises(SubscriptionLost):
                    await anext(events)

    asyncio.run(main())
    lines = story(tmp_path, "delivered", "discarded", "unsubscribed")
    unread = "discarded t/2 unread" if order is LONG else "discarded t/2 @2 unread"
    assert lines[:2] == ["delivered t/1 @1", unread]
    assert sorted(lines[2:]) == ["unsubscribed t expired", "unsubscribed u expired"]
    assert_valid(tmp_path, order.label, lossy=order is LONG)


# -- Durable subscriptions -------------------------------------------------------------------------


def test_acknowledgements_are_recorded_when_they_are_safe(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url, trace=str(tmp_path / "t"), name="shop") as bus,
            bus.subscribe("t", name="desk", durable=True, acknowledge="manual") as events,
        ):
            for _ in range(3):
                await within(bus.publish("t", b"x"))
            first, second, third = [await within(anext(events)) for _ in range(3)]
            await within(first.ack())
            await within(bus.publish("out", b"1"))
            await within(third.ack())
            await within(bus.publish("out", b"2"))
            await within(second.ack())

    asyncio.run(main())
    lines = story(tmp_path / "t", "delivered", "acknowledged", "submitted", "unsubscribed")
    assert [line for line in lines if "submitted t" not in line] == [
        *(f"delivered t/{number} @{number}" for number in (1, 2, 3)),
        "acknowledged @1",
        "submitted out/1",
        "submitted out/2",
        "acknowledged @3",
        "unsubscribed t closed",
    ]
    assert_valid(tmp_path / "t")


def test_acknowledgements_of_plain_subscriptions_are_not_recorded(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://", trace=str(tmp_path)) as bus,
            bus.subscribe("t", acknowledge="manual") as events,
        ):
            await bus.publish("t", b"x")
            await (await anext(events)).ack()

    asyncio.run(main())
    assert story(tmp_path, "acknowledged") == []


@pytest.mark.parametrize("name", ["ada", "bob"])
def test_resumed_subscription_is_subscribed_and_its_trace_is_valid(
    tmp_path: Path, name: str
) -> None:
    """A second life of the same subscription, of the same client or another."""

    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url, trace=str(tmp_path / "t" / "w"), name="writer") as writer,
        ):
            traced = str(tmp_path / "t" / "ada")
            async with ensue.connect(server.url, trace=traced, name="ada") as ada:
                async with ada.subscribe("t", name="desk", durable=True) as events:
                    for _ in range(3):
                        await within(writer.publish("t", b"x"))
                    assert len(await read(events, 2)) == 2
                if name == "ada":
                    async with ada.subscribe("t", name="desk", durable=True) as events:
                        await within(writer.publish("t", b"x"))
                        await read(events, 2)
            if name == "bob":
                traced = str(tmp_path / "t" / "bob")
                async with (
                    ensue.connect(server.url, trace=traced, name="bob") as bob,
                    bob.subscribe("t", name="desk", durable=True) as events,
                ):
                    await within(writer.publish("t", b"x"))
                    await read(events, 2)

    asyncio.run(main())
    every = story(tmp_path / "t", "subscribed", "delivered", "unsubscribed")
    assert every == [
        "subscribed t",
        "delivered t/1 @1",
        "delivered t/2 @2",
        "unsubscribed t closed",
        "subscribed t",
        "delivered t/3 @3",
        "delivered t/4 @4",
        "unsubscribed t closed",
    ]
    assert_valid(tmp_path / "t")


def test_superseded_subscription_is_unsubscribed_with_the_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url, trace=str(tmp_path / "t" / "a"), name="ada") as ada,
            ensue.connect(server.url, trace=str(tmp_path / "t" / "b"), name="bob") as bob,
            ada.subscribe("t", name="desk", durable=True) as first,
            bob.subscribe("t", name="desk", durable=True) as second,
        ):
            with pytest.raises(SubscriptionLost):
                await within(anext(first))
            await within(ada.publish("t", b"x"))
            await read(second, 1)

    asyncio.run(main())
    assert story(tmp_path / "t", "subscribed", "delivered", "unsubscribed") == [
        "subscribed t",
        "unsubscribed t superseded",
        "subscribed t",
        "delivered t/1 @1",
        "unsubscribed t closed",
    ]
    assert_valid(tmp_path / "t")


def test_forgotten_subscription_leaves_its_topics_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url, trace=str(tmp_path / "t"), name="ada") as bus,
            bus.subscribe("t", name="desk", durable=True) as events,
        ):
            for _ in range(2):
                await within(bus.publish("t", b"x"))
            await read(events, 1)
            await until(lambda: events.waiting == 1)
            await within(events.forget())

    asyncio.run(main())
    lines = story(tmp_path / "t", "delivered", "discarded", "unsubscribed")
    assert sorted(lines) == [
        "delivered t/1 @1",
        "discarded t/2 @2 unread",
        "unsubscribed t",
        "unsubscribed t forgotten",
    ]
    assert_valid(tmp_path / "t")


@pytest.mark.parametrize("forgotten", [True, False])
def test_events_come_again_to_a_forgotten_subscription_that_begins_in_the_past(
    tmp_path: Path, *, forgotten: bool
) -> None:
    """The same rows without the one that says so are a redelivery."""

    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url, trace=str(tmp_path / "t" / "a"), name="ada") as ada,
            ensue.connect(server.url, trace=str(tmp_path / "t" / "b"), name="bob") as bob,
        ):
            first = ada.subscribe("t", name="desk", durable=True, acknowledge="manual")
            async with first as events:
                for _ in range(2):
                    await within(ada.publish("t", b"x"))
                    await within((await within(anext(events))).ack())
                await within(events.forget())
            second = bob.subscribe("t", name="desk", durable=True, start="earliest")
            async with second as events:
                assert len(await read(events, 2)) == 2

    asyncio.run(main())
    rows = trace.read(tmp_path / "t")
    if not forgotten:
        rows = [row for row in rows if row.verdict != "forgotten"]
    found = check(rows, "total")["positions"].anomaly_counts
    assert found == ({} if forgotten else {"again": 2})
