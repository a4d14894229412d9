"""What a server is doing, for people and programs that look at it from outside.

`View` is the one place where all parts of a server are looked at. What it tells is bounded, however large the
server is: the topics with the most events, the subscriptions that are furthest behind, and how many there are in
all. Going through all of them takes time that events have to wait for, so it is done once in `FRESH_S` at the
most, and no more than `SHARE_MAX` of the time: what is told may be so old.

Whoever may not subscribe to everything is told of the topics that it may subscribe to, and of subscriptions to
nothing else; of the rest of the server only that it is there.

The lag of a durable subscription is how many places of its topics are beyond what it has said it has handled. Its
records are kept by one server of the chain, which knows the ends of its own topics: for topics of other
servers it tells how far the subscription is (`elsewhere`), and whoever asks all servers adds it up.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from heapq import nlargest
from importlib.metadata import version
from typing import Any, Generic, TypeVar

import msgspec

from ensue.clock import system_clock
from ensue.journal import Journal
from ensue.protocols import looking
from ensue.protocols.core import Frame
from ensue.protocols.ens import matches
from ensue.protocols.looking import Look, Seen
from ensue.protocols.sequencer.records import CLOCK, HISTORY, INT
from ensue.protocols.station import EPHEMERAL, Station
from ensue.server.commit import GroupCommit
from ensue.server.config import ServerConfig
from ensue.server.gate import Gate
from ensue.server.listener import Listener
from ensue.server.rooms import Rooms
from ensue.transports.framed import FramedTransport
from ensue.transports.tcp_options import write_address
from ensue.transports.traffic import Traffic

__all__ = ["Progress", "View"]

FRESH_S = 1.0
"""How old what is told may be, …"""
SHARE_MAX = 0.02
"""… unless it would take more than this share of the time to keep it so fresh."""
TOPICS_MAX = 500
"""Topics that are told of by name: those with the most events."""
SUBSCRIPTIONS_MAX = 500
"""Subscriptions that are told of by name: those furthest behind."""
TOPICS_NAMED_MAX = 20
"""Topics of one subscription that are named."""
ELSEWHERE_MAX = 2_000
"""Topics kept elsewhere of which it is told how far subscriptions are, in one answer."""
RECORDS_MAX = 100_000
"""Records of durable subscriptions that are read for one answer; names beyond are not measured."""
READERS_MAX = 64
"""Sets of permissions whose answer is remembered."""
ANSWER_BYTES_MAX = 400 * 1024
"""Of an answer: brokers carry no more than a megabyte. Beyond, less is told by name."""
SYNC_STUCK_S = 30.0
"""A sync that takes longer than this is a disk that can't be written."""
SECOND_NS = 1_000_000_000

Json = dict[str, Any]
T = TypeVar("T")


class _Remembered(Generic[T]):
    """Something that takes time to make, and is made again only so often."""

    __slots__ = ("_due_s", "_make", "_value")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._value: T | None = None
        self._due_s = 0.0

    def get(self) -> T:
        """Return it, made anew if it is time."""
        began_s = time.monotonic()
        if self._value is None or began_s >= self._due_s:
            self._value = self._make()
            took_s = time.monotonic() - began_s
            self._due_s = began_s + took_s + max(FRESH_S, took_s / SHARE_MAX)
        return self._value


class Progress(msgspec.Struct, frozen=True):
    """How far a durable subscription is, as its keeper knows."""

    name: str
    position: int
    """Events that it has handled."""
    lag: int
    """Places of topics kept here that are beyond."""
    topics: tuple[str, ...]
    """Those that it has begun with, wherever they are kept."""
    elsewhere: dict[str, int]
    """Topics kept elsewhere, and the last place that it has handled of each."""


