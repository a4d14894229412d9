"""What a node of a cube persists, and how it is written.

Keys are plain text, `kind/…`; a topic comes last, because it may contain a slash.
"""

import msgspec

from ensue.event import Event
from ensue.protocols.hypercube.causality import TopicState
from ensue.protocols.hypercube.cube import bits
from ensue.protocols.hypercube.frames import Counts, Item, Row
from ensue.wire import Records

__all__ = [
    "ITEM",
    "NODE",
    "ROW",
    "TOPIC",
    "WAITING",
    "NodeRecord",
    "TopicRecord",
    "kept_key",
    "parse_kept",
    "restore_topic",
    "topic_record",
]


class NodeRecord(msgspec.Struct, frozen=True, array_like=True):
    """What a node knows of itself."""

    run: int
    """How many times it was started."""
    position: int
    """How many events its application got."""


class TopicRecord(msgspec.Struct, frozen=True, array_like=True):
    """How far a node is in a topic."""

    state: str
    wanted: bool
    own: int
    settled: int
    delivered: Counts
    start: Counts
    barrier: Counts
    doubt: tuple[int, ...]


NODE = Records[NodeRecord](NodeRecord)
TOPIC = Records[TopicRecord](TopicRecord)
ROW = Records[Row](Row)
ITEM = Records[Item](Item)
WAITING = Records[Event](Event)


def kept_key(topic: str, source: int, number: int) -> str:
    """Return the key of a kept event."""
    return f"kept/{source}/{number}/{topic}"


def parse_kept(key: str) -> tuple[str, int, int]:
    """Return topic, source and number of a kept event."""
    _, source, number, topic = key.split("/", 3)
    return topic, int(source), int(number)


def topic_record(state: TopicState, *, wanted: bool, settled: int) -> TopicRecord:
    """Return what is written of a topic."""
    return TopicRecord(
        state=state.state,
        wanted=wanted,
        own=state.own,
        settled=settled,
        delivered=state.delivered,
        start=state.start,
        barrier=state.barrier,
        doubt=tuple(bits(state.doubt)),
    )


def restore_topic(state: TopicState, record: TopicRecord) -> None:
    """Have a topic be as it was written."""
    state.state = record.state
    state.own = record.own
    state.delivered = dict(record.delivered)
    state.start = dict(record.start)
    state.barrier = dict(record.barrier)
    state.doubt = sum(1 << node for node in record.doubt)
