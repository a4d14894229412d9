"""Judges transactions of several clients by what clients and brokers observed.

Rows of a trace: `began` with the isolation as topic; `published`, `subscribed` and `unsubscribed`
with the transaction, and as event its name, `#` and the operation's place (1, 2, 2.1, …);
`received` at a broker when it has processed an operation; `committed` and `aborted` at each broker
and client; `delivered` with the transaction. Topics are filters and events as text (`content`). A
client records `delivered` when its application has the event, and `discarded` for an event that
arrived but was not handed over: the application had not read it when it closed its bus (`unread`),
had closed the subscription (`not_subscribed`), or had no room (`overflow`).

**atomic.** No transaction is committed at one node and aborted at another (`split`). No event of a
transaction that was not committed is delivered (`dirty`). Every event of a committed transaction is
delivered once to every subscription that must receive it (`torn`, `duplicate`), and to none that
must not, or that does not exist (`stale`). No reader of a durable subscription gets an event that
an earlier one has acknowledged (`again`), nor one event twice (`duplicate`). No two committed
transactions withdraw one subscription (`withdrawn`): it would have moved to two places.

**sequential** (Definition 6). No broker processes an operation after one that comes later in the
same transaction.

**serializable.** No two brokers commit two serializable transactions that conflict in opposite
orders (`cycle`). Two conflict if one publishes an event that matches a subscription which the other
makes or withdraws, or if both change one subscription. So every broker's sequence of commits is a
serial order of all. The deliveries of an event outside transactions match the tables between two
commits that concern it, in the sequence of some broker (`mixed`: as in schedule 2 of the paper,
where a subscription is moved and an event reaches both places or none).

**converged.** The tables that idle brokers reported fit each other: see `routing_tables`.

*Must and must not.* A subscription must receive a publication if it took effect before it, and must
not if it ended before or took effect later. Between two serializable transactions, and within one,
the sequence of commits and the operations' places decide. Otherwise time decides, if one ended
before the other began; if they were concurrent, both outcomes are right, and nothing is judged.

*Durable subscriptions* are called `durable/NAME.sub` and a number, whatever bus reads them; one
that is made again after it was forgotten has another number. Each reader records `subscribed` when
it attaches, and `unsubscribed` when it leaves; `acknowledged` has a position up to which no later
reader gets events. `publisher_seq` of both is the number of the attachment. Other
events may be delivered to the next reader again. Events are owed to a subscription that was never
forgotten, and whose last reader stays until the end.

Nothing is owed to a client that has gone, nor after it withdrew a subscription, nor if it discarded
the event after it withdrew the subscription. The exception is a subscription that received an event
that certainly comes later: a later event of the publisher, both outside transactions; a later one
of the same transaction; one of a serializable transaction that conflicts and was committed later;
or one that was published after the transaction had ended.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations, pairwise

import msgspec

from ensue.checkers import routing_tables
from ensue.checkers.content_filters import attributes_of, matches
from ensue.checkers.verdict import Collector, Report, Subscriber, Verdict
from ensue.core.errors import BadInput
from ensue.core.trace import Row

__all__ = ["PLACE", "RULES", "Ledger", "check", "judge", "misnamed"]

RULES = ("atomic", "sequential", "serializable", "converged")
PLACE = r"([0-9]{1,18}(\.[0-9]{1,18})*)?"
"""The pattern of an operation's place."""
UNREAD = "unread"
_DROPPED = ("not_subscribed", "overflow")
_DURABLE = "durable/"
"""How the name of a durable subscription begins."""
_LEFT = ("closed", "detached")
"""Verdicts of `unsubscribed` when a reader leaves a durable subscription, which stays."""
_FOREVER = 1 << 62
Place = tuple[int, tuple[int, ...]]
"""The number of a commit, and an operation's place in that transaction."""


