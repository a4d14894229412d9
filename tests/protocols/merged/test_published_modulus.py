"""Clocks modulo B: what the published rules do with them, and that ours reads them rightly.

Goes with `test_published_rules`, which has the other faults.
"""

from collections import Counter
from functools import partial
from typing import Any

import pytest
from tests.protocols.merged.harness import Options, World, bad_seeds, config, cured

from ensue.core.errors import ConfigurationError
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.merged.merger import ACCEPTED, Held, Merger
from ensue.protocols.merged.timestamps import (
    CounterTimestamp,
    CounterTimestamps,
    Timeline,
    timestamps_for,
)

SEEDS = range(100)


# -- M8 to M10: clocks modulo B --------------------------------------------------------------------


def test_m8_comparing_reduced_clocks_plainly_gives_the_wrong_order() -> None:
    options = Options(epsilon=2, delta=4)
    modulus = 6 * options.epsilon + options.delta + 1  # The paper's own B.

    def reduced_key(settings: MergedConfig, made: CounterTimestamp) -> tuple[int, ...]:
        return ((made.r % modulus) + made.c, made.k)

    def plainly(seed: int) -> World:
        world = World(seed, options, key=reduced_key)
        return world.play()

    assert bad_seeds(plainly, SEEDS, what="keys against causality")


class LooksAtPairs(Merger):
    """Compares arrivals with held events in three ways a reduced clock allows; counts errors."""

    def __init__(self, settings: MergedConfig) -> None:
        super().__init__(settings)
        self.modulus = 6 * settings.epsilon_ticks + settings.delta_ticks + 1  # The paper's own B.
        self.wrong = dict.fromkeys(("plain", "half-range", "remaining wait"), 0)

    def offer(self, held: Held, tick: int) -> str:
        others = list(self.held())
        verdict = super().offer(held, tick)
        if verdict == ACCEPTED:
            for other in others:
                self.compare(held.timestamp, other.timestamp, tick)
        return verdict

    def compare(self, one: Any, other: Any, tick: int) -> None:
        b, reaches = self.modulus, (one.r + one.c, other.r + other.c)
        if reaches[0] == reaches[1]:
            return
        truly = reaches[0] < reaches[1]
        plain = one.r % b + one.c < other.r % b + other.c
        half_range = 2 * ((reaches[1] - reaches[0]) % b) < b
        waits = [(reach + self.config.wait_ticks - tick) % b for reach in reaches]
        self.wrong["plain"] += plain != truly
        self.wrong["half-range"] += half_range != truly
        self.wrong["remaining wait"] += (waits[0] < waits[1]) != truly


def test_m8_held_events_can_only_be_compared_by_their_remaining_wait() -> None:
    """Two clocks modulo the paper's B compare wrongly, plainly or as serial numbers."""
    wrong: Counter[str] = Counter()
    for seed in SEEDS:
        world = World(seed, Options(epsilon=1, delta=8, steps=300), merger=LooksAtPairs).play()
        for process in world.processes:
            assert isinstance(process.merger, LooksAtPairs)
            wrong.update(process.merger.wrong)
    assert wrong["plain"]
    assert wrong["half-range"]
    assert wrong["remaining wait"] == 0


def over_the_wire(options: Options) -> Any:
    """Carry timestamps as they travel: reduced, and read against the receiver's clock."""
    kind = CounterTimestamps(options.config())

    def carry(made: CounterTimestamp, _sent: int, read: int) -> CounterTimestamp:
        found = kind.from_entries(kind.to_entries(made), read)
        assert found is not None
        return found

    return carry


@pytest.mark.parametrize("epsilon", [0, 1, 3])
def test_m8_our_readings_modulo_the_smallest_b_decode_correctly(epsilon: int) -> None:
    options = Options(epsilon=epsilon, delta=4, modulus=2 * epsilon + 5, per_tick=2, skip=2)

    def reduced(seed: int) -> World:
        return World(seed, options, carry=over_the_wire(options)).play()

    assert bad_seeds(reduced, SEEDS) == []


def test_m8_modulus_below_the_smallest_b_is_refused_and_would_fail() -> None:
    options = Options(epsilon=2, delta=4)
    with pytest.raises(ConfigurationError, match="must be at least 9"):
        config(2, 4, modulus=8)

    def carry(made: CounterTimestamp, _sent: int, read: int) -> CounterTimestamp:
        newest = read + 2
        return CounterTimestamp(newest - (newest - made.r) % 8, made.c, made.k)

    def too_small(seed: int) -> World:
        return World(seed, options, carry=carry).play()

    assert bad_seeds(too_small, SEEDS)


def test_m9_idle_process_mistakes_its_old_reduced_timestamp_for_a_new_one() -> None:
    options = Options(epsilon=2, delta=3, quiet=0.3, steps=400)
    settings = options.config()
    modulus = settings.modulus_min

    class Reduced:
        """Our timestamps with the last one kept modulo B and nothing ever forgotten, as printed."""

        def __init__(self, _settings: MergedConfig) -> None:
            self.kind = CounterTimestamps(settings)
            self.last: CounterTimestamp | None = None
            self.too_high = 0

        def event(self, tick: int, received: Any = ()) -> CounterTimestamp:
            known = list(received)
            if self.last is not None:
                newest = tick + settings.epsilon_ticks
                r = newest - (newest - self.last.r) % modulus
                if r != self.last.r and r + self.last.c >= tick:
                    self.too_high += 1
                known.append(CounterTimestamp(r, self.last.c, self.last.k))
            self.last = self.kind.after(tick, known)
            return self.last

    fooled = 0
    for seed in SEEDS:
        world = World(seed, options, line=Reduced).play()
        fooled += sum(each.line.too_high for each in world.processes)  # type: ignore[attr-defined]
    assert fooled
    cured(options, SEEDS)


def test_m9_ours_forgets_events_older_than_two_epsilon() -> None:
    for array in (False, True):
        kind = timestamps_for(config(2, 3, array=array))
        line = Timeline(kind)
        line.event(10)
        assert line.event(10 + 2 * 2 + 1) == kind.first(15)


def test_m10_message_later_than_b_allows_looks_new() -> None:
    options = Options(epsilon=2, delta=3, lateness=20, modulus=8)
    patient = Options(epsilon=2, delta=3, lateness=20, longest_lateness=20, modulus=28)
    whole = Options(epsilon=2, delta=3, lateness=20)

    def play(seed: int, chosen: Options) -> World:
        carry = over_the_wire(chosen) if chosen.modulus else None
        return World(seed, chosen, **({"carry": carry} if carry else {})).play()

    assert bad_seeds(partial(play, chosen=options), SEEDS)
    assert bad_seeds(partial(play, chosen=patient), SEEDS) == []
    assert bad_seeds(partial(play, chosen=whole), SEEDS) == []
