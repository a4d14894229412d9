"""Subscriptions by content that move from one client to another, and what they may not lose.

A committed transaction that subscribes one client and unsubscribes another, both with one filter,
moves a subscription. It may move on. Of an event with a receipt that matches it:

- it reaches one of the clients, if each move subscribes first or is serializable;
- it reaches no more than one, if all moves are serializable.

Nothing is owed to a client that left within `SETTLE_S` of the event or of the last fault, nor by a
subscription that had no room, nor while a transaction without isolation had withdrawn it that was
then aborted. Such a transaction costs the events that may have been on the way when it withdrew the
subscription, for however long faults held them up, and those until `SETTLE_S` after its abort. An
event was no longer on the way if its client had that one or a later one of the same publisher: a
publisher's events take one way to a client, in order.
"""

from collections.abc import Mapping, Sequence

import msgspec

import ensue
from ensue.checkers.content_filters import attributes_of, matches
from ensue.client.content.session import CONTENT
from ensue.core.trace import Row

__all__ = ["Movable", "Moves", "judge_moves"]

SETTLE_S = 15.0
EXPIRE_NS = 15_000_000_000
"""Brokers give no client up that was suspended for less: after 20 s, less what was on the way."""
UNREAD_NS = 1_000_000_000
"""How long before it was suspended a client has read what it got."""
SETTLE_NS = int(SETTLE_S * 1_000_000_000)
_NEVER = 1 << 62
Path = tuple[int, ...]


class Movable(msgspec.Struct, frozen=True, eq=False):
    """A subscription that its client may give away."""

    events: ensue.Subscription
    where: str
    name: str
    """Its name among brokers."""


class Moves:
    """What clients hold, by the name of their process, and which events have receipts."""

    def __init__(self) -> None:
        self.held: dict[str, list[Movable]] = {}
        self.confirmed: dict[tuple[str, int], None] = {}
        """Publisher and number of each event outside transactions with a receipt."""
        self._planned: dict[str, str] = {}
        """By subscription that a plan makes for another client: its filter."""

    def hold(self, name: str, bus: ensue.Bus, events: ensue.Subscription, where: str) -> None:
        """Note that a client may give a subscription away."""
        known = bus.content_name(events)
        self.held.setdefault(name, []).append(Movable(events, where, known))

    def give(self, name: str, where: str) -> Movable | None:
        """Take a subscription with a filter from what a client holds."""
        for one in self.held.get(name, ()):
            if one.where == where and one.events.topics:
                self.held[name].remove(one)
                return one
        return None

    async def hand_over(self, bus: ensue.Bus, name: str, client: str) -> None:
        """Plan that another client has a subscription of this one in its place."""
        one = next((each for each in self.held[name] if each.events.topics), None)
        if one is None:
            return
        self.held[name].remove(one)
        async with bus.transaction(isolation="planned", timeout=10.0) as plan:
            self._planned[await plan.client(client).subscribe(one.where)] = one.where
            await plan.unsubscribe(one.events)

    def handed_over(self, bus: ensue.Bus, events: ensue.Subscription) -> str:
        """Return the filter of a subscription that was handed over; empty: it was not."""
        return self._planned.pop(bus.content_name(events), "")

    def confirm(self, event: ensue.Event) -> None:
        """Note that an event has a receipt."""
        self.confirmed[event.publisher, event.publisher_seq] = None


class _Change(msgspec.Struct, frozen=True):
    """A subscription or its end within a transaction."""

    subscription: str
    path: Path


class _Gap(msgspec.Struct, frozen=True):
    """Events that a subscription may miss, by when they were published and by whom."""

    begin_ns: int
    end_ns: int
    passed: Mapping[str, int] = {}
    """By publisher: the last event that it may not miss."""

    def has(self, row: Row) -> bool:
        """Return whether the subscription may miss a published event."""
        is_then = self.begin_ns <= (row.true_ns or 0) <= self.end_ns
        return is_then and (row.publisher_seq or 0) > self.passed.get(row.publisher or "", 0)


