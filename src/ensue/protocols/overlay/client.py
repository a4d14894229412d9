"""A client of the overlay: it advertises, subscribes, publishes and is notified, through one broker, its home.

Guarantees. Every request is answered once (`Answered`): a change when it is in effect everywhere but at brokers that are away, which the answer names, a publication when its home has it for
good. What is delivered is delivered once to each subscription that matches it, in the order its home routed it. A client that comes back
after a crash goes on where it was, if it kept its records and its home did not take it for gone (`lease_ns`); otherwise it is told so
(`SessionEnded`) and has to come back under another name.

Theory of operation. Requests are numbered and travel over a numbered link; so do answers and notifications. `Hello` is repeated until the
home answers, `Beat` for as long as the client lives.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import msgspec

from ensue.errors import BadInput, LimitReached, LocalProtocolError, RemoteProtocolError
from ensue.protocols.core import Effect, Frame, Send, Told
from ensue.protocols.overlay import frames as f
from ensue.protocols.overlay.config import OverlayConfig
from ensue.protocols.overlay.filters import event_of
from ensue.protocols.overlay.frames import Change, Publication
from ensue.protocols.overlay.journal import Journaled
from ensue.protocols.overlay.parsing import parse
from ensue.wire import Codec, Records

__all__ = ["Answered", "ClientRecord", "Notified", "OverlayClient", "SessionEnded", "Welcomed"]


class Answered(msgspec.Struct, frozen=True):
    """A request is seen through."""

    number: int
    refused: str = ""
    """Why it was refused; empty if it was not."""
    transaction: str = ""
    away: tuple[str, ...] = ()
    """Brokers that did not answer: it takes effect there when they are back."""


class Notified(msgspec.Struct, frozen=True):
    """An event for one subscription."""

    publication: Publication
    subscription: str
    position: int
    """1, 2, 3, … in that subscription, also while a plan that makes it is under way; 0 if this client has just withdrawn it."""
    transaction: str = ""
    path: str = ""
    """Of the operation that published it, in its transaction."""
    following: int = 0
    """How many events of the transaction come for the subscription behind this one."""

    def row(self, action: str, position: int, verdict: str = "") -> dict[str, Any]:
        """Return what a trace keeps of what became of it."""
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
    """Everybody knows of this client."""


class SessionEnded(msgspec.Struct, frozen=True):
    """The home took this client for gone: nothing more comes, and nothing is sent any more."""


class ClientRecord(msgspec.Struct, array_like=True):
    """The state of a client as it is persisted."""

    asked: dict[int, bytes]
    numbered: int
    published: int
    positions: dict[str, int]
    welcome: bool
    ended: bool
    gone: bool
    besides: bytes
    ahead: dict[int, Change] = {}


_RECORD = Records[ClientRecord](ClientRecord)


class OverlayClient(Journaled):
    """One client. Commands: `advertise`, `unadvertise`, `subscribe`, `unsubscribe`, `publish`, `leave`."""

    codec = Codec(f.FRAMES)

    def __init__(
        self,
        *,
        name: str,
        home: str,
        config: OverlayConfig | None = None,
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.home = home
        self.config = config or OverlayConfig()
        self._asked: dict[int, Any] = {}
        """Requests that are not answered yet."""
        self._numbered = 0
        self._published = 0
        self.latest: Publication | None = None
        """What was published last, for whoever has just done so."""
        self._positions: dict[str, int] = {}
        """By subscription: how many events it was given."""
        self._ahead: dict[int, Change] = {}
        """By request: subscriptions that were answered ahead of brokers that are away."""
        self._welcome = False
        self._ended = False
        self._gone = False
        super().__init__(
            records or {},
            durable=self.config.durable,
            journal_bytes_min=self.config.journal_bytes_min,
        )
        self._beat_due_ns = now_ns
        if not self._ended:
            self.handle_timer(now_ns=now_ns)  # Ahead of everything else.

    # -- What others may look at ----------------------------------------------------------------

    @property
    def unanswered_count(self) -> int:
        """How many requests are not answered yet."""
        return len(self._asked)

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """The names of this client's subscriptions."""
        return tuple(self._positions)

    @property
    def ended(self) -> bool:
        """Whether this client has left, or is taken for gone."""
        return self._ended

    @property
    def gone(self) -> bool:
        """Whether the home knows that this client is gone."""
        return self._gone

    # -- Commands -------------------------------------------------------------------------------

    def advertise(self, where: str, *, now_ns: int) -> tuple[int, str]:
        """Say what will be published; return the number of the request and the advertisement's name."""
        return self._add(f.ADVERTISE, where, now_ns)

    def subscribe(self, where: str, *, now_ns: int) -> tuple[int, str]:
        """Ask for events; return the number of the request and the subscription's name."""
        return self._add(f.SUBSCRIBE, where, now_ns)

    def unadvertise(self, name: str, *, now_ns: int) -> int:
        """Withdraw an advertisement."""
        return self._ask(f.Operate(number=0, change=Change(f.UNADVERTISE, name)), now_ns)

    def unsubscribe(self, name: str, *, now_ns: int) -> int:
        """Withdraw a subscription."""
        return self._ask(f.Operate(number=0, change=Change(f.UNSUBSCRIBE, name)), now_ns)

    def publish(
        self, attributes: Mapping[str, object], payload: bytes = b"", *, now_ns: int
    ) -> int:
        """Publish an event."""
        publication = self._publication(attributes, payload, now_ns)
        return self._ask(f.Operate(number=0, publication=publication), now_ns)

    def leave(self, *, now_ns: int) -> None:
        """Withdraw everything and be gone."""
        self.take(f.Goodbye(), source="", now_ns=now_ns)

    def _add(self, action: str, where: str, now_ns: int) -> tuple[int, str]:
        where = parse(where).to_text()
        name = f"{self.name}.{action}{self._numbered + 1}"
        return self._ask(f.Operate(number=0, change=Change(action, name, where)), now_ns), name

    def _publication(
        self, attributes: Mapping[str, object], payload: bytes, now_ns: int
    ) -> Publication:
        return Publication(
            publisher=self.name,
            number=self._published + 1,
            attributes=event_of(attributes),
            payload=payload,
            published_at_ns=now_ns,
        )

    def _ask(self, frame: Any, now_ns: int) -> int:
        """Give a request its number, keep it and send it."""
        if self._ended:
            raise LocalProtocolError(f"{self.name} was taken for gone: connect anew")
        if len(self._asked) >= self.config.requests_max:
            raise LimitReached(
                f"{self.name} has {self.config.requests_max} requests under way (requests_max)",
                limit="requests_max",
                value=self.config.requests_max,
            )
        numbered = msgspec.structs.replace(frame, number=self._numbered + 1)
        if not isinstance(frame, f.Operate) or frame.publication is None:
            self._check_readable(numbered)  # A publication was made here, of what was checked.
        self.take(numbered, source="", now_ns=now_ns)
        return int(numbered.number)

    def _check_readable(self, frame: Any) -> None:
        """Refuse what the home could not read: it would stay on its way for ever, and all behind it."""
        try:
            self.codec.decode(self.codec.encode(frame))
        except (RemoteProtocolError, UnicodeEncodeError, TypeError, OverflowError) as error:
            raise BadInput(f"brokers could not read it: {error}") from error

    # -- Driven from outside --------------------------------------------------------------------

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame of the home."""
        if source == self.home:
            self.take(frame, source=source, now_ns=now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Say that this client is here, if that is due."""
        if self._ended or now_ns < self._beat_due_ns:
            return
        self._effects.append(Send(self.home, f.Beat() if self._welcome else f.Hello()))
        wait_ns = self.config.beat_ns if self._welcome else self.config.hello_ns
        self._beat_due_ns = now_ns + wait_ns

    def next_timer_ns(self) -> int | None:
        """Return when the next beat is due."""
        return None if self._ended else self._beat_due_ns

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects, self._effects = self._effects, []
        return effects

    # -- State ----------------------------------------------------------------------------------

    def _dump(self) -> bytes:
        return _RECORD.encode(
            ClientRecord(
                {number: self.codec.encode(frame) for number, frame in self._asked.items()},
                self._numbered,
                self._published,
                self._positions,
                self._welcome,
                self._ended,
                self._gone,
                self._dump_besides(),
                self._ahead,
            )
        )

    def _load(self, state: bytes) -> None:
        record = _RECORD.decode(state)
        self._asked = {number: self.codec.decode(data) for number, data in record.asked.items()}
        self._numbered, self._published = record.numbered, record.published
        self._positions, self._ahead = record.positions, record.ahead
        self._welcome, self._ended, self._gone = record.welcome, record.ended, record.gone
        self._load_besides(record.besides)

    def _dump_besides(self) -> bytes:
        return b""

    def _load_besides(self, state: bytes) -> None:
        del state

    # -- Inputs ---------------------------------------------------------------------------------

    _HANDLERS: Mapping[type[Frame], str] = {
        f.Operate: "_request",
        f.Goodbye: "_goodbye",
        f.Done: "_done",
        f.Notify: "_notify",
        f.Expired: "_expired",
    }

    def _handle(self, frame: Frame, source: str, now_ns: int) -> None:
        del source  # The home, or this client itself.
        handler = self._HANDLERS.get(type(frame))
        if handler is not None and (not self._ended or isinstance(frame, f.Expired)):
            getattr(self, handler)(frame, now_ns)

    def _tell(self, value: object, **row: Any) -> None:
        self._effects.append(Told(value, row or None))

    def _request(self, frame: Any, now_ns: int) -> None:
        """Note a request of the application and send it to the home."""
        del now_ns
        self._numbered = frame.number
        self._asked[frame.number] = frame
        publication = getattr(frame, "publication", None)
        if publication is not None:
            self._published = publication.number
            self.latest = publication
            if not frame.transaction:
                self._tell(
                    None,
                    action="published",
                    event=publication.id,
                    topic=publication.text,
                    publisher=publication.publisher,
                    publisher_seq=publication.number,
                )
        change = getattr(frame, "change", None)
        if change is not None and change.action == f.UNSUBSCRIBE and not frame.transaction:
            self._tell(None, action="unsubscribed", subscription=change.name)
            self._positions.pop(change.name, None)  # What is on its way is not counted any more.
        self._effects.append(Send(self.home, frame))

    def _goodbye(self, frame: f.Goodbye, now_ns: int) -> None:
        del now_ns
        self._effects.append(Send(self.home, frame))
        self._ended = True

    def _expired(self, frame: f.Expired, now_ns: int) -> None:
        del frame, now_ns
        if not self._welcome:
            return  # Said to somebody who had this name before.
        if not self._ended:
            self._tell(SessionEnded())
        self._ended = self._gone = True
        self._asked.clear()

    def _done(self, frame: f.Done, now_ns: int) -> None:
        del now_ns
        if not frame.number:
            self._welcome = True
            self._tell(Welcomed())
            return
        asked = self._asked.pop(frame.number, None)
        if asked is not None:
            self._answered(asked, frame)
            return
        change = self._ahead.pop(frame.number, None)
        if change is not None and change.name in self._positions:
            self._tell(None, action="subscribed", subscription=change.name, topic=change.where)

    def _answered(self, asked: Any, frame: f.Done) -> None:
        answer = Answered(frame.number, frame.refused, frame.transaction, frame.away)
        change = getattr(asked, "change", None)
        if change is not None and change.action == f.SUBSCRIBE and not frame.refused:
            self._positions.setdefault(change.name, 0)
            if frame.away:
                self._ahead[frame.number] = change
            elif not asked.transaction:
                self._tell(
                    answer, action="subscribed", subscription=change.name, topic=change.where
                )
                return
        if frame.refused and isinstance(asked, f.Operate) and not asked.transaction:
            row: dict[str, Any] = {"action": "discarded", "verdict": "refused"}
            if asked.publication is not None:
                row["event"] = asked.publication.id
            elif change is not None:
                row["subscription"] = change.name
            self._tell(answer, **row)
            return
        self._tell(answer)

    def _notify(self, frame: f.Notify, now_ns: int) -> None:
        del now_ns
        counts = chain(frame.following, repeat(0))
        for name, following in zip(frame.subscriptions, counts, strict=False):
            position = 0
            if name in self._positions or not self._is_withdrawn(name):
                position = self._positions[name] = self._positions.get(name, 0) + 1
            notified = Notified(
                frame.publication, name, position, frame.transaction, frame.path, following
            )
            self._tell(notified, **notified.row("delivered", position))

    def _is_withdrawn(self, name: str) -> bool:
        """Return whether this client has withdrawn a subscription by itself, and was not answered yet: nothing comes behind the answer."""
        return any(
            isinstance(asked, f.Operate)
            and not asked.transaction
            and asked.change is not None
            and asked.change.action == f.UNSUBSCRIBE
            and asked.change.name == name
            for asked in self._asked.values()
        )
