"""Indexes the rows of a trace for the checkers: one `History` per run.

Event ids are unique only within a run, so runs are never compared. Within a run, checkers trust
only the order of `step` at each node. They ignore the order of rows and `stamp`; only the rule
`positions` judges `position`, and an excerpt uses it in messages.

A publisher that restarts may repeat `published` for events that it is still responsible for,
because a crash may have come between taking responsibility and recording it. The first row counts.

A run whose rows contradict each other is not judged, and the reason is returned instead. So
checkers need not deal with inconsistent rows.

Time. Whether an event was published before a subscription took effect depends on time, because it
concerns two nodes. A run in which every relevant row has `true_ns` is judged by it; any other run
is judged by `at_ns`, within the clock error.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ensue.checkers.verdict import Subscriber
from ensue.core.trace import ACTIONS, Row

__all__ = ["Delivery", "Excerpt", "History", "Interval", "Publication", "histories", "ordinal"]

_TIMED = frozenset({"submitted", "published", "subscribed", "unsubscribed", "crashed"})
_NAMED = frozenset({"submitted", "published", "delivered"})


class Publication(msgspec.Struct, frozen=True, gc=False):
    """A published event: its `submitted` row, or its `published` row if that is the only one."""

    event: str
    topic: str
    publisher: str
    publisher_seq: int
    node: str
    step: int
    time_ns: int
    confirmed_ns: int | None
    """When its receipt came; None: it never did, and the event is not owed."""


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A `delivered` row."""

    event: str
    topic: str
    publisher: str
    publisher_seq: int
    step: int
    position: int
    """1, 2, 3, … among the deliveries of its subscriber, counted here."""
    tagged: bool
    """Whether the delivery was tagged as out of order."""
    time_ns: int = 0
    stated: int | None = None
    """The row's own `position`."""


@dataclass(slots=True)
class Interval:
    """The duration of a subscription to a topic."""

    opened_step: int
    opened_ns: int
    closed_step: int | None = None
    """None: it lasts to the end of the trace."""
    closed_ns: int | None = None
    """None: the subscriber could still receive at the end of the trace."""
    reads_on: bool = False
    """Whether it fell behind its log: the application still gets what had arrived."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Facts about a whole run, for an excerpt that has all rows of some events only."""

    simulated: bool
    """Whether times are true times."""
    furthest: Mapping[tuple[Subscriber, str, int], Mapping[str, tuple[int, str]]]
    """By subscriber, topic and the step at which an ended subscription began, by publisher: the
    greatest number that was delivered, and its event."""


@dataclass(slots=True)
class History:
    """One run."""

    run: str
    simulated: bool
    """Whether times are true times; otherwise they are readings of the nodes' clocks."""
    published: dict[str, Publication] = field(default_factory=dict)
    """By event."""
    delivered: dict[Subscriber, list[Delivery]] = field(default_factory=dict)
    """In step order, for every subscriber that ever subscribed or delivered."""
    publications_at: dict[str, list[Publication]] = field(default_factory=dict)
    """By node, in step order."""
    deliveries_at: dict[str, list[Delivery]] = field(default_factory=dict)
    """By node, in step order, over all its subscriptions."""
    intervals: dict[tuple[Subscriber, str], list[Interval]] = field(default_factory=dict)
    """By subscriber and topic, in step order."""
    discarded: dict[tuple[str, str], str] = field(default_factory=dict)
    """By node and event: why the node discarded it."""
    unread: dict[Subscriber, set[int]] = field(default_factory=dict)
    """By subscriber: positions of events that its application discarded unread."""
    unmatched: dict[Subscriber, set[str]] = field(default_factory=dict)
    """By subscriber: events that it discarded because they do not match its filter."""
    void: set[str] = field(default_factory=set)
    """Events that the node that published them discarded as void."""
    down: set[str] = field(default_factory=set)
    """Nodes that crashed and never restarted."""
    restarts: dict[str, list[int]] = field(default_factory=dict)
    """By node: the steps at which it restarted."""
    excerpt: Excerpt | None = None
    """None: these are all rows of the run."""
    _names: dict[Subscriber, str] = field(default_factory=dict)

    def name(self, subscriber: Subscriber) -> str:
        """Return the name of a subscriber in messages: its node alone if that is unique."""
        if not self._names:
            subscriptions = Counter(known.node for known in self.delivered)
            for known in self.delivered:
                alone = subscriptions[known.node] == 1 or not known.subscription
                self._names[known] = known.node if alone else f"{known.node}/{known.subscription}"
        return self._names[subscriber]

    def of_topic(self, topic: str) -> "History":
        """Return the publications and deliveries of one topic."""
        part = History(run=self.run, simulated=self.simulated, excerpt=self.excerpt)
        part.published = {event: one for event, one in self.published.items() if one.topic == topic}
        part.publications_at = {
            node: [one for one in all_of_them if one.topic == topic]
            for node, all_of_them in self.publications_at.items()
        }
        part.deliveries_at = {
            node: [one for one in all_of_them if one.topic == topic]
            for node, all_of_them in self.deliveries_at.items()
        }
        part.delivered = {
            subscriber: [one for one in all_of_them if one.topic == topic]
            for subscriber, all_of_them in self.delivered.items()
        }
        return part

    def judged(self, subscriber: Subscriber) -> list[Delivery]:
        """Return the first untagged delivery of each event: these decide the order."""
        seen: set[str] = set()
        first: list[Delivery] = []
        for delivery in self.delivered[subscriber]:
            if not delivery.tagged and delivery.event not in seen:
                seen.add(delivery.event)
                first.append(delivery)
        return first


