"""The frames between publishers, subscribers and sequencers.

| frame | from | to | meaning |
|---|---|---|---|
| StampRequest | publisher | the topics' node, or one before (the origin) | order these events |
| Fill | node | next node | a stamp on its way up the chain |
| Stamped | last node | publisher | the stamps |
| Confirm | publisher | last node | these events are published, or given up |
| Repeat | origin | last node | answer this request again |
| Voided | last node | publisher | the lease ran out: these reach no subscriber |
| ChangeRequest | subscriber | first node | change this subscription |
| ChangeFill | node | next node | a change on its way up the chain |
| Changed | last node | subscriber | the cut |
| ChangeRepeat | first node | nodes of its other topics | answer this change again |
| OrderRequest | publisher | the node that keeps the topics' log | order and publish these events |
| Out | node | publisher | these events are published |
| Expired | station | subscriber | the subscriber was removed from the chain |
| Forget | publisher, subscriber | nodes | the sender leaves: forget it |
| Refused | node | publisher, subscriber | the request is refused, and why |
| MoveRequest | operator | first node | move a topic |
| MoveReply | first node | operator | how far the move is |
| Move | node | next node, or the one before | a step of a move |
| MoveStep | node | first node; all, if frozen | the step is taken |
| MoveDecision | node | node | how a move was decided |
| Moved | node | publisher, subscriber | the topic has another node |
| KnownMoves | node | node | all moves that the sender knows |

Between nodes of the chain frames travel over numbered links (`ensue.protocols.shared.link`).
Everything else may be lost, repeated or overtaken: requests are repeated until answered, and a
repeated request gets the same answer.
"""

from collections.abc import Iterable, Iterator

import msgspec

from ensue.core.event import Count, Event, Name, Proof, Stamp, text_bytes
from ensue.protocols.interface import Frame
from ensue.protocols.shared import link
from ensue.protocols.topic_log import frames

__all__ = [
    "FRAMES",
    "ChangeFill",
    "ChangeRepeat",
    "ChangeRequest",
    "Changed",
    "Confirm",
    "Expired",
    "Fill",
    "Forget",
    "Grant",
    "KnownMoves",
    "Move",
    "MoveDecision",
    "MoveReply",
    "MoveRequest",
    "MoveStep",
    "Moved",
    "OrderRequest",
    "Out",
    "Refused",
    "Registered",
    "Repeat",
    "StampRequest",
    "Stamped",
    "Voided",
    "stamped",
]

STAMPED_BYTES_MAX = 256 * 1024
"""Bytes of stamps in one answer, unless one alone is larger: every transport takes that much."""
ENTRY_BYTES = 16
"""An upper bound for the bytes of a number or a count beside a name."""


class StampRequest(Frame, frozen=True, tag=16):
    """Order a run of events, numbered from `number` on, of topics of one node and later ones."""

    number: Count
    """1, 2, 3, … per publisher and origin, the node that gets the request."""
    topics: tuple[Name, ...]
    settled: Count
    """Every number below is settled: the publisher will not repeat it."""


class Fill(Frame, frozen=True, tag=17):
    """A stamp on its way up the chain."""

    publisher: Name
    origin: Name
    """The node where the request entered the chain."""
    number: Count
    topic: Name
    stamp: Stamp
    """Without entries until the node of the topic has counted the event."""
    last: Count
    """The stage that completes it; until it is counted, the stage that counts it."""


class Grant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request's stamp."""

    number: Count
    stamp: Stamp
    proof: Proof = b""
    """The chain's seal on it (`stamp_seals`), for the server that keeps the log; empty: none."""


class Stamped(Frame, frozen=True, tag=18):
    """Stamps for requests made at `origin`."""

    origin: Name
    grants: tuple[Grant, ...]


class Confirm(Frame, frozen=True, tag=19):
    """The publisher is done with these requests."""

    origin: Name
    slots: tuple[tuple[Count, Count], ...]
    """Request numbers and the slots of their stamps."""
    settled: Count
    """The publisher will not repeat any number below."""


class Repeat(Frame, frozen=True, tag=20):
    """A publisher repeated a request for a stamp that this node completes."""

    publisher: Name
    number: Count


class Voided(Frame, frozen=True, tag=21):
    """The slots of these requests are void: their events reach no subscriber."""

    origin: Name
    numbers: tuple[Count, ...]


class ChangeRequest(Frame, frozen=True, tag=22):
    """Replace the sender's subscription."""

    number: Count
    """1, 2, 3, … per subscriber, one at a time."""
    old: tuple[Name, ...]
    new: tuple[Name, ...]
    known: Count = 0
    """The last change that was answered: a node with a topic of `old` that has not seen it lost its
    records. 0: not to be checked."""


class ChangeFill(Frame, frozen=True, tag=23):
    """A change on its way up the chain, reading the counters as it goes."""

    subscriber: Name
    number: Count
    old: tuple[Name, ...]
    new: tuple[Name, ...]
    entries: dict[Name, Count]
    last: Count


class Changed(Frame, frozen=True, tag=24):
    """The change is made at all nodes; `cut` has its topics' counts at that moment."""

    number: Count
    cut: dict[Name, Count]


class ChangeRepeat(Frame, frozen=True, tag=25):
    """A subscriber repeated a change that this node completes."""

    subscriber: Name
    number: Count


class Forget(Frame, frozen=True, tag=27):
    """The sender has nothing open and wants nothing: it need not be remembered."""

    number: Count
    """For a publisher: its lowest number not settled. For a subscriber: its last change."""
    publisher: bool


