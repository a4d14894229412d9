"""The station of a server, built from its journal."""

from collections.abc import Mapping

from ensue.journal import Journal
from ensue.protocols.core import Node
from ensue.protocols.link import Linked
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.station import FRAMES, UNNUMBERED, Station, StationConfig
from ensue.protocols.topic_log import EnsConfig
from ensue.server.config import ServerConfig
from ensue.wire import Codec

__all__ = ["Built", "build_station", "placement_of"]

SECOND_NS = 1_000_000_000


class Built:
    """A station, and the node to be driven: the same, or its links to its neighbours around it."""

    __slots__ = ("node", "station")

    def __init__(self, station: Station, node: Node) -> None:
        self.station = station
        self.node = node


def placement_of(config: ServerConfig) -> Placement:
    """Return which server of a chain hosts which topic."""
    members = config.members
    return Placement(
        [member.name for member in members],
        topics={member.name: member.topics for member in members},
        closed=config.closed,
    )


def build_station(
    config: ServerConfig, placement: Placement, journal: Journal, now_ns: int
) -> Built:
    """Build the station that a journal remembers."""
    built: list[Station] = []

    def station(own: Mapping[str, bytes]) -> Station:
        built.append(
            Station(
                name=config.name,
                placement=placement,
                config=config.sequencer,
                station_config=StationConfig(expire_ns=int(config.expire_s * SECOND_NS)),
                ens_config=EnsConfig(gives_places=True),
                records=own,
                kept=journal,
                now_ns=now_ns,
            )
        )
        return built[0]

    if len(placement.nodes) == 1:
        alone = station(journal.records)
        return Built(alone, alone)
    stage = placement.nodes.index(config.name)
    near = placement.nodes[max(0, stage - 1) : stage + 2]
    linked = Linked(
        station,
        peers=[name for name in near if name != config.name],
        codec=Codec(FRAMES),
        unnumbered=UNNUMBERED,
        records=journal.records,
        now_ns=now_ns,
    )
    return Built(built[0], linked)
