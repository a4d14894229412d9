"""What the nodes of a cube send each other, and what is in it.

| frame | from | to | why |
|---|---|---|---|
| `Publication` | source, forwarder | child in the tree | events for a set of members |
| `Change` | joiner or leaver, forwarder | child in the tree | what a node is subscribed to now; asks for start vectors |
| `Receipt` | child | parent | who has got it below; membership and start vectors on their way back |
| `Summary` | member, source | member | how far I am in a topic |
| `Fill` | who has them | who lacks them | events |
| `Gone` | who was asked | who lacks them | I can't give you these |
| `Beat` | neighbour | neighbour | are you there, and do we know the same subscriptions? |
| `Here` | who was asked | who asked | I am, and we do; or: I have nothing that you lack |
| `Versions` | neighbour | neighbour | which subscriptions I know |
| `Rows` | neighbour | neighbour | subscriptions that you don't know |

Nodes are named by their numbers in the cube. A number that nobody bears is stepped over.

Limits. A set of nodes is at most 8 KiB, a digest 16 bytes; rows have `topics_max` topics and `row_bytes_max` bytes at the most, a `Change` asks
for `JOINS_MAX` topics, and `Rows` and the rows of a `Receipt` are sent up to `batch_bytes_max`. So a message is at most so large with what one
topic and source add to it: 12 bytes for each source of a topic in a vector or a barrier.
"""

from typing import Annotated

import msgspec

from ensue.event import Count, Event, Name, Proof, text_bytes, wire_bytes
from ensue.protocols.core import Frame

__all__ = [
    "FRAMES",
    "JOINS_MAX",
    "Beat",
    "Change",
    "Counts",
    "Fill",
    "Gone",
    "Here",
    "Item",
    "Number",
    "Publication",
    "Receipt",
    "Row",
    "Rows",
    "Summary",
    "Versions",
    "item_bytes",
    "row_bytes",
    "topic_bytes",
]

Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
"""A node."""
Height = Annotated[int, msgspec.Meta(ge=1, le=16)]
"""A cluster."""
Nodes = Annotated[bytes, msgspec.Meta(max_length=8192)]
"""A set of nodes of one cluster, a bit for each."""
JOINS_MAX = 64
"""Topics for which one message asks for start vectors, or brings them."""
TOPICS_MAX = 65_536
"""Topics of a row that are believed at all; see `HypercubeConfig.topics_max`."""
Counts = dict[Number, Count]
"""Source to how many of its events of one topic: 1, 2, … up to that number."""
_PROOF_BYTES = 18
"""What a seal takes with its length."""
_COUNT_BYTES = 12
"""What a number and a count take at the most."""
_TOPIC_BYTES = 8
"""What lengths take beside a topic."""


class Item(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """An event with its causal barrier."""

    event: Event
    after: dict[Name, Counts] = {}
    """By topic: the events it comes right after. The one before it of the same source and topic is
    not named: the number of the event says it."""
    proof: Proof = b""


def item_bytes(item: Item) -> int:
    """Return how many bytes an event takes in a message with its barrier: never less than it does."""
    size = wire_bytes(item.event) + _PROOF_BYTES
    for topic, counts in item.after.items():
        size += text_bytes(topic) + _TOPIC_BYTES + len(counts) * _COUNT_BYTES
    return size


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """What one node is subscribed to. The greater version is the truth."""

    node: Number
    version: Count
    topics: Annotated[tuple[Name, ...], msgspec.Meta(max_length=TOPICS_MAX)]
    proof: Proof = b""


def row_bytes(row: Row) -> int:
    """Return how many bytes a row takes in a message: never less than it does."""
    return _COUNT_BYTES + _TOPIC_BYTES + _PROOF_BYTES + sum(map(topic_bytes, row.topics))


def topic_bytes(topic: str) -> int:
    """Return how many bytes a topic adds to a row."""
    return text_bytes(topic) + _TOPIC_BYTES


class Publication(Frame, frozen=True, tag=80):
    """Events of one source and topic, in the order of their numbers."""

    token: Count
    """Names this copy between parent and child."""
    height: Height
    """The cluster of the parent in which the child is."""
    below: Nodes
    """Whom else of that cluster the child has to see to."""
    items: tuple[Item, ...]


class Change(Frame, frozen=True, tag=81):
    """A node is subscribed to something else than before."""

    token: Count
    height: Height
    below: Nodes
    row: Row
    joins: Annotated[tuple[Name, ...], msgspec.Meta(max_length=JOINS_MAX)] = ()
    """Topics for which it needs a start vector."""


class Receipt(Frame, frozen=True, tag=82):
    """Who of a cluster has got a message."""

    token: Count
    covered: Nodes
    final: bool
    """False: there may be more to come; True: whoever is not covered can't be reached from here."""
    rows: tuple[Row, ...] = ()
    """What those who are members of the joined topics are subscribed to."""
    vectors: dict[Name, Counts] = msgspec.field(default_factory=dict)
    """By topic: what has been delivered or published by those who are covered."""
    doubts: dict[Name, tuple[Number, ...]] = msgspec.field(default_factory=dict)
    """By topic: whose events those who are covered do not take for now; see `causality`."""


class Summary(Frame, frozen=True, tag=83):
    """How many events of each source a node has received with none missing before them."""

    topic: Name
    have: Counts
    follows: bool
    """Whether the node wants what it lacks; else it only tells what it published itself."""
    urgent: bool = False
    """Whether it is to be given even what has just been sent, and not to be asked in return."""
    only: tuple[Number, ...] = ()
    """Whose events it needs, if not everybody's: there may be no room for others."""


class Fill(Frame, frozen=True, tag=84):
    """Events that a node lacks."""

    topic: Name
    items: tuple[Item, ...]
    more: bool
    """Whether there are more to be had."""


class Gone(Frame, frozen=True, tag=85):
    """Events up to a number are not kept here, or not any more."""

    topic: Name
    source: Number
    up_to: Count
    """0: what was asked for has not come here yet, or never will."""


class Beat(Frame, frozen=True, tag=86):
    """A sign of life that wants an answer."""

    digest: Annotated[bytes, msgspec.Meta(max_length=16)]
    """Of the versions of all rows."""


class Here(Frame, frozen=True, tag=87):
    """The answer of one who has nothing else to say."""


class Versions(Frame, frozen=True, tag=88):
    """The answer of one who knows other rows."""

    versions: dict[Number, Count]
    answer: bool = False
    """True: it answers a `Versions` and wants no further one."""


class Rows(Frame, frozen=True, tag=89):
    """Rows that the other one does not know."""

    rows: tuple[Row, ...]


FRAMES: tuple[type[Frame], ...] = (
    Publication,
    Change,
    Receipt,
    Summary,
    Fill,
    Gone,
    Beat,
    Here,
    Versions,
    Rows,
)
