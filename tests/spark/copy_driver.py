"""A driver that copies a log by two streaming queries: to a Parquet table, and to another log.

The tests run it as a process, to kill it. It prints `started` when both queries run, and the name
of a query for each micro-batch that the query finishes.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ensue.spark import session

NAMES = ("parquet", "ensue")


def start(spark: SparkSession, place: Path, *, once: bool = False) -> list[StreamingQuery]:
    """Start both queries, or resume them; with `once` they end with the log."""
    source = spark.readStream.format("ensue").option("maxOffsetsPerTrigger", 100)
    queries = []
    for name in NAMES:
        frame = source.load(str(place / "log"))
        if name == "ensue":
            # Without `publisher_seq`, only the token of the batch prevents repetition.
            frame = frame.selectExpr("value", "event as key", "topic")
        writer = frame.writeStream.format(name)
        writer = writer.option("checkpointLocation", str(place / f"checkpoint-{name}"))
        if name == "ensue":
            writer = writer.option("publisher", "copier")
        if once:
            writer = writer.trigger(availableNow=True)
        queries.append(writer.start(str(place / name)))
    return queries


def report(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def finished(place: Path, name: str) -> int:
    """Count the micro-batches that a query has committed to its checkpoint."""
    return len(list(place.glob(f"checkpoint-{name}/commits/[0-9]*")))


def main() -> None:
    place = Path(sys.argv[1])
    queries = start(session("local[2]", settings={"spark.driver.memory": "700m"}), place)
    reported = {name: finished(place, name) for name in NAMES}
    report("started")
    while True:
        for query in queries:
            if query.exception() is not None:
                raise query.exception() or AssertionError
        for name in NAMES:
            for _ in range(finished(place, name) - reported[name]):
                reported[name] += 1
                report(name)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
