from random import Random

import pytest
from tests.simulation.fakes import Diary, Probe, add, build, say, steady_world, wake

from ensue.core.errors import ConfigurationError, LimitReached
from ensue.simulation import Clock, ClockConfig, ClockJump, Faults
from ensue.simulation.world import driver as driver_module

SECOND = 1_000_000_000


def test_reads_skew_and_drift() -> None:
    clock = Clock(ClockConfig(skew_ns=500, drift_ppm=100))
    assert clock.read(0) == 500
    assert clock.read(SECOND) == SECOND + 100_000 + 500


@pytest.mark.parametrize("drift_ppm", [0, 37.123, -37.123, 499_999, -499_999])
def test_true_at_is_first_true_time_of_reading(drift_ppm: float) -> None:
    clock = Clock(ClockConfig(skew_ns=-12_345, drift_ppm=drift_ppm))
    random = Random(1)
    for _ in range(300):
        wanted_ns = random.randint(1, 10 * SECOND)
        true_ns = clock.true_at(wanted_ns, 0)
        assert clock.read(true_ns) >= wanted_ns
        assert true_ns == 0 or clock.read(true_ns - 1) < wanted_ns


def test_jump_back_holds_reading_until_time_catches_up() -> None:
    clock = Clock()
    clock.jump(1_000, -300)
    assert [clock.read(at) for at in (1_000, 1_200, 1_300, 1_301)] == [1_000, 1_000, 1_000, 1_001]


def test_jump_back_shows_if_not_monotone() -> None:
    clock = Clock()
    clock.jump(1_000, -300, monotone=False)
    assert clock.read(1_000) == 700


def test_jump_forward_adds_to_drift() -> None:
    clock = Clock(ClockConfig(drift_ppm=1_000))
    clock.jump(SECOND, 50)
    assert clock.read(2 * SECOND) == 2 * SECOND + 2_000_000 + 50


def test_bad_clock_is_rejected_with_field_name() -> None:
    with pytest.raises(ConfigurationError, match=r"ClockConfig\.drift_ppm"):
        ClockConfig(drift_ppm=600_000)
    with pytest.raises(ConfigurationError, match="by_ns"):
        Clock().jump(0, 0)


def test_timers_are_in_node_time() -> None:
    world = steady_world()
    skewed, fast = Diary(), Diary()
    world.add("skewed", build("skewed", skewed), clock=ClockConfig(skew_ns=400))
    world.add("fast", build("fast", fast), clock=ClockConfig(drift_ppm=100_000))
    wake(world, "skewed", 1_000)
    wake(world, "fast", 1_100)
    fired: dict[str, int] = {}

    def watch() -> bool:
        for name, diary in (("skewed", skewed), ("fast", fast)):
            if diary.timers:
                fired.setdefault(name, world.now_ns)
        return False

    world.run(5_000, condition=watch)
    assert fired == {"skewed": 600, "fast": 1_000}
    assert skewed.timers == [1_000]
    assert fast.timers == [1_100]


@pytest.mark.parametrize(
    ("by_ns", "monotone", "fired_true_ns"),
    [(300, True, 700), (5_000, True, 200), (-100, True, 1_100), (-100, False, 1_100)],
)
def test_jump_moves_pending_timers(by_ns: int, monotone: bool, fired_true_ns: int) -> None:
    world = steady_world()
    [diary] = add(world, "a")
    wake(world, "a", 1_000)
    world.inject(
        Faults(clock_jumps=(ClockJump(node="a", at_ns=200, by_ns=by_ns, monotone=monotone),))
    )
    assert world.run(5_000, condition=lambda: bool(diary.timers))
    assert world.now_ns == fired_true_ns
    assert diary.timers[0] >= 1_000


@pytest.mark.parametrize(("monotone", "goes_back"), [(True, False), (False, True)])
def test_node_sees_time_go_back_only_if_not_monotone(monotone: bool, goes_back: bool) -> None:
    world = steady_world()
    _, diary = add(world, "a", "b")
    for at in range(0, 2_000, 50):
        say(world, "a", "b", "x", at=at)
    world.inject(
        Faults(clock_jumps=(ClockJump(node="b", at_ns=505, by_ns=-400, monotone=monotone),))
    )
    world.run()
    assert (diary.clock != sorted(diary.clock)) is goes_back
    assert world.clock_ns("b") == world.now_ns - 400


def test_timer_moved_later_fires_once_at_later_time() -> None:
    world = steady_world()
    [diary] = add(world, "a")
    for step in range(10):
        wake(world, "a", 1_000 + step * 100, at=step * 90)
    world.run()
    assert diary.timers == [1_900]
    assert diary.clock == [1_900]


def test_timer_moved_earlier_fires_earlier_and_canceled_timer_never() -> None:
    world = steady_world()
    moved, gone = add(world, "moved", "gone")
    wake(world, "moved", 1_000)
    wake(world, "moved", 400, at=10)
    wake(world, "gone", 1_000)

    def take_back(node: Probe, _now_ns: int) -> None:
        node.timer_ns = None

    world.call("gone", take_back, at_ns=500)
    world.run()
    assert moved.timers == [400]
    assert gone.timers == []
    assert gone.clock == []


def test_timer_that_never_advances_raises_limit_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "TIMER_REPEATS_MAX", 50)
    world = steady_world()
    diary = Diary()

    class Stuck(Probe):
        def next_timer_ns(self) -> int | None:
            return 10

    world.add("a", lambda _records, _now_ns: Stuck("a", diary, None))
    with pytest.raises(LimitReached, match="timer of a"):
        world.run(1_000)
