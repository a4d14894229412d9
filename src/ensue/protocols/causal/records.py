"""Records that a causal node persists.

Keys are plain text, `kind/…`; a topic comes last, because it may contain a slash.
"""

import msgspec

from ensue.core.event import Event
from ensue.core.wire import Records
from ensue.protocols.causal.causality import TopicState
from ensue.protocols.causal.frames import Counts, Item, Row
from ensue.protocols.causal.hypercube import bits

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
    """Run and position of a node."""

    run: int
    """How many times the node was started."""
    position: int
    """Number of events delivered to the application."""


class TopicRecord(msgspec.Struct, frozen=True, array_like=True):
    """Progress of a node in a topic."""

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
    """Return the key of a cached or held event."""
    return f"kept/{source}/{number}/{topic}"


def parse_kept(key: str) -> tuple[str, int, int]:
    """Return topic, source and number from such a key."""
    _, source, number, topic = key.split("/", 3)
    return topic, int(source), int(number)


def topic_record(state: TopicState, *, wanted: bool, settled: int) -> TopicRecord:
    """Return the record of a topic."""
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
    """Restore a topic from its record."""
    state.state = record.state
    state.own = record.own
    state.delivered = dict(record.delivered)
    state.start = dict(record.start)
    state.barrier = dict(record.barrier)
    state.doubt = sum(1 << node for node in record.doubt)
