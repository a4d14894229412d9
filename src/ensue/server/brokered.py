"""A station on a broker: it has no port, and reaches its peers through the broker.

It has a journal as any server does, so total order without loss does not depend on the broker's
storage. The same frame types and limits apply (`ensue.server.broker_admission`).
"""

import logging
from collections.abc import Sequence
from functools import partial

import msgspec

from ensue import orders
from ensue.core.errors import BadInput, ConfigurationError, LogDamaged, LogLost
from ensue.core.lineage import DAMAGED, Lineage, contradiction
from ensue.core.wire import Codec
from ensue.journal import Journal
from ensue.protocols.interface import Frame
from ensue.protocols.shared.link import LOSSY
from ensue.protocols.topic_log.frames import topic_of
from ensue.protocols.topic_log.log_identity import ChainSettings, Identified, LogRefused
from ensue.protocols.topic_log.tail_probes import PROBE_NS
from ensue.protocols.total.discovery import DISCOVERY_NAME, Described, DiscoveryNode, settings_of
from ensue.runtime.chain_agreement import disagreement
from ensue.runtime.driver import Driver
from ensue.runtime.log_monitor import LogMonitor
from ensue.server.authorization import Authorization
from ensue.server.broker_admission import BrokerAdmission
from ensue.server.config import ServerConfig, brokered
from ensue.server.group_commit import GroupCommit
from ensue.server.name_claim import check_unclaimed
from ensue.server.relay_authorization import screen_registry
from ensue.server.station_builder import PeerLogs, log_lost
from ensue.server.station_server import StationServer, damage_text
from ensue.transports.carrier import Carrier
from ensue.transports.framed import FramedPort, FramedTransport
from ensue.transports.schemes import BROKERED, BrokerOptions, parse_url

__all__ = ["BrokeredServer"]

_log = logging.getLogger("ensue")


