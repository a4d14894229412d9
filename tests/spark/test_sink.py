"""`format("ensue")` writes event logs, each row once."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as t
from tests.store.helpers import everything, numbers, rows

from ensue.core.errors import LogInUse
from ensue.spark.conditions import SparkFault
from ensue.spark.options import SinkOptions
from ensue.spark.sink import LogBatchWriter
from ensue.spark.source import EnsueDataSource
from ensue.store import LogWriter

VALUE = t.StructType().add("value", "string")


def _schema(text: str) -> t.StructType:
    found = t.StructType()
    for column in text.split(", "):
        name, kind = column.split()
        found.add(name, kind)
    return found


def test_a_frame_is_published_with_numbers_and_stamps(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame(
        [("a", "x", b"k", {"h": "1"}), ("b", "y", None, None), ("a", "z", b"l", {})],
        "topic string, value string, key binary, headers map<string,string>",
    ).coalesce(1)
    writer = frame.write.format("ensue").option("publisher", "batch")
    writer.mode("append").save(str(tmp_path / "log"))
    found = everything(tmp_path / "log")
    assert [(e["event"], e["value"]) for e in found["a"]] == [
        ("batch/a/1", b"x"),
        ("batch/a/2", b"z"),
    ]
    assert [dict(e["stamp"]) for e in found["a"]] == [{"a": 1}, {"a": 2, "b": 1}]
    assert dict(found["b"][0]["stamp"]) == {"a": 1, "b": 1}
    assert dict(found["a"][0]["headers"]) == {"h": "1"}
    assert [e["headers"] for e in found["b"]] == [[]]
    assert not list((tmp_path / "log" / "_staged").iterdir())


def test_rows_of_one_log_are_written_to_another_once(spark: SparkSession, tmp_path: Path) -> None:
    with LogWriter(tmp_path / "from") as log:
        log.append(rows("a", [1, 2, 3]) + rows("b", [1]))
    frame = spark.read.format("ensue").load(str(tmp_path / "from"))
    for _ in range(2):
        frame.write.format("ensue").mode("append").save(str(tmp_path / "to"))
    assert numbers(tmp_path / "to") == {"a": [1, 2, 3], "b": [1]}
    assert {e["event"] for e in everything(tmp_path / "to")["a"]} == {
        "web/a/1",
        "web/a/2",
        "web/a/3",
    }


def test_failed_task_leaves_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(10, numPartitions=2).selectExpr(
        "cast(if(id = 9, null, id) as string) as value", "'a' as topic"
    )
    writer = frame.write.format("ensue").mode("append").option("publisher", "p")
    with pytest.raises(PySparkException, match=r"\[NULL_COLUMN\] column 'value'"):
        writer.save(str(tmp_path / "log"))
    assert numbers(tmp_path / "log") == {}
    assert not list((tmp_path / "log" / "_staged").rglob("*.arrow"))


@pytest.mark.parametrize(
    ("condition", "columns", "options"),
    [
        ("MISSING_OPTION", "value string", {"publisher": "p"}),
        ("MISSING_OPTION", "value string", {"topic": "a"}),
        ("UNSUPPORTED_SCHEMA", "topic string", {"publisher": "p"}),
        ("UNSUPPORTED_SCHEMA", "value string, topic string, size integer", {"publisher": "p"}),
        ("UNSUPPORTED_SCHEMA", "value integer, topic string", {"publisher": "p"}),
        ("UNKNOWN_OPTION", "value string", {"topic": "a", "publisher": "p", "acks": "all"}),
        ("INVALID_OPTION_VALUE", "value string", {"topic": " ", "publisher": "p"}),
        (
            "INVALID_OPTION_VALUE",
            "value string",
            {"topic": "a", "publisher": "p", "lockTimeoutSeconds": "x"},
        ),
    ],
)
def test_unpublishable_data_frame_is_rejected(
    tmp_path: Path, condition: str, columns: str, options: dict[str, str]
) -> None:
    source = EnsueDataSource({"url": str(tmp_path / "log"), **options})
    with pytest.raises(SparkFault) as error:
        source.writer(_schema(columns), overwrite=False)
    assert error.value.condition == condition
    assert not (tmp_path / "log").exists()


def test_a_log_is_never_overwritten(tmp_path: Path) -> None:
    given = SinkOptions.parse({"url": str(tmp_path), "topic": "a", "publisher": "p"})
    with pytest.raises(SparkFault, match="UNSUPPORTED_MODE"):
        LogBatchWriter(given, VALUE, overwrite=True)


def test_sink_waits_for_another_writer_then_fails(tmp_path: Path) -> None:
    options = {"url": str(tmp_path / "log"), "topic": "a", "publisher": "p"}
    given = SinkOptions.parse({**options, "lockTimeoutSeconds": "0.1"})
    sink = LogBatchWriter(given, VALUE, overwrite=False)
    with LogWriter(tmp_path / "log"), pytest.raises(LogInUse):
        sink.publish([], None)
