"""An exception in a node fails the tasks that wait for it, and no others."""

import asyncio
import logging
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.server.helpers import read, serving, within

import ensue
from ensue.client.reader import NodeReader
from ensue.core.errors import InternalError, SubscriptionLost
from ensue.runtime.hub_memory import MemoryHub


class Fault(Exception):
    """Fail: this must not be called."""


def faulty(*_args: Any, **_named: Any) -> NoReturn:
    raise Fault("a fault")


def driver_of(events: ensue.Subscription) -> Any:
    assert isinstance(events._reader, NodeReader)
    return events._reader._driver


@pytest.mark.parametrize("where", ["receive", "handle_timer", "take_effects"])
@pytest.mark.parametrize("transport", ["memory", "served"])
def test_subscription_failure_is_reported_and_affects_no_other(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
    transport: str,
) -> None:
    async def main(url: str) -> None:
        async with (
            ensue.connect(url) as bus,
            bus.subscribe("x") as events,
            bus.subscribe("x") as others,
        ):
            driver = driver_of(events)
            with monkeypatch.context() as patch:
                patch.setattr(driver.node, where, faulty)
                if where == "handle_timer":
                    patch.setattr(driver.node, "next_timer_ns", lambda: 0)
                await within(bus.publish("x", b"1"))
                assert (await within(anext(others))).payload == b"1"
                with pytest.raises(SubscriptionLost, match="a fault") as lost:
                    await within(read(events, 2))  # What was there before can still be read.
            assert isinstance(lost.value.__cause__, Fault)
            assert driver.closed
            await within(bus.publish("x", b"2"))
            assert (await within(anext(others))).payload == b"2"

    async def served() -> None:
        async with serving(tmp_path / "d") as server:
            await main(server.url)

    with caplog.at_level(logging.ERROR, "ensue"):
        asyncio.run(main("memory://") if transport == "memory" else served())
    assert "error='a fault'" in caplog.text


@pytest.mark.parametrize("transport", ["memory", "served"])
def test_bus_failure_fails_all_waiting_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    async def main(url: str) -> None:
        bus = ensue.connect(url)
        await within(bus.__aenter__())
        assert bus._driver is not None
        monkeypatch.setattr(bus._driver.node, "receive", faulty)
        with pytest.raises(
            InternalError, match=r"x/1 may be delivered or not: .* a fault"
        ) as failed:
            await within(bus.publish("x", b"1"))
        assert isinstance(failed.value.__cause__, Fault)
        with pytest.raises(InternalError, match="a fault"):
            await within(bus.flush())
        with pytest.raises(InternalError, match="a fault"):
            bus.subscribe("x")
        await within(bus.close())

    async def served() -> None:
        async with serving(tmp_path / "d") as server:
            await main(server.url)

    asyncio.run(main("memory://") if transport == "memory" else served())


def test_failure_of_causal_bus_ends_its_subscriptions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://h", order=ensue.Causal()) as bus,
            ensue.connect("memory://h", order=ensue.Causal()) as other,
            bus.subscribe("x") as events,
        ):
            assert bus._driver is not None
            monkeypatch.setattr(bus._driver.node, "receive", faulty)
            await other.publish("x", b"1", receipt=False)
            with pytest.raises(SubscriptionLost, match="a fault"):
                await within(anext(events))

    asyncio.run(main())


def test_failure_of_chain_in_memory_fails_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with (
            ensue.connect("memory://h") as bus,
            ensue.connect("memory://h") as other,
            other.subscribe("x") as events,
        ):
            hub = bus._hub
            assert isinstance(hub, MemoryHub)
            monkeypatch.setattr(hub._chain[0].node, "receive", faulty)
            with pytest.raises(InternalError, match="a fault"):
                await within(bus.publish("x", b"1"))
            with pytest.raises(SubscriptionLost, match="a fault"):
                await within(anext(events))

    asyncio.run(main())
