"""Random scenarios with events by content in total order, and bugs planted there."""

import sys

import pytest
from tests.simulation.swarms.planted import Mutant, Search, patched
from tests.simulation.swarms.seeds import assert_valid, first_seeds

from ensue.core.event import Event
from ensue.protocols.content import cells
from ensue.protocols.content.cells import Axis, Cells, Match
from ensue.protocols.content.filters.filter import Filter
from ensue.protocols.content.filters.spaces import Space, Value
from ensue.protocols.interface import Deliver, Discard
from ensue.protocols.total.delivery import Delivery
from ensue.simulation.run import play
from ensue.simulation.swarms.total_content import draw

SEEDS_MAX = 300

real_classes_in = Axis.classes_in
real_notify = Delivery.notify
real_topics_in = Cells.topics_in
real_match = Match.__call__


@pytest.mark.parametrize("first", first_seeds(always=300))
def test_no_seed_loses_an_event_that_matches_or_breaks_the_order(first: int) -> None:
    assert_valid("total-content", draw, first)


def test_swarm_has_traffic_in_vain_and_every_kind_of_cells() -> None:
    drawn = [draw(seed) for seed in range(60)]
    texts = {str(each.sequencer.cells) for each in drawn}
    assert {sign for text in texts for sign in "/<=;" if sign in text} == set("/<=;")
    rows = [row for seed in range(10) for row in play(drawn[seed], seed).rows]
    discarded = [row for row in rows if row.action == "discarded" and row.verdict == "unmatched"]
    assert discarded
    assert any(row.action == "delivered" for row in rows)


# -- Planted bugs ----------------------------------------------------------------------------------


def hash_as_written(value: Value) -> int:
    """A whole number and the same number as a fraction have different hashes."""
    return sum(repr(value).encode())


def forget_absence(self: Axis, wanted: Space | None) -> tuple[int, ...]:
    """A filter that does not name an attribute misses the events without it."""
    found = real_classes_in(self, wanted)
    return found[1:] if wanted is None else found


def forget_other_values(self: Axis, wanted: Space | None) -> tuple[int, ...]:
    """A filter misses the values that no class lists."""
    found = real_classes_in(self, wanted)
    return tuple(each for each in found if not self.is_open or each < self.count - 1)


def hash_bounds(self: Axis, wanted: Space | None) -> tuple[int, ...]:
    """The hashes of the ends of a range stand for all of its values."""
    if not self.buckets or wanted is None:
        return real_classes_in(self, wanted)
    return tuple(sorted({self.class_of(low[1]) for low, _ in wanted}))


def join_first_alternative(self: Cells, wanted: Filter) -> tuple[str, ...]:
    """A filter with `or` joins the cells of its first alternative."""
    return real_topics_in(self, Filter(wanted.boxes[:1]))


def count_positions_in_vain(
    self: Delivery, event: Event, slot: int, since_ns: int, now_ns: int
) -> None:
    """An event that does not match takes a position."""
    skipped = self._skipped(event)
    self._progress.handled(event.topic, slot, count=not event.void)
    if skipped:
        self._effects.append(Discard(event, skipped))
    else:
        self._effects.append(Deliver(event, self._progress.delivered, "", now_ns - since_ns))


def drop_on_arrival(self: Delivery, event: Event, now_ns: int) -> None:
    """An event that does not match is dropped before its turn, and others wait for it."""
    if not event.void and self._matches is not None and not self._matches(event):
        self._effects.append(Discard(event, "unmatched"))
    else:
        real_notify(self, event, now_ns)


def deliver_everything(self: Match, event: Event) -> bool:
    """The application gets every event of its cells."""
    real_match(self, event)
    return True


MUTANTS = (
    patched("fractions", 30, cells, "_hash", hash_as_written),
    patched("absence", 0, Axis, "classes_in", forget_absence),
    patched("other values", 0, Axis, "classes_in", forget_other_values),
    patched("ends of ranges", 31, Axis, "classes_in", hash_bounds),
    patched("alternatives", 13, Cells, "topics_in", join_first_alternative),
    patched("positions", 0, Delivery, "release", count_positions_in_vain),
    patched("turns", 0, Delivery, "notify", drop_on_arrival),
    patched("filters", 0, Match, "__call__", deliver_everything),
)

SEARCH = Search(draw)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_is_found(mutant: Mutant) -> None:
    assert not SEARCH.is_caught(Mutant("no mistake", 0), mutant.hint)
    assert SEARCH.first_seed(mutant, (mutant.hint, *range(SEEDS_MAX))) is not None


if __name__ == "__main__":
    SEARCH.print_seeds(MUTANTS, sys.argv[1:], range(SEEDS_MAX))
