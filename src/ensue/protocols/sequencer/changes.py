"""Changes of subscription, as one node of the chain handles them.

A change enters at the lowest stage of the old and the new topics together and travels to the highest.
Each node on the way puts the new subscription in the place of the old, adds the counters of its own
topics of the two, and counts nothing. The last one answers with the cut.

A repeated request is answered with the same cut, so whoever asked is remembered until it says that it
wants nothing more (`Forget`). A request that was overtaken by that word and arrives afterwards
registers a subscription that nobody has: stamps grow, and nothing else happens.

Nobody who is remembered asks for less than the last change that was seen of it, unless it was forgotten by
its keeper and not here, and has begun anew under its name. So a lower number is never left unanswered:
it is told what was seen (`Refused.seen`), and whoever waits for it asks again with a higher one. Any node
that hosts a topic of the change may be the one that remembers, so a repetition is made known to all of them.
"""

import msgspec

from ensue.protocols.core import Send
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.frames import (
    Changed,
    ChangeFill,
    ChangeRepeat,
    ChangeRequest,
    Refused,
)
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.sequencer.records import (
    CHANGED,
    REGISTRATION,
    ChangedRecord,
    RegistrationRecord,
)
from ensue.protocols.sequencer.stage import Stage

__all__ = ["ChangeStage"]


LATER = "try again when some have ended"
FEWER = "give subscriptions fewer topics in common"


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
        if frame.number < 1 or not topics:
            return  # Nobody asks so: a stray frame changes nothing.
        if not all(self.placement.knows(topic) for topic in frame.old):
            return
        if not self._may_host(added, subscriber, frame.number):
            return
        first, last = self.placement.span(topics)
        if first != self.stage:
            self._refuse(subscriber, frame.number, f"not for {self.name}")
        elif frame.number <= self._changes_seen.get(subscriber, 0):
            self._repeated_change(frame, subscriber)
        elif (
            frame.new
            and subscriber not in self._changes_seen
            and len(self._changes_seen) >= self.config.clients_max
        ):
            self._refuse_limit(
                subscriber, frame.number, "clients_max", "there are too many subscribers", LATER
            )
        elif added and self._groups.pairs + len(frame.new) ** 2 > self.config.pairs_max:
            what = "subscriptions share too many pairs of topics"
            self._refuse_limit(subscriber, frame.number, "pairs_max", what, FEWER)
        elif added and self._groups.largest_with(frame.new) > self.config.group_max:
            what = "too many topics would be ordered together"
            self._refuse_limit(subscriber, frame.number, "group_max", what, FEWER)
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
        if frame.number < self._changes_seen.get(frame.subscriber, 0):
            self._say_seen(frame.subscriber, frame.number)
        else:
            self._answer_change_again(frame.subscriber, frame.number)

    def _repeated_change(self, frame: ChangeRequest, subscriber: str) -> None:
        registered = frame.new if self._hosted(frame.new) else ()
        is_last = frame.number == self._changes_seen[subscriber]
        if not is_last or registered != self._groups.subscriptions.get(subscriber, ()):
            self._say_seen(subscriber, frame.number)  # What has that number here is another one.
            return
        stages = {self.placement.stage(topic) for topic in (*frame.old, *frame.new)}
        if stages == {self.stage}:
            self._answer_change_again(subscriber, frame.number)
        repeat = ChangeRepeat(subscriber=subscriber, number=frame.number)
        for stage in sorted(stages - {self.stage}):
            self._effects.append(Send(self.placement.nodes[stage], repeat))

    def _say_seen(self, subscriber: str, number: int) -> None:
        """Tell a subscriber that more has been seen of it than it asks for."""
        seen = self._changes_seen[subscriber]
        refused = Refused(number=number, reason=f"change {seen} was seen", seen=seen)
        self._effects.append(Send(subscriber, refused))

    def _change(self, frame: ChangeFill) -> None:
        subscriber, number = frame.subscriber, frame.number
        entries = dict(frame.entries)
        topics = tuple(dict.fromkeys((*frame.old, *frame.new)))
        for topic, count in frame.entries.items():
            self._learn(topic, count)
        if number < self._changes_seen.get(subscriber, 0):
            # Taken for new by a node that had forgotten the subscriber, or never knew it. It ends
            # here: answered by a later node, it would have a cut and not be registered everywhere.
            # A node that hosts none of its topics registers nothing, and need not be asked.
            if self._hosted(topics):
                self._say_seen(subscriber, number)
            else:
                self._pass_on(frame)
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
