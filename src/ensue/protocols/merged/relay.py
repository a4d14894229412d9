"""A merged relay: sorts what it listens to, and forwards it to its listeners.

Relays stack. For a listener, the output of a relay is a system like the one below it, with the
same epsilon and delays of up to delta + 3 epsilon, to the end of the tick, plus the delay from
the relay: `MergedConfig.above`. Stamps pass unchanged, so the order is the same on all levels,
and several relays may forward the same events.

A relay serves topics like the notification service: `AttachRequest`, `Attached`, `DetachRequest`,
and `Notify` for each event in order. It listens to a topic while it has listeners. Events that it
does not deliver in order are not forwarded, whatever `deliver_late` says. If a topic is declined
to the relay, it declines it to all its listeners.

A listener repeats its request every `poll_ns`. One that missed `POLLS_MISSED_MAX` of them is
forgotten. Limit: `listeners_max`.

HAZARD: what a relay loses, all listeners that use it alone lose. HAZARD: a relay whose clock
jumps ahead by more than those polls forgets all listeners, and they get nothing until they ask
again.
"""

from collections.abc import Mapping, Sequence

import msgspec

from ensue.core.errors import limit_reason
from ensue.protocols.interface import (
    Deliver,
    Effect,
    Frame,
    Join,
    Leave,
    Multicast,
    Persist,
    Refuse,
    Send,
)
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.merged.subscriber import MergedSubscriber
from ensue.protocols.topic_log.fanout import Declined
from ensue.protocols.topic_log.frames import Attached, AttachRequest, DetachRequest, Notify

__all__ = ["MergedRelay"]

LISTENER = "listener/"
POLLS_MISSED_MAX = 8
"""Consecutive requests that are not lost by chance."""


class MergedRelay:
    """One relay. It has no commands: listeners send frames.

    `config` is that of the level it listens to; `mergers` are the relays it listens to, if not the
    notification service itself.
    """

    def __init__(
        self,
        *,
        name: str,
        config: MergedConfig,
        mergers: tuple[str, ...] = (),
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.config = config
        self.inner = MergedSubscriber(
            name=name,
            # Events out of order are not forwarded, so they must not be delivered here.
            config=msgspec.structs.replace(config, deliver_late=False),
            mergers=mergers,
            records=records,
            now_ns=now_ns,
        )
        self._listeners: dict[str, dict[str, int]] = {}
        """By topic: listeners, and when each sent its last request."""
        self._sweep_due_ns = 0
        """When to look for silent listeners next."""
        self._effects: list[Effect] = []
        for record in records or ():
            if record.startswith(LISTENER):
                # The length of the topic comes first, because both names may contain a slash.
                size, _, names = record.removeprefix(LISTENER).partition("/")
                topic, peer = names[: int(size)], names[int(size) + 1 :]
                self._listeners.setdefault(topic, {})[peer] = now_ns

    @property
    def held_count(self) -> int:
        """Number of held events."""
        return self.inner.held_count

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle an event from below, or a request of a listener."""
        match frame:
            case AttachRequest(topic=topic):
                self._attach(topic, source, now_ns)
            case DetachRequest(topic=topic):
                self._detach(topic, source, now_ns)
            case _:
                self.inner.receive(frame, source=source, now_ns=now_ns)
        self._drain()

    def handle_timer(self, *, now_ns: int) -> None:
        """Forward due events, and forget silent listeners."""
        self._forget_silent(now_ns)
        self.inner.handle_timer(now_ns=now_ns)
        self._drain()

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due."""
        return self.inner.next_timer_ns()

    def take_effects(self) -> Sequence[Effect]:
        """Drain the pending effects."""
        self._drain()
        effects, self._effects = self._effects, []
        return effects

    def _drain(self) -> None:
        for effect in self.inner.take_effects():
            match effect:
                case Deliver(event=event):
                    listeners = tuple(self._listeners.get(event.topic, ()))
                    self._effects.append(Multicast(event.topic, listeners, Notify(event=event)))
                case Refuse(topics=topics, reason=reason):
                    self._effects.append(effect)
                    for topic in topics:
                        self._decline(topic, reason)
                case Join(topic=topic):
                    for peer in self._listeners.get(topic, ()):
                        self._answer(topic, peer)
                case Leave():
                    pass  # There are no listeners any more.
                case _:
                    self._effects.append(effect)

    def _answer(self, topic: str, peer: str) -> None:
        """Confirm a topic; slots mean nothing here, since no log is kept."""
        self._effects.append(Send(peer, Attached(topic=topic, first=0, next=0, sent=0)))

    def _attach(self, topic: str, peer: str, now_ns: int) -> None:
        listeners = self._listeners.get(topic, {})
        if peer not in listeners:
            if sum(map(len, self._listeners.values())) >= self.config.listeners_max:
                what, limit = f"{self.name} has too many listeners", self.config.listeners_max
                reason = limit_reason(what, "listeners_max", limit, "end some first")
                self._effects.append(Send(peer, Declined(topic=topic, event="", reason=reason)))
                return
            self._persist(topic, peer, b"")
        listeners[peer] = now_ns
        self._listeners[topic] = listeners
        self.inner.subscribe((topic,), now_ns=now_ns)
        if topic in self.inner.topics:
            self._answer(topic, peer)

    def _detach(self, topic: str, peer: str, now_ns: int) -> None:
        listeners = self._listeners.get(topic, {})
        if peer in listeners:
            del listeners[peer]
            self._persist(topic, peer, None)
        if not listeners and self._listeners.pop(topic, None) is not None:
            self.inner.unsubscribe((topic,), now_ns=now_ns)

    def _decline(self, topic: str, reason: str) -> None:
        """Decline a topic to all its listeners."""
        for peer in self._listeners.pop(topic, {}):
            self._persist(topic, peer, None)
            self._effects.append(Send(peer, Declined(topic=topic, event="", reason=reason)))

    def _forget_silent(self, now_ns: int) -> None:
        poll_ns = self.config.poll_ns
        if now_ns < self._sweep_due_ns <= now_ns + poll_ns:
            return
        self._sweep_due_ns = now_ns + poll_ns
        gone: list[tuple[str, str]] = []
        for topic, listeners in self._listeners.items():
            for peer, asked_ns in listeners.items():
                if asked_ns > now_ns:
                    listeners[peer] = now_ns  # The clock has gone back.
                elif asked_ns < now_ns - POLLS_MISSED_MAX * poll_ns:
                    gone.append((topic, peer))
        for topic, peer in gone:
            self._detach(topic, peer, now_ns)

    def _persist(self, topic: str, peer: str, value: bytes | None) -> None:
        if self.config.durable:
            self._effects.append(Persist(f"{LISTENER}{len(topic)}/{topic}/{peer}", value))
