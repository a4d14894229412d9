"""Events in doubt: leaving is bounded, and names the events without a receipt."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.server.helpers import read, serving, until, within

import ensue
from ensue.client import publications, receipts
from ensue.core.errors import BadInput, TransactionPending
from ensue.protocols.interface import Settle
from ensue.runtime.hub_remote import RemoteHub
from ensue.server import Server, ServerConfig

SHORT_S = 0.05


@asynccontextmanager
async def away(data: Path, **options: Any) -> AsyncIterator[ensue.Bus]:
    """A bus that is not entered yet, to a server that stops once it is."""
    server = Server(ServerConfig(data=str(data), listen="127.0.0.1:0"))
    await server.start()
    bus = ensue.connect(server.url, name="p", close_timeout=SHORT_S, **options)
    enter = bus.__aenter__

    async def enter_and_stop() -> ensue.Bus:
        await enter()
        await server.stop()
        return bus

    bus_type = type("Away", (ensue.Bus,), {"__aenter__": lambda _self: enter_and_stop()})
    bus.__class__ = bus_type
    try:
        yield bus
    finally:
        await server.stop()


def ids(bus: ensue.Bus, count: int) -> tuple[str, ...]:
    return tuple(f"{bus.name}/t/{number}" for number in range(1, count + 1))


# -- Leaving ---------------------------------------------------------------------------------------


def test_leaving_without_a_server_ends_and_names_events_in_doubt(tmp_path: Path) -> None:
    async def main() -> None:
        async with away(tmp_path) as bus:

            async def work() -> None:
                async with bus:
                    for _ in range(7):
                        await bus.publish("t", receipt=False)

            with pytest.raises(ensue.EventsInDoubt) as caught:
                await within(work(), 30)
            assert caught.value.events == ids(bus, 7)
            assert caught.value.count == 7
            assert "7 events are in doubt" in str(caught.value)
            assert str(caught.value).endswith(f"{', '.join(ids(bus, 5))} and 2 more")
            assert isinstance(caught.value, TimeoutError)
            await within(bus.close())  # It is closed: there is nothing more to say.

    asyncio.run(main())


@pytest.mark.parametrize("ended_by", ["exception", "timeout", "cancel", "close"])
@pytest.mark.parametrize("receipt", [True, False])
def test_leaving_with_an_exception_logs_events_in_doubt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ended_by: str, receipt: bool
) -> None:
    async def work(bus: ensue.Bus) -> None:
        async with bus:
            publishing = asyncio.create_task(bus.publish("t", receipt=receipt))
            publishing.add_done_callback(lambda done: done.cancelled() or done.exception())
            await until(lambda: bus.unsettled)
            if ended_by == "exception":
                raise ZeroDivisionError
            if ended_by == "close":
                await bus.close()
            task = asyncio.current_task()
            assert task is not None
            if ended_by == "timeout":
                async with asyncio.timeout(0):
                    await publishing if receipt else await bus.flush()
            task.cancel()
            await asyncio.sleep(0)

    async def main() -> None:
        async with away(tmp_path) as bus:
            expected = {
                "exception": ZeroDivisionError,
                "timeout": TimeoutError,
                "cancel": asyncio.CancelledError,
                "close": ensue.EventsInDoubt,
            }[ended_by]
            working = asyncio.create_task(work(bus))
            await asyncio.wait((working,), timeout=30)
            with pytest.raises(expected):
                working.result()
            warning = f"1 event is in doubt, may be delivered or not: {bus.name}/t/1"
            assert (warning in caplog.text) == (ended_by != "close")

    asyncio.run(main())


def test_cancelled_close_reports_events_in_doubt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server:
            bus = await ensue.connect(server.url, name="p").__aenter__()
            await server.stop()
            await bus.publish("t", receipt=False)
            closing = asyncio.create_task(bus.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await within(closing)
            assert f"or not: {bus.name}/t/1" in caplog.text

    asyncio.run(main())


def test_close_fails_tasks_that_wait_for_a_receipt(tmp_path: Path) -> None:
    async def main() -> None:
        async with away(tmp_path) as bus:
            await bus.__aenter__()
            waiting = asyncio.create_task(bus.publish("t"))
            await until(lambda: bus.unsettled)
            with pytest.raises(ensue.EventsInDoubt):
                await within(bus.close())
            with pytest.raises(ensue.EventsInDoubt, match="closed before the receipt") as caught:
                await within(waiting)
            assert caught.value.events == ids(bus, 1)

    asyncio.run(main())


def test_long_close_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "QUIET_S", 0)

    async def main() -> None:
        async with away(tmp_path) as bus:
            await bus.__aenter__()
            await bus.publish("t", receipt=False)
            with pytest.raises(ensue.EventsInDoubt):
                await within(bus.close())

    asyncio.run(main())
    assert "close waits for receipts unsettled=1 close_timeout_s=0.05" in caplog.text


@pytest.mark.parametrize(
    "order", [ensue.Causal(), ensue.Deadline(ms=1000), ensue.Merged(epsilon=0.01, delta=0.5), None]
)
def test_leaving_is_bounded_in_every_order(tmp_path: Path, order: ensue.Order | None) -> None:
    async def main() -> None:
        async with away(tmp_path, order=order) as bus:
            await bus.__aenter__()
            await bus.publish("t", receipt=False)
            with suppress(ensue.EventsInDoubt):
                await within(bus.close(), 30)
            assert bus.unsettled == 0

    asyncio.run(main())


def test_leaving_does_not_wait_for_a_silent_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker may be silent while its connection stands."""

    async def main() -> None:
        async with serving(tmp_path) as server:
            bus = await ensue.connect(server.url, close_timeout=0).__aenter__()
            hub = bus._hub
            assert isinstance(hub, RemoteHub)
            silence = asyncio.get_running_loop().create_future()

            async def say_nothing(_name: str) -> None:
                await silence

            monkeypatch.setattr(hub.transport, "exit", say_nothing)
            async with bus.subscribe("t"):
                pass
            await within(bus.close(), 30)
            silence.cancel()

    asyncio.run(main())


