"""A publisher without order: repeats each event until the topic log has it."""

from collections.abc import Mapping, Sequence

from ensue.core.event import Event
from ensue.protocols.interface import Broadcast, Effect, Frame, Publish, Settle
from ensue.protocols.shared.event_numbers import EventNumbers
from ensue.protocols.topic_log.fanout import Declined
from ensue.protocols.topic_log.frames import Accepted

__all__ = ["UnorderedPublisher"]

RETRY_NS = 500_000_000


class UnorderedPublisher:
    """One publisher. Command: `publish`."""

    def __init__(self, *, name: str) -> None:
        self.name = name
        self._numbers = EventNumbers(name)
        self._unanswered: dict[str, tuple[int, Event]] = {}
        """Event id to when to repeat it and the event, in the order they are due."""
        self._effects: list[Effect] = []

    @property
    def unsettled_count(self) -> int:
        """How many published events have no receipt yet."""
        return len(self._unanswered)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        now_ns: int,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Event:
        """Publish an event; its fate comes as `Settle`."""
        event = self._numbers.make(topic, payload, now_ns, key, headers)
        self._unanswered[event.id] = (now_ns + RETRY_NS, event)
        self._effects += (Publish(event), Broadcast(event))
        return event

    def say_goodbye(self) -> None:
        """Do nothing: no node remembers this publisher."""

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle the topic log's answer."""
        del source, now_ns
        if isinstance(frame, Accepted | Declined):
            answered = self._unanswered.pop(frame.event, None)
            if answered is not None:
                settled = Settle(answered[1], "")
                if isinstance(frame, Declined):
                    settled = Settle(answered[1], "void", frame.reason)
                self._effects.append(settled)

    def repeat(self, *, now_ns: int) -> None:
        """Repeat unanswered events now: the connection is new."""
        for event_id, (_, event) in list(self._unanswered.items()):
            self._unanswered[event_id] = (now_ns + RETRY_NS, event)
            self._effects.append(Broadcast(event))

    def handle_timer(self, *, now_ns: int) -> None:
        """Repeat events that got no answer in time."""
        for event_id, (due_ns, event) in list(self._unanswered.items()):
            if due_ns > now_ns:
                break
            del self._unanswered[event_id]
            self._unanswered[event_id] = (now_ns + RETRY_NS, event)
            self._effects.append(Broadcast(event))

    def next_timer_ns(self) -> int | None:
        """Return when to repeat the first unanswered event."""
        return next((due_ns for due_ns, _ in self._unanswered.values()), None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        effects, self._effects = self._effects, []
        return effects
