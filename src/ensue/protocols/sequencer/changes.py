"""Changes of subscription, as one node of the chain handles them.

A change enters at the lowest stage of the old and the new topics together and travels to the highest.
Each node on the way puts the new subscription in the place of the old, adds the counters of its own
topics of the two, and counts nothing. The last one answers with the cut.

A repeated request is answered with the same cut, so whoever asked is remembered until it says that it
wants nothing more (`Forget`). A request that was overtaken by that word and arrives afterwards
registers a subscription that nobody has: stamps grow, and nothing else happens.
"""

import msgspec

from ensue.protocols.core import Send
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.frames import Changed, ChangeFill, ChangeRepeat, ChangeRequest
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.sequencer.records import (
    CHANGED,
    REGISTRATION,
    ChangedRecord,
    RegistrationRecord,
)
from ensue.protocols.sequencer.stage import Stage

__all__ = ["ChangeStage"]


class ChangeStage(Stage):
    """A stage that handles changes of subscription."""

    def __init__(self, *, name: str, placement: Placement, config: SequencerConfig) -> None:
        super().__init__(name=name, placement=placement, config=config)
        self._changes_seen: dict[str, int] = {}
        self._changes_done: dict[str, ChangedRecord] = {}

    def _on_change_request(self, frame: ChangeRequest, subscriber: str, _now_ns: int) -> None:
        topics = dict.fromkeys((*frame.old, *frame.new))
        if self.config.fixed is not None:
            self._refuse(subscriber, frame.number, "subscriptions are fixed")
            return
        # Leaving is never refused for want of room.
        had = dict.fromkeys(frame.old)
        added = [topic for topic in frame.new if topic not in had]
        if not topics or not all(self.placement.knows(topic) for topic in frame.old):
            return
        if not self._may_host(added, subscriber, frame.number):
            return
        first, last = self.placement.span(topics)
        if first != self.stage:
            self._refuse(subscriber, frame.number, f"not for {self.name}")
        elif frame.number <= self._changes_seen.get(subscriber, 0):
            if last == self.stage:
                self._answer_change_again(subscriber, frame.number)
            else:
                repeat = ChangeRepeat(subscriber=subscriber, number=frame.number)
                self._effects.append(Send(self.placement.nodes[last], repeat))
        elif (
            frame.new
            and subscriber not in self._changes_seen
            and len(self._changes_seen) >= self.config.clients_max
        ):
            self._refuse(subscriber, frame.number, "clients_max")
        elif added and self._groups.pairs + len(frame.new) ** 2 > self.config.pairs_max:
            self._refuse(subscriber, frame.number, "pairs_max")
        elif added and self._groups.largest_with(frame.new) > self.config.group_max:
            self._refuse(subscriber, frame.number, "group_max")
        else:
            self._change(
                ChangeFill(
                    subscriber=subscriber,
                    number=frame.number,
                    old=frame.old,
                    new=frame.new,
                    entries={},
                    last=last,
                )
            )

    def _on_change(self, frame: ChangeFill, source: str, _now_ns: int) -> None:
        topics = (*frame.old, *frame.new)
        if (
            self._from_below(source)
            and topics
            and all(self.placement.knows(topic) for topic in topics)
            and self.stage <= frame.last == self.placement.span(topics)[1]
            and all(
                topic in frame.entries
                for topic in frame.new
                if self.placement.stage(topic) < self.stage
            )
        ):
            self._change(frame)

    def _on_change_repeat(self, frame: ChangeRepeat, _first: str, _now_ns: int) -> None:
        self._answer_change_again(frame.subscriber, frame.number)

    def _change(self, frame: ChangeFill) -> None:
        subscriber, number = frame.subscriber, frame.number
        entries = dict(frame.entries)
        topics = tuple(dict.fromkeys((*frame.old, *frame.new)))
        for topic, count in frame.entries.items():
            self._learn(topic, count)
        if number < self._changes_seen.get(subscriber, 0):
            # A late repetition, taken for new by a node that had forgotten the subscriber.
            # It goes on its way, so that links keep their order, and changes nothing.
            if frame.last != self.stage:
                here = {topic: self.count(topic) for topic in self._hosted(topics)}
                self._pass_on(msgspec.structs.replace(frame, entries=entries | here))
            return
        registered = frame.new if self._hosted(frame.new) else ()
        self._groups.replace(subscriber, registered)
        self._changes_seen[subscriber] = number
        record = RegistrationRecord(number, registered)
        self._persist(f"subscription/{subscriber}", REGISTRATION.encode(record))
        for topic in topics:
            # Forgetting the cached group also makes the topic's next stamp whole, which
            # whoever joined just now depends on: it has not seen the previous one.
            self._group_cache.pop(topic, None)
        for topic in self._hosted(frame.new):
            self._counters.get(topic)  # Known from now on; what is only left need not be.
        for topic in self._hosted(topics):
            entries[topic] = self.count(topic)
        if frame.last == self.stage:
            done = ChangedRecord(number, {topic: entries[topic] for topic in frame.new})
            self._changes_done[subscriber] = done
            self._persist(f"change/{subscriber}", CHANGED.encode(done))
            self._answer_change_again(subscriber, number)
        else:
            self._pass_on(msgspec.structs.replace(frame, entries=entries))

    def count(self, topic: str) -> int:
        """Return how many events a topic has had, and make nothing of one that nobody knows."""
        counter = self._counters.by_topic.get(topic)
        return 0 if counter is None else counter[0]

    def _answer_change_again(self, subscriber: str, number: int) -> None:
        done = self._changes_done.get(subscriber)
        if done is None or done.number != number:
            return
        last = self._effects[-1] if self._effects else None
        if isinstance(last, Send) and last.peer == subscriber and isinstance(last.frame, Changed):
            return  # Asked many times at once, it is answered once: the cut may be long.
        self._effects.append(Send(subscriber, Changed(number=number, cut=done.cut)))

    def subscribers(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Return who is registered here: the last change, and the topics if any is hosted here."""
        subscriptions = self._groups.subscriptions
        return {
            name: (number, tuple(subscriptions.get(name, ())))
            for name, number in self._changes_seen.items()
        }

    def _forget_subscriber(self, subscriber: str, number: int) -> None:
        seen = self._changes_seen.get(subscriber)
        if seen is None or seen > number or subscriber in self._groups.subscriptions:
            return
        del self._changes_seen[subscriber]
        self._changes_done.pop(subscriber, None)
        self._persist(f"subscription/{subscriber}", None)
        self._persist(f"change/{subscriber}", None)

    def _restore_change(self, kind: str, subscriber: str, value: bytes) -> None:
        if kind == "change":
            self._changes_done[subscriber] = CHANGED.decode(value)
            return
        registration = REGISTRATION.decode(value)
        self._changes_seen[subscriber] = registration.number
        self._groups.replace(subscriber, registration.topics)
