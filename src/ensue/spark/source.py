"""`format("ensue")`: an event log as a data frame, for batches and for streams.

The driver plans ranges of offsets; each task reads one range of one topic and hands on Arrow
batches. Nothing is kept between calls: what a task yields is a function of its range alone, so that
a batch planned again after a crash has the same rows.

A stream's offset is `{"orders": 120, "payments": 77}`: for each topic the next offset to read. A
topic that is not in it yet begins at the first offset there is. Micro-batches end where
`maxOffsetsPerTrigger` says, shared between topics by what each has left, and none is left out
forever.

A topic that is asked for and does not exist is an error in a batch; a stream waits for it, and says
so once.

HAZARD: a log that is trimmed below what a stream has read loses rows for that stream. That is an
error, which names them, unless `failOnDataLoss` is false.

HAZARD: Spark does not pass the columns that a query needs to Python sources. A query that needs few
says so with `.schema("topic string, offset bigint")`, and only those are read.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ensue.core.errors import OffsetsGone
from ensue.spark.conditions import SparkFault
from ensue.spark.options import EARLIEST, LATEST, Offsets, SinkOptions, SourceOptions
from ensue.spark.sink import LogBatchWriter, LogStreamWriter
from ensue.store import Bounds, LogReader, log_schema, open_log

__all__ = ["EnsueDataSource", "LogBatchReader", "LogStreamReader", "event_schema"]

TOPICS_SHOWN = 20
"""So many of the topics that exist are named where one is asked for that does not."""

_log = logging.getLogger("ensue")


def event_schema() -> StructType:
    """Return the columns of an event log."""
    return from_arrow_schema(log_schema())


class EnsueDataSource(DataSource):
    """An event log, read and written.

    Name: `ensue`

    Options for reading, in whatever case:

    - `url`: the log, a recorded run, or the `ensue://` of a server; also as `load(path)`. Required.
    - `subscribe`: topics, between commas; or `subscribePattern`: a regular expression that matches
      the whole topic. Neither: all topics. A topic that does not exist is an error in a batch,
      which names those that do.
    - `startingOffsets`: `earliest` (default), `latest` (streams), or JSON: `{"orders": 17}`, where
      -2 and -1 are the two; a topic that it does not name starts at the earliest.
    - `endingOffsets` (batches): `latest` (default) or JSON; these offsets are not included.
    - `maxOffsetsPerTrigger` (streams): how many offsets a micro-batch takes, over all topics.
    - `failOnDataLoss`: `true` (default): offsets and topics that are not there are an error, which
      names them. `false`: a warning, and the query goes on without them.
    - `partitionRows`: how many offsets a task reads at most; 500000.

    Options for writing: see `ensue.spark.sink`.

    Schema: key binary, value binary, topic string, publisher string, publisher_seq bigint, event
    string, stamp map<string,bigint>, published_at timestamp, offset bigint, headers
    map<string,string>. A null value is a void: it takes a place and is never shown.

    Examples
    --------
    >>> events = spark.read.format("ensue").option("subscribe", "orders").load("runs/today")
    >>> events.select("topic", "offset", "publisher", "stamp").show(2, truncate=False)
    +------+------+---------+----------------------------+
    |topic |offset|publisher|stamp                       |
    +------+------+---------+----------------------------+
    |orders|0     |web      |{orders -> 1}               |
    |orders|1     |till     |{orders -> 2, payments -> 1}|
    +------+------+---------+----------------------------+

    >>> spark.readStream.format("ensue").option("maxOffsetsPerTrigger", 100000).load("runs/today")
    DataFrame[key: binary, value: binary, topic: string, …]

    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ensue"

    def schema(self) -> StructType:
        """Return the columns of an event log."""
        SourceOptions.parse(self.options, streaming=None)
        return event_schema()

    def reader(self, schema: StructType) -> "LogBatchReader":
        """Return what reads a batch."""
        return LogBatchReader(SourceOptions.parse(self.options, streaming=False), _columns(schema))

    def streamReader(self, schema: StructType) -> "LogStreamReader":  # noqa: N802 - Spark's name
        """Return what reads a stream."""
        return LogStreamReader(SourceOptions.parse(self.options, streaming=True), _columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return what writes a batch."""
        return LogBatchWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return what writes a stream."""
        return LogStreamWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)


class _Range(InputPartition):
    """Offsets of one topic: what one task reads."""

    def __init__(self, topic: str, start: int, end: int) -> None:
        self.topic = topic
        self.start = start
        self.end = end


