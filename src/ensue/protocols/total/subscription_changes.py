"""Subscription changes, as one node of the chain handles them.

A change enters at the lowest stage of the old and the new topics together and travels to the
highest. Each node on the way replaces the old subscription by the new one, adds the counters of its
own topics of the two, and counts nothing. The last one answers with the cut.

With groups by two, the old topics include all that the subscriber has left since it got its name,
and they go on counting for the groups (`Groups.left`) until it has no topics.

A repeated request is answered with the same cut, so a subscriber is remembered until it leaves
(`Forget`). A request that arrives after that leaves a registration that no subscriber uses: stamps
grow, and nothing else happens.

A remembered subscriber never asks with a lower number than its last one, unless its records were
given up elsewhere and it started again under its name. So a lower number is always answered:
`Refused` names the last number (`seen`), and the subscriber asks again with a higher one. Any node
that hosts a topic of the change may be the one that remembers, so a repeated request goes to all of
them.

A node that continued from older records may not know a change that was answered: it would count
from before the cut, and the subscriber would drop new events as published before it joined. So a
request names the last answered change (`known`), a subscriber repeats that one on each new
connection, and a node that should have seen it refuses the subscriber (`rolled back`).
"""

from collections.abc import Iterable

import msgspec

from ensue.core.lineage import ROLLED_BACK
from ensue.protocols.interface import Send
from ensue.protocols.total.frames import Changed, ChangeFill, ChangeRepeat, ChangeRequest, Refused
from ensue.protocols.total.records import CHANGED, REGISTRATION, ChangedRecord, RegistrationRecord
from ensue.protocols.total.stage import StageState

__all__ = ["SubscriptionChanges"]

LATER = "try again when some have ended"
FEWER = "give subscriptions fewer topics in common"


