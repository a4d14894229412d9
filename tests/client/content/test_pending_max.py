"""Options and room of a subscription by content, and transactions that do not fit."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.client.content.test_moves import Late
from tests.server.helpers import read, serving, within

import ensue
from ensue.core.errors import BadInput, SubscriptionLost
from ensue.protocols.transactions.client import Concluded
from ensue.server import Server

WHERE = "x exists"
SYNC_S = 0.5
NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"pending_max": -7}, "pending_max must be at least 1, got -7"),
    ({"pending_max": 1.5}, "pending_max must be a whole number, got 1.5"),
    ({"acknowledge": "nonsense"}, "acknowledge must be 'auto' or 'manual', got 'nonsense'"),
]


def at(server: Server, name: str) -> ensue.Bus:
    return ensue.connect(server.url, order=None, name=name)


async def turns() -> None:
    """Let all tasks run until they wait."""
    for _ in range(50):
        await asyncio.sleep(0)


async def note(events: ensue.Subscription) -> None:
    del events


@pytest.mark.parametrize(("options", "why"), NONSENSE)
@pytest.mark.parametrize("isolation", [None, "serializable", "planned", "on_subscription"])
def test_invalid_options_are_refused_by_every_call(
    options: dict[str, Any], why: str, isolation: str | None
) -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=None, name="a") as a:
            if isolation is None:
                with pytest.raises(BadInput, match=why):
                    a.subscribe(where=WHERE, **options)
            elif isolation == "on_subscription":
                with pytest.raises(BadInput, match=why):
                    a.on_subscription(note, **options)
            else:
                async with a.transaction(isolation=isolation) as tx:
                    with pytest.raises(BadInput, match=why):
                        await tx.subscribe(WHERE, **options)

    asyncio.run(main())


def test_subscription_name_is_validated_and_shown() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=None, name="a") as a:
            with pytest.raises(BadInput, match="a subscription's name"):
                a.subscribe(where=WHERE, name="")
            async with a.subscribe(where=WHERE, name="desk") as events:
                assert events.name == "desk"
                assert "'desk'" in repr(events)
            async with a.transaction() as tx:
                assert (await tx.subscribe(WHERE, name="other")).name == "other"
            async with a.transaction(isolation="planned") as plan:
                assert (await plan.subscribe(WHERE, name="third")).name == "third"

    asyncio.run(main())


def test_in_memory_publishers_wait_for_room() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=None, name="a") as a:
            await within(a.advertise(where=WHERE))
            async with a.subscribe(where=WHERE, pending_max=3) as events:
                for number in range(3):
                    await within(a.publish({"x": number}, b"%d" % number))
                waiting = asyncio.create_task(a.publish({"x": 3}, b"3"))
                await turns()
                assert not waiting.done()
                assert events.waiting == 3
                assert await read(events, 3) == [b"0", b"1", b"2"]
                assert await read(events, 1) == [b"3"]
                await within(waiting)

    asyncio.run(main())


def test_unacknowledged_events_take_room() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=None, name="a") as a:
            await within(a.advertise(where=WHERE))
            options: dict[str, Any] = {"pending_max": 2, "acknowledge": "manual"}
            async with a.subscribe(where=WHERE, **options) as events:
                for number in range(2):
                    await within(a.publish({"x": number}))
                first, second = await within(anext(events)), await within(anext(events))
                waiting = asyncio.create_task(a.publish({"x": 2}, b"last"))
                await turns()
                assert not waiting.done()
                assert events.pending == 2
                await first.ack()
                await second.ack()
                await within(waiting)
                assert (await within(anext(events))).payload == b"last"

    asyncio.run(main())


@pytest.mark.parametrize("isolation", ["serializable", "atomic", "planned"])
def test_slow_reader_gets_all_or_nothing_of_a_transaction(isolation: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S) as server,
            at(server, "a") as a,
            at(server, "b") as b,
        ):
            await within(a.advertise(where=WHERE))
            async with (
                b.subscribe(where=WHERE, pending_max=5) as slow,
                b.subscribe(where=WHERE) as brisk,
            ):
                for first in (0, 3):
                    async with a.transaction(isolation=isolation, timeout=60) as tx:
                        for number in range(first, first + 3):
                            await tx.publish({"x": number}, b"%d" % number)
                assert await read(brisk, 6) == [b"%d" % number for number in range(6)]
                assert await read(slow, 3) == [b"0", b"1", b"2"]
                with pytest.raises(SubscriptionLost, match="a transaction has 3 more"):
                    await within(anext(slow))
                assert len(b._content.session._readers) == 1, "no reader is left for the rest"

    asyncio.run(main())


def test_a_transaction_that_never_fits_ends_a_subscription_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "d", sync_s=SYNC_S) as server, at(server, "a") as a:
            await within(a.advertise(where=WHERE))
            async with a.transaction(timeout=60) as tx:
                small = await tx.subscribe(WHERE, pending_max=2)
                large = await tx.subscribe(WHERE, pending_max=3)
                for number in range(3):
                    await tx.publish({"x": number}, b"%d" % number)
            assert await read(large, 3) == [b"0", b"1", b"2"]
            with pytest.raises(SubscriptionLost, match="0 events are unread, a transaction has 3"):
                await within(anext(small))
            assert not large.closed

    asyncio.run(main())


def test_events_kept_for_a_plan_have_a_limit(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d", sync_s=SYNC_S) as server,
            at(server, "a") as a,
            at(server, "b") as b,
        ):
            await within(a.advertise(where=WHERE))
            handed: asyncio.Queue[ensue.Subscription] = asyncio.Queue()
            await within(b.on_subscription(handed.put, pending_max=2))
            late = Late(b, Concluded)
            async with a.transaction(isolation="planned", timeout=60) as plan:
                await plan.client("b").subscribe(WHERE)
            async with b.subscribe(where=WHERE) as other:
                for number in range(9):
                    await within(a.publish({"x": number}, b"%d" % number))
                await read(other, 9)
            (kept,) = b._content.session._readers.values()
            assert len(kept.events) == 3  # type: ignore[attr-defined]
            late.release()
            new = await within(handed.get())
            assert await read(new, 2) == [b"0", b"1"]
            with pytest.raises(SubscriptionLost, match="pending_max is 2"):
                await within(anext(new))

    asyncio.run(main())
