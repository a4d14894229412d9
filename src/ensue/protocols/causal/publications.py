"""The events that one node publishes: numbered, placed in causal order, sent, settled.

An event gets its place in the causal past in the order of publishing. Across topics, a node that
has delivered anything must be a member of a topic to publish there (`causality`). If it is not,
it joins without subscribing its application, and the event waits. So does every later event.

An event that is refused after it got its number leaves a gap that no subscriber can pass. All
later events of its topic are refused too.

An event without a known subscriber is settled when it is certain that there is none (`unread`).
"""

from collections.abc import Callable, Mapping

from ensue.core.errors import LimitReached
from ensue.core.event import Event
from ensue.protocols.causal.causality import IN, OUT
from ensue.protocols.causal.config import no_room, no_room_before
from ensue.protocols.causal.event_cache import EventCache
from ensue.protocols.causal.frames import Item, Publication
from ensue.protocols.causal.node_state import NodeState
from ensue.protocols.causal.outbox import Outbox
from ensue.protocols.causal.records import TopicRecord
from ensue.protocols.causal.repair import Repair
from ensue.protocols.causal.subscriptions import Subscriptions
from ensue.protocols.causal.trees import Relay, Trees
from ensue.protocols.interface import Publish, Settle
from ensue.protocols.shared.event_numbers import EventNumbers

__all__ = ["Publications"]


