"""The first common cut of some topics: the offsets where their common order begins.

Events are ordered across topics once one client subscribes to those topics together. The stamp of
an earlier event counts only its own topic, or the topics subscribed together by then: two such
events may share a position, and neither order of them is right. So a log is ordered from its
**first common cut**: an offset for each topic, such that every event from there on counts exactly
all events of all topics before it.

Method: walk through the log along its stamps. An event is *ready* once all events that it counts
are passed, and *complete* if it counts all passed events. While exactly one event is ready, and it
is complete, the topics have a common order. Otherwise the ready events have none and lie before the
cut. The order must then hold for `SETTLED` events, or to the end of the log.

The walk keeps only the next event of each topic, and reads at most `SETTLED` events past the cut.

HAZARD: when the last client that subscribes to the topics together leaves, later events have no
common order: a stream that reaches them fails with POSITION_CONFLICT, and `gaps` lists them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ensue.core.errors import BadInput
from ensue.store import LogReader

__all__ = ["common_cut", "common_cut_of_log", "find_cut"]

SETTLED = 10_000
"""Events for which an order must hold before the cut is accepted."""
WINDOW = 50_000
"""Offsets of a topic that one query reads from a data frame."""

Entries = Mapping[str, int]
Read = Callable[[str], Iterator[tuple[int, Entries | None]]]
"""Yields the offset and the stamp of each event of a topic, by ascending offset."""


def common_cut(frame: DataFrame, topics: Sequence[str] | None = None) -> dict[str, int]:
    """Return the offset of each topic where the common order begins.

    `frame` is a batch of an event log. `topics` defaults to all topics in it. To order a stream of
    the same log: `order(stream, common_cut(log, topics), before_cut=True)`. Topics without any
    common order raise `BadInput`.
    """
    if frame.isStreaming:
        raise BadInput("common_cut needs a batch: read the log with spark.read, not readStream")
    if isinstance(topics, str):
        raise BadInput(f"topics is the text {topics!r}: give a list of topics, [{topics!r}]")
    firsts = frame.groupBy("topic").agg(f.min("offset").alias("first")).collect()
    held = {row["topic"]: row["first"] for row in firsts}
    chosen = sorted(held) if topics is None else list(dict.fromkeys(topics))
    found = find_cut({name: held.get(name, 0) for name in chosen}, rows_of(frame))
    if found is None:
        raise BadInput(
            f"topics {', '.join(chosen)} have no common order in this log: name topics that "
            "one client subscribes together"
        )
    return found


def common_cut_of_log(log: LogReader, topics: Sequence[str]) -> dict[str, int] | None:
    """Return the first common cut of an event log; None if it has none yet."""
    bounds = log.bounds()
    known = {topic: bounds[topic] for topic in topics if topic in bounds}

    def read(topic: str) -> Iterator[tuple[int, Entries | None]]:
        if topic not in known:
            return
        for batch in log.read(topic, *known[topic], ("offset", "stamp")):
            yield from _rows(batch.column("offset"), batch.column("stamp"))

    return find_cut({name: known[name].first if name in known else 0 for name in topics}, read)


def rows_of(frame: DataFrame) -> Read:
    """Return a reader of a data frame's stamps, one window of offsets at a time."""

    def read(topic: str) -> Iterator[tuple[int, Entries | None]]:
        mine = frame.where(f.col("topic") == topic).select("offset", "stamp")
        start = mine.agg(f.min("offset")).collect()[0][0]
        while start is not None:
            window = mine.where(f.col("offset").between(start, start + WINDOW - 1))
            table = window.orderBy("offset").toArrow()
            yield from _rows(table["offset"], table["stamp"])
            start = (
                mine.where(f.col("offset") >= start + WINDOW).agg(f.min("offset")).collect()[0][0]
            )

    return read


def _rows(offsets: Any, stamps: Any) -> Iterator[tuple[int, Entries | None]]:
    for offset, stamp in zip(offsets.to_pylist(), stamps.to_pylist(), strict=True):
        yield offset, None if stamp is None else dict(stamp)


def find_cut(firsts: Mapping[str, int], read: Read) -> dict[str, int] | None:
    """Walk through a log from its topics' first offsets; return its first common cut.

    None if it has none yet, or if an event has no stamp for its own topic.
    """
    walk = _Walk(firsts, read)
    cut: dict[str, int] | None = None
    held = 0
    while held < SETTLED and walk.ready and walk.stamped:
        if walk.in_order():
            if cut is None:
                cut = dict(walk.passed)
            held += 1
        else:
            cut, held = None, 0
        walk.step()
    if not walk.stamped:
        return None
    # Events that wait for others missing from the log count all that the walk has passed.
    return dict(walk.passed) if cut is None and walk.waits else cut


class _Walk:
    """A walk through a log along its stamps."""

    def __init__(self, firsts: Mapping[str, int], read: Read) -> None:
        self.passed = dict(firsts)
        """By topic: the offset after the last passed event."""
        self.ready: dict[str, tuple[int, Entries]] = {}
        """By topic: its next event, if all events that it counts are passed."""
        self._rows = {topic: read(topic) for topic in firsts}
        self._waiting: dict[str, list[tuple[int, str, int, Entries]]] = {}
        """By topic: next events of other topics that wait for a number of its events."""
        self.stamped = True
        """Whether every event read so far has a stamp for its own topic."""
        for topic in firsts:
            self._advance(topic)

    @property
    def waits(self) -> bool:
        """Whether remaining events count some that are missing from the log."""
        return any(self._waiting.values())

    def in_order(self) -> bool:
        """Return whether a single event is ready, and it counts all passed events."""
        if len(self.ready) > 1:
            return False
        ((topic, (_, entries)),) = self.ready.items()
        return self._complete(topic, entries)

    def step(self) -> None:
        """Pass a ready event, an incomplete one first."""
        topic = next(iter(self.ready))
        if len(self.ready) > 1:
            partial = (
                name for name, (_, each) in self.ready.items() if not self._complete(name, each)
            )
            topic = next(partial, topic)
        offset, _ = self.ready.pop(topic)
        self.passed[topic] = offset + 1
        waiting = self._waiting.pop(topic, [])
        for need, name, at, entries in waiting:
            if need > offset + 1:
                self._waiting.setdefault(topic, []).append((need, name, at, entries))
            else:
                self._place(name, at, entries)
        self._advance(topic)

    def _complete(self, topic: str, entries: Entries) -> bool:
        passed = self.passed
        return all(entries.get(name, 0) == passed[name] for name in passed if name != topic)

    def _advance(self, topic: str) -> None:
        """Read the next event of a topic."""
        row = next(self._rows[topic], None)
        if row is None:
            return
        offset, entries = row
        if entries is None or entries.get(topic, 0) < 1:
            self.stamped = False
        else:
            self._place(topic, offset, entries)

    def _place(self, topic: str, offset: int, entries: Entries) -> None:
        for name, count in entries.items():
            if name != topic and count > self.passed.get(name, count):
                self._waiting.setdefault(name, []).append((count, topic, offset, entries))
                return
        self.ready[topic] = (offset, entries)