class BrokeredServer(StationServer):
    """One station of a chain on the broker that `url` names."""

    def __init__(self, config: ServerConfig, url: str) -> None:
        options = parse_url(url, expected=BROKERED)
        if not isinstance(options, BrokerOptions):
            raise BadInput(f"{url.partition('?')[0]} is not a broker: name one, or use --listen")
        _check_ignored(config)
        sequencer = brokered(config.sequencer)
        super().__init__(msgspec.structs.replace(config, sequencer=sequencer))
        self.options = options
        self.transport: FramedTransport | None = None
        self._carrier: Carrier | None = None
        self._discovery: Driver[DiscoveryNode] | None = None
        self._log_monitor: LogMonitor | None = None
        self._greeted: dict[str, Lineage] = {}
        """By server: the incarnation of its log that has been sent the known moves."""

    @property
    def url(self) -> str:
        """The broker's URL, for clients."""
        return self.options.url

    async def _open(self, journal: Journal, commit: GroupCommit) -> None:
        config, placement = self.config, self.placement
        carrier = self._carrier = self.options.make()
        await carrier.start()
        codec = Codec(orders.wire_frames())
        transport = FramedTransport(carrier, codec, home=placement.node, topic_of=topic_of)
        self.transport = transport
        await check_unclaimed(transport, name=config.name, nodes=placement.nodes, url=self.url)
        await transport.enter(config.name)
        bytes_max = carrier.capabilities.message_bytes_max
        broker_admission = BrokerAdmission(transport, nodes=placement.nodes)
        authorization = Authorization(
            config, placement=placement, may_put=self._may_put, owners={}, write=commit.write
        )
        broker_admission.screens[config.name] = authorization.screen
        transport.admit = broker_admission.admit
        transport.on_bad_bundle = broker_admission.bad_bundle
        self._drive(
            transport,
            journal,
            commit,
            link=LOSSY,
            broker_admission=broker_admission,
            message_bytes_max=bytes_max,
            probe_ns=PROBE_NS,
        )
        await self._open_admin()
        if len(placement.nodes) > 1:
            await self._watch_logs(
                transport,
                broker_admission,
                PeerLogs(journal, commit.write, accept_loss=config.accept_loss),
            )
        for registry in await self._open_registries(transport, journal, commit):
            node = registry.node
            broker_admission.screens[node.name] = partial(
                screen_registry, authorization, node.name, across=node.across
            )
        if config.name == placement.nodes[0]:
            await transport.enter(DISCOVERY_NAME)
            described = Described(
                number=0,
                nodes=tuple((member.name, member.topics) for member in config.members),
                closed=config.closed,
                config=config.sequencer,
            )
            self._discovery = Driver(
                DiscoveryNode(described, placement), transport=transport, clock=self._clock
            )
        _log.info("station ready name=%s url=%s", config.name, self.url)

    async def _watch_logs(
        self, transport: FramedTransport, broker_admission: BrokerAdmission, peers: PeerLogs
    ) -> None:
        """Reject frames of a server whose log was replaced, and notify it.

        Reject those of a server that is configured otherwise, too.
        """
        name = self.config.name
        port = FramedPort(transport, name, _receive_nothing)

        def learn(server: str, lineage: Lineage, _number: int) -> None:
            begun = server not in self._greeted or self._greeted[server] != lineage.last
            peers.learn(server, lineage)
            if begun:
                self._greeted[server] = lineage.last
                self._greet(server)
            broker_admission.refused.discard(server)

        def refuse(error: LogLost) -> None:
            server, known = error.server, peers.logs.get(error.server)
            if server not in broker_admission.refused:
                _log.error("log lost server=%s reason=%r: %s", server, error.reason, error)
            if error.reason != DAMAGED and known is not None:  # A damaged server stops anyway.
                broker_admission.refused.add(server)
                port.send(server, LogRefused(known=known.last))

        def is_refused(_source: str, frame: LogRefused) -> None:
            reason = "" if self.lineage is None else contradiction(frame.known, self.lineage)
            if reason:
                self._end(log_lost(name, reason))

        broker_admission.on_log_refused = is_refused
        others = [each for each in self.placement.nodes if each != name]
        self._log_monitor = LogMonitor(
            transport,
            others,
            on_log=learn,
            on_lost=refuse,
            on_settings=partial(self._compare_settings, broker_admission.differing),
            continues=True,
        )
        await self._log_monitor.start()

    def _greet(self, server: str) -> None:
        """Tell a server that has started which moves are known."""
        station = self.station
        if station is not None and self._driver is not None and self._driver.takes_commands:
            self._driver.command(lambda _node, _now: station.regain(server))

    def _compare_settings(
        self, differing: set[str], server: str, settings: ChainSettings, question: int
    ) -> None:
        """Note whether a server is configured otherwise; stop if this one has just started."""
        own = settings_of(self.config.sequencer, closed=self.config.closed)
        why = disagreement(self.config.name, own, server, settings)
        if not why:
            differing.discard(server)
            return
        if question == 1:
            self._end(ConfigurationError(why))
        elif server not in differing:
            _log.error("server not connected name=%s: %s", server, why)
        differing.add(server)

    def _damaged(self, error: LogDamaged) -> None:
        super()._damaged(error)
        station, transport = self.station, self.transport
        if station is not None and station.lineage is not None and transport is not None:
            port = FramedPort(transport, self.config.name, _receive_nothing)
            damage = Identified(number=0, log=station.lineage, damage=damage_text(error))
            for watcher in station.watchers:
                port.send(watcher, damage)

    async def _disconnect(self, commit: GroupCommit) -> None:
        # Sync first, so that the answers are sent while the broker is still connected.
        await commit.close()
        if self.transport is not None:
            self.transport.flush()
        if self._log_monitor is not None:
            self._log_monitor.stop()
        for driver in (self._driver, self._discovery, *self._registries):
            if driver is not None:
                driver.close()
        if self._carrier is not None:
            await self._carrier.close()


def _receive_nothing(frames: Sequence[Frame], source: str) -> None:
    raise AssertionError(f"{len(frames)} frames of {source!r} at a port that only sends")


def _check_ignored(config: ServerConfig) -> None:
    """Raise for security options that have no effect on a broker."""
    access = config.access
    options = {
        "users": access.users,
        "tls": config.tls,
        "stations": access.station_secret or access.station_certificates,
    }
    for table, given in options.items():
        if given:
            raise BadInput(
                f"{table} has no effect on a broker, which authorizes clients itself: remove it "
                "from the file, and configure the broker"
            )