class Publications:
    """The events of one node that are not settled."""

    def __init__(
        self,
        name: str,
        state: NodeState,
        cache: EventCache,
        trees: Trees,
        repair: Repair,
        subscriptions: Subscriptions,
        may_publish: Callable[[str], bool],
        unread: Callable[[str, int, int], int],
    ) -> None:
        self._name = name
        self._state = state
        self._cache = cache
        self._trees = trees
        self._repair = repair
        self._subscriptions = subscriptions
        self._may_publish = may_publish
        """Whether events of a topic may be sent yet."""
        self._unread = unread
        """Up to which number the events of a topic certainly have no subscriber, if none is known:
        topic, number of the last one, now."""
        self._numbers = EventNumbers(name)
        self._waiting: dict[int, Event] = {}
        """Events without a place, in publishing order: this node is not in their topic yet."""
        self._waiting_next = 1
        self._refused: set[str] = set()
        """Topics of which an event was refused after it got its number."""
        self._outboxes: dict[str, Outbox] = {}
        self._queued: dict[str, None] = {}
        """Topics with events that wait for room in the window."""

    @property
    def unsettled_count(self) -> int:
        """Number of published events that are not settled."""
        return len(self._waiting) + sum(len(one.unsettled) for one in self._outboxes.values())

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        now_ns: int,
        key: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> Event:
        """Give an event its number and place it, or have it wait for its place."""
        limit = self._state.config.outgoing_max
        if self.unsettled_count >= limit:
            raise LimitReached(
                f"{self._name} has {limit} events under way (outgoing_max): "
                "wait for some to settle",
                limit="outgoing_max",
                value=limit,
            )
        event = self._numbers.make(topic, payload, now_ns=now_ns, key=key, headers=headers)
        self._state.effects.append(Publish(event))
        number = self._waiting_next
        self._waiting_next += 1
        self._waiting[number] = event
        self._state.dirty.waiting(number, event)
        self.place_waiting(now_ns)
        return event

    def reject(
        self,
        topic: str,
        payload: bytes,
        reason: str,
        *,
        now_ns: int,
        key: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> Event:
        """Give an event its number and settle it as void."""
        event = self._numbers.make(topic, payload, now_ns=now_ns, key=key, headers=headers)
        self._state.effects.append(Settle(event, "void", reason))
        return event

    def refuse(self, topic: str, reason: str) -> None:
        """Settle all waiting events of a topic as void."""
        for number, event in list(self._waiting.items()):
            if event.topic == topic:
                self._void(number, reason)

    def place_waiting(self, now_ns: int) -> None:
        """Place waiting events, in publishing order, as far as possible."""
        state = self._state
        for number, event in list(self._waiting.items()):
            topic = event.topic
            if not self._may_publish(topic):
                return
            if topic in self._refused:
                self._void(number, no_room_before(state.config))
                continue
            if state.config.across_topics and state.causality.has_foreign_past:
                topic_state = state.topic_state(topic)
                if topic_state == OUT and not self._subscriptions.room_for([topic]):
                    self._refused.add(topic)
                    self._void(number, no_room(state.config))
                    continue
                if topic_state == OUT:
                    self._subscriptions.join([topic], now_ns)
                if topic_state != IN:
                    return
            self._take_waiting(number)
            self._place(event, now_ns)

    def pump(self, now_ns: int) -> None:
        """Send what the windows have room for."""
        state = self._state
        for topic in list(self._queued):
            outbox = self._outboxes[topic]
            targets = state.membership.members(topic) & state.cube.everyone & ~(1 << state.number)
            if targets:
                outbox.pump(self._trees, targets, now_ns=now_ns)
            else:
                last = self._unread(topic, outbox.last_queued, now_ns)
                settled = outbox.settle_unread(last)
                if settled:
                    state.effects += settled
                    state.dirty.touch(topic)
            if not outbox.queued:
                del self._queued[topic]

    def done(self, relay: Relay) -> None:
        """Settle the events of a message that all reachable members have."""
        assert isinstance(relay.message, Publication)
        topic = relay.message.items[0].event.topic
        outbox = self._outbox(topic)
        self._state.effects += outbox.done(relay)
        self._state.dirty.touch(topic)
        if outbox.queued:
            self._queued[topic] = None

    def settled(self, topic: str) -> int:
        """Return up to which number the events of a topic are settled."""
        outbox = self._outboxes.get(topic)
        return 0 if outbox is None else outbox.settled

    def is_unsettled(self, key: tuple[str, int, int]) -> bool:
        """Return whether topic, source and number name an unsettled event of this node."""
        topic, source, number = key
        outbox = self._outboxes.get(topic)
        return source == self._state.number and outbox is not None and number > outbox.settled

    # -- Restart --------------------------------------------------------------------------------

    def restore_topic(self, topic: str, record: TopicRecord) -> None:
        """Restore the numbers of a topic from its record."""
        if record.own:
            self._numbers.last[topic] = record.own
            self._outboxes[topic] = Outbox(topic, self._state.config, record.settled)

    def restore_waiting(self, waiting: dict[int, Event]) -> None:
        """Restore the events that had no place."""
        self._waiting = dict(sorted(waiting.items()))
        self._waiting_next = max(self._waiting, default=0) + 1
        for event in self._waiting.values():
            self._numbers.last[event.topic] = event.publisher_seq

    def resume(self) -> None:
        """Queue the events that an earlier run did not settle."""
        state = self._state
        for topic, outbox in self._outboxes.items():
            for number in range(outbox.settled + 1, state.causality.topic(topic).own + 1):
                kept = self._cache.get((topic, state.number, number))
                if kept is not None:
                    outbox.add(kept.item)
                    self._queued[topic] = None

    # -- Internal -------------------------------------------------------------------------------

    def _take_waiting(self, number: int) -> Event:
        self._state.dirty.waiting(number, None)
        return self._waiting.pop(number)

    def _void(self, number: int, reason: str) -> None:
        self._state.effects.append(Settle(self._take_waiting(number), "void", reason))

    def _place(self, event: Event, now_ns: int) -> None:
        state, topic, number = self._state, event.topic, event.publisher_seq
        item = Item(event, state.causality.publish(topic))
        assert state.causality.topic(topic).own == number
        self._cache.add((topic, state.number, number), item, now_ns=now_ns)
        state.dirty.kept(topic, state.number, number, item)
        state.dirty.touch(topic)
        self._outbox(topic).add(item)
        self._queued[topic] = None
        self._repair.stir(topic, now_ns=now_ns)
        if state.is_in(topic):
            state.deliver(event)

    def _outbox(self, topic: str) -> Outbox:
        if topic not in self._outboxes:
            self._outboxes[topic] = Outbox(topic, self._state.config)
        return self._outboxes[topic]