class _Reader:
    """What batches and streams share: the log, the ranges, and reading one."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns
        # Opened where it is used: the reader itself travels to the tasks.
        self._opened: LogReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def bounds(self) -> dict[str, Bounds]:
        """Return what there is of each subscribed topic."""
        found = self.log().bounds()
        return {topic: found[topic] for topic in sorted(found) if self.options.wants(topic)}

    def log(self) -> LogReader:
        """Return the log, opened."""
        if self._opened is None:
            self._opened = open_log(self.options.url)
        return self._opened

    def absent(self) -> str:
        """Return which topics asked for are absent, and which exist; empty if all do."""
        found = self.log().bounds()
        pattern = self.options.pattern
        missing = [repr(topic) for topic in sorted(self.options.named()) if topic not in found]
        if missing:
            several = len(missing) > 1
            what = (
                f"there {'are' if several else 'is'} no topic{'s' * several} {', '.join(missing)}"
            )
        elif pattern is not None and not any(map(self.options.wants, found)):
            what = f"subscribePattern {pattern!r} matches no topic"
        else:
            return ""
        return f"{what} in {self.options.shown}; {_listed(found)}"

    def ranges(self, starts: Mapping[str, int], ends: Mapping[str, int]) -> list[_Range]:
        """Plan the tasks between two offsets of each topic."""
        bounds = self.bounds()
        planned: list[_Range] = []
        for topic, end in ends.items():
            known = bounds.get(topic, Bounds(0, 0))
            start = starts.get(topic, known.first)
            if start >= end:
                continue
            low, high = self.present(topic, start, end, known)
            pieces = max(1, -(-(high - low) // self.options.partition_rows))
            edges = [low + (high - low) * piece // pieces for piece in range(pieces + 1)]
            planned.extend(
                _Range(topic, edges[piece], edges[piece + 1])
                for piece in range(pieces)
                if edges[piece] < edges[piece + 1]
            )
        return planned

    def present(self, topic: str, start: int, end: int, known: Bounds) -> tuple[int, int]:
        """Return the part of a range that is there; what is not is an error, or a warning."""
        low = min(max(start, known.first), max(known.next, known.first))
        high = max(low, min(end, known.next))
        if start < low and start < end:
            self.lost(topic, start, min(low, end))
        if high < end:
            self.lost(topic, max(high, start), end)
        return low, high

    def lost(self, topic: str, start: int, end: int) -> None:
        """Report that offsets are gone."""
        what = f"offsets {start} to {end - 1} of topic {topic!r} are not in {self.options.shown}"
        self.wrong(
            "OFFSETS_GONE", f"{what}: the log was trimmed or replaced", "Start the query anew"
        )

    def beyond(self, topic: str, known: Bounds, asked: int, who: str) -> None:
        """Report that a log does not reach as far as an offset given."""
        ends = "is empty" if known.next <= known.first else f"ends with offset {known.next - 1}"
        what = f"the log of topic {topic!r} in {self.options.shown} {ends}, and {who} {asked}"
        self.wrong("OFFSETS_BEYOND_END", what, "Give an offset that is there")

    def wrong(self, condition: str, what: str, remedy: str) -> None:
        """Report something missing: as an error, or as a warning."""
        if self.options.fail_on_data_loss:
            raise SparkFault(
                condition, f"{what}. {remedy}, or failOnDataLoss=false to go on without"
            )
        _log.warning("[%s] %s: the query goes on without", condition, what)

    def rows(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range."""
        if not isinstance(part, _Range):
            return  # Spark plans one partition without a range where there is nothing to read.
        # It was there when the range was planned: a server that restarts is waited for.
        log = open_log(self.options.url, patient=True)
        start = part.start
        while start < part.end:
            try:
                yield from log.read(part.topic, start, part.end, self.columns)
            except OffsetsGone as gone:
                # Trimmed since the range was planned, or while it was being read.
                self.lost(part.topic, gone.start, gone.end)
                start = gone.end
            else:
                return


