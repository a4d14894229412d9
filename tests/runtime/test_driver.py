import asyncio
from collections.abc import Callable, Sequence
from typing import NoReturn

import pytest

from ensue.core.clock import ManualClock, SystemClock
from ensue.core.errors import BadInput, LocalProtocolError
from ensue.core.event import Event
from ensue.protocols.interface import (
    Attach,
    Broadcast,
    Deliver,
    Detach,
    Effect,
    Frame,
    Multicast,
    Outcome,
    Persist,
    Publish,
    Send,
)
from ensue.protocols.recorder import Recorder
from ensue.runtime import Driver
from ensue.runtime.driver import Failed
from ensue.transports.base import Capabilities, Receiver

EVENT = Event(topic="a", payload=b"", publisher="p", publisher_seq=1)


class Ping(Frame, frozen=True, tag=99):
    """A frame."""


class FakeNode:
    """A node with prepared effects and a prepared timer."""

    name = "node"

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.timer_ns: int | None = None
        self.calls: list[str] = []
        self.on_timer: Callable[[], None] = lambda: None

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        self.calls.append(f"receive from {source}")

    def handle_timer(self, *, now_ns: int) -> None:
        self.calls.append(f"timer at {now_ns}")
        self.timer_ns = None
        self.on_timer()

    def next_timer_ns(self) -> int | None:
        return self.timer_ns

    def take_effects(self) -> Sequence[Effect]:
        effects, self.effects = self.effects, []
        return effects


class FakeTransport:
    """A port that records sent frames."""

    name = "fake://"
    lazy = False
    capabilities = Capabilities(fifo=True, durable=False, replay=False, conditional=False)

    def __init__(self) -> None:
        self.log: list[str] = []
        self.receiver: Receiver | None = None

    def open(self, name: str, receiver: Receiver) -> "FakeTransport":
        self.receiver = receiver
        return self

    def send(self, peer: str, frame: Frame) -> None:
        self.log.append(f"send to {peer}")

    def multicast(self, effect: Multicast) -> None:
        self.log.append(f"multicast to {effect.topic}")

    def ask(self, effect: Broadcast | Attach | Detach, request: Frame) -> None:
        self.log.append(type(effect).__name__)

    def flush(self) -> None:
        self.log.append("flush")

    def close(self) -> None:
        self.log.append("close")


def test_effects_are_sent_before_outcomes_and_flushed_once() -> None:
    async def main() -> None:
        node, transport = FakeNode(), FakeTransport()

        def reported(outcomes: Sequence[Outcome]) -> None:
            transport.log.extend(f"reported {type(outcome).__name__}" for outcome in outcomes)

        driver = Driver(node, transport=transport, clock=ManualClock(), on_outcomes=reported)
        transport.log.clear()

        def command(node: FakeNode, _now_ns: int) -> None:
            node.effects = [
                Deliver(EVENT, 1),
                Send("peer", Ping()),
                Publish(EVENT),
                Broadcast(EVENT),
            ]

        driver.command(command)
        assert transport.log == [
            "send to peer",
            "Broadcast",
            "reported Deliver",
            "reported Publish",
            "flush",
        ]
        driver.close()

    asyncio.run(main())


def test_event_is_recorded_as_published_before_it_is_recorded_as_sent() -> None:
    async def main() -> list[str]:
        node, recorder = FakeNode(), Recorder("run")
        driver = Driver(node, transport=FakeTransport(), clock=ManualClock(7), recorder=recorder)

        def command(node: FakeNode, _now_ns: int) -> None:
            node.effects = [Publish(EVENT), Broadcast(EVENT), Deliver(EVENT, 1)]

        driver.command(command)
        driver.close()
        return [row.action for row in recorder.rows]

    assert asyncio.run(main()) == ["published", "sent", "delivered"]


def test_node_is_called_when_its_timer_is_due() -> None:
    async def main() -> None:
        node, clock = FakeNode(), SystemClock()
        done = asyncio.Event()
        node.on_timer = done.set
        driver = Driver(node, transport=FakeTransport(), clock=clock)

        def later(node: FakeNode, now_ns: int) -> None:
            node.timer_ns = now_ns + 3_600_000_000_000

        def sooner(node: FakeNode, now_ns: int) -> None:
            node.timer_ns = now_ns + 1_000_000

        driver.command(later)
        await asyncio.sleep(0)
        driver.command(sooner)
        async with asyncio.timeout(30):
            await done.wait()
        assert len(node.calls) == 1
        driver.close()

    asyncio.run(main())


def test_timer_set_before_the_clock_stepped_forward_holds_up_no_later_one() -> None:
    async def main() -> None:
        node, clock = FakeNode(), ManualClock()
        done = asyncio.Event()
        node.on_timer = done.set
        driver = Driver(node, transport=FakeTransport(), clock=clock)

        def later(node: FakeNode, now_ns: int) -> None:
            node.timer_ns = now_ns + 3_600_000_000_000

        def soon(node: FakeNode, now_ns: int) -> None:
            node.timer_ns = now_ns + 1_000_000

        driver.command(later)
        await asyncio.sleep(0)
        clock.advance(3_600_000_000_000)
        driver.command(soon)
        async with asyncio.timeout(30):
            await done.wait()
        driver.close()

    asyncio.run(main())


def test_closed_driver_takes_no_command_and_calls_no_timer() -> None:
    async def main() -> None:
        node, transport = FakeNode(), FakeTransport()
        driver = Driver(node, transport=transport, clock=SystemClock())
        node.timer_ns = 0
        driver.close()
        with pytest.raises(LocalProtocolError, match="node is closed"):
            driver.command(lambda _node, _now: None)
        for _ in range(3):
            await asyncio.sleep(0)
        assert node.calls == []
        assert transport.log[-1] == "close"

    asyncio.run(main())


