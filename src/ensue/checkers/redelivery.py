"""Checks that a durable subscription does not deliver again what was acknowledged.

It is part of the rule `positions`, and its anomaly is `again`.

A durable subscription has one name in the whole run, whichever nodes read it, one after the other.
Each time that it begins there is a *life*: when it is opened with no topic, when its node restarts,
and when the application accepts that a server lost its log. An `acknowledged` row covers all
positions up to its own.

Rule: a life delivers nothing that was covered before, by

* a row of the life itself, in step order,
* a row of an earlier life of the node, or
* a row that another node wrote before the life began: by true times if the run has them, and
  otherwise beyond the clock error.

So no event is delivered at a covered position, and none that an earlier life had at a covered
position is delivered at another one. Events that no row covers may come again. So may those that a
later life acknowledged: a reader that was superseded hands out what had arrived before it knew.

The subscription *begins anew*, and no earlier row covers anything in that life or later ones,

* after a row `unsubscribed` that says `forgotten`, `replaced` or `rolled back`: the application had
  it forgotten, or a server lost events. Acknowledgements of before may still be recorded until it
  is subscribed again, and cover nothing.
* if the life has other events at covered positions, and none that was covered: no event came again.
  The server lost what it knew of the subscription before any client could notice. What the life
  itself acknowledged counts all the same.

Plain subscriptions have no `acknowledged` rows, and subscriptions without a name are not judged.
Those by content in transactions count attachments instead: `transactions` judges them.

HAZARD: a plain subscription of another node that has the name of a durable one counts as a life of
it: give it a name of its own.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

from ensue.checkers.verdict import Collector, Subscriber
from ensue.core.lineage import REPLACED, ROLLED_BACK
from ensue.core.trace import Row

__all__ = ["ANOMALY", "durable_names", "judge", "judge_subscription"]

ANOMALY = "again"
_ANEW = frozenset({"forgotten", REPLACED, ROLLED_BACK})
"""Verdicts of `unsubscribed` after which a durable subscription begins anew."""
_READ = frozenset({"delivered", "discarded", "acknowledged", "subscribed", "unsubscribed"})


@dataclass(slots=True)
class _Life:
    """A durable subscription at one node, from one beginning on."""

    node: str
    began_ns: int
    began_step: int
    anew: bool
    """Whether it begins anew, by a row that says so."""
    rows: list[Row] = field(default_factory=list)
    """`delivered`, `acknowledged`, and `discarded` with a position; in step order."""
    acknowledged: list[Row] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    """When each row of `acknowledged` was written; never falling."""
    highest: list[int] = field(default_factory=list)
    """The highest position of `acknowledged` up to each of its rows."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What earlier lives had, since the subscription began anew."""

    events: dict[int, str] = field(default_factory=dict)
    """By position, the last one."""
    places: dict[str, int] = field(default_factory=dict)
    """By event, its last position."""
    holders: dict[str, str] = field(default_factory=dict)
    """By event: the node that delivered it first."""

    def add(self, row: Row) -> None:
        if row.event is not None and row.position is not None:
            self.events[row.position] = row.event
            self.places[row.event] = row.position
            if row.action == "delivered":
                self.holders.setdefault(row.event, row.node)


def durable_names(rows: Iterable[Row]) -> set[tuple[str, str]]:
    """Return run and name of the durable subscriptions that are judged here."""
    return {
        (row.run, row.subscription)
        for row in rows
        if row.action == "acknowledged" and row.subscription and row.publisher_seq is None
    }


def judge(
    rows: Sequence[Row], collector: Collector, simulated: Mapping[str, bool], *, clock_error_ns: int
) -> None:
    """Report what came again after it was acknowledged, in the runs that `simulated` names.

    `simulated` says whether the times of a run are true times.
    """
    names = {known for known in durable_names(rows) if known[0] in simulated}
    if not names:
        return
    found: dict[tuple[str, str], list[Row]] = {known: [] for known in sorted(names)}
    restarts: dict[str, list[Row]] = {}
    for row in rows:
        known = (row.run, row.subscription or "")
        if row.action == "restarted":
            restarts.setdefault(row.run, []).append(row)
        elif known in found:
            found[known].append(row)
    for (run, _), mine in found.items():
        rows_of_name = [*mine, *restarts.get(run, ())]
        judge_subscription(
            rows_of_name, collector, simulated=simulated[run], clock_error_ns=clock_error_ns
        )


