"""Where a run's events go: into a log of its own, topic by topic in the order of their slots.

A run hands over each event that its notification service accepted, with its slot, in any order.
What comes ahead of its turn waits here until the slots before it are there. So rows are written
in slot order, and stamps that leave out what has not changed are made whole on the way: an entry
that is left out is as in the previous event of the topic.

What still waits when the run ends, or beyond `WAITING_MAX`, is written with its own offset: the log
then has a gap there. Whatever turns up for such a gap later is dropped and counted.

HAZARD: behind a gap, a stamp that leaves entries out is filled from the last event before the gap,
and may count too little until the next whole one.

As with the trace, the log is a witness and not a part of the run: once it has begun, a disk that
fails costs rows and never an event.
"""

import logging
import time
from pathlib import Path
from typing import Any

from ensue.core.errors import BadInput, EnsueError
from ensue.core.event import Event
from ensue.store.writer import LogWriter

__all__ = ["FLUSH_S", "ROWS_MAX", "WAITING_MAX", "LogSink"]

ROWS_MAX = 100_000
"""Rows held in memory before they are written."""
FLUSH_S = 5.0
"""An event that comes so long after the last commit makes the next one."""
WAITING_MAX = 100_000
"""Events of one topic that wait for an earlier one."""

_log = logging.getLogger("ensue")


class _Waiting:
    """What a topic waits for."""

    __slots__ = ("entries", "events", "gaps", "next")

    def __init__(self) -> None:
        self.next = 1
        """The slot whose turn it is."""
        self.events: dict[int, Event] = {}
        self.entries: dict[str, int] = {}
        """The whole stamp of the last event."""
        self.gaps: list[range] = []
        """Slots that were given up."""


class LogSink:
    """Writes the events of one run into a log directory of its own.

    A directory that can't be used is refused when the sink is made. Afterwards nothing is raised:
    the first write that fails is logged, and from then on rows are dropped and counted.
    """

    def __init__(self, directory: str | Path, *, flush_s: float = FLUSH_S) -> None:
        if not isinstance(directory, str | Path):
            raise BadInput(f"an event log is written to a path, not {type(directory).__name__}")
        self.directory = Path(directory)
        if self.directory.is_dir() and any(self.directory.iterdir()):
            raise BadInput(f"{directory} is not empty; a run needs an event log of its own")
        self.dropped = 0
        """Rows that could not be written, or came after their place had been given up."""
        self._flush_s = flush_s
        self._flushed_at = time.monotonic()
        self._topics: dict[str, _Waiting] = {}
        self._rows: list[dict[str, Any]] = []
        self._failed = False
        try:
            self._writer = LogWriter(self.directory)
        except EnsueError:
            raise
        except Exception as error:
            raise BadInput(f"{self.directory} can't hold an event log: {error}") from error

    def accept(self, event: Event, slot: int) -> None:
        """Take an event that is in its slot for good. One that was taken before changes nothing."""
        if self._failed:
            self.dropped += 1
            return
        topic = self._topics.get(event.topic)
        if topic is None:
            topic = self._topics[event.topic] = _Waiting()
        if slot == topic.next:
            self._add(topic, event, slot)
            while (event_next := topic.events.pop(topic.next, None)) is not None:
                self._add(topic, event_next, topic.next)
        elif slot > topic.next:
            topic.events.setdefault(slot, event)
            if len(topic.events) > WAITING_MAX:
                self._give_up(topic)
        elif any(slot in gap for gap in topic.gaps):
            self.dropped += 1
        if len(self._rows) >= ROWS_MAX or time.monotonic() - self._flushed_at >= self._flush_s:
            self._flush()

    def close(self) -> None:
        """Write what is left, and what still waits with it."""
        for topic in self._topics.values():
            self._give_up(topic)
        self._flush()
        if self.dropped:
            _log.warning("the event log %s lacks %d events", self.directory, self.dropped)
        try:
            self._writer.close()
        except OSError as error:
            _log.warning("the event log %s can't be closed: %s", self.directory, error)

    def _give_up(self, topic: _Waiting) -> None:
        for slot in sorted(topic.events):
            if slot > topic.next:
                topic.gaps.append(range(topic.next, slot))
            self._add(topic, topic.events[slot], slot)
        topic.events = {}

    def _add(self, topic: _Waiting, event: Event, slot: int) -> None:
        topic.next = slot + 1
        stamp = event.stamp
        if stamp is not None:
            topic.entries = stamp.entries if stamp.whole else {**topic.entries, **stamp.entries}
        self._rows.append(
            {
                "key": event.key,
                "value": None if event.void else event.payload,
                "topic": event.topic,
                "publisher": event.publisher,
                "publisher_seq": event.publisher_seq,
                "stamp": None if stamp is None else topic.entries,
                "published_at": event.published_at_ns // 1_000,
                "offset": slot - 1,
                "headers": event.headers,
            }
        )

    def _flush(self) -> None:
        self._flushed_at = time.monotonic()
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        if self._failed:
            self.dropped += len(rows)
            return
        try:
            self._writer.append(rows)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
            self._failed = True
            self.dropped += len(rows)
            _log.error(
                "the event log %s can't be written, and ends here: %s", self.directory, error
            )
