"""The station of a server, restored from its journal, and its retention."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from ensue.core import platform
from ensue.core.errors import BadInput, ConfigurationError, LogLost
from ensue.core.lineage import Lineage, contradiction, lost_text
from ensue.core.wire import FRAME_BYTES_MAX, Codec, Records
from ensue.journal import Journal, Outdated
from ensue.protocols.interface import Node, Persist
from ensue.protocols.membership.registry import CUBE
from ensue.protocols.shared.link import LinkConfig, Linked
from ensue.protocols.shared.state_store import StateStoreConfig
from ensue.protocols.topic_log.log import TopicLogConfig
from ensue.protocols.total.placement import Placement, losses
from ensue.protocols.total.records import PLACEMENT, topics_of
from ensue.protocols.total.station import FRAMES, UNNUMBERED, Station, StationConfig
from ensue.protocols.total.topic_moves import GROWTH, MoveConfig
from ensue.runtime.driver import Driver
from ensue.server.config import Retention, ServerConfig
from ensue.server.group_commit import GroupCommit
from ensue.server.merge_log import MergeLog
from ensue.server.move_log import MoveLog

__all__ = [
    "CONTENT_RECORDS",
    "OWNER",
    "SECOND_NS",
    "BuiltStation",
    "PeerLogs",
    "begin_incarnation",
    "build_station",
    "claim",
    "drop",
    "log_lost",
    "placement_of",
    "retain",
]

SECOND_NS = 1_000_000_000
OWNER = "owner/"
"""Prefix of the journal's records of the owners of names."""
CONTENT_RECORDS = "content/"
"""Prefix of the journal's records of the content broker."""
SERVER = "server"
"""The journal's record of the name of its server."""
PLACEMENT_RECORD = "placement"
"""The journal's record of the placement that it was written with."""
LINEAGE_RECORD = "lineage"
"""The journal's record of the incarnations of its log."""
PEER = "peer/"
"""Prefix of the journal's records of the logs of other servers."""
CHANGES_SHOWN = 3
"""Topics named in the error about a changed chain."""
RETAIN_EVERY_S = 5.0
PIECES_OF_AGE = 4
"""Segments, at least, that the retained age is split into."""

_LINEAGE = Records[Lineage](Lineage)

_log = logging.getLogger("ensue")


Write = Callable[[list[Persist], Callable[[], None]], None]
"""Persists records, then calls back."""


class BuiltStation:
    """A station, and its links to its neighbors in the chain, if it has any."""

    __slots__ = ("links", "station")

    def __init__(self, station: Station, links: Linked[Station] | None) -> None:
        self.station = station
        self.links = links

    @property
    def node(self) -> Node:
        """The node to drive: the station, wrapped in its links."""
        return self.station if self.links is None else self.links


def claim(journal: Journal, name: str, placement: Placement, *, groups: int) -> None:
    """Raise if a journal belongs to another server or chain; claim an unclaimed one.

    Its receipts and places belong to that server's name, and its counts to that placement.
    """
    owner = journal.records.get(SERVER)
    if owner is not None and owner != name.encode():
        raise BadInput(
            f"{journal.directory} belongs to the server {owner.decode()!r}, and this one is "
            f"{name!r}: start it with that name, or with another directory"
        )
    known = journal.records.get(PLACEMENT_RECORD)
    own = _of_station(journal)
    if known is not None and (own or journal.topic_count):
        before = PLACEMENT.decode(known)
        old = Placement.restore(before)
        if before.groups != groups:
            raise BadInput(
                f"{journal.directory} was made with causal = {_toml(before.groups == 1)}, and the "
                f"configuration says causal = {_toml(groups == 1)}: stamps of the two don't mix; "
                "configure it as before, or start with an empty directory"
            )
        _check_losses(journal, losses(old, placement, topics_of(own)))
    record = PLACEMENT.encode(placement.record(groups))
    current = {SERVER: name.encode(), PLACEMENT_RECORD: record}
    if writes := [
        Persist(key, current[key]) for key in current if journal.records.get(key) != current[key]
    ]:
        journal.append(writes)


def _toml(value: object) -> str:
    return "true" if value else "false"


def begin_incarnation(journal: Journal, begun: int) -> Lineage:
    """Persist a new incarnation of a log that has `begun` events; return its lineage."""
    known = journal.records.get(LINEAGE_RECORD)
    incarnations = () if known is None else _LINEAGE.decode(known).incarnations
    lineage = Lineage(journal.identity, incarnations).begin(
        token=platform.current().random_bits(48), begun=begun
    )
    journal.append([Persist(LINEAGE_RECORD, _LINEAGE.encode(lineage))])
    journal.write()
    journal.sync()
    return lineage


class PeerLogs:
    """The known logs of the other servers of a chain, persisted."""

    def __init__(self, journal: Journal, write: Write, *, accept_loss: bool) -> None:
        self.logs: dict[str, Lineage] = {}
        self._write = write
        known = {key: journal.records[key] for key in journal.records if key.startswith(PEER)}
        if accept_loss and known:
            journal.append([Persist(key, None) for key in known])
        elif not accept_loss:
            for key, value in known.items():
                self.logs[key.removeprefix(PEER)] = _LINEAGE.decode(value)

    def learn(self, server: str, lineage: Lineage) -> None:
        """Record the log of a server; raise `LogLost` if it had another or a longer one."""
        known = self.logs.get(server)
        reason = "" if known is None else contradiction(known, lineage)
        if reason:
            raise log_lost(server, reason)
        if lineage != known:
            self.logs[server] = lineage
            self._write([Persist(f"{PEER}{server}", _LINEAGE.encode(lineage))], lambda: None)