def judge_subscription(
    rows: Iterable[Row], collector: Collector, *, simulated: bool, clock_error_ns: int
) -> None:
    """Judge the rows of one durable subscription; further ones are restarts of nodes."""
    error_ns = 0 if simulated else clock_error_ns
    known = _Known()
    earlier: list[_Life] = []
    for life in _lives(rows, simulated=simulated):
        if life.anew:
            known, earlier = _Known(), []
        counted = [(each, _count_before(each, life, error_ns)) for each in earlier]
        covered = max((each.highest[count - 1] for each, count in counted if count), default=0)
        again, is_anew = _again(life, known, covered)
        if is_anew:
            known, earlier, counted = _Known(), [], []
        for row in again:
            explain = partial(_explain, row, known, [*counted, (life, len(life.acknowledged))])
            where = (Subscriber(row.run, row.node, row.subscription or ""),)
            collector.violation(ANOMALY, where, (row.event or "",), explain)
        for row in life.rows:
            known.add(row)
        earlier.append(life)


def _again(life: _Life, known: _Known, covered: int) -> tuple[list[Row], bool]:
    """Return the deliveries that break the rule, and whether the life begins anew by its events."""
    own: list[Row] = []
    found: list[Row] = []
    safe = 0
    repeats = differs = False
    for row in life.rows:
        position = row.position or 0
        if row.action == "acknowledged":
            safe = max(safe, position)
        if row.action != "delivered":
            continue
        places = (position, known.places.get(row.event or "", position))
        is_repeat = any(each <= covered and known.events.get(each) == row.event for each in places)
        repeats = repeats or is_repeat
        differs = differs or (position <= covered and position in known.events and not is_repeat)
        if position <= safe:
            own.append(row)
        if is_repeat or position <= max(covered, safe):
            found.append(row)
    is_anew = differs and not repeats
    return own if is_anew else found, is_anew


def _count_before(other: _Life, life: _Life, error_ns: int) -> int:
    """Return how many `acknowledged` rows of an earlier life were written before a life began."""
    if other.node == life.node:
        return len(other.acknowledged)
    return bisect_left(other.times_ns, life.began_ns - error_ns)


def _lives(rows: Iterable[Row], *, simulated: bool) -> list[_Life]:
    """Return the lives, in the sequence in which they began."""
    nodes: dict[str, list[Row]] = {}
    for row in rows:
        if row.action in _READ or row.action == "restarted":
            nodes.setdefault(row.node, []).append(row)
    found: list[_Life] = []
    for node in sorted(nodes):
        found += _lives_at(sorted(nodes[node], key=lambda row: row.step), simulated=simulated)
    return sorted(found, key=lambda life: (life.began_ns, life.node, life.began_step))


def _lives_at(rows: Sequence[Row], *, simulated: bool) -> Iterable[_Life]:
    """Yield the lives at one node; its clock may be set back, but no life begins before another."""
    times = [row.true_ns if simulated and row.true_ns is not None else row.at_ns for row in rows]
    opened: set[str] = set()
    life: _Life | None = None
    ended = False
    for row, now_ns in zip(rows, accumulate(times, max), strict=True):
        topic = row.topic or ""
        anew = row.action == "unsubscribed" and row.verdict in _ANEW
        fresh = anew or row.action == "restarted" or (row.action == "subscribed" and not opened)
        if life is None or fresh:
            if life is not None:
                yield life
            life = _Life(row.node, now_ns, row.step, anew)
        ended = anew or (ended and row.action not in ("subscribed", "delivered"))
        if row.action == "subscribed":
            opened.add(topic)
        elif row.action == "unsubscribed":
            opened.discard(topic)
        elif row.action == "acknowledged" and ended:
            continue
        elif row.action == "acknowledged":
            life.rows.append(row)
            life.acknowledged.append(row)
            life.times_ns.append(now_ns)
            life.highest.append(max([row.position or 0, *life.highest[-1:]]))
        elif row.position is not None and row.action != "restarted":
            life.rows.append(row)
    if life is not None:
        yield life


def _explain(row: Row, known: _Known, counted: Iterable[tuple[_Life, int]]) -> str:
    """Describe a delivery and the first row that covers it."""
    event, name = row.event or "", row.subscription
    place = row.position or 0
    if event in known.places:
        place = min(place, known.places[event])
    covers = [
        each
        for life, count in counted
        for each in life.acknowledged[:count]
        if (each.position or 0) >= place and (each.node != row.node or each.step < row.step)
    ]
    by = covers[0]
    holder = known.holders.get(event)
    first = "" if holder is None else f" again (first at {holder})"
    return (
        f"{row.node} delivered {event} to {name} at position {row.position}{first}, though "
        f"{by.node} had acknowledged everything up to position {by.position}"
    )