class View:
    """One server, seen from outside."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        station: Station,
        journal: Journal,
        commit: GroupCommit,
        transport: FramedTransport,
        rooms: Rooms,
        listener: Listener | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.config = config
        self.gate = gate
        self.rooms = rooms
        self.station = station
        self.journal = journal
        self.commit = commit
        self.listener = listener
        self.transport = transport
        self.traffic = transport.traffic = Traffic()
        self.version = version("ensue")
        self.stopping = False
        self.unmeasured = 0
        """Durable names whose lag was not worked out: their records are too many."""
        self._began_s = time.monotonic()
        self._began_batches = journal.batch_count
        self._began_bytes = journal.end_bytes
        self._began_placed = station.log.placed
        self._answers: dict[tuple[str, ...] | None, _Remembered[bytes]] = {}
        self._progress = _Remembered(self._measure)
        self._listeners = _Remembered(lambda: sum(map(len, self.station.log.listeners().values())))
        station.on_look = self.answer

    # -- Figures --------------------------------------------------------------------------------

    @property
    def uptime_s(self) -> float:
        """How long the server has run."""
        return time.monotonic() - self._began_s

    @property
    def events(self) -> int:
        """Events put out since the start, voids included."""
        return self.station.log.placed - self._began_placed

    @property
    def journal_batches(self) -> int:
        """Batches written since the start."""
        return self.journal.batch_count - self._began_batches

    @property
    def journal_bytes(self) -> int:
        """Bytes written since the start."""
        return self.journal.end_bytes - self._began_bytes

    @property
    def dropped(self) -> dict[str, int]:
        """Messages that reached nobody, and why."""
        listener = self.listener
        if listener is None:
            return {"slow": self.transport.carrier.dropped}
        return {
            "slow": listener.dropped_slow,
            "gone": listener.dropped - listener.dropped_slow,
            "stranger": listener.dropped_strange,
        }

    @property
    def errors(self) -> dict[str, int]:
        """What others did wrong, by kind."""
        if self.listener is None:
            refused = {} if self.gate is None else self.gate.errors
            return {"protocol": self.transport.bad_bundles, **refused}
        return dict(self.listener.errors)

    def listeners(self) -> int:
        """Count who listens to topics, once for each topic."""
        return self._listeners.get()

    def illness(self) -> str:
        """Say why no event can be taken; empty: it can."""
        failure = self.commit.failure or self.journal.failed
        if failure is not None:
            return f"the journal failed: {failure}"
        if self.commit.syncing_s > SYNC_STUCK_S:
            return f"the journal has been syncing for {self.commit.syncing_s:.0f} s"
        return "the server is stopping" if self.stopping else ""

    # -- Durable subscriptions ------------------------------------------------------------------

    def progress(self) -> list[Progress]:
        """Return how far durable subscriptions are, those furthest behind first."""
        return self._progress.get()

    def _measure(self) -> list[Progress]:
        left = RECORDS_MAX
        found: list[Progress] = []
        self.unmeasured = 0
        names = self.station.keeper.names()
        bounds = self.station.log.bounds() if names else {}
        for name, count in names.items():
            left -= count
            if left < 0:
                self.unmeasured += 1
            else:
                found.append(self._progress_of(name, self.station.keeper.records(name), bounds))
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
                # What is no longer kept can't come any more.
                lag += max(0, following - max(first, slot + 1))
            else:
                elsewhere[topic] = max(0, slot)
        try:
            position = INT.decode(records["delivered"])
        except (KeyError, msgspec.MsgspecError):
            position = 0
        return Progress(name, position, lag, tuple(topics), elsewhere)

    # -- The whole ------------------------------------------------------------------------------

    def answer(self, frame: Look, _now_ns: int) -> Frame:
        """Answer a station's client."""
        readable = frame.readable
        wanted = frame.topics[: looking.TOPICS_MAX]
        bounds_of = self.station.log.bounds_of
        return Seen(
            number=frame.number,
            state=self.state(readable),
            bounds={
                topic: bounds_of(topic)
                for topic in wanted
                if readable is None or _may(topic, readable)
            },
        )

    def state(self, readable: tuple[str, ...] | None = None) -> bytes:
        """Return one JSON object with what somebody may see who may subscribe to these topics."""
        known = self._answers.get(readable)
        if known is None:
            if len(self._answers) >= READERS_MAX:
                self._answers.clear()
            known = self._answers[readable] = _Remembered(partial(self._encoded, readable))
        return known.get()

    def _encoded(self, readable: tuple[str, ...] | None) -> bytes:
        told, now_ns = TOPICS_MAX, system_clock().now_ns()
        while True:
            encoded = msgspec.json.encode(self._state(readable, now_ns, told))
            if len(encoded) <= ANSWER_BYTES_MAX or told <= 1:
                return encoded
            told //= 2

    def _state(self, readable: tuple[str, ...] | None, now_ns: int, told: int) -> Json:
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
            "health": self.illness() or "ok",
            "everything": everything,
            **self._topics(patterns, told),
            **self._subscriptions(patterns, now_ns, told),
        }
        if not everything:
            return state
        return state | self._inner() | {"rooms": self.rooms.state(now_ns, told)}

    def _listening(self) -> str:
        listener = self.listener
        return "" if listener is None else write_address(listener.host, listener.port)

    def _topics(self, patterns: tuple[str, ...] | None, told: int) -> Json:
        log = self.station.log
        bounds = log.bounds()
        names: Iterable[str] = bounds
        if patterns is not None:
            names = [name for name in bounds if _may(name, patterns)]
        listeners = log.listeners()
        most = nlargest(told, names, key=lambda name: bounds[name][1])
        return {
            "topics_count": len(bounds if patterns is None else list(names)),
            "topics": [
                {
                    "topic": name,
                    "first": bounds[name][0],
                    "next": bounds[name][1],
                    "events": bounds[name][1] - bounds[name][0],
                    "listeners": len(listeners[name]),
                }
                for name in most
            ],
        }

    def _subscriptions(self, patterns: tuple[str, ...] | None, now_ns: int, told: int) -> Json:
        registered = self.station.node.subscribers()
        progress = {each.name: each for each in self.progress()}
        routes = {} if self.listener is None else self.listener.routes
        # A subscription that has ended is remembered for a while, with no topics.
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
            min(told, SUBSCRIPTIONS_MAX), names, key=lambda each: _behind(progress.get(each))
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
            shown.append(one)
        return {"subscriptions_count": len(names), "subscriptions": shown}

    def _inner(self) -> Json:
        """Return what only those see who may see everything."""
        node, listener, journal = self.station.node, self.listener, self.journal
        together, largest = node.groups.sizes()
        sync_s, lineage = self.config.sync_s, self.station.lineage
        return {
            "pid": os.getpid(),
            "events": self.events,
            "groups": {
                "topics": together,
                "largest": largest,
                "mean": 1 + node.groups.pairs / together if together else 1.0,
            },
            "open_stamps": node.open_count,
            "early_requests": node.early_count,
            "voids": node.voids,
            "expired": self.station.expiries,
            "connections": None if listener is None else len(listener.visitors),
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
    """Yield topics, and the last place that a subscription has handled of each.

    What is kept is the client's own: whatever can't be read is passed over.
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
