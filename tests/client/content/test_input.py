"""Input that brokers could not decode is refused at the call, and the bus keeps working."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.server.helpers import serving, within

import ensue
from ensue.server.config import Limits

HALF = "\ud800"
"""Half a surrogate pair: UTF-8 can't carry it."""

Attempt = Callable[[ensue.Bus, ensue.Subscription], Awaitable[object]]


async def act(bus: ensue.Bus, isolation: str, what: Callable[[Any], Awaitable[object]]) -> None:
    async with bus.transaction(isolation=isolation, timeout=60) as tx:
        await what(tx)


def planned(what: Callable[[Any], Awaitable[object]]) -> Attempt:
    return lambda bus, _: act(bus, "planned", what)


def serializable(what: Callable[[Any], Awaitable[object]]) -> Attempt:
    return lambda bus, _: act(bus, "serializable", what)


WRONG: dict[str, tuple[Attempt, str]] = {
    "half a pair in a value": (lambda bus, _: bus.publish({"x": HALF}), "unpaired surrogate"),
    "half a pair in a name": (lambda bus, _: bus.publish({HALF: 1}), "unpaired surrogate"),
    "half a pair in a filter": (lambda bus, _: bus.advertise(where=f"x = '{HALF}'"), "character 5"),
    "half a pair in a quoted name": (
        lambda bus, _: bus.advertise(where=f'"{HALF}" = 1'),
        "character 1",
    ),
    "no name to withdraw": (
        lambda bus, _: bus.unadvertise(5),  # type: ignore[arg-type]
        "advertise.. returned, got 5",
    ),
    "a long name to withdraw": (lambda bus, _: bus.unadvertise("x" * 2000), "advertise.. returned"),
    "half a pair to withdraw": (lambda bus, _: bus.unadvertise(HALF), "advertise.. returned"),
    "no name to withdraw within": (
        serializable(lambda tx: tx.unadvertise(None)),
        "advertise.. returned",
    ),
    "a long name to invite": (serializable(lambda tx: tx.invite("x" * 300)), "a client's name"),
    "half a pair to invite": (serializable(lambda tx: tx.invite(HALF)), "a client's name"),
    "no name to invite": (
        serializable(lambda tx: tx.invite(None)),
        "a client's name must be a str",
    ),
    "a long name to plan for": (
        planned(lambda plan: plan.client("x" * 300).publish({})),
        "a client's name",
    ),
    "a name that leaves no room": (
        planned(lambda plan: plan.client("x" * 250).publish({})),
        "could not decode",
    ),
    "no name to plan for": (planned(lambda plan: plan.client(None).publish({})), "a client's name"),
    "no name to withdraw in a plan": (
        planned(lambda plan: plan.unadvertise(None)),
        "advertise.. returned",
    ),
    "a subscription for its name": (
        lambda bus, events: act(bus, "planned", lambda plan: plan.client("b").unsubscribe(events)),
        "bus.content_name",
    ),
}


async def refused(url: str, attempt: Attempt, said: str) -> None:
    async with ensue.connect(url, order=None, name="a") as bus:
        await within(bus.advertise(where="x exists"))
        async with bus.subscribe(where="x exists") as events:
            with pytest.raises(ensue.BadInput, match=said):
                await within(attempt(bus, events))
            await within(bus.publish({"x": 1}, b"goes on"))
            assert (await within(anext(events))).payload == b"goes on"


@pytest.mark.parametrize("what", WRONG)
def test_undecodable_input_is_refused_and_the_bus_keeps_working(what: str) -> None:
    asyncio.run(refused("memory://wrong", *WRONG[what]))


def test_undecodable_input_is_refused_on_a_server_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server:
            for what in ("half a pair in a value", "a subscription for its name"):
                await refused(server.url, *WRONG[what])

    asyncio.run(main())


def test_too_long_bus_name_is_refused() -> None:
    async def main() -> None:
        async with ensue.connect("memory://long", order=None, name="n" * 250) as bus:
            with pytest.raises(ensue.BadInput, match=r"at most 247 characters, got 250"):
                await within(bus.advertise(where="x exists"))

    asyncio.run(main())


def test_plan_too_large_for_one_message_is_dropped(tmp_path: Path) -> None:
    async def main() -> None:
        limits = Limits(message_bytes=1_000_000)
        async with (
            serving(tmp_path, limits=limits) as server,
            ensue.connect(server.url, order=None, name="a") as bus,
        ):
            await within(bus.advertise(where="x exists"))

            async def thrice(plan: Any) -> None:
                for number in range(3):
                    await plan.publish({"x": number}, bytes(400_000))

            with pytest.raises(ensue.TransactionAborted, match=r"bytes.*in several plans"):
                await within(act(bus, "planned", thrice))
            for isolation in ("serializable", "planned"):
                with pytest.raises(ensue.BadInput, match="payload must have at most"):
                    await within(act(bus, isolation, lambda tx: tx.publish({"x": 1}, bytes(10**6))))
            with pytest.raises(ensue.BadInput, match="payload must have at most"):
                await within(act(bus, "atomic", lambda tx: tx.invite("a", {}, bytes(10**6))))
            await within(bus.publish({"x": 1}))

    asyncio.run(main())