def log_lost(server: str, reason: str) -> LogLost:
    """Return the error for a server of a chain that lost its log."""
    return LogLost(
        f"{lost_text(server, reason)}. Start {server!r} on its own data directory; or start all "
        "servers of the chain with --accept-loss (docs/how-to/operations.md, Backup and recovery)",
        server=server,
        reason=reason,
    )


def _check_losses(journal: Journal, lost: Sequence[str]) -> None:
    """Raise if a changed placement would lose events."""
    if not lost:
        return
    more = f"; and {len(lost) - CHANGES_SHOWN} more" if len(lost) > CHANGES_SHOWN else ""
    raise ConfigurationError(
        f"{journal.directory} was written with another chain: "
        f"{'; '.join(lost[:CHANGES_SHOWN])}{more}. "
        "Events would be counted from 1 again, and subscribers would drop them as duplicates. "
        "Start all servers with the chain as it was; or let subscribers read everything, and start "
        "all servers with new data directories (docs/how-to/operations.md, Changing a chain)"
    )


def _of_station(journal: Journal) -> dict[str, bytes]:
    """Return the station's own records."""
    return {
        key: value
        for key, value in journal.records.items()
        if key not in (SERVER, PLACEMENT_RECORD, LINEAGE_RECORD)
        and not key.startswith((OWNER, PEER, CUBE, CONTENT_RECORDS))
    }


def placement_of(config: ServerConfig) -> Placement:
    """Return the placement of topics on the servers of a chain."""
    members = config.members
    return Placement(
        [member.name for member in members],
        topics={member.name: member.topics for member in members},
        closed=config.closed,
    )


def build_station(
    config: ServerConfig,
    placement: Placement,
    journal: Journal,
    now_ns: int,
    *,
    link: LinkConfig,
    message_bytes_max: int = FRAME_BYTES_MAX,
    probe_ns: int = 0,
) -> BuiltStation:
    """Restore a station from its journal; it sends messages up to `message_bytes_max`.

    `link` configures the links to its neighbors. `probe_ns`: see `TopicLogConfig`.
    """
    # Half: the limits below don't count the names and lengths around the content.
    answer_bytes_max = max(1, message_bytes_max // 2)
    topic_log_config = TopicLogConfig(gives_places=True, probe_ns=probe_ns)
    topic_log_config = msgspec.structs.replace(
        topic_log_config, batch_bytes_max=min(topic_log_config.batch_bytes_max, answer_bytes_max)
    )
    state_store_config = StateStoreConfig()
    state_store_config = msgspec.structs.replace(
        state_store_config, bytes_max=min(state_store_config.bytes_max, answer_bytes_max)
    )
    built: list[Station] = []
    records = _of_station(journal)

    def station(own: Mapping[str, bytes]) -> Station:
        built.append(
            Station(
                name=config.name,
                placement=placement,
                config=config.sequencer,
                station_config=StationConfig(
                    expire_ns=int(config.expire_s * SECOND_NS),
                    moves=MoveConfig(
                        bytes_max=min(MoveConfig().bytes_max, answer_bytes_max // GROWTH)
                    ),
                    compares=config.accept_loss,
                ),
                topic_log_config=topic_log_config,
                state_store_config=state_store_config,
                records=own,
                kept=journal,
                seal_key=config.stamp_key,
                now_ns=now_ns,
            )
        )
        return built[0]

    if len(placement.nodes) == 1:
        return BuiltStation(station(records), None)
    stage = placement.nodes.index(config.name)
    near = placement.nodes[max(0, stage - 1) : stage + 2]
    linked = Linked(
        station,
        peers=[name for name in near if name != config.name],
        codec=Codec(FRAMES),
        unnumbered=UNNUMBERED,
        config=link,
        records=records,
        compares=config.accept_loss,
        now_ns=now_ns,
    )
    # It would handle their frames as of an older placement.
    linked.hears = lambda station: not station.placement.unsure
    return BuiltStation(built[0], linked)


async def retain(
    journal: Journal,
    retention: Retention,
    driver: Driver[Node],
    station: Station,
    commit: GroupCommit,
    on_failure: Callable[[BaseException], None],
) -> None:
    """Drop events beyond the retention, at intervals, until the disk fails.

    Also log moves of topics, and look for subscriptions that merge all groups.
    """
    move_log, merge_log = MoveLog(station), MergeLog(station)
    while True:
        await asyncio.sleep(RETAIN_EVERY_S)
        move_log.check()
        merge_log.check()
        now_s = platform.current().wall_s()
        try:
            if retention.age_s is not None:
                journal.seal(age_s=retention.age_s / PIECES_OF_AGE, now_s=now_s)
            journal.drop_empty()
            old = journal.find_old(bytes_max=retention.bytes, age_s=retention.age_s, now_s=now_s)
            if old is not None and not driver.closed:
                await drop(journal, old, driver, station, commit)
        except Exception as error:  # noqa: BLE001 - after any failure the journal is suspect
            on_failure(error)
            return


async def drop(
    journal: Journal, old: Outdated, driver: Driver[Node], station: Station, commit: GroupCommit
) -> None:
    """Drop old segments after syncing the station's trimmed state."""
    if old.firsts:
        driver.command(partial(_trim, station, old.firsts))
        await asyncio.sleep(0)  # A driver may run a command in the next loop iteration.
        await commit.sync()
    journal.drop(old)


def _trim(station: Station, firsts: dict[str, int], _node: Node, _now_ns: int) -> None:
    count = 0
    for topic, first in firsts.items():
        count += max(0, first - station.log.bounds_of(topic)[0])
        _log.debug("events dropped topic=%r below=%d", topic, first)
        station.trim(topic, first)
    # One line for all topics: logging blocks the event loop.
    _log.info("events dropped events=%d topics=%d", count, len(firsts))
