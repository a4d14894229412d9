"""The station of a server, built from its journal, and kept from growing without end."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from ensue.clock import system_clock
from ensue.errors import BadInput, ConfigurationError, LogLost
from ensue.journal import Journal, Outdated
from ensue.protocols.core import Node, Persist
from ensue.protocols.hypercube.enrolment import CUBE
from ensue.protocols.keeping import KeeperConfig
from ensue.protocols.lineage import Lineage, contradiction, lost_text
from ensue.protocols.link import Linked
from ensue.protocols.sequencer.placement import Placement, losses
from ensue.protocols.sequencer.records import PLACEMENT, topics_of
from ensue.protocols.station import FRAMES, UNNUMBERED, Station, StationConfig
from ensue.protocols.topic_log import EnsConfig
from ensue.runtime.driver import Driver
from ensue.server.commit import GroupCommit
from ensue.server.config import Retention, ServerConfig
from ensue.wire import FRAME_BYTES_MAX, Codec, Records

__all__ = [
    "CONTENT_RECORDS",
    "OWNER",
    "SECOND_NS",
    "Built",
    "Peers",
    "begin_incarnation",
    "build_station",
    "claim",
    "drop",
    "lost_server",
    "placement_of",
    "retain",
]

SECOND_NS = 1_000_000_000
OWNER = "owner/"
"""What the journal's records start with that are not the station's but say who owns a name."""
CONTENT_RECORDS = "content/"
"""What the journal's records of the content broker start with."""
SERVER = "server"
"""The journal's record that says whose it is."""
PLACEMENT_RECORD = "placement"
"""The journal's record that says under which chain the station's were made."""
LINEAGE_RECORD = "lineage"
"""The journal's record of the incarnations of its log."""
PEER = "peer/"
"""What the journal's records start with that say which logs the other servers of the chain have."""
CHANGES_SHOWN = 3
"""Topics that are named if a chain was changed."""
RETAIN_EVERY_S = 5.0
PIECES_OF_AGE = 4
"""In how many segments, at least, the events of the age that is kept lie."""

_LINEAGE = Records[Lineage](Lineage)

_log = logging.getLogger("ensue")


Write = Callable[[list[Persist], Callable[[], None]], None]
"""Makes records safe, and then calls back."""


class Built:
    """A station, and the node to be driven: the same, or its links to its neighbours around it."""

    __slots__ = ("node", "station")

    def __init__(self, station: Station, node: Node) -> None:
        self.station = station
        self.node = node


def claim(journal: Journal, name: str, placement: Placement) -> None:
    """Refuse the journal of another server, or of another chain; one that says nothing is this one's from now on.

    Receipts and places in it were given under that name, and events counted under that placement.
    """
    owner = journal.records.get(SERVER)
    if owner is not None and owner != name.encode():
        raise BadInput(
            f"{journal.directory} is of the server {owner.decode()!r}, and this one is {name!r}: start "
            "it by that name, or with a directory of its own"
        )
    known = journal.records.get(PLACEMENT_RECORD)
    own = _of_station(journal)
    if known is not None and (own or journal.topic_count):
        old = Placement.restore(PLACEMENT.decode(known))
        _check_goes_on(journal, losses(old, placement, topics_of(own)))
    record = PLACEMENT.encode(placement.record())
    fresh = {SERVER: name.encode(), PLACEMENT_RECORD: record}
    if writes := [
        Persist(key, fresh[key]) for key in fresh if journal.records.get(key) != fresh[key]
    ]:
        journal.append(writes)


def begin_incarnation(journal: Journal, begun: int) -> Lineage:
    """Note on the disk that a server starts, whose log has put out so many events; return what clients are told."""
    known = journal.records.get(LINEAGE_RECORD)
    incarnations = () if known is None else _LINEAGE.decode(known).incarnations
    lineage = Lineage(journal.identity, incarnations).begin(token=secrets.randbits(48), begun=begun)
    journal.append([Persist(LINEAGE_RECORD, _LINEAGE.encode(lineage))])
    journal.write()
    journal.sync()
    return lineage


class Peers:
    """Which logs the other servers of a chain have, as far as they have said so; remembered on the disk."""

    def __init__(self, journal: Journal, write: Write, *, accept_loss: bool) -> None:
        self.logs: dict[str, Lineage] = {}
        self._write = write
        known = {key: journal.records[key] for key in journal.records if key.startswith(PEER)}
        if accept_loss and known:
            journal.append([Persist(key, None) for key in known])
        elif not accept_loss:
            for key, value in known.items():
                self.logs[key.removeprefix(PEER)] = _LINEAGE.decode(value)

    def learn(self, server: str, told: Lineage) -> None:
        """Take note of the log that a server has; raise `LogLost` if it had another, or more of it."""
        known = self.logs.get(server)
        reason = "" if known is None else contradiction(known, told)
        if reason:
            raise lost_server(server, reason)
        if told != known:
            self.logs[server] = told
            self._write([Persist(f"{PEER}{server}", _LINEAGE.encode(told))], lambda: None)