def test_retired_driver_closes_when_its_node_is_done() -> None:
    async def main() -> None:
        node, transport = FakeNode(), FakeTransport()
        driver = Driver(node, transport=transport, clock=SystemClock())
        driver.retire(lambda node: len(node.calls) == 2)
        with pytest.raises(LocalProtocolError, match="node is closed"):
            driver.command(lambda _node, _now: None)
        assert transport.receiver is not None
        transport.receiver((Ping(),), "peer")
        assert not driver.closed
        transport.receiver((Ping(),), "peer")
        assert driver.closed
        assert transport.log[-1] == "close"

    asyncio.run(main())


def test_retired_driver_still_calls_the_timer() -> None:
    async def main() -> None:
        node, transport = FakeNode(), FakeTransport()
        called = asyncio.Event()
        node.on_timer = called.set
        driver = Driver(node, transport=transport, clock=SystemClock())
        node.timer_ns = 0
        driver.retire(lambda node: bool(node.calls))
        async with asyncio.timeout(10):
            await called.wait()
        assert driver.closed

    asyncio.run(main())


def test_driver_whose_node_is_done_retires_at_once() -> None:
    async def main() -> None:
        driver = Driver(FakeNode(), transport=FakeTransport(), clock=SystemClock())
        driver.retire(lambda _node: True)
        assert driver.closed

    asyncio.run(main())


def test_node_that_persists_without_a_store_is_refused() -> None:
    async def main() -> None:
        node = FakeNode()
        driver = Driver(node, transport=FakeTransport(), clock=ManualClock())

        def command(node: FakeNode, _now_ns: int) -> None:
            node.effects = [Persist("key", b"value")]

        with pytest.raises(LocalProtocolError, match="durable=False"):
            driver.command(command)
        driver.close()

    asyncio.run(main())


def test_effects_of_a_failed_command_are_carried_out() -> None:
    async def main() -> None:
        node, transport = FakeNode(), FakeTransport()
        driver = Driver(node, transport=transport, clock=ManualClock())

        def command(node: FakeNode, _now_ns: int) -> None:
            node.effects = [Send("peer", Ping())]
            raise BadInput("no")

        with pytest.raises(BadInput):
            driver.command(command)
        assert "send to peer" in transport.log
        driver.close()

    asyncio.run(main())


def test_manual_clock_moves_only_forward() -> None:
    clock = ManualClock(5)
    assert clock.advance(2) == 7
    assert clock.now_ns() == 7
    with pytest.raises(BadInput, match="by_ns must not be negative, got -1"):
        clock.advance(-1)


class Fault(Exception):
    """Fail: this must not be called."""


async def until_closed(driver: Driver[FakeNode]) -> None:
    """Run the event loop until a driver has closed, up to a limit."""
    for _ in range(1_000):
        if driver.closed:
            return
        await asyncio.sleep(0)
    raise AssertionError("it goes on")


def fault(*_args: object, **_named: object) -> NoReturn:
    raise Fault("a fault")


@pytest.mark.parametrize(
    "where", ["receive", "handle_timer", "next_timer_ns", "take_effects", "outcome", "repeat"]
)
@pytest.mark.parametrize("lazy", [False, True])
def test_exception_in_a_callback_closes_the_driver_and_is_reported_once(
    where: str, lazy: bool
) -> None:
    async def main() -> None:
        node, transport = FakeNode(), FakeTransport()
        transport.lazy = lazy
        reported: list[Outcome] = []

        def report(outcomes: Sequence[Outcome]) -> None:
            reported.append(outcomes[0])
            if where == "outcome" and len(reported) == 1:
                fault()

        driver = Driver(node, transport=transport, clock=SystemClock(), on_outcomes=report)
        await asyncio.sleep(0)
        assert transport.receiver is not None
        if where == "outcome":
            node.effects = [Deliver(EVENT, 1), Deliver(EVENT, 2)]
        else:
            setattr(node, where, fault)
        if where == "handle_timer":
            node.timer_ns = 0
        if where == "repeat":
            driver.repeat()
        else:
            transport.receiver((Ping(),), "peer")
        await until_closed(driver)
        transport.log.clear()
        driver.fail(Fault("another"))
        driver.repeat()
        for _ in range(3):
            await asyncio.sleep(0)
        assert transport.log == [], "it does nothing more"
        *_, failed = reported
        assert isinstance(failed, Failed)
        assert (failed.topics, failed.reason, type(failed.error)) == ((), "a fault", Fault)
        assert len(reported) == (2 if where == "outcome" else 1)

    asyncio.run(main())


def test_frame_that_fails_is_blamed_on_its_sender_and_the_node_continues() -> None:
    async def main() -> None:
        node, transport = FakeNode(), FakeTransport()
        failures: list[Exception] = []
        driver = Driver(
            node,
            transport=transport,
            clock=SystemClock(),
            on_failure=failures.append,
            blames_sender=True,
        )
        await asyncio.sleep(0)
        assert transport.receiver is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node, "receive", fault)
            with pytest.raises(Fault):
                transport.receiver((Ping(),), "peer")
        assert (driver.closed, failures) == (False, [])
        node.timer_ns = 0
        node.on_timer = fault
        transport.receiver((Ping(),), "peer")
        await until_closed(driver)
        assert [type(each) for each in failures] == [Fault], "nobody is to blame for that"

    asyncio.run(main())
