"""A server: one station of a chain on its journal, reached over TCP.

Several servers make a chain. Each connects to all others as a client does, under the name of its
station, and sends to them over these connections; what others send to it comes in by its own door.
"""

import asyncio
import logging
from functools import partial
from pathlib import Path

from ensue.clock import SystemClock
from ensue.errors import EnsueError, RemoteProtocolError, TransportError
from ensue.journal import Journal
from ensue.protocols.core import Frame, Node
from ensue.protocols.link import Linked
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.station import FRAMES, FROM_CLIENTS, UNNUMBERED, Station, StationConfig
from ensue.protocols.topic_log import EnsConfig
from ensue.runtime.driver import Driver
from ensue.server.commit import GroupCommit
from ensue.server.config import ServerConfig
from ensue.server.listener import Listener, Visitor
from ensue.transports.framed import FramedTransport
from ensue.transports.tcp import TcpCarrier
from ensue.transports.tcp_messages import Welcome
from ensue.transports.tcp_options import TcpOptions, parse_address
from ensue.wire import Codec

__all__ = ["Server"]

SECOND_NS = 1_000_000_000
RETAIN_EVERY_S = 5.0
NEIGHBOUR_RETRY_S = 0.5

_log = logging.getLogger("ensue")


class _ChainListener(Listener):
    """A listener that reaches the other stations of the chain by connections of its own."""

    neighbours: dict[str, TcpCarrier]
    chain: frozenset[str]

    def may_enter(self, visitor: Visitor, name: str) -> str | None:
        """Keep the names of stations for stations."""
        assert visitor.hello is not None
        if name in self.chain and visitor.hello.role != "station":
            return f"{name!r} is a station of the chain"
        return super().may_enter(visitor, name)

    def admit(self, source: str, frames: list[Frame]) -> None:
        """Let clients send what clients send."""
        super().admit(source, frames)
        if source in self.chain:
            return
        for frame in frames:
            if type(frame) not in FROM_CLIENTS:
                raise RemoteProtocolError(f"{type(frame).__name__} is not for clients to send")

    def send(self, peer: str, data: bytes) -> None:
        neighbour = self.neighbours.get(peer)
        if neighbour is None:
            super().send(peer, data)
        else:
            neighbour.send(peer, data)


class Server:
    """Made from a configuration; `start` it, `wait` until it ends, `stop` it."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        members = config.members
        self.placement = Placement(
            [member.name for member in members],
            topics={member.name: member.topics for member in members},
            closed=config.closed,
        )
        self.station: Station | None = None
        self.listener: _ChainListener | None = None
        self.journal: Journal | None = None
        self._commit: GroupCommit | None = None
        self._driver: Driver[Node] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ended: asyncio.Future[None] | None = None

    @property
    def url(self) -> str:
        """Where clients reach it."""
        assert self.listener is not None
        host = self.listener.host
        return f"ensue://{f'[{host}]' if ':' in host else host}:{self.listener.port}"

    async def start(self) -> None:
        """Recover, listen, and join the chain."""
        config = self.config
        self._ended = asyncio.get_running_loop().create_future()
        self.journal = Journal(Path(config.data), segment_bytes=config.retention.segment_bytes)
        try:
            await self._open(self.journal)
        except BaseException:
            self.journal.close()
            raise

    async def _open(self, journal: Journal) -> None:
        config = self.config
        host, port = parse_address(config.listen, what="the address to listen on")
        clock = SystemClock()
        listener = self.listener = _ChainListener(
            host, port, limits=config.limits, welcome=self._welcome
        )
        listener.neighbours = {}
        listener.chain = frozenset(self.placement.nodes)
        transport = FramedTransport(listener, Codec(FRAMES), home=self.placement.node)
        transport.on_bad_bundle = listener.bad_bundle
        transport.admit = listener.admit
        self._commit = GroupCommit(journal, sync_s=config.sync_s, on_failure=self._fail)
        await transport.enter(config.name)
        self._driver = Driver(
            self._build(journal, clock.now_ns()),
            transport=transport,
            clock=clock,
            store=self._commit,
        )
        await listener.start()
        for member in config.members:
            if member.name != config.name:
                self._tasks.append(asyncio.create_task(self._meet(member.name, member.address)))
        self._tasks.append(asyncio.create_task(self._retain(journal)))

    async def wait(self) -> None:
        """Return when the server is stopped; raise what ended it."""
        assert self._ended is not None
        await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """Write what there is, tell the clients, and end."""
        for task in self._tasks:
            task.cancel()
        if self.listener is not None:
            await self.listener.close()
            for neighbour in self.listener.neighbours.values():
                await neighbour.close()
        if self._driver is not None:
            self._driver.close()
        if self._commit is not None:
            await self._commit.close()
        if self.journal is not None:
            self.journal.close()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _build(self, journal: Journal, now_ns: int) -> Node:
        config = self.config

        def station(own: "dict[str, bytes]") -> Station:
            self.station = Station(
                name=config.name,
                placement=self.placement,
                config=config.sequencer,
                station_config=StationConfig(expire_ns=int(config.expire_s * SECOND_NS)),
                ens_config=EnsConfig(gives_places=True),
                records=own,
                kept=journal,
                now_ns=now_ns,
            )
            return self.station

        if len(self.placement.nodes) == 1:
            return station(dict(journal.records))
        stage = self.placement.nodes.index(config.name)
        near = self.placement.nodes[max(0, stage - 1) : stage + 2]
        return Linked(
            lambda own: station(dict(own)),
            peers=[name for name in near if name != config.name],
            codec=Codec(FRAMES),
            unnumbered=UNNUMBERED,
            records=journal.records,
            now_ns=now_ns,
        )

    def _welcome(self) -> Welcome:
        config = self.config
        return Welcome(
            server=config.name,
            chain=config.members,
            closed=config.closed,
            config=config.sequencer,
            message_bytes_max=config.limits.message_bytes,
        )

    async def _meet(self, name: str, address: str) -> None:
        """Connect to another station, as soon as it is there."""
        assert self.listener is not None
        host, port = parse_address(address, what=f"the address of {name!r}")
        while True:
            carrier = TcpCarrier(
                TcpOptions(host=host, port=port), client=self.config.name, role="station"
            )
            try:
                await carrier.start_one()
            except (TransportError, OSError) as error:
                _log.info("%s is not there yet: %s", name, error)
                await asyncio.sleep(NEIGHBOUR_RETRY_S)
                continue
            await carrier.open(self.config.name, _ignore)
            self.listener.neighbours[name] = carrier
            return

    async def _retain(self, journal: Journal) -> None:
        """Drop what is too old or too much, now and then."""
        retention = self.config.retention
        if retention.bytes is None and retention.age_s is None:
            return
        while True:
            await asyncio.sleep(RETAIN_EVERY_S)
            now_s = SystemClock().now_ns() / SECOND_NS
            dropped = journal.retain(bytes_max=retention.bytes, age_s=retention.age_s, now_s=now_s)
            if dropped and self._driver is not None:
                self._driver.command(partial(self._trim, dropped))

    def _trim(self, firsts: dict[str, int], _node: Node, _now_ns: int) -> None:
        assert self.station is not None
        for topic, first in firsts.items():
            _log.info("events of %r below %d are no longer kept", topic, first)
            self.station.trim(topic, first)

    def _fail(self, error: BaseException) -> None:
        if self._ended is not None and not self._ended.done():
            failure = error if isinstance(error, EnsueError | OSError) else OSError(str(error))
            self._ended.set_exception(failure)


def _ignore(_data: bytes) -> None:
    """Take nothing: stations answer by their own connections."""
