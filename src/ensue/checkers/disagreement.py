"""Finds two subscribers that delivered the same two events in opposite orders.

Theory. `cycles` leaves only sets of events on which subscribers can disagree. In each set,
subscribers with the same order count as one. For two with different orders, sort their common
events by the order of the first and number them by the order of the second: they agree exactly if
the numbers rise. If not, some two neighbors fall, at either subscriber. The witness is the pair
with the fewest deliveries between them at both subscribers together, then the earliest.

Cost: linear in the deliveries if one order fits all. Otherwise every two distinct orders of a
component are compared, in time linear in their lengths. HAZARD: many subscribers that all disagree
on a large component cost the square of their number; `limit` ends the search.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, islice, pairwise

import msgspec

from ensue.checkers import cycles
from ensue.checkers.history import Delivery, History, histories, ordinal
from ensue.checkers.verdict import Subscriber
from ensue.core.errors import BadInput
from ensue.core.trace import Row

__all__ = ["Disagreement", "Inversions", "Orders", "Side", "inversions"]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of two subscribers that disagree."""

    subscriber: Subscriber
    name: str
    deliveries: tuple[tuple[int, str], ...]
    """Position and event of the two events, and of the deliveries around and between them."""


class Inversions(msgspec.Struct, frozen=True, kw_only=True):
    """The number of disagreements, and an example."""

    count: int
    """Pairs of events in opposite orders, summed over the pairs of subscribers."""
    common_count: int
    """Pairs of events common to two subscribers, summed over the pairs of subscribers."""
    events: tuple[str, str] | None = None
    """The two events of the example: the first side delivered them in this order."""
    sides: tuple[Side, Side] | None = None
    """The two subscribers of the example, side by side."""
    because: str = ""
    """The example in words."""


class Disagreement(msgspec.Struct, frozen=True, order=True):
    """Two events in opposite orders at two subscribers; the smallest sorts first."""

    distance: int
    """Distance of the events, summed over both subscribers, without tagged deliveries."""
    position: int
    """Position of the later of the two at the first subscriber."""
    subscribers: tuple[int, int]
    events: tuple[int, int]
    """In the order of the first subscriber."""


