"""Durable subscriptions deliver nothing of a topic they left, even if the state store is slow."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.server.helpers import read, serving, until, within

import ensue
from ensue.protocols.interface import Frame
from ensue.protocols.shared.state_store import Remembered


@contextmanager
def slow_state_store(
    events: ensue.Subscription, *, once: Callable[[], bool] = lambda: True
) -> Iterator[list[Frame]]:
    """Hold the state store's confirmations back within the block; hand them over at its end."""
    reader: Any = events._reader
    kept = reader._driver.node
    receive = kept.receive
    held: list[Frame] = []

    def hold(frame: Frame, *, source: str, now_ns: int) -> None:
        if isinstance(frame, Remembered) and once():
            held.append(frame)
        else:
            receive(frame, source=source, now_ns=now_ns)

    kept.receive = hold
    try:
        yield held
    finally:
        kept.receive = receive
        for frame in held:
            reader._driver._receive((frame,), kept._store)


def waiting(events: ensue.Subscription) -> int:
    """How many effects wait for the state store."""
    reader: Any = events._reader
    return sum(len(others) for _, others in reader._driver.node._waiting)


async def fill(bus: ensue.Bus, numbers: range) -> None:
    for number in numbers:
        await bus.publish("a", b"a%d" % number)
        await bus.publish("b", b"b%d" % number)


def subscribe(bus: ensue.Bus, *topics: str) -> ensue.Subscription:
    return bus.subscribe(*topics, name="reader", durable=True, acknowledge="manual")


def test_events_that_wait_for_the_state_store_are_not_delivered_after_leaving(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server, ensue.connect(server.url) as bus:
            async with subscribe(bus, "a", "b") as events:
                await fill(bus, range(1))
                first = await within(anext(events))
                with slow_state_store(events):
                    events.acknowledge(first.position)
                    await fill(bus, range(1, 20))
                    await until(lambda: waiting(events) >= 38)
                    await events.unsubscribe("b")
                got = []
                while b"a19" not in got:
                    event = await within(anext(events))
                    got.append(event.payload)
                    await within(event.ack())
            assert got == [b"a%d" % number for number in range(1, 20)]
            async with subscribe(bus) as again:
                assert again.topics == ("a",)
                await bus.publish("a", b"new")
                assert await read(again, 1) == [b"new"]

    asyncio.run(main())


def test_events_before_a_leave_are_not_delivered_after_rejoining(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path) as server,
            ensue.connect(server.url) as bus,
            subscribe(bus, "a", "b") as events,
        ):
            await fill(bus, range(1))
            first = await within(anext(events))
            with slow_state_store(events):
                events.acknowledge(first.position)
                await fill(bus, range(1, 20))
                await until(lambda: waiting(events) >= 38)
                await events.unsubscribe("b")
                back = asyncio.create_task(events.subscribe("b"))
                await asyncio.sleep(0)
            await within(back)
            assert "b" in events.topics
            await bus.publish("b", b"new")
            got = await read(events, 20)
            assert got == [*(b"a%d" % number for number in range(1, 20)), b"new"]
            assert events.missed == ()

    asyncio.run(main())


def test_cancelled_join_does_not_confirm_the_next_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path) as server,
            ensue.connect(server.url) as bus,
            subscribe(bus, "a") as events,
        ):
            with slow_state_store(events, once=lambda: "b" in events.topics) as held:
                taken_back = asyncio.create_task(events.subscribe("b"))
                await until(lambda: held)
                await events.unsubscribe("b")
                with pytest.raises(ensue.LocalProtocolError, match="left before"):
                    await within(taken_back)
                back = asyncio.create_task(events.subscribe("b"))
                await asyncio.sleep(0)
            await within(back)
            assert "b" in events.topics
            await bus.publish("b", b"new")
            assert await read(events, 1) == [b"new"]

    asyncio.run(main())


def test_closing_waits_until_the_server_knows_left_topics(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server, ensue.connect(server.url) as bus:
            events = await subscribe(bus, "a", "b").__aenter__()
            with slow_state_store(events):
                await events.unsubscribe("b")
                closing = asyncio.create_task(events.finish())
                await asyncio.sleep(0)
                assert not closing.done()
            await within(closing)
            async with subscribe(bus) as again:
                assert again.topics == ("a",)

    asyncio.run(main())


def test_closing_logs_unconfirmed_left_topics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server, ensue.connect(server.url, close_timeout=0.1) as bus:
            events = await subscribe(bus, "a", "b").__aenter__()
            with slow_state_store(events):
                await events.unsubscribe("b")
                with caplog.at_level(logging.WARNING, logger="ensue"):
                    await within(events.finish())
            assert "unsubscribe unconfirmed topics=b" in caplog.text

    asyncio.run(main())
