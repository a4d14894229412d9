"""Causal order through the client, in process: no effect before its cause."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.brokers.proxy import Proxy
from tests.client.test_takeover import port, through
from tests.server.helpers import serving, until, within

import ensue
from ensue.checkers import Verdict, check
from ensue.client.bus import Bus
from ensue.core import trace
from ensue.protocols.membership.client import KnownMembers
from ensue.runtime import hub_remote, remote_membership
from ensue.store import open_log

ROUGH = "memory://{}?jitter_ms=5&loss=0.2&seed={}"


async def read(events: ensue.Subscription, count: int) -> list[str]:
    found: list[str] = []
    if not count:
        return found
    async for event in events:
        found.append(event.payload.decode())
        assert event.position == len(found)
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("seed", range(3))
def test_reply_never_precedes_its_question(seed: int, tmp_path: Path) -> None:
    url, order = ROUGH.format("room", seed), ensue.Causal()

    async def main() -> list[str]:
        async with (
            ensue.connect(url, order=order, name="ada", trace=str(tmp_path / "trace")) as ada,
            ensue.connect(url, order=order, name="bob") as bob,
            ensue.connect(url, order=order, name="eve") as eve,
            bob.subscribe("questions") as asked,
            eve.subscribe("questions", "answers") as heard,
        ):

            async def answer() -> None:
                for _ in range(20):
                    event = await anext(asked)
                    await bob.publish("answers", b"to " + event.payload, receipt=False)

            answering = asyncio.create_task(answer())
            for number in range(20):
                await ada.publish("questions", str(number).encode(), receipt=False)
            found = await read(heard, 40)
            await answering
            return found

    found = asyncio.run(main())
    for index, text in enumerate(found):
        if text.startswith("to "):
            assert text.removeprefix("to ") in found[:index]
    rows = trace.read(tmp_path / "trace")
    assert check(rows, order="causal").verdict is Verdict.VALID
    assert {row.order for row in rows} == {"causal"}
    assert {row.subscription for row in rows if row.action == "delivered"} >= {
        row.subscription for row in rows if row.action == "subscribed"
    }


def run_bus(program: Callable[[Bus], Awaitable[None]]) -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=ensue.Causal()) as bus:
            await program(bus)

    asyncio.run(main())


def test_subscriptions_of_one_bus_share_its_node() -> None:
    async def program(bus: Bus) -> None:
        async with bus.subscribe("a", "b") as both, bus.subscribe("b") as one:
            for topic, text in (("a", "1"), ("b", "2"), ("a", "3"), ("b", "4")):
                await bus.publish(topic, text.encode())
            assert await read(both, 4) == ["1", "2", "3", "4"]
            assert await read(one, 2) == ["2", "4"]

    run_bus(program)


def test_topics_are_joined_with_the_first_share_and_left_with_the_last() -> None:
    async def program(bus: Bus) -> None:
        async with bus.subscribe("a") as first:
            async with bus.subscribe("a") as second:
                assert second.topics == ("a",)
                await bus.publish("a", b"both")
                assert await read(second, 1) == ["both"]
            await bus.publish("a", b"one")
            assert await read(first, 2) == ["both", "one"]
            await first.unsubscribe("a")
            assert first.topics == ()
            await bus.publish("a", b"none")
            await first.subscribe("a")
            await bus.publish("a", b"again")
            assert (await anext(first)).payload == b"again"

    run_bus(program)


def test_buses_join_and_leave() -> None:
    async def main() -> None:
        url = "memory://many"
        async with ensue.connect(url, order=ensue.Causal()) as stays, stays.subscribe("t") as heard:
            for number in range(5):
                async with (
                    ensue.connect(url, order=ensue.Causal()) as guest,
                    guest.subscribe("t") as own,
                ):
                    await guest.publish("t", str(number).encode())
                    assert await read(own, 1) == [str(number)]
            assert await read(heard, 5) == ["0", "1", "2", "3", "4"]

    asyncio.run(main())


def test_publishing_waits_for_a_slow_reader() -> None:
    async def program(bus: Bus) -> None:
        async with bus.subscribe("t", pending_max=4) as slow:
            published = 0

            async def publish() -> None:
                nonlocal published
                for number in range(10):
                    await bus.publish("t", str(number).encode())
                    published += 1

            task = asyncio.create_task(publish())
            for _ in range(50):
                await asyncio.sleep(0)
            assert published == 4
            assert await read(slow, 10) == [str(number) for number in range(10)]
            await task

    run_bus(program)


def test_trace_names_order_within_topics(tmp_path: Path) -> None:
    async def main() -> None:
        order = ensue.Causal(across_topics=False)
        async with (
            ensue.connect("memory://", order=order, trace=str(tmp_path / "trace")) as bus,
            bus.subscribe("a", "b") as events,
        ):
            await bus.publish("a", b"1")
            await bus.publish("b", b"2")
            await read(events, 2)

    asyncio.run(main())
    rows = trace.read(tmp_path / "trace")
    assert {row.order for row in rows} == {"causal-topic"}
    assert check(rows, order="causal-topic").verdict is Verdict.VALID


def test_recorded_run_has_its_events(tmp_path: Path) -> None:
    async def main() -> None:
        record = str(tmp_path / "run")
        async with (
            ensue.connect("memory://", order=ensue.Causal(), record=record) as bus,
            bus.subscribe("t") as events,
        ):
            for number in range(3):
                await bus.publish("t", str(number).encode())
            await read(events, 3)

    asyncio.run(main())
    log = open_log(tmp_path / "run" / "log")
    (batch,) = log.read("t", *log.bounds()["t"])
    assert batch.to_pydict()["value"] == [b"0", b"1", b"2"]


def test_orders_must_agree_on_a_hub() -> None:
    async def main() -> None:
        async with ensue.connect("memory://one", order=ensue.Causal()) as bus:
            with pytest.raises(ensue.ConfigurationError, match="the hub's order is"):
                async with ensue.connect("memory://one"):
                    pass
            with pytest.raises(ensue.UnsupportedOrder) as caught:
                bus.subscribe("t", order=ensue.Total())
            assert str(caught.value) == (
                "this bus publishes in causal order, so none of its events has total order: leave "
                "order=… out, or use a bus of connect(…, order=ensue.Total())"
            )
            async with bus.subscribe("t", order=None) as anyhow:
                await bus.publish("t", b"m")
                assert await read(anyhow, 1) == ["m"]

    asyncio.run(main())


@pytest.mark.parametrize("field", [{"across_topics": 1}, {"held_max": 0}, {"held_max": True}])
def test_invalid_causal_order_is_refused(field: dict[str, object]) -> None:
    with pytest.raises(ensue.BadInput, match=next(iter(field))):
        ensue.Causal(**field)  # type: ignore[arg-type]


def test_members_do_not_wait_for_client_that_gave_up_connecting(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url, order=ensue.Causal()) as stays,
        ):
            registry = server._registries[0].node
            for number in range(3):
                bus = ensue.connect(server.url, order=ensue.Causal())
                entering = asyncio.create_task(bus.__aenter__())
                # At several times: just after the registry numbered it, or while it greets others.
                async with asyncio.timeout(60):
                    while len(registry.names) < number + 2:  # noqa: ASYNC110 - to be just in time
                        await asyncio.sleep(0)
                for _ in range(number):
                    await asyncio.sleep(0)
                entering.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await entering
                    await bus.close()  # It was quicker.
                await until(lambda: registry.present == (stays.name,), "it is gone")

    asyncio.run(main())


def test_members_do_not_wait_for_client_whose_registration_timed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            ensue.connect(server.url, order=ensue.Causal()) as stays,
        ):
            registry = server._registries[0].node
            monkeypatch.setattr(remote_membership, "REGISTER_S", 0.2)
            monkeypatch.setattr(KnownMembers, "take", lambda _self, _members: False)
            with pytest.raises(
                ensue.TransportError, match="no answer from node-1, the registry of causal order"
            ):
                await ensue.connect(server.url, order=ensue.Causal()).__aenter__()
            assert len(registry.names) == 2
            await until(lambda: registry.present == (stays.name,), "it is gone")

    asyncio.run(main())


def test_members_do_not_wait_for_client_that_left_on_a_silent_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_remote, "RENEW_S", 0.2)

    async def main() -> None:
        async with serving(tmp_path / "d") as server, Proxy(port(server)) as proxy:
            bus = ensue.connect(through(proxy), order=ensue.Causal(), close_timeout=10)
            await bus.__aenter__()
            proxy.forget()
            await within(bus.close())
            assert server._registries[0].node.present == ()
            assert proxy.accepted == 2

    asyncio.run(main())


def test_connection_on_which_a_server_answers_is_not_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "d") as server,
            Proxy(port(server)) as proxy,
            ensue.connect(through(proxy), order=ensue.Causal()) as bus,
        ):
            hub = bus._hub
            assert isinstance(hub, hub_remote.RemoteHub)
            since_s = hub.loop.time()
            for number in range(2):  # The registry is asked for subscribers before each receipt.
                await within(bus.publish("t", b"%d" % number))
                hub._renew(since_s)
            assert proxy.accepted == 1

    asyncio.run(main())
