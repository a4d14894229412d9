"""Judge what applications got in a simulated run.

The rows of plain subscriptions go to the checkers as they are. A durable subscription lives in
several processes, one after the other, each with a name of its own in the trace. Its rules, over
all its lives:

- `positions`: what was acknowledged, and known to be safe, never comes again: the rule of the
  checkers (`ensue.checkers.redelivery`);
- `acknowledged`: nor does anything else come at its positions, also to a life that was superseded:
  the swarm knows each time that a subscription begins anew;
- `renumbered`: a position is always the same event, unless a later life leaves the topic of an
  unacknowledged event before that comes again: its position goes to the next event;
- `reordered`, in total order that is not causal: positions count the deliveries of each life, and
  events come again in the order they had if they are of one topic, or of two that another
  subscription shares;
- and, with repeated deliveries left out, it is a subscriber like any other.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import msgspec

from ensue.checkers import Verdict, check, positions, redelivery
from ensue.checkers.verdict import Collector
from ensue.client.trace_rows import CLOSED
from ensue.core.trace import Row
from ensue.runtime.deadline_nodes import SLACK_NS_MAX
from ensue.testing.swarm.shared_topics import SharedTopics

__all__ = ["judge", "judge_final", "judge_prompt"]

SECOND_NS = 1_000_000_000
STAY_NS = 5 * SECOND_NS
"""How soon a subscriber has an event if no fault strikes."""
_DURABLE = "durable "
"""How the names of durable subscriptions begin in problems."""
_GOES_ON = frozenset({CLOSED, "superseded"})
"""Verdicts of `unsubscribed` after which a durable subscription goes on in another life."""


def judge(
    rows: Sequence[Row],
    order: str,
    *,
    settle_s: float | None,
    durable: Iterable[str] = (),
    lossy: bool = False,
    lost_ns: int | None = None,
    lost_topics: Collection[str] | None = None,
    refused_ns: int | None = None,
    broken: Mapping[str, int] = MappingProxyType({}),
    leaves: Mapping[str, Sequence[tuple[int, str]]] = MappingProxyType({}),
) -> list[str]:
    """Return what is wrong with a run, in words; nothing: it is valid.

    `settle_s` is how long events take at most; None: no bound holds for subscriptions that end.
    `lost_ns` is when a server lost its log: no event of its topics, `lost_topics` (None: all), is
    owed that had its receipt before. `refused_ns` is when it refused to go on with its log, until
    the end: subscriptions to its topics wait. `broken` says when durable subscriptions got that
    error, and began anew. `leaves` says when they began to leave topics.
    """
    problems: list[str] = []
    if lost_ns is not None:
        rows = [
            row
            for row in rows
            if row.action != "published"
            or (row.true_ns or 0) >= lost_ns
            or (lost_topics is not None and row.topic not in lost_topics)
        ]
    names = set(durable)
    numbered = order != "total-noncausal"
    # A server that lost its log does not know who shared topics either.
    shared = SharedTopics(() if numbered or broken or lost_ns is not None else rows)
    redeliveries = _redeliveries if numbered else partial(_reorders, shared)
    kept = [row for row in rows if row.subscription not in names]
    for name in sorted(names):
        lives = sorted(
            (row for row in rows if row.subscription == name), key=lambda row: row.true_ns or 0
        )
        lives = _with_doubtful_leaves(lives, leaves.get(name, ()))
        anew_ns = broken.get(name)
        if anew_ns is None and lost_ns is not None:
            # Nothing remembers one that was closed when its server lost its log.
            before = {row.node for row in lives if (row.true_ns or 0) < lost_ns}
            later = (row.true_ns for row in lives if row.node not in before)
            anew_ns = next(later, None)
        if anew_ns is not None:
            since = [row for row in lives if (row.true_ns or 0) >= anew_ns]
            lives = lives[: len(lives) - len(since)]
            problems += redeliveries(name, since)
            kept += _one_life(f"{name} anew", since, numbered=numbered)
        problems += redeliveries(name, lives)
        ended_ns = None if anew_ns is None else lost_ns
        kept += _one_life(name, lives, numbered=numbered, lost_ns=ended_ns)
    if refused_ns is not None:
        kept = _with_waits(kept, lost_topics, refused_ns)
    report = check(
        kept,
        order,
        settle_ns=None if settle_s is None else int(settle_s * SECOND_NS),
        lossy=lossy,
        # With deadlines, what comes within the slack before them counts as late.
        clock_error_ns=SLACK_NS_MAX,
    )
    if report.verdict is Verdict.INVALID:
        for finding in report.findings:
            problems += [f"{finding.checker}: {each.because}" for each in finding.violations]
    problems += [reason for reason in report.reasons if "malformed" in reason]
    return problems


def judge_final(rows: Sequence[Row], final_ns: int, publishers: Iterable[str]) -> list[str]:
    """Return which subscribers got none of the last events of a publisher, though nothing failed.

    Where late events are dropped a single one may be; but not all that were published long after
    the last fault. A subscriber that leaves within `STAY_NS` of the last one may not have it yet.
    """
    names = set(publishers)
    joined: dict[tuple[str, str, str], None] = {}
    left: dict[tuple[str, str, str], int] = {}
    got: set[tuple[str, str, str, str]] = set()
    owed: dict[tuple[str, str], int] = {}
    for row in sorted(rows, key=lambda row: row.true_ns or 0):
        reader = (row.node, row.subscription or "", row.topic or "")
        late = (row.true_ns or 0) >= final_ns
        if row.action == "subscribed" and not late:
            joined[reader] = None
        elif row.action == "unsubscribed" and not late:
            joined.pop(reader, None)
        elif row.action == "unsubscribed":
            left[reader] = row.true_ns or 0
        elif row.action == "crashed" and not late:
            joined = {each: None for each in joined if each[0] != row.node}
        elif row.action == "published" and late and row.publisher in names:
            owed[row.publisher or "", row.topic or ""] = row.true_ns or 0
        elif row.action == "delivered" and late:
            got.add((*reader, row.publisher or ""))
    return [
        f"liveness: {node} got none of the last events of {publisher} on {topic}"
        for node, subscription, topic in joined
        for (publisher, its), last_ns in sorted(owed.items())
        if its == topic and (node, subscription, topic, publisher) not in got
        if left.get((node, subscription, topic), last_ns + STAY_NS) >= last_ns + STAY_NS
    ]


def judge_prompt(rows: Sequence[Row], nodes: Iterable[str], within_s: float) -> list[str]:
    """Return which events took longer from their receipt to a reader that is always ready."""
    ready = set(nodes)
    confirmed = {row.event: row.true_ns or 0 for row in rows if row.action == "published"}
    found = []
    for row in rows:
        if row.action == "delivered" and row.node in ready and row.event in confirmed:
            took_s = ((row.true_ns or 0) - confirmed[row.event]) / SECOND_NS
            if took_s > within_s:
                found.append(
                    f"liveness: {row.event} came {took_s:.1f} s after its receipt to {row.node}"
                )
    return found


def _redeliveries(name: str, lives: Sequence[Row]) -> list[str]:
    again = _again(lives)
    problems = [f"{positions.RULE}: {because}" for because in again.values()]
    safe = 0
    events: dict[int, Row] = {}
    for row in lives:
        position = row.position or 0
        if row.action == "acknowledged":
            safe = max(safe, position)
        elif row.action == "unsubscribed" and row.verdict not in _GOES_ON:
            # Those of the topic that were handed out in an earlier life do not come again.
            lost = min(
                (
                    known
                    for known, its in events.items()
                    if known > safe and its.topic == row.topic and its.node != row.node
                ),
                default=None,
            )
            if lost is not None:
                events = {known: its for known, its in events.items() if known < lost}
        elif row.action == "subscribed" and row.verdict == "missed":
            # Retention removed events that were handed out and not acknowledged. The application
            # learns that it missed them, and their positions go to the next ones.
            events = {known: its for known, its in events.items() if known <= safe}
        elif row.action == "delivered":
            if position <= safe and (row.node, row.event or "") not in again:
                problems.append(
                    f"acknowledged: {name} got {row.event} at position {position} at {row.node}, "
                    f"after it had acknowledged up to {safe}"
                )
            known = events.get(position, row).event
            if known == row.event:
                events[position] = row
            else:
                problems.append(
                    f"renumbered: position {position} of {name} was {known}, and is {row.event}"
                )
    return problems


def _reorders(shared: SharedTopics, name: str, lives: Sequence[Row]) -> list[str]:
    """Return what came again wrongly where only shared topics are ordered together."""
    problems = []
    safe = 0
    open_events: dict[int, str | None] = {}
    done: set[str | None] = set()
    ranks: dict[str | None, int] = {}
    got: dict[str, list[Row]] = {}
    counted: dict[str, int] = {}
    unread: dict[str, set[int]] = {}
    for row in lives:
        position = row.position or 0
        if row.action == "acknowledged":
            safe = max(safe, position)
            done |= {open_events.pop(one) for one in list(open_events) if one <= safe}
        elif row.action in ("subscribed", "unsubscribed"):
            counted.pop(row.node, None)  # Positions may jump.
        elif row.verdict == "unread":
            unread.setdefault(row.node, set()).add(position)
        elif row.action == "delivered":
            if row.event in done or position <= safe:
                problems.append(
                    f"acknowledged: {name} got {row.event} at position {position} again at "
                    f"{row.node}, after it had acknowledged up to {safe}"
                )
            before = counted.get(row.node, position - 1)
            skipped = set(range(before + 1, position)) - unread.get(row.node, set())
            if position <= before or skipped:
                problems.append(
                    f"reordered: {name} got {row.event} at position {position} after {before}"
                )
            rank = ranks.setdefault(row.event, len(ranks))
            earlier = got.setdefault(row.node, [])
            problems += [
                f"reordered: {name} got {other.event} before {row.event} at {row.node}, not after"
                for other in earlier
                if rank < ranks[other.event]
                and (other.topic == row.topic or shared.orders(name, row, other))
            ]
            earlier.append(row)
            open_events[position], counted[row.node] = row.event, position
    return problems


def _again(lives: Sequence[Row]) -> dict[tuple[str, str], str]:
    """Return by node and event what the checkers' rule reports, in words."""
    found = Collector(positions.RULE, violations_max=len(lives) + 1)
    redelivery.judge_subscription(lives, found, simulated=True, clock_error_ns=0)
    return {(each.nodes[0], each.first_event): each.because for each in found.finding().violations}