def test_failure_of_event_without_receipt_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            event = await bus.publish("t")
            bus._receipts.expect(event, wanted=False)
            bus._receipts.settle(Settle(event, "void"))

    asyncio.run(main())
    assert "publish failed receipt=False error='client~1/t/1 lost its place" in caplog.text


def test_lost_connection_is_logged_as_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server, ensue.connect(server.url) as bus:
            hub = bus._hub
            assert isinstance(hub, RemoteHub)
            (link,) = hub.transport.carrier._links.values()  # type: ignore[attr-defined]
            link.connection.abort()
            await until(lambda: "is lost" in caplog.text)

    asyncio.run(main())
    (record,) = (each for each in caplog.records if "is lost" in each.message)
    assert record.levelno == logging.WARNING


# -- A timeout of one's own ------------------------------------------------------------------------


def test_publish_times_out_and_its_event_is_in_doubt(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        server = Server(ServerConfig(data=str(tmp_path), listen="127.0.0.1:0"))
        await server.start()
        listen = server.url.removeprefix("ensue://")
        async with ensue.connect(server.url, name="p") as bus:
            await server.stop()
            with pytest.raises(ensue.EventsInDoubt, match="publish timed out") as caught:
                await within(bus.publish("t", b"1", timeout=SHORT_S), 30)
            assert (caught.value.events, caught.value.count) == (ids(bus, 1), 1)
            with pytest.raises(
                ensue.EventsInDoubt, match=r"flush timed out after 0\.05 s"
            ) as caught:
                await within(bus.flush(timeout=SHORT_S), 30)
            assert caught.value.events == ids(bus, 1)
            # It was in doubt, and is published once the server is back.
            async with serving(tmp_path, listen=listen):
                await within(bus.flush(timeout=30))
                async with bus.subscribe("t", start="earliest") as events:
                    assert await read(events, 1) == [b"1"]

    asyncio.run(main())


def test_publish_in_time_returns_its_receipt() -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            assert (await bus.publish("t", timeout=30)).slot == 1

    asyncio.run(main())


def test_publish_without_room_times_out_and_publishes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            async with bus.subscribe("t", pending_max=1) as events:
                await bus.publish("t", b"1")
                with pytest.raises(ensue.PublishTimeout, match="nothing was published") as caught:
                    await within(bus.publish("t", b"2", timeout=SHORT_S), 30)
                assert caught.value.retriable
                assert await read(events, 1) == [b"1"]
            assert (await bus.publish("t", b"3", timeout=30)).slot == 2
            monkeypatch.setattr(publications, "UNSETTLED_MAX", 0)
            with pytest.raises(ensue.PublishTimeout):
                await within(bus.publish("t", b"4", receipt=False, timeout=SHORT_S), 30)

    asyncio.run(main())


def test_events_by_content_can_be_in_doubt(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server:
            bus = await ensue.connect(server.url, name="p", close_timeout=SHORT_S).__aenter__()
            await bus.advertise(where="price > 0")
            await bus.publish({"price": 1}, timeout=30)
            await server.stop()
            with pytest.raises(ensue.EventsInDoubt, match="publish timed out") as caught:
                await within(bus.publish({"price": 2}, timeout=SHORT_S), 30)
            (event,) = caught.value.events
            assert bus.unsettled == 1
            with pytest.raises(ensue.EventsInDoubt, match="the bus was closed") as caught:
                await within(bus.close(), 30)
            assert caught.value.events == (event,)

    asyncio.run(main())


@pytest.mark.parametrize("ended_by", ["exception", "commit"])
def test_leaving_a_transaction_without_a_server_ends(tmp_path: Path, ended_by: str) -> None:
    async def main() -> None:
        async with serving(tmp_path) as server:
            bus = await ensue.connect(server.url, close_timeout=SHORT_S).__aenter__()

            async def work() -> None:
                async with bus.transaction(timeout=SHORT_S):
                    await server.stop()
                    if ended_by == "exception":
                        raise ZeroDivisionError

            expected = ZeroDivisionError if ended_by == "exception" else TransactionPending
            with pytest.raises(expected):
                await within(work(), 30)
            await within(bus.close(), 30)

    asyncio.run(main())


def test_error_names_a_bounded_number_of_events() -> None:
    many = tuple(f"p/t/{number}" for number in range(1, 5_001))
    error = receipts.events_in_doubt("it was closed", many, 20_000)
    assert len(error.events) == ensue.EventsInDoubt.IDS_MAX
    assert error.count == 20_000
    assert str(error).endswith("p/t/5 and 19,995 more")


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), True, "5", None])
def test_invalid_timeout_is_refused(wrong: Any) -> None:
    with pytest.raises(BadInput, match="close_timeout must be a finite number of seconds, 0 or mo"):
        ensue.connect("memory://", close_timeout=wrong)

    async def main() -> None:
        async with ensue.connect("memory://") as bus:
            for call in (bus.publish("t", timeout=0), bus.flush(timeout=0)):
                with pytest.raises(BadInput, match=r"timeout must be .* above 0, got 0"):
                    await call
            if wrong is not None:
                with pytest.raises(BadInput, match=r"timeout must be .* 0 or more"):
                    await bus.close(timeout=wrong)

    asyncio.run(main())
