"""A driver that copies a log by two streaming queries: to a Parquet table, and to another log.

Run as a process, to be killed. It prints `started` when both queries run, the name of a query for
each micro-batch that it has finished, and `done` when the source log says that no more comes and
both have everything. By then `table.json` says which events are in the table.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ensue.spark import session
from ensue.store import open_log

NAMES = ("parquet", "ensue")
END = "end"
"""The topic whose one event says that no more comes."""


def start(place: Path) -> list[StreamingQuery]:
    spark = session("local[2]", settings={"spark.driver.memory": "700m"})
    source = spark.readStream.format("ensue").option("maxOffsetsPerTrigger", 100)
    queries = []
    for name in NAMES:
        frame = source.load(str(place / "log"))
        if name == "ensue":
            # Numbered anew, so that only the token of the batch keeps it from being repeated.
            frame = frame.selectExpr("value", "event as key", "topic")
        queries.append(
            frame.writeStream.format(name)
            .option("checkpointLocation", str(place / f"checkpoint-{name}"))
            .options(**({"publisher": "copier"} if name == "ensue" else {}))
            .start(str(place / name))
        )
    return queries


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def finished(place: Path, name: str) -> int:
    """Count the micro-batches that a query has put into its checkpoint."""
    return len(list(place.glob(f"checkpoint-{name}/commits/[0-9]*")))


def main() -> None:
    place = Path(sys.argv[1])
    queries = start(place)
    told = {name: finished(place, name) for name in NAMES}
    say("started")
    log = open_log(place / "log")
    while END not in log.bounds():
        for query in queries:
            if query.exception() is not None:
                raise query.exception() or AssertionError
        for name in NAMES:
            for _ in range(finished(place, name) - told[name]):
                told[name] += 1
                say(name)
        time.sleep(0.02)
    for query in queries:
        query.processAllAvailable()
        query.stop()
    spark = SparkSession.active()
    table = spark.read.parquet(str(place / "parquet")).select("event").collect()
    (place / "table.json").write_text(json.dumps([row.event for row in table]))
    say("done")


if __name__ == "__main__":
    main()
