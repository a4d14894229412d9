"""A bus belongs to the event loop it was entered in, and does not outlive it."""

import asyncio
import gc
import weakref

import pytest

import ensue
from ensue.runtime import hub_memory as hub_module


def test_unclosed_buses_do_not_keep_event_loops_alive() -> None:
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        await ensue.connect("memory://h").__aenter__()
        loops.append(weakref.ref(asyncio.get_running_loop()))

    for _ in range(3):
        asyncio.run(main())
    gc.collect()
    assert [loop() for loop in loops] == [None, None, None]


def test_bus_of_another_event_loop_is_refused() -> None:
    kept: list[tuple[ensue.Bus, ensue.Subscription, ensue.ReceivedEvent]] = []

    async def enter() -> None:
        bus = ensue.connect("memory://h")
        await bus.__aenter__()
        events = bus.subscribe("a")
        await events.__aenter__()
        await bus.publish("a", b"1")
        kept.append((bus, events, await anext(events)))

    async def use() -> None:
        ((bus, events, event),) = kept
        match = "belongs to another event loop"
        async with ensue.connect("memory://h") as own:
            with pytest.raises(ensue.LocalProtocolError, match=match):
                await bus.publish("a", b"")
            with pytest.raises(ensue.LocalProtocolError, match=match):
                bus.subscribe("a")
            with pytest.raises(ensue.LocalProtocolError, match=match):
                await bus.close()
            with pytest.raises(ensue.LocalProtocolError, match=match):
                await events.subscribe("b")
            with pytest.raises(ensue.LocalProtocolError, match=match):
                await anext(events)
            with pytest.raises(ensue.LocalProtocolError, match=match):
                events.close()
            with pytest.raises(ensue.LocalProtocolError, match=match):
                await event.ack()
            await own.publish("a", b"not disturbed")

    asyncio.run(enter())
    ((bus, _, _),) = kept
    with pytest.raises(ensue.LocalProtocolError, match="belongs to another event loop"):
        bus.subscribe("a")
    asyncio.run(use())


def test_leaving_a_hub_never_closes_that_of_another_event_loop() -> None:
    kept: list[hub_module.Hub] = []

    async def enter() -> None:
        bus = ensue.connect("memory://h")
        await bus.__aenter__()
        assert bus._hub is not None
        kept.append(bus._hub)

    async def leave() -> None:
        async with ensue.connect("memory://h") as own:
            hub_module.leave_hub(kept[0])
            assert own._hub is hub_module.shared_hubs()["h"]

    asyncio.run(enter())
    asyncio.run(leave())
