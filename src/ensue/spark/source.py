"""`format("ensue")`: an event log as a data frame, for batches and for streams.

The driver plans ranges of offsets. Each task reads one range of one topic and yields Arrow batches.
Readers keep no state between calls: the rows of a task depend on its range alone, so that a batch
planned again after a crash has the same rows.

A stream's offset is `{"orders": 120, "payments": 77}`: for each topic the next offset to read. A
topic that is not in it begins at its first offset in the log. `maxOffsetsPerTrigger` bounds a
micro-batch; topics share it in proportion to their remaining offsets, and every topic gets a turn.

A subscribed topic that does not exist is an error in a batch. A stream waits for it, and warns
once.

HAZARD: if a log is trimmed beyond the offset of a stream, the stream loses rows. That is an error,
which names them, unless `failOnDataLoss` is false.

HAZARD: Spark does not pass the columns that a query needs to Python sources. To read only some,
use `.schema("topic string, offset bigint")`.
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

from ensue.core.errors import EnsueError, OffsetsGone
from ensue.spark.conditions import SparkFault
from ensue.spark.options import EARLIEST, LATEST, Offsets, SinkOptions, SourceOptions
from ensue.spark.sink import LogBatchWriter, LogStreamWriter
from ensue.store import Bounds, LogReader, log_schema, open_log

__all__ = ["ORDER", "EnsueDataSource", "LogBatchReader", "LogStreamReader", "event_schema"]

TOPICS_SHOWN = 20
"""Most topics listed in an error about an unknown topic."""

ORDER = "ensue.order"
"""In the metadata of the column `stamp`: the order of the log, if it is known."""

_log = logging.getLogger("ensue")


def event_schema() -> StructType:
    """Return the columns of an event log."""
    return from_arrow_schema(log_schema())


class EnsueDataSource(DataSource):
    """An event log, read and written.

    Name: `ensue`

    Options for reading, in any case:

    - `url`: the log, a recorded run, or the `ensue://` of a server; also as `load(path)`. Required.
    - `subscribe`: comma-separated topics; or `subscribePattern`: a regular expression that matches
      the whole topic. Default: all topics. An unknown topic is an error in a batch, which lists the
      known ones.
    - `startingOffsets`: `earliest` (default), `latest` (streams), or JSON: `{"orders": 17}`, where
      -2 is the earliest and -1 the latest; a topic that it does not name starts at the earliest.
    - `endingOffsets` (batches): `latest` (default) or JSON; these offsets are not included.
    - `maxOffsetsPerTrigger` (streams): most offsets of a micro-batch, over all topics.
    - `failOnDataLoss`: `true` (default): missing offsets and topics are an error, which names them.
      `false`: a warning, and the query skips them.
    - `partitionRows`: most offsets that one task reads; 500000.

    Options for writing: see `ensue.spark.sink`.

    Schema: key binary, value binary, topic string, publisher string, publisher_seq bigint, event
    string, stamp map<string,bigint>, published_at timestamp, offset bigint, headers
    map<string,string>. A null value is a void: it takes an offset, and no client receives it.

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
        options = SourceOptions.parse(self.options, streaming=None)
        schema = event_schema()
        if order := _order_of(options.url):
            schema["stamp"].metadata[ORDER] = order
        return schema

    def reader(self, schema: StructType) -> "LogBatchReader":
        """Return the reader of a batch."""
        return LogBatchReader(SourceOptions.parse(self.options, streaming=False), _columns(schema))

    def streamReader(self, schema: StructType) -> "LogStreamReader":  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        return LogStreamReader(SourceOptions.parse(self.options, streaming=True), _columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch."""
        return LogBatchWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream."""
        return LogStreamWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)


class _Range(InputPartition):
    """A range of offsets of one topic, which one task reads."""

    def __init__(self, topic: str, start: int, end: int) -> None:
        self.topic = topic
        self.start = start
        self.end = end


