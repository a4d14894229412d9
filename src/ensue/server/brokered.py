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
from ensue.protocols.lineage import Identified
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
from ensue.server.stations import Peers
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
            peers = Peers(journal, commit.write, accept_loss=config.accept_loss)
            others = [name for name in placement.nodes if name != config.name]
            self._log_watch = LogWatch(
                transport,
                others,
                on_log=lambda server, log, _number: peers.learn(server, log),
                on_lost=_say_lost,
            )
            await self._log_watch.start()
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


def _say_lost(error: LogLost) -> None:
    _log.error("log lost server=%s reason=%r: %s", error.server, error.reason, error)


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
