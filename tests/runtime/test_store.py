"""A driver with a store sends after a sync; on a lazy transport, once per iteration."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from ensue.core.clock import ManualClock
from ensue.core.errors import LocalProtocolError
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
    Send,
)
from ensue.runtime import Driver
from ensue.transports.base import Capabilities, Receiver

EVENT = Event(topic="a", payload=b"", publisher="p", publisher_seq=1)


class Note(Frame, frozen=True, tag=99):
    number: int


class Scripted:
    """A node with prepared effects."""

    name = "node"

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.heard: list[int] = []
        self.drained = 0

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        assert isinstance(frame, Note)
        self.heard.append(frame.number)
        self.effects += (Persist(f"k{frame.number}", b""), Send(source, frame))

    def handle_timer(self, *, now_ns: int) -> None: ...

    def next_timer_ns(self) -> int | None:
        return None

    def take_effects(self) -> Sequence[Effect]:
        self.drained += 1
        effects, self.effects = self.effects, []
        return effects


class Wire:
    """A transport that records sent frames."""

    name = "wire://"
    capabilities = Capabilities(fifo=True, durable=False, replay=False, conditional=False)

    def __init__(self, *, lazy: bool = False) -> None:
        self.lazy = lazy
        self.log: list[object] = []
        self.receiver: Receiver | None = None

    def open(self, name: str, receiver: Receiver) -> "Wire":
        self.receiver = receiver
        return self

    def send(self, peer: str, frame: Frame) -> None:
        assert isinstance(frame, Note)
        self.log.append(frame.number)

    def multicast(self, effect: Multicast) -> None:
        self.log.append(f"multicast {effect.topic}")

    def ask(self, effect: Broadcast | Attach | Detach, request: Frame) -> None:
        self.log.append(type(effect).__name__)

    def flush(self) -> None:
        self.log.append("flush")

    def close(self) -> None:
        self.log.append("close")

    def left(self) -> list[object]:
        """The sent frames, without flushes."""
        return [each for each in self.log if each != "flush"]

    def hear(self, *numbers: int) -> None:
        assert self.receiver is not None
        self.receiver([Note(number=number) for number in numbers], "peer")


class Disk:
    """A store whose writes the test completes."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[str], Callable[[], None]]] = []

    def write(self, writes: Sequence[Persist], done: Callable[[], None]) -> None:
        self.batches.append(([write.key for write in writes], done))

    def finish(self, count: int = 1) -> None:
        for _ in range(count):
            self.batches.pop(0)[1]()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def driven(wire: Wire, disk: Disk | None, outcomes: list[Outcome]) -> "Driver[Scripted]":
    driver = Driver(
        Scripted(), transport=wire, clock=ManualClock(), on_outcomes=outcomes.extend, store=disk
    )
    wire.log.clear()
    return driver


def gives(*effects: Effect) -> Callable[[Scripted, int], None]:
    def command(node: Scripted, _now_ns: int) -> None:
        node.effects += effects

    return command


def test_effects_wait_until_the_store_is_done() -> None:
    async def main() -> None:
        wire, disk, outcomes = Wire(), Disk(), list[Outcome]()
        driver = driven(wire, disk, outcomes)
        driver.command(
            gives(
                Send("x", Note(number=1)),
                Persist("a", b""),
                Deliver(EVENT, 1),
                Multicast("t", ("y",), Note(number=2)),
                Persist("b", None),
                Attach("t", 1),
            )
        )
        assert wire.left() == []
        assert outcomes == []
        assert [keys for keys, _ in disk.batches] == [["a", "b"]]
        disk.finish()
        assert wire.left() == [1, "multicast t", "Attach"]
        assert wire.log[-1] == "flush"
        assert outcomes == [Deliver(EVENT, 1)]
        driver.close()

    run(main())


def test_batch_without_writes_waits_for_earlier_batches() -> None:
    async def main() -> None:
        wire, disk = Wire(), Disk()
        driver = driven(wire, disk, [])
        driver.command(gives(Persist("a", b""), Send("x", Note(number=1))))
        driver.command(gives(Send("x", Note(number=2))))
        assert wire.left() == []
        assert [keys for keys, _ in disk.batches] == [["a"], []]
        disk.finish(2)
        assert wire.left() == [1, 2]
        driver.close()

    run(main())


