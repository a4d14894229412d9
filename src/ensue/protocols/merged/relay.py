"""A merger of a level: it sorts what it listens to, and passes it on to whoever listens to it.

Mergers stack. To whoever listens, the output of a merger is a system like the one below it, in which clocks differ by the same
epsilon and messages take up to delta + 3 epsilon, to the end of the tick, and whatever the way from the merger takes:
`MergeConfig.above`. Stamps pass unchanged, so the order is the same on all levels, and several mergers may pass on the same events.

A merger answers for topics as the notification service does: `AttachRequest`, `Attached`, `DetachRequest`, and `Notify` for each event in its turn. It
listens to a topic as long as anybody listens to it. What it does not deliver in turn it does not pass on, whatever `deliver_late` says. If it may not have a topic itself,
it declines it to all who asked for it.

Whoever listens asks again once in `poll_ns`. Who has not for `POLLS_MISSED_MAX` times that is gone, and forgotten. Limit: `listeners_max`.

HAZARD: what a merger loses, all who listen to it alone lose. HAZARD: a merger whose clock jumps ahead by more than those polls forgets all who listen, and they
get nothing until they ask again.
"""

from collections.abc import Mapping, Sequence

import msgspec

from ensue.errors import limit_reason
from ensue.protocols.core import (
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
from ensue.protocols.ens import Attached, AttachRequest, DetachRequest, Notify
from ensue.protocols.exchange import Declined
from ensue.protocols.merge.config import MergeConfig
from ensue.protocols.merge.subscriber import MergeSubscriber

__all__ = ["MergeRelay"]

LISTENER = "listener/"
POLLS_MISSED_MAX = 8
"""So many requests in a row are not lost by chance."""


class MergeRelay:
    """One merger. It has no commands: whoever listens asks by frames.

    `config` is that of the level it listens to, `mergers` are the ones it listens to, if not to the notification service itself.
    """

    def __init__(
        self,
        *,
        name: str,
        config: MergeConfig,
        mergers: tuple[str, ...] = (),
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        self.name = name
        self.config = config
        self.inner = MergeSubscriber(
            name=name,
            # What is out of turn is not passed on, so nobody is to be handed it.
            config=msgspec.structs.replace(config, deliver_late=False),
            mergers=mergers,
            records=records,
            now_ns=now_ns,
        )
        self._listeners: dict[str, dict[str, int]] = {}
        """By topic: who listens, and when each asked last."""
        self._look_due_ns = 0
        """When to look next for those who are gone."""
        self._effects: list[Effect] = []
        for record in records or ():
            if record.startswith(LISTENER):
                # The topic comes with its length in front, because either name may contain a slash.
                size, _, names = record.removeprefix(LISTENER).partition("/")
                topic, peer = names[: int(size)], names[int(size) + 1 :]
                self._listeners.setdefault(topic, {})[peer] = now_ns

    @property
    def held_count(self) -> int:
        """How many events wait for their turn."""
        return self.inner.held_count

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle an event from below, or a wish from above."""
        match frame:
            case AttachRequest(topic=topic):
                self._attach(topic, source, now_ns)
            case DetachRequest(topic=topic):
                self._detach(topic, source, now_ns)
            case _:
                self.inner.receive(frame, source=source, now_ns=now_ns)
        self._drain()

    def handle_timer(self, *, now_ns: int) -> None:
        """Pass on what is due, and forget who is gone."""
        self._forget_the_gone(now_ns)
        self.inner.handle_timer(now_ns=now_ns)
        self._drain()

    def next_timer_ns(self) -> int | None:
        """Return when something is due."""
        return self.inner.next_timer_ns()

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done."""
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
                    pass  # Nobody listens any more.
                case _:
                    self._effects.append(effect)

    def _answer(self, topic: str, peer: str) -> None:
        """Say that a topic is on its way; slots mean nothing here, since nothing is kept."""
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
        """Tell all who listen to a topic that it is not to be had here."""
        for peer in self._listeners.pop(topic, {}):
            self._persist(topic, peer, None)
            self._effects.append(Send(peer, Declined(topic=topic, event="", reason=reason)))

    def _forget_the_gone(self, now_ns: int) -> None:
        poll_ns = self.config.poll_ns
        if now_ns < self._look_due_ns <= now_ns + poll_ns:
            return
        self._look_due_ns = now_ns + poll_ns
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