class Orders:
    """The orders of all subscribers of a run, with events as numbers."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.subscribers = list(history.delivered)
        self.deliveries = [history.judged(subscriber) for subscriber in self.subscribers]
        numbers: dict[str, int] = {}
        self.sequences: list[list[int]] = [
            [numbers.setdefault(delivery.event, len(numbers)) for delivery in deliveries]
            for deliveries in self.deliveries
        ]
        self.events = list(numbers)
        parts = cycles.components(self.sequences)
        self.parts = cycles.restrict(self.sequences, parts)
        self._places: dict[int, dict[int, Delivery]] = {}

    def place(self, subscriber: int, event: int) -> Delivery:
        """Return a subscriber's delivery of an event."""
        places = self._places.get(subscriber)
        if places is None:
            pairs = zip(self.sequences[subscriber], self.deliveries[subscriber], strict=True)
            places = self._places[subscriber] = dict(pairs)
        return places[event]

    def disagreements(self, *, limit: int | None = None) -> list[Disagreement]:
        """Return the smallest disagreement of each two distinct orders, smallest first.

        The search ends early once `limit` are found, all of them true but maybe not the smallest.
        """
        found = (
            smallest
            for part in self.parts
            for (one, _), (other, _) in combinations(_distinct(part), 2)
            if (smallest := self._smallest(part, one, other)) is not None
        )
        return sorted(islice(found, limit))

    def count(self) -> int:
        """Count the inverted pairs of events over all pairs of subscribers."""
        total = 0
        for part in self.parts:
            for (one, ones), (other, others) in combinations(_distinct(part), 2):
                rank = {event: place for place, event in enumerate(part[other])}
                ranks = [rank[event] for event in part[one] if event in rank]
                total += ones * others * _inversion_count(ranks)
        return total

    def common_count(self) -> int:
        """Count the common pairs of events over all pairs of subscribers."""
        held = [set(sequence) for sequence in self.sequences]
        shared = (len(one & other) for one, other in combinations(held, 2))
        return sum(count * (count - 1) // 2 for count in shared)

    def explain(self, found: Disagreement) -> str:
        """Describe a disagreement."""
        first, second = found.events
        parts = []
        for subscriber, events in zip(
            found.subscribers, ((first, second), (second, first)), strict=True
        ):
            name = self.history.name(self.subscribers[subscriber])
            one, other = (self.place(subscriber, event) for event in events)
            parts.append(
                f"{name} delivered {one.event} (its {ordinal(one.position)}) "
                f"before {other.event} (its {ordinal(other.position)})"
            )
        return ", but ".join(parts)

    def _smallest(self, part: dict[int, list[int]], one: int, other: int) -> Disagreement | None:
        best: Disagreement | None = None
        places = {
            subscriber: {event: place for place, event in enumerate(part[subscriber])}
            for subscriber in (one, other)
        }
        for mine, theirs in ((one, other), (other, one)):
            rank = places[theirs]
            common = [event for event in part[mine] if event in rank]
            for pair in pairwise(common):
                if rank[pair[0]] < rank[pair[1]]:
                    continue
                first, second = pair if mine == one else pair[::-1]
                distance = places[one][second] - places[one][first]
                distance += places[other][first] - places[other][second]
                position = self.place(one, second).position
                found = Disagreement(distance, position, (one, other), (first, second))
                best = found if best is None else min(best, found)
            if best is None:
                return None
        return best


def inversions(rows: Sequence[Row], *, context: int = 2) -> Inversions:
    """Count the pairs of events that subscribers delivered in opposite orders, with an example.

    `context` deliveries before and after the two are shown. The cost is that of sorting for each
    two subscribers that disagree: meant for demonstrations rather than for huge traces.
    """
    runs, reasons = histories(rows)
    if reasons:
        raise BadInput(reasons[0])
    count = common_count = 0
    example: tuple[Disagreement, Orders] | None = None
    for history in runs:
        orders = Orders(history)
        count += orders.count()
        common_count += orders.common_count()
        found = orders.disagreements()
        if found and (example is None or found[0] < example[0]):
            example = (found[0], orders)
    if example is None:
        return Inversions(count=count, common_count=common_count)
    found_first, orders = example
    first, second = found_first.events
    one, other = (_side(orders, found_first, which, context) for which in (0, 1))
    return Inversions(
        count=count,
        common_count=common_count,
        events=(orders.events[first], orders.events[second]),
        sides=(one, other),
        because=orders.explain(found_first),
    )


def _side(orders: Orders, found: Disagreement, which: int, context: int) -> Side:
    number = found.subscribers[which]
    subscriber = orders.subscribers[number]
    positions = sorted(orders.place(number, event).position for event in found.events)
    shown = orders.history.delivered[subscriber][
        max(0, positions[0] - 1 - context) : positions[1] + context
    ]
    return Side(
        subscriber=subscriber,
        name=orders.history.name(subscriber),
        deliveries=tuple((delivery.position, delivery.event) for delivery in shown),
    )


def _distinct(part: dict[int, list[int]]) -> Iterator[tuple[int, int]]:
    """Yield one subscriber per distinct order, and the number of subscribers with that order."""
    sharing: dict[tuple[int, ...], list[int]] = {}
    for subscriber, events in part.items():
        sharing.setdefault(tuple(events), []).append(subscriber)
    for subscribers in sharing.values():
        yield subscribers[0], len(subscribers)


def _inversion_count(ranks: list[int]) -> int:
    """Count falling pairs by merge sort."""
    count = 0
    width = 1
    while width < len(ranks):
        merged: list[int] = []
        for start in range(0, len(ranks), 2 * width):
            left, right = ranks[start : start + width], ranks[start + width : start + 2 * width]
            taken = 0
            for rank in right:
                while taken < len(left) and left[taken] < rank:
                    merged.append(left[taken])
                    taken += 1
                count += len(left) - taken
                merged.append(rank)
            merged += left[taken:]
        ranks = merged
        width *= 2
    return count
