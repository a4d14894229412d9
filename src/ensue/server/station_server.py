"""The base of all servers: one station on its journal, from `start` to `stop`.

A server that can't start, or whose journal fails, releases all its resources: the journal's lock,
threads, connections. It also stops if the station raises without a message. An exception caused by
a message closes the sender's connection or, behind a broker, is logged.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from ensue import orders
from ensue.core import platform
from ensue.core.errors import InternalError, LogDamaged
from ensue.core.event import Event
from ensue.core.lineage import Lineage
from ensue.core.wire import FRAME_BYTES_MAX
from ensue.journal import Journal
from ensue.journal.files import JournalFailed
from ensue.protocols.interface import Node
from ensue.protocols.membership.registry import Registry, registry_of
from ensue.protocols.shared.link import LinkConfig, Linked
from ensue.protocols.topic_log.fanout import Fanout
from ensue.protocols.total.station import Station
from ensue.runtime.driver import Driver
from ensue.server.admin import Admin
from ensue.server.broker_admission import BrokerAdmission
from ensue.server.config import ServerConfig
from ensue.server.group_commit import GroupCommit
from ensue.server.listener import Listener, check_free
from ensue.server.relayed_orders import RelayedOrders
from ensue.server.station_builder import (
    SECOND_NS,
    begin_incarnation,
    build_station,
    claim,
    placement_of,
    retain,
)
from ensue.server.status import Status
from ensue.transports.framed import FramedTransport

__all__ = ["StationServer", "damage_text"]

_log = logging.getLogger("ensue")


def damage_text(error: LogDamaged) -> str:
    """Return the damage for clients, without the server's directories."""
    return f"{Path(error.path).name}{str(error).removeprefix(error.path)}"


