"""Frames between clients and brokers of the tree, apart from transactions.

Frames between neighbors, and between a client and its broker, travel over numbered links
(`shared.link`): each arrives once, and in the order it was sent, also across crashes. Filters
travel as text.
"""

from typing import Annotated

import msgspec

from ensue.core.event import Count, Name
from ensue.protocols.content.filters.filter import name_text, value_text
from ensue.protocols.interface import Frame

__all__ = [
    "ADVERTISE",
    "CONTENT",
    "FRAMES",
    "IDENTIFIER_LENGTH_MAX",
    "INVITATION",
    "PLANNED_FROM",
    "SUBSCRIBE",
    "UNADVERTISE",
    "UNNUMBERED",
    "UNSUBSCRIBE",
    "Abandon",
    "Acknowledge",
    "Adopt",
    "Adopted",
    "Attach",
    "Attached",
    "Away",
    "Back",
    "Beat",
    "Change",
    "Detached",
    "Disconnected",
    "Dismiss",
    "Done",
    "Expire",
    "Expired",
    "Forbidden",
    "Goodbye",
    "Hello",
    "Identifier",
    "Mailed",
    "Notify",
    "Operate",
    "Publication",
    "Reached",
    "Reconnected",
    "Release",
    "Routed",
    "Step",
    "Stepped",
    "Tick",
]

ADVERTISE, UNADVERTISE, SUBSCRIBE, UNSUBSCRIBE = "adv", "uadv", "sub", "usub"
PLANNED_FROM = 2**40
"""A client's home assigns numbers above this to publications that others planned."""
INVITATION = "ensue.invitation"
"""The reserved attribute of invitations by content: see `transactions.invitations`."""
CONTENT = "content"
"""The topic of events that are described by their attributes."""

IDENTIFIER_LENGTH_MAX = 1024
Identifier = Annotated[str, msgspec.Meta(max_length=IDENTIFIER_LENGTH_MAX)]
"""The name of an advertisement, a subscription or a transaction, or a path."""


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """One change of the routing tables."""

    action: str
    name: Identifier
    """The name of the advertisement or subscription: unique, chosen by its client."""
    where: str = ""
    """The filter, if it is added."""


class Publication(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True
):
    """An event that is described by its attributes."""

    publisher: Name
    number: Count
    """1, 2, 3, … per publisher; above `PLANNED_FROM`, assigned by its home."""
    attributes: dict[str, bool | int | float | str]
    payload: bytes = b""
    published_at_ns: int = 0

    @property
    def id(self) -> str:
        """The unique name of the publication."""
        return f"{self.publisher}/{self.number}"

    @property
    def text(self) -> str:
        """The attributes as a filter that matches only them."""
        return " and ".join(
            f"{name_text(name)} = {value_text(value)}" for name, value in self.attributes.items()
        )


# -- A client and its broker --------------------------------------------------------------------


class Hello(Frame, frozen=True, tag=100):
    """A client begins its session; repeated until it is answered. Not numbered."""


class Beat(Frame, frozen=True, tag=101):
    """A client renews its lease. Not numbered."""


class Expired(Frame, frozen=True, tag=102):
    """A broker does not know the client, or has ended its session. Not numbered."""


class Goodbye(Frame, frozen=True, tag=103):
    """A client leaves: its advertisements and subscriptions end."""


class Operate(Frame, frozen=True, tag=104):
    """A client's operation: a change or a publication."""

    number: Count
    """The number of the request, answered with `Done`."""
    transaction: Identifier = ""
    """Empty: a regular operation."""
    path: Identifier = ""
    """The operation's place in its transaction: see `transactions.frames`."""
    change: Change | None = None
    publication: Publication | None = None


class Done(Frame, frozen=True, tag=105):
    """The answer to a request: the operation has reached every broker that it concerns."""

    number: Count
    refused: str = ""
    """Why it was refused; empty if it was not."""
    transaction: Identifier = ""
    """The name of the transaction that was begun."""
    away: tuple[str, ...] = ()
    """Brokers that are away; when they are back the request is answered once more."""


class Notify(Frame, frozen=True, tag=106):
    """A publication that a client subscribed to."""

    publication: Publication
    subscriptions: tuple[Identifier, ...]
    transaction: Identifier = ""
    path: Identifier = ""
    following: tuple[Count, ...] = ()
    """By subscription: number of events of the transaction that follow at once."""


class Attach(Frame, frozen=True, tag=107):
    """A client reads a durable subscription, which is made if it is new."""

    number: Count
    name: Identifier
    where: str
    window: Count = 1
    """Events that may be without an acknowledgement."""
    accept_loss: bool = False
    """Whether it goes on after it lost events."""
    owner: Identifier = ""
    """The user, as the server knows it; clients leave it empty."""
    owned_max: Count = 0
    """How many that user may have, as the server limits them; clients leave it 0: any number."""


