"""Merged order in random scenarios: valid, and soon valid again after a fault.

Planted bugs are found. `python -m tests.simulation.swarms.test_merged [NAME …]` prints the first
seed that finds each.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import pytest
from tests.simulation.swarms.planted import Mutant, Search, patched
from tests.simulation.swarms.seeds import CHUNK, first_seeds

from ensue.core.errors import BadInput
from ensue.core.event import Event
from ensue.core.trace import digest
from ensue.protocols.interface import Deliver, Effect, Persist
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.merged.merger import Held, Merger
from ensue.protocols.merged.publisher import MergedPublisher
from ensue.protocols.merged.subscriber import MergedSubscriber
from ensue.protocols.merged.timestamps import (
    ArrayTimestamp,
    ArrayTimestamps,
    CounterTimestamp,
    CounterTimestamps,
)
from ensue.simulation.deployments.base import Roles
from ensue.simulation.run import Outcome, play
from ensue.simulation.scenario_file import reader
from ensue.simulation.swarms.merged import draw, kind_of

EXAMPLES = Path(__file__).parents[3] / "examples" / "scenarios"
SEEDS_MAX = 200
"""Each mutant must be caught by one of the first so many seeds."""


def complaint(outcome: Outcome) -> str:
    sentences = "\n".join(f"  {sentence}" for sentence in outcome.sentences())
    return f"ensue replay merged --seed {outcome.seed}\n{sentences}"


@pytest.mark.parametrize("first", first_seeds(always=300))
def test_no_seed_breaks_order_or_gets_stuck(first: int) -> None:
    complaints = []
    for seed in range(first, first + CHUNK):
        outcome = play(draw(seed), seed)
        if not outcome.valid:
            complaints.append(complaint(outcome))
    assert not complaints, "\n" + "\n".join(complaints)


def test_swarm_reaches_every_outcome_of_an_event() -> None:
    seen: Counter[str] = Counter()
    for seed in range(90):
        scenario = draw(seed)
        outcome = play(scenario, seed)
        seen["strict"] += not scenario.merge.lossy
        seen["stacked"] += bool(scenario.merge.stacked and outcome.delivered)
        for row in outcome.rows:
            seen[row.action if not row.verdict else f"{row.action} {row.verdict}"] += 1
            if row.action == "published" and row.stamp is not None:
                seen["c"] += row.stamp.get("@c", 0) > 0
                seen["k"] += row.stamp.get("@k", 0) > 0
    for what in (
        "crashed",
        "delivered",
        "delivered early",
        "delivered late",
        "delivered skewed",
        "discarded late",
        "discarded skewed",
        "discarded corrupt",
        "discarded duplicate",
        "strict",
        "stacked",
        "c",
        "k",
    ):
        assert seen[what], f"no {what} in {seen}"


@pytest.mark.parametrize("seed", [0, 3, 4, 5])
def test_seed_gives_same_trace_again(seed: int) -> None:
    first, again = (play(draw(seed), seed, peer_frames=True) for _ in range(2))
    assert digest(first.rows) == digest(again.rows)


@pytest.mark.parametrize("seed", [0, 3, 4, 5])
def test_encoded_frames_give_same_deliveries_as_objects(seed: int) -> None:
    objects, encoded = (play(draw(seed), seed, encode=encode) for encode in (False, True))
    assert objects.delivered
    for one, other in zip(objects.rows, encoded.rows, strict=True):
        assert msgspec.structs.replace(other, bytes=None) == msgspec.structs.replace(
            one, bytes=None
        )


def test_clock_example_is_valid_and_loses_events_only_during_clock_jump() -> None:
    scenario = reader.load(EXAMPLES / "desks-by-clock.toml")
    assert (scenario.merge.config.epsilon_ticks, scenario.merge.config.delta_ticks) == (8, 60)
    assert scenario.merge.eager == ("helper",)
    outcome = play(scenario, 1)
    assert outcome.valid, outcome.sentences()
    late = [row for row in outcome.rows if row.verdict in ("late", "skewed")]
    assert late
    assert {row.node for row in late} == {"desk-2"}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('tick = "0ms"', "merge.tick: must be above 0"),
        ('eager = "nobody"', "merge.eager"),
        ("held_max = 0", "merge.*held_max must be at least 1"),
    ],
)
def test_bad_merge_table_is_rejected(table: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        reader.loads(f'order = "merged"\n[merge]\n{table}\n', name="bad")


# -- Planted bugs ---------------------------------------------------------------------------------


real_advance, real_offer, real_notify = Merger.advance, Merger.offer, MergedSubscriber._notify


def advance_early(by: Callable[[MergedConfig], int]) -> object:
    """Deliver so many ticks too early."""
    return lambda self, tick: real_advance(self, tick + by(self.config))


def advance_on_equality(self: Merger, tick: int) -> tuple[list[Held], list[Held]]:
    due = tick - self.config.wait_ticks - 1
    bucket = self._held.pop(due, {})
    if due in self._reaches:
        self._reaches.remove(due)
    self._count -= len(bucket)
    self._tick = tick
    return sorted(bucket.values(), key=lambda each: each.key), []


def advance_in_order_of_arrival(self: Merger, tick: int) -> tuple[list[Held], list[Held]]:
    """Events with the same r + c are delivered in order of arrival."""
    leaving, overtaken = real_advance(self, tick)
    return sorted(leaving, key=lambda each: (each.key[0][0], each.received_ns)), overtaken


def advance_without_frontier(self: Merger, tick: int) -> tuple[list[Held], list[Held]]:
    """The last delivered stamp is forgotten, so a late event is tagged only at its delivery."""
    self._frontier = None
    return real_advance(self, tick)


def offer_whatever(self: Merger, held: Held, tick: int) -> str:
    """No event is too late."""
    reach = held.timestamp.r + held.timestamp.c
    if reach > tick + self.config.epsilon_ticks:
        return "skewed"
    if reach not in self._held:
        self._held[reach] = {}
        self._reaches.append(reach)
        self._reaches.sort()
    self._held[reach][held.key] = held
    self._count += 1
    return ""


def offer_copies(self: Merger, held: Held, tick: int) -> str:
    """A second copy counts as another event."""
    bucket = self._held.get(held.timestamp.r + held.timestamp.c, {})
    while held.key in bucket:
        key = (held.key[0], held.key[1], held.key[2] + 1)
        held = Held(key, held.event, held.timestamp, held.received_ns)
    return real_offer(self, held, tick)


class TagsNothing(MergedSubscriber):
    """A late event is delivered as if it were in order."""

    def _deliver_out_of_order(self, event: Event, verdict: str) -> bool:
        handed = super()._deliver_out_of_order(event, verdict)
        if handed and verdict == "late":
            last = self._effects.pop()
            assert isinstance(last, Deliver)
            self._effects.append(Deliver(event, last.position))
        return handed


class DropsWhatIsDue(MergedSubscriber):
    """An event that is due when another arrives is dropped."""

    def _notify(self, event: Event, now_ns: int) -> None:
        if self.merger.held_count > 3:
            self.merger.drop(lambda _event: True)
        super()._notify(event, now_ns)


class ObservesNothing(MergedPublisher):
    """Events delivered early are no cause of the next publication."""

    def observe(self, entries: Mapping[str, int], *, now_ns: int) -> bool:
        return True


class TrustsItsCount(MergedPublisher):
    """The number of waiting events is never recounted."""

    def _count_waiting(self) -> int:
        return self._waiting_count


class ForgetsNumbers(MergedPublisher):
    """A restarted publisher reuses its numbers."""

    def take_effects(self) -> list[Effect]:
        return [each for each in super().take_effects() if not isinstance(each, Persist)]


class StampsByTheClockAlone(MergedPublisher):
    """The timestamp is the clock reading, without the causes."""

    def _send(self, events: tuple[Event, ...], tick: int, now_ns: int) -> None:
        self.timeline.last = None
        super()._send(events, tick, now_ns)


def counter_that_never_counts(
    self: CounterTimestamps, tick: int, known: Iterable[CounterTimestamp]
) -> CounterTimestamp:
    most = max([tick, *(each.r + each.c for each in known)])
    return CounterTimestamp(tick, most - tick, 0)


def counter_that_forgets_clocks(
    self: CounterTimestamps, tick: int, known: Iterable[CounterTimestamp]
) -> CounterTimestamp:
    return CounterTimestamp(tick, 0, max([0, *(each.k + 1 for each in known if each.r == tick)]))


def array_as_printed(self: ArrayTimestamps, made: ArrayTimestamp) -> tuple[int, ...]:
    """Only the counts from the newest tick on are compared, and one too few of them."""
    newest = made.c + self.config.epsilon_ticks
    return (made.r + made.c, *made.kn[newest : made.c : -1], 0)


def read_backwards(sent: int | None, tick: int, config: MergedConfig) -> int | None:
    """A reduced reading is never of a clock that is ahead."""
    if sent is None or config.modulus is None:
        return sent
    return tick - (tick - sent) % config.modulus


MUTANTS = (
    patched("delivers at the first instant", 126, Merger, "advance", advance_early(lambda _c: 1)),
    patched(
        "waits for delta alone",
        121,
        Merger,
        "advance",
        advance_early(lambda config: config.epsilon_ticks),
    ),
    patched("delivers on equality", 0, Merger, "advance", advance_on_equality),
    patched("ties by arrival", 0, Merger, "advance", advance_in_order_of_arrival),
    Mutant(
        "accepts what is late",
        3,
        Roles(),
        ((Merger, "offer", offer_whatever), (Merger, "advance", advance_without_frontier)),
    ),
    patched("accepts copies", 0, Merger, "offer", offer_copies),
    patched("looks for no faults", 5, Merger, "_drop_invalid", lambda *_: None),
    Mutant("tags nothing", 39, Roles(merge_subscriber=TagsNothing)),
    Mutant("drops what is due", 6, Roles(merge_subscriber=DropsWhatIsDue)),
    Mutant("observes nothing", 4, Roles(merge_publisher=ObservesNothing)),
    Mutant("trusts its count", 5, Roles(merge_publisher=TrustsItsCount)),
    Mutant("forgets numbers", 0, Roles(merge_publisher=ForgetsNumbers)),
    Mutant("stamps by the clock alone", 4, Roles(merge_publisher=StampsByTheClockAlone)),
    patched("never counts", 121, CounterTimestamps, "after", counter_that_never_counts),
    patched("forgets clocks", 4, CounterTimestamps, "after", counter_that_forgets_clocks),
    patched("array as printed", 91, ArrayTimestamps, "key", array_as_printed),
    patched(
        "reads backwards",
        10,
        sys.modules["ensue.protocols.merged.timestamps"],
        "_unreduced",
        read_backwards,
    ),
)

SEARCH = Search(draw)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_is_found(mutant: Mutant) -> None:
    assert not SEARCH.is_caught(Mutant("no mistake", 0), mutant.hint)
    assert SEARCH.first_seed(mutant, (mutant.hint, *range(SEEDS_MAX))) is not None


if __name__ == "__main__":
    SEARCH.print_seeds(MUTANTS, sys.argv[1:], range(SEEDS_MAX), kind_of)