class StationServer(ABC):
    """A server with the calls `start`, `wait` until it has stopped, and `stop`."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.placement = placement_of(config)
        self.station: Station | None = None
        self.journal: Journal | None = None
        self.lineage: Lineage | None = None
        """The lineage of its log, as sent to clients."""
        self.status: Status | None = None
        self.admin: Admin | None = None
        self._clock = platform.current().clock
        self._commit: GroupCommit | None = None
        self._driver: Driver[Node] | None = None
        self._links: Linked[Station] | None = None
        """To the neighbors in the chain, if there are any."""
        self._registries: list[Driver[Registry]] = []
        self._fanouts: list[Driver[Fanout]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._ended: asyncio.Future[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for clients."""

    def _may_put(self, event: Event, source: str) -> bool:
        return self.station is not None and self.station.may_put(event, source)

    async def _prepare(self) -> None:
        """Check that the server can start, before it creates a journal."""
        if self.config.admin:
            await check_free(self.config.admin, what="the admin port ")

    @abstractmethod
    async def _open(self, journal: Journal, commit: GroupCommit) -> None:
        """Make the station reachable; raise if that fails."""

    @abstractmethod
    async def _disconnect(self, commit: GroupCommit) -> None:
        """Disconnect all clients, and close `commit`."""

    async def start(self) -> None:
        """Recover from the journal, and start answering."""
        self._ended = asyncio.get_running_loop().create_future()
        await self._prepare()
        config = self.config
        self.journal = self._open_journal()
        try:
            groups = config.sequencer.groups
            claim(self.journal, config.name, self.placement, groups=groups)
            commit = GroupCommit(
                self.journal, sync_s=config.sync_s, on_failure=self._journal_failed
            )
            self._commit = commit
            await self._open(self.journal, commit)
        except BaseException:
            if not self._ended.done():
                self._ended.set_result(None)  # The caller of `start` gets the exception.
            await self.stop()
            raise

    def _open_journal(self) -> Journal:
        """Open the journal; recover what is left of it if losses are accepted."""
        config = self.config
        if not config.accept_loss:
            return Journal(Path(config.data), segment_bytes=config.retention.piece_bytes)
        several = len(config.members) > 1
        try:
            journal = Journal(
                Path(config.data),
                segment_bytes=config.retention.piece_bytes,
                accept_loss="events" if several else "all",
            )
        except LogDamaged as error:
            if not several:
                raise
            raise LogDamaged(
                f"{error}. That loses state which the servers of a chain share, and --accept-loss "
                "can't repair it: start all servers from backups taken at the same time, or with "
                "new data directories",
                path=error.path,
            ) from error
        for each in journal.lost:
            _log.warning("loss accepted log=%s: %s", journal.identity, each)
        _log.warning(
            "log replaced log=%s: subscribers of the old log get an error", journal.identity
        )
        return journal

    def _drive(
        self,
        transport: FramedTransport,
        journal: Journal,
        commit: GroupCommit,
        *,
        link: LinkConfig,
        listener: Listener | None = None,
        broker_admission: BrokerAdmission | None = None,
        message_bytes_max: int = FRAME_BYTES_MAX,
        probe_ns: int = 0,
    ) -> None:
        """Start the station; the transport has entered its name."""
        now_ns = self._clock.now_ns()
        built = build_station(
            self.config,
            self.placement,
            journal,
            now_ns,
            link=link,
            message_bytes_max=message_bytes_max,
            probe_ns=probe_ns,
        )
        self.station, self._links = built.station, built.links
        self.lineage = built.station.lineage = begin_incarnation(journal, built.station.log.placed)
        journal.on_damage = self._damaged
        driver = Driver(
            built.node,
            transport=transport,
            clock=self._clock,
            store=commit,
            on_failure=self._station_failed,
            blames_sender=True,
        )
        self._driver = driver
        self.status = Status(
            self.config,
            station=built.station,
            journal=journal,
            commit=commit,
            transport=transport,
            relayed_orders=RelayedOrders(self._registries, self._fanouts),
            listener=listener,
            broker_admission=broker_admission,
        )
        retaining = retain(
            journal, self.config.retention, driver, built.station, commit, self._journal_failed
        )
        self._tasks.append(asyncio.create_task(retaining))

    async def _open_registries(
        self, transport: FramedTransport, journal: Journal, commit: GroupCommit
    ) -> Sequence[Driver[Registry]]:
        """Open the registries of relayed orders, on the first station of the chain."""
        if self.config.name == self.placement.nodes[0]:
            for order, across in orders.registries().items():
                name = registry_of(self.config.name, order)
                await transport.enter(name)
                registry = Registry(
                    name=name,
                    order=order,
                    across=across,
                    expire_ns=int(self.config.expire_s * SECOND_NS),
                    records=journal.records,
                    now_ns=self._clock.now_ns(),
                )
                driver = Driver(
                    registry,
                    transport=transport,
                    clock=self._clock,
                    store=commit,
                    on_failure=self._station_failed,
                    blames_sender=True,
                )
                self._registries.append(driver)
        return self._registries

    async def _open_admin(self) -> None:
        """Open the admin port, if one is configured."""
        if self.config.admin:
            assert self.status is not None
            self.admin = Admin(self.config.admin, self.status)
            await self.admin.start()

    async def wait(self) -> None:
        """Wait until the server has stopped; raise the error that stopped it."""
        assert self._ended is not None
        await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """Sync the journal, disconnect all clients, and stop; idempotent.

        Cancelling the caller does not cancel the stop: a second call waits for it.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        if self.status is not None:
            self.status.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._commit is not None:
            await self._disconnect(self._commit)
        if self.journal is not None:
            self.journal.close()
        if self.admin is not None:
            await self.admin.close()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _end(self, error: Exception) -> None:
        """Stop the server with an error, unless it stops already."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    def _station_failed(self, error: Exception) -> None:
        """Stop the server after an exception of its station."""
        failure = InternalError(
            f"{self.config.name} failed, so the server has stopped: {error!r}. No confirmed "
            "event is lost; start it again, and please report the traceback in the log"
        )
        failure.__cause__ = error
        self._end(failure)

    def _damaged(self, error: LogDamaged) -> None:
        """Stop the server: clients would request the damaged events endlessly."""
        _log.critical("journal damaged, server stops: %s", error)
        failure = LogDamaged(
            f"{error}, so the server has stopped. Start it from a backup, or with "
            "--accept-loss (docs/how-to/operations.md, Backup and recovery)",
            path=error.path,
        )
        failure.__cause__ = error
        self._end(failure)

    def _journal_failed(self, error: BaseException) -> None:
        failure = JournalFailed(
            f"the journal in {self.config.data} can't be written any more, so the server has "
            f"stopped: {error}. No confirmed event is lost; free or repair the disk, and start "
            "it again"
        )
        failure.__cause__ = error
        self._end(failure)