class Attached(Frame, frozen=True, tag=114):
    """A client is the reader of a mailbox; its request is answered with `Done`."""

    number: Count
    mailbox: Identifier
    epoch: Count
    subscription: Identifier = ""


class Acknowledge(Frame, frozen=True, tag=108):
    """A reader has handled the events of a mailbox up to a position."""

    number: Count
    mailbox: Identifier
    epoch: Count
    position: Count


class Release(Frame, frozen=True, tag=109):
    """A reader ends a durable subscription, or only its own attachment."""

    number: Count
    mailbox: Identifier
    epoch: Count
    forget: bool = False


class Dismiss(Frame, frozen=True, tag=118):
    """A client that need not be its reader ends a durable subscription."""

    number: Count
    name: Identifier
    owner: Identifier = ""
    """The required owner, as the server knows it; clients leave it empty: any owner."""


class Mailed(Frame, frozen=True, tag=116):
    """An event of a durable subscription, for its reader."""

    publication: Publication
    mailbox: Identifier
    epoch: Count
    position: Count
    redelivered: bool = False
    """Whether an earlier reader may have had it."""
    transaction: Identifier = ""
    path: Identifier = ""
    following: Count = 0
    """Number of events of the transaction that follow at once."""


class Detached(Frame, frozen=True, tag=115):
    """A client is the reader of a mailbox no longer."""

    mailbox: Identifier
    epoch: Count
    reason: str


# -- Brokers ------------------------------------------------------------------------------------


class Routed(Frame, frozen=True, tag=110):
    """A regular publication on its way."""

    publication: Publication
    seen: dict[str, Count]
    """The version of the tables by which all brokers route it (D8): see `versions`."""


class Step(Frame, frozen=True, tag=111):
    """An operation as one broker passes it on; if numbered, answered when all it causes are."""

    number: Count
    """The sender's number, for the answer; 0: it is not answered."""
    transaction: Identifier = ""
    path: Identifier = ""
    changes: tuple[Change, ...] = ()
    publication: Publication | None = None
    invited: str = ""
    """The only client that gets the publication: an invitation into the transaction."""
    member: str = ""
    """A client that joined or left; all brokers need a route to it."""
    home: str = ""
    """The home of the client; empty if it has left."""
    shared: bool = False
    """Whether the changes are made on the shared tables, also if the transaction has ended."""


class Stepped(Frame, frozen=True, tag=112):
    """The answer to a step: all steps that it caused have been answered."""

    number: Count
    refused: str = ""
    away: tuple[str, ...] = ()
    """Brokers that are away; when they are back the step is answered once more."""


class Reached(Frame, frozen=True, tag=117):
    """The answer to an invitation by content, instead of `Done` or `Stepped`."""

    number: Count
    refused: str = ""
    clients: Count = 0
    """How many clients were invited."""


class Adopted(Frame, frozen=True, tag=113):
    """The state that a joining broker begins with; passed on to the brokers behind it."""

    commits: dict[str, Count]
    """By home of the coordinator: how many of its transactions were committed."""
    kept: tuple[tuple[Name, Count], ...]
    """Commits, home and number, that events under way may not have seen."""
    numbered: Count = 0
    """The largest number of a transaction seen."""


# -- Inputs that a node gives itself, so that they are logged -------------------------------------


class Tick(Frame, frozen=True, tag=120):
    """A deadline has passed."""


class Expire(Frame, frozen=True, tag=121):
    """The session of a client ends, or a durable subscription that no client reads."""

    client: Name
    idle_ns: Count = 0
    """How long a durable subscription may have no reader."""


class Disconnected(Frame, frozen=True, tag=125):
    """A client has had no connection for `grace_ns`."""

    client: Name


class Reconnected(Frame, frozen=True, tag=126):
    """A disconnected client has a connection again."""

    client: Name


class Away(Frame, frozen=True, tag=127):
    """A neighbor has acknowledged nothing for `away_ns`."""

    neighbor: Name


class Back(Frame, frozen=True, tag=128):
    """A neighbor that was away has sent something."""

    neighbor: Name


class Adopt(Frame, frozen=True, tag=123):
    """A neighbor joins the tree."""

    neighbor: Name


class Abandon(Frame, frozen=True, tag=124):
    """A neighbor has left the tree permanently."""

    neighbor: Name


class Forbidden(Frame, frozen=True, tag=122):
    """Replaces a client's request that the server does not permit."""

    number: Count
    """The number of the request, which is answered with the reason."""
    reason: str


FRAMES: tuple[type[Frame], ...] = (
    Hello,
    Beat,
    Expired,
    Goodbye,
    Operate,
    Done,
    Notify,
    Attach,
    Attached,
    Acknowledge,
    Release,
    Dismiss,
    Mailed,
    Detached,
    Routed,
    Step,
    Stepped,
    Reached,
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

UNNUMBERED: tuple[type[Frame], ...] = (Hello, Beat, Expired)
"""Frames that travel without numbers: their senders repeat them."""
