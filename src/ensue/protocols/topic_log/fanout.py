"""Fan-out: each event goes to its topic's listeners once, without log or order.

This is what a plain broker gives, for orders that need no more: events stamped by clocks are sorted
by their subscribers. A server has a fan-out for each such order beside its station, under a
separate name (`fanout_name`). An event goes to the listeners attached at that moment and is then
forgotten; nothing is persisted. After a restart there are no listeners: they attach again when
their connection is back.

Answers: `Accepted`, the event was sent; `Attached`, the listener is attached; `Declined`, refused.

Clients whose order needs equal settings agree on them first (`Agree`, `Agreed`). The first client
decides, for as long as any client that agreed is connected. One whose connection is lost still
counts for `ABSENCE_NS`, so that a new client does not change the terms of clients that reconnect.

HAZARD: terms are not persisted. After a restart the client that asks first decides, and those with
other terms are refused.

Limit: `attachments_max` listeners of all topics together; more are declined.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from ensue.core.errors import limit_reason
from ensue.core.event import Name
from ensue.protocols.interface import Effect, Frame, Multicast, Send
from ensue.protocols.topic_log.frames import (
    Accepted,
    Attached,
    AttachRequest,
    DetachRequest,
    Notify,
    Put,
    TopicFrame,
)

__all__ = ["FRAMES", "Agree", "Agreed", "Declined", "Fanout", "fanout_name"]

ABSENCE_NS = 10_000_000_000
"""How long the terms of a client whose connection was lost still count."""
ATTACHMENTS_MAX = 1_000_000
TERMS_LENGTH_MAX = 128


def fanout_name(station: str, order: str) -> str:
    """Return a station's fan-out name for an order; client names have no slash."""
    return f"{station}/{order}"


class Declined(Frame, frozen=True, tag=60):
    """A topic can't be attached; or, with an event, it is not sent to any listener."""

    topic: Name
    event: str
    """The id of a refused event; empty: an attachment is refused."""
    reason: str


Terms = Annotated[str, msgspec.Meta(max_length=TERMS_LENGTH_MAX)]


class Agree(Frame, frozen=True, tag=61):
    """The terms of a client; empty: it leaves, and its terms end."""

    terms: Terms


class Agreed(Frame, frozen=True, tag=62):
    """The terms of all clients. A client with other terms is not one of them."""

    terms: Terms


FRAMES: tuple[type[Frame], ...] = (Declined, Agree, Agreed)


class Fanout:
    """One fan-out. Command: `forget`. It answers frames."""

    def __init__(self, *, name: str, attachments_max: int = ATTACHMENTS_MAX) -> None:
        self.name = name
        self.passed_on = 0
        """Events that were sent, also to topics without listeners."""
        self.attachments = 0
        self._attachments_max = attachments_max
        self._listeners: dict[str, dict[str, None]] = {}
        self._peers: dict[str, tuple[str, ...]] = {}
        """A cache: topic to its listeners as one value, so that its events travel together."""
        self._topics: dict[str, dict[str, None]] = {}
        """Peer to the topics that it is attached to."""
        self.terms = ""
        """What the clients have agreed on; empty: nothing."""
        self._parties: dict[str, None] = {}
        """Clients that agreed."""
        self._absent: dict[str, int] = {}
        """Of these the disconnected ones, to until when they count, the first first."""
        self._effects: list[Effect] = []

    def listeners(self, topic: str) -> tuple[str, ...]:
        """Return the listeners of a topic."""
        return tuple(self._listeners.get(topic, ()))

    @property
    def members(self) -> dict[str, int]:
        """Listeners to the number of their topics."""
        return {peer: len(topics) for peer, topics in self._topics.items()}

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Answer a frame."""
        match frame:
            case Put(event=event):
                topic = event.topic
                self.passed_on += 1
                self._effects.append(Send(source, Accepted(topic=topic, event=event.id, slot=0)))
                self._fan_out(topic, Notify(event=event))
            case TopicFrame(topic=topic):
                self._fan_out(topic, frame)
            case AttachRequest(topic=topic):
                self._attach(topic, source)
            case DetachRequest(topic=topic):
                self._detach(topic, source)
            case Agree(terms=terms):
                self._agree(terms, source, now_ns)
            case _:
                pass  # Not for a fan-out: a stray frame changes nothing.

    def forget(self, peer: str, *, now_ns: int) -> None:
        """Detach a peer from everything: it is gone."""
        if peer in self._parties:
            self._absent.pop(peer, None)
            self._absent[peer] = now_ns + ABSENCE_NS
        for topic in list(self._topics.get(peer, ())):
            self._detach(topic, peer)

    def handle_timer(self, *, now_ns: int) -> None:
        """Forget clients whose terms no longer count."""
        for peer, due_ns in list(self._absent.items()):
            # A later time is from before the clock was set back.
            if not now_ns < due_ns <= now_ns + ABSENCE_NS:
                del self._absent[peer], self._parties[peer]

    def next_timer_ns(self) -> int | None:
        """Return when the terms of a disconnected client no longer count."""
        return next(iter(self._absent.values()), None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        effects, self._effects = self._effects, []
        return effects

    def _agree(self, terms: str, peer: str, now_ns: int) -> None:
        if not terms:
            self._parties.pop(peer, None)
            self._absent.pop(peer, None)
            return
        if terms != self.terms:
            self.handle_timer(now_ns=now_ns)
            if not self._parties.keys() - {peer}:
                self.terms = terms
        if terms == self.terms:
            self._parties[peer] = None
            self._absent.pop(peer, None)
        self._effects.append(Send(peer, Agreed(terms=self.terms)))

    def _fan_out(self, topic: str, frame: Frame) -> None:
        if topic in self._listeners:
            peers = self._peers.get(topic)
            if peers is None:
                peers = self._peers[topic] = tuple(self._listeners[topic])
            self._effects.append(Multicast(topic, peers, frame))

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