class Refused(Frame, frozen=True, tag=26):
    """A request is refused."""

    number: Count
    reason: str
    seen: Count = 0
    """Of a change: the number of a later one, by an earlier life of the name. The request is valid,
    and has to be numbered beyond that. 0: there is none. Of a subscriber whose node lost a change:
    the number of that change."""


class OrderRequest(Frame, frozen=True, tag=28):
    """Order a run of events, as `StampRequest` does, and publish them.

    An event of a topic kept at this node whose stamp is complete here is published at once, and
    `Out` is the answer, unless stamps of earlier ones of its publisher may not be complete. For any
    other event the publisher gets a stamp, and publishes it itself. Events of topics kept at later
    nodes come without their payloads.
    """

    number: Count
    events: tuple[Event, ...]
    settled: Count


class Out(Frame, frozen=True, tag=29):
    """Events of an `OrderRequest` that are published."""

    origin: Name
    slots: tuple[tuple[Count, Count], ...]
    """Request numbers and slots; 0: published, and its slot is no longer in the log."""


class Expired(Frame, frozen=True, tag=30):
    """The named subscriber was silent for too long and is no longer subscribed."""

    name: Name


class PublisherLost(Frame, frozen=True, tag=31):
    """A node has lost the connection of a publisher whose requests it passed on."""

    publisher: Name


class Registered(msgspec.Struct, frozen=True, array_like=True):
    """A subscriber of a topic that moves, as the topic's node knows it."""

    subscriber: Name
    number: Count
    topics: tuple[Name, ...]
    left: tuple[Name, ...]


class Move(Frame, frozen=True, tag=32):
    """A step of a topic's move to another node, on its way along the chain (`topic_moves`)."""

    topic: Name
    to: Name
    phase: Count
    number: Count = 0
    """1, 2, 3, … per chain. Each number is decided once: the topic moves, or it does not."""
    parts: tuple[tuple[Name, Count], ...] = ()
    """The topic's parts before the move (`placement.Parts`), a single one if it was never moved."""
    count: Count = 0
    """The events of the topic; in a question 0."""
    counts: dict[Name, Count] = msgspec.field(default_factory=dict)
    """The events of topics that share subscriptions with it."""
    registered: tuple[Registered, ...] = ()
    seen: Count = 0
    """The highest number that a node on the way knows to be decided."""
    refusal: str = ""
    """Why a node can't take this step; empty: it can."""
    again: bool = False
    """Whether it may be able to later."""
    size: Count = 0
    """In a question: the bytes that the state of the topic takes, as far as known."""


class Moved(Frame, frozen=True, tag=33):
    """A topic, or the next slots of it, have another node than the sender of a frame assumed."""

    topic: Name
    parts: tuple[tuple[Name, Count], ...]
    """See `placement.Parts`."""
    number: Count = 0
    """The request of a publisher that was not taken, and never will be; 0: none."""


class MoveRequest(Frame, frozen=True, tag=34):
    """Move a topic to another node. Sent to the first node of the chain, and repeated."""

    number: Count
    """Chosen by the sender; the answer has the same."""
    topic: Name
    to: Name


class MoveReply(Frame, frozen=True, tag=35):
    """How far a move is."""

    number: Count
    moved: bool
    refusal: str = ""
    """Why the topic is not moved; empty: it is moved or about to be."""
    waits: str = ""
    """What a move under way waits for."""
    again: bool = False
    """Whether a later request may not be refused."""


class MoveDecision(Frame, frozen=True, tag=36):
    """The decision on a move, past the links: a node between may be down."""

    move: Move


class MoveStep(Frame, frozen=True, tag=37):
    """The sender has taken a step. A frozen node repeats it to all nodes, to get the decision."""

    number: Count
    topic: Name
    phase: Count


class KnownMoves(Frame, frozen=True, tag=38):
    """All moves that a node knows. Where two nodes differ, the one with more parts is right."""

    parts: dict[Name, tuple[tuple[Name, Count], ...]]
    seen: Count
    """The highest number that the node knows to be decided."""
    wanted: bool = False
    """Whether the sender asks for the same of the receiver."""
    complete: bool = True
    """Whether the sender has heard from all nodes, if it has to, and is not frozen."""
    lost: Count = 0
    """A move for which the receiver is frozen, and whose decision no node remembers; 0: none."""


FRAMES: tuple[type[Frame], ...] = (
    StampRequest,
    Fill,
    Stamped,
    Confirm,
    Repeat,
    Voided,
    ChangeRequest,
    ChangeFill,
    Changed,
    ChangeRepeat,
    Forget,
    Refused,
    OrderRequest,
    Out,
    Expired,
    PublisherLost,
    Move,
    Moved,
    MoveRequest,
    MoveReply,
    MoveDecision,
    MoveStep,
    KnownMoves,
    *frames.FRAMES,
    *link.FRAMES,
)
"""All frames of total order."""


def stamped(origin: str, grants: Iterable[Grant]) -> Iterator[Stamped]:
    """Yield the answers to requests with stamps, in as many frames as it takes."""
    part: list[Grant] = []
    size = 0
    for grant in grants:
        more = (
            ENTRY_BYTES
            + len(grant.proof)
            + sum(text_bytes(topic) + ENTRY_BYTES for topic in grant.stamp.entries)
        )
        if part and size + more > STAMPED_BYTES_MAX:
            yield Stamped(origin=origin, grants=tuple(part))
            part, size = [], 0
        part.append(grant)
        size += more
    if part:
        yield Stamped(origin=origin, grants=tuple(part))
