"""The rules of the checkers once more: slow, obvious, and sharing nothing with the checkers.

Every function walks over all pairs of whatever there is, straight from the definitions in
`docs/reference/trace.md`. All rows are of one run.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from ensue.core.trace import Row

Who = tuple[str, str]
"""A node and one of its subscriptions."""
Found = Counter[tuple[str, Who, str]]
"""Anomaly, subscriber and event, with how often."""


def who(row: Row) -> Who:
    return row.node, row.subscription or ""


def text(value: str | None) -> str:
    assert value is not None
    return value


def of_action(rows: Sequence[Row], *actions: str) -> list[Row]:
    return sorted((row for row in rows if row.action in actions), key=lambda row: row.step)


def subscribers(rows: Sequence[Row]) -> list[Who]:
    return sorted({who(row) for row in of_action(rows, "delivered", "subscribed")})


def deliveries(rows: Sequence[Row], subscriber: Who) -> list[Row]:
    return [row for row in of_action(rows, "delivered") if who(row) == subscriber]


def judged(rows: Sequence[Row], subscriber: Who) -> list[Row]:
    """List the first delivery of each event that is not tagged."""
    plain = [row for row in deliveries(rows, subscriber) if row.verdict == ""]
    return [row for i, row in enumerate(plain) if row.event not in {e.event for e in plain[:i]}]


def publications(rows: Sequence[Row]) -> list[Row]:
    """List the first `published` row of each event: a restarted publisher may repeat it."""
    every = of_action(rows, "published")
    return [row for i, row in enumerate(every) if row.event not in {e.event for e in every[:i]}]


def fifo(rows: Sequence[Row]) -> Found:
    found: Found = Counter()
    for subscriber in subscribers(rows):
        plain = [row for row in deliveries(rows, subscriber) if row.verdict == ""]
        for i, late in enumerate(plain):
            if any(early.event == late.event for early in plain[:i]):
                found["duplicate", subscriber, text(late.event)] += 1
        first = judged(rows, subscriber)
        for i, late in enumerate(first):
            if any(_outranks(early, late) for early in first[:i]):
                found["fifo", subscriber, text(late.event)] += 1
    return found


def _outranks(early: Row, late: Row) -> bool:
    assert early.publisher_seq is not None
    assert late.publisher_seq is not None
    same = early.publisher == late.publisher and early.topic == late.topic
    return same and early.publisher_seq > late.publisher_seq


def positions(rows: Sequence[Row]) -> Found:
    found: Found = Counter()
    for subscriber in subscribers(rows):
        placed = [row for row in deliveries(rows, subscriber) if row.position is not None]
        for before, after in pairwise(placed):
            assert before.position is not None
            assert after.position is not None
            if after.position == before.position + 1:
                continue
            between = [
                row
                for row in rows
                if row.node == subscriber[0] and before.step < row.step < after.step
            ]
            mine = [row for row in between if who(row) == subscriber]
            fresh = any(row.action == "restarted" for row in between) or any(
                row.action == "subscribed" and not subscribed_before(rows, row) for row in mine
            )
            # A topic that is subscribed again was left, with or without a row.
            again = any(
                row.action == "subscribed" and row.topic in subscribed_before(rows, row)
                for row in mine
            )
            left = again or any(
                row.action == "unsubscribed" and was_open(rows, row) for row in mine
            )
            if not fresh and not (left and after.position > before.position):
                found["position", subscriber, text(after.event)] += 1
    return found


ANEW = ("forgotten", "replaced", "rolled back")


def again(rows: Sequence[Row], *, clock_error_ns: int) -> Found:
    """List what came again to a durable subscription after it was acknowledged."""
    found: Found = Counter()
    for name in {row.subscription for row in of_action(rows, "acknowledged") if row.subscription}:
        every = of_action(
            rows, "delivered", "discarded", "acknowledged", "subscribed", "unsubscribed"
        )
        mine = [row for row in every if row.subscription == name]
        mine += of_action(rows, "restarted")
        mine.sort(key=lambda row: (row.node, row.step))
        begins = [row for row in mine if _begins_life(mine, row)]
        begins.sort(key=lambda row: (_reading(rows, mine, row), row.node, row.step))
        epoch: list[Row] = []
        for begin in begins:
            epoch = [begin] if _is_anew(begin) else [*epoch, begin]
            wrong, is_anew = _again_in_life(rows, mine, epoch, begin, clock_error_ns)
            if is_anew:
                epoch = [begin]
            for row in wrong:
                found["again", who(row), text(row.event)] += 1
    return found


def _is_anew(row: Row) -> bool:
    return row.action == "unsubscribed" and row.verdict in ANEW


def _begins_life(mine: Sequence[Row], row: Row) -> bool:
    before = [one for one in mine if one.node == row.node and one.step < row.step]
    if not before or row.action == "restarted" or _is_anew(row):
        return True
    return row.action == "subscribed" and not subscribed_before(mine, row)


def _life_of(mine: Sequence[Row], row: Row) -> Row:
    """Return the beginning of the life that a row belongs to."""
    begins = [one for one in mine if one.node == row.node and one.step <= row.step]
    return [one for one in begins if _begins_life(mine, one)][-1]


def _reading(rows: Sequence[Row], mine: Sequence[Row], row: Row) -> int:
    """Return the time of a row; a clock that is set back counts as one that stood still."""
    timed = of_action(rows, "published", "subscribed", "unsubscribed", "crashed")
    simulated = all(one.true_ns is not None for one in timed)
    until = [one for one in mine if one.node == row.node and one.step <= row.step]
    return max(one.true_ns if simulated and one.true_ns is not None else one.at_ns for one in until)


def _covers(mine: Sequence[Row], row: Row) -> bool:
    """Whether a row acknowledges something of the subscription that has not ended."""
    before = [one for one in mine if one.node == row.node and one.step < row.step]
    turns = [one for one in before if _is_anew(one) or one.action in ("subscribed", "delivered")]
    return row.action == "acknowledged" and not (turns and _is_anew(turns[-1]))


def _again_in_life(
    rows: Sequence[Row], mine: Sequence[Row], epoch: list[Row], begin: Row, clock_error_ns: int
) -> tuple[list[Row], bool]:
    timed = of_action(rows, "published", "subscribed", "unsubscribed", "crashed")
    slack_ns = 0 if all(one.true_ns is not None for one in timed) else clock_error_ns
    acknowledged = [row for row in mine if _covers(mine, row)]
    limit = 0
    for row in acknowledged:
        born = _life_of(mine, row)
        if born not in epoch or born == begin:
            continue
        if row.node == begin.node or (
            _reading(rows, mine, row) + slack_ns < _reading(rows, mine, begin)
        ):
            limit = max(limit, row.position or 0)
    had = [
        row
        for born in epoch[:-1]
        for row in mine
        if row.action in ("delivered", "discarded")
        and row.position is not None
        and row.event is not None
        and _life_of(mine, row) == born
    ]
    last_at = {row.position: row.event for row in had}
    placed = {row.event: row.position for row in had}
    own: list[Row] = []
    found: list[Row] = []
    repeats = differs = False
    for row in mine:
        if row.action != "delivered" or row.position is None or _life_of(mine, row) != begin:
            continue
        by_itself = any(
            one.node == row.node
            and one.step < row.step
            and _life_of(mine, one) == begin
            and (one.position or 0) >= row.position
            for one in acknowledged
        )
        place = placed.get(row.event)
        at_last = place is not None and place <= limit and last_at[place] == row.event
        repeat = at_last or (row.position <= limit and last_at.get(row.position) == row.event)
        repeats = repeats or repeat
        differs = differs or (row.position <= limit and row.position in last_at and not repeat)
        own += [row] * by_itself
        found += [row] * (by_itself or repeat or row.position <= limit)
    is_anew = differs and not repeats
    return (own if is_anew else found), is_anew


def subscribed_before(rows: Sequence[Row], change: Row) -> set[str]:
    """List the topics that a subscriber has right before one of its own rows."""
    topics: set[str] = set()
    for row in of_action(rows, "subscribed", "unsubscribed"):
        if row.node == change.node and who(row) == who(change) and row.step < change.step:
            (topics.add if row.action == "subscribed" else topics.discard)(text(row.topic))
    return topics


def was_open(rows: Sequence[Row], change: Row) -> bool:
    return change.topic in subscribed_before(rows, change)


def inverted(rows: Sequence[Row]) -> Iterator[tuple[Who, Who, str, str]]:
    """Yield every two subscribers and two events in opposite orders."""
    for one, other in combinations(subscribers(rows), 2):
        mine = [text(row.event) for row in judged(rows, one)]
        theirs = [text(row.event) for row in judged(rows, other)]
        common = [event for event in mine if event in theirs]
        for first, second in combinations(common, 2):
            if theirs.index(first) > theirs.index(second):
                yield one, other, first, second


def common_count(rows: Sequence[Row]) -> int:
    count = 0
    for one, other in combinations(subscribers(rows), 2):
        theirs = {row.event for row in judged(rows, other)}
        count += len(
            list(combinations([row for row in judged(rows, one) if row.event in theirs], 2))
        )
    return count


def neighbours(rows: Sequence[Row], one: Who, other: Who, pair: set[str]) -> bool:
    """Whether no event common to both lies between the two, at one of the subscribers."""
    mine = [text(row.event) for row in judged(rows, one)]
    theirs = [text(row.event) for row in judged(rows, other)]
    both = set(mine) & set(theirs)
    for seen in (mine, theirs):
        common = [event for event in seen if event in both]
        places = sorted(common.index(event) for event in pair)
        if places[1] - places[0] == 1:
            return True
    return False


def distance(rows: Sequence[Row], subscriber: Who, first: str, second: str) -> int:
    """The distance of two events among the deliveries that decide the order."""
    seen = [row.event for row in judged(rows, subscriber)]
    return abs(seen.index(first) - seen.index(second))


def one_order_fits(rows: Sequence[Row]) -> bool:
    """Whether the orders of all subscribers together have no cycle."""
    after: dict[str, set[str]] = {}
    for subscriber in subscribers(rows):
        seen = [text(row.event) for row in judged(rows, subscriber)]
        for first, second in combinations(seen, 2):
            after.setdefault(first, set()).add(second)
    _close(after)
    return all(event not in later for event, later in after.items())


def _close(after: dict[str, set[str]]) -> None:
    """Make a relation transitive."""
    grown = True
    while grown:
        grown = False
        for later in after.values():
            size = len(later)
            later.update(*[after.get(event, set()) for event in later])
            grown = grown or len(later) > size


def happened_before(rows: Sequence[Row]) -> dict[str, set[str]]:
    """For each published event, list the events it comes before."""
    published = publications(rows)
    names = {row.event for row in published}
    after: dict[str, set[str]] = {}
    for effect in published:
        for row in [*published, *of_action(rows, "delivered")]:
            if row.node == effect.node and row.step < effect.step and row.event in names:
                after.setdefault(text(row.event), set()).add(text(effect.event))
    _close(after)
    return after


def causal(rows: Sequence[Row]) -> Found:
    after = happened_before(rows)
    found: Found = Counter()
    for subscriber in subscribers(rows):
        seen = [text(row.event) for row in judged(rows, subscriber)]
        for i, late in enumerate(seen):
            if any(early in after.get(late, set()) for early in seen[:i]):
                found["causal", subscriber, late] += 1
    return found


def complete(
    rows: Sequence[Row], *, settle_ns: int | None, clock_error_ns: int, gaps: bool
) -> Found:
    found: Found = Counter()
    published = {row.event: row for row in publications(rows)}
    void = {
        row.event
        for row in of_action(rows, "discarded")
        if row.verdict == "void"
        and row.event in published
        and published[row.event].node == row.node
    }
    for subscriber in subscribers(rows):
        came = deliveries(rows, subscriber)
        for i, row in enumerate(came):
            key = (subscriber, text(row.event))
            found["duplicate", *key] += any(row.event == early.event for early in came[:i])
            found["phantom", *key] += not _genuine(published.get(row.event), row)
            found["void", *key] += row.event in void
            found["uninvited", *key] += not _subscribed(rows, row)
        for event, row in published.items():
            if event in void or _in_doubt(rows, row) or event in {one.event for one in came}:
                continue
            found["lost", subscriber, text(event)] += any(
                _owed(rows, row, start, settle_ns, clock_error_ns, gaps=gaps)
                for start in of_action(rows, "subscribed")
                if who(start) == subscriber and start.topic == row.topic
            )
    return +found


def _genuine(published: Row | None, row: Row) -> bool:
    if published is None:
        return False
    return (published.topic, published.publisher, published.publisher_seq) == (
        row.topic,
        row.publisher,
        row.publisher_seq,
    )


def _changes(rows: Sequence[Row], row: Row) -> list[Row]:
    """List the rows at which this subscription to this topic began or ended."""
    every = of_action(rows, "subscribed", "unsubscribed")
    return [one for one in every if who(one) == who(row) and one.topic == row.topic]


def _subscribed(rows: Sequence[Row], row: Row) -> bool:
    earlier = [one for one in _changes(rows, row) if one.step < row.step]
    return bool(earlier) and earlier[-1].action == "subscribed"


def _down(rows: Sequence[Row], node: str) -> Row | None:
    """Return the crash after which a node did not restart."""
    turns = [row for row in of_action(rows, "crashed", "restarted") if row.node == node]
    return turns[-1] if turns and turns[-1].action == "crashed" else None


def _in_doubt(rows: Sequence[Row], row: Row) -> bool:
    came = {one.event for one in of_action(rows, "delivered")}
    return _down(rows, row.node) is not None and row.event not in came


def _owed(
    rows: Sequence[Row],
    row: Row,
    start: Row,
    settle_ns: int | None,
    clock_error_ns: int,
    *,
    gaps: bool,
) -> bool:
    timed = of_action(rows, "published", "subscribed", "unsubscribed", "crashed")
    simulated = all(one.true_ns is not None for one in timed)
    slack_ns = 0 if simulated else clock_error_ns

    def time_ns(one: Row) -> int:
        if simulated:
            assert one.true_ns is not None
            return one.true_ns
        return one.at_ns

    if not time_ns(row) > time_ns(start) + slack_ns:
        return False
    later = [one for one in _changes(rows, start) if one.step > start.step]
    end = later[0] if later else None
    closing = end
    if end is None:
        closing = _down(rows, start.node)
    elif end.action == "subscribed":
        crashes = [one for one in of_action(rows, "crashed") if one.node == start.node]
        between = [one for one in crashes if start.step < one.step < end.step]
        closing = between[-1] if between else end
    if closing is None:
        return True
    if settle_ns is not None and time_ns(row) + settle_ns + slack_ns <= time_ns(closing):
        return True
    if not gaps:
        return False
    published = {one.event: one for one in publications(rows)}
    return any(
        start.step < one.step
        and (end is None or one.step < end.step)
        and _genuine(published.get(one.event), one)
        and _outranks(one, row)
        for one in deliveries(rows, who(start))
    )