def histories(
    rows: Iterable[Row], *, excerpt: Excerpt | None = None
) -> tuple[list[History], list[str]]:
    """Split a trace into runs; return these, and reasons why other runs can't be judged.

    With an `excerpt`, the rows are part of one run, so the position of a delivery is taken from its
    row instead of being counted.
    """
    by_run: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        by_run.setdefault(row.run, {}).setdefault(row.node, []).append(row)
    good: list[History] = []
    reasons: list[str] = []
    for run in sorted(by_run):
        nodes = {node: by_run[run][node] for node in sorted(by_run[run])}
        for node_rows in nodes.values():
            node_rows.sort(key=lambda row: row.step)
        problem = _contradiction(nodes.values())
        if problem is None:
            good.append(_history(run, nodes, excerpt))
        else:
            reasons.append(f"run {run} is malformed: {problem}")
    return good, reasons


def ordinal(number: int) -> str:
    """Format a position: 1st, 2nd, 3rd, 4th and so on."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}th" if 10 <= number % 100 <= 20 else f"{number}{ending}"


def _contradiction(nodes: Iterable[Sequence[Row]]) -> str | None:
    """Return the first contradiction in the rows of a run, if any."""
    published: dict[tuple[str, str], Row] = {}
    numbers: dict[tuple[str, str | None, str | None, int | None], Row] = {}
    for rows in nodes:
        step = None
        restarted = False
        for row in rows:
            restarted = restarted or row.action == "restarted"
            if row.step == step:
                return f"node {row.node} has two rows with step {step}"
            step = row.step
            problem = _missing(row)
            if problem is not None:
                return f"{problem} (node {row.node}, step {step})"
            if row.action not in {"submitted", "published"} or row.event is None:
                continue
            event = (row.action, row.event)
            number = (row.action, row.publisher, row.topic, row.publisher_seq)
            first = published.get(event)
            if (
                restarted
                and first is not None
                and first.node == row.node
                and first is numbers.get(number)
            ):
                continue  # Repeated by a publisher after its restart.
            for earlier in (published.get(event), numbers.get(number)):
                if earlier is not None:
                    return (
                        f"{earlier.event} (node {earlier.node}, step {earlier.step}) and "
                        f"{row.event} (node {row.node}, step {step}) were published as one event"
                    )
            published[event] = row
            numbers[number] = row
    return None


def _missing(row: Row) -> str | None:
    if row.action not in ACTIONS:
        return f"unknown action {row.action!r}"
    needed: dict[str, object] = {}
    if row.action in _NAMED:
        needed = {
            "event": row.event,
            "topic": row.topic,
            "publisher": row.publisher,
            "publisher_seq": row.publisher_seq,
        }
    elif row.action in {"subscribed", "unsubscribed"}:
        needed = {"topic": row.topic}
    for column, value in needed.items():
        if value is None:
            return f"a {row.action} row without {column}"
    return None


def _history(run: str, nodes: dict[str, list[Row]], excerpt: Excerpt | None) -> History:
    simulated = all(
        row.true_ns is not None for rows in nodes.values() for row in rows if row.action in _TIMED
    )
    if excerpt is not None:
        simulated = excerpt.simulated
    history = History(run=run, simulated=simulated, excerpt=excerpt)
    for node, rows in nodes.items():
        _Reader(history, node).read(rows)
    for (node, event), verdict in history.discarded.items():
        publication = history.published.get(event)
        if verdict == "void" and publication is not None and publication.node == node:
            history.void.add(event)
    return history


class _Reader:
    """Adds the rows of one node, in step order, to the history."""

    def __init__(self, history: History, node: str) -> None:
        self._history = history
        self._node = node
        self._crash: Row | None = None
        self._down = False
        self._open: dict[tuple[Subscriber, str], Interval] = {}
        self._receipts: dict[str, int] = {}
        """By event: when its `published` row was written."""

    def read(self, rows: Sequence[Row]) -> None:
        handlers = {
            "submitted": self._submitted,
            "published": self._published,
            "delivered": self._delivered,
            "subscribed": self._subscribed,
            "unsubscribed": self._unsubscribed,
            "discarded": self._discarded,
            "crashed": self._crashed,
            "restarted": self._restarted,
        }
        for row in rows:
            if row.action == "published" and row.event is not None:
                self._receipts.setdefault(row.event, self._time_ns(row))
        for row in rows:
            handler = handlers.get(row.action)
            if handler is not None:
                handler(row)
        if self._down and self._crash is not None:
            self._history.down.add(self._node)
            for interval in self._open.values():
                interval.closed_ns = self._time_ns(self._crash)

    def _submitted(self, row: Row) -> None:
        self._publish(row, self._receipts.get(row.event or ""))

    def _published(self, row: Row) -> None:
        self._publish(row, self._time_ns(row))

    def _publish(self, row: Row, confirmed_ns: int | None) -> None:
        event, topic, publisher, publisher_seq = _identity(row)
        if event in self._history.published:
            return  # Submitted before, or repeated after a restart.
        publication = Publication(
            event,
            topic,
            publisher,
            publisher_seq,
            row.node,
            row.step,
            self._time_ns(row),
            confirmed_ns,
        )
        self._history.published[event] = publication
        self._history.publications_at.setdefault(row.node, []).append(publication)

    def _delivered(self, row: Row) -> None:
        event, topic, publisher, publisher_seq = _identity(row)
        earlier = self._history.delivered.setdefault(self._subscriber(row), [])
        position = len(earlier) + 1
        if self._history.excerpt is not None and row.position is not None:
            position = row.position
        time_ns, tagged = self._time_ns(row), row.verdict != ""
        delivery = Delivery(
            event,
            topic,
            publisher,
            publisher_seq,
            row.step,
            position,
            tagged,
            time_ns,
            row.position,
        )
        earlier.append(delivery)
        self._history.deliveries_at.setdefault(row.node, []).append(delivery)

    def _subscribed(self, row: Row) -> None:
        assert row.topic is not None
        self._close(row, forgetful=True)
        subscriber = self._subscriber(row)
        interval = Interval(opened_step=row.step, opened_ns=self._time_ns(row))
        self._history.delivered.setdefault(subscriber, [])
        self._history.intervals.setdefault((subscriber, row.topic), []).append(interval)
        self._open[subscriber, row.topic] = interval

    def _unsubscribed(self, row: Row) -> None:
        interval = self._open.get((self._subscriber(row), row.topic or ""))
        if interval is not None and row.verdict == "behind":
            interval.reads_on = True
        self._close(row)

    def _close(self, row: Row, *, forgetful: bool = False) -> None:
        """Close an interval.

        A node that subscribes again without having left lost its state: its former subscription
        ended with its last crash, if it crashed since.
        """
        assert row.topic is not None
        interval = self._open.pop((self._subscriber(row), row.topic), None)
        if interval is None:
            return
        crash = self._crash
        interval.closed_step = row.step
        interval.closed_ns = self._time_ns(row)
        if forgetful and crash is not None and crash.step > interval.opened_step:
            interval.closed_ns = self._time_ns(crash)

    def _discarded(self, row: Row) -> None:
        """Keep the verdict; `void` is final."""
        if row.event is None:
            return
        if row.position is not None:
            self._history.unread.setdefault(self._subscriber(row), set()).add(row.position)
        if row.verdict == "unmatched":
            self._history.unmatched.setdefault(self._subscriber(row), set()).add(row.event)
        key = (self._node, row.event)
        if self._history.discarded.get(key) != "void":
            self._history.discarded[key] = row.verdict

    def _crashed(self, row: Row) -> None:
        self._crash = row
        self._down = True

    def _restarted(self, row: Row) -> None:
        self._down = False
        self._history.restarts.setdefault(self._node, []).append(row.step)

    def _subscriber(self, row: Row) -> Subscriber:
        return Subscriber(row.run, row.node, row.subscription or "")

    def _time_ns(self, row: Row) -> int:
        if self._history.simulated and row.true_ns is not None:
            return row.true_ns
        return row.at_ns


def _identity(row: Row) -> tuple[str, str, str, int]:
    assert row.event is not None
    assert row.topic is not None
    assert row.publisher is not None
    assert row.publisher_seq is not None
    return row.event, row.topic, row.publisher, row.publisher_seq