class LogBatchReader(_Reader, DataSourceReader):
    """Reads a log from one offset of each topic to another."""

    def partitions(self) -> Sequence[_Range]:
        """Plan one task for each range of a topic."""
        absent = self.absent()
        if self.options.pattern is not None and absent:
            _log.warning("%s: the batch has no rows", absent)
        elif absent:
            self.wrong("UNKNOWN_TOPIC", absent, "Name topics that are there")
        bounds = self.bounds()
        starts = _resolve(self.options.starting, bounds, unnamed=EARLIEST)
        ends = _resolve(self.options.ending, bounds, unnamed=LATEST)
        for name, offsets in (("startingOffsets says", starts), ("endingOffsets says", ends)):
            for topic, offset in offsets.items():
                known = bounds.get(topic)
                if known is not None and offset > known.next:
                    self.beyond(topic, known, offset, name)
                offsets[topic] = min(offset, known.next if known is not None else 0)
        return self.ranges(starts, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range."""
        return self.rows(partition)


class LogStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a log."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        super().__init__(options, columns)
        self._target: dict[str, Bounds] | None = None
        """Where a query that takes what there is now stops."""
        self._looked = False
        """Whether it was looked if the topics exist."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return where a new query begins."""
        return _resolve(self.options.starting, self.bounds(), unnamed=EARLIEST)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return how much a micro-batch takes."""
        limit = self.options.offsets_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember what there is now."""
        self._target = self.bounds()

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return how far the log goes, for the progress of the query."""
        return {topic: known.next for topic, known in self.bounds().items()}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return where the next micro-batch ends."""
        self._look_once()
        bounds = self.bounds() if self._target is None else self._target
        end = dict(start)
        left: dict[str, int] = {}
        for topic, known in bounds.items():
            begin = max(start.get(topic, known.first), known.first)
            if begin < known.next:
                left[topic] = known.next - begin
                end[topic] = begin
        for topic, begin in start.items():
            known = bounds.get(topic, Bounds(0, 0))
            if begin > known.next and self.options.wants(topic):
                who = "(was it replaced?) the stream goes on from"
                self.beyond(topic, known, begin, who)
                end[topic] = known.next
        taken = left
        if isinstance(limit, ReadMaxRows):
            taken = share(left, limit.max_rows, turn=sum(start.values()))
        for topic in left:
            if taken.get(topic):
                end[topic] += taken[topic]
            elif topic in start:
                end[topic] = start[topic]
            else:
                del end[topic]
        return end

    def _look_once(self) -> None:
        """Warn of topics that don't exist, once."""
        absent = "" if self._looked else self.absent()
        self._looked = True
        if absent:
            _log.warning("%s: the stream waits for it", absent)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[_Range]:
        """Plan one task for each range of a topic."""
        return self.ranges(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range."""
        return self.rows(partition)


def share(left: Mapping[str, int], limit: int, *, turn: int) -> dict[str, int]:
    """Share a limit between topics by what each has left, at least one each.

    Where the limit is too small for one each, `turn` decides which topic is first; it moves on with
    the stream, so that every topic has a turn.
    """
    if sum(left.values()) <= limit:
        return dict(left)
    topics = sorted(left)
    if limit < len(topics):
        first = turn % len(topics)
        return dict.fromkeys((topics[first:] + topics[:first])[:limit], 1)
    spare, rest = limit - len(topics), sum(left.values()) - len(topics)
    shares = {topic: 1 + spare * (left[topic] - 1) // rest for topic in topics}
    # Rounding down leaves less than one a topic; the largest remainders get it.
    over = limit - sum(shares.values())
    by_remainder = sorted(topics, key=lambda topic: -(spare * (left[topic] - 1) % rest))
    for topic in by_remainder[:over]:
        shares[topic] += 1
    return shares


def _listed(topics: Iterable[str]) -> str:
    """Return which topics there are, as text."""
    names = sorted(topics)
    names_shown = ", ".join(map(repr, names[:TOPICS_SHOWN]))
    more = f" and {len(names) - TOPICS_SHOWN:,} more" if len(names) > TOPICS_SHOWN else ""
    return f"there are {names_shown}{more}" if names else "it has no topics yet"


def _resolve(offsets: Offsets, bounds: Mapping[str, Bounds], *, unnamed: int) -> dict[str, int]:
    """Return an offset for each topic."""
    if offsets == "earliest":
        wanted: Mapping[str, int] = dict.fromkeys(bounds, EARLIEST)
    elif offsets == "latest":
        wanted = dict.fromkeys(bounds, LATEST)
    else:
        assert isinstance(offsets, Mapping)
        wanted = {**dict.fromkeys(bounds, unnamed), **offsets}
    resolved: dict[str, int] = {}
    for topic, offset in wanted.items():
        known = bounds.get(topic, Bounds(0, 0))
        ends = {EARLIEST: known.first, LATEST: known.next}
        resolved[topic] = ends.get(offset, offset)
    return resolved


def _columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns that a query wants, all or some of those there are."""
    known = {field.name: field.dataType for field in event_schema()}
    for field in schema:
        if known.get(field.name) != field.dataType:
            raise SparkFault(
                "UNSUPPORTED_SCHEMA",
                f"an event log has no column {field.name} {field.dataType.simpleString()}; a "
                "schema names some of "
                f"{', '.join(f'{n} {k.simpleString()}' for n, k in known.items())}",
            )
    return tuple(schema.names)