def _with_doubtful_leaves(lives: list[Row], leaves: Sequence[tuple[int, str]]) -> list[Row]:
    """Add the end of subscriptions that a life began to leave and was killed before it had.

    Nothing is owed until the next life has the topic again.
    """
    found = list(lives)
    for at_ns, topic in leaves:
        before = [row for row in lives if (row.true_ns or 0) <= at_ns]
        bus = before[-1].node if before else ""
        is_done = any(
            row.action == "unsubscribed"
            and (row.topic, row.node) == (topic, bus)
            and (row.true_ns or 0) >= at_ns
            for row in lives
        )
        if before and not is_done:
            end = msgspec.structs.replace(
                before[-1], action="unsubscribed", topic=topic, event=None, position=None
            )
            found.append(msgspec.structs.replace(end, true_ns=at_ns, verdict=""))
    return sorted(found, key=lambda row: row.true_ns or 0)


def _one_life(
    name: str, lives: Sequence[Row], *, numbered: bool, lost_ns: int | None = None
) -> list[Row]:
    """Return the rows of a durable subscription as those of one subscriber, without repeats.

    `numbered` says whether an event that comes again has the position that it had. `lost_ns` is
    when it ended because its log was lost.
    """
    found: list[Row] = []
    seen: set[tuple[int | None, str | None]] = set()
    joined: set[str] = set()
    delivered = {_identity(row, numbered) for row in lives if row.action == "delivered"}
    for row in lives:
        if row.action == "discarded":
            # Its topic was left before it was read, or it does not match; else it comes again in
            # the next life.
            unread = row.verdict == "unread" and _identity(row, numbered) not in delivered
            if not unread and row.verdict != "unmatched":
                continue
        elif row.action == "delivered":
            if _identity(row, numbered) in seen:
                continue
            seen.add(_identity(row, numbered))
        elif row.action == "subscribed":
            if row.topic in joined and not row.verdict:
                continue
            joined.add(row.topic or "")
        elif row.action == "unsubscribed":
            if row.verdict in _GOES_ON:
                continue
            joined.discard(row.topic or "")
        else:
            continue
        found.append(row)
    found = _as_one_node(f"{_DURABLE}{name}", found, numbered)
    return found if lost_ns is None else _ended(found, sorted(joined), lost_ns)


