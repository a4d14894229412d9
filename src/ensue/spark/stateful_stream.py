"""A hold-back queue in a streaming query: one stateful task on packed rows.

PySpark passes rows to a stateful operator through pandas, which is slow and not exact for maps,
nulls and binaries. So the tasks that read rows pack each Arrow record batch into one binary. The
stateful operator unpacks, orders and packs them again, and a last step unpacks them to rows. Every
value stays exact.

All events of one order pass one task, as a total order requires. The other steps are parallel: the
rows that a micro-batch releases are spread over partitions, the first rows in the first partition.

The state is one value, rewritten by each micro-batch: the frontier, and the held rows, compressed.
Spark commits it with the offsets of the source, so a query that is killed and restarted from its
checkpoint repeats and loses nothing, if its sink is idempotent or transactional. There are no
timers: with timers `availableNow` would never end.

HAZARD: Spark splits state into `spark.sql.shuffle.partitions` (200 unless set) when it creates a
checkpoint, and commits each of them in every micro-batch although only one is used. Set it to a
small number before an ordered stream first starts; `ensue.spark.session` does on one machine.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from ensue.core.errors import ConfigurationError
from ensue.spark.hold_back import HoldBack, MakeHoldBack
from ensue.spark.record_batches import from_bytes, to_bytes

__all__ = ["HoldBackProcessor", "hold_back"]

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def hold_back(frame: DataFrame, schema: StructType, make: MakeHoldBack) -> DataFrame:
    """Pass a stream through a hold-back queue; `schema` is that of released rows."""
    provider = frame.sparkSession.conf.get(_PROVIDER, "")
    if "RocksDB" not in (provider or ""):
        raise ConfigurationError(
            "an ordered stream keeps its state in RocksDB: set "
            f"{_PROVIDER} to {_ROCKSDB} before the query starts (ensue.spark.session does)"
        )
    parts = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions", None) or 1)
    packed = frame.mapInArrow(_pack, "queue int, chunk binary")
    ordered = packed.groupBy("queue").transformWithStateInPandas(
        HoldBackProcessor(make, parts),
        "part int, chunk binary",
        outputMode="Append",
        timeMode="None",
    )
    # One task orders, all tasks unpack: unpacking a chunk takes many times as long as ordering it.
    return ordered.repartitionById(parts, "part").mapInArrow(_unpack, schema)


class HoldBackProcessor(StatefulProcessor):
    """Feeds packed record batches to a hold-back queue, and saves its state."""

    def __init__(self, make: MakeHoldBack, parts: int = 1) -> None:
        self._make = make
        self._parts = parts
        """Number of partitions for released rows, the first rows in the first one."""
        self._state: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """See `StatefulProcessor`."""
        self._state = handle.getValueState("held", "blob binary")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """See `StatefulProcessor`."""
        del key, timerValues
        kept = self._state.get()
        queue = self._make(None if kept is None else bytes(kept[0]))
        chunks = [to_bytes([batch]) for batch in _through(queue, rows)]
        for number, chunk in enumerate(chunks):
            part = number * self._parts // len(chunks)
            yield pd.DataFrame({"part": np.array([part], dtype=np.int32), "chunk": [chunk]})
        self._state.update((queue.dump(),))

    def close(self) -> None:
        """See `StatefulProcessor`."""


def _through(queue: HoldBack, rows: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    for frame in rows:
        for chunk in frame["chunk"]:
            for batch in from_bytes(chunk):
                yield from queue.add(batch)
    yield from queue.finish()


def _pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            queue = pa.array([0], pa.int32())
            chunk = pa.array([to_bytes([batch])], pa.binary())
            yield pa.RecordBatch.from_arrays([queue, chunk], names=["queue", "chunk"])


def _unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for chunk in batch.column("chunk"):
            yield from from_bytes(chunk.as_py())
