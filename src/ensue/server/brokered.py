"""A station on somebody's broker: no port of its own, peers through inboxes of the same broker.

It keeps its journal as any server does, so that the log, and with it total order without a loss, does
not depend on what the broker keeps.
"""

import asyncio
import logging
from pathlib import Path

from ensue.clock import SystemClock
from ensue.errors import BadInput
from ensue.journal import Journal
from ensue.protocols.core import Node
from ensue.protocols.guide import GUIDE, Described, Guide
from ensue.protocols.station import FRAMES
from ensue.runtime.driver import Driver
from ensue.server.admin import Admin
from ensue.server.claiming import check_unclaimed
from ensue.server.commit import GroupCommit
from ensue.server.config import ServerConfig
from ensue.server.state import View
from ensue.server.stations import build_station, claim, placement_of, retain
from ensue.transports.framed import FramedTransport
from ensue.transports.schemes import BrokerOptions, parse_url
from ensue.wire import Codec

__all__ = ["BrokeredServer"]

_log = logging.getLogger("ensue")


class BrokeredServer:
    """One station of a chain on the broker that `url` names."""

    def __init__(self, config: ServerConfig, url: str) -> None:
        options = parse_url(url)
        if not isinstance(options, BrokerOptions):
            raise BadInput(f"{url} is no broker: name one, or listen on an address")
        self.config = config
        self.options = options
        self.placement = placement_of(config)
        self.journal: Journal | None = None
        self.transport: FramedTransport | None = None
        self.view: View | None = None
        self.admin: Admin | None = None
        self._commit: GroupCommit | None = None
        self._drivers: list[Driver[Node]] = []
        self._retaining: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None] | None = None

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return self.options.url

    async def start(self) -> None:
        """Recover, connect to the broker, and begin to answer."""
        self._ended = asyncio.get_running_loop().create_future()
        config = self.config
        journal = self.journal = Journal(
            Path(config.data), segment_bytes=config.retention.piece_bytes
        )
        try:
            claim(journal, config.name)
            carrier = self.options.make()
            await carrier.start()
        except BaseException:
            journal.close()
            raise
        transport = self.transport = FramedTransport(
            carrier, Codec(FRAMES), home=self.placement.node
        )
        commit = self._commit = GroupCommit(journal, sync_s=config.sync_s, on_failure=self._fail)
        clock = SystemClock()
        await check_unclaimed(transport, name=config.name, nodes=self.placement.nodes, url=self.url)
        await transport.enter(config.name)
        station = build_station(
            config,
            self.placement,
            journal,
            clock.now_ns(),
            message_bytes_max=carrier.capabilities.message_bytes_max,
        )
        driver = Driver(station.node, transport=transport, clock=clock, store=commit)
        self._drivers.append(driver)
        retaining = retain(journal, config.retention, driver, station.station, self._fail)
        self._retaining = asyncio.create_task(retaining)
        self.view = View(
            config, station=station.station, journal=journal, commit=commit, transport=transport
        )
        if config.admin:
            self.admin = Admin(config.admin, self.view)
            try:
                await self.admin.start()
            except BaseException:
                await self.stop()
                raise
        if config.name == self.placement.nodes[0]:
            await transport.enter(GUIDE)
            described = Described(
                number=0,
                nodes=tuple((member.name, member.topics) for member in config.members),
                closed=config.closed,
                config=config.sequencer,
            )
            self._drivers.append(Driver(Guide(described), transport=transport, clock=clock))
        _log.info("%s answers on %s", config.name, self.url)

    async def wait(self) -> None:
        """Return when it is stopped; raise what ended it."""
        assert self._ended is not None
        await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """Write what there is, disconnect, and end."""
        if self.view is not None:
            self.view.stopping = True
        if self._retaining is not None:
            self._retaining.cancel()
            await asyncio.gather(self._retaining, return_exceptions=True)
        if self._commit is not None:
            await self._commit.close()
        if self.transport is not None:
            self.transport.flush()
            for driver in self._drivers:
                driver.close()
            await self.transport.carrier.close()
        if self.journal is not None:
            self.journal.close()
        if self.admin is not None:
            await self.admin.close()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)
