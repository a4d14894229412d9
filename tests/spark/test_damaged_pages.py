"""A damaged Parquet page: the command ends with 2 and one sentence that names the file."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.cli.helpers import Shell
from tests.spark.lake.sources import add_trace, agreeing, record

from ensue.spark.failures import log_failures

COLUMN = "event"


@pytest.fixture
def shell(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shell]:
    yield Shell(capsys, monkeypatch)
    log_failures(spark, written=True)


def damage(path: Path, *, header: bool) -> None:
    """Flip 16 bytes of a page: in its header, or in its dictionary indices.

    Spark's reader fails on a damaged header, and names the file. Wrong indices fail later, when
    they are looked up, and that error names no file.
    """
    pq.write_table(pq.read_table(path), path, compression="none")
    with pq.ParquetFile(path) as file:
        group = file.metadata.row_group(0)
        (column,) = (
            each
            for each in map(group.column, range(group.num_columns))
            if each.path_in_schema == COLUMN
        )
    start = column.data_page_offset
    assert column.dictionary_page_offset is not None
    if not header:
        end = column.dictionary_page_offset + column.total_compressed_size
        start = (start + end) // 2
    data = bytearray(path.read_bytes())
    data[start : start + 16] = bytes(each ^ 0xFF for each in data[start : start + 16])
    path.write_bytes(data)


def damaged_run(place: Path, *, header: bool) -> Path:
    """Record a run, and damage its trace; return the damaged file."""
    record(place)
    (path,) = (place / "trace").glob("*.parquet")
    damage(path, header=header)
    return path


@pytest.mark.parametrize("header", [False, pytest.param(True, marks=pytest.mark.verify)])
def test_damaged_page_is_reported_with_its_file(
    shell: Shell, tmp_path: Path, *, header: bool
) -> None:
    path = damaged_run(tmp_path / "run", header=header)
    commands: dict[str, list[object]] = {
        "check": ["--order", "total"],
        "audit": ["--order", "total"],
        "report": ["-o", tmp_path / "report.html"],
    }
    for command, more in commands.items():
        ended = shell(command, tmp_path / "run", *more, "--json")
        assert ended.code == 2
        reported = ended.json()["error"]
        assert reported.startswith(f"{path} can't be read as Parquet: ")
        assert "\n" not in reported
        assert "Traceback" not in ended.stderr


@pytest.mark.verify
@pytest.mark.parametrize("header", [False, True])
def test_pipeline_reports_a_damaged_page_and_finishes_the_other_stages(
    shell: Shell, tmp_path: Path, *, header: bool
) -> None:
    path = damaged_run(tmp_path / "run", header=header)
    ended = shell("pipeline", tmp_path / "run", "--lake", tmp_path / "lake", "--once", "--json")
    assert ended.code == 2
    found = ended.json()
    assert found["verdict"] == "unknown"
    assert found["failed"]["trace"].startswith(f"{path} can't be read as Parquet: ")
    assert found["tables"]["ordered"] > 0, "the event log is whole"
    assert "Traceback" not in ended.stderr


@pytest.mark.verify
def test_damaged_page_of_a_lake_is_reported_with_its_file(shell: Shell, tmp_path: Path) -> None:
    record(tmp_path / "run")
    lake = tmp_path / "lake"
    words = ("pipeline", tmp_path / "run", "--lake", lake, "--once", "--json")
    (judged,) = shell(*words).json()["verdicts"]
    assert judged["verdict"] == "valid"
    (path,) = (lake / "trace").glob("*.parquet")
    damage(path, header=False)
    path.with_name(f".{path.name}.crc").unlink()
    add_trace(tmp_path / "run" / "trace", "more", agreeing(judged["run"]))
    ended = shell(*words)
    assert ended.code == 2
    (stage,) = ended.json()["failed"].items()
    assert stage[0] == "audit"
    assert stage[1].startswith(f"{path} can't be read as Parquet: ")