class SubscriptionChanges:
    """The subscribers that one node remembers, and their changes."""

    __slots__ = ("_state", "done", "dropped", "seen")

    def __init__(self, state: StageState) -> None:
        self._state = state
        self.seen: dict[str, int] = {}
        """Subscriber to the number of its last change."""
        self.dropped: dict[str, tuple[str, ...]] = {}
        """Subscriber to the topics of this node that its last change has left."""
        self.done: dict[str, ChangedRecord] = {}
        """Subscriber to the last change that this node completed, with its cut."""

    def subscribers(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Return each subscriber's last change, and its topics if any is hosted here."""
        subscriptions = self._state.groups.subscriptions
        return {
            name: (number, tuple(subscriptions.get(name, ()))) for name, number in self.seen.items()
        }

    def forget(self, subscriber: str, number: int) -> None:
        """Forget a subscriber that has left, unless a change came after `number`."""
        state, seen = self._state, self.seen.get(subscriber)
        if seen is None or seen > number or subscriber in state.groups.subscriptions:
            return
        state.groups.replace(subscriber, ())
        del self.seen[subscriber]
        self.dropped.pop(subscriber, None)
        self.done.pop(subscriber, None)
        state.persist(f"subscription/{subscriber}", None)
        state.persist(f"change/{subscriber}", None)

    def restore(self, kind: str, subscriber: str, value: bytes) -> None:
        """Restore a record of an earlier incarnation."""
        if kind == "change":
            self.done[subscriber] = CHANGED.decode(value)
            return
        registration = REGISTRATION.decode(value)
        self.seen[subscriber] = registration.number
        if registration.dropped:
            self.dropped[subscriber] = registration.dropped
        self._state.groups.replace(subscriber, registration.topics, registration.left)

    def register(
        self,
        subscriber: str,
        number: int,
        topics: tuple[str, ...],
        left: tuple[str, ...],
        dropped: tuple[str, ...],
    ) -> None:
        """Replace what is known of a subscriber."""
        state = self._state
        state.groups.replace(subscriber, topics, left)
        self.seen[subscriber] = number
        self.dropped.pop(subscriber, None)
        if dropped:
            self.dropped[subscriber] = dropped
        record = RegistrationRecord(number, topics, left, dropped)
        state.persist(f"subscription/{subscriber}", REGISTRATION.encode(record))

    # -- Frames -----------------------------------------------------------------------------------

    def on_request(self, frame: ChangeRequest, subscriber: str, _now_ns: int) -> None:
        """Start a subscriber's change here, answer it again, or refuse it."""
        state, config, placement = self._state, self._state.config, self._state.placement
        topics = dict.fromkeys((*frame.old, *frame.new))
        if config.fixed is not None:
            state.refuse(subscriber, frame.number, "subscriptions are fixed")
            return
        # Leaving is never refused for want of room.
        had = dict.fromkeys(frame.old)
        added = [topic for topic in frame.new if topic not in had]
        if frame.number < 1 or not topics or not all(map(placement.knows, frame.old)):
            return  # No subscriber sends this: a stray frame changes nothing.
        if frame.known > self.seen.get(subscriber, 0) and state.hosted(frame.old):
            refused = Refused(number=0, reason=ROLLED_BACK, seen=frame.known)
            state.effects.append(Send(subscriber, refused))
            return
        if not state.may_host(added, subscriber, frame.number):
            return
        first, last = placement.span(topics)
        counted = tuple(topics) if config.groups == 2 else frame.new
        if first != state.stage:
            self._send_away(subscriber, frame.number, topics)
        elif frame.number <= self.seen.get(subscriber, 0):
            self._repeated(frame, subscriber)
        elif frame.new and subscriber not in self.seen and len(self.seen) >= config.clients_max:
            what = "there are too many subscribers"
            state.refuse_limit(subscriber, frame.number, "clients_max", what, LATER)
        elif added and state.groups.pairs + len(counted) ** 2 > config.pairs_max:
            what = "subscriptions share too many pairs of topics"
            state.refuse_limit(subscriber, frame.number, "pairs_max", what, FEWER)
        elif added and state.groups.largest_with(counted) > config.group_max:
            what = "too many topics would be ordered together"
            state.refuse_limit(subscriber, frame.number, "group_max", what, FEWER)
        else:
            self._apply(
                ChangeFill(
                    subscriber=subscriber,
                    number=frame.number,
                    old=frame.old,
                    new=frame.new,
                    entries={},
                    last=last,
                )
            )

    def on_fill(self, frame: ChangeFill, source: str, _now_ns: int) -> None:
        """Apply a change that the previous node passed on, if it is valid."""
        state, placement = self._state, self._state.placement
        topics = (*frame.old, *frame.new)
        if (
            state.is_from_below(source)
            and topics
            and all(placement.knows(topic) for topic in topics)
            and state.stage <= frame.last == placement.span(topics)[1]
            and all(
                topic in frame.entries
                for topic in frame.new
                if placement.stage(topic) < state.stage
            )
        ):
            self._apply(frame)

    def on_repeat(self, frame: ChangeRepeat, _first: str, _now_ns: int) -> None:
        """Answer a repeated request that entered the chain at another node."""
        if frame.number < self.seen.get(frame.subscriber, 0):
            self._answer_seen(frame.subscriber, frame.number)
        else:
            self._answer(frame.subscriber, frame.number)

    def _send_away(self, subscriber: str, number: int, topics: Iterable[str]) -> None:
        """Answer a change that starts at another node."""
        state = self._state
        moved = [topic for topic in topics if topic in state.placement.parts]
        for topic in moved:
            state.send_moved(subscriber, topic)
        if not moved:
            state.refuse(subscriber, number, f"this change does not start at {state.name}")

    # -- Steps ------------------------------------------------------------------------------------

    def _repeated(self, frame: ChangeRequest, subscriber: str) -> None:
        state = self._state
        groups = state.groups
        known = (groups.subscriptions.get(subscriber, ()), groups.left.get(subscriber, ()))
        is_last = frame.number == self.seen[subscriber]
        if not is_last or self._registration(frame) != known:
            self._answer_seen(subscriber, frame.number)  # The number belongs to another change.
            return
        stages = {state.placement.stage(topic) for topic in (*frame.old, *frame.new)}
        if state.placement.parts:
            # The node that completed it may host none of its topics now.
            stages = set(range(len(state.placement.nodes)))
            self._answer(subscriber, frame.number)
        if stages == {state.stage}:
            self._answer(subscriber, frame.number)
        repeat = ChangeRepeat(subscriber=subscriber, number=frame.number)
        for stage in sorted(stages - {state.stage}):
            state.effects.append(Send(state.placement.nodes[stage], repeat))

    def _registration(
        self, frame: ChangeRequest | ChangeFill
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the topics to register here, and those that only count for groups."""
        state = self._state
        registered = frame.new if state.hosted(frame.new) else ()
        if state.config.groups == 1 or not frame.new:
            return registered, ()
        counted = dict.fromkeys((*frame.new, *frame.old))
        left = counted.keys() - set(registered) if state.hosted(counted) else ()
        return registered, tuple(sorted(left))

    def _apply(self, frame: ChangeFill) -> None:
        """Register the subscription, read the counters, and answer or pass the change on."""
        state, subscriber, number = self._state, frame.subscriber, frame.number
        entries = dict(frame.entries)
        topics = tuple(dict.fromkeys((*frame.old, *frame.new)))
        for topic, count in frame.entries.items():
            state.learn(topic, count)
        if number < self.seen.get(subscriber, 0):
            # A node that had forgotten the subscriber, or never knew it, took the change for new.
            # It ends here: answered by a later node, it would have a cut and not be registered
            # everywhere. A node that hosts none of its topics registers nothing, and passes it on.
            if state.hosted(topics):
                self._answer_seen(subscriber, number)
            else:
                state.pass_on(frame)
            return
        registered, left = self._registration(frame)
        kept = dict.fromkeys(frame.new)
        self.register(
            subscriber,
            number,
            registered,
            left,
            tuple(topic for topic in state.hosted(topics) if topic not in kept),
        )
        for topic in topics:
            # Without its cached group the topic's next stamp is whole. A subscriber that just
            # joined depends on that: it has not seen the previous stamp.
            state.group_cache.pop(topic, None)
        for topic in state.hosted(frame.new):
            state.counters.get(topic)  # Known from now on; a topic that was only left need not be.
        for topic in state.hosted(topics):
            entries[topic] = state.count(topic)
        if frame.last == state.stage:
            done = ChangedRecord(number, {topic: entries[topic] for topic in frame.new})
            self.done[subscriber] = done
            state.persist(f"change/{subscriber}", CHANGED.encode(done))
            self._answer(subscriber, number)
        else:
            state.pass_on(msgspec.structs.replace(frame, entries=entries))

    def _answer(self, subscriber: str, number: int) -> None:
        """Send the cut of a change, if this node completed it."""
        effects, done = self._state.effects, self.done.get(subscriber)
        if done is None or done.number != number:
            return
        last = effects[-1] if effects else None
        if isinstance(last, Send) and last.peer == subscriber and isinstance(last.frame, Changed):
            return  # Requests repeated in one batch get one answer: the cut may be long.
        effects.append(Send(subscriber, Changed(number=number, cut=done.cut)))

    def _answer_seen(self, subscriber: str, number: int) -> None:
        """Refuse a change whose number is not above the last one, and name that."""
        seen = self.seen[subscriber]
        refused = Refused(number=number, reason=f"change {seen} was seen", seen=seen)
        self._state.effects.append(Send(subscriber, refused))