def _as_one_node(node: str, rows: Sequence[Row], numbered: bool) -> list[Row]:
    """Return rows as those of one node; a position that goes to another event is left out."""
    found: list[Row] = []
    counted: set[int | None] = set()
    for step, row in enumerate(rows, 1):
        position = row.position if numbered and row.position not in counted else None
        if row.action == "delivered":
            counted.add(position)
        found.append(msgspec.structs.replace(row, node=node, step=step, position=position))
    return found


def _identity(row: Row, numbered: bool) -> tuple[int | None, str | None]:
    # A position may go to another event, where the one that had it is missed (`_redeliveries`).
    return (row.position if numbered else None, row.event)


def _with_waits(rows: Sequence[Row], topics: Collection[str] | None, since_ns: int) -> list[Row]:
    """Owe nothing more to subscriptions that wait for a server since a time.

    Those to its topics do (None: all are), and durable ones: any server may have their state. If it
    has topics, a subscription to several others does too: one of their events may have a slot, and
    wait for a stamp of the server. All of them still get events without a gap.
    """
    joined: dict[tuple[str, str | None], set[str]] = {}
    for row in rows:
        if row.action == "subscribed":
            joined.setdefault((row.node, row.subscription), set()).add(row.topic or "")
    waiting = {
        key
        for key, its in joined.items()
        if topics is None
        or not its.isdisjoint(topics)
        or (topics and len(its) > 1)
        or key[0].startswith(_DURABLE)
    }
    found: list[Row] = []
    last: dict[tuple[str, str | None, str | None], Row] = {}
    steps: dict[str, int] = {}
    for row in rows:
        key = (row.node, row.subscription, row.topic)
        steps[row.node] = max(row.step, steps.get(row.node, 0))
        if row.action == "crashed":
            last = {each: its for each, its in last.items() if each[0] != row.node}
        elif row.action == "subscribed" and key[:2] in waiting:
            last[key] = row
        elif row.action == "unsubscribed" and key[:2] in waiting:
            last.pop(key, None)
            row = msgspec.structs.replace(row, true_ns=min(row.true_ns or 0, since_ns))  # noqa: PLW2901
        found.append(row)
    for row in last.values():
        steps[row.node] += 1
        end = msgspec.structs.replace(row, action="unsubscribed", step=steps[row.node])
        found.append(msgspec.structs.replace(end, true_ns=since_ns, verdict=""))
    return found


def _ended(rows: list[Row], topics: Sequence[str], at_ns: int) -> list[Row]:
    """Return rows of a subscriber and the end of its subscriptions to topics."""
    found = list(rows)
    for topic in topics if rows else ():
        end = msgspec.structs.replace(
            rows[-1], action="unsubscribed", topic=topic, event=None, position=None
        )
        found.append(msgspec.structs.replace(end, step=len(found) + 1, true_ns=at_ns))
    return found
