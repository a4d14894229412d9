"""A merger of a level: it sorts what it listens to, and passes it on to whoever listens to it.

Mergers stack. To whoever listens, the output of a merger is a system like the one below it, in which clocks differ by the same
epsilon and messages take up to delta + 3 epsilon, to the end of the tick, and whatever the way from the merger takes:
`MergeConfig.above`. Stamps pass unchanged, so the order is the same on all levels, and several mergers may pass on the same events.

A merger answers for topics as the notification service does: `AttachRequest`, `Attached`, `DetachRequest`, and `Notify` for each event in its turn. It
listens to a topic as long as anybody listens to it. What it does not deliver in turn it does not pass on.

HAZARD: what a merger loses, all who listen to it alone lose.
"""

from collections.abc import Mapping, Sequence

from ensue.protocols.core import Deliver, Effect, Frame, Join, Leave, Multicast, Persist, Send
from ensue.protocols.ens import Attached, AttachRequest, DetachRequest, Notify
from ensue.protocols.merge.config import MergeConfig
from ensue.protocols.merge.subscriber import MergeSubscriber

__all__ = ["MergeRelay"]

LISTENER = "listener/"


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
            name=name, config=config, mergers=mergers, records=records, now_ns=now_ns
        )
        self._listeners: dict[str, dict[str, None]] = {}
        self._effects: list[Effect] = []
        for record in records or ():
            if record.startswith(LISTENER):
                # The topic comes with its length in front, because either name may contain a slash.
                size, _, names = record.removeprefix(LISTENER).partition("/")
                topic, peer = names[: int(size)], names[int(size) + 1 :]
                self._listeners.setdefault(topic, {})[peer] = None

    @property
    def held_count(self) -> int:
        """How many events wait for their turn."""
        return self.inner.held_count

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle an event from below, or a wish from above."""
        match frame:
            case AttachRequest(topic=topic):
                self._listeners.setdefault(topic, {})[source] = None
                self._persist(topic, source, b"")
                self.inner.subscribe((topic,), now_ns=now_ns)
                if topic in self.inner.topics:
                    self._answer(topic, source)
            case DetachRequest(topic=topic):
                self._detach(topic, source, now_ns)
            case _:
                self.inner.receive(frame, source=source, now_ns=now_ns)
        self._drain()

    def handle_timer(self, *, now_ns: int) -> None:
        """Pass on what is due."""
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

    def _detach(self, topic: str, peer: str, now_ns: int) -> None:
        listeners = self._listeners.get(topic, {})
        if peer in listeners:
            del listeners[peer]
            self._persist(topic, peer, None)
        if not listeners and self._listeners.pop(topic, None) is not None:
            self.inner.unsubscribe((topic,), now_ns=now_ns)

    def _persist(self, topic: str, peer: str, value: bytes | None) -> None:
        if self.config.durable:
            self._effects.append(Persist(f"{LISTENER}{len(topic)}/{topic}/{peer}", value))
