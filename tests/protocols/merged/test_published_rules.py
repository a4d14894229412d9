"""Faults of the published program, built literally, that ours does not have.

One section per fault. Counts are of seeds out of `SEEDS`; how many fail depends on the scheduler,
that some fail does not.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from tests.protocols.merged.harness import (
    Message,
    Options,
    World,
    bad_seeds,
    config,
    cured,
    our_key,
    our_line,
    ours,
)
from tests.protocols.merged.published import (
    Figure1Line,
    Figure3,
    Figure3Line,
    PublishedMerger,
    figure1_key,
    figure3_key,
    figure3_less,
)

from ensue.core.event import Event
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.merged.merger import Held, Merger
from ensue.protocols.merged.timestamps import CounterTimestamp, Timeline, timestamps_for

SEEDS = range(100)
KINDS = pytest.mark.parametrize("array", [False, True], ids=["counter", "array"])


# -- Kind worlds: where the literal program is right -----------------------------------------------


def test_published_program_is_correct_within_its_own_model() -> None:
    """The assumptions of the paper, and delivery at the end of the tick.

    One event a tick, one message a send, steps of one, no message at clock r - epsilon.
    """
    kind = Options(epsilon=3, delta=4, early_ticks=False)

    def play(seed: int) -> World:
        world = World(seed, kind, line=Figure1Line, key=figure1_key, merger=MergesPunctually)
        return world.play()

    assert len(bad_seeds(play, SEEDS, what="deliveries against causality")) == 0
    assert len(bad_seeds(play, SEEDS, what="different orders")) == 0


class MergesPunctually(PublishedMerger):
    """The published merger, corrected to deliver at the end of the tick."""

    def is_due(self, made: Any, tick: int) -> bool:
        return bool(made.r + made.c + self.config.wait_ticks + 1 == tick)


# -- M1: delivery at the first instant of the tick -------------------------------------------------


def scripted_first_instant(merger: Any) -> list[str]:
    """k sends m1 at 2; l receives it at 1 and sends m2 at 2; m1 arrives in the tick m2 is due."""
    settings = config(2, 3)
    m1, m2 = CounterTimestamp(2, 0, 0), CounterTimestamp(2, 0, 2)
    order: list[str] = []
    for tick in range(2, 9):
        leaving, _ = merger.advance(tick)
        order += [held.event.publisher for held in leaving]
        arrivals = {3: [("l", m2)], 7: [("k", m1)]}.get(tick, [])
        for name, made in arrivals:
            event = Event(topic="t", payload=b"", publisher=name, publisher_seq=1)
            merger.offer(Held((timestamps_for(settings).key(made), name, 0), event, made, 0), tick)
    return order


def test_m1_cause_arrives_in_the_tick_in_which_its_effect_is_delivered() -> None:
    settings = config(2, 3)
    early = PublishedMerger(settings, equal=False)
    assert scripted_first_instant(early) == ["l", "k"], "the effect came before its cause"
    assert scripted_first_instant(Merger(settings)) == ["k", "l"]


def test_m1_delivery_at_the_first_instant_gives_different_orders() -> None:
    options = Options(epsilon=2, delta=3, per_tick=3)

    def first_instant(seed: int) -> World:
        merger = partial(PublishedMerger, equal=False)
        return World(seed, options, merger=merger).play()

    wrong = bad_seeds(first_instant, SEEDS, what="different orders")
    assert wrong
    cured(options, SEEDS)


# -- M2: delivery on equality ----------------------------------------------------------------------


def test_m2_messages_are_held_forever_if_the_clock_skips_the_value() -> None:
    options = Options(epsilon=3, delta=3, skip=3)

    def on_equality(seed: int) -> World:
        return World(seed, options, merger=PublishedMerger).play()

    assert bad_seeds(on_equality, SEEDS, what="left in buffers")
    cured(options, SEEDS)


# -- M3: the array is one element too short --------------------------------------------------------


def test_m3_a_relay_makes_c_as_large_as_epsilon() -> None:
    """k at 3 sends to a relay at 1, which at 2 sends to j at 0.

    Each message waits for its receiver's clock.
    """
    settings = config(3, 4)
    k, between, j = (Figure1Line(settings) for _ in range(3))
    sent = k.event(3)
    between.event(1, (sent,))
    relayed = between.event(2)
    at_j = j.event(0, (relayed,))
    assert at_j.c == 3, "c is to be below epsilon, says Lemma 3.2"
    assert figure1_key(settings, at_j) < figure1_key(settings, relayed), "the effect is the smaller"
    kind = timestamps_for(config(3, 4, array=True))
    ours_k, ours_l, ours_j = (Timeline(kind) for _ in range(3))
    received = ours_k.event(3)
    ours_l.event(1, (received,))
    passed = ours_l.event(2)
    assert kind.key(passed) < kind.key(ours_j.event(0, (passed,)))


def test_m3_as_printed_causes_get_larger_timestamps_than_effects() -> None:
    options = Options(epsilon=2, delta=2)

    def as_printed(seed: int) -> World:
        return World(seed, options, line=Figure1Line, key=figure1_key).play()

    assert bad_seeds(as_printed, SEEDS, what="keys against causality")
    cured(options, SEEDS)


def test_m3_printed_check_resets_a_process_without_faults() -> None:
    options = Options(epsilon=2, delta=2)
    resets = []
    for seed in SEEDS:
        world = World(seed, options, line=partial(Figure1Line, checked=True), key=figure1_key)
        world.play()
        lines = [each.line for each in world.processes]
        resets.append(sum(line.resets for line in lines))  # type: ignore[attr-defined]
    assert any(resets)
    for array in (False, True):
        for seed in SEEDS:
            world = ours(seed, replace(options, array=array))
            lines = [each.line for each in world.processes]
            assert not any(line.resets for line in lines), seed  # type: ignore[attr-defined]


def test_m3_without_clock_differences_the_printed_array_is_empty() -> None:
    options = Options(epsilon=0, delta=3, per_tick=2)

    def as_printed(seed: int) -> World:
        return World(seed, options, line=Figure1Line, key=figure1_key).play()

    assert bad_seeds(as_printed, SEEDS, what="keys against causality")
    cured(options, SEEDS)


def test_m3_with_a_minimum_delay_the_printed_array_is_too_short_as_well() -> None:
    """With a delay of d, kn needs one more element at each end than printed.

    As printed it reaches from -(epsilon - d) to epsilon - d - 1.
    """
    for epsilon, earliest in ((3, 1), (2, 2)):
        options = Options(epsilon=epsilon, delta=5, earliest=earliest)
        shorter = config(epsilon - earliest, 5, array=True, processes_max=options.processes)

        def as_printed(seed: int, options: Options = options, shorter: Any = shorter) -> World:
            return World(
                seed,
                options,
                line=lambda _settings: Figure1Line(shorter),
                key=lambda _settings, made: figure1_key(shorter, made),
            ).play()

        def corrected(seed: int, options: Options = options, shorter: Any = shorter) -> World:
            return World(
                seed,
                options,
                line=lambda _settings: our_line(shorter),
                key=lambda _settings, made: our_key(shorter, made),
            ).play()

        assert bad_seeds(as_printed, SEEDS, what="keys against causality")
        assert bad_seeds(corrected, SEEDS) == []
        cured(options, SEEDS)


def test_m3_no_array_is_needed_only_from_a_minimum_delay_of_epsilon_and_one() -> None:
    """The clock reading alone, as printed for a delay of epsilon; one event a tick."""

    def by_clock_alone(seed: int, earliest: int) -> World:
        options = Options(epsilon=2, delta=5, earliest=earliest)
        return World(seed, options, key=lambda _settings, made: (made.r,)).play()

    wrong = "keys against causality"
    assert bad_seeds(partial(by_clock_alone, earliest=2), SEEDS, what=wrong)
    assert bad_seeds(partial(by_clock_alone, earliest=3), SEEDS) == []


# -- M4: several events a tick ---------------------------------------------------------------------


def test_m4_the_printed_bound_resets_correct_states_with_several_events_a_tick() -> None:
    options = Options(epsilon=3, delta=3, per_tick=3, steps=250)

    class RightButForTheBound(Figure1Line):
        """Figure 1 with the longer array, and the bound n as printed."""

        def __init__(self, settings: MergedConfig) -> None:
            super().__init__(settings, checked=True)
            self.kind = timestamps_for(msgspec.structs.replace(settings, array=True))
            self.line = Timeline(self.kind)

        def event(self, tick: int, received: Any = ()) -> Any:
            made = self.line.event(tick, received)
            if max(made.kn) > self.processes:  # type: ignore[union-attr]
                self.resets += 1
                made = self.line.last = self.kind.first(tick)
            return made

    def printed(seed: int) -> World:
        return World(seed, replace(options, array=True), line=RightButForTheBound).play()

    assert bad_seeds(printed, SEEDS, what="keys against causality")
    cured(options, SEEDS)


# -- M5: several messages of one send --------------------------------------------------------------


def test_m5_two_messages_of_one_send_are_delivered_in_different_orders() -> None:
    options = Options(epsilon=2, delta=4, per_send=3)

    def without_index(seed: int) -> World:
        """The tie is broken by the process alone, so what came first stays first."""
        world = World(seed, options, merger=partial(PublishedMerger, equal=False))
        return world.play()

    assert bad_seeds(without_index, SEEDS, what="different orders")
    cured(options, SEEDS)


# -- M6: late messages -----------------------------------------------------------------------------


@pytest.mark.parametrize("equal", [True, False], ids=["=", ">="])
def test_m6_late_messages_are_held_forever_or_delivered_out_of_order(equal: bool) -> None:
    options = Options(epsilon=2, delta=2, lateness=9)

    def accepts_late(seed: int) -> World:
        return World(seed, options, merger=partial(PublishedMerger, equal=equal)).play()

    what = "left in buffers" if equal else "different orders"
    assert bad_seeds(accepts_late, SEEDS, what=what)
    cured(options, SEEDS)


# -- M7: duplicates --------------------------------------------------------------------------------


def test_m7_duplicates_are_delivered_twice() -> None:
    options = Options(epsilon=2, delta=4, duplication=0.3)

    def accepts_all(seed: int) -> World:
        return World(seed, options, merger=partial(PublishedMerger, equal=False)).play()

    assert bad_seeds(accepts_all, SEEDS, what="delivered twice")
    cured(options, SEEDS)


# -- M11: the program without an array -------------------------------------------------------------


def test_m11_the_order_of_figure_3_has_a_cycle() -> None:
    circle = [Figure3(6, 3), Figure3(5, 5), Figure3(8, 0), Figure3(6, 3)]
    assert all(figure3_less(one, other, 2) for one, other in pairwise(circle))


def pumped(make: Any, epsilon: int, turns: int) -> list[list[Any]]:
    """Figure 4: j to k to l to j, repeatedly, with clocks within epsilon; return all events."""
    settings = config(epsilon, 3 * epsilon)
    first, second, third = (make(settings) for _ in range(3))
    made: list[list[Any]] = [[first.event(epsilon)], [], []]
    for turn in range(turns):
        for place, line, tick in (
            (1, second, 1 + 2 * turn),
            (2, third, 1 + 2 * turn),
            (0, first, epsilon + 1 + 2 * turn),
        ):
            received = made[place - 1][-1]
            made[place] += (line.event(tick, (received,)), line.event(tick + 1))
    return made


def test_m11_the_cycle_can_be_reached() -> None:
    """Return the events of Figure 4, and one event of a long silent process."""
    made = [each for events in pumped(Figure3Line, 2, 20) for each in events]
    silent = [Figure3Line(config(2, 6)).event(tick) for tick in range(5, 40)]
    assert any(
        figure3_less(a, b, 2) and figure3_less(b, quiet, 2) and figure3_less(quiet, a, 2)
        for a in made
        for b in made
        for quiet in silent
    )


def test_figure_4_c_grows_without_bound_among_three_processes() -> None:
    """Two events of j per turn: c grows by one a turn in Figure 3, never beyond epsilon in ours."""
    grown = [each.c for each in pumped(Figure3Line, 3, 40)[0]]
    assert grown[-1] > 20 > grown[1]
    for array in (False, True):

        def ours_line(settings: MergedConfig, array: bool = array) -> Timeline:
            return Timeline(timestamps_for(msgspec.structs.replace(settings, array=array)))

        assert max(each.c for events in pumped(ours_line, 3, 40) for each in events) <= 3


def test_m11_a_silent_process_resets_and_its_effects_are_delivered_before_their_causes() -> None:
    """Raise c as in Figure 4, then send to a long silent process: its r + c falls."""
    epsilon, delta = 2, 9
    settings = config(epsilon, delta)
    silent = Figure3Line(settings)
    message = pumped(Figure3Line, epsilon, 30)[0][-1]
    heard_at = message.r + 2 * epsilon + 1
    answer = silent.event(heard_at, (message,))
    assert answer.r + answer.c < message.r + message.c, "r + c fell along a chain of causes"
    merger = PublishedMerger(settings, equal=False)
    for name, made in (("question", message), ("answer", answer)):
        event = Event(topic="t", payload=b"", publisher=name, publisher_seq=1)
        key = (figure3_key(settings, made), name, 0)
        merger.offer(Held(key, event, made, 0), heard_at)  # type: ignore[arg-type]
    order: list[str] = []
    for tick in range(heard_at, heard_at + 100):
        order += [held.event.publisher for held in merger.advance(tick)[0]]
    assert order == ["answer", "question"]


def test_m11_with_two_events_a_tick_figure_3_orders_nothing() -> None:
    options = Options(epsilon=2, delta=4, per_tick=2)

    def figure3(seed: int) -> World:
        return World(seed, options, line=Figure3Line, key=figure3_key).play()

    assert bad_seeds(figure3, SEEDS, what="keys against causality")
    cured(options, SEEDS)


# -- M12: stabilisation ----------------------------------------------------------------------------


def test_m12_corrupted_stamp_in_the_published_buffer_is_held_forever() -> None:
    settings = config(2, 3)
    for merger, stays in (
        (PublishedMerger(settings, equal=False), True),
        (Merger(settings), False),
    ):
        for tick in range(100, 110):
            merger.advance(tick)
        made = CounterTimestamp(10**12, 0, 0)
        held = Held(
            ((10**12, 0), "p", 0),
            Event(topic="t", payload=b"", publisher="p", publisher_seq=1),
            made,
            0,
        )
        if isinstance(merger, PublishedMerger):
            merger.buffer.append(held)
        else:
            merger._held[10**12] = {held.key: held}
        for tick in range(110, 110 + settings.span_ticks + 1):
            merger.advance(tick)
        assert bool(merger.held_count) is stays


# -- M13: restart ----------------------------------------------------------------------------------


@KINDS
def test_m13_restarted_process_that_resumes_at_once_forgets_its_causes(array: bool) -> None:
    """The process knew a clock that is ahead; after its restart, effects sort before causes."""
    kind = timestamps_for(config(3, 4, array=array))
    ahead, process = Timeline(kind), Timeline(kind)
    received = ahead.event(13)
    before = process.event(10, (received,))
    assert kind.key(Timeline(kind).event(11)) < kind.key(before), "at once is too early"
    assert kind.key(Timeline(kind).event(10 + 3 + 1)) > kind.key(before), (
        "epsilon + 1 ticks are enough"
    )


def test_m13_restarted_processes_pause_for_epsilon_plus_one_ticks() -> None:
    options = Options(epsilon=3, delta=4, per_tick=2, restarts=0.03)
    at_once = replace(options, rest=0)
    assert bad_seeds(partial(ours, options=at_once), SEEDS, what="keys against causality")
    assert bad_seeds(partial(ours, options=at_once), SEEDS, what="deliveries against causality")
    cured(options, SEEDS)


def test_failed_run_reports_its_violation() -> None:
    """The checks of the harness see what they are made for, message by message."""
    world = ours(0, Options(epsilon=2, delta=4))
    process = next(each for each in world.processes if len(each.delivered) > 1)
    process.delivered.reverse()
    assert {"different orders", "deliveries against causality"} & world.wrong().keys()
    process.delivered.append(process.delivered[0])
    assert "delivered twice" in world.wrong()
    lost: Message = process.delivered[0][0]
    process.delivered = [each for each in process.delivered if each[0] is not lost]
    assert world.wrong()["not delivered"]
