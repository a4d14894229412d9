"""A hub in one process: a transport, the stations of a chain, and back-pressure.

Buses of one event loop share a hub by its name. The first bus to connect sets its options; the last
one to leave closes it. All buses on a hub publish in the same order, because an event without a
stamp would take a slot that the sequencer is about to assign.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from ensue import orders
from ensue.core.clock import Clock
from ensue.core.errors import BadInput, ConfigurationError, LocalProtocolError
from ensue.core.event import Event
from ensue.core.lineage import Lineage
from ensue.core.order import Order, Total, order_name, written
from ensue.core.wire import Codec
from ensue.orders import PublisherNode
from ensue.protocols.interface import Frame, Node
from ensue.protocols.recorder import Recorder, Sink
from ensue.protocols.topic_log.frames import Put
from ensue.protocols.topic_log.log import TopicLog, TopicLogConfig
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.station import Station
from ensue.runtime.driver import Driver
from ensue.runtime.names import Names
from ensue.runtime.trace_writer import ParquetSink
from ensue.transports import MemoryOptions, MemoryTransport, Transport

if TYPE_CHECKING:
    from ensue.store import LogSink

__all__ = [
    "CLOSE_TIMEOUT_S",
    "PAYLOAD_BYTES_MAX",
    "Hub",
    "MemoryHub",
    "Slow",
    "join_hub",
    "leave_hub",
    "recorder_to",
]

N = TypeVar("N", bound=Node)

PAYLOAD_BYTES_MAX = 16 * 1024 * 1024
CLOSE_TIMEOUT_S = 5.0
"""How long leaving waits for receipts, unless `connect` gets another time."""
ENS = "ens"
"""The name of the log of all topics, where no station keeps them."""
RETAINED_MAX = 100_000
"""Events kept per topic, for subscriptions that request them again."""
DATED_MAX = 100
"""Directories of recorded runs with the time of one second, at most."""


class Slow:
    """A subscription as publishers see it: its topics, and whether it has room.

    It runs out of room at `pending_max` unhandled events and has room again at half of that:
    publishers and reader take turns in long runs, instead of waking each other for every event.
    """

    __slots__ = ("name", "room", "topics")

    def __init__(self, name: str) -> None:
        self.name = name
        self.topics: dict[str, None] = {}
        self.room = asyncio.Event()
        """Set while there is room."""
        self.room.set()


class ClosedSubscription(Protocol):
    """A closed subscription that still takes acknowledgements."""

    async def settle(self) -> None:
        """Wait until acknowledgements are safe, up to a limit."""

    def rest(self) -> None:
        """Take no more acknowledgements, and leave the name."""


class Hub:
    """The shared part of buses: a transport, its clients, and the recording."""

    transport: Transport
    placement: Placement
    config: SequencerConfig
    payload_bytes_max = PAYLOAD_BYTES_MAX
    """The largest payload that can be carried, with its key and headers."""
    close_timeout_s = CLOSE_TIMEOUT_S
    """How long leaving waits for receipts and acknowledgements."""
    holds_publishers = True
    """Whether publishers wait for subscriptions that can't keep up; else those pause."""
    server = ""
    """The server that the URL names, if any."""
    recording: Path | None = None
    """The directory that the run is recorded to."""
    answers = False
    """Whether servers confirm events in orders that need no answer."""
    fanouts: tuple[str, ...] = ()
    """Fan-outs where clients agree on the terms of merged order, the nearest first."""
    is_unattended = False
    """Whether events go over the topics of a broker, without stations."""

    def __init__(self, *, order: Order | None, clock: Clock, recorder: Recorder | None) -> None:
        self.order = order
        self.clock = clock
        self.recorder = recorder
        self.full: dict[Slow, None] = {}
        """Subscriptions without room, the longest first."""
        self.shares: dict[str, Any] = {}
        """By client: the node that its subscriptions share, where clients keep the order."""
        self.observers: dict[str, Callable[[Mapping[str, int]], object]] = {}
        """By client: called with the stamps of events that are delivered before their turn."""
        self.lingering: dict[str, ClosedSubscription] = {}
        """By name: subscriptions that must rest before the name is entered again."""
        self.users = 0
        self.loop = asyncio.get_running_loop()
        self._codec = Codec((Put,))
        self._watched: WeakValueDictionary[int, Driver[Any]] = WeakValueDictionary()
        """Drivers by number: always notified in the sequence in which they came."""
        self._watched_count = 0
        """Of buses and subscriptions."""
        self._retired: list[Driver[Any]] = []
        """Of closed subscriptions whose leave is not confirmed yet."""

    @property
    def shares_node(self) -> bool:
        """Whether nodes of buses keep the order among themselves, and subscriptions share them."""
        return orders.of(self.order).shares_node

    async def admit(self, name: str) -> PublisherNode:
        """Make the node of a client that keeps the order together with others."""
        raise NotImplementedError

    def admitted(self, driver: Driver[Any]) -> None:
        """Keep the driver of such a node."""

    def size_of(self, frame: Frame) -> int:
        """Return how many bytes a frame would take on a wire."""
        return len(self._codec.encode(frame))

    def claim(self, wanted: str | None, kind: str) -> str:
        """Reserve the wanted name, or generate one."""
        raise NotImplementedError

    def unique(self, stem: str) -> str:
        """Return a name that is never used twice."""
        raise NotImplementedError

    async def enter(self, name: str) -> None:
        """Receive frames for a name."""

    def leave(self, name: str) -> None:
        """Receive no more frames for a name."""

    def keep(self, event: Event) -> None:
        """Record an event of an order without topic logs, if the run is recorded."""

    def depart(self, name: str) -> None:
        """Notify other clients that a client has left."""
        self.shares.pop(name, None)

    def expel(self, reason: str) -> None:
        """End all nodes of this hub's buses."""
        for driver in self._drivers:
            driver.lose(reason)

    def close_client(self, driver: Driver[Any]) -> None:
        """Close the driver of a client that leaves."""
        driver.close()

    @property
    def _drivers(self) -> list[Driver[Any]]:
        """The drivers that are still in use."""
        return list(self._watched.values())

    def watch(self, driver: Driver[Any], *, needs_log: bool = True) -> None:
        """Notify a driver of new connections and failures.

        `needs_log`: its node can't continue if a server loses its log.
        """
        del needs_log
        self._watched_count += 1
        self._watched[self._watched_count] = driver

    async def finish(self, by_s: float) -> None:
        """Disconnect, by about a time of the event loop, when the last user has left."""

    @property
    def connections_tell_logs(self) -> bool:
        """Whether a server sends its log identity on each connection; else clients ask."""
        return True

    @property
    def logs(self) -> Mapping[str, Lineage]:
        """Station to the known identity of its log."""
        return {}

    def check_loop(self, what: str) -> None:
        """Raise if called from another event loop: a hub is not thread-safe."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is not self.loop:
            raise LocalProtocolError(
                f"{what} belongs to another event loop: use it in the one it was entered in"
            )

    def subscriber_config(self, order: Total, *, durable: bool = False) -> SequencerConfig:
        """Return the chain's configuration with the options of a subscription."""
        config = msgspec.structs.replace(self.config, held_max=order.held_max, durable=durable)
        if order.time_to_live is None:
            return config
        ttl_ns = int(order.time_to_live * 1_000_000_000)
        return msgspec.structs.replace(config, time_to_live_ns=max(1, ttl_ns))

    def blocker(self, topic: str) -> Slow | None:
        """Return a subscription to a topic that has no room, if there is one."""
        if not self.full:
            return None
        return next((slow for slow in self.full if topic in slow.topics), None)

    def retire(self, driver: Driver[N], done: Callable[[N], bool]) -> None:
        """Keep a driver until `done(node)` holds or this hub ends; leave its name then."""
        driver.retire(done, on_closed=lambda: self.leave(driver.node.name))
        self._retired = [each for each in (*self._retired, driver) if not each.closed]

    def close(self) -> None:
        """Close all that can be closed at once."""
        for retired in self._retired:
            retired.close()


