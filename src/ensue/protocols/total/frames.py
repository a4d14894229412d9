"""What publishers, subscribers and sequencer nodes tell each other.

| frame | from | to | says |
|---|---|---|---|
| StampRequest | publisher | the topics' node (the origin) | order these events |
| Fill | node | next node | go on with this stamp |
| Stamped | last node | publisher | here are your stamps |
| Confirm | publisher | last node | these events are out, or given up |
| Repeat | origin | last node | answer this request again |
| Voided | last node | publisher | the lease ran out: these reach nobody |
| ChangeRequest | subscriber | first node | change my subscription |
| ChangeFill | node | next node | go on with this change |
| Changed | last node | subscriber | here is your cut |
| ChangeRepeat | first node | nodes of its other topics | answer this change again |
| OrderRequest | publisher | the topics' node, which keeps their log | order these events and put them out |
| Out | node | publisher | these are out |
| Expired | station | subscriber | you were taken out of the chain |
| Forget | publisher, subscriber | nodes | I am gone: no need to remember me |
| Refused | node | publisher, subscriber | not possible, and why |

Between nodes of the chain frames travel over numbered links (`ensue.protocols.link`). Everything
else may be lost, repeated or overtaken: requests are repeated until answered, and a repeated one
is answered with the same words.
"""

from collections.abc import Iterable, Iterator

import msgspec

from ensue.event import Count, Event, Name, Proof, Stamp, text_bytes
from ensue.protocols import ens, link
from ensue.protocols.core import Frame

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
    "OrderRequest",
    "Out",
    "Refused",
    "Repeat",
    "StampRequest",
    "Stamped",
    "Voided",
    "stamped",
]

STAMPED_BYTES_MAX = 256 * 1024
"""Stamps in one answer, unless one alone is larger: whatever carries frames takes that much."""
ENTRY_BYTES = 16
"""What a number or a count takes beside a name, and more."""


class StampRequest(Frame, frozen=True, tag=16):
    """Order a run of events, numbered from `number` on, all of topics hosted by one node."""

    number: Count
    """1, 2, 3, … per publisher and origin."""
    topics: tuple[Name, ...]
    settled: Count
    """Every number below this one is settled: nobody will ask for it again."""


class Fill(Frame, frozen=True, tag=17):
    """A stamp on its way up the chain."""

    publisher: Name
    origin: Name
    number: Count
    topic: Name
    stamp: Stamp
    last: Count
    """The stage that completes it."""


class Grant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request's stamp."""

    number: Count
    stamp: Stamp
    proof: Proof = b""
    """The chain's seal on it (`seals`), for whoever keeps the log; empty: none is asked for."""


class Stamped(Frame, frozen=True, tag=18):
    """Stamps for requests made at `origin`."""

    origin: Name
    grants: tuple[Grant, ...]


class Confirm(Frame, frozen=True, tag=19):
    """The publisher is done with these requests."""

    origin: Name
    slots: tuple[tuple[Count, Count], ...]
    """Request numbers, and the slots their stamps gave."""
    settled: Count
    """The publisher will not ask again for any number below."""


class Repeat(Frame, frozen=True, tag=20):
    """A publisher asked again for a stamp that this node completes."""

    publisher: Name
    number: Count


class Voided(Frame, frozen=True, tag=21):
    """These requests' slots were given up: their events reach nobody."""

    origin: Name
    numbers: tuple[Count, ...]


class ChangeRequest(Frame, frozen=True, tag=22):
    """Replace the sender's subscription."""

    number: Count
    """1, 2, 3, … per subscriber, one at a time."""
    old: tuple[Name, ...]
    new: tuple[Name, ...]


class ChangeFill(Frame, frozen=True, tag=23):
    """A change on its way up the chain, reading the counters as it goes."""

    subscriber: Name
    number: Count
    old: tuple[Name, ...]
    new: tuple[Name, ...]
    entries: dict[Name, Count]
    last: Count


class Changed(Frame, frozen=True, tag=24):
    """The change is made everywhere; `cut` is where its topics stood."""

    number: Count
    cut: dict[Name, Count]


class ChangeRepeat(Frame, frozen=True, tag=25):
    """A subscriber asked again for a change that this node completes."""

    subscriber: Name
    number: Count


class Forget(Frame, frozen=True, tag=27):
    """The sender has nothing under way and wants nothing: it need not be remembered."""

    number: Count
    """For a publisher: its lowest number not settled. For a subscriber: its last change."""
    publisher: bool


class Refused(Frame, frozen=True, tag=26):
    """A request that can't be granted."""

    number: Count
    reason: str
    seen: Count = 0
    """Of a change: a later one that was made under this name, by an earlier life of it. The request is good,
    and has to be numbered beyond that. 0: there is none."""


class OrderRequest(Frame, frozen=True, tag=28):
    """Order a run of events, as `StampRequest` does, and put them out, all of topics kept there.

    An event whose stamp is complete at this node goes out at once, and `Out` is the answer. For any
    other a stamp comes, and the publisher puts it out itself.
    """

    number: Count
    events: tuple[Event, ...]
    settled: Count


class Out(Frame, frozen=True, tag=29):
    """Events of an `OrderRequest` that are out for good."""

    origin: Name
    slots: tuple[tuple[Count, Count], ...]
    """Request numbers and the slots of their events; 0: out, and the slot is not in the log any more."""


class Expired(Frame, frozen=True, tag=30):
    """The named subscriber was not heard of for too long: it is not subscribed to anything here."""

    name: Name


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
    *ens.FRAMES,
    *link.FRAMES,
)
"""Everything that total order puts on a wire."""


def stamped(origin: str, grants: Iterable[Grant]) -> Iterator[Stamped]:
    """Answer requests with their stamps, in as many frames as it takes."""
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
