"""A server: one station of a chain on its journal, reached over TCP.

Several servers make a chain. Each connects to all others as a client does, under the name of its
station, and sends to them over these connections; what others send to it comes in by its own door.
"""

import asyncio
import contextlib
import logging
import resource
import ssl
from collections.abc import Callable
from functools import partial
from secrets import token_bytes

from ensue.errors import (
    AccessDenied,
    BadInput,
    HandshakeFailed,
    LogDamaged,
    LogLost,
    TransportError,
)
from ensue.journal import Journal
from ensue.protocols.core import Persist
from ensue.protocols.exchange import EXCHANGED, Exchange, exchange_of
from ensue.protocols.overlay.nodes import broker_of
from ensue.protocols.station import FRAMES, Station
from ensue.recorder import Recorder
from ensue.runtime.driver import Driver
from ensue.server.carrying import screen_enrolled, screen_exchanged
from ensue.server.commit import GroupCommit
from ensue.server.config import ServerConfig, Tls
from ensue.server.content import ContentBroker, screen_content
from ensue.server.lifecycle import StationServer, what_is_damaged
from ensue.server.listener import Listener, check_free
from ensue.server.relay import KEY, KEY_BYTES, Relay
from ensue.server.rules import Rules
from ensue.server.stations import OWNER, Peers
from ensue.transports.framed import FramedTransport
from ensue.transports.tcp import TcpCarrier
from ensue.transports.tcp_messages import Member, Welcome
from ensue.transports.tcp_options import TcpOptions, parse_address, write_address
from ensue.transports.tls import TlsOptions
from ensue.wire import Codec

__all__ = ["Server"]

NEIGHBOUR_RETRY_S = 0.5
FILES_BESIDES = 128
"""Files that a server has open besides connections: its journal, other servers, the admin port."""

_log = logging.getLogger("ensue")


