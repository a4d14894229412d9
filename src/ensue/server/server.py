"""A server: one station of a chain on its journal, reached over TCP.

Several servers form a chain. Each connects to all others as a client does, with the name of its
station. It sends over the connections that it opened, and receives over those of the others.
"""

import asyncio
import contextlib
import logging
import resource
import ssl
from collections.abc import Callable
from functools import partial

import msgspec

from ensue import orders
from ensue.core import platform
from ensue.core.errors import (
    AccessDenied,
    BadInput,
    ConfigurationError,
    HandshakeFailed,
    LogDamaged,
    LogLost,
    TransportError,
)
from ensue.core.wire import Codec
from ensue.journal import Journal
from ensue.protocols.content.topology import broker_of
from ensue.protocols.interface import Persist
from ensue.protocols.recorder import Recorder
from ensue.protocols.shared.link import CONNECTED
from ensue.protocols.topic_log.fanout import Fanout, fanout_name
from ensue.protocols.topic_log.frames import topic_of
from ensue.protocols.total.discovery import settings_of
from ensue.protocols.total.station import Station
from ensue.runtime.chain_agreement import check_of_welcome
from ensue.runtime.driver import Driver
from ensue.server.authorization import Authorization
from ensue.server.config import ServerConfig, Tls, connected
from ensue.server.content_broker import ContentBroker, screen_content
from ensue.server.group_commit import GroupCommit
from ensue.server.listener import Listener, check_free
from ensue.server.relay_authorization import screen_fanout, screen_registry
from ensue.server.relay_claims import KEY, KEY_BYTES, ClaimChecker
from ensue.server.station_builder import OWNER, PeerLogs
from ensue.server.station_server import StationServer, damage_text
from ensue.transports.framed import FramedTransport
from ensue.transports.reconnect import BACKOFF_S_MAX
from ensue.transports.tcp.carrier import TcpCarrier
from ensue.transports.tcp.messages import Member, Welcome
from ensue.transports.tcp.options import TcpOptions, parse_address, write_address
from ensue.transports.tls import TlsOptions

__all__ = ["Server"]

NEIGHBOR_RETRY_S = 0.5
RETURN_S = BACKOFF_S_MAX
"""How long publishers have to reconnect to a restarted server before they count as lost."""
MARKS_S = 1.0
"""Interval at which high-water marks are persisted."""
FILES_BESIDES = 128
"""Open files besides connections: the journal, other servers, the admin port."""

_log = logging.getLogger("ensue")


