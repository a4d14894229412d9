"""A whole ordered bus in one process: a transport, the chain's nodes, and who is too slow.

Buses share a hub by its name, per event loop. The first to connect decides what it is; the last to
leave takes it down. Everybody on a hub publishes with the same order, because an event without a
stamp would take a slot that the sequencer is about to give away.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import msgspec

from ensue.clock import Clock
from ensue.errors import BadInput, ConfigurationError, LocalProtocolError
from ensue.event import Event
from ensue.order import Causal, Deadline, Order, Total, written
from ensue.protocols import ens
from ensue.protocols.core import Frame, Node
from ensue.protocols.gossip.broker import GossipBroker
from ensue.protocols.hypercube.node import HypercubeNode
from ensue.protocols.lineage import Lineage
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.node import SequencerNode
from ensue.protocols.sequencer.placement import Placement
from ensue.recorder import Recorder
from ensue.runtime.cube import cube_roster
from ensue.runtime.driver import Driver
from ensue.runtime.names import Names
from ensue.runtime.roster import Roster
from ensue.runtime.sink import ParquetSink
from ensue.runtime.timely import broker_roster
from ensue.transports import MemoryOptions, MemoryTransport, Transport
from ensue.transports.memory import ENS
from ensue.wire import Codec

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
    "order_name",
    "recorder_to",
]

N = TypeVar("N", bound=Node)

PAYLOAD_BYTES_MAX = 16 * 1024 * 1024
CLOSE_TIMEOUT_S = 5.0
"""How long leaving waits for what is not safe yet, unless `connect` was told otherwise."""
DATED_MAX = 100
"""Runs that are recorded to directories of one second, at the most."""


class Slow:
    """A subscription as publishers see it: its topics, and whether it has room.

    It runs out of room at `pending_max` unhandled events and has room again at half of that, so that
    publishers and reader take turns in long runs instead of waking each other for every event.
    """

    __slots__ = ("name", "room", "topics")

    def __init__(self, name: str) -> None:
        self.name = name
        self.topics: dict[str, None] = {}
        self.room = asyncio.Event()
        """Set while there is room."""
        self.room.set()


class Lingering(Protocol):
    """A subscription that is closed and still takes acknowledgements."""

    async def settle(self) -> None:
        """Wait until what was acknowledged is safe, not for ever."""

    def rest(self) -> None:
        """Take no acknowledgement any more, and leave the name."""


class Hub:
    """What buses share: a transport, who is on it, and what it is recorded to."""

    transport: Transport
    placement: Placement
    config: SequencerConfig
    payload_bytes_max = PAYLOAD_BYTES_MAX
    """The largest payload that can be carried, with its key and headers."""
    close_timeout_s = CLOSE_TIMEOUT_S
    """How long leaving waits for what is not safe yet."""
    holds_publishers = True
    """Whether publishers wait for subscriptions that can't keep up; else those pause."""
    server = ""
    """The server that it was reached at first, if servers are what it is on."""
    recording: Path | None = None
    """The directory that the run is recorded to."""
    answers = False
    """Whether somebody says that an event is out, where order needs no answer."""
    exchanges: tuple[str, ...] = ()
    """Where clients in merged order agree on its terms, the nearest first."""
    is_unattended = False
    """Whether events go over the topics of a broker, with nobody there to agree with."""

    def __init__(self, *, order: Order | None, clock: Clock, recorder: Recorder | None) -> None:
        self.order = order
        self.clock = clock
        self.recorder = recorder
        self.full: dict[Slow, None] = {}
        """Subscriptions with no room, in the order they ran out of it."""
        self.shares: dict[str, Any] = {}
        """By client: what its subscriptions have shares in, where there is a cube."""
        self.observers: dict[str, Callable[[Mapping[str, int]], object]] = {}
        """By client: told the stamps of what it is handed before its turn."""
        self.lingering: dict[str, Lingering] = {}
        """By name: who has to rest before the name can be entered again."""
        self.users = 0
        self.loop = asyncio.get_running_loop()
        self._codec = Codec((ens.Put,))
        self._drivers: WeakSet[Driver[Any]] = WeakSet()
        """Of buses and subscriptions."""
        self._retired: list[Driver[Any]] = []
        """Of subscriptions that were closed and whose leave is still on its way."""

    @property
    def has_cube(self) -> bool:
        """Whether buses are nodes of a cube, or brokers, which keep the order among themselves."""
        return isinstance(self.order, Causal | Deadline)

    async def admit(self, name: str) -> HypercubeNode | GossipBroker:
        """Make a node of the cube, or a broker, for a client."""
        raise NotImplementedError

    def admitted(self, driver: Driver[Any]) -> None:
        """Take note of who drives a node of the cube, or a broker."""

    def size_of(self, frame: Frame) -> int:
        """Return how many bytes a frame would take on a wire."""
        return len(self._codec.encode(frame))

    def claim(self, wanted: str | None, kind: str) -> str:
        """Reserve the name that is wanted, or make one up."""
        raise NotImplementedError

    def unique(self, stem: str) -> str:
        """Return a name that nobody has, had or will have."""
        raise NotImplementedError

    async def enter(self, name: str) -> None:
        """Have frames for a name come here."""

    def leave(self, name: str) -> None:
        """Have no more frames for a name."""

    def keep(self, event: Event) -> None:
        """Keep an event that no notification service gives a place, if the run is recorded."""

    def depart(self, name: str) -> None:
        """Tell others that a client is gone."""
        self.shares.pop(name, None)

    def expel(self, reason: str) -> None:
        """End everybody here: they can't stay."""
        for driver in list(self._drivers):
            driver.lose(reason)

    def part(self, driver: Driver[Any]) -> None:
        """Close the driver of a client that has said goodbye."""
        driver.close()

    def watch(self, driver: Driver[Any]) -> None:
        """Have a driver hear of what concerns everybody: a connection that is there again, or a failure."""
        self._drivers.add(driver)

    async def finish(self, by_s: float) -> None:
        """See to what takes time when the last user has left, up to about a time of the event loop."""

    @property
    def connections_tell_logs(self) -> bool:
        """Whether each connection begins with the log of its server; else stations are asked."""
        return True

    @property
    def logs(self) -> Mapping[str, Lineage]:
        """Which logs stations have, as far as they have said so."""
        return {}

    def check_loop(self, what: str) -> None:
        """Refuse to be used from another event loop: nothing here is thread-safe."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is not self.loop:
            raise LocalProtocolError(
                f"{what} belongs to another event loop: use it in the one it was entered in"
            )

    def subscriber_config(self, order: Total, *, durable: bool = False) -> SequencerConfig:
        """Return the chain's configuration with what a subscription chose for itself."""
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
        """Keep a driver going until `done(node)` holds, or until this hub ends; leave its name then."""
        driver.retire(done, on_closed=lambda: self.leave(driver.node.name))
        self._retired = [each for each in (*self._retired, driver) if not each.closed]

    def close(self) -> None:
        """Take down what can be taken down at once."""
        for retired in self._retired:
            retired.close()