class _Trace:
    """What a trace says about subscriptions, their owners and their events."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.where: dict[str, str] = {}
        self.begun_ns: dict[str, int] = {}
        """By subscription: when it was certainly in effect."""
        self.ended_ns: dict[str, int] = {}
        """By subscription: when its client, or the last transaction, ended it."""
        self.gone_ns: dict[str, int] = {}
        """By bus: when it left."""
        self.full: set[str] = set()
        """Subscriptions that had no room for an event."""
        self.came: set[tuple[str, str]] = set()
        self.serializable: set[str] = set()
        self.subscribed: dict[str, dict[_Change, None]] = {}
        self.unsubscribed: dict[str, dict[_Change, None]] = {}
        """By transaction, once each: a broker that restarts may record changes again."""
        self.committed_ns: dict[str, int] = {}
        self.aborted_ns: dict[str, int] = {}
        self._arrived: dict[str, dict[str, int]] = {}
        """By bus and publisher: the last event outside transactions that arrived."""
        self._withdrawn: dict[tuple[str, str], dict[str, int]] = {}
        """By transaction and subscription: what had come when the transaction withdrew it."""
        self._within: dict[str, str] = {}
        for row in rows:
            self._read(row, row.true_ns or 0, row.subscription or "", row.transaction or "")
        for subscription, name in self._within.items():
            self.begun_ns[subscription] = self.committed_ns.get(name, _NEVER)

    def _read(self, row: Row, at_ns: int, subscription: str, name: str) -> None:
        match row.action:
            case "began" if row.topic == "serializable":
                self.serializable.add(name)
            case "committed":
                self.committed_ns[name] = max(at_ns, self.committed_ns.get(name, 0))
            case "aborted":
                self.aborted_ns[name] = max(at_ns, self.aborted_ns.get(name, 0))
            case "crashed":
                self.gone_ns[row.node] = at_ns
            case "delivered":
                self.came.add((row.event or "", subscription))
                if not name:
                    arrived = self._arrived.setdefault(_owner(subscription), {})
                    last = arrived.get(row.publisher or "", 0)
                    arrived[row.publisher or ""] = max(last, row.publisher_seq or 0)
            case "discarded" if row.verdict == "unread":
                self.came.add((row.event or "", subscription))
            case "discarded" if row.verdict == "overflow":
                self.full.add(subscription)
            case "subscribed" | "unsubscribed":
                self._read_change(row, at_ns, subscription, name)

    def _read_change(self, row: Row, at_ns: int, subscription: str, name: str) -> None:
        change = _Change(subscription, _path(row))
        if row.action == "unsubscribed":
            if name:
                self.unsubscribed.setdefault(name, {})[change] = None
                if (name, subscription) not in self._withdrawn:
                    arrived = dict(self._arrived.get(_owner(subscription), {}))
                    self._withdrawn[name, subscription] = arrived
            else:
                self.ended_ns[subscription] = at_ns
            return
        self.where[subscription] = row.topic or ""
        if name:
            self._within[subscription] = name
            self.subscribed.setdefault(name, {})[change] = None
        else:
            self.begun_ns.setdefault(subscription, at_ns)

    def moves(self) -> tuple[dict[str, str], set[str]]:
        """Return where each subscription moved to, and which moves were serializable."""
        to: dict[str, str] = {}
        strict: set[str] = set()
        for name in self._withdrawing():
            for end in self.unsubscribed[name]:
                for begin in self.subscribed.get(name, {}):
                    same = self.where.get(end.subscription) == self.where[begin.subscription]
                    is_strict = name in self.serializable
                    taken = begin.subscription in to.values()
                    if same and not taken and (is_strict or begin.path < end.path):
                        to[end.subscription] = begin.subscription
                        if is_strict:
                            strict.add(end.subscription)
                        break
                else:
                    self.ended_ns[end.subscription] = 0  # Nothing came in its place.
        return to, strict

    def _withdrawing(self) -> list[str]:
        """Return the committed transactions with withdrawals, in the order of commits."""
        found = (name for name in self.committed_ns if name in self.unsubscribed)
        return sorted(found, key=lambda name: self.committed_ns[name])

    def gaps(self, subscription: str) -> list[_Gap]:
        """Return what a subscription may miss that aborted transactions had withdrawn."""
        return [
            _Gap(0, self.aborted_ns[name] + SETTLE_NS, passed)
            for (name, each), passed in self._withdrawn.items()
            if each == subscription and name in self.aborted_ns and name not in self.serializable
        ]

    def left_ns(self, subscription: str, *, moved: bool) -> int:
        """Return when a subscription or its client had ended, other than by a move."""
        owner = _owner(subscription)
        ended_ns = _NEVER if moved else self.ended_ns.get(subscription, _NEVER)
        return min(self.gone_ns.get(owner, _NEVER), ended_ns)


def judge_moves(
    rows: Sequence[Row],
    confirmed: Mapping[tuple[str, int], None],
    calm_ns: int,
    pauses: Mapping[str, Sequence[tuple[int, int]]],
) -> list[str]:
    """Return what moved subscriptions lost or got twice.

    Brokers give up a client that is suspended for long, and what they sent it is lost with it.
    """
    trace = _Trace(sorted(rows, key=lambda row: row.true_ns or 0))
    to, strict = trace.moves()
    chains = []
    for first in to.keys() - set(to.values()):
        chain = [first]
        while (following := to.get(chain[-1])) is not None and following not in chain:
            chain.append(following)
        if not trace.full.intersection(chain) and first in trace.begun_ns:
            chains.append((chain, strict.issuperset(chain[:-1])))
    events = [
        row
        for row in rows
        if row.action == "published"
        and not row.transaction
        and (_bus(row.publisher or ""), row.publisher_seq or 0) in confirmed
    ]
    found: list[str] = []
    for chain, is_strict in sorted(chains):
        left_ns = min(trace.left_ns(each, moved=each in to) for each in chain)
        gaps = [gap for each in chain for gap in (*trace.gaps(each), *_absences(each, pauses))]
        for row in events:
            at_ns, event = row.true_ns or 0, row.event or ""
            if at_ns <= trace.begun_ns[chain[0]] or left_ns < max(at_ns, calm_ns) + SETTLE_NS:
                continue
            if not matches(trace.where[chain[0]], attributes_of(row.topic or "")):
                continue
            if any(gap.has(row) for gap in gaps):
                continue
            got = [each for each in chain if (event, each) in trace.came]
            if not got or (is_strict and len(got) > 1):
                what = ", ".join(got) or "none"
                found.append(f"moved: {event} reached {what} of {' > '.join(chain)}")
    return found


def _absences(subscription: str, pauses: Mapping[str, Sequence[tuple[int, int]]]) -> list[_Gap]:
    """Return when brokers may have given up the client of a subscription."""
    times = pauses.get(subscription.partition(f".{CONTENT}.")[0], ())
    return [
        _Gap(begun_ns - UNREAD_NS, continued_ns)
        for begun_ns, continued_ns in times
        if continued_ns - begun_ns >= EXPIRE_NS
    ]


def _path(row: Row) -> Path:
    text = (row.event or "").rpartition("#")[2]
    return tuple(int(part) for part in text.split(".")) if text else ()


def _owner(subscription: str) -> str:
    """Return the bus of a subscription."""
    return _bus(subscription.rpartition(".")[0])


def _bus(session: str) -> str:
    """Return the bus of a content session."""
    return session.removesuffix(f".{CONTENT}")
