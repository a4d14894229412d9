from random import Random

import pytest
from tests.simulation.fakes import STEADY, Diary, Note, Probe, add, build, do

from ensue.core.errors import ConfigurationError, LimitReached
from ensue.protocols.interface import Effect, Join, Outcome, Persist, Send
from ensue.simulation import Constant, Crash, Disk, DiskConfig, Faults, Uniform, World


def disk(*, crash_loses_all: bool = False, batches_max: int = 100) -> Disk[str]:
    return Disk(DiskConfig(crash_loses_all=crash_loses_all, batches_max=batches_max))


def test_group_commit_covers_waiting_batches_and_keeps_output_order() -> None:
    it = disk()
    it.add([Persist("a", b"1")], "first")
    it.begin_sync()
    it.add([], "second")
    it.add([Persist("a", b"2")], "third")
    it.add([], "fourth")
    assert it.records == {}
    assert it.end_sync() == ["first", "second"]
    assert it.records == {"a": b"1"}
    it.begin_sync()
    assert it.end_sync() == ["third", "fourth"]
    assert it.records == {"a": b"2"}
    assert it.idle


def test_none_removes_record_and_snapshots_are_in_key_order() -> None:
    it = disk()
    it.add([Persist("b", b"1"), Persist("a", b"2"), Persist("c", b"3"), Persist("c", None)], "")
    it.begin_sync()
    it.end_sync()
    assert list(it.snapshot().items()) == [("a", b"2"), ("b", b"1")]


def test_crash_keeps_only_a_prefix_of_batches_in_sync() -> None:
    survivors: set[int] = set()
    for seed in range(100):
        it = disk()
        for number in range(3):
            it.add([Persist(f"{number}", b"x"), Persist("last", b"%d" % number)], "")
        it.begin_sync()
        it.add([Persist("later", b"x")], "")
        it.crash(Random(seed))
        assert it.idle
        assert not it.syncing
        assert "later" not in it.records
        count = len(it.records.keys() - {"last"})
        survivors.add(count)
        assert it.records.keys() - {"last"} == {f"{number}" for number in range(count)}
        assert it.records.get("last") == (b"%d" % (count - 1) if count else None)
    assert survivors == {0, 1, 2, 3}


def test_no_unsynced_record_survives_if_crash_loses_all() -> None:
    for seed in range(50):
        it = disk(crash_loses_all=True)
        it.add([Persist("synced", b"1")], "")
        it.begin_sync()
        it.end_sync()
        it.add([Persist("synced", b"2"), Persist("new", b"1")], "")
        it.begin_sync()
        it.crash(Random(seed))
        assert it.records == {"synced": b"1"}


def test_records_must_be_bytes_and_batches_have_a_limit() -> None:
    it = disk(batches_max=1)
    with pytest.raises(TypeError, match="'a' must be bytes"):
        it.add([Persist("a", bytearray(b"x"))], "")  # type: ignore[arg-type]
    it.add([], "")
    with pytest.raises(LimitReached, match="batches_max"):
        it.add([], "")
    with pytest.raises(ConfigurationError, match=r"DiskConfig\.batches_max"):
        DiskConfig(batches_max=0)


def slow_disk_world(*, loses_all: bool = True) -> tuple[World, Diary, Diary, list[tuple[int, str]]]:
    outcomes: list[tuple[int, str]] = []

    def on_outcome(name: str, outcome: Outcome) -> None:
        assert name == "a"
        assert isinstance(outcome, Join)
        outcomes.append((world.now_ns, outcome.topic))

    world = World(
        1,
        network=STEADY,
        disk=DiskConfig(sync=Constant(100), crash_loses_all=loses_all),
        on_outcome=on_outcome,
    )
    a, b = add(world, "a", "b")
    return world, a, b, outcomes


def batch(text: str, *, persists: bool = True) -> list[Effect]:
    # Outcome first and record last: the driver, not the node, keeps the order of duties.
    effects: list[Effect] = [Join(text), Send("b", Note(text=text))]
    return [*effects, Persist(text, text.encode())] if persists else effects


def test_sends_and_outcomes_wait_for_sync() -> None:
    world, _, b, outcomes = slow_disk_world()
    do(world, "a", *batch("one"))
    world.run(99)
    assert world.records("a") == {}
    assert outcomes == []
    world.run()
    assert world.records("a") == {"one": b"one"}
    assert outcomes == [(100, "one")]
    assert b.received == [(110, "a", "one")]


def test_batch_without_records_waits_for_earlier_ones() -> None:
    world, _, b, outcomes = slow_disk_world()
    do(world, "a", *batch("one"), at=0)
    do(world, "a", *batch("two", persists=False), at=10)
    do(world, "a", *batch("three"), at=20)
    do(world, "a", *batch("four", persists=False), at=30)
    do(world, "a", *batch("five", persists=False), at=400)
    world.run()
    assert outcomes == [(100, "one"), (100, "two"), (200, "three"), (200, "four"), (400, "five")]
    assert b.times == [110, 110, 210, 210, 410]


def test_node_may_have_its_own_disk() -> None:
    world, _, b, _ = slow_disk_world()
    world.add("c", build("c", Diary()), disk=DiskConfig(sync=Constant(700)))
    do(world, "c", Persist("k", b"1"), Send("b", Note(text="x")))
    world.run()
    assert b.times == [710]


def test_crash_before_sync_loses_records_sends_and_outcomes() -> None:
    world, a, b, outcomes = slow_disk_world()
    do(world, "a", *batch("kept"), at=0)
    do(world, "a", *batch("lost"), at=150)
    do(world, "a", *batch("lost too", persists=False), at=160)
    world.inject(Faults(crashes=(Crash(node="a", at_ns=200, restart_after_ns=50),)))
    world.run()
    assert a.started == [{}, {"kept": b"kept"}]
    assert b.texts == ["kept"]
    assert outcomes == [(100, "kept")]


def test_state_that_others_learned_of_survives_any_crash() -> None:
    """The one rule a driver must not break: never forget state that others learned of."""
    survived_unsent = 0
    for seed in range(60):
        world = World(seed, network=STEADY, disk=DiskConfig(sync=Uniform(1, 200)))
        a, b = add(world, "a", "b")
        random = world.stream("workload")
        for number in range(20):
            do(world, "a", *batch(f"{number}"), at=random.randrange(2_000))
        world.inject(
            Faults(
                crashes=tuple(
                    Crash(node="a", at_ns=random.randrange(2_000), restart_after_ns=20)
                    for _ in range(4)
                )
            )
        )
        world.run()
        records = world.records("a")
        assert {*b.texts} <= records.keys()
        survived_unsent += len(records) - len(b.texts)
        for before, after in zip(a.started, a.started[1:], strict=False):
            assert before.items() <= after.items()
    assert survived_unsent > 0


def test_volatile_state_is_lost_in_crash() -> None:
    world, _, _, _ = slow_disk_world()
    diary = Diary()
    world.add("c", build("c", diary))
    do(world, "a", Send("c", Note(text="x")))
    world.run()
    before = world.node("c")
    assert isinstance(before, Probe)
    assert before.volatile == ["x"]
    world.crash("c", restart_after_ns=5)
    assert world.node("c") is None
    world.run()
    after = world.node("c")
    assert isinstance(after, Probe)
    assert after.volatile == []