class Moment(msgspec.Struct, frozen=True):
    """When an operation took effect: its place among commits, or a range of time."""

    transaction: str
    """Empty outside transactions."""
    path: tuple[int, ...]
    place: Place | None
    first_ns: int
    """It is not in effect before this time."""
    last_ns: int
    """It is in effect everywhere from this time on."""

    def before(self, other: "Moment") -> bool | None:
        """Return whether this took effect before another; None if unknown."""
        if self.transaction and self.transaction == other.transaction:
            return None if self.path == other.path else self.path < other.path
        if self.place is not None and other.place is not None:
            return self.place < other.place
        if self.last_ns < other.first_ns:
            return True
        return False if other.last_ns < self.first_ns else None


class Held(msgspec.Struct):
    """A subscription."""

    name: str
    node: str
    where: str
    begins: Moment
    ends: list[Moment]
    reader: str = ""
    """Of a durable one: the node that reads it, if any."""

    @property
    def is_durable(self) -> bool:
        """Whether it outlives its readers."""
        return self.name.startswith(_DURABLE)


class Published(msgspec.Struct, frozen=True):
    """An event, and the moment of its publication."""

    event: str
    node: str
    text: str
    at: Moment
    publisher: str = ""
    number: int = 0


def _sequences(commits: Collection[list[str]]) -> list[dict[str, int]]:
    """Return the numbers of commits by name: at the node with most, and at others with all."""
    order = max(commits, key=len, default=[])
    complete = [tuple(order), *(tuple(names) for names in commits if set(names) >= set(order))]
    return [
        {name: number for number, name in enumerate(names, 1)} for names in dict.fromkeys(complete)
    ]