class MemoryHub(Hub):
    """A bus in memory: its transport, its chain, and its recording."""

    transport: MemoryTransport

    def __init__(
        self,
        options: MemoryOptions,
        *,
        order: Order | None,
        trace: str | None,
        record: str | bool | None,
        run: str,
    ) -> None:
        guarantee = orders.of(order)
        self.options = options
        self.recording = None if record is None else _directory(record)
        self.sink, self.log = _open_sinks(trace, self.recording, order_name(order))
        self.transport = MemoryTransport(
            options, home=self._home, unreliable=guarantee.unreliable_frames()
        )
        super().__init__(
            order=order, clock=self.transport.clock, recorder=recorder_to(self.sink, run, order)
        )
        self.placement = Placement([f"node-{index}" for index in range(1, options.nodes + 1)])
        reliable = self.transport.capabilities.replay
        groups = guarantee.topic_groups(order)
        self.config = SequencerConfig(
            groups=groups,
            publisher_order=groups == 1,
            reliable=reliable,
            leave_out=reliable,
            carries=True,
            durable=False,
            cells=options.cells or msgspec.UNSET,
        )
        self.registry: Registry | None = None
        """The registry that has this hub by its name, if it has one."""
        self._names = Names((ENS, *self.placement.nodes))
        self._slots: dict[str, int] = {}
        """Topic to the number of recorded events, in an order without topic logs."""
        self._chain: list[Driver[Station]] = []
        self._topic_log: Driver[TopicLog] | None = None
        """Of all topics, for buses without order and in merged order."""
        self._membership = guarantee.membership(order)
        if guarantee.has_chain:
            self._chain = [self._drive(self._station(name)) for name in self.placement.nodes]
        elif guarantee.has_topic_log:
            log = TopicLog(name=ENS, config=self._log_config)
            self._topic_log = self._drive(self._recorded(log))

    def claim(self, wanted: str | None, kind: str) -> str:
        """Reserve the wanted name, or generate one."""
        return self.unique(kind) if wanted is None else self._names.claim(wanted)

    def unique(self, stem: str) -> str:
        """Return a name that is never used twice on this hub."""
        return self._names.unique(stem)

    async def admit(self, name: str) -> PublisherNode:
        """Make a client's node and introduce it to all others."""
        assert self._membership is not None
        node: PublisherNode = self._membership.admit(name, now_ns=self.clock.now_ns())
        return node

    def admitted(self, driver: Driver[Any]) -> None:
        """Keep the driver of such a node."""
        assert self._membership is not None
        self._membership.enter(driver)

    def depart(self, name: str) -> None:
        """Notify other clients that a client has left."""
        super().depart(name)
        if self._membership is not None:
            self._membership.leave(name)

    def keep(self, event: Event) -> None:
        """Write an event into the log of a recorded run, in publishing order."""
        if self.log is not None:
            slot = self._slots[event.topic] = self._slots.get(event.topic, 0) + 1
            self.log.accept(event, slot)

    def close(self) -> None:
        """Close the chain, and finish the trace and the event log."""
        super().close()
        for driver in self._chain:
            driver.close()
        if self._topic_log is not None:
            self._topic_log.close()
        if self.sink is not None:
            self.sink.close()
        if self.log is not None:
            self.log.close()

    def _home(self, topic: str) -> str:
        return self.placement.node(topic) if self._chain else ENS

    @property
    def _log_config(self) -> TopicLogConfig:
        keeps_log = self.transport.capabilities.replay
        return TopicLogConfig(keeps_log=keeps_log, retained_max=RETAINED_MAX, durable=False)

    def _recorded(self, log: TopicLog) -> TopicLog:
        """Let a topic log write its events into the event log of a recorded run."""
        if self.log is not None:
            log.on_accepted = self.log.accept
        return log

    def _station(self, name: str) -> Station:
        station = Station(
            name=name,
            placement=self.placement,
            config=self.config,
            topic_log_config=self._log_config,
            now_ns=self.clock.now_ns(),
        )
        self._recorded(station.log)
        return station

    def _drive(self, node: N) -> Driver[N]:
        return Driver(
            node,
            transport=self.transport,
            clock=self.clock,
            on_failure=self._chain_failed,
            recorder=self.recorder,
            size_of=self.size_of,
        )

    def _chain_failed(self, error: Exception) -> None:
        """Fail all nodes: no more events would get a place in the order."""
        for driver in self._drivers:
            driver.fail(error)


