"""How a subscriber asks the logs of its topics for what it missed.

Now and then it asks how far they are. What it has not had is most often on its way, behind other events or
past them, and asking for it would make the log send all of that twice, to a subscriber that has
enough to do. So it looks again after `gap_ns`, and asks for what is still missing of what there was.
Only where events are held back for `gap_ns` without progress, or a connection was lost, does it ask at once.

The answer to one question may be hundreds of events, and the end of it leads to the next question.
Asking again before it has come makes the log send all of it again; and if the end of each answer led
to a next question, two questions on one topic would go on side by side until all is caught up with.
The slower a log answers the more it would be asked.

Guarantee: a topic has one question open. It is asked again when `gap_ns` have passed, then twice that,
and so on up to `PATIENCE_POLLS` times `poll_ns`; and only the answer to the latest leads to a next one.
"""

from ensue.protocols.core import Attach, Detach
from ensue.protocols.ens import Attached
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.history import Replay

__all__ = ["Asking", "Questions"]

PATIENCE_POLLS = 4
"""For so many times `poll_ns` a log that does not answer is waited for at the most."""


class Questions:
    """The open question of each topic."""

    __slots__ = ("_open", "_patience_max_ns", "_patience_ns")

    def __init__(self, config: SequencerConfig) -> None:
        self._patience_ns = config.gap_ns
        self._patience_max_ns = max(config.gap_ns, PATIENCE_POLLS * config.poll_ns)
        self._open: dict[str, tuple[int, int, int]] = {}
        """Topic to the slot asked for, how long an answer is waited for, and until when."""

    def ask(self, topic: str, slot: int, now_ns: int) -> bool:
        """Note that a topic is asked for what it has from a slot on; False: it was, be patient."""
        wait_ns = self._patience_ns
        earlier = self._open.get(topic)
        if earlier is not None:
            if now_ns < earlier[2]:
                return False
            wait_ns = min(2 * earlier[1], self._patience_max_ns)
        self._open[topic] = (slot, wait_ns, now_ns + wait_ns)
        return True

    def is_open(self, topic: str) -> bool:
        """Whether something was asked of a topic and not answered."""
        return topic in self._open

    def answered(self, frame: Attached) -> bool:
        """Note an answer; False: it is not to the question that is open."""
        question = self._open.get(frame.topic)
        if question is None or (frame.sent < frame.next and frame.sent <= question[0]):
            return False
        del self._open[frame.topic]
        return True

    def drop(self, topic: str) -> None:
        """Expect no answer on a topic any more: it was left."""
        self._open.pop(topic, None)

    def drop_all(self) -> None:
        """Expect no answer any more: a connection was lost."""
        self._open.clear()


class Asking(Replay):
    """The part of a subscriber that finds out what it missed. `Subscriber` adds changes of subscription."""

    def __init__(self, *, config: SequencerConfig, acknowledge_each: bool, now_ns: int) -> None:
        super().__init__(config=config, acknowledge_each=acknowledge_each, now_ns=now_ns)
        self._questions = Questions(config)
        self._ends: dict[str, int] = {}
        """Topics that had more than has come when they were last looked at, and the slot they end before."""
        self._ends_due_ns = now_ns
        """When to see whether that has come."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics in effect: joined, and not left."""
        return (*self._queue.clock, *self._history.topics)

    def _ask_if_due(self, now_ns: int) -> None:
        """Do what is due: ask for what held events wait for, or ask how far the logs are."""
        if self._gap_due_ns is not None and self._gap_due_ns <= now_ns:
            self._ask(now_ns)
        elif self._poll_due_ns <= now_ns:
            self._look(now_ns)
        if self._ends and self._ends_due_ns <= now_ns:
            ends, self._ends = self._ends, {}
            for topic, end in ends.items():
                if topic in self._queue.clock and self._queue.first_missing(topic) < end:
                    self._ask_for(topic, now_ns)

    def _asking_due_ns(self) -> int:
        """Return when there is anything of that to do."""
        due_ns = self._poll_due_ns
        if self._gap_due_ns is not None:
            due_ns = min(due_ns, self._gap_due_ns)
        return min(due_ns, self._ends_due_ns) if self._ends else due_ns

    def _ask(self, now_ns: int) -> None:
        """Ask the logs for what is missing; paused, let them know that somebody is there."""
        for topic in self.topics:
            if self._paused:
                self._effects.append(Detach(topic))
            elif topic in self._queue.clock:
                self._ask_for(topic, now_ns)
        self._poll_due_ns = now_ns + self.config.poll_ns
        self._expect_progress(now_ns)

    def _look(self, now_ns: int) -> None:
        """Ask the logs how far they are, and that what is new be sent."""
        if self._paused or not self.config.reliable:
            self._ask(now_ns)
            return
        for topic in self._queue.clock:
            if self._questions.is_open(topic):
                self._ask_for(topic, now_ns)
            else:
                self._effects.append(Attach(topic, 0))
        self._poll_due_ns = now_ns + self.config.poll_ns

    def _ask_for(self, topic: str, now_ns: int) -> None:
        """Ask a log for what is missing, unless its answer, if it gives any, may be on its way."""
        missing = self._queue.first_missing(topic)
        if self._questions.ask(topic, missing, now_ns) or not self.config.reliable:
            self._effects.append(Attach(topic, missing))

    def _told_how_far(self, frame: Attached, now_ns: int) -> None:
        """Hear how far a log is, and has sent what it was asked for."""
        topic = frame.topic
        missing = self._queue.first_missing(topic)
        latest = self._questions.answered(frame)
        if missing < frame.first:
            self._fell_behind(topic, now_ns)
        elif frame.sent < frame.next:
            if latest and missing >= frame.sent:
                # All that was sent has come, and there is more.
                self._ask_for(topic, now_ns)
        elif not latest and missing < frame.next:
            if not self._ends:
                self._ends_due_ns = now_ns + self.config.gap_ns
            self._ends[topic] = frame.next

    def _fell_behind(self, topic: str, now_ns: int) -> None:
        """Join anew what fell behind what the ENS keeps."""
        raise NotImplementedError
