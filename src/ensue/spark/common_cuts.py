"""The first common cut of some topics: where their one order begins.

Events are ordered across topics from the moment on at which one client subscribes those topics
together. What was published before counts only its own topic, or those that were subscribed
together by then: two such events may share a position, and no order of them is right. So a log is
put in order from its **first common cut** on: an offset for each topic, such that every event from
there on counts exactly all events of all topics before it.

How it is found: the log is walked through along its stamps. An event can be next once all that it
counts are behind; it is *whole* if it counts all that are behind. As long as one event can be next
and is whole, the topics are in common order. Otherwise what can be next has no common order and
lies before the cut. The order must then hold for `SETTLED` events, or up to the end of the log.

Nothing is kept but the next event of each topic, and nothing beyond the cut and `SETTLED` events is
read.

HAZARD: once no client subscribes the topics together any more, events have no common order again: a
stream that reaches them fails with POSITION_CONFLICT, and `gaps` shows them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ensue.core.errors import BadInput
from ensue.store import LogReader

__all__ = ["common_cut", "common_cut_of_log", "find_cut"]

SETTLED = 10_000
"""Order that has held for so many events has begun."""
WINDOW = 50_000
"""Offsets of a topic that one query takes of a data frame."""

Entries = Mapping[str, int]
Read = Callable[[str], Iterator[tuple[int, Entries | None]]]
"""Yields the offset and the stamp of each event of a topic, by rising offset."""


def common_cut(frame: DataFrame, topics: Sequence[str] | None = None) -> dict[str, int]:
    """Return the offset of each topic where the order of these topics begins.

    `frame` is a batch of an event log; None takes all topics that it holds. For a stream of the
    same log: `order(stream, common_cut(log, topics), before_cut=True)`. Topics that have no common
    order at all are refused.
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
    """Return the first common cut of an event log; None if there is none so far."""
    bounds = log.bounds()
    known = {topic: bounds[topic] for topic in topics if topic in bounds}

    def read(topic: str) -> Iterator[tuple[int, Entries | None]]:
        if topic not in known:
            return
        for batch in log.read(topic, *known[topic], ("offset", "stamp")):
            yield from _rows(batch.column("offset"), batch.column("stamp"))

    return find_cut({name: known[name].first if name in known else 0 for name in topics}, read)


def rows_of(frame: DataFrame) -> Read:
    """Return what reads the stamps of a data frame, a window of offsets at a time."""

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

    None if there is none so far, or if an event has no stamp for its own topic.
    """
    walk = _Walk(firsts, read)
    cut: dict[str, int] | None = None
    held = 0
    while held < SETTLED and walk.ready and walk.stamped:
        if walk.in_order():
            if cut is None:
                cut = dict(walk.behind)
            held += 1
        else:
            cut, held = None, 0
        walk.step()
    if not walk.stamped:
        return None
    # What waits for events that are not in the log, or not yet, counts all that is behind.
    return dict(walk.behind) if cut is None and walk.waits else cut


class _Walk:
    """A way through a log along its stamps."""

    def __init__(self, firsts: Mapping[str, int], read: Read) -> None:
        self.behind = dict(firsts)
        """How many events of each topic are behind."""
        self.ready: dict[str, tuple[int, Entries]] = {}
        """By topic: its next event, where all that it counts are behind."""
        self._rows = {topic: read(topic) for topic in firsts}
        self._waiting: dict[str, list[tuple[int, str, int, Entries]]] = {}
        """By topic: which next events of other topics wait for how many of its events."""
        self.stamped = True
        """Whether every event that was taken up has a stamp for its own topic."""
        for topic in firsts:
            self._advance(topic)

    @property
    def waits(self) -> bool:
        """Whether events are left that count some which are not there."""
        return any(self._waiting.values())

    def in_order(self) -> bool:
        """Tell whether one event can be next, and it counts all that are behind."""
        if len(self.ready) > 1:
            return False
        ((topic, (_, entries)),) = self.ready.items()
        return self._whole(topic, entries)

    def step(self) -> None:
        """Go past an event that can be next; one that is not whole goes first."""
        topic = next(iter(self.ready))
        if len(self.ready) > 1:
            partial = (
                name for name, (_, each) in self.ready.items() if not self._whole(name, each)
            )
            topic = next(partial, topic)
        offset, _ = self.ready.pop(topic)
        self.behind[topic] = offset + 1
        waiting = self._waiting.pop(topic, [])
        for need, name, at, entries in waiting:
            if need > offset + 1:
                self._waiting.setdefault(topic, []).append((need, name, at, entries))
            else:
                self._place(name, at, entries)
        self._advance(topic)

    def _whole(self, topic: str, entries: Entries) -> bool:
        behind = self.behind
        return all(entries.get(name, 0) == behind[name] for name in behind if name != topic)

    def _advance(self, topic: str) -> None:
        """Take up the next event of a topic."""
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
            if name != topic and count > self.behind.get(name, count):
                self._waiting.setdefault(name, []).append((count, topic, offset, entries))
                return
        self.ready[topic] = (offset, entries)
