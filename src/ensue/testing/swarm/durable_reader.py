"""What the reader of a durable subscription knows of its own acknowledgements."""

from random import Random

import ensue

__all__ = ["DurableReader"]


class DurableReader:
    """What the application of one durable subscription did, over all its lives."""

    def __init__(self, name: str, problems: list[str], random: Random) -> None:
        self._name, self._problems = name, problems
        self.random = random
        """For choices of its application."""
        self._acked: dict[int, None] = {}
        """Positions that the application has acknowledged, or need not."""
        self._handed: dict[int, str] = {}
        """By position that was handed out: its topic."""
        self._safe = 0
        """Up to where an acknowledgement has returned."""
        self.leaves: list[tuple[int, str]] = []
        """When it began to leave topics; killed before it has, it may have left or not."""
        self.has_begun = False
        """Whether it was ever subscribed: only then its name has an owner."""
        self._is_first = True
        self._is_anew = False

    def begin(self, lost_ns: int | None) -> None:
        """Begin another life; `lost_ns`: when the server lost its log."""
        self.has_begun = True
        self._is_first = True
        if lost_ns is not None and not self._is_anew:
            self.forget()

    def forget(self) -> None:
        """Begin anew: the log was lost."""
        self._is_anew = True
        self._acked.clear()
        self._handed.clear()
        self._safe = 0

    def hand(self, event: ensue.ReceivedEvent) -> None:
        """Take an event."""
        position = event.position
        self._acked.pop(position, None)  # It comes again: its acknowledgement was lost.
        if position <= self._safe:
            self._problems.append(
                f"again: {self._name} got position {position}, and its acknowledgement of "
                f"{self._safe} had returned"
            )
        if self._is_first:
            self._is_first = False
            skipped = [one for one in self._handed if one < position and one not in self._acked]
            if skipped:
                self._problems.append(
                    f"skipped: {self._name} resumed at position {position}, and had not "
                    f"acknowledged {skipped[0]}"
                )
        self._handed[position] = event.topic

    def leave(self, topic: str, at_ns: int) -> None:
        """Note that a topic is being left: its events need not be acknowledged."""
        self.leaves.append((at_ns, topic))
        self._acked.update((one, None) for one, its in self._handed.items() if its == topic)

    def done(self, event: ensue.ReceivedEvent) -> int:
        """Note that an event is being acknowledged; return up to where all are."""
        self._acked[event.position] = None
        unfinished = [one for one in self._handed if one not in self._acked]
        return min(event.position, min(unfinished, default=event.position + 1) - 1)

    def safe(self, position: int) -> None:
        """Note that the acknowledgement of a position has returned."""
        self._safe = max(self._safe, position)