def recorder_to(sink: Sink | None, run: str, order: Order | None) -> Recorder | None:
    """Return a recorder that writes to a sink, if there is one."""
    if sink is None:
        return None
    return Recorder(run, order_name(order), sink=sink, application=True)


def dated_directory(parent: Path) -> Path:
    """Return a directory named by the local time that does not exist yet."""
    stem = time.strftime("%Y-%m-%dT%H-%M-%S")
    names = (stem, *(f"{stem}-{number}" for number in range(2, DATED_MAX)))
    for name in names:
        if not (parent / name).exists():
            return parent / name
    raise BadInput(f"{parent} has {DATED_MAX} directories for {stem}; name one with record=")


def _directory(record: str | Path | bool) -> Path:
    """Return the directory to record a run to; True is a new one in `runs`."""
    if record is True:
        return dated_directory(Path("runs"))
    if not isinstance(record, str | Path):
        raise BadInput(f"record must be a path or True, got {record!r}")
    directory = Path(record)
    if directory.is_dir() and any(directory.iterdir()):
        raise BadInput(
            f"{record} is not empty: record to a new directory, "
            f"such as {dated_directory(directory.parent)}, or with record=True to a new one in runs"
        )
    return directory


def _open_sinks(
    trace: str | None, record: Path | None, order: str
) -> "tuple[ParquetSink | None, LogSink | None]":
    """Open the sinks of the trace and, if the whole run is recorded, of its events."""
    if record is None:
        return (None if trace is None else ParquetSink(trace)), None
    from ensue.store import LogSink  # noqa: PLC0415 - an extra

    # The trace first: if the log can't be opened, closing the empty trace leaves nothing behind.
    sink = ParquetSink(record / "trace")
    try:
        return sink, LogSink(record / "log", order=order)
    except BaseException:
        sink.close()
        raise


