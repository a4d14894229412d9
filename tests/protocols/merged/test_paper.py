"""Every lemma, observation and theorem of the paper, as corrected, against true causality.

Numbers are those of "Stabilizing Causal Deterministic Merge" (Kulkarni, Ravikant). Tests of
corrected claims name the correction; `test_published_rules` and `test_published_modulus` show the
faults of the printed ones.
"""

from functools import cache, cmp_to_key, partial
from itertools import permutations
from random import Random
from typing import Any

import pytest
from tests.protocols.merged.corruption import after_corruption
from tests.protocols.merged.harness import Options, World

from ensue.core.event import Event
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.merged.merger import Held, Merger
from ensue.protocols.merged.timestamps import (
    ArrayTimestamp,
    CounterTimestamp,
    Timeline,
    timestamps_for,
)

SEEDS = range(60)
WORLDS = {
    "the paper's model": Options(epsilon=2, delta=4, processes=4),
    "no clock differences": Options(epsilon=0, delta=3, per_tick=2),
    "no delay": Options(epsilon=4, delta=0, per_tick=2, processes=5),
    "many a tick": Options(epsilon=3, delta=5, per_tick=4, per_send=3, processes=4, steps=250),
    "clocks that skip": Options(epsilon=3, delta=6, per_tick=2, skip=4),
    "loss and duplication": Options(epsilon=2, delta=6, per_tick=2, loss=0.3, duplication=0.3),
    "late messages": Options(epsilon=2, delta=3, per_tick=2, lateness=12),
    "idle processes": Options(epsilon=1, delta=4, per_tick=2, quiet=0.4),
}
EVERYWHERE = pytest.mark.parametrize("name", WORLDS)
KINDS = pytest.mark.parametrize("array", [False, True], ids=["counter", "array"])


@cache
def worlds(name: str, array: bool) -> tuple[World, ...]:
    options = Options(**{**vars(WORLDS[name]), "array": array})
    return tuple(World(seed, options).play() for seed in SEEDS)


def count(made: Any, t: int, epsilon: int) -> int:
    return int(made.kn[t + epsilon]) if -epsilon <= t <= epsilon else 0


@EVERYWHERE
def test_lemma_3_1_newest_known_tick_has_an_event_and_later_ones_have_none(
    name: str,
) -> None:
    """As corrected the array reaches to epsilon."""
    for world in worlds(name, True):
        epsilon = world.config.epsilon_ticks
        for each in world.events:
            assert count(each.timestamp, each.timestamp.c, epsilon) > 0, world.seed
            assert not any(
                count(each.timestamp, t, epsilon) for t in range(each.timestamp.c + 1, epsilon + 1)
            ), world.seed


@KINDS
@EVERYWHERE
def test_lemma_3_2_c_is_at_most_epsilon(name: str, array: bool) -> None:
    """As printed: below epsilon. It can be reached, and here it is."""
    found = 0
    for world in worlds(name, array):
        most = max(each.timestamp.c for each in world.events)
        assert most <= world.config.epsilon_ticks, world.seed
        found = max(found, most)
    assert found == WORLDS[name].epsilon


@EVERYWHERE
def test_lemma_3_3_counts_are_of_events_that_happened_before(name: str) -> None:
    for world in worlds(name, True):
        epsilon = world.config.epsilon_ticks
        for each in world.events:
            for t in range(-epsilon, epsilon + 1):
                real = sum(
                    other is each or world.happened_before(other, each)
                    for other in world.events
                    if other.tick == each.tick + t
                )
                assert count(each.timestamp, t, epsilon) <= real, world.seed


@EVERYWHERE
def test_lemma_3_4_counts_are_bounded_by_processes_times_events_a_tick(name: str) -> None:
    """As printed: by the number of processes. For the counter: by epsilon + 1 times that."""
    for world in worlds(name, True):
        assert max(max(each.timestamp.kn) for each in world.events) <= world.config.count_max
    for world in worlds(name, False):
        most = max(each.timestamp.k for each in world.events)
        assert most < world.config.count_max * (world.config.epsilon_ticks + 1), world.seed


