from collections import Counter

import pytest
from tests.simulation.fakes import INSTANT, STEADY, Diary, Note, add, build, do, say, steady_world

from ensue.core.errors import ConfigurationError
from ensue.protocols.interface import Send
from ensue.simulation import (
    Clog,
    Constant,
    Faults,
    LinkDelay,
    NetworkConfig,
    Noise,
    Partition,
    Uniform,
    World,
)


def pair(config: NetworkConfig = STEADY, seed: int = 1) -> tuple[World, Diary, Diary]:
    world = World(seed, network=config, disk=INSTANT)
    a, b = add(world, "a", "b")
    return world, a, b


def stream(world: World, source: str, target: str, count: int, every: int = 1) -> None:
    for number in range(count):
        say(world, source, target, f"{number}", at=number * every)


def numbers(diary: Diary) -> list[int]:
    return [int(text) for text in diary.texts]


def test_delay_is_by_link_then_sites_then_default() -> None:
    config = NetworkConfig(
        default=Constant(1),
        sites=(
            LinkDelay(source="x", target="y", delay=Constant(20)),
            LinkDelay(source="x", target="x", delay=Constant(3)),
        ),
        links=(
            LinkDelay(source="x1", target="y2", delay=Constant(400), both_ways=False),
            LinkDelay(source="x2", target="y2", delay=Constant(500)),
            LinkDelay(source="z", target="y1", delay=Constant(60), both_ways=False),
            LinkDelay(source="y1", target="z", delay=Constant(70)),
        ),
    )
    world = World(1, network=config, disk=INSTANT)
    diaries = {name: Diary() for name in ("x1", "x2", "y1", "y2", "z")}
    for name, diary in diaries.items():
        world.add(name, build(name, diary), site=name[0])
    for source in diaries:
        for target in diaries:
            say(world, source, target, f"{source}>{target}")
    world.run()
    took = {text: at for diary in diaries.values() for at, _, text in diary.received}
    assert took["x1>y1"] == took["y1>x1"] == 20
    assert took["x1>x2"] == 3
    assert took["y1>y2"] == took["z>x1"] == 1
    assert took["x1>y2"] == 400
    assert took["y2>x1"] == 20
    assert took["z>y1"] == 60
    assert took["y1>z"] == 70
    assert took["x2>y2"] == took["y2>x2"] == 500
    assert took["z>z"] == took["x1>x1"] == 0


def test_frames_overtake_each_other_unless_fifo() -> None:
    for fifo in (False, True):
        world, _, b = pair(NetworkConfig(default=Uniform(0, 1_000), fifo=fifo))
        stream(world, "a", "b", 100)
        world.run()
        assert sorted(numbers(b)) == list(range(100))
        assert (numbers(b) == sorted(numbers(b))) is fifo


def test_reordering_breaks_fifo_for_its_share() -> None:
    config = NetworkConfig(
        default=Constant(10), fifo=True, reordering=0.1, reordering_delay=Constant(50)
    )
    world, _, b = pair(config)
    stream(world, "a", "b", 1_000)
    world.run()
    late = [at for at, _, text in b.received if at == int(text) + 60]
    assert 70 <= len(late) <= 130
    assert len(late) == world.network.statistics.reordered
    assert numbers(b) != sorted(numbers(b))


def test_loss_and_duplication_hit_their_share() -> None:
    world, _, b = pair(NetworkConfig(default=Constant(10), loss=0.2))
    stream(world, "a", "b", 1_000)
    world.run()
    assert 750 <= len(b.received) <= 850
    assert len(b.received) + world.network.statistics.lost == 1_000

    world, _, b = pair(NetworkConfig(default=Constant(10), duplication=0.2))
    stream(world, "a", "b", 1_000)
    world.run()
    copies = Counter(b.texts)
    assert len(copies) == 1_000
    assert 150 <= sum(count == 2 for count in copies.values()) <= 250
    assert max(copies.values()) == 2


def test_copy_draws_its_own_delay() -> None:
    world, _, b = pair(NetworkConfig(default=Uniform(0, 10_000), duplication=1.0))
    say(world, "a", "b", "x")
    world.run()
    assert len(set(b.times)) == 2


def test_noise_hits_only_its_links_for_its_duration() -> None:
    world, a, b = pair()
    stream(world, "a", "b", 30, every=10)
    stream(world, "b", "a", 30, every=10)
    world.inject(Faults(noises=(Noise(loss=1.0, sources=("a",), from_ns=95, until_ns=195),)))
    world.run()
    assert numbers(b) == [*range(10), *range(20, 30)]
    assert numbers(a) == [*range(30)]


def test_partition_cuts_both_ways_while_it_lasts() -> None:
    world, a, b = pair()
    stream(world, "a", "b", 30, every=10)
    stream(world, "b", "a", 30, every=10)
    world.inject(
        Faults(partitions=(Partition(side=("a",), other=("b",), from_ns=95, until_ns=195),))
    )
    world.run()
    # The frame sent at 90 was in flight when the partition began.
    assert numbers(a) == numbers(b) == [*range(10), *range(20, 30)]
    assert world.network.statistics.cut == 20


def test_one_way_partition_lets_answers_pass() -> None:
    world, a, b = pair()
    stream(world, "a", "b", 3)
    stream(world, "b", "a", 3)
    # A fault that begins now precedes the commands that are due now.
    world.inject(Faults(partitions=(Partition(side=("a",), other=("b",), one_way=True),)))
    world.run()
    assert numbers(b) == []
    assert numbers(a) == [0, 1, 2]