class MemoryHub(Hub):
    """One transport in memory, its chain, what it is recorded to, and who can't keep up."""

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
        self.options = options
        self.recording = None if record is None else _directory(record)
        self.sink, self.log = _witnesses(trace, self.recording)
        self.transport = MemoryTransport(
            options, on_accepted=None if self.log is None else self.log.accept
        )
        super().__init__(
            order=order, clock=self.transport.clock, recorder=recorder_to(self.sink, run, order)
        )
        self.placement = Placement([f"node-{index}" for index in range(1, options.nodes + 1)])
        reliable = self.transport.capabilities.replay
        self.config = SequencerConfig(reliable=reliable, leave_out=reliable, durable=False)
        self.registry: Registry | None = None
        """Where this hub is found by its name, if it has one."""
        self._names = Names((ENS, *self.placement.nodes))
        self._slots: dict[str, int] = {}
        """By topic: how many events were kept that nobody else counts."""
        self._chain: list[Driver[SequencerNode]] = []
        self._roster: Roster[Any] | None = None
        if isinstance(order, Causal):
            self._roster = cube_roster(order)
        elif isinstance(order, Deadline):
            self._roster = broker_roster(order)
        if isinstance(order, Total):
            self._chain = [self._drive(name) for name in self.placement.nodes]

    def claim(self, wanted: str | None, kind: str) -> str:
        """Reserve the name that is wanted, or make one up."""
        return self.unique(kind) if wanted is None else self._names.claim(wanted)

    def unique(self, stem: str) -> str:
        """Return a name that nobody has, had or will have on this hub."""
        return self._names.unique(stem)

    async def admit(self, name: str) -> HypercubeNode | GossipBroker:
        """Make a node of the cube, or a broker, for a client, known to all others."""
        assert self._roster is not None
        node: HypercubeNode | GossipBroker = self._roster.admit(name, now_ns=self.clock.now_ns())
        return node

    def admitted(self, driver: Driver[Any]) -> None:
        """Take note of who drives a node of the cube, or a broker."""
        assert self._roster is not None
        self._roster.enter(driver)

    def depart(self, name: str) -> None:
        """Tell others that a client is gone."""
        super().depart(name)
        if self._roster is not None:
            self._roster.leave(name)

    def keep(self, event: Event) -> None:
        """Write an event into the log of a recorded run, in the order in which events are published."""
        if self.log is not None:
            slot = self._slots[event.topic] = self._slots.get(event.topic, 0) + 1
            self.log.accept(event, slot)

    def close(self) -> None:
        """Take the chain down, and finish the trace and the event log."""
        super().close()
        for driver in self._chain:
            driver.close()
        if self.sink is not None:
            self.sink.close()
        if self.log is not None:
            self.log.close()

    def _drive(self, name: str) -> Driver[SequencerNode]:
        node = SequencerNode(
            name=name, placement=self.placement, config=self.config, now_ns=self.clock.now_ns()
        )
        return Driver(
            node,
            transport=self.transport,
            clock=self.clock,
            on_failure=self._chain_failed,
            recorder=self.recorder,
            size_of=self.size_of,
        )

    def _chain_failed(self, error: Exception) -> None:
        """End everybody: nothing more would get a place in the order."""
        for driver in list(self._drivers):
            driver.fail(error)


