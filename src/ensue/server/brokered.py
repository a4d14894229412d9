"""A station on somebody's broker: no port of its own, peers through inboxes of the same broker.

It keeps its journal as any server does, so that the log, and with it total order without a loss, does
not depend on what the broker keeps. What comes is held to the same shapes and limits (`ensue.server.gate`).
"""

import logging
from functools import partial

from ensue.errors import BadInput
from ensue.journal import Journal
from ensue.protocols.guide import GUIDE, Described, Guide
from ensue.protocols.station import FRAMES
from ensue.runtime.driver import Driver
from ensue.server.carrying import screen_enrolled
from ensue.server.claiming import check_unclaimed
from ensue.server.commit import GroupCommit
from ensue.server.config import ServerConfig
from ensue.server.gate import Gate
from ensue.server.lifecycle import StationServer
from ensue.server.rules import Rules
from ensue.transports.carrier import Carrier
from ensue.transports.framed import FramedTransport
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

    async def _part(self, commit: GroupCommit) -> None:
        # First all is made safe, so that the answers go out, while the broker still takes them.
        await commit.close()
        if self.transport is not None:
            self.transport.flush()
        for driver in (self._driver, self._guide, *self._registries):
            if driver is not None:
                driver.close()
        if self._carrier is not None:
            await self._carrier.close()


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