class Ledger:
    """One content-based run; raises BadInput for another run, or without operations' places."""

    def __init__(self, run: str, rows: Sequence[Row]) -> None:
        self.run = run
        self.isolation: dict[str, str] = {}
        self.began_ns: dict[str, int] = {}
        self.committed: dict[str, dict[str, int]] = {}
        """By transaction and node: the time of the commit."""
        self.aborted: dict[str, dict[str, int]] = {}
        self.processed: dict[tuple[str, str], list[tuple[tuple[int, ...], str]]] = {}
        self.delivered: dict[tuple[str, str], list[Row]] = {}
        """By event and subscription."""
        self.unread: set[tuple[str, str]] = set()
        """Events with the subscriptions that received but never read them."""
        self.dropped: set[tuple[str, str]] = set()
        """Events with the subscriptions that discarded them, withdrawn or without room."""
        self.recipients: dict[str, list[str]] = {}
        """By event: the subscriptions that received it."""
        self._latest: dict[tuple[str, str], tuple[int, ...]] = {}
        """By subscription, and by publisher or transaction: the last number or place received."""
        self._came_with: dict[str, set[str]] = {}
        """By subscription: the transactions whose events it received."""
        self._latest_ns: dict[str, int] = {}
        """By subscription: when the last event it received was published."""
        self.turns: dict[tuple[str, str], list[Row]] = {}
        """By durable subscription and node: when it attached to read it, and when it left."""
        self.acknowledged: dict[str, list[Row]] = {}
        """By durable subscription."""
        self.held: list[Row] = []
        """The tables that brokers reported."""
        self.events: list[Published] = []
        self.subscriptions: dict[str, Held] = {}
        self.commits: dict[str, list[str]] = {}
        """By node: its serializable transactions in commit order."""
        self._rows = sorted(rows, key=lambda row: (_time(row), row.node, row.step))
        self._refused = {
            row.event
            for row in rows
            if row.action == "discarded" and row.verdict not in (UNREAD, *_DROPPED)
        }
        self.gone = _gone(self._rows)
        for row in self._rows:
            # Read these rows first: by the clocks, a commit may precede its begin.
            if row.action == "began":
                self.isolation[row.transaction or ""] = row.topic or ""
                self.began_ns[row.transaction or ""] = _time(row)
        for row in self._rows:
            self._read(row)
        self.sequence, *self.other_sequences = _sequences(self.commits.values())
        """Of other nodes with all commits: two that do not conflict may be in another order."""
        for row in self._rows:
            self._relate(row)
            self._note_latest(row)
        for published in self.events:
            for name in self.recipients.get(published.event, ()):
                first_ns = max(published.at.first_ns, self._latest_ns.get(name, 0))
                self._latest_ns[name] = first_ns
        # Parse all before judging, so that a run is judged completely or not at all.
        for published in self.events:
            attributes_of(published.text)
        for held in self.subscriptions.values():
            matches(held.where, {})
        self.conflicts = self._conflicts()
        """Pairs of serializable transactions whose order matters."""

    def _read(self, row: Row) -> None:
        name = row.transaction or ""
        if row.action == "committed":
            self.committed.setdefault(name, {})[row.node] = _time(row)
            if self.isolation.get(name) == "serializable":
                self.commits.setdefault(row.node, []).append(name)
        elif row.action == "aborted":
            self.aborted.setdefault(name, {})[row.node] = _time(row)
        elif row.action == "received" and name:
            steps = self.processed.setdefault((row.node, name), [])
            steps.append((_path(row), row.event or ""))
        elif row.action == "delivered" or (row.action == "discarded" and row.verdict == UNREAD):
            key = (row.event or "", row.subscription or "")
            if not self.came(*key):
                self.recipients.setdefault(key[0], []).append(key[1])
            if row.action == "delivered":
                self.delivered.setdefault(key, []).append(row)
            else:
                self.unread.add(key)
        elif row.action == "discarded" and row.verdict in _DROPPED:
            self.dropped.add((row.event or "", row.subscription or ""))
        elif row.action == "held":
            self.held.append(row)
        else:
            self._read_durable(row)

    def _read_durable(self, row: Row) -> None:
        """Keep what readers of durable subscriptions did."""
        name = row.subscription or ""
        if row.action == "acknowledged":
            self.acknowledged.setdefault(name, []).append(row)
        elif name.startswith(_DURABLE) and row.action in ("subscribed", "unsubscribed"):
            self.turns.setdefault((name, row.node), []).append(row)

    def attachment(self, row: Row) -> Row | None:
        """Return when the reader that got an event had attached, if the trace has it."""
        attached = [each for each in self.turns_before(row) if each.action == "subscribed"]
        return max(attached, key=lambda each: each.step, default=None)

    def turns_before(self, row: Row) -> list[Row]:
        """Return when readers at a bus began and ended before an event, as far as known."""
        turns = self.turns.get((row.subscription or "", row.node), ())
        return [each for each in turns if each.step < row.step]

    def came(self, event: str, subscription: str) -> bool:
        """Return whether an event was delivered to a subscription, or was waiting to be read."""
        return (event, subscription) in self.delivered or (event, subscription) in self.unread

    def _note_latest(self, row: Row) -> None:
        """Keep the latest event that a subscription received."""
        subscription = row.subscription or ""
        if not self.came(row.event or "", subscription):
            return
        if row.transaction:
            key, reached = (subscription, f"{row.transaction}#"), _path(row)
            self._came_with.setdefault(subscription, set()).add(row.transaction)
        else:
            key, reached = (subscription, row.publisher or ""), (row.publisher_seq or 0,)
        self._latest[key] = max(reached, self._latest.get(key, ()))

    def _conflicts(self) -> set[frozenset[str]]:
        """Return the pairs of serializable transactions that conflict."""
        found: set[frozenset[str]] = set()
        names = {name for commits in self.commits.values() for name in commits}
        changed = {
            held.name: {at.transaction for at in (held.begins, *held.ends)} & names
            for held in self.subscriptions.values()
        }
        for those in changed.values():
            found.update(map(frozenset, combinations(those, 2)))
        for published in self.events:
            name = published.at.transaction
            if name not in names:
                continue
            event = attributes_of(published.text)
            for held in self.subscriptions.values():
                if changed[held.name] and matches(held.where, event):
                    found.update(frozenset((name, its)) for its in changed[held.name] - {name})
        return found

    def overtaken(self, published: Published, subscription: str) -> bool:
        """Return whether a subscription received an event that certainly comes later."""
        at = published.at
        if not at.transaction:
            latest = self._latest.get((subscription, published.publisher), ())
            return bool(published.number) and (published.number,) < latest
        if at.place is not None and any(
            at.place[0] < self.sequence.get(name, 0)
            and frozenset((at.transaction, name)) in self.conflicts
            for name in self._came_with.get(subscription, ())
        ):
            return True
        if at.last_ns < self._latest_ns.get(subscription, 0):
            return True
        return at.path < self._latest.get((subscription, f"{at.transaction}#"), ())

    def _moment(self, row: Row) -> Moment | None:
        """Return when an operation took effect; None if it never did.

        Operations of a transaction without isolation are visible before it ends, and for a while
        even if it aborts.
        """
        name = row.transaction
        if name is None:
            at_ns = _time(row)
            # A subscription was requested some time before the row; an unsubscription takes effect
            # some time after it.
            first_ns = 0 if row.action == "subscribed" else at_ns
            return Moment("", (), None, first_ns, at_ns if row.action == "subscribed" else _FOREVER)
        if name not in self.committed:
            if row.action == "published" or self.isolation.get(name) == "serializable":
                return None
            return Moment(name, _path(row), None, self.began_ns.get(name, 0), _FOREVER)
        number = self.sequence.get(name)
        place = None if number is None else (number, _path(row))
        last_ns = max(self.committed[name].values())
        return Moment(name, _path(row), place, self.began_ns.get(name, 0), last_ns)

    def _relate(self, row: Row) -> None:
        if row.action not in ("published", "subscribed", "unsubscribed"):
            return
        moment = self._moment(row)
        if moment is None:
            return
        if row.action == "published":
            if row.event not in self._refused:
                published = Published(
                    row.event or "",
                    row.node,
                    row.topic or "",
                    moment,
                    row.publisher or "",
                    row.publisher_seq or 0,
                )
                self.events.append(published)
        elif row.action == "subscribed":
            name = row.subscription or ""
            made = Held(name, row.node, row.topic or "", moment, [])
            self.subscriptions.setdefault(name, made).reader = row.node
        elif row.subscription in self.subscriptions:
            held = self.subscriptions[row.subscription]
            if held.is_durable and held.reader == row.node:
                held.reader = ""
            if not held.is_durable or row.verdict not in _LEFT:
                held.ends.append(moment)

    def owner(self, subscription: str) -> str:
        """Return the client of a subscription: the name of the subscription starts with it."""
        return subscription.rpartition(".")[0]

    def is_unknown(self, subscription: str) -> bool:
        """Return whether a subscription was never made; one of a client that left may have been."""
        return subscription not in self.subscriptions and self.owner(subscription) not in self.gone

    def owed(self, held: Held, published: Published, at: Moment) -> bool | None:
        """Return whether a subscription must receive an event of a moment; None: it may."""
        begun = held.begins.before(at)
        if begun is False:
            return False
        # An end before the begin does not count.
        ended = [
            (end.before(at) if held.begins.before(end) else None, end)
            for end in held.ends
            if held.begins.before(end) is not False
        ]
        if any(before for before, _ in ended):
            return False
        if begun is None or any(before is None and end.transaction for before, end in ended):
            return None
        if held.is_durable and held.ends:
            return None  # It was forgotten, with events that waited for a reader.
        closed = [before for before, end in ended if not end.transaction]
        dropped = closed and (published.event, held.name) in self.dropped
        if held.is_durable and (not held.reader or held.reader in self.gone):
            dropped = True  # It waits for the next reader.
        if dropped or None in closed or self.owner(held.name) in self.gone:
            return True if self.overtaken(published, held.name) else None
        return True