def lost_server(server: str, reason: str) -> LogLost:
    """Return the error of a server of a chain that does not have its log any more."""
    return LogLost(
        f"{lost_text(server, reason)}. Start {server!r} on its own data directory; or start all "
        "servers of the chain with --accept-loss (docs/operations.md, Backup and recovery)",
        server=server,
        reason=reason,
    )


def _check_goes_on(journal: Journal, lost: Sequence[str]) -> None:
    """Refuse to go on under a placement by which something would be lost."""
    if not lost:
        return
    more = f"; and {len(lost) - CHANGES_SHOWN} more" if len(lost) > CHANGES_SHOWN else ""
    raise ConfigurationError(
        f"{journal.directory} was written under another chain: {'; '.join(lost[:CHANGES_SHOWN])}{more}. "
        "Events would be counted from 1 again, and subscribers would drop them as repetitions of those "
        "they had. Start all servers with the chain as it was; or have everything read, and start all of "
        "them with new data directories (docs/operations.md, Changing a chain)"
    )


def _of_station(journal: Journal) -> dict[str, bytes]:
    """Return the records that are the station's own."""
    return {
        key: value
        for key, value in journal.records.items()
        if key not in (SERVER, PLACEMENT_RECORD, LINEAGE_RECORD)
        and not key.startswith((OWNER, PEER, CUBE, CONTENT_RECORDS))
    }


def placement_of(config: ServerConfig) -> Placement:
    """Return which server of a chain hosts which topic."""
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
    message_bytes_max: int = FRAME_BYTES_MAX,
) -> Built:
    """Build the station that a journal remembers; what it sends goes into messages of that size."""
    # An answer is bounded by what is in it, and there are names and lengths around that.
    answer_bytes_max = max(1, message_bytes_max // 2)
    ens_config = EnsConfig(gives_places=True)
    ens_config = msgspec.structs.replace(
        ens_config, batch_bytes_max=min(ens_config.batch_bytes_max, answer_bytes_max)
    )
    keeper_config = KeeperConfig()
    keeper_config = msgspec.structs.replace(
        keeper_config, bytes_max=min(keeper_config.bytes_max, answer_bytes_max)
    )
    built: list[Station] = []
    records = _of_station(journal)

    def station(own: Mapping[str, bytes]) -> Station:
        built.append(
            Station(
                name=config.name,
                placement=placement,
                config=config.sequencer,
                station_config=StationConfig(expire_ns=int(config.expire_s * SECOND_NS)),
                ens_config=ens_config,
                keeper_config=keeper_config,
                records=own,
                kept=journal,
                seal_key=config.stamp_key,
                now_ns=now_ns,
            )
        )
        return built[0]

    if len(placement.nodes) == 1:
        alone = station(records)
        return Built(alone, alone)
    stage = placement.nodes.index(config.name)
    near = placement.nodes[max(0, stage - 1) : stage + 2]
    linked = Linked(
        station,
        peers=[name for name in near if name != config.name],
        codec=Codec(FRAMES),
        unnumbered=UNNUMBERED,
        records=records,
        now_ns=now_ns,
    )
    return Built(built[0], linked)


async def retain(
    journal: Journal,
    retention: Retention,
    driver: Driver[Node],
    station: Station,
    commit: GroupCommit,
    on_failure: Callable[[BaseException], None],
) -> None:
    """Drop what is too old or too much, or of no use, now and then, for ever; a disk that fails is told, once."""
    while True:
        await asyncio.sleep(RETAIN_EVERY_S)
        now_s = system_clock().now_ns() / SECOND_NS
        try:
            if retention.age_s is not None:
                journal.seal(age_s=retention.age_s / PIECES_OF_AGE, now_s=now_s)
            journal.drop_empty()
            old = journal.find_old(bytes_max=retention.bytes, age_s=retention.age_s, now_s=now_s)
            if old is not None and not driver.closed:
                await drop(journal, old, driver, station, commit)
        except Exception as error:  # noqa: BLE001 - whatever it is, the journal is not to be trusted
            on_failure(error)
            return


async def drop(
    journal: Journal, old: Outdated, driver: Driver[Node], station: Station, commit: GroupCommit
) -> None:
    """Drop what is old, once the disk has what the station must remember of it."""
    if old.firsts:
        driver.command(partial(_trim, station, old.firsts))
        await asyncio.sleep(0)  # A driver may see to a command in the next turn of the event loop.
        await commit.sync()
    journal.drop(old)


def _trim(station: Station, firsts: dict[str, int], _node: Node, _now_ns: int) -> None:
    count = 0
    for topic, first in firsts.items():
        count += max(0, first - station.log.bounds_of(topic)[0])
        _log.debug("events of %r below %d are no longer kept", topic, first)
        station.trim(topic, first)
    # One line, however many topics there are: writing it holds up everything else.
    _log.info("%d events of %d topics are no longer kept", count, len(firsts))
