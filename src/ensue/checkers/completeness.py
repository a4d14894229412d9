"""Checks that each subscriber delivers every owed event once, and nothing else.

Rules, for each subscriber:

- `lost`: an owed event was not delivered. An event is owed if its receipt came (`published`), it
  was published after the subscription to its topic took effect, and the subscription lasted to the
  end of the trace. If the subscription ended, an event is owed if its receipt came at least
  `settle_ns` before the end; and, if `gaps` is set, if a later event of the same publisher and
  topic was delivered. Near the start and the end of a subscription an event may or may not be
  delivered. An event that the subscription discarded as `unmatched`, by its filter, is not owed.
- `duplicate`: an event was delivered twice.
- `phantom`: an event was delivered that no client published, or as another one than published.
- `uninvited`: an event was delivered without a subscription to its topic.
- `void`: an event was delivered although the node that published it had discarded it as void. Such
  events are not owed.

Tagged deliveries count as deliveries here.

Crashes. A subscription survives a crash if the node restarts; a node that stays down is owed
nothing after its crash. An event is in doubt, and not owed, if its publisher stays down and no
subscriber delivered it: it may never have been sent.

Cost: sorting, then one lookup per owed event, which is either a delivery in the trace or a
violation. HAZARD: a trace that ends while events are in flight shows them as lost.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from ensue.checkers.history import Delivery, History, Interval, Publication, ordinal
from ensue.checkers.verdict import Collector, Subscriber

__all__ = ["Terms", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The definition of owed events."""

    settle_ns: int | None = None
    """Events published at least this long before a subscription ends are owed; None: none are."""
    clock_error_ns: int = 0
    """The largest difference between the clocks of two nodes, for runs without true time."""
    lossy: bool = False
    """Accept losses and only count them."""
    gaps: bool = True
    """Whether a later event of a publisher proves that an earlier one is lost."""


class _Lane:
    """The events of a topic, of one publisher or of all, by time of publication."""

    def __init__(self, publications: Iterable[Publication]) -> None:
        self.by_time = sorted(publications, key=lambda one: (one.time_ns, one.step))
        self.times = [one.time_ns for one in self.by_time]
        by_number = sorted(self.by_time, key=lambda one: one.publisher_seq)
        self._numbers = [one.publisher_seq for one in by_number]
        self._latest = list(accumulate((one.time_ns for one in by_number), max))

    def between(self, after_ns: int, until_ns: int | None) -> list[Publication]:
        """Return the events published after one time, up to and including another."""
        start = bisect_right(self.times, after_ns)
        end = len(self.times) if until_ns is None else bisect_right(self.times, until_ns)
        return self.by_time[start:end]

    def below(self, number: int, after_ns: int) -> list[Publication]:
        """Return the events with a smaller number that were published after a time."""
        count = bisect_left(self._numbers, number)
        if not count:
            return []
        found = self.between(after_ns, self._latest[count - 1])
        return [one for one in found if one.publisher_seq < number]


def judge(history: History, collector: Collector, terms: Terms) -> None:
    """Report wrong deliveries and missing ones."""
    for subscriber, deliveries in history.delivered.items():
        _judge_deliveries(history, subscriber, deliveries, collector)
    _Debts(history, terms).judge(collector)


def _judge_deliveries(
    history: History, subscriber: Subscriber, deliveries: list[Delivery], collector: Collector
) -> None:
    name = history.name(subscriber)
    seen: dict[str, Delivery] = {}
    for delivery in deliveries:
        event = delivery.event
        first = seen.setdefault(event, delivery)
        wrong: dict[str, str] = {}
        if first is not delivery:
            wrong["duplicate"] = f"had delivered it before (its {ordinal(first.position)})"
        if not _is_published(history, delivery):
            wrong["phantom"] = _not_published(history, delivery)
        if event in history.void:
            node = history.published[event].node
            wrong["void"] = f"{node}, which published it, had discarded it as void"
        if not _is_invited(history, subscriber, delivery):
            wrong["uninvited"] = f"was not subscribed to {delivery.topic} then"
        for anomaly, why in wrong.items():
            explain = partial(_explain_delivery, name, delivery, why)
            collector.violation(anomaly, (subscriber,), (event,), explain)


def _explain_delivery(name: str, delivery: Delivery, why: str) -> str:
    return f"{name} delivered {delivery.event} (its {ordinal(delivery.position)}), but {why}"


def _is_published(history: History, delivery: Delivery) -> bool:
    publication = history.published.get(delivery.event)
    return publication is not None and _label(publication) == _label(delivery)


def _not_published(history: History, delivery: Delivery) -> str:
    publication = history.published.get(delivery.event)
    if publication is None:
        return "no client published it"
    return f"as {_label(delivery)}, and it was published as {_label(publication)}"


def _label(one: Publication | Delivery) -> str:
    return f"number {one.publisher_seq} of {one.publisher} on {one.topic}"


def _is_invited(history: History, subscriber: Subscriber, delivery: Delivery) -> bool:
    intervals = history.intervals.get((subscriber, delivery.topic), [])
    index = bisect_right(intervals, delivery.step, key=lambda one: one.opened_step) - 1
    if index < 0:
        return False
    interval = intervals[index]
    closed = interval.closed_step
    return closed is None or delivery.step < closed or interval.reads_on