@KINDS
def test_observation_3_5_the_order_is_transitive_and_well_formed(array: bool) -> None:
    """Order is irreflexive, asymmetric and transitive for any timestamps, reachable or not."""
    config = MergedConfig(epsilon_ticks=2, delta_ticks=4, array=array)
    kind = timestamps_for(config)
    random = Random(5)
    made: list[CounterTimestamp | ArrayTimestamp] = []
    for _ in range(12):
        r, c = random.randrange(5), random.randrange(3)
        if array:
            made.append(ArrayTimestamp(r, c, tuple(random.randrange(2) for _ in range(5))))
        else:
            made.append(CounterTimestamp(r, c, random.randrange(3)))

    def less(one: Any, other: Any) -> bool:
        return kind.key(one) < kind.key(other)

    assert not any(less(each, each) for each in made)
    assert not any(less(a, b) and less(b, a) for a, b in permutations(made, 2))
    for one, other, third in permutations(made, 3):
        assert not (less(one, other) and less(other, third)) or less(one, third)


@KINDS
@EVERYWHERE
def test_theorem_3_6_a_cause_has_a_smaller_timestamp_than_its_effect(
    name: str, array: bool
) -> None:
    pairs = 0
    for world in worlds(name, array):
        assert world.pairs_against_causality() == [], world.seed
        pairs += sum(each.before.bit_count() for each in world.events)
    assert pairs > 1_000


@KINDS
@pytest.mark.parametrize("epsilon", [0, 1, 3])
def test_theorem_3_7_timestamps_recover_from_any_fault(epsilon: int, array: bool) -> None:
    """Timestamps respect causality 3 epsilon + delta after all state was corrupted at once."""
    options = Options(epsilon=epsilon, delta=4, per_tick=2, array=array, processes=4)
    for seed in SEEDS[:20]:
        recovery = after_corruption(seed, options)
        assert recovery.wrong_timestamps(recovery.world.config.span_ticks) == [], seed


@pytest.mark.parametrize("epsilon", [1, 10, 50])
@pytest.mark.parametrize("processes", [10, 10_000])
def test_theorem_3_8_the_space_of_a_timestamp(epsilon: int, processes: int) -> None:
    """Bits of the largest timestamp.

    O(epsilon log n + log delta) for the array, O(log (epsilon n delta)) for the counter.
    """
    delta = 100
    bounds = MergedConfig(
        epsilon_ticks=epsilon, delta_ticks=delta, processes_max=processes, events_per_tick_max=1
    )
    reading = (bounds.modulus_min - 1).bit_length()
    counter = reading + epsilon.bit_length() + (processes * (epsilon + 1) - 1).bit_length()
    array = reading + epsilon.bit_length() + (2 * epsilon + 1) * processes.bit_length()
    assert counter <= (3 * epsilon + delta).bit_length() + 2 * epsilon.bit_length() + (
        processes.bit_length() + 2
    )
    assert array <= 4 * epsilon * processes.bit_length() + 3 * (epsilon + delta).bit_length()
    assert counter < array


@KINDS
@EVERYWHERE
def test_lemma_4_1_it_is_delivered_before_the_senders_clock_passes_delta_and_3_epsilon(
    name: str, array: bool
) -> None:
    """Counted to the end of the tick; a clock that skips adds what it skips."""
    delivered = 0
    for world in worlds(name, array):
        assert world.slow_deliveries() == [], world.seed
        delivered += sum(len(each.delivered) for each in world.processes)
    assert delivered > 200


@KINDS
@EVERYWHERE
def test_lemma_4_2_it_is_buffered_for_at_most_delta_and_3_epsilon(name: str, array: bool) -> None:
    for world in worlds(name, array):
        assert world.left_in_buffers() == 0, world.seed
        bound = world.config.span_ticks + world.options.skip - 1
        for process in world.processes:
            for message, _ in process.delivered:
                assert message.received_tick is not None
                due = message.sender.timestamp.r + message.sender.timestamp.c
                due += world.config.wait_ticks + world.options.skip
                assert due - message.received_tick <= bound, world.seed