def test_batches_are_sent_in_order() -> None:
    async def main() -> None:
        wire, disk = Wire(), Disk()
        driver = driven(wire, disk, [])
        wire.hear(1, 2)
        wire.hear(3)
        assert driver.node.heard == [1, 2, 3]
        assert [keys for keys, _ in disk.batches] == [["k1", "k2"], ["k3"]]
        disk.finish()
        assert wire.left() == [1, 2]
        disk.finish()
        assert wire.left() == [1, 2, 3]
        driver.close()

    run(main())


def test_node_without_effects_writes_nothing() -> None:
    async def main() -> None:
        wire, disk = Wire(), Disk()
        driver = driven(wire, disk, [])
        driver.command(gives())
        wire.hear()
        assert disk.batches == []
        driver.close()

    run(main())


def test_closed_driver_sends_no_effects_that_become_safe_later() -> None:
    async def main() -> None:
        wire, disk, outcomes = Wire(), Disk(), list[Outcome]()
        driver = driven(wire, disk, outcomes)
        driver.command(gives(Persist("a", b""), Send("x", Note(number=1)), Deliver(EVENT, 1)))
        driver.close()
        disk.finish()
        assert wire.left() == ["close"]
        assert outcomes == []

    run(main())


def test_retired_driver_closes_when_its_writes_are_safe() -> None:
    async def main() -> None:
        wire, disk = Wire(), Disk()
        driver = driven(wire, disk, [])
        driver.retire(lambda node: len(node.heard) == 1 and not disk.batches)
        wire.hear(1)
        assert not driver.closed
        disk.finish()
        assert driver.closed
        assert wire.left() == [1, "close"]

    run(main())


# -- Lazily ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
def test_commands_of_one_iteration_are_drained_together_on_a_lazy_transport(stored: bool) -> None:
    async def main() -> None:
        wire = Wire(lazy=True)
        disk = Disk() if stored else None
        driver = driven(wire, disk, [])
        drained = driver.node.drained
        for number in range(5):
            driver.command(gives(Send("x", Note(number=number))))
        assert wire.left() == []
        assert driver.node.drained == drained
        await asyncio.sleep(0)
        assert driver.node.drained == drained + 1
        if disk is not None:
            assert len(disk.batches) == 1
            disk.finish()
        assert wire.left() == [0, 1, 2, 3, 4]
        assert wire.log.count("flush") >= 1
        driver.close()

    run(main())


def test_received_frame_is_drained_at_once_with_earlier_commands() -> None:
    async def main() -> None:
        wire = Wire(lazy=True)
        disk = Disk()
        driver = driven(wire, disk, [])
        driver.command(gives(Send("x", Note(number=0))))
        wire.hear(1)
        assert len(disk.batches) == 1
        disk.finish()
        assert wire.left() == [0, 1]
        await asyncio.sleep(0)
        assert disk.batches == []
        driver.close()

    run(main())


def test_closing_sends_effects_of_commands_of_the_same_iteration() -> None:
    async def main() -> None:
        wire = Wire(lazy=True)
        driver = driven(wire, None, [])
        driver.command(gives(Send("x", Note(number=1))))
        driver.close()
        assert wire.left() == [1, "close"]
        await asyncio.sleep(0)
        assert wire.left() == [1, "close"]
        with pytest.raises(LocalProtocolError, match="node is closed"):
            driver.command(gives())

    run(main())


# -- Repeating -------------------------------------------------------------------------------------


class Repeating(Scripted):
    def repeat(self, *, now_ns: int) -> None:
        self.effects.append(Send("x", Note(number=7)))


def test_only_nodes_with_repeat_are_called_to_retransmit() -> None:
    async def main() -> None:
        wire = Wire()
        driver: Driver[Scripted] = Driver(Repeating(), transport=wire, clock=ManualClock())
        wire.log.clear()
        driver.repeat()
        assert wire.log == [7, "flush"]
        driver.close()
        driver.repeat()
        assert wire.left() == [7, "close"]
        plain = driven(wire, None, [])
        plain.repeat()
        assert wire.left() == []
        plain.close()

    run(main())