def _by_run(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each run, by its name."""
    runs: dict[str, list[Row]] = {}
    for row in rows:
        runs.setdefault(row.run, []).append(row)
    return {run: runs[run] for run in sorted(runs)}


def misnamed(event: str) -> str:
    """Describe an event whose name has no operation's place."""
    return f"{event!r} does not name an operation of a transaction: expected a name like 't#2.1'"


def judge(ledger: Ledger, collectors: dict[str, Collector]) -> None:
    """Judge one run by the rules that have a collector."""
    if "atomic" in collectors:
        _judge_atomic(ledger, collectors["atomic"])
    if "sequential" in collectors:
        _judge_sequential(ledger, collectors["sequential"])
    if "serializable" in collectors:
        _judge_commits(ledger, collectors["serializable"])
        _judge_regular(ledger, collectors["serializable"])
    if "converged" in collectors:
        routing_tables.judge(ledger.run, ledger.held, collectors["converged"])


def _judge_atomic(ledger: Ledger, collector: Collector) -> None:
    for name in sorted(ledger.committed.keys() & ledger.aborted.keys()):
        one, other = min(ledger.committed[name]), min(ledger.aborted[name])
        collector.violation(
            "split",
            (_at(ledger, one), _at(ledger, other)),
            (name,),
            lambda name=name, one=one, other=other: (  # type: ignore[misc]
                f"{name} was committed at {one} and aborted at {other}"
            ),
        )
    for (event, subscription), rows in sorted(ledger.delivered.items()):
        row = rows[0]
        if row.transaction and row.transaction not in ledger.committed:
            collector.violation(
                "dirty",
                (_at(ledger, row.node, subscription),),
                (event,),
                lambda event=event, row=row: (  # type: ignore[misc]
                    f"{event} was delivered to {row.node}, though its transaction was not committed"
                ),
            )
        if subscription.startswith(_DURABLE):
            _judge_redelivery(ledger, rows, collector)
        elif len(rows) > 1:
            collector.violation(
                "duplicate",
                (_at(ledger, row.node, subscription),),
                (event,),
                lambda event=event, row=row, rows=rows: (  # type: ignore[misc]
                    f"{event} was delivered to {row.node} {len(rows)} times"
                ),
            )
    for published in ledger.events:
        if "#" in published.event:
            _judge_event(ledger, published, collector)
    for held in ledger.subscriptions.values():
        names = sorted({end.transaction for end in held.ends} & ledger.committed.keys())
        if len(names) > 1:
            collector.violation(
                "withdrawn",
                (_at(ledger, held.node, held.name),),
                (names[0], names[1]),
                lambda held=held, names=names: (  # type: ignore[misc]
                    f"{held.name} was withdrawn by {' and by '.join(names)}, all committed"
                ),
            )


def _judge_redelivery(ledger: Ledger, rows: Sequence[Row], collector: Collector) -> None:
    """Check that readers of a durable subscription get an event once, and not if acknowledged."""
    readers: dict[tuple[str, int], Row] = {}
    for row in rows:
        attached = ledger.attachment(row)
        first = readers.setdefault((row.node, len(ledger.turns_before(row))), row)
        if first is not row:
            collector.violation(
                "duplicate",
                (_at(ledger, row.node, row.subscription or ""),),
                (row.event or "",),
                lambda row=row: (  # type: ignore[misc]
                    f"{row.event} was delivered to one reader at {row.node} twice"
                ),
            )
        before = [
            each
            for each in ledger.acknowledged.get(row.subscription or "", ())
            if (each.position or 0) >= (row.position or 0)
            and attached is not None
            and (each.publisher_seq or 0) < (attached.publisher_seq or 0)
        ]
        if before:
            collector.violation(
                "again",
                (_at(ledger, row.node, row.subscription or ""),),
                (row.event or "",),
                lambda row=row, its=before[0]: (  # type: ignore[misc]
                    f"{row.event} was delivered to {row.node} at position {row.position}, though "
                    f"{its.node} had acknowledged {its.position}"
                ),
            )


def _judge_event(ledger: Ledger, published: Published, collector: Collector) -> None:
    event = attributes_of(published.text)
    for subscription in ledger.recipients.get(published.event, ()):
        if ledger.is_unknown(subscription):
            _report_stray(ledger, published.event, subscription, collector)
    for held in ledger.subscriptions.values():
        came = ledger.came(published.event, held.name)
        if not matches(held.where, event):
            owed: bool | None = False
        else:
            owed = ledger.owed(held, published, published.at)
        if owed is None or owed == came:
            continue
        what = "was not delivered to" if owed else "was delivered to"
        why = (
            "which was subscribed when it was published"
            if owed
            else "which was not subscribed when it was published"
        )
        collector.violation(
            "torn" if owed else "stale",
            (_at(ledger, ledger.owner(held.name), held.name),),
            (published.event,),
            lambda held=held, what=what, why=why: (  # type: ignore[misc]
                f"{published.event} ({published.text}) {what} {held.name}, {why}"
            ),
        )


def _report_stray(ledger: Ledger, event: str, subscription: str, collector: Collector) -> None:
    """Report an event that was delivered to a subscription which never was subscribed to it."""
    collector.violation(
        "stale",
        (_at(ledger, ledger.owner(subscription), subscription),),
        (event,),
        lambda: f"{event} was delivered to {subscription}, which is not subscribed to it",
    )


def _judge_sequential(ledger: Ledger, collector: Collector) -> None:
    for (node, name), steps in sorted(ledger.processed.items()):
        for (path, event), (following, its) in pairwise(steps):
            if following < path:
                collector.violation(
                    "sequential",
                    (_at(ledger, node),),
                    (event, its),
                    lambda node=node, event=event, its=its, name=name: (  # type: ignore[misc]
                        f"{node} processed {event} before {its}, which comes first in {name}"
                    ),
                )
                break


def _judge_commits(ledger: Ledger, collector: Collector) -> None:
    """Compare the commits of every two transactions that conflict: a node may lack some commits.

    The node with the most commits that has both defines their order.
    """
    # If a node records a commit twice, the first counts.
    commits = {node: list(dict.fromkeys(names)) for node, names in ledger.commits.items()}
    nodes = sorted(commits, key=lambda node: (-len(commits[node]), node))
    places = {node: {name: at for at, name in enumerate(commits[node])} for node in nodes}
    for pair in sorted(map(sorted, ledger.conflicts)):
        both = [node for node in nodes if places[node].keys() >= set(pair)]
        ordered = {node: sorted(pair, key=places[node].__getitem__) for node in both}
        for node in both[1:]:
            one, other = ordered[node]
            if [one, other] != ordered[both[0]]:
                collector.violation(
                    "cycle",
                    (_at(ledger, node),),
                    (one, other),
                    lambda node=node, one=one, other=other: (  # type: ignore[misc]
                        f"{node} committed {one} before {other}, another node in opposite order"
                    ),
                )


def _judge_regular(ledger: Ledger, collector: Collector) -> None:
    """Check that deliveries outside transactions match the tables between two commits."""
    for published in ledger.events:
        if "#" in published.event or published.node in ledger.gone:
            continue
        event = attributes_of(published.text)
        interested = [held for held in ledger.subscriptions.values() if matches(held.where, event)]
        for subscription in ledger.recipients.get(published.event, ()):
            held = ledger.subscriptions.get(subscription)
            if ledger.is_unknown(subscription) or (held is not None and held not in interested):
                _report_stray(ledger, published.event, subscription, collector)
        if not _explained_by(ledger, published, interested) and not any(
            _explained_by(ledger, published, [_resequenced(held, sequence) for held in interested])
            for sequence in ledger.other_sequences
        ):
            got = sorted(ledger.recipients.get(published.event, ()))
            two = dict.fromkeys((*got[:1], *got[-1:]))  # The message names all of them.
            collector.violation(
                "mixed",
                tuple(_at(ledger, ledger.owner(name), name) for name in two)
                or (_at(ledger, published.node),),
                (published.event,),
                lambda published=published, got=got: (  # type: ignore[misc]
                    f"{published.event} ({published.text}) was delivered to "
                    f"{', '.join(got) or 'no client'}: "
                    "no state of the tables between two commits explains that"
                ),
            )


def _resequenced(held: Held, sequence: Mapping[str, int]) -> Held:
    """Return a subscription with its moments placed in another sequence of commits."""

    def placed(at: Moment) -> Moment:
        place = None if at.place is None else (sequence[at.transaction], at.path)
        return msgspec.structs.replace(at, place=place)

    return msgspec.structs.replace(
        held, begins=placed(held.begins), ends=[placed(end) for end in held.ends]
    )


def _explained_by(ledger: Ledger, published: Published, interested: Sequence[Held]) -> bool:
    """Return whether the deliveries match the tables between two commits of a sequence."""
    concerned = {
        at.transaction: at.place[0]
        for held in interested
        for at in (held.begins, *held.ends)
        if at.place is not None
    }
    known = [
        number
        for name, number in concerned.items()
        if max(ledger.committed[name].values()) < published.at.first_ns
    ]
    first = max(known, default=0)
    possible = sorted({first, *(each for each in concerned.values() if each > first)})
    return any(_explained(ledger, published, interested, commits) for commits in possible)


def _explained(
    ledger: Ledger, published: Published, interested: Iterable[Held], commits: int
) -> bool:
    """Return whether the deliveries match the tables after so many commits."""
    at = Moment("", (), (commits, (_FOREVER,)), published.at.first_ns, published.at.last_ns)
    for held in interested:
        owed = ledger.owed(held, published, at)
        if owed is not None and owed != ledger.came(published.event, held.name):
            return False
    return True


def check(rows: Sequence[Row], *, violations_max: int) -> Report:
    """Judge a trace of transactions."""
    collectors = {rule: Collector(rule, violations_max=violations_max) for rule in RULES}
    runs = _by_run(rows)
    ledgers: list[Ledger] = []
    reasons = [] if rows else ["the trace is empty"]
    for run, its in runs.items():
        try:
            ledgers.append(Ledger(run, its))
        except BadInput as error:
            reasons.append(f"run {run} is not content-based: {error}")
    for ledger in ledgers:
        judge(ledger, collectors)
    findings = tuple(collector.finding() for collector in collectors.values())
    return Report(
        verdict=Verdict.worst(
            [one.verdict for one in findings] + [Verdict.UNKNOWN for _ in reasons]
        ),
        order="transactions",
        findings=findings,
        reasons=tuple(reasons),
        run_count=len(runs),
        event_count=sum(len(ledger.events) for ledger in ledgers),
        delivery_count=sum(len(one) for ledger in ledgers for one in ledger.delivered.values()),
        subscriber_count=sum(len(ledger.subscriptions) for ledger in ledgers),
    )


def _gone(rows: Sequence[Row]) -> set[str]:
    """Return the nodes that never restarted after a crash, or were declared gone."""
    down: set[str] = set()
    gone: set[str] = set()
    for row in rows:
        if row.action == "crashed":
            down.add(row.node)
        elif row.action == "restarted":
            down.discard(row.node)
        elif row.action == "unsubscribed" and row.verdict == "gone":
            gone.add(row.publisher or "")
    return down | gone


def _at(ledger: Ledger, node: str, subscription: str = "") -> Subscriber:
    return Subscriber(ledger.run, node, subscription)


def _time(row: Row) -> int:
    return row.at_ns if row.true_ns is None else row.true_ns


def _path(row: Row) -> tuple[int, ...]:
    text = (row.event or "").rpartition("#")[2]
    if re.fullmatch(PLACE, text) is None:
        raise BadInput(misnamed(row.event or ""))
    path = tuple(int(part) for part in text.split(".")) if text else ()
    # Operations below a zero may run in any order.
    return path[: path.index(0)] if 0 in path else path
