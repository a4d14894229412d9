"""Traces of events by content: `delivered` is what the application gets, so drops are found."""

import asyncio
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import Shell
from tests.server.helpers import read, serving, within

import ensue
from ensue.checkers import Verdict, check
from ensue.client.content.reader import ContentShare
from ensue.client.content.session import ContentSession
from ensue.client.subscription import Subscription
from ensue.core import trace
from ensue.core.errors import SubscriptionLost
from ensue.core.trace import Row
from ensue.protocols.content.client import Notified

WHERE = "x exists"


async def play(directory: Path) -> None:
    """Publish regular and transactional events to two buses; the first leaves some unread."""
    url = "memory://traced?brokers=3"
    async with (
        ensue.connect(url, order=None, name="a", trace=str(directory)) as a,
        ensue.connect(url, order=None, name="b") as b,
        ensue.connect(url, order=None, name="c") as c,
    ):
        await within(a.advertise(where=WHERE))
        readers = [await within(bus.subscribe(where=WHERE).__aenter__()) for bus in (a, b, c)]
        for number in range(4):
            await within(a.publish({"x": number}, b"alone %d" % number))
            for isolation in ("serializable", "atomic", "planned"):
                async with a.transaction(isolation=isolation) as tx:
                    for part in range(3):
                        await tx.publish({"x": part}, b"%b %d" % (isolation.encode(), number))
        for events in readers[1:]:
            await drain(events)
        await read(readers[0], 5)


async def drain(events: Subscription) -> None:
    while events.waiting:
        await within(anext(events))


def of(directory: Path, action: str, verdict: str = "") -> list[Row]:
    return [row for row in trace.read(directory) if (row.action, row.verdict) == (action, verdict)]


def dropping(method: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Return a method that does nothing the nth time."""
    calls = 0

    @wraps(method)
    def run(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return None if calls == number else method(*arguments)

    return run


def forgetting(method: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Return a method that reads a subscription, and skips an event the nth time."""
    calls = 0

    @wraps(method)
    async def run(events: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            events._queue.unread.popleft()
        return await method(events)

    return run


def test_handed_over_events_are_delivered_and_the_rest_unread(tmp_path: Path) -> None:
    asyncio.run(play(tmp_path / "t"))
    report = check(trace.read(tmp_path / "t"), order="transactions")
    assert report.verdict is Verdict.VALID, report.sentences()
    count = 4 * (1 + 3 * 3)
    handed = of(tmp_path / "t", "delivered")
    assert len(handed) == 5 + 2 * count
    assert report.delivery_count == len(handed)
    assert len(of(tmp_path / "t", "discarded", "unread")) == count - 5
    for node in ("a", "b", "c"):
        positions = [row.position for row in handed if row.node == node]
        assert positions == list(range(1, len(positions) + 1))


@pytest.mark.parametrize("number", [2, 20, 35])
@pytest.mark.parametrize(
    ("where", "method", "plant"),
    [
        (ContentSession, "_notified", dropping),
        (ContentShare, "notified", dropping),
        (Subscription, "__anext__", forgetting),
    ],
)
def test_checker_finds_events_that_a_client_drops(
    where: type,
    method: str,
    plant: Callable[[Callable[..., Any], int], Callable[..., Any]],
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(where, method, plant(getattr(where, method), number))
        asyncio.run(play(tmp_path / "t"))
    ended = Shell(capsys, monkeypatch)("check", tmp_path / "t", "--order", "transactions")
    assert ended.code == 1, ended.stdout
    assert "torn" in ended.stdout or "mixed" in ended.stdout


def test_events_for_a_closed_subscription_are_not_delivered(tmp_path: Path) -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=None, name="a", trace=str(tmp_path / "t")) as a:
            await within(a.advertise(where=WHERE))
            async with a.subscribe(where=WHERE) as left, a.subscribe(where=WHERE) as other:
                client = a._content.session
                sent = client._notified

                def close_first(value: Notified) -> None:
                    left.close()
                    sent(value)

                client._notified = close_first  # type: ignore[assignment, method-assign]
                async with a.transaction() as tx:
                    await tx.publish({"x": 1}, b"last")
                assert await read(other, 1) == [b"last"]
                assert len(client._readers) == 1

    asyncio.run(main())
    (dropped,) = of(tmp_path / "t", "discarded", "not_subscribed")
    assert dropped.transaction
    assert len(of(tmp_path / "t", "delivered")) == 1
    assert check(trace.read(tmp_path / "t"), order="transactions").verdict is Verdict.VALID


def test_events_beyond_the_room_of_a_reader_are_not_delivered(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=0.5) as server,
            ensue.connect(server.url, order=None, name="a", trace=str(tmp_path / "t")) as a,
        ):
            await within(a.advertise(where=WHERE))
            async with (
                a.subscribe(where=WHERE, pending_max=2) as slow,
                a.subscribe(where=WHERE) as brisk,
            ):
                for number in range(3):
                    await within(a.publish({"x": number}, b"%d" % number))
                await read(brisk, 3)
                await read(slow, 2)
                with pytest.raises(SubscriptionLost):
                    await within(anext(slow))

    asyncio.run(main())
    (dropped,) = of(tmp_path / "t", "discarded", "overflow")
    assert dropped.topic == "x = 2"
    assert len(of(tmp_path / "t", "delivered")) == 5
