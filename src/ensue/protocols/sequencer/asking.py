"""What a subscriber has asked the logs of its topics, so that it does not ask twice.

The answer to one question may be hundreds of events, and the end of it leads to the next question.
Asking again before it has come makes the log send all of it again; and if the end of each answer led
to a next question, two questions on one topic would go on side by side until all is caught up with.
The slower a log answers the more it would be asked.

Guarantee: a topic has one question open. It is asked again when `gap_ns` have passed, then twice that,
and so on up to `PATIENCE_POLLS` times `poll_ns`; and only the answer to the latest leads to a next one.
"""

from ensue.protocols.ens import Attached
from ensue.protocols.sequencer.config import SequencerConfig

__all__ = ["Questions"]

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