class _Reader:
    """Common part of the batch and the stream reader."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns
        # Opened on first use: Spark pickles the reader for its tasks.
        self._opened: LogReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def bounds(self) -> dict[str, Bounds]:
        """Return the bounds of each subscribed topic."""
        found = self.log().bounds()
        return {topic: found[topic] for topic in sorted(found) if self.options.wants(topic)}

    def log(self) -> LogReader:
        """Return the log; open it on first use."""
        if self._opened is None:
            self._opened = open_log(self.options.url)
        return self._opened

    def absent(self) -> str:
        """Return a text about unknown topics; empty if all exist."""
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
        """Plan tasks for the offsets between `starts` and `ends`."""
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
        """Return the part of a range in the log; report the rest as lost."""
        low = min(max(start, known.first), max(known.next, known.first))
        high = max(low, min(end, known.next))
        if start < low and start < end:
            self.lost(topic, start, min(low, end))
        if high < end:
            self.lost(topic, max(high, start), end)
        return low, high

    def lost(self, topic: str, start: int, end: int) -> None:
        """Report missing offsets."""
        what = f"offsets {start} to {end - 1} of topic {topic!r} are not in {self.options.shown}"
        self.wrong("OFFSETS_GONE", f"{what}: the log was trimmed or replaced", "Start a new query")

    def beyond(self, topic: str, known: Bounds, asked: int, who: str) -> None:
        """Report an offset after the end of a log."""
        ends = "is empty" if known.next <= known.first else f"ends with offset {known.next - 1}"
        what = f"the log of topic {topic!r} in {self.options.shown} {ends}, and {who} {asked}"
        self.wrong("OFFSETS_BEYOND_END", what, "Give an offset that is there")

    def wrong(self, condition: str, what: str, remedy: str) -> None:
        """Report missing data: as an error, or as a warning."""
        if self.options.fail_on_data_loss:
            raise SparkFault(condition, f"{what}. {remedy}, or failOnDataLoss=false to skip it")
        _log.warning("[%s] %s: the query skips it", condition, what)

    def rows(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range."""
        if not isinstance(part, _Range):
            return  # Spark plans one partition without a range if there is nothing to read.
        # The log existed when the range was planned: wait for a server that restarts.
        log = open_log(self.options.url, patient=True)
        start = part.start
        while start < part.end:
            try:
                yield from log.read(part.topic, start, part.end, self.columns)
            except OffsetsGone as gone:
                # Trimmed since the range was planned, or during this read.
                self.lost(part.topic, gone.start, gone.end)
                start = gone.end
            else:
                return


class LogBatchReader(_Reader, DataSourceReader):
    """Reads a log between two offsets of each topic."""

    def partitions(self) -> Sequence[_Range]:
        """Plan the tasks of a batch."""
        absent = self.absent()
        if self.options.pattern is not None and absent:
            _log.warning("%s: the batch has no rows", absent)
        elif absent:
            self.wrong("UNKNOWN_TOPIC", absent, "Name topics that are there")
        bounds = self.bounds()
        starts = _resolve(self.options.starting, bounds, unnamed=EARLIEST)
        ends = _resolve(self.options.ending, bounds, unnamed=LATEST)
        for name, offsets in (("startingOffsets is", starts), ("endingOffsets is", ends)):
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
        """End of a query with `availableNow`."""
        self._checked_topics = False
        """Whether a warning about unknown topics was due already."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the offsets where a new query begins."""
        return _resolve(self.options.starting, self.bounds(), unnamed=EARLIEST)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a micro-batch."""
        limit = self.options.offsets_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of the query at the present end of the log."""
        self._target = self.bounds()

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the end of the log, for the progress of the query."""
        return {topic: known.next for topic, known in self.bounds().items()}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the offsets where the next micro-batch ends."""
        self._warn_once()
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
                who = "(was it replaced?) the stream resumes at"
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

    def _warn_once(self) -> None:
        """Warn of unknown topics, once."""
        absent = "" if self._checked_topics else self.absent()
        self._checked_topics = True
        if absent:
            _log.warning("%s: the stream waits for it", absent)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[_Range]:
        """Plan the tasks of a micro-batch."""
        return self.ranges(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range."""
        return self.rows(partition)


def share(left: Mapping[str, int], limit: int, *, turn: int) -> dict[str, int]:
    """Divide a limit among topics by their remaining offsets, at least one each.

    If the limit is smaller than the number of topics, `turn` selects the first topic. It advances
    with the stream, so that every topic gets a turn.
    """
    if sum(left.values()) <= limit:
        return dict(left)
    topics = sorted(left)
    if limit < len(topics):
        first = turn % len(topics)
        return dict.fromkeys((topics[first:] + topics[:first])[:limit], 1)
    spare, rest = limit - len(topics), sum(left.values()) - len(topics)
    shares = {topic: 1 + spare * (left[topic] - 1) // rest for topic in topics}
    # Rounding down leaves less than one per topic, for the largest remainders.
    over = limit - sum(shares.values())
    by_remainder = sorted(topics, key=lambda topic: -(spare * (left[topic] - 1) % rest))
    for topic in by_remainder[:over]:
        shares[topic] += 1
    return shares


def _listed(topics: Iterable[str]) -> str:
    """Return a text that lists topics."""
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


def _order_of(url: str) -> str:
    """Return the order that a log names; empty: none, or it can't be read yet."""
    try:
        return open_log(url).order
    except EnsueError:
        return ""  # Its reader raises.


def _columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns of a schema; raise an error if a log lacks one."""
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
