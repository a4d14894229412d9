"""Topics and nothing more: whoever listens gets what is put out, once, with no log and no order.

This is what a plain broker gives, for orders that ask no more of it: events stamped by clocks are sorted by those who
get them. A server has an exchange for each such order beside its station, under a name of its own (`exchange_of`). What is put out goes to whoever is
attached at that moment and is then forgotten; nothing is persisted. After a restart nobody is attached: those
who listen ask again when their connection is back.

Answers: `Accepted`, it went out; `Attached`, you listen; `Declined`, you may not.

Clients whose order needs equal settings agree on them first (`Agree`, `Agreed`). The first client decides, for as long as any is there that agreed. One whose
connection is lost counts as there for `ABSENCE_NS`, so that a newcomer does not change the terms of clients that reconnect.

HAZARD: terms are not persisted. After a restart the client that asks first decides, and those with other terms are refused.

Limit: `attachments_max` listeners of all topics together; more are declined.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from ensue.errors import limit_reason
from ensue.event import Name
from ensue.protocols.core import Effect, Frame, Multicast, Send
from ensue.protocols.ens import Accepted, Attached, AttachRequest, DetachRequest, Notify, Put

__all__ = ["EXCHANGED", "FRAMES", "Agree", "Agreed", "Declined", "Exchange", "exchange_of"]

ABSENCE_NS = 10_000_000_000
"""How long a client whose connection was lost still holds others to its terms."""
ATTACHMENTS_MAX = 1_000_000
TERMS_LENGTH_MAX = 128
EXCHANGED = ("merged", "none")
"""The orders that ask for nothing but topics."""


def exchange_of(station: str, order: str) -> str:
    """Return the name of a station's exchange for an order. No client's name holds a slash."""
    return f"{station}/{order}"


class Declined(Frame, frozen=True, tag=60):
    """You may not listen to a topic; or, with an event, it may not go out, and reaches nobody."""

    topic: Name
    event: str
    """Empty: it is about listening."""
    reason: str


Terms = Annotated[str, msgspec.Meta(max_length=TERMS_LENGTH_MAX)]


class Agree(Frame, frozen=True, tag=61):
    """These are my terms; empty: I leave, and hold nobody to them."""

    terms: Terms


class Agreed(Frame, frozen=True, tag=62):
    """These are the terms of all who are there. If they are not yours, you are not one of them."""

    terms: Terms


FRAMES: tuple[type[Frame], ...] = (Declined, Agree, Agreed)


class Exchange:
    """One exchange. Command: `forget`. It answers frames."""

    def __init__(self, *, name: str, attachments_max: int = ATTACHMENTS_MAX) -> None:
        self.name = name
        self.passed_on = 0
        """Events that went out, those included that nobody listened to."""
        self.attachments = 0
        self._attachments_max = attachments_max
        self._listeners: dict[str, dict[str, None]] = {}
        self._peers: dict[str, tuple[str, ...]] = {}
        """The same as one value a topic, so that a topic's events travel together."""
        self._topics: dict[str, dict[str, None]] = {}
        """By peer."""
        self.terms = ""
        """What those who are there have agreed on; empty: nothing."""
        self._parties: dict[str, int | None] = {}
        """Who has agreed; and until when that counts, of those whose connection was lost."""
        self._effects: list[Effect] = []

    def listeners(self, topic: str) -> tuple[str, ...]:
        """Return who is attached to a topic."""
        return tuple(self._listeners.get(topic, ()))

    @property
    def members(self) -> dict[str, int]:
        """Who is attached, and to how many topics."""
        return {peer: len(topics) for peer, topics in self._topics.items()}

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Answer a frame."""
        match frame:
            case Put(event=event):
                topic = event.topic
                self.passed_on += 1
                self._effects.append(Send(source, Accepted(topic=topic, event=event.id, slot=0)))
                if topic in self._listeners:
                    peers = self._peers.get(topic)
                    if peers is None:
                        peers = self._peers[topic] = tuple(self._listeners[topic])
                    self._effects.append(Multicast(topic, peers, Notify(event=event)))
            case AttachRequest(topic=topic):
                self._attach(topic, source)
            case DetachRequest(topic=topic):
                self._detach(topic, source)
            case Agree(terms=terms):
                self._agree(terms, source, now_ns)
            case _:
                pass  # Not for an exchange: a stray frame changes nothing.

    def forget(self, peer: str, *, now_ns: int) -> None:
        """Detach a peer from everything: it is gone."""
        if peer in self._parties:
            self._parties[peer] = now_ns + ABSENCE_NS
        for topic in list(self._topics.get(peer, ())):
            self._detach(topic, peer)

    def handle_timer(self, *, now_ns: int) -> None:
        """Do nothing: an exchange keeps no time."""

    def next_timer_ns(self) -> int | None:
        """Return None: an exchange keeps no time."""
        return None

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
        effects, self._effects = self._effects, []
        return effects

    def _agree(self, terms: str, peer: str, now_ns: int) -> None:
        if not terms:
            self._parties.pop(peer, None)
            return
        if terms != self.terms:
            self._parties = {
                name: due_ns
                for name, due_ns in self._parties.items()
                # One that is due later than that was lost before this clock went back.
                if due_ns is None or now_ns < due_ns <= now_ns + ABSENCE_NS
            }
            if not self._parties.keys() - {peer}:
                self.terms = terms
        if terms == self.terms:
            self._parties[peer] = None
        self._effects.append(Send(peer, Agreed(terms=self.terms)))

    def _attach(self, topic: str, peer: str) -> None:
        listeners = self._listeners.get(topic, {})
        if peer not in listeners:
            if self.attachments >= self._attachments_max:
                reason = limit_reason(
                    "there are too many listeners",
                    "attachments_max",
                    self._attachments_max,
                    "end some first",
                )
                self._effects.append(Send(peer, Declined(topic=topic, event="", reason=reason)))
                return
            self.attachments += 1
            self._listeners.setdefault(topic, listeners)[peer] = None
            self._topics.setdefault(peer, {})[topic] = None
            self._peers.pop(topic, None)
        self._effects.append(Send(peer, Attached(topic=topic, first=1, next=1, sent=1)))

    def _detach(self, topic: str, peer: str) -> None:
        listeners = self._listeners.get(topic, {})
        if peer not in listeners:
            return
        self.attachments -= 1
        self._peers.pop(topic, None)
        del listeners[peer]
        if not listeners:
            del self._listeners[topic]
        del self._topics[peer][topic]
        if not self._topics[peer]:
            del self._topics[peer]