def test_partition_cuts_off_all_others_but_not_its_own_side() -> None:
    world = steady_world()
    a, b, c, d = add(world, "a", "b", "c", "d")
    world.inject(Faults(partitions=(Partition(side=("a", "b")),)))
    for source in "abcd":
        for target in "abcd":
            say(world, source, target, source, at=5)
    world.run()
    assert sorted(a.texts) == sorted(b.texts) == ["a", "b"]
    assert sorted(c.texts) == sorted(d.texts) == ["c", "d"]


def test_partition_spares_nodes_on_neither_side() -> None:
    world = steady_world()
    _, b, c = add(world, "a", "b", "c")
    world.inject(Faults(partitions=(Partition(side=("a",), other=("b",)),)))
    for source, target in ("ab", "ac", "cb"):
        say(world, source, target, source)
    world.run()
    assert b.texts == ["c"]
    assert c.texts == ["a"]


def test_overlapping_partitions_end_one_by_one() -> None:
    world, _, b = pair()
    stream(world, "a", "b", 40, every=10)
    first = Partition(side=("a",), from_ns=95, until_ns=195)
    second = Partition(side=("b",), from_ns=145, until_ns=295)
    world.inject(Faults(partitions=(first, second)))
    world.run()
    assert numbers(b) == [*range(10), *range(30, 40)]


def test_clogged_frames_wait_and_then_arrive_in_send_order() -> None:
    world, a, b = pair()
    stream(world, "a", "b", 30, every=10)
    stream(world, "b", "a", 30, every=10)
    world.inject(Faults(clogs=(Clog(sources=("a",), targets=("b",), from_ns=95, until_ns=195),)))
    world.run()
    assert numbers(b) == [*range(30)]
    assert b.times[10:20] == [205] * 10
    assert a.times == [10 + 10 * number for number in range(30)]


def test_frame_waits_for_every_clog_on_its_link() -> None:
    world, _, b = pair()
    say(world, "a", "b", "x", at=50)
    clogs = (Clog(sources=("a",), until_ns=100), Clog(targets=("b",), until_ns=300))
    world.inject(Faults(clogs=clogs))
    world.run()
    assert b.times == [310]


def test_too_many_clogged_frames_are_lost_and_counted() -> None:
    world, _, b = pair(NetworkConfig(default=Constant(10), clogged_max=3))
    world.inject(Faults(clogs=(Clog(until_ns=100),)))
    stream(world, "a", "b", 5)
    world.run()
    assert numbers(b) == [0, 1, 2]
    assert world.network.statistics.overflowed == 2


def test_heal_removes_present_and_future_faults() -> None:
    world, a, b = pair(
        NetworkConfig(default=Constant(10), loss=1.0, duplication=1.0, reordering=1.0)
    )
    world.inject(
        Faults(
            partitions=(Partition(side=("a",)), Partition(side=("a",), from_ns=200)),
            noises=(Noise(loss=1.0, from_ns=200),),
            clogs=(Clog(from_ns=0, until_ns=400), Clog(from_ns=250)),
        )
    )
    stream(world, "a", "b", 100)
    world.run(100)
    assert b.texts == []
    world.heal()
    stream_from = world.now_ns
    for number in range(400):
        say(world, "a", "b", f"{number}", at=stream_from + number)
        say(world, "b", "a", f"{number}", at=stream_from + number)
    world.run()
    assert numbers(b) == numbers(a) == [*range(400)]


def test_heal_releases_clogged_frames() -> None:
    world, _, b = pair()
    world.inject(Faults(clogs=(Clog(),)))
    say(world, "a", "b", "x", at=5)
    world.run()
    assert b.texts == []
    world.heal()
    world.run()
    assert b.texts == ["x"]


def test_new_fault_does_not_change_delays_of_other_frames() -> None:
    def times(faults: Faults) -> dict[str, int]:
        world = World(3, network=NetworkConfig(default=Uniform(0, 9_999)), disk=INSTANT)
        _, b, c = add(world, "a", "b", "c")
        world.inject(faults)
        for number in range(200):
            target = "bc"[number % 2]
            say(world, "a", target, f"{number}", at=number)
        world.run()
        return {text: at for diary in (b, c) for at, _, text in diary.received}

    plain = times(Faults())
    faulty = times(
        Faults(
            noises=(Noise(loss=0.5, targets=("b",)),),
            partitions=(Partition(side=("a",), other=("b",), from_ns=100),),
        )
    )
    assert len(faulty) < len(plain)
    assert faulty.items() <= plain.items()


def test_frame_to_unknown_node_is_counted() -> None:
    world, _, _ = pair()
    do(world, "a", Send("nobody", Note(text="x")))
    world.run()
    assert world.frames_undelivered == 1


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: NetworkConfig(loss=1.1), r"NetworkConfig\.loss"),
        (lambda: NetworkConfig(clogged_max=-1), r"NetworkConfig\.clogged_max"),
        (lambda: Noise(duplication=-0.1), r"Noise\.duplication"),
        (lambda: Partition(side=()), r"Partition\.side"),
        (lambda: Partition(side=("a",), other=("a",)), r"Partition\.other"),
        (lambda: Clog(from_ns=5, until_ns=5), r"Clog\.until_ns"),
        (lambda: Clog(from_ns=-5), r"Clog\.from_ns"),
        (lambda: pair()[0].inject(Faults(clogs=(Clog(sources=("c",)),))), r"\['c'\]"),
    ],
)
def test_bad_fault_is_rejected_with_field_name(make: object, field: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigurationError, match=field):
        make()


def test_faults_in_the_past_are_rejected() -> None:
    world, _, _ = pair()
    world.run(100)
    with pytest.raises(ConfigurationError, match="100 ns or later"):
        world.inject(Faults(clogs=(Clog(from_ns=99),)))
