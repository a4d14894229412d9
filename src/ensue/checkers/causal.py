"""Checks that no subscriber delivers an effect before its cause.

Rule: an event e comes before f if the node that published f had published e before, or had
delivered e (at any of its subscriptions, tagged or not) before; or through a chain of such
steps. No subscriber delivers f and later e. Tagged deliveries are set aside at the subscriber
that is judged, and of an event delivered twice the first counts.

`judge_topics` judges each topic by itself: a chain counts only if all its events are of one topic.

Method. The causes of an event are, for each publishing node, a prefix of what that node published.
So the causal past of an event is one number per node: a vector clock. Walking the rows of each
publishing node, until it delivers an event whose vector is not known yet, gives the vector of every
event. A subscriber is then judged by the running maximum of the vectors of its deliveries: an event
that the maximum already covers is late.

Cost: at most rows times publishing nodes; a delivery of an event that a node already knows takes
constant time. Chains are computed only for the violations that are kept.

HAZARD: events without a `published` row have no known past and are not judged here; `complete`
reports them. Rows that would need an event to be delivered before it is published are not
judged at all.
"""

from functools import partial
from heapq import merge
from operator import attrgetter

from ensue.checkers.history import Delivery, History, Publication, ordinal
from ensue.checkers.verdict import Collector, Subscriber

__all__ = ["judge", "judge_topics"]


def judge(history: History, collector: Collector) -> None:
    """Report every delivery after one of its effects."""
    pasts = _Pasts(history)
    if not pasts.compute():
        collector.unknown(f"in run {history.run}, events were delivered before they were published")
        return
    for subscriber in history.delivered:
        _judge_subscriber(history, pasts, subscriber, collector)


def judge_topics(history: History, collector: Collector) -> None:
    """Report every delivery after one of its effects in the same topic."""
    for topic in sorted({publication.topic for publication in history.published.values()}):
        judge(history.of_topic(topic), collector)


class _Pasts:
    """The causal past of every published event, as a vector over the publishing nodes."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.nodes = list(history.publications_at)
        self.vectors: dict[str, list[int]] = {}
        self.places: dict[str, tuple[int, int]] = {}
        """By event: the number of its node, and 1, 2, 3, … among what that node published."""
        for number, node in enumerate(self.nodes):
            for place, publication in enumerate(history.publications_at[node], 1):
                self.places[publication.event] = (number, place)

    def compute(self) -> bool:
        """Compute all vectors; return False if an event was delivered before it was published."""
        vectors = self.vectors
        clocks = [[0] * len(self.nodes) for _ in self.nodes]
        rows = [iter(self._rows(node)) for node in self.nodes]
        waiting: dict[str, list[tuple[int, Delivery]]] = {}
        ready: list[tuple[int, Delivery | None]] = [(number, None) for number in range(len(rows))]
        while ready:
            number, resumed = ready.pop()
            clock = clocks[number]
            if resumed is not None:
                _learn(clock, vectors[resumed.event], self.places[resumed.event])
            for row in rows[number]:
                if isinstance(row, Publication):
                    clock[number] += 1
                    vectors[row.event] = clock.copy()
                    ready += waiting.pop(row.event, ())
                elif row.event in vectors:
                    _learn(clock, vectors[row.event], self.places[row.event])
                elif row.event in self.places:
                    waiting.setdefault(row.event, []).append((number, row))
                    break
        return not waiting

    def before(self, cause: str, effect: str) -> bool:
        """Whether one event comes before another, different one."""
        node, place = self.places[cause]
        return self.vectors[effect][node] >= place

    def chain(self, cause: str, effect: str) -> list[str]:
        """Explain step by step why one event comes before another.

        Each step goes from the effect to the event by which its publisher first learned of the
        cause, directly if possible.
        """
        steps: list[str] = []
        origin = self.history.published[cause].node
        while effect != cause:
            publication = self.history.published[effect]
            node = publication.node
            if node == origin:
                steps.append(f"{node} published {cause} before {effect}")
                break
            known = [
                delivery.event
                for delivery in self.history.deliveries_at[node]
                if delivery.step < publication.step and delivery.event in self.places
            ]
            via = cause
            if cause not in known:
                via = next(event for event in known if self.before(cause, event))
            steps.append(f"{node} delivered {via} before it published {effect}")
            effect = via
        return steps[::-1]

    def _rows(self, node: str) -> list[Publication | Delivery]:
        published = self.history.publications_at[node]
        delivered = self.history.deliveries_at.get(node, [])
        return list(merge(published, delivered, key=attrgetter("step")))


def _learn(clock: list[int], vector: list[int], place: tuple[int, int]) -> None:
    """Merge the past of an event into a clock; a node that knows the event knows its past."""
    node, number = place
    if clock[node] < number:
        clock[:] = map(max, clock, vector)


def _judge_subscriber(
    history: History, pasts: _Pasts, subscriber: Subscriber, collector: Collector
) -> None:
    covered = [0] * len(pasts.nodes)
    deliveries = [one for one in history.judged(subscriber) if one.event in pasts.places]
    for index, late in enumerate(deliveries):
        node, place = pasts.places[late.event]
        if covered[node] < place:
            covered = list(map(max, covered, pasts.vectors[late.event]))
            continue
        # Scanned backwards only for reported violations: the nearest is the smallest.
        early = late
        if not collector.full:
            early = next(
                one for one in reversed(deliveries[:index]) if pasts.before(late.event, one.event)
            )
        explain = partial(_explain, history.name(subscriber), pasts, early, late)
        collector.violation("causal", (subscriber,), (early.event, late.event), explain)


def _explain(name: str, pasts: _Pasts, early: Delivery, late: Delivery) -> str:
    return (
        f"{name} delivered {early.event} (its {ordinal(early.position)}) before {late.event} "
        f"(its {ordinal(late.position)}), but {'; '.join(pasts.chain(late.event, early.event))}"
    )
