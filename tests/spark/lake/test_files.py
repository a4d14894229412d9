"""Files of a table that no committed batch lists are removed."""

import json
from pathlib import Path

import pytest

from ensue.core.errors import BadInput
from ensue.spark.lake.files import committed, sweep


def commit(table: Path, batch: str, *names: str, version: str = "v1") -> None:
    """Write the metadata of a batch as Spark's Parquet sink does."""
    place = table / "_spark_metadata"
    place.mkdir(parents=True, exist_ok=True)
    folder = table.as_uri()
    lines = [json.dumps({"path": f"{folder}/{name}", "action": "add"}) for name in names]
    (place / batch).write_text("\n".join([version, *lines]))


def put(table: Path, *names: str) -> None:
    table.mkdir(parents=True, exist_ok=True)
    for name in names:
        (table / name).touch()
        (table / f".{name}.crc").touch()


def left(table: Path) -> set[str]:
    return {path.name for path in table.iterdir() if path.is_file()}


def test_uncommitted_files_are_removed_with_their_checksums(tmp_path: Path) -> None:
    # Spark percent-encodes such a path.
    table = tmp_path / "a lake äöü %" / "events"
    put(table, *(f"part-{number}.parquet" for number in range(6)))
    commit(table, "9.compact", "part-0.parquet", "part-1.parquet")
    commit(table, "10", "part-2.parquet")
    commit(table, "11")
    (table / "_spark_metadata" / ".12.tmp").write_text("v1")
    assert committed(table) == {"part-0.parquet", "part-1.parquet", "part-2.parquet"}
    assert sweep(table) == 3
    kept = {"part-0.parquet", "part-1.parquet", "part-2.parquet"}
    assert left(table) == kept | {f".{name}.crc" for name in kept}
    assert sweep(table) == 0


def test_no_file_is_committed_before_the_first_batch(tmp_path: Path) -> None:
    put(tmp_path / "t", "part-0.parquet")
    assert sweep(tmp_path / "t") == 1
    assert sweep(tmp_path / "absent") == 0
    assert committed(tmp_path / "absent") == set()


def test_list_of_another_version_removes_nothing(tmp_path: Path) -> None:
    put(tmp_path / "t", "part-0.parquet", "part-1.parquet")
    commit(tmp_path / "t", "0", "part-0.parquet", version="v2")
    with pytest.raises(BadInput, match="of version 'v2'"):
        sweep(tmp_path / "t")
    assert len(left(tmp_path / "t")) == 4
