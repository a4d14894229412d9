"""Frames between causal nodes.

| frame | from | to | purpose |
|---|---|---|---|
| `Publication` | source, forwarder | child in the tree | events for a set of members |
| `Change` | joiner, leaver, forwarder | child in the tree | new row; asks for start vectors |
| `Receipt` | child | parent | nodes covered below; rows and start vectors on their way back |
| `Summary` | member, source | member | progress in a topic; may request events |
| `Fill` | peer that was asked | peer that lacks events | events, if it has any |
| `NotCached` | peer that was asked | peer that lacks events | these events are not cached here |
| `Heartbeat` | neighbor | neighbor | digest of all rows; to be answered |
| `Alive` | neighbor | neighbor | the answer: same rows |
| `Versions` | neighbor | neighbor | versions of the rows known here |
| `Rows` | neighbor | neighbor | rows that the other lacks |

A server with users that lost how many events were published asks a node for one by a `Summary`
from its registry. The node sends it the sealed event in a `Fill`, if it has it.

Frames name nodes by number. Numbers without a node are skipped.

Limits. A set of nodes is at most 8 KiB, a digest 16 bytes; a row has at most `topics_max` topics
and `row_bytes_max` bytes, a `Change` asks for `JOINS_MAX` topics, and `Rows` and the rows of a
`Receipt` are sent up to `batch_bytes_max`. Vectors and barriers add 12 bytes per source and topic.
"""

from typing import Annotated

import msgspec

from ensue.core.event import Count, Event, Name, Proof, text_bytes, wire_bytes
from ensue.protocols.interface import Frame

__all__ = [
    "FRAMES",
    "JOINS_MAX",
    "Alive",
    "Change",
    "Counts",
    "Fill",
    "Heartbeat",
    "Item",
    "NotCached",
    "Number",
    "Publication",
    "Receipt",
    "Row",
    "Rows",
    "Summary",
    "Versions",
    "item_bytes",
    "raise_counts",
    "row_bytes",
    "topic_bytes",
]

Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
"""The number of a node."""
Height = Annotated[int, msgspec.Meta(ge=1, le=16)]
"""The number of a cluster."""
Nodes = Annotated[bytes, msgspec.Meta(max_length=8192)]
"""A set of nodes of one cluster, one bit each."""
JOINS_MAX = 64
"""Topics for which one frame requests or carries start vectors."""
TOPICS_MAX = 65_536
"""Maximum number of topics of a row on the wire; see `CausalConfig.topics_max`."""
Counts = dict[Number, Count]
"""Source to how many of its events of one topic: 1, 2, … up to that number."""
_PROOF_BYTES = 18
"""Size of a seal with its length."""
_COUNT_BYTES = 12
"""Maximum size of a number and a count."""
_TOPIC_BYTES = 8
"""Size of the lengths beside a topic."""


def raise_counts(counts: Counts, others: Counts) -> None:
    """Raise counts to those of another vector where these are greater."""
    for source, count in others.items():
        if counts.get(source, 0) < count:
            counts[source] = count


class Item(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """An event with its causal barrier."""

    event: Event
    after: dict[Name, Counts] = {}
    """By topic: direct predecessors. The previous event of the same source and topic is not named:
    the number of the event implies it."""
    proof: Proof = b""


def item_bytes(item: Item) -> int:
    """Return an upper bound of the size of an event with its barrier in a frame."""
    size = wire_bytes(item.event) + _PROOF_BYTES
    for topic, counts in item.after.items():
        size += text_bytes(topic) + _TOPIC_BYTES + len(counts) * _COUNT_BYTES
    return size


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """The topics of one node. The row with the greater version is valid."""

    node: Number
    version: Count
    topics: Annotated[tuple[Name, ...], msgspec.Meta(max_length=TOPICS_MAX)]
    proof: Proof = b""


def row_bytes(row: Row) -> int:
    """Return an upper bound of the size of a row in a frame."""
    return _COUNT_BYTES + _TOPIC_BYTES + _PROOF_BYTES + sum(map(topic_bytes, row.topics))


def topic_bytes(topic: str) -> int:
    """Return the size that a topic adds to a row."""
    return text_bytes(topic) + _TOPIC_BYTES


class Publication(Frame, frozen=True, tag=80):
    """Events of one source and topic, in the order of their numbers."""

    token: Count
    """Identifies this copy between parent and child."""
    height: Height
    """The cluster of the parent in which the child is."""
    below: Nodes
    """Other nodes of that cluster that the child has to reach."""
    items: tuple[Item, ...]


class Change(Frame, frozen=True, tag=81):
    """The new row of a node that joined or left topics."""

    token: Count
    height: Height
    below: Nodes
    row: Row
    joins: Annotated[tuple[Name, ...], msgspec.Meta(max_length=JOINS_MAX)] = ()
    """Topics for which it needs a start vector."""


class Receipt(Frame, frozen=True, tag=82):
    """Which nodes of a cluster have a message."""

    token: Count
    covered: Nodes
    final: bool
    """False: more may follow. True: nodes that are not covered cannot be reached from here."""
    rows: tuple[Row, ...] = ()
    """Rows of the members of the joined topics."""
    vectors: dict[Name, Counts] = msgspec.field(default_factory=dict)
    """By topic: what the covered nodes have delivered or published."""
    doubts: dict[Name, tuple[Number, ...]] = msgspec.field(default_factory=dict)
    """By topic: sources that covered nodes doubt; see `causality`."""


class Summary(Frame, frozen=True, tag=83):
    """How many events of each source a node has received without a gap."""

    topic: Name
    have: Counts
    follows: bool
    """Whether the node requests what it lacks; else it only reports its own progress."""
    request: Count = 0
    """Identifies a request for what the node lacks, to be answered with a `Fill`. 0: this is none,
    and a peer that has more answers with a summary of its own."""
    only: tuple[Number, ...] = ()
    """Sources of the requested events."""
    room: Count = 0
    """How many events the node has room for."""


class Fill(Frame, frozen=True, tag=84):
    """Events that the receiver lacks."""

    topic: Name
    request: Count
    """The request that this answers."""
    items: tuple[Item, ...]
    more: bool
    """Whether the sender has more."""


class NotCached(Frame, frozen=True, tag=85):
    """Events up to a number are not cached at the sender."""

    topic: Name
    source: Number
    up_to: Count
    """0: the sender never had the requested events."""


class Heartbeat(Frame, frozen=True, tag=86):
    """A heartbeat, to be answered."""

    digest: Annotated[bytes, msgspec.Meta(max_length=16)]
    """Of the versions of all rows."""


class Alive(Frame, frozen=True, tag=87):
    """The answer of a neighbor that knows the same rows."""


class Versions(Frame, frozen=True, tag=88):
    """The answer of a peer that knows other rows."""

    versions: dict[Number, Count]
    answer: bool = False
    """True: this answers a `Versions`, and must not be answered by another."""


class Rows(Frame, frozen=True, tag=89):
    """Rows that the receiver lacks."""

    rows: tuple[Row, ...]


FRAMES: tuple[type[Frame], ...] = (
    Publication,
    Change,
    Receipt,
    Summary,
    Fill,
    NotCached,
    Heartbeat,
    Alive,
    Versions,
    Rows,
)
