"""The content half of a client: its session, its requests and its subscriptions.

`transactions.client.TransactionClient` is the node that owns it.

Guarantees. Every request is answered once (`Answered`): a change when it is in effect at all
brokers but those that are away, which the answer names; a publication when its home has persisted
it. An event is delivered once to each subscription that matches it, in the order its home routed
it. A restarted client resumes where it stopped, if it kept its records and its session has not
ended (`lease_ns`); otherwise it gets `SessionEnded`, and must connect under another name.

Theory of operation. Requests are numbered and travel over a numbered link, as do answers and
notifications. `Hello` is repeated until the home answers, `Beat` for as long as the client lives.
"""

from collections.abc import Mapping
from itertools import chain, repeat
from typing import Any

import msgspec

from ensue.core.wire import Codec, Records
from ensue.protocols.content import frames as f
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.effects import Effects
from ensue.protocols.content.filters.filter import event_of
from ensue.protocols.content.frames import Change, Publication
from ensue.protocols.content.mailboxes import mailbox_of

__all__ = [
    "Answered",
    "Attachment",
    "ClientRecord",
    "ContentClient",
    "Notified",
    "SessionEnded",
    "Superseded",
    "Welcomed",
]


class Answered(msgspec.Struct, frozen=True):
    """The answer to a request."""

    number: int
    refused: str = ""
    """Why it was refused; empty if it was not."""
    transaction: str = ""
    away: tuple[str, ...] = ()
    """Brokers that are away: it takes effect there when they are back."""
    reached: int = 0
    """How many clients an invitation by content has reached."""


class Attachment(msgspec.Struct, frozen=True):
    """This client reads a durable subscription: the request `number` is about to be answered."""

    number: int
    mailbox: str
    epoch: int


class Superseded(msgspec.Struct, frozen=True):
    """This client reads a durable subscription no longer."""

    mailbox: str
    epoch: int
    reason: str


class Notified(msgspec.Struct, frozen=True):
    """An event for one subscription."""

    publication: Publication
    subscription: str
    position: int
    """1, 2, 3, … in that subscription; 0 if this client has just withdrawn it."""
    transaction: str = ""
    path: str = ""
    """The path of the operation that published it, in its transaction."""
    following: int = 0
    """Number of events of the transaction that follow for the subscription."""
    mailbox: str = ""
    """The mailbox, if the subscription is durable."""
    epoch: int = 0
    redelivered: bool = False
    """Whether an earlier reader may have had it."""

    def row(self, action: str, position: int, verdict: str = "") -> dict[str, Any]:
        """Return the trace row of the event's outcome."""
        publication = self.publication
        return {
            "action": action,
            "event": f"{self.transaction}#{self.path}" if self.transaction else publication.id,
            "topic": publication.text,
            "publisher": publication.publisher,
            "publisher_seq": publication.number,
            "position": position,
            "subscription": self.subscription,
            "verdict": verdict,
            "transaction": self.transaction or None,
        }


class Welcomed(msgspec.Struct, frozen=True):
    """All brokers have a route to this client."""


class SessionEnded(msgspec.Struct, frozen=True):
    """The home has ended the session: no frames are received or sent any more."""


class ClientRecord(msgspec.Struct, array_like=True):
    """The state of a client as it is persisted."""

    asked: dict[int, bytes]
    last_number: int
    published: int
    positions: dict[str, int]
    welcomed: bool
    ended: bool
    gone: bool
    rest: bytes
    ahead: dict[int, Change] = {}
    attached: dict[str, tuple[str, int]] = {}


RECORD = Records[ClientRecord](ClientRecord)