Registry = WeakValueDictionary[str, "MemoryHub"]
"""Hubs by name. Only their buses refer to them: they are freed with their event loop."""

_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, Registry] = WeakKeyDictionary()


def shared_hubs() -> Registry:
    """Return the named hubs of the running event loop."""
    return _shared.setdefault(asyncio.get_running_loop(), WeakValueDictionary())


def _differences(hub: MemoryHub, options: MemoryOptions, order: Order | None) -> Iterator[str]:
    given, had = options.to_query(), hub.options.to_query()
    if given != had:
        url = f"memory://{options.hub}"
        yield (
            f"it was made as {url}{had}, not {url}{given}; connect with the same options, or to "
            "another name"
        )
    if order != hub.order:
        yield (
            f"the hub's order is {written(hub.order)}, not {written(order)}; connect with "
            f"order={written(hub.order)}, or to another name"
        )


def join_hub(
    options: MemoryOptions,
    *,
    order: Order | None,
    trace: str | None,
    record: str | bool | None = None,
    run: str,
) -> MemoryHub:
    """Return the hub that a URL names, made on first use."""
    hubs = shared_hubs()
    hub = hubs.get(options.hub) if options.hub else None
    if hub is None:
        hub = MemoryHub(options, order=order, trace=trace, record=record, run=run)
        if options.hub:
            hub.registry = hubs
            hubs[options.hub] = hub
    else:
        for difference in _differences(hub, options, order):
            raise ConfigurationError(f"memory://{options.hub} is in use: {difference}")
        if trace is not None or record is not None:
            raise ConfigurationError(
                f"memory://{options.hub} is in use: only the first to connect may request a trace "
                "or a record"
            )
    hub.users += 1
    return hub


def leave_hub(hub: Hub) -> None:
    """Leave a hub; the last user closes it."""
    hub.users -= 1
    if hub.users == 0:
        if isinstance(hub, MemoryHub) and hub.registry is not None:
            del hub.registry[hub.options.hub]
        hub.close()