class Server(StationServer):
    """One station of a chain, on its own address.

    `recorder` records the actions of its content broker.
    """

    def __init__(self, config: ServerConfig, *, recorder: Recorder | None = None) -> None:
        sequencer = connected(config.sequencer)
        super().__init__(msgspec.structs.replace(config, sequencer=sequencer))
        self.listener: Listener | None = None
        self.content: ContentBroker | None = None
        self._recorder = recorder
        self._context: ssl.SSLContext | None = None
        self._carriers: list[TcpCarrier] = []
        """Connections to the other servers of the chain."""
        self._peers: PeerLogs | None = None

    @property
    def url(self) -> str:
        """The URL for clients."""
        assert self.listener is not None
        address = write_address(self.listener.host, self.listener.port)
        return f"ensue://{address}{'?tls=1' if self.config.tls else ''}"

    async def _prepare(self) -> None:
        config = self.config
        self._context = None if config.tls is None else _context(config.tls)
        _raise_file_limit(config)
        await check_free(config.listen)
        await super()._prepare()

    async def _open(self, journal: Journal, commit: GroupCommit) -> None:
        config = self.config
        host, port = parse_address(config.listen, what="the address to listen on")
        owners = {
            key.removeprefix(OWNER): value.decode()
            for key, value in journal.records.items()
            if key.startswith(OWNER)
        }
        codec = Codec(orders.wire_frames())
        listener = self.listener = Listener(
            host,
            port,
            authorization=Authorization(
                config,
                placement=self.placement,
                may_put=self._may_put,
                owners=owners,
                write=commit.write,
            ),
            codec=codec,
            welcome=self._welcome,
            barrier=partial(_barrier, commit),
            written=lambda: journal.end_bytes,
            context=self._context,
        )
        transport = FramedTransport(listener, codec, home=self.placement.node, topic_of=topic_of)
        transport.on_bad_bundle = listener.bad_bundle
        transport.admit = listener.admit
        await transport.enter(config.name)
        self._drive(transport, journal, commit, link=CONNECTED, listener=listener)
        peers = self._peers = PeerLogs(journal, commit.write, accept_loss=config.accept_loss)
        listener.on_station = peers.learn
        await self._open_fanouts(transport, listener)
        self.content = ContentBroker(
            config,
            journal=journal,
            store=commit,
            transport=transport,
            clock=self._clock,
            on_failure=self._station_failed,
            is_connected=listener.routes.__contains__,
            recorder=self._recorder,
        )
        listener.screens[self.content.name] = partial(screen_content, listener.authorization)
        await self.content.open()
        assert self.status is not None
        self.status.mailboxes = self.content.progress
        listener.on_entered = self._entered
        key = _seal_key(journal, commit) if config.access.users else b""
        for registry in await self._open_registries(transport, journal, commit):
            node = registry.node
            listener.screens[node.name] = partial(
                screen_registry, listener.authorization, node.name, across=node.across
            )
            if key:
                listener.claim_checkers[node.name] = ClaimChecker(
                    listener.authorization, node, key, journal.records
                )
        if key:
            self._tasks.append(asyncio.create_task(self._persist_marks(commit)))
        await listener.start()
        if self._restarted and len(self.placement.nodes) > 1:
            self._tasks.append(asyncio.create_task(self._lose_absent(listener)))
        await self._open_admin()
        for member in config.members:
            if member.name != config.name:
                self._tasks.append(asyncio.create_task(self._connect_peer(member)))

    async def _disconnect(self, commit: GroupCommit) -> None:
        if self.listener is not None:
            await self.listener.close()
        self._write_marks(commit)
        for carrier in self._carriers:
            await carrier.close()
        for driver in (*self._fanouts, *self._registries, self._driver):
            if driver is not None:
                driver.close()
        if self.content is not None:
            self.content.close()
        await commit.close()

    async def _persist_marks(self, commit: GroupCommit) -> None:
        """Persist high-water marks at intervals, for the next start."""
        while True:
            await asyncio.sleep(MARKS_S)
            self._write_marks(commit)

    def _write_marks(self, commit: GroupCommit) -> None:
        claim_checkers = self.listener.claim_checkers.values() if self.listener is not None else ()
        for checker in claim_checkers:
            if writes := checker.take_writes():
                commit.write(writes, lambda: None)

    def _damaged(self, error: LogDamaged) -> None:
        super()._damaged(error)
        if self.listener is not None:
            self.listener.damage = damage_text(error)

    async def _open_fanouts(self, transport: FramedTransport, listener: Listener) -> None:
        """Open the fan-outs, for orders that need no sequencer."""
        for order in (each.name for each in orders.every() if each.uses_topics_alone):
            node = Fanout(name=fanout_name(self.config.name, order))
            await transport.enter(node.name)
            driver = Driver(node, transport=transport, clock=self._clock, blames_sender=True)
            self._fanouts.append(driver)
            listener.screens[node.name] = partial(screen_fanout, listener.authorization, node.name)

        def left(name: str) -> None:
            self._lose(name)
            for fanout in self._fanouts:
                if not fanout.closed:
                    fanout.command(lambda node, now: node.forget(name, now_ns=now))
            if self.content is not None:
                self.content.disconnected(name)

        listener.on_left = left

    def _lose(self, name: str) -> None:
        self._call_station(lambda station, now: station.lose(name, now_ns=now))

    @property
    def _restarted(self) -> bool:
        """Whether the log has an earlier incarnation."""
        return self.lineage is not None and len(self.lineage.incarnations) > 1

    async def _lose_absent(self, listener: Listener) -> None:
        """Report publishers that do not return to a restarted server.

        Those that it had stamped events for, and those whose requests waited for it.
        """
        await asyncio.sleep(RETURN_S)
        assert self.station is not None
        for name in self.station.publishers():
            if name not in listener.routes:
                self._lose(name)

    def _entered(self, name: str) -> None:
        """Handle that a connection now owns a name."""
        self._call_station(lambda station, _now: station.regain(name))
        if self.content is not None:
            self.content.connected(name)

    def _call_station(self, call: Callable[[Station, int], None]) -> None:
        station = self.station
        if station is not None and self._driver is not None and self._driver.takes_commands:
            self._driver.command(lambda _node, now: call(station, now))

    def _welcome(self) -> Welcome:
        config = self.config
        return Welcome(
            server=config.name,
            chain=config.members,
            closed=config.closed,
            config=msgspec.Raw(msgspec.msgpack.encode(config.sequencer)),
            message_bytes_max=config.limits.message_bytes,
            log=self.lineage,
            moves=self.placement.parts,
        )

    async def _connect_peer(self, member: Member) -> None:
        """Connect to another station, and retry until it is up.

        A server that starts with another configuration than one that runs stops.
        """
        assert self.listener is not None
        assert self._peers is not None
        options, config = self._options(member), self.config
        settings = settings_of(config.sequencer, closed=config.closed)
        agrees = check_of_welcome(config.name, settings)
        logged, is_first = "", True
        while True:
            carrier = TcpCarrier(options, client=config.name, role="station")
            carrier.disagreement = agrees
            carrier.log = self.lineage
            carrier.on_log = self._peers.learn
            try:
                welcome = await carrier.start_one()
                await carrier.open(config.name, _ignore)
                await carrier.open(broker_of(config.name), _ignore)
            except (TransportError, AccessDenied, LogLost, OSError) as error:
                await carrier.close()
                if self._is_own_log(error) or (is_first and self._stops_differing(carrier)):
                    return
                is_first = False
                if str(error) != logged:
                    logged = str(error)
                    serious = isinstance(error, AccessDenied | HandshakeFailed | LogLost)
                    level = logging.ERROR if serious else logging.INFO
                    _log.log(level, "server not connected name=%s: %s", member.name, error)
                await asyncio.sleep(NEIGHBOR_RETRY_S)
                continue
            except BaseException:
                await carrier.close()  # This server stops: the carrier would reconnect forever.
                raise
            if welcome.server != member.name:
                _log.error(
                    "wrong server address=%s name=%r expected=%r: the configurations differ",
                    member.address,
                    welcome.server,
                    member.name,
                )
                await carrier.close()
                await asyncio.sleep(NEIGHBOR_RETRY_S)
                continue
            self._carriers.append(carrier)
            carrier.on_reconnect = partial(self._peer_connected, member)
            carrier.on_log_lost = partial(self._peer_log_lost, member, carrier)
            self._learn_moves(welcome)
            self.listener.neighbors[member.name] = carrier
            self.listener.neighbors[broker_of(member.name)] = carrier
            _log.info("server connected name=%s address=%s", member.name, member.address)
            self._peer_connected(member)
            return

    def _learn_moves(self, welcome: Welcome) -> None:
        """Compare the moves that another server knows with those of this server's records."""
        if welcome.moves:
            self._call_station(lambda station, _now: station.node.moves.adopt(welcome.moves))

    def _stops_differing(self, carrier: TcpCarrier) -> bool:
        """Stop if another server runs with another configuration; return whether it does."""
        if carrier.differs:
            self._end(ConfigurationError(carrier.differs))
        return bool(carrier.differs)

    def _is_own_log(self, error: Exception) -> bool:
        """Stop if another server knows another or a longer log of this server.

        Return whether it does.
        """
        if not isinstance(error, LogLost) or error.server != self.config.name:
            return False
        self._end(error)
        return True

    def _peer_log_lost(self, member: Member, carrier: TcpCarrier, error: LogLost) -> None:
        """Reconnect until a peer has its log again; stop if this server's log is wrong."""
        if self._is_own_log(error):
            return
        _log.error("log lost server=%s reason=%r: %s", error.server, error.reason, error)
        assert self.listener is not None
        for name in (member.name, broker_of(member.name)):
            if self.listener.neighbors.get(name) is carrier:
                del self.listener.neighbors[name]
        self._tasks.append(asyncio.create_task(self._reconnect_peer(member, carrier)))

    async def _reconnect_peer(self, member: Member, carrier: TcpCarrier) -> None:
        self._carriers.remove(carrier)
        await carrier.close()
        await self._connect_peer(member)

    def _peer_connected(self, member: Member) -> None:
        """Tell a server which moves are known, and retransmit what it missed."""
        self._call_station(lambda station, _now: station.regain(member.name))
        links = self._links
        if links is not None and links.is_linked(member.name):
            self._call_station(lambda _station, now: links.repeat(now_ns=now, peer=member.name))
        if self.content is not None:
            self.content.connected(broker_of(member.name))

    def _options(self, member: Member) -> TcpOptions:
        """Return the address of another server and the credentials for it."""
        host, port = parse_address(member.address, what=f"the address of {member.name!r}")
        tls = self.config.tls
        secret = self.config.access.station_secret
        if tls is None:
            return TcpOptions(host=host, port=port, token=secret)
        files = TlsOptions(on=True, ca=tls.ca, cert=tls.cert, key=tls.key)
        return TcpOptions(host=host, port=port, tls=files, token=secret)