class _Debts:
    """What every subscriber is owed."""

    def __init__(self, history: History, terms: Terms) -> None:
        self._history = history
        self._terms = terms
        self._slack_ns = 0 if history.simulated else terms.clock_error_ns
        came = {one.event for deliveries in history.delivered.values() for one in deliveries}
        self.doubtful_count = 0
        topics: dict[str, list[Publication]] = {}
        lanes: dict[tuple[str, str], list[Publication]] = {}
        for publication in history.published.values():
            if publication.event in history.void or publication.confirmed_ns is None:
                continue
            if publication.node in history.down and publication.event not in came:
                self.doubtful_count += 1
                continue
            topics.setdefault(publication.topic, []).append(publication)
            lanes.setdefault((publication.publisher, publication.topic), []).append(publication)
        self._topics = {topic: _Lane(ones) for topic, ones in topics.items()}
        self._lanes = {key: _Lane(ones) for key, ones in lanes.items()}

    def judge(self, collector: Collector) -> None:
        history = self._history
        owed_count = lost_count = 0
        by_topic: dict[tuple[Subscriber, str], list[Delivery]] = {}
        for subscriber, deliveries in history.delivered.items():
            for delivery in deliveries:
                by_topic.setdefault((subscriber, delivery.topic), []).append(delivery)
        came = {
            subscriber: {one.event for one in deliveries}
            for subscriber, deliveries in history.delivered.items()
        }
        for (subscriber, topic), intervals in history.intervals.items():
            owed: dict[str, str] = {}
            for interval in intervals:
                self._owe(subscriber, interval, topic, by_topic.get((subscriber, topic), []), owed)
            for event in history.unmatched.get(subscriber, ()):
                owed.pop(event, None)
            owed_count += len(owed)
            lost = [event for event in owed if event not in came[subscriber]]
            lost_count += len(lost)
            if self._terms.lossy:
                continue
            for event in lost:
                explain = partial(self._explain, subscriber, event, owed[event])
                collector.violation("lost", (subscriber,), (event,), explain)
        if self._terms.lossy:
            collector.tally({"owed": owed_count, "lost": lost_count})
        collector.tally({"in doubt": self.doubtful_count})

    def _owe(
        self,
        subscriber: Subscriber,
        interval: Interval,
        topic: str,
        deliveries: list[Delivery],
        owed: dict[str, str],
    ) -> None:
        """Add the events owed within an interval, each with the reason."""
        after_ns = interval.opened_ns + self._slack_ns
        lane = self._topics.get(topic)
        if lane is None:
            return
        if interval.closed_ns is None:
            for one in lane.between(after_ns, None):
                owed.setdefault(one.event, "was subscribed to the end")
            return
        settle_ns = self._terms.settle_ns
        if settle_ns is not None:
            until_ns = interval.closed_ns - settle_ns - self._slack_ns
            for one in lane.between(after_ns, until_ns):
                if one.confirmed_ns is not None and one.confirmed_ns <= until_ns:
                    owed.setdefault(one.event, "stayed subscribed for long enough")
        if self._terms.gaps:
            furthest = self._furthest(interval, deliveries)
            excerpt = self._history.excerpt
            if excerpt is not None:
                furthest |= excerpt.furthest.get((subscriber, topic, interval.opened_step), {})
            self._owe_gaps(interval, topic, furthest, owed)

    def _furthest(
        self, interval: Interval, deliveries: list[Delivery]
    ) -> dict[str, tuple[int, str]]:
        """Return, by publisher, the greatest number delivered in an interval, and its event."""
        start = bisect_right(deliveries, interval.opened_step, key=lambda one: one.step)
        end = len(deliveries)
        if interval.closed_step is not None:
            end = bisect_left(deliveries, interval.closed_step, key=lambda one: one.step)
        furthest: dict[str, tuple[int, str]] = {}
        for delivery in deliveries[start:end]:
            if not _is_published(self._history, delivery):
                continue
            known = furthest.get(delivery.publisher)
            if known is None or delivery.publisher_seq > known[0]:
                furthest[delivery.publisher] = (delivery.publisher_seq, delivery.event)
        return furthest

    def _owe_gaps(
        self,
        interval: Interval,
        topic: str,
        furthest: dict[str, tuple[int, str]],
        owed: dict[str, str],
    ) -> None:
        """Add the events that each publisher published before its last delivered event."""
        after_ns = interval.opened_ns + self._slack_ns
        for publisher, (number, event) in furthest.items():
            lane = self._lanes.get((publisher, topic))
            if lane is None:
                continue
            for one in lane.below(number, after_ns):
                owed.setdefault(one.event, f"delivered {event}, a later event of {publisher}")

    def _explain(self, subscriber: Subscriber, event: str, reason: str) -> str:
        name = self._history.name(subscriber)
        publication = self._history.published[event]
        verdict = self._history.discarded.get((subscriber.node, event))
        discarded = "" if verdict is None else f"; {subscriber.node} discarded it as {verdict}"
        return (
            f"{name} never delivered {event}, which {publication.publisher} published on "
            f"{publication.topic} after {name} had subscribed; {name} {reason}{discarded}"
        )
