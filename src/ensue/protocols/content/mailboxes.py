"""Mailboxes: durable content subscriptions, which outlive the sessions of their readers.

Guarantees. An event that is routed to a durable subscription is kept, in the broker's input log,
until its reader has acknowledged it. A client that attaches under the name gets all kept events in
their order, those that an earlier reader had and did not acknowledge first (`redelivered`). No
event is sent to a reader that attaches after its acknowledgement was answered. Of two readers the
later wins: each attachment begins an epoch, and requests of an earlier epoch are refused.

Theory of operation. A mailbox is a client that lives at its broker: it has a name among the
clients of the tree, a home and one subscription, so tables and transactions treat it as any other
client. What the broker would send to it (`BrokerState.send`), the mailbox takes: events are
numbered and kept; the answer to its subscription is passed on to its reader. Positions are 1, 2, 3,
… over all readers. The broker sends at most `window` events beyond the last acknowledged one: that
is the back-pressure. A mailbox ends when its reader forgets it, not with a session. One that is
made again under the name has another subscription: it gets no event that was published for the
earlier one, also if the transaction of that event commits later.

Transactions deliver to mailboxes. They do not make, withdraw or invite them: a plan or an
invitation that names one is refused (`transactional_refusal`).

Limits. A mailbox keeps at most `kept_max` events, all of a broker `kept_bytes_max` bytes. The event
beyond is lost, and so are all later ones: the mailbox is *overfull*. The events of a transaction
are kept all or not at all. A reader still gets what was kept; then it is detached, with the limit
as the reason. The next one is refused unless it accepts the loss. A broker has at most
`mailboxes_max` of them. One user has at most as many as its server says with each request to attach
(`owned_max`): the limit that decided is in the log with the request.

A mailbox that has had no reader for `mailbox_expire_ns` ends, if that is not 0: what it kept is
gone, and its name is refused until a client of its user accepts the loss. Time while the broker is
down counts, but none ends within `lease_ns` of its start: readers need time to return.

Assumptions. All clients attach a name at the same broker; servers refuse it elsewhere.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from ensue.core.errors import limit_reason
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.effects import Effects
from ensue.protocols.content.frames import (
    Attach,
    Attached,
    Detached,
    Dismiss,
    Done,
    Mailed,
    Notify,
    Publication,
)
from ensue.protocols.interface import Frame
from ensue.protocols.shared.state_store import FORGOTTEN, SUPERSEDED

__all__ = [
    "Expired",
    "Kept",
    "Mailbox",
    "Mailboxes",
    "mailbox_of",
    "transactional_refusal",
]

PREFIX = "durable/"
"""How names of mailboxes begin; no other client's name has a slash."""
HOUR_NS = 3_600 * 1_000_000_000
EVENT_BYTES = 256
"""What an event without a payload counts."""


def mailbox_of(name: str) -> str:
    """Return the client name of a mailbox."""
    return f"{PREFIX}{name}"


def transactional_refusal(client: str) -> str:
    """Return why a client can't take part in transactions, or nothing."""
    if not client.startswith(PREFIX):
        return ""
    name = client.removeprefix(PREFIX)
    return f"{name!r} is a durable subscription, which transactions do not change: forget it"


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """An event without an acknowledgement."""

    publication: Publication
    transaction: str = ""
    path: str = ""
    following: int = 0

    @property
    def size(self) -> int:
        """What it counts among the bytes that a broker keeps."""
        size = EVENT_BYTES + len(self.publication.payload)
        for name, value in self.publication.attributes.items():
            # A character has up to four bytes.
            size += 16 + 4 * len(name) + (4 * len(value) if isinstance(value, str) else 0)
        return size


class Mailbox(msgspec.Struct, array_like=True):
    """A durable subscription at its home."""

    subscription: str
    where: str
    owner: str = ""
    """The first user that attached, where there are users."""
    reader: str = ""
    """The attached client; empty: none."""
    number: int = 0
    """The reader's request to attach, until it has its last answer."""
    epoch: int = 0
    """Number of attachments."""
    window: int = 1
    """Of this reader."""
    away: tuple[str, ...] | None = None
    """Brokers where it is not in effect because they are away; None: it is in effect nowhere."""
    acknowledged: int = 0
    """Events up to this position are acknowledged; the next one is the first kept."""
    pushed: int = 0
    """Position of the last event sent to this reader."""
    seen: int = 0
    """Position of the last event sent to any reader."""
    kept: list[Kept] = msgspec.field(default_factory=list)
    overfull: str = ""
    """Why it keeps nothing more; empty: it does."""
    idle_since_ns: int = 0
    """When its last reader left; 0: it has one."""

    @property
    def last(self) -> int:
        """Position of the last event."""
        return self.acknowledged + len(self.kept)


