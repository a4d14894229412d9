"""A station on somebody's broker: no port of its own, peers through inboxes of the same broker.

It keeps its journal as any server does, so that the log, and with it total order without a loss, does
not depend on what the broker keeps. What comes is held to the same shapes and limits (`ensue.server.gate`).
"""

import logging
from collections.abc import Sequence
from functools import partial

from ensue.errors import BadInput, LogDamaged, LogLost
from ensue.journal import Journal
from ensue.protocols.core import Frame
from ensue.protocols.guide import GUIDE, Described, Guide
from ensue.protocols.lineage import DAMAGED, Identified, Lineage, LogRefused, contradiction
from ensue.protocols.station import FRAMES
from ensue.runtime.driver import Driver
from ensue.runtime.log_watch import LogWatch
from ensue.server.carrying import screen_enrolled
from ensue.server.claiming import check_unclaimed
from ensue.server.commit import GroupCommit
from ensue.server.config import ServerConfig
from ensue.server.gate import Gate
from ensue.server.lifecycle import StationServer, what_is_damaged
from ensue.server.rules import Rules
from ensue.server.stations import Peers, lost_server
from ensue.transports.carrier import Carrier
from ensue.transports.framed import FramedPort, FramedTransport
from ensue.transports.schemes import BROKERED, BrokerOptions, parse_url
from ensue.wire import Codec

__all__ = ["BrokeredServer"]

_log = logging.getLogger("ensue")


class BrokeredServer(StationServer):
    """One station of a chain on the broker that `url` names."""

    def __init__(self, config: ServerConfig, url: str) -> None:
        options = parse_url(url, expected=BROKERED)
        if not isinstance(options, BrokerOptions):
            raise BadInput(
                f"{url.partition('?')[0]} is no broker: name one, or listen on an address"
            )
        _refuse_ignored(config)
        super().__init__(config)
        self.options = options
        self.transport: FramedTransport | None = None
        self._carrier: Carrier | None = None
        self._guide: Driver[Guide] | None = None
        self._log_watch: LogWatch | None = None

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return self.options.url

    async def _open(self, journal: Journal, commit: GroupCommit) -> None:
        config, placement = self.config, self.placement
        carrier = self._carrier = self.options.make()
        await carrier.start()
        transport = FramedTransport(carrier, Codec(FRAMES), home=placement.node)
        self.transport = transport
        await check_unclaimed(transport, name=config.name, nodes=placement.nodes, url=self.url)
        await transport.enter(config.name)
        bytes_max = carrier.capabilities.message_bytes_max
        gate = Gate(transport, nodes=placement.nodes)
        rules = Rules(
            config, placement=placement, may_put=self._may_put, owners={}, write=commit.write
        )
        gate.screens[config.name] = rules.screen
        transport.admit = gate.admit
        transport.on_bad_bundle = gate.bad_bundle
        self._drive(transport, journal, commit, gate=gate, message_bytes_max=bytes_max)
        await self._show()
        if len(placement.nodes) > 1:
            await self._watch_logs(
                transport, gate, Peers(journal, commit.write, accept_loss=config.accept_loss)
            )
        for registry in await self._enrol(transport, journal, commit):
            node = registry.node
            gate.screens[node.name] = partial(screen_enrolled, rules, node.name, across=node.across)
        if config.name == placement.nodes[0]:
            await transport.enter(GUIDE)
            described = Described(
                number=0,
                nodes=tuple((member.name, member.topics) for member in config.members),
                closed=config.closed,
                config=config.sequencer,
            )
            self._guide = Driver(Guide(described), transport=transport, clock=self._clock)
        _log.info("%s answers on %s", config.name, self.url)

    async def _watch_logs(self, transport: FramedTransport, gate: Gate, peers: Peers) -> None:
        """Take nothing from a server of the chain whose log is not the one it had, and tell it."""
        name = self.config.name
        port = FramedPort(transport, name, _hear_nothing)

        def learn(server: str, told: Lineage, _number: int) -> None:
            peers.learn(server, told)
            gate.refused.discard(server)

        def refuse(error: LogLost) -> None:
            server, known = error.server, peers.logs.get(error.server)
            if server not in gate.refused:
                _log.error("log lost server=%s reason=%r: %s", server, error.reason, error)
            if error.reason != DAMAGED and known is not None:  # One that is damaged ends by itself.
                gate.refused.add(server)
                port.send(server, LogRefused(known=known.last))

        def is_refused(_source: str, frame: LogRefused) -> None:
            reason = "" if self.lineage is None else contradiction(frame.known, self.lineage)
            if reason and self._ended is not None and not self._ended.done():
                self._ended.set_exception(lost_server(name, reason))

        gate.on_log_refused = is_refused
        others = [each for each in self.placement.nodes if each != name]
        self._log_watch = LogWatch(transport, others, on_log=learn, on_lost=refuse, goes_on=True)
        await self._log_watch.start()

    def _damaged(self, error: LogDamaged) -> None:
        super()._damaged(error)
        station, transport = self.station, self.transport
        if station is not None and station.lineage is not None and transport is not None:
            port = FramedPort(transport, self.config.name, _hear_nothing)
            told = Identified(number=0, log=station.lineage, damage=what_is_damaged(error))
            for watcher in station.watchers:
                port.send(watcher, told)

    async def _part(self, commit: GroupCommit) -> None:
        # First all is made safe, so that the answers go out, while the broker still takes them.
        await commit.close()
        if self.transport is not None:
            self.transport.flush()
        if self._log_watch is not None:
            self._log_watch.stop()
        for driver in (self._driver, self._guide, *self._registries):
            if driver is not None:
                driver.close()
        if self._carrier is not None:
            await self._carrier.close()


def _hear_nothing(frames: Sequence[Frame], source: str) -> None:
    raise AssertionError(f"{len(frames)} frames of {source!r} for nobody")


def _refuse_ignored(config: ServerConfig) -> None:
    """Refuse what would be asked for in vain: whoever configured it would believe that it holds."""
    access = config.access
    asked = {
        "users": access.users,
        "tls": config.tls,
        "stations": access.station_secret or access.station_certificates,
    }
    for table, given in asked.items():
        if given:
            raise BadInput(
                f"{table}: on a broker it has no effect, because who may do what there is the broker's to "
                f"say: take {table} out of the file, and set it up at the broker"
            )