def _barrier(commit: GroupCommit, done: Callable[[], None]) -> None:
    """Call back when all writes so far are persisted and their answers are sent."""
    commit.write((), done)


def _seal_key(journal: Journal, commit: GroupCommit) -> bytes:
    """Return the sealing key, which stays the same across restarts."""
    key = journal.records.get(KEY)
    if key is None:
        key = platform.current().token_bytes(KEY_BYTES)
        commit.write([Persist(KEY, key)], lambda: None)
    return key


def _raise_file_limit(config: ServerConfig) -> None:
    """Raise the limit of open files to what the connection limits need, if permitted."""
    limits = config.limits
    wanted = limits.connections + limits.unauthenticated_connections + FILES_BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft < wanted:
        _log.warning(
            "open files limited limit=%d wanted=%d: raise ulimit -n, or lower limits.connections",
            soft,
            wanted,
        )


def _context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context of the listening socket."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert, tls.key)
        if tls.clients != "none":
            context.load_verify_locations(cafile=tls.ca)
            required = tls.clients == "required"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (tls.cert, tls.key, tls.ca)))
        raise BadInput(f"TLS can't be set up from {files}: {error}") from None
    return context


def _ignore(_data: bytes) -> None:
    """Ignore the data: stations answer over their own connections."""
