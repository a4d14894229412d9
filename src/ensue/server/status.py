"""The state of a server, for `/status`, `/metrics` and `ensue status`.

`Status` is the one place that inspects all parts of a server. Its output is bounded, however large
the server is: the topics with the most events, the subscriptions furthest behind, and the total
counts. Iterating over all of them delays events, so it happens at most once in `FRESH_S`, and for
at most `SHARE_MAX` of the time; the output may be that old.

A user who may not subscribe to everything sees the topics that it may subscribe to, the
subscriptions to these topics only, and that the server is up. Of a durable subscription by content
that belongs to another user, it sees neither the user nor the filter.

The lag of a durable subscription is the number of events of its topics that it has not handled. One
server of the chain keeps its records, and knows the ends of its own topics. For topics of other
servers it returns the progress (`elsewhere`); the client that queries all servers adds it up.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from heapq import nlargest
from importlib.metadata import version
from typing import Any, Generic, TypeVar

import msgspec

from ensue.core import platform
from ensue.journal import Journal
from ensue.protocols.content.frames import CONTENT
from ensue.protocols.interface import Frame
from ensue.protocols.topic_log.frames import matches
from ensue.protocols.total import status
from ensue.protocols.total.frames import OrderRequest
from ensue.protocols.total.records import CLOCK, HISTORY, INT
from ensue.protocols.total.station import EPHEMERAL, Station
from ensue.protocols.total.status import StatusReply, StatusRequest
from ensue.server.broker_admission import BrokerAdmission
from ensue.server.config import ServerConfig
from ensue.server.group_commit import GroupCommit
from ensue.server.listener import Listener
from ensue.server.relayed_orders import RelayedOrders
from ensue.transports.framed import FramedTransport
from ensue.transports.tcp.options import write_address
from ensue.transports.traffic_counts import Traffic

__all__ = ["MailboxStatus", "Progress", "Status"]

FRESH_S = 1.0
"""How old the output may be."""
SHARE_MAX = 0.02
"""Share of the time that may be spent on the output; it gets older if that is not enough."""
TOPICS_MAX = 500
"""Topics listed by name: those with the most events."""
SUBSCRIPTIONS_MAX = 500
"""Subscriptions listed by name: those furthest behind."""
MAILBOXES_MAX = 500
"""Durable subscriptions by content listed with details: those without a reader for longest."""
TOPICS_NAMED_MAX = 20
"""Topics listed of one subscription."""
ELSEWHERE_MAX = 2_000
"""Progress on topics of other servers, in one answer."""
RECORDS_MAX = 100_000
"""Records of durable subscriptions read for one answer; further names have no lag."""
READERS_MAX = 64
"""Sets of permissions, and users with durable subscriptions, whose answer is cached."""
ANSWER_BYTES_MAX = 400 * 1024
"""Size of an answer: brokers carry at most a megabyte. Beyond, fewer names are listed."""
SYNC_STUCK_S = 30.0
"""A sync that takes longer than this counts as a failed disk."""
SECOND_NS = 1_000_000_000

Json = dict[str, Any]
T = TypeVar("T")


class _Cached(Generic[T]):
    """A value that is costly to compute, cached for a while."""

    __slots__ = ("_due_s", "_make", "_value")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._value: T | None = None
        self._due_s = 0.0

    def get(self) -> T:
        """Return the value, computed again if it is too old."""
        started_s = platform.current().monotonic_s()
        if self._value is None or started_s >= self._due_s:
            self._value = self._make()
            took_s = platform.current().monotonic_s() - started_s
            self._due_s = started_s + took_s + max(FRESH_S, took_s / SHARE_MAX)
        return self._value


class MailboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a durable subscription by content has beside its progress."""

    server: str
    """The server that keeps it."""
    user: str
    """Its owner; empty: none, or any."""
    where: str
    bytes: int
    """Of the events that wait."""
    has_reader: bool
    idle_s: float
    """Time without a reader; 0 if it has one."""
    lost: str
    """Why it has lost events; empty: it has not."""


class Progress(msgspec.Struct, frozen=True):
    """The progress of a durable subscription, by its records."""

    name: str
    position: int
    """Events that it has handled."""
    lag: int
    """Events of this server's topics that it has not handled."""
    topics: tuple[str, ...]
    """Topics that it has begun to read, on any server."""
    elsewhere: dict[str, int]
    """Topics of other servers, and the last slot handled of each."""
    mailbox: MailboxStatus | None = None
    """Of a subscription by content."""


