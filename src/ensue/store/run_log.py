"""The event log of one run: the events of each topic, in slot order.

A run passes in each event that its topic logs accepted, with its slot, in any order. An event ahead
of its turn waits until the slots before it are filled, so rows are written in slot order. Stamps
are completed on the way: an omitted entry is the same as in the previous event of the topic.

When the run ends, or when more than `WAITING_MAX` events wait, the waiting events are written at
their own offsets, and the log has a gap. An event that arrives for a gap later is dropped and
counted.

HAZARD: after a gap, a stamp with omitted entries is completed from the last event before the gap.
Its counts may be too low until the next whole stamp.

Like the trace, the log observes the run. Once the run has started, a failing disk loses rows of
this log, never an event of the run.
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
"""Rows in memory before they are written."""
FLUSH_S = 5.0
"""The first event this long after a commit triggers the next commit."""
WAITING_MAX = 100_000
"""Events of one topic that may wait for an earlier one."""

_log = logging.getLogger("ensue")


class _HoldBack:
    """The hold-back queue of one topic."""

    __slots__ = ("entries", "events", "gaps", "next")

    def __init__(self) -> None:
        self.next = 1
        """The next slot to write."""
        self.events: dict[int, Event] = {}
        self.entries: dict[str, int] = {}
        """The whole stamp of the last written event."""
        self.gaps: list[range] = []
        """Skipped slots."""


class LogSink:
    """Writes the events of one run to a new log directory.

    The constructor raises `BadInput` if it can't use the directory. Afterwards nothing is raised:
    the first write that fails is logged, and all later rows are dropped and counted.
    """

    def __init__(self, directory: str | Path, *, order: str = "", flush_s: float = FLUSH_S) -> None:
        if not isinstance(directory, str | Path):
            raise BadInput(f"directory must be a path, got {type(directory).__name__}")
        self.directory = Path(directory)
        if self.directory.is_dir() and any(self.directory.iterdir()):
            raise BadInput(f"{directory} is not empty: name a new directory for the run's log")
        self.dropped = 0
        """Events that could not be written, or arrived after their slot was skipped."""
        self._flush_s = flush_s
        self._flushed_at = time.monotonic()
        self._topics: dict[str, _HoldBack] = {}
        self._rows: list[dict[str, Any]] = []
        self._failed = False
        try:
            self._writer = LogWriter(self.directory, order=order)
        except EnsueError:
            raise
        except Exception as error:
            raise BadInput(f"can't create an event log in {self.directory}: {error}") from error

    def accept(self, event: Event, slot: int) -> None:
        """Add an event with its final slot. Duplicates are ignored."""
        if self._failed:
            self.dropped += 1
            return
        topic = self._topics.get(event.topic)
        if topic is None:
            topic = self._topics[event.topic] = _HoldBack()
        if slot == topic.next:
            self._add(topic, event, slot)
            while (event_next := topic.events.pop(topic.next, None)) is not None:
                self._add(topic, event_next, topic.next)
        elif slot > topic.next:
            topic.events.setdefault(slot, event)
            if len(topic.events) > WAITING_MAX:
                self._skip_gaps(topic)
        elif any(slot in gap for gap in topic.gaps):
            self.dropped += 1
        if len(self._rows) >= ROWS_MAX or time.monotonic() - self._flushed_at >= self._flush_s:
            self._flush()

    def close(self) -> None:
        """Write all remaining events, with gaps where slots are missing."""
        for topic in self._topics.values():
            self._skip_gaps(topic)
        self._flush()
        if self.dropped:
            _log.warning("log incomplete log=%s dropped=%d", self.directory, self.dropped)
        try:
            self._writer.close()
        except OSError as error:
            _log.warning("log close failed log=%s reason=%s", self.directory, error)

    def _skip_gaps(self, topic: _HoldBack) -> None:
        for slot in sorted(topic.events):
            if slot > topic.next:
                topic.gaps.append(range(topic.next, slot))
            self._add(topic, topic.events[slot], slot)
        topic.events = {}

    def _add(self, topic: _HoldBack, event: Event, slot: int) -> None:
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
        except Exception as error:  # noqa: BLE001 - the log never stops the run
            self._failed = True
            self.dropped += len(rows)
            _log.error("log write failed log=%s reason=%s", self.directory, error)