@KINDS
@EVERYWHERE
def test_theorem_4_3_output_is_a_system_of_the_same_kind(name: str, array: bool) -> None:
    """A second level, its delta the span of the first, releases all events in the same order."""
    for world in worlds(name, array):
        above = world.config.above(link_delta_ticks=world.options.skip - 1)
        for process in world.processes:
            second = Merger(above)
            out: list[int] = []
            arrivals: dict[int, list[Any]] = {}
            for message, _ in process.delivered:
                made = message.sender.timestamp
                at = made.r + made.c + world.config.wait_ticks + world.options.skip
                arrivals.setdefault(at, []).append(message)
            for tick in range(max(arrivals, default=0) + above.span_ticks + 2):
                out += [held.event.publisher_seq for held in second.advance(tick)[0]]
                for message in arrivals.get(tick, ()):
                    made = message.sender.timestamp
                    name_of = f"p{message.sender.process}"
                    key = (world.key(above, made), name_of, message.index)
                    event = Event(
                        topic="t", payload=b"", publisher=name_of, publisher_seq=message.number
                    )
                    assert second.offer(Held(key, event, made, 0), tick) == "", world.seed
            assert out == [message.number for message, _ in process.delivered], world.seed


@KINDS
@EVERYWHERE
def test_theorem_4_4_two_mergers_deliver_in_the_same_order(name: str, array: bool) -> None:
    common = 0
    for world in worlds(name, array):
        assert world.different_orders() == [], world.seed
        sets = [
            {(message.sender.number, message.index) for message, _ in each.delivered}
            for each in world.processes
        ]
        common += len(set.intersection(*sets)) if len(sets) == 2 else len(sets[0] & sets[1])
    assert common > 10


@KINDS
@EVERYWHERE
def test_theorem_4_5_a_cause_is_delivered_before_its_effect(name: str, array: bool) -> None:
    for world in worlds(name, array):
        assert world.deliveries_against_causality() == [], world.seed
        assert world.delivered_twice() == [], world.seed
        assert world.not_delivered() == [], world.seed


@KINDS
@pytest.mark.parametrize("epsilon", [0, 1, 3])
def test_theorem_4_6_merge_recovers_from_any_fault(epsilon: int, array: bool) -> None:
    """After clocks, memories, buffers and messages are corrupted at once, the merge recovers.

    Messages sent delta + 3 epsilon later are released in order.
    """
    options = Options(epsilon=epsilon, delta=4, per_tick=2, array=array, processes=4)
    delivered = 0
    for seed in SEEDS:
        recovery = after_corruption(seed, options)
        world = recovery.world
        assert recovery.wrong_deliveries(world.config.span_ticks) == {}, seed
        assert world.left_in_buffers() == 0, seed
        later = recovery.made_after(world.config.span_ticks)
        delivered += sum(
            message.sender.number in later
            for process in world.processes
            for message, _ in process.delivered
        )
    assert delivered > 300


@KINDS
@pytest.mark.parametrize(("epsilon", "delta"), [(1, 4), (3, 4), (3, 12), (6, 8)])
def test_the_time_to_recover_is_at_most_delta_and_3_epsilon(
    epsilon: int, delta: int, array: bool
) -> None:
    """Measured in ticks after the last fault; the longest shows that corruption had an effect."""
    options = Options(
        epsilon=epsilon, delta=delta, per_tick=2, array=array, processes=4, duplication=0.2
    )
    measured = [after_corruption(seed, options).ticks() for seed in SEEDS[:20]]
    assert 0 < max(measured) <= options.config().span_ticks, measured


@KINDS
def test_order_is_a_sort_by_one_key_for_any_arrival_order(array: bool) -> None:
    """A merger that is given the same messages in another order hands them out alike."""
    options = Options(epsilon=3, delta=6, per_tick=3, per_send=2, array=array)
    world = World(7, options).play()
    kind = timestamps_for(world.config)
    messages = [each for each in world.messages if each.target == 0]
    outputs = set()
    for seed in range(5):
        shuffled = Random(seed).sample(messages, len(messages))
        by_key = sorted(
            shuffled,
            key=cmp_to_key(partial(_compare, kind)),
        )
        outputs.add(tuple(each.number for each in by_key))
    assert len(outputs) == 1


def _compare(kind: Any, one: Any, other: Any) -> int:
    keys = [
        (kind.key(each.sender.timestamp), f"p{each.sender.process}", each.index)
        for each in (one, other)
    ]
    return (keys[0] > keys[1]) - (keys[0] < keys[1])


def test_a_timeline_counts_its_resets() -> None:
    """A clock that went back by more than epsilon can't be reconciled with what was known."""
    line = Timeline(timestamps_for(MergedConfig(epsilon_ticks=2, delta_ticks=4)))
    line.event(100)
    assert line.resets == 0
    assert line.event(90) == CounterTimestamp(90, 0, 0)
    assert line.resets == 1