class Status:
    """The state of one server."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        station: Station,
        journal: Journal,
        commit: GroupCommit,
        transport: FramedTransport,
        relayed_orders: RelayedOrders,
        listener: Listener | None = None,
        broker_admission: BrokerAdmission | None = None,
    ) -> None:
        self.config = config
        self.broker_admission = broker_admission
        self.relayed_orders = relayed_orders
        self.station = station
        self.journal = journal
        self.commit = commit
        self.listener = listener
        self.transport = transport
        self.traffic = transport.traffic = Traffic(publishes=OrderRequest)
        self.version = version("ensue")
        self.stopping = False
        self.mailboxes: Callable[[], Iterable[Progress]] = tuple
        """Returns the progress of durable subscriptions by content that this server keeps."""
        self.unmeasured = 0
        """Durable names whose lag was not computed: there are too many records."""
        self._started_s = platform.current().monotonic_s()
        self._start_batches = journal.batch_count
        self._start_bytes = journal.end_bytes
        self._start_placed = station.log.placed
        self._answers: dict[tuple[tuple[str, ...] | None, str], _Cached[bytes]] = {}
        self._progress = _Cached(self._measure)
        self._listeners = _Cached(lambda: sum(map(len, self.station.log.listeners().values())))
        station.on_status_request = self.answer

    # -- Figures --------------------------------------------------------------------------------

    @property
    def uptime_s(self) -> float:
        """Time since the start."""
        return platform.current().monotonic_s() - self._started_s

    @property
    def events(self) -> int:
        """Events published since the start, voids included."""
        return self.station.log.placed - self._start_placed

    @property
    def journal_batches(self) -> int:
        """Batches written since the start."""
        return self.journal.batch_count - self._start_batches

    @property
    def journal_bytes(self) -> int:
        """Bytes written since the start."""
        return self.journal.end_bytes - self._start_bytes

    @property
    def dropped(self) -> dict[str, int]:
        """Dropped messages, by reason."""
        listener = self.listener
        if listener is None:
            return {"slow": self.transport.carrier.dropped}
        return {
            "slow": listener.dropped_slow,
            "disconnected": listener.dropped - listener.dropped_slow,
            "unregistered": listener.dropped_unregistered,
        }

    @property
    def errors(self) -> dict[str, int]:
        """Faults of clients, by kind."""
        if self.listener is None:
            refused = {} if self.broker_admission is None else self.broker_admission.errors
            return {"protocol": self.transport.bad_bundles, **refused}
        return dict(self.listener.errors)

    def listeners(self) -> int:
        """Count the listeners of topics, once for each topic."""
        return self._listeners.get()

    def unhealthy_reason(self) -> str:
        """Return why the server can't accept events; empty if it can."""
        failure = self.commit.failure or self.journal.failed
        if failure is not None:
            return f"the journal failed: {failure}"
        if self.commit.syncing_s > SYNC_STUCK_S:
            return f"the journal has been syncing for {self.commit.syncing_s:.0f} s"
        return "the server is stopping" if self.stopping else ""

    # -- Durable subscriptions ------------------------------------------------------------------

    def progress(self) -> list[Progress]:
        """Return the progress of durable subscriptions, the furthest behind first."""
        return self._progress.get()

    def _measure(self) -> list[Progress]:
        left = RECORDS_MAX
        found: list[Progress] = []
        self.unmeasured = 0
        names = self.station.state_store.names()
        bounds = self.station.log.bounds() if names else {}
        for name, count in names.items():
            left -= count
            if left < 0:
                self.unmeasured += 1
            else:
                found.append(
                    self._progress_of(name, self.station.state_store.records(name), bounds)
                )
        found += self.mailboxes()
        found.sort(key=lambda each: (-each.lag, each.name))
        return found

    def _progress_of(
        self, name: str, records: Mapping[str, bytes], bounds: Mapping[str, tuple[int, int]]
    ) -> Progress:
        placement = self.station.placement
        lag = 0
        topics: list[str] = []
        elsewhere: dict[str, int] = {}
        for topic, slot in _handled(records):
            topics.append(topic)
            if not placement.knows(topic):
                continue
            if placement.node(topic) == self.config.name:
                first, following = bounds.get(topic, (1, 1))
                if topic in placement.parts:
                    first = 1  # Earlier parts of the log are elsewhere.
                # Dropped events are not counted.
                lag += max(0, following - max(first, slot + 1))
            else:
                elsewhere[topic] = max(0, slot)
        try:
            position = INT.decode(records["delivered"])
        except (KeyError, msgspec.MsgspecError):
            position = 0
        return Progress(name, position, lag, tuple(topics), elsewhere)

    # -- Answers --------------------------------------------------------------------------------

    def answer(self, frame: StatusRequest, _now_ns: int) -> Frame:
        """Answer a client's status request."""
        readable = frame.readable
        wanted = frame.topics[: status.TOPICS_MAX]
        bounds_of = self.station.log.bounds_of
        return StatusReply(
            number=frame.number,
            state=self.state(readable, frame.user),
            bounds={
                topic: bounds_of(topic)
                for topic in wanted
                if readable is None or _may(topic, readable)
            },
        )

    def state(self, readable: tuple[str, ...] | None = None, user: str = "") -> bytes:
        """Return one JSON object, limited to what a user with these patterns may see."""
        if readable is None or "*" in readable or not _may(CONTENT, readable):
            user = ""  # It sees all durable subscriptions by content, or none.
        known = self._answers.get((readable, user))
        if known is None:
            if len(self._answers) >= READERS_MAX:
                self._answers.clear()
            known = _Cached(partial(self._encoded, readable, user))
            self._answers[readable, user] = known
        return known.get()

    def _encoded(self, readable: tuple[str, ...] | None, user: str = "") -> bytes:
        names_max, now_ns = TOPICS_MAX, platform.current().clock.now_ns()
        while True:
            encoded = msgspec.json.encode(self._state(readable, user, now_ns, names_max))
            if len(encoded) <= ANSWER_BYTES_MAX or names_max <= 1:
                return encoded
            names_max //= 2

    def _state(
        self, readable: tuple[str, ...] | None, user: str, now_ns: int, names_max: int
    ) -> Json:
        config = self.config
        everything = readable is None or "*" in readable
        patterns = None if everything else readable
        state: Json = {
            "server": config.name,
            "rank": self.station.node.stage + 1,
            "site": config.site,
            "address": next(m.address for m in config.members if m.name == config.name)
            or self._listening(),
            "version": self.version,
            "uptime_s": round(self.uptime_s, 3),
            "health": self.unhealthy_reason() or "ok",
            "everything": everything,
            **self._topics(patterns, names_max),
            **self._subscriptions(patterns, now_ns, names_max),
            **self._mailboxes(patterns, user, names_max),
        }
        if not everything:
            return state
        return (
            state | self._inner() | {"relayed_orders": self.relayed_orders.state(now_ns, names_max)}
        )

    def _listening(self) -> str:
        listener = self.listener
        return "" if listener is None else write_address(listener.host, listener.port)

    def _topics(self, patterns: tuple[str, ...] | None, names_max: int) -> Json:
        log, placement = self.station.log, self.station.placement
        bounds = log.bounds()
        names: Iterable[str] = bounds
        if patterns is not None:
            names = [name for name in bounds if _may(name, patterns)]
        listeners = log.listeners()
        most = nlargest(names_max, names, key=lambda name: bounds[name][1])
        return {
            "topics_count": len(bounds if patterns is None else list(names)),
            "topics": [
                {
                    "topic": name,
                    "first": bounds[name][0],
                    "next": bounds[name][1],
                    "events": bounds[name][1] - bounds[name][0],
                    "listeners": len(listeners[name]),
                    "current": placement.knows(name) and placement.node(name) == self.config.name,
                }
                for name in most
            ],
        }

    def _subscriptions(self, patterns: tuple[str, ...] | None, now_ns: int, names_max: int) -> Json:
        registered = self.station.node.subscribers()
        progress = {each.name: each for each in self.progress()}
        routes = {} if self.listener is None else self.listener.routes
        # A subscription that has ended stays for a while, without topics.
        names = dict.fromkeys(
            (*progress, *(name for name, (_, has) in registered.items() if has or name in routes))
        )
        topics = {
            name: tuple(
                dict.fromkeys(
                    (
                        *(registered[name][1] if name in registered else ()),
                        *(progress[name].topics if name in progress else ()),
                    )
                )
            )
            for name in names
        }
        if patterns is not None:
            names = {
                name: None
                for name in names
                if topics[name] and all(_may(topic, patterns) for topic in topics[name])
            }
        room = ELSEWHERE_MAX
        shown: list[Json] = []
        for name in nlargest(
            min(names_max, SUBSCRIPTIONS_MAX), names, key=lambda each: _behind(progress.get(each))
        ):
            heard_ns = self.station.heard_ns(name)
            one: Json = {
                "name": name,
                "durable": EPHEMERAL not in name,
                "topics": list(topics[name][:TOPICS_NAMED_MAX]),
                "topics_count": len(topics[name]),
                "position": None,
                "lag": None,
                "heard_s": None if heard_ns is None else max(0, now_ns - heard_ns) / SECOND_NS,
            }
            known = progress.get(name)
            if known is not None:
                fits = len(known.elsewhere) <= room
                room -= len(known.elsewhere) if fits else 0
                one |= {
                    "position": known.position,
                    "lag": known.lag,
                    "elsewhere": known.elsewhere if fits else {},
                    "lag_is_least": not fits,
                }
                if known.mailbox is not None:
                    one["heard_s"] = known.mailbox.idle_s
            shown.append(one)
        return {"subscriptions_count": len(names), "subscriptions": shown}

    def _mailboxes(self, patterns: tuple[str, ...] | None, user: str, names_max: int) -> Json:
        """Return the details of durable subscriptions by content that this server keeps.

        With patterns, `user` and `where` of those that belong to other users are null.
        """
        hidden = {"user": None, "where": None}
        found = [
            (each, each.mailbox)
            for each in self.progress()
            if each.mailbox is not None
            and (patterns is None or all(_may(topic, patterns) for topic in each.topics))
        ]
        idle = nlargest(min(names_max, MAILBOXES_MAX), found, key=lambda each: each[1].idle_s)
        return {
            "mailboxes_count": len(found),
            "mailboxes": [
                {
                    "name": one.name.removeprefix(f"{CONTENT}/"),
                    "position": one.position,
                    "waiting": one.lag,
                    **msgspec.structs.asdict(mailbox),
                    **({} if patterns is None or mailbox.user in ("", user) else hidden),
                }
                for one, mailbox in idle
            ],
        }

    def _inner(self) -> Json:
        """Return the part for users who may subscribe to everything."""
        node, listener, journal = self.station.node, self.listener, self.journal
        together, largest = node.groups.sizes()
        sync_s, lineage = self.config.sync_s, self.station.lineage
        moving = node.coordinator.under_way()
        return {
            "pid": platform.current().usage().pid,
            "events": self.events,
            "groups": {
                "topics": together,
                "largest": largest,
                "mean": 1 + node.groups.pairs / together if together else 1.0,
                "merged_by": [msgspec.structs.asdict(each) for each in node.group_merges()],
            },
            "move": None if moving is None else msgspec.structs.asdict(moving),
            "holds_for": node.moves.frozen,
            "open_stamps": node.open_count,
            "early_requests": node.early_count,
            "voids": node.voids,
            "expired": self.station.expiries,
            "connections": None if listener is None else len(listener.connections),
            "names": None if listener is None else len(listener.routes),
            "journal": {
                "log": journal.identity,
                "starts": lineage.incarnations[-1].number if lineage is not None else 0,
                "bytes": journal.size_bytes,
                "segments": journal.segment_count,
                "sync": "always" if sync_s == 0 else f"every {sync_s:g} s",
                "syncs": self.commit.syncs,
            },
            "errors": self.errors,
            "dropped": self.dropped,
        }


def _may(topic: str, patterns: tuple[str, ...]) -> bool:
    return any(matches(topic, pattern) for pattern in patterns)


def _behind(progress: Progress | None) -> int:
    return -1 if progress is None else progress.lag


def _handled(records: Mapping[str, bytes]) -> Iterable[tuple[str, int]]:
    """Yield topics, and the last slot that a subscription has handled of each.

    Clients write these records: unreadable ones are skipped.
    """
    for key, value in records.items():
        kind, _, topic = key.partition("/")
        try:
            if kind == "history":
                yield topic, HISTORY.decode(value)[0] - 1
            elif kind == "clock" and f"history/{topic}" not in records:
                yield topic, CLOCK.decode(value).slot
        except msgspec.MsgspecError:
            continue