class Expired(msgspec.Struct, frozen=True, array_like=True):
    """A mailbox that has expired."""

    owner: str
    reason: str
    """What a client that enters it is refused with."""


class Mailboxes:
    """The mailboxes of one broker, by client name."""

    def __init__(self, config: ContentConfig, effects: Effects) -> None:
        self._config = config
        self._effects = effects
        self.open: dict[str, Mailbox] = {}
        self.now_ns = 0
        """The time of the input that is being handled."""
        self.expired: dict[str, Expired] = {}
        """Mailboxes that have expired, and that no client has entered since."""
        self._owned: Counter[str] = Counter()
        """By user: how many mailboxes it has."""
        self._idle: dict[str, int] = {}
        """Mailboxes without a reader, by when it left, earliest first."""
        self.made = 0
        """How many have been made: the number is part of the subscription's name."""
        self._bytes = 0
        """What all kept events count."""
        self._bytes_of: Counter[str] = Counter()
        """By mailbox: what its kept events count."""
        self._arriving: dict[str, list[Notify]] = {}
        """By mailbox: events of a transaction whose last one has not arrived.

        They all arrive with one input of the broker: between two inputs there are none.
        """

    def __contains__(self, client: str) -> bool:
        """Return whether a client is a mailbox."""
        return client in self.open

    def restore(
        self, mailboxes: dict[str, Mailbox], made: int, expired: dict[str, Expired]
    ) -> None:
        """Restore the persisted mailboxes."""
        self.open, self.made, self.expired = mailboxes, made, expired
        self._owned = Counter(one.owner for one in mailboxes.values())
        idle = sorted((one.idle_since_ns, name) for name, one in mailboxes.items())
        self._idle = {name: since_ns for since_ns, name in idle if since_ns}
        self._bytes_of = Counter(
            {name: sum(one.size for one in mailbox.kept) for name, mailbox in mailboxes.items()}
        )
        self._bytes = self._bytes_of.total()

    def bytes_of(self, name: str) -> int:
        """Return what the kept events of a mailbox count."""
        return self._bytes_of[name]

    def refusal(self, name: str, frame: Attach) -> str:
        """Return why a client can't attach, or nothing."""
        mailbox = self.open.get(name)
        if mailbox is None:
            return self._refusal_of_new(name, frame)
        if _is_of_another(mailbox, frame):
            return _another(frame.name)
        if mailbox.where != frame.where:
            return (
                f"the durable subscription {frame.name!r} has the filter {mailbox.where!r}, got "
                f"{frame.where!r}: enter it with its own filter, forget it first, or choose "
                "another name"
            )
        return "" if mailbox.kept or frame.accept_loss else mailbox.overfull

    def _refusal_of_new(self, name: str, frame: Attach) -> str:
        """Return why a client can't make a mailbox, or nothing."""
        expired = self.expired.get(name)
        if expired is not None and _is_of_another(expired, frame):
            return _another(frame.name)
        if expired is not None and not frame.accept_loss:
            return expired.reason
        limit = self._config.mailboxes_max
        if len(self.open) >= limit:
            what = "there are too many durable subscriptions"
            return limit_reason(what, "mailboxes_max", limit, "forget some")
        limit = frame.owned_max
        if limit and self._owned[frame.owner] >= limit:
            what = f"{frame.owner!r} has too many durable subscriptions here"
            how = "forget some, or raise limits.mailboxes_per_user in the server's file"
            return limit_reason(what, "mailboxes_per_user", limit, how)
        return ""

    def make(self, name: str, frame: Attach) -> Mailbox:
        """Make a mailbox, whose subscription has a name that no other one had."""
        self.made += 1
        self.expired.pop(name, None)
        made = self.open[name] = Mailbox(f"{name}.sub{self.made}", frame.where, frame.owner)
        self._owned[frame.owner] += 1
        return made

    def attach(self, name: str, frame: Attach, reader: str) -> None:
        """Begin an epoch with a reader; detach the earlier one."""
        mailbox = self.open[name]
        self._detach(name, mailbox, SUPERSEDED)
        mailbox.reader, mailbox.number = reader, frame.number
        mailbox.idle_since_ns = 0
        self._idle.pop(name, None)
        if frame.owner and not mailbox.owner:
            self._owned.subtract([""])
            self._owned[frame.owner] += 1
            mailbox.owner = frame.owner
        mailbox.epoch += 1
        mailbox.window = max(1, min(frame.window, self._config.window))
        mailbox.pushed = mailbox.acknowledged
        if frame.accept_loss:
            mailbox.overfull = ""
        attached = Attached(
            number=frame.number,
            mailbox=name,
            epoch=mailbox.epoch,
            subscription=mailbox.subscription,
        )
        self._effects.send(reader, attached)
        self._answer(mailbox)
        self._push(name, mailbox)

    def take(self, name: str, frame: Frame) -> None:
        """Take a frame for a mailbox: keep an event, pass on the answer to its subscription."""
        mailbox = self.open[name]
        if isinstance(frame, Notify):
            arriving = self._arriving.setdefault(name, [])
            arriving.append(frame)
            if not any(frame.following):
                del self._arriving[name]
                self._keep(name, mailbox, arriving)
                self._push(name, mailbox)
                self.detach_overfull(name)
        elif isinstance(frame, Done) and frame.number:
            mailbox.away = frame.away
            self._answer(mailbox)

    def _answer(self, mailbox: Mailbox) -> None:
        """Answer the reader, when the subscription is in effect at brokers that are not away."""
        if mailbox.reader and mailbox.number and mailbox.away is not None:
            done = Done(number=mailbox.number, away=mailbox.away)
            self._effects.send(mailbox.reader, done)
            if not mailbox.away:
                mailbox.number = 0

    def refuse_reader(self, name: str, epoch: int, client: str) -> str:
        """Return why a client is not the reader of a mailbox, or nothing."""
        mailbox = self.open.get(name)
        is_reader = mailbox is not None and (mailbox.reader, mailbox.epoch) == (client, epoch)
        return "" if is_reader else SUPERSEDED

    def release(self, name: str) -> None:
        """Detach the reader of a mailbox, at its own request."""
        self._lose_reader(name, self.open[name])

    def detach_all_of(self, reader: str) -> None:
        """Detach a reader that has left from its mailboxes."""
        for name, mailbox in self.open.items():
            if mailbox.reader == reader:
                self._lose_reader(name, mailbox)

    def remove(self, name: str) -> None:
        """Remove a mailbox, with what it keeps."""
        self._bytes -= self._bytes_of.pop(name, 0)
        self._owned.subtract([self.open.pop(name).owner])
        self._owned += Counter()  # Forget users that have none.
        self._idle.pop(name, None)

    # -- Mailboxes without readers --------------------------------------------------------------

    def _lose_reader(self, name: str, mailbox: Mailbox) -> None:
        mailbox.reader = ""
        # 0 stands for a mailbox with a reader.
        mailbox.idle_since_ns = self._idle[name] = max(1, self.now_ns)

    def due_ns(self) -> int | None:
        """Return when the next mailbox expires, if one does."""
        first_ns = next(iter(self._idle.values()), None)
        expire_ns = self._config.mailbox_expire_ns
        return None if first_ns is None or not expire_ns else first_ns + expire_ns

    def idle(self, now_ns: int) -> list[str]:
        """Return the mailboxes that have had no reader for too long."""
        last_ns = now_ns - self._config.mailbox_expire_ns
        return [name for name, since_ns in self._idle.items() if since_ns <= last_ns]

    def note_expired(self, name: str, idle_ns: int) -> None:
        """Refuse the name of a mailbox that is about to end, until a client accepts the loss."""
        hours = idle_ns / HOUR_NS
        reason = (
            f"the durable subscription {name.removeprefix(PREFIX)!r} has expired, with the events "
            f"that it kept: it had no reader for {hours:g} hours (mailbox_expire); enter it with "
            "accept_loss=True"
        )
        self.expired[name] = Expired(self.open[name].owner, reason)
        if len(self.expired) > self._config.mailboxes_max:
            del self.expired[next(iter(self.expired))]

    def refuse_dismissal(self, name: str, frame: Dismiss) -> str:
        """Return why a client can't end a mailbox that it does not read, or nothing."""
        known = self.open.get(name) or self.expired.get(name)
        if known is None:
            return f"there is no durable subscription {frame.name!r} by content"
        return _another(frame.name) if _is_of_another(known, frame) else ""

    def dismiss(self, name: str) -> bool:
        """Detach the reader of a mailbox that ends; return whether there is a mailbox."""
        self.expired.pop(name, None)
        mailbox = self.open.get(name)
        if mailbox is not None:
            self._detach(name, mailbox, FORGOTTEN)
        return mailbox is not None

    # -- Events ---------------------------------------------------------------------------------

    def acknowledge(self, name: str, position: int) -> None:
        """Drop events up to a position, and send further ones."""
        mailbox = self.open[name]
        count = min(position, mailbox.pushed) - mailbox.acknowledged
        if count <= 0:
            return
        self._count(name, -sum(one.size for one in mailbox.kept[:count]))
        del mailbox.kept[:count]
        mailbox.acknowledged += count
        self._push(name, mailbox)

    def detach_overfull(self, name: str) -> None:
        """Detach the reader of a mailbox that lost events, when it has handled the others."""
        mailbox = self.open[name]
        if mailbox.overfull and not mailbox.kept:
            self._detach(name, mailbox, mailbox.overfull)

    def _push(self, name: str, mailbox: Mailbox) -> None:
        """Send the reader the next events, within the window."""
        if not mailbox.reader:
            return
        end = min(mailbox.acknowledged + mailbox.window, mailbox.last)
        for position in range(mailbox.pushed + 1, end + 1):
            one = mailbox.kept[position - mailbox.acknowledged - 1]
            mailed = Mailed(
                publication=one.publication,
                mailbox=name,
                epoch=mailbox.epoch,
                position=position,
                redelivered=position <= mailbox.seen,
                transaction=one.transaction,
                path=one.path,
                following=one.following,
            )
            self._effects.send(mailbox.reader, mailed)
        mailbox.pushed = max(mailbox.pushed, end)
        mailbox.seen = max(mailbox.seen, mailbox.pushed)

    def _count(self, name: str, size: int) -> None:
        """Count bytes that are kept from now on, or, below 0, no longer."""
        self._bytes += size
        self._bytes_of[name] += size

    def _keep(self, name: str, mailbox: Mailbox, frames: Sequence[Notify]) -> None:
        """Keep an event, or all of a transaction, unless it is overfull or there is no room."""
        those = [
            Kept(one.publication, one.transaction, one.path, sum(one.following)) for one in frames
        ]
        mailbox.overfull = mailbox.overfull or self._full(mailbox, those)
        if not mailbox.overfull:
            mailbox.kept += those
            self._count(name, sum(one.size for one in those))

    def _full(self, mailbox: Mailbox, those: Sequence[Kept]) -> str:
        """Return why there is no room for events, or nothing."""
        config, how = self._config, "read it faster, and enter it with accept_loss=True"
        if len(mailbox.kept) + len(those) > config.kept_max:
            what = "it lost events: too many were not acknowledged"
            return limit_reason(what, "kept_max", config.kept_max, how)
        if self._bytes + sum(one.size for one in those) > config.kept_bytes_max:
            what = "it lost events: its server keeps too many bytes"
            return limit_reason(what, "kept_bytes_max", config.kept_bytes_max, how)
        return ""

    def _detach(self, name: str, mailbox: Mailbox, reason: str) -> None:
        if mailbox.reader:
            if mailbox.number and mailbox.away is None:
                self._effects.send(mailbox.reader, Done(number=mailbox.number, refused=reason))
            detached = Detached(mailbox=name, epoch=mailbox.epoch, reason=reason)
            self._effects.send(mailbox.reader, detached)
            self._lose_reader(name, mailbox)


def _is_of_another(known: Mailbox | Expired, frame: Attach | Dismiss) -> bool:
    """Return whether a mailbox belongs to another user than the one that asks, if there are any."""
    return frame.owner != "" and known.owner not in ("", frame.owner)


def _another(name: str) -> str:
    return f"the durable subscription {name!r} belongs to another user"
