"""What every server is, whatever reaches it: one station on its journal, from `start` to `stop`.

A server that can't start, or whose journal can't be written any more, lets go of all it had taken: the
journal's lock, its threads, its connections. It ends, too, if the station raises on its own account; what
a message makes it raise costs the sender the connection, or is logged where a broker stands between.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from ensue.clock import system_clock
from ensue.errors import InternalError, LogDamaged
from ensue.event import Event
from ensue.journal import Journal
from ensue.journal.files import JournalFailed
from ensue.protocols.core import Node
from ensue.protocols.exchange import Exchange
from ensue.protocols.hypercube.enrolment import ORDERS, Registry, registry_of
from ensue.protocols.lineage import Lineage
from ensue.protocols.station import Station
from ensue.runtime.driver import Driver
from ensue.server.admin import Admin
from ensue.server.commit import GroupCommit
from ensue.server.config import ServerConfig
from ensue.server.gate import Gate
from ensue.server.listener import Listener, check_free
from ensue.server.rooms import Rooms
from ensue.server.state import View
from ensue.server.stations import (
    SECOND_NS,
    begin_incarnation,
    build_station,
    claim,
    placement_of,
    retain,
)
from ensue.transports.framed import FramedTransport
from ensue.wire import FRAME_BYTES_MAX

__all__ = ["StationServer", "what_is_damaged"]

_log = logging.getLogger("ensue")


def what_is_damaged(error: LogDamaged) -> str:
    """Return what clients are told of damage: where files are is no business of theirs."""
    return f"{Path(error.path).name}{str(error).removeprefix(error.path)}"


class StationServer(ABC):
    """Made from a configuration; `start` it, `wait` until it ends, `stop` it."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.placement = placement_of(config)
        self.station: Station | None = None
        self.journal: Journal | None = None
        self.lineage: Lineage | None = None
        """Which log it has, as clients are told."""
        self.view: View | None = None
        self.admin: Admin | None = None
        self._clock = system_clock()
        self._commit: GroupCommit | None = None
        self._driver: Driver[Node] | None = None
        self._registries: list[Driver[Registry]] = []
        self._exchanges: list[Driver[Exchange]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._ended: asyncio.Future[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients reach it."""

    def _may_put(self, event: Event, source: str) -> bool:
        return self.station is not None and self.station.may_put(event, source)

    async def _prepare(self) -> None:
        """Look whether it can start at all: what can't must not leave a journal behind."""
        if self.config.admin:
            await check_free(self.config.admin, what="the admin port ")

    @abstractmethod
    async def _open(self, journal: Journal, commit: GroupCommit) -> None:
        """Have the station be reached; raise if it can't be."""

    @abstractmethod
    async def _part(self, commit: GroupCommit) -> None:
        """Let go of everybody who reaches the station, and close `commit` when its turn has come."""

    async def start(self) -> None:
        """Recover, and begin to answer."""
        self._ended = asyncio.get_running_loop().create_future()
        await self._prepare()
        config = self.config
        self.journal = self._open_journal()
        try:
            claim(self.journal, config.name, self.placement)
            commit = GroupCommit(self.journal, sync_s=config.sync_s, on_failure=self._fail)
            self._commit = commit
            await self._open(self.journal, commit)
        except BaseException:
            if not self._ended.done():
                self._ended.set_result(None)  # Who starts it is told, and nobody waits for its end.
            await self.stop()
            raise

    def _open_journal(self) -> Journal:
        """Open the journal, with what is left of it if losses are accepted."""
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
                f"{error}. What the servers of a chain know of each other is lost with it, and can't be accepted: "
                "start all of them from backups of one moment, or with new data directories",
                path=error.path,
            ) from error
        for each in journal.lost:
            _log.warning("loss accepted log=%s: %s", journal.identity, each)
        _log.warning(
            "log replaced log=%s: subscribers that knew the old one are told", journal.identity
        )
        return journal

    def _drive(
        self,
        transport: FramedTransport,
        journal: Journal,
        commit: GroupCommit,
        *,
        listener: Listener | None = None,
        gate: Gate | None = None,
        message_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        """Bring the station to life under its name, which has been entered."""
        now_ns = self._clock.now_ns()
        built = build_station(
            self.config, self.placement, journal, now_ns, message_bytes_max=message_bytes_max
        )
        self.station = built.station
        self.lineage = built.station.lineage = begin_incarnation(journal, built.station.log.placed)
        journal.on_damage = self._damaged
        driver = Driver(
            built.node,
            transport=transport,
            clock=self._clock,
            store=commit,
            on_failure=self._broke,
            blames_sender=True,
        )
        self._driver = driver
        self.view = View(
            self.config,
            station=built.station,
            journal=journal,
            commit=commit,
            transport=transport,
            rooms=Rooms(self._registries, self._exchanges),
            listener=listener,
            gate=gate,
        )
        retaining = retain(
            journal, self.config.retention, driver, built.station, commit, self._fail
        )
        self._tasks.append(asyncio.create_task(retaining))

    async def _enrol(
        self, transport: FramedTransport, journal: Journal, commit: GroupCommit
    ) -> Sequence[Driver[Registry]]:
        """Give numbers to those who order events among themselves, if this is the first station."""
        if self.config.name == self.placement.nodes[0]:
            for order in ORDERS:
                name = registry_of(self.config.name, order)
                await transport.enter(name)
                registry = Registry(
                    name=name,
                    order=order,
                    expire_ns=int(self.config.expire_s * SECOND_NS),
                    records=journal.records,
                    now_ns=self._clock.now_ns(),
                )
                driver = Driver(
                    registry,
                    transport=transport,
                    clock=self._clock,
                    store=commit,
                    on_failure=self._broke,
                    blames_sender=True,
                )
                self._registries.append(driver)
        return self._registries

    async def _show(self) -> None:
        """Answer whoever looks at the server from outside, if that is wanted."""
        if self.config.admin:
            assert self.view is not None
            self.admin = Admin(self.config.admin, self.view)
            await self.admin.start()

    async def wait(self) -> None:
        """Return when the server is stopped; raise what ended it."""
        assert self._ended is not None
        await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """Write what there is, let everybody go, and end; once is enough.

        Whoever is cancelled meanwhile does not end that: it goes on, and asking again waits for it.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        if self.view is not None:
            self.view.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._commit is not None:
            await self._part(self._commit)
        if self.journal is not None:
            self.journal.close()
        if self.admin is not None:
            await self.admin.close()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _broke(self, error: Exception) -> None:
        """End with the station: nobody else would notice that it does nothing any more."""
        if self._ended is not None and not self._ended.done():
            failure = InternalError(
                f"{self.config.name} can't go on, so the server has stopped: {error!r}. What it said was "
                "safe is, and it can be started again; the log says where this was raised: please report it"
            )
            failure.__cause__ = error
            self._ended.set_exception(failure)

    def _damaged(self, error: LogDamaged) -> None:
        """End: whoever asks for the event would ask again, for ever."""
        _log.critical("journal damaged, the server stops: %s", error)
        if self._ended is not None and not self._ended.done():
            failure = LogDamaged(
                f"{error}, so the server has stopped. Start it from a backup, or with --accept-loss "
                "(docs/operations.md, Backup and recovery)",
                path=error.path,
            )
            failure.__cause__ = error
            self._ended.set_exception(failure)

    def _fail(self, error: BaseException) -> None:
        if self._ended is not None and not self._ended.done():
            failure = JournalFailed(
                f"the journal in {self.config.data} can't be written any more, so the server has "
                f"stopped: {error}. What it said was safe is; free or mend the disk, and start it again"
            )
            failure.__cause__ = error
            self._ended.set_exception(failure)
