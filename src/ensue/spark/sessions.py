"""A Spark session set up for Ensue: local, or on a cluster by its master URL.

Every function of `ensue.spark` takes the session from its data frame, and any session works on two
conditions: ordered streams need RocksDB as the state store (see `SETTINGS`), and the Python of
every executor needs `ensue` and `pyarrow`. `session` applies the settings that are easy to get
wrong.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from ensue.spark.failures import SparkFailed, is_of_spark, sentence
from ensue.spark.java import find_java
from ensue.spark.masters import check_master

__all__ = ["SETTINGS", "session"]

_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Halves the cost of starting a Python task.
    "spark.python.unix.domain.socket.enabled": "true",
    # Ordered streams keep held events in it; the default store does not support their state.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Log errors alone. Not by spark.log.level, which makes Spark print a line about it.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
}
"""Defaults of `session`."""

_LOCAL: Mapping[str, str] = {
    # More partitions than cores only add overhead.
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Further defaults if driver and executors are one process on this machine."""


def session(
    master: str | None = None, *, app: str = "ensue", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the running session, or start one.

    `master` is a Spark master URL. It defaults to `$SPARK_MASTER`, or else to all cores of this
    machine. `settings` override `SETTINGS`. A running session is returned unchanged. An invalid
    master, or one that does not answer, raises `BadInput` before Spark starts.
    """
    if master is not None:
        check_master(master)
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    if master is None:
        master = os.environ.get("SPARK_MASTER") or "local[*]"
        check_master(master, "$SPARK_MASTER")
    os.environ["JAVA_HOME"] = str(find_java())
    # Workers would use the first python on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    chosen = {**SETTINGS, **(_LOCAL if master.startswith("local") else {}), **(settings or {})}
    builder = SparkSession.builder.master(master).appName(app)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise SparkFailed(
            f"Spark did not start with master {master}: {sentence(str(error))}"
        ) from error