def order_name(order: Order | None) -> str:
    """Return what an order is called in traces and among peers."""
    if isinstance(order, Causal) and not order.across_topics:
        return "causal-topic"
    return "none" if order is None else order.name


def recorder_to(sink: ParquetSink | None, run: str, order: Order | None) -> Recorder | None:
    """Return a recorder that writes to a sink, if there is one."""
    if sink is None:
        return None
    return Recorder(run, order_name(order), sink=sink)


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
            f"{record} is not empty, and a run needs a directory of its own: record to another, such "
            f"as {dated_directory(directory.parent)}, or with record=True to a new one in runs"
        )
    return directory


def _witnesses(
    trace: str | None, record: Path | None
) -> "tuple[ParquetSink | None, LogSink | None]":
    """Open where the trace goes, and the events if all of the run is to be recorded."""
    if record is None:
        return (None if trace is None else ParquetSink(trace)), None
    from ensue.store import LogSink  # noqa: PLC0415 - an extra

    # The trace first: if the log can't be opened, closing the empty trace leaves nothing behind.
    sink = ParquetSink(record / "trace")
    try:
        return sink, LogSink(record / "log")
    except BaseException:
        sink.close()
        raise


Registry = WeakValueDictionary[str, "MemoryHub"]
"""Hubs by name. Their buses keep them alive, so that an event loop that ended takes them along."""

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
                f"memory://{options.hub} is in use: only the first to connect may ask for a trace "
                "or a record"
            )
    hub.users += 1
    return hub


def leave_hub(hub: Hub) -> None:
    """Give a hub up; the last to do so takes it down."""
    hub.users -= 1
    if hub.users == 0:
        if isinstance(hub, MemoryHub) and hub.registry is not None:
            del hub.registry[hub.options.hub]
        hub.close()
