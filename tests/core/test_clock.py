"""The system clock: it follows the wall clock, and never goes back."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

import ensue
from ensue.core import platform
from ensue.core.clock import SLEW_FACTOR, SystemClock
from ensue.transports import MemoryOptions, MemoryTransport

MS = 1_000_000
START_NS = 1_700_000_000_000 * MS


class Machine:
    """Time sources of a machine whose clocks are moved by hand."""

    def __init__(self) -> None:
        self.true_ns = 0
        self.wrong_ns = 0
        """Error of the wall clock."""
        self.suspended_ns = 0
        self.held_up_ns: Iterator[int] = iter(())
        """How long the process is preempted after each of the next wall clock readings."""

    def wall_ns(self) -> int:
        shown_ns = START_NS + self.true_ns + self.wrong_ns
        self.true_ns += next(self.held_up_ns, 0)
        return shown_ns

    def steady_ns(self) -> int:
        return self.true_ns - self.suspended_ns

    def boot_ns(self) -> int:
        return self.true_ns

    def clock(self, *, boot: bool = True) -> SystemClock:
        return SystemClock(
            wall_ns=self.wall_ns,
            steady_ns=self.steady_ns,
            boot_ns=self.boot_ns if boot else None,
        )

    def right_ns(self) -> int:
        return START_NS + self.true_ns

    def suspend(self, for_ns: int) -> None:
        self.true_ns += for_ns
        self.suspended_ns += for_ns


def test_undisturbed_clock_equals_the_wall_clock(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = machine.clock()
    for _ in range(10):
        machine.true_ns += 123 * MS
        assert clock.now_ns() == machine.right_ns()
    assert caplog.messages == []


def test_a_step_forward_is_followed_at_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.wrong_ns = -500 * MS
    clock = machine.clock()
    machine.wrong_ns = 0
    assert clock.now_ns() == machine.right_ns()
    machine.true_ns += 1
    assert clock.now_ns() == machine.right_ns()
    assert caplog.messages == ["clock stepped forward by_ms=500"]
    assert caplog.records[0].levelno == logging.WARNING


def test_a_step_back_is_slewed_within_twice_the_step(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.wrong_ns = 500 * MS
    clock = machine.clock()
    machine.wrong_ns = 0
    last_ns = clock.now_ns()
    assert last_ns == machine.right_ns() + 500 * MS
    for elapsed_ms in range(1, SLEW_FACTOR * 500 + 1):
        machine.true_ns += MS
        now_ns = clock.now_ns()
        assert now_ns > last_ns
        assert now_ns == machine.right_ns() + 500 * MS - elapsed_ms * MS // SLEW_FACTOR
        last_ns = now_ns
    assert last_ns == machine.right_ns()
    assert caplog.messages == ["clock stepped back by_ms=500 slew_s=1.0"]


def test_a_step_back_needs_no_slew_if_the_clock_was_not_read_meanwhile() -> None:
    """An idle process would begin to slew only when it publishes again, long after the step."""
    machine = Machine()
    machine.wrong_ns = 500 * MS
    clock = machine.clock()
    last_ns = clock.now_ns()
    machine.wrong_ns = 0
    machine.true_ns += 400 * MS
    assert last_ns < clock.now_ns() <= machine.right_ns() + 110 * MS
    machine.wrong_ns = -500 * MS
    machine.true_ns += 3_000 * MS
    assert clock.now_ns() == machine.right_ns() - 500 * MS


def test_step_during_a_slew_is_followed() -> None:
    machine = Machine()
    machine.wrong_ns = 500 * MS
    clock = machine.clock()
    machine.wrong_ns = 0
    clock.now_ns()
    machine.true_ns += 200 * MS
    clock.now_ns()
    machine.wrong_ns = -100 * MS
    before_ns = clock.now_ns()
    assert before_ns == machine.right_ns() + 400 * MS
    machine.wrong_ns = 200 * MS
    assert clock.now_ns() == before_ns
    machine.true_ns += SLEW_FACTOR * 200 * MS
    assert clock.now_ns() == machine.right_ns() + 200 * MS
    machine.wrong_ns = 300 * MS
    assert clock.now_ns() == machine.right_ns() + 300 * MS


def test_suspension_is_counted_and_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.suspend(3_600_000 * MS)
    assert clock.now_ns() == machine.right_ns()
    machine.suspend(1_000 * MS)
    machine.wrong_ns = 50 * MS
    assert clock.now_ns() == machine.right_ns() + 50 * MS
    assert caplog.messages == [
        "machine suspended for_ms=3600000",
        "machine suspended for_ms=1000",
        "clock stepped forward by_ms=50",
    ]


def test_suspension_is_a_step_without_a_boot_clock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine()
    clock = machine.clock(boot=False)
    machine.suspend(1_000 * MS)
    assert clock.now_ns() == machine.right_ns()
    assert caplog.messages == ["clock stepped forward by_ms=1000"]


@pytest.mark.parametrize("held_up_ms", [(30,), (30, 40), (30, 40, 0, 20)])
def test_preempted_process_sees_no_step(
    held_up_ms: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    clock = machine.clock()
    last_ns = clock.now_ns()
    machine.held_up_ns = iter([ms * MS for ms in held_up_ms])
    for _ in range(5):
        now_ns = clock.now_ns()
        assert now_ns >= last_ns
        last_ns = now_ns
    assert last_ns == machine.right_ns()
    assert caplog.messages == []


def test_slow_drift_is_followed_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = machine.clock()
    last_ns = clock.now_ns()
    for _ in range(1_000):
        machine.true_ns += MS
        machine.wrong_ns -= MS // 100
        now_ns = clock.now_ns()
        assert now_ns > last_ns
        last_ns = now_ns
    assert 0 <= last_ns - machine.right_ns() - machine.wrong_ns < MS
    assert caplog.messages == []


def test_all_buses_of_a_process_read_one_clock() -> None:
    async def main() -> None:
        assert MemoryTransport(MemoryOptions()).clock is platform.current().clock
        async with ensue.connect("memory://", order=None) as bus:
            assert bus._hub is not None
            assert bus._hub.clock is platform.current().clock

    asyncio.run(main())
