"""What clients and brokers of the overlay exchange, apart from transactions.

Frames between neighbours, and between a client and its broker, travel over numbered links (`protocols.link`): each arrives once, and in
the order it was sent, whatever crashes. Filters travel as text.
"""

from typing import Annotated

import msgspec

from ensue.event import Count, Name
from ensue.protocols.core import Frame
from ensue.protocols.overlay.filters import name_text, value_text

__all__ = [
    "ADVERTISE",
    "CONTENT",
    "FRAMES",
    "IDENTIFIER_LENGTH_MAX",
    "PLANNED_FROM",
    "SUBSCRIBE",
    "UNADVERTISE",
    "UNSUBSCRIBE",
    "Abandon",
    "Adopt",
    "Adopted",
    "Away",
    "Back",
    "Beat",
    "Change",
    "Disconnected",
    "Done",
    "Expire",
    "Expired",
    "Forbidden",
    "Goodbye",
    "Hello",
    "Identifier",
    "Notify",
    "Operate",
    "Publication",
    "Reconnected",
    "Routed",
    "Step",
    "Stepped",
    "Tick",
]

ADVERTISE, UNADVERTISE, SUBSCRIBE, UNSUBSCRIBE = "adv", "uadv", "sub", "usub"
PLANNED_FROM = 2**40
"""Behind this its home numbers what others planned for a client, apart from what the client numbers itself."""
CONTENT = "content"
"""What stands for a topic in events that are described by their attributes."""

IDENTIFIER_LENGTH_MAX = 1024
Identifier = Annotated[str, msgspec.Meta(max_length=IDENTIFIER_LENGTH_MAX)]
"""The name of an advertisement, a subscription, a transaction, or the place of an operation in one."""


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """One change of the routing tables."""

    action: str
    name: Identifier
    """Of the advertisement or subscription: unique for ever, chosen by its client."""
    where: str = ""
    """The filter, for one that is added."""


class Publication(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True
):
    """An event that is described by its attributes."""

    publisher: Name
    number: Count
    """1, 2, 3, … per publisher; above `PLANNED_FROM` what others had it publish, as only its home can number that."""
    attributes: dict[str, bool | int | float | str]
    payload: bytes = b""
    published_at_ns: int = 0

    @property
    def id(self) -> str:
        """The publication's name: unique."""
        return f"{self.publisher}/{self.number}"

    @property
    def text(self) -> str:
        """The attributes as a filter that matches nothing else: a point."""
        return " and ".join(
            f"{name_text(name)} = {value_text(value)}" for name, value in self.attributes.items()
        )


# -- A client and its broker --------------------------------------------------------------------


class Hello(Frame, frozen=True, tag=100):
    """A client is here; repeated until it is answered. Not numbered."""


class Beat(Frame, frozen=True, tag=101):
    """A client is still here. Not numbered."""


class Expired(Frame, frozen=True, tag=102):
    """A broker does not know, or no longer, who beats. Not numbered."""


class Goodbye(Frame, frozen=True, tag=103):
    """A client leaves: all that it advertised and subscribed ends."""


class Operate(Frame, frozen=True, tag=104):
    """A client's operation: changes of its own, or a publication."""

    number: Count
    """Of the request, answered with `Done`."""
    transaction: Identifier = ""
    """Empty: a regular operation."""
    path: Identifier = ""
    """The operation's place in its transaction: see `transactions.frames`."""
    change: Change | None = None
    publication: Publication | None = None


class Done(Frame, frozen=True, tag=105):
    """A request is seen through: an operation has reached every broker that it concerns."""

    number: Count
    refused: str = ""
    """Why it was refused; empty if it was not."""
    transaction: Identifier = ""
    """The name of a transaction that was asked for."""
    away: tuple[str, ...] = ()
    """Brokers that did not answer, and will have the change when they are back; then the request is answered once more, without them."""


class Notify(Frame, frozen=True, tag=106):
    """A publication that a client subscribed to."""

    publication: Publication
    subscriptions: tuple[Identifier, ...]
    transaction: Identifier = ""
    path: Identifier = ""
    following: tuple[Count, ...] = ()
    """By subscription: how many events of the transaction come for it behind this one, with nothing else in between."""


# -- Brokers ------------------------------------------------------------------------------------


class Routed(Frame, frozen=True, tag=110):
    """A regular publication on its way."""

    publication: Publication
    version: Count
    """The version of the tables by which the first broker routed it, and so every other (D8)."""


class Step(Frame, frozen=True, tag=111):
    """An operation as one broker hands it to the next; answered when all that it causes there has been answered."""

    number: Count
    """The sender's, for the answer."""
    transaction: Identifier = ""
    path: Identifier = ""
    changes: tuple[Change, ...] = ()
    publication: Publication | None = None
    invited: str = ""
    """The client that a publication invites into the transaction; nobody else gets it."""
    member: str = ""
    """A client that has come, or gone: passed on to everybody, so that every broker knows the way to every client."""
    home: str = ""
    """Its broker; empty if it is gone."""
    shared: bool = False
    """Whether the changes are made on the tables that everybody sees, and so even if the transaction is over here."""


class Stepped(Frame, frozen=True, tag=112):
    """A step and all that it caused is over."""

    number: Count
    refused: str = ""
    away: tuple[str, ...] = ()
    """It is over at all brokers but these, which are away; answered once more when it is over there, too."""


class Adopted(Frame, frozen=True, tag=113):
    """Ahead of all else, to a broker that comes to stand beside one in use: how far that is; passed on to all behind."""

    version: Count
    kept: tuple[Count, ...]
    """Older versions by which events may still be routed."""
    numbered: Count = 0
    """The largest number of a transaction that was seen."""
    transactions: tuple[tuple[Identifier, Count, bool], ...] = ()
    """Those that are open: the version they began with, and whether they are isolated."""


# -- What a node hands to itself, to be kept with what it was handed by others ---------------------


class Tick(Frame, frozen=True, tag=120):
    """Something is due."""


class Expire(Frame, frozen=True, tag=121):
    """A client was not heard for too long."""

    client: Name


class Disconnected(Frame, frozen=True, tag=125):
    """A client lost its connection, and did not come back within `grace_ns`."""

    client: Name


class Reconnected(Frame, frozen=True, tag=126):
    """A disconnected client has a connection again."""

    client: Name


class Away(Frame, frozen=True, tag=127):
    """A neighbour has acknowledged nothing for `away_ns`."""

    neighbour: Name


class Back(Frame, frozen=True, tag=128):
    """A neighbour that was away has sent something."""

    neighbour: Name


class Adopt(Frame, frozen=True, tag=123):
    """A newcomer stands beside this broker."""

    neighbour: Name


class Abandon(Frame, frozen=True, tag=124):
    """A neighbour has left for good."""

    neighbour: Name


class Forbidden(Frame, frozen=True, tag=122):
    """Stands in the place of a client's request that whoever carried it here does not permit."""

    number: Count
    """Of the request, which is answered with the reason."""
    reason: str


FRAMES: tuple[type[Frame], ...] = (
    Hello,
    Beat,
    Expired,
    Goodbye,
    Operate,
    Done,
    Notify,
    Routed,
    Step,
    Stepped,
    Adopted,
    Tick,
    Expire,
    Forbidden,
    Adopt,
    Abandon,
    Disconnected,
    Reconnected,
    Away,
    Back,
)