class ContentClient:
    """The session, requests and subscriptions of one client."""

    def __init__(self, *, name: str, home: str, config: ContentConfig, effects: Effects) -> None:
        self.name = name
        self._home = home
        self._config = config
        self._effects = effects
        self.asked: dict[int, Any] = {}
        """Requests without an answer."""
        self.last_number = 0
        """The number of the last request."""
        self.published = 0
        """The number of the last publication."""
        self.latest: Publication | None = None
        """The last publication."""
        self.positions: dict[str, int] = {}
        """By subscription: number of its events."""
        self._withdrawn: set[str] = set()
        """Subscriptions that were withdrawn ahead of the answer to them."""
        self._ahead: dict[int, Change] = {}
        """By request: subscriptions that were answered ahead of brokers that are away."""
        self._attached: dict[str, tuple[str, int]] = {}
        """By mailbox that this client reads, or has read: its subscription, and the last epoch."""
        self.welcomed = False
        self.ended = False
        """Whether this client has left, or its session has ended."""
        self.gone = False
        """Whether the home knows that this client has left."""
        self._beat_due_ns = 0

    def record(self, codec: Codec, rest: bytes) -> bytes:
        """Return the state to persist; `rest` is that of the transaction client."""
        asked = {number: codec.encode(frame) for number, frame in self.asked.items()}
        return RECORD.encode(
            ClientRecord(
                asked,
                self.last_number,
                self.published,
                self.positions,
                self.welcomed,
                self.ended,
                self.gone,
                rest,
                self._ahead,
                self._attached,
            )
        )

    def restore(self, codec: Codec, state: bytes) -> bytes:
        """Restore the persisted state; return the rest, of the transaction client."""
        record = RECORD.decode(state)
        self.asked = {number: codec.decode(data) for number, data in record.asked.items()}
        self.last_number, self.published = record.last_number, record.published
        self.positions, self._ahead = record.positions, record.ahead
        self._attached = record.attached
        self.welcomed, self.ended, self.gone = record.welcomed, record.ended, record.gone
        return record.rest

    # -- Session --------------------------------------------------------------------------------

    def start(self, now_ns: int) -> None:
        """Start sending beats."""
        self._beat_due_ns = now_ns

    def beat(self, now_ns: int) -> None:
        """Send a `Hello` or a `Beat` if one is due."""
        if self.ended or now_ns < self._beat_due_ns:
            return
        self._effects.send(self._home, f.Beat() if self.welcomed else f.Hello())
        wait_ns = self._config.beat_ns if self.welcomed else self._config.hello_ns
        self._beat_due_ns = now_ns + wait_ns

    def next_beat_ns(self) -> int | None:
        """Return when the next beat is due."""
        return None if self.ended else self._beat_due_ns

    def leave(self, frame: f.Goodbye) -> None:
        """End the session from this side."""
        self._effects.send(self._home, frame)
        self.ended = True

    def expire(self) -> None:
        """Note that the home has ended the session."""
        if not self.welcomed:
            return  # Meant for a former client of this name.
        if not self.ended:
            self._effects.notify(SessionEnded())
        self.ended = self.gone = True
        self.asked.clear()

    # -- Requests -------------------------------------------------------------------------------

    def new_name(self, action: str) -> str:
        """Return a new name for an advertisement or a subscription."""
        return f"{self.name}.{action}{self.last_number + 1}"

    def publication(
        self, attributes: Mapping[str, object], payload: bytes, now_ns: int
    ) -> Publication:
        """Return the next publication of this client."""
        return Publication(
            publisher=self.name,
            number=self.published + 1,
            attributes=event_of(attributes),
            payload=payload,
            published_at_ns=now_ns,
        )

    def send_request(self, frame: Any) -> None:
        """Keep a request until it is answered, and send it to the home."""
        self.keep_request(frame)
        publication = getattr(frame, "publication", None)
        if publication is not None:
            self.latest = publication
            if not frame.transaction:
                self._effects.notify(
                    None,
                    action="published",
                    event=publication.id,
                    topic=publication.text,
                    publisher=publication.publisher,
                    publisher_seq=publication.number,
                )
        change = getattr(frame, "change", None)
        if change is not None and change.action == f.UNSUBSCRIBE and not frame.transaction:
            self._effects.notify(None, action="unsubscribed", subscription=change.name)
            # Events under way are no longer counted.
            if self.positions.pop(change.name, None) is None:
                self._withdrawn.add(change.name)
        self._effects.send(self._home, frame)

    def keep_request(self, frame: Any) -> None:
        """Keep a request until it is answered; `send_kept` sends it."""
        self.last_number = frame.number
        self.asked[frame.number] = frame
        publication = getattr(frame, "publication", None)
        if publication is not None:
            self.published = publication.number

    def send_kept(self, number: int) -> None:
        """Send a request that was kept."""
        self._effects.send(self._home, self.asked[number])

    def refuse_kept(self, number: int, refused: str) -> None:
        """Answer a request that was kept and will not be sent."""
        self.asked.pop(number, None)
        self._effects.notify(Answered(number, refused))

    def attached(self, frame: f.Attached) -> None:
        """Note that this client reads a durable subscription."""
        self._attached[frame.mailbox] = (frame.subscription, frame.epoch)
        self._effects.notify(Attachment(frame.number, frame.mailbox, frame.epoch))

    def detached(self, frame: f.Detached) -> None:
        """Note that this client reads a durable subscription no longer."""
        self._effects.notify(
            Superseded(frame.mailbox, frame.epoch, frame.reason),
            action="unsubscribed",
            subscription=self._subscription_of(frame.mailbox),
            verdict="detached",
        )

    def release(self, frame: f.Release) -> None:
        """Stop reading a durable subscription."""
        self._effects.notify(
            None,
            action="unsubscribed",
            subscription=self._subscription_of(frame.mailbox),
            verdict="" if frame.forget else "closed",
        )
        self.send_request(frame)

    def done(self, frame: f.Done | f.Reached) -> Any:
        """Handle an answer of the home; return the request, if this is the first answer."""
        if not frame.number:
            self.welcomed = True
            self._effects.notify(Welcomed())
            return None
        asked = self.asked.pop(frame.number, None)
        if asked is not None:
            self._answered(asked, frame)
            return asked
        change = self._ahead.pop(frame.number, None)
        if change is not None and (change.name in self.positions or change.name in self._epochs):
            self._effects.notify(None, **self._subscribed(change))
        return None

    def _count(self, name: str) -> None:
        """Count the events of a subscription, unless it was withdrawn ahead of the answer.

        The broker counts those of a durable one.
        """
        if name in self._withdrawn:
            self._withdrawn.remove(name)
        elif name not in self._epochs:
            self.positions.setdefault(name, 0)

    def _subscribed(self, change: Change) -> dict[str, Any]:
        """Return the trace row of a subscription that is in effect."""
        row: dict[str, Any] = {
            "action": "subscribed",
            "subscription": change.name,
            "topic": change.where,
        }
        if change.name in self._epochs:
            row["publisher_seq"] = self._epochs[change.name]
        return row

    def _answered(self, asked: Any, frame: f.Done | f.Reached) -> None:
        if isinstance(frame, f.Reached):
            self._effects.notify(Answered(frame.number, frame.refused, reached=frame.clients))
            return
        answer = Answered(frame.number, frame.refused, frame.transaction, frame.away)
        change = getattr(asked, "change", None)
        if isinstance(asked, f.Attach):
            name = self._subscription_of(mailbox_of(asked.name))
            change = Change(f.SUBSCRIBE, name, asked.where)
        elif isinstance(asked, f.Acknowledge) and not frame.refused:
            self._effects.notify(
                answer,
                action="acknowledged",
                subscription=self._subscription_of(asked.mailbox),
                publisher_seq=asked.epoch,
                position=asked.position,
            )
            return
        if change is not None and change.action == f.SUBSCRIBE and not frame.refused:
            self._count(change.name)
            if frame.away:
                self._ahead[frame.number] = change
            elif isinstance(asked, f.Attach) or not asked.transaction:
                self._effects.notify(answer, **self._subscribed(change))
                return
        if frame.refused and isinstance(asked, f.Operate) and not asked.transaction:
            row: dict[str, Any] = {"action": "discarded", "verdict": "refused"}
            if asked.publication is not None:
                row["event"] = asked.publication.id
            elif change is not None:
                row["subscription"] = change.name
            self._effects.notify(answer, **row)
            return
        self._effects.notify(answer)

    # -- Subscriptions --------------------------------------------------------------------------

    def notify(self, frame: f.Notify) -> None:
        """Deliver an event, once for each subscription that it matches."""
        counts = chain(frame.following, repeat(0))
        for name, following in zip(frame.subscriptions, counts, strict=False):
            position = 0
            if name in self.positions or not self._is_withdrawn(name):
                position = self.positions[name] = self.positions.get(name, 0) + 1
            notified = Notified(
                frame.publication, name, position, frame.transaction, frame.path, following
            )
            self._effects.notify(notified, **notified.row("delivered", position))

    def mailed(self, frame: f.Mailed) -> None:
        """Deliver an event of a durable subscription."""
        notified = Notified(
            frame.publication,
            self._subscription_of(frame.mailbox),
            frame.position,
            frame.transaction,
            frame.path,
            frame.following,
            frame.mailbox,
            frame.epoch,
            frame.redelivered,
        )
        verdict = "redelivered" if frame.redelivered else ""
        self._effects.notify(notified, **notified.row("delivered", frame.position, verdict))

    @property
    def _epochs(self) -> dict[str, int]:
        """By durable subscription that this client reads, or has read: the last epoch."""
        return dict(self._attached.values())

    def _subscription_of(self, mailbox: str) -> str:
        """Return the subscription of a mailbox, as of the last attachment; empty if none."""
        return self._attached.get(mailbox, ("", 0))[0]

    def _is_withdrawn(self, name: str) -> bool:
        """Return whether the withdrawal of a subscription is not answered yet.

        No event follows the answer.
        """
        return any(
            isinstance(asked, f.Operate)
            and not asked.transaction
            and asked.change is not None
            and asked.change.action == f.UNSUBSCRIBE
            and asked.change.name == name
            for asked in self.asked.values()
        )