class Server(StationServer):
    """One station of a chain, on an address of its own. `recorder` hears what its content broker does."""

    def __init__(self, config: ServerConfig, *, recorder: Recorder | None = None) -> None:
        super().__init__(config)
        self.listener: Listener | None = None
        self.content: ContentBroker | None = None
        self._recorder = recorder
        self._context: ssl.SSLContext | None = None
        self._carriers: list[TcpCarrier] = []
        """To the other servers of the chain."""
        self._peers: Peers | None = None

    @property
    def url(self) -> str:
        """Where clients reach it."""
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
        codec = Codec(FRAMES)
        listener = self.listener = Listener(
            host,
            port,
            rules=Rules(
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
        transport = FramedTransport(listener, codec, home=self.placement.node)
        transport.on_bad_bundle = listener.bad_bundle
        transport.admit = listener.admit
        await transport.enter(config.name)
        self._drive(transport, journal, commit, listener=listener)
        peers = self._peers = Peers(journal, commit.write, accept_loss=config.accept_loss)
        listener.on_station = peers.learn
        await self._exchange(transport, listener)
        self.content = ContentBroker(
            config,
            journal=journal,
            store=commit,
            transport=transport,
            clock=self._clock,
            on_failure=self._broke,
            is_connected=listener.routes.__contains__,
            recorder=self._recorder,
        )
        listener.screens[self.content.name] = partial(screen_content, listener.rules)
        await self.content.open()
        listener.on_entered = self._entered
        key = _seal_key(journal, commit) if config.access.users else b""
        for registry in await self._enrol(transport, journal, commit):
            node = registry.node
            listener.screens[node.name] = partial(
                screen_enrolled, listener.rules, node.name, across=node.across
            )
            if key:
                listener.relays[node.name] = Relay(listener.rules, node, key)
        await listener.start()
        await self._show()
        for member in config.members:
            if member.name != config.name:
                self._tasks.append(asyncio.create_task(self._meet(member)))

    async def _part(self, commit: GroupCommit) -> None:
        if self.listener is not None:
            await self.listener.close()
        for carrier in self._carriers:
            await carrier.close()
        for driver in (*self._exchanges, *self._registries, self._driver):
            if driver is not None:
                driver.close()
        if self.content is not None:
            self.content.close()
        await commit.close()

    def _damaged(self, error: LogDamaged) -> None:
        super()._damaged(error)
        if self.listener is not None:
            self.listener.damage = what_is_damaged(error)

    async def _exchange(self, transport: FramedTransport, listener: Listener) -> None:
        """Carry events for orders that ask for nothing but topics."""
        for order in EXCHANGED:
            node = Exchange(name=exchange_of(self.config.name, order))
            await transport.enter(node.name)
            driver = Driver(node, transport=transport, clock=self._clock, blames_sender=True)
            self._exchanges.append(driver)
            listener.screens[node.name] = partial(screen_exchanged, listener.rules, node.name)

        def left(name: str) -> None:
            self._tell_station(lambda station, now: station.lose(name, now_ns=now))
            for exchange in self._exchanges:
                if not exchange.closed:
                    exchange.command(lambda node, now: node.forget(name, now_ns=now))
            if self.content is not None:
                self.content.disconnected(name)

        listener.on_left = left

    def _entered(self, name: str) -> None:
        """Hear that a connection has a name from now on."""
        self._tell_station(lambda station, _now: station.regain(name))
        if self.content is not None:
            self.content.connected(name)

    def _tell_station(self, call: Callable[[Station, int], None]) -> None:
        station = self.station
        if station is not None and self._driver is not None and self._driver.takes_commands:
            self._driver.command(lambda _node, now: call(station, now))

    def _welcome(self) -> Welcome:
        config = self.config
        return Welcome(
            server=config.name,
            chain=config.members,
            closed=config.closed,
            config=config.sequencer,
            message_bytes_max=config.limits.message_bytes,
            log=self.lineage,
        )

    async def _meet(self, member: Member) -> None:
        """Connect to another station, as soon as it is there."""
        assert self.listener is not None
        assert self._peers is not None
        options = self._options(member)
        told = ""
        while True:
            carrier = TcpCarrier(options, client=self.config.name, role="station")
            carrier.log = self.lineage
            carrier.on_log = self._peers.learn
            try:
                welcome = await carrier.start_one()
                await carrier.open(self.config.name, _ignore)
                await carrier.open(broker_of(self.config.name), _ignore)
            except (TransportError, AccessDenied, LogLost, OSError) as error:
                await carrier.close()
                if self._is_own_log(error):
                    return
                if str(error) != told:
                    told = str(error)
                    serious = isinstance(error, AccessDenied | HandshakeFailed | LogLost)
                    level = logging.ERROR if serious else logging.INFO
                    _log.log(level, "%s is not there yet: %s", member.name, error)
                await asyncio.sleep(NEIGHBOUR_RETRY_S)
                continue
            if welcome.server != member.name:
                _log.error(
                    "at %s is %r, and not %r: the servers' configurations differ",
                    member.address,
                    welcome.server,
                    member.name,
                )
                await carrier.close()
                await asyncio.sleep(NEIGHBOUR_RETRY_S)
                continue
            self._carriers.append(carrier)
            carrier.on_reconnect = partial(self._met, member)
            carrier.on_log_lost = partial(self._lost_peer, member, carrier)
            self.listener.neighbours[member.name] = carrier
            self.listener.neighbours[broker_of(member.name)] = carrier
            _log.info("met %s at %s", member.name, member.address)
            self._met(member)
            return

    def _is_own_log(self, error: Exception) -> bool:
        """End if another server knows that this one had another log, or more of it; tell whether that is so."""
        if not isinstance(error, LogLost) or error.server != self.config.name:
            return False
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)
        return True

    def _lost_peer(self, member: Member, carrier: TcpCarrier, error: LogLost) -> None:
        """Wait for the log of another server that came back with another one, unless it is this one's that is wrong."""
        if self._is_own_log(error):
            return
        _log.error("log lost server=%s reason=%r: %s", error.server, error.reason, error)
        assert self.listener is not None
        for name in (member.name, broker_of(member.name)):
            if self.listener.neighbours.get(name) is carrier:
                del self.listener.neighbours[name]
        self._tasks.append(asyncio.create_task(self._meet_again(member, carrier)))

    async def _meet_again(self, member: Member, carrier: TcpCarrier) -> None:
        self._carriers.remove(carrier)
        await carrier.close()
        await self._meet(member)

    def _met(self, member: Member) -> None:
        """Let the content broker send another one what it may have missed."""
        if self.content is not None:
            self.content.connected(broker_of(member.name))

    def _options(self, member: Member) -> TcpOptions:
        """Say how to reach another server, and how to prove to it who this one is."""
        host, port = parse_address(member.address, what=f"the address of {member.name!r}")
        tls = self.config.tls
        secret = self.config.access.station_secret
        if tls is None:
            return TcpOptions(host=host, port=port, token=secret)
        files = TlsOptions(on=True, ca=tls.ca, cert=tls.cert, key=tls.key)
        return TcpOptions(host=host, port=port, tls=files, token=secret)


def _barrier(commit: GroupCommit, done: Callable[[], None]) -> None:
    """Call back when everything that was taken so far is safe, and its answers are on their way."""
    commit.write((), done)


def _seal_key(journal: Journal, commit: GroupCommit) -> bytes:
    """Return the key that relays seal with: the same after a restart, as what was sealed before is still about."""
    key = journal.records.get(KEY)
    if key is None:
        key = token_bytes(KEY_BYTES)
        commit.write([Persist(KEY, key)], lambda: None)
    return key


def _raise_file_limit(config: ServerConfig) -> None:
    """Let this process have as many files open as its limits allow connections, as far as the system does."""
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
            "open files are limited to %d: raise ulimit -n to %d, or lower limits.connections",
            soft,
            wanted,
        )


def _context(tls: Tls) -> ssl.SSLContext:
    """Return what TLS needs to take connections."""
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
    """Take nothing: stations answer by their own connections."""
