"""Rebuilt tables: a reader sees one complete version, whatever happens meanwhile."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ensue.spark.lake.versioned_tables import VERSIONS_KEPT, VersionedTables, key_of

COLUMNS: dict[str, pa.DataType] = {"run": pa.string(), "n": pa.int64()}
SCHEMA = pa.schema(COLUMNS)
TABLES = ("one", "many/two")


class Killed(BaseException):
    pass


@pytest.fixture
def versioned(tmp_path: Path) -> VersionedTables:
    made = VersionedTables(tmp_path, "s", dict.fromkeys(TABLES, SCHEMA))
    made.prepare()
    return made


def put(versioned: VersionedTables, *runs: str, n: int) -> None:
    with versioned.replacing([key_of(run) for run in runs]) as draft:
        for table in TABLES:
            draft.write(table, rows(*runs, n=n), by="run")


def rows(*runs: str, n: int) -> pa.Table:
    return pa.table({"run": list(runs), "n": [n] * len(runs)}, schema=SCHEMA)


def content(place: Path) -> dict[object, object]:
    found = pq.read_table(str(place)).to_pylist()
    assert len({row["run"] for row in found}) == len(found)
    return {row["run"]: row["n"] for row in found}


def test_a_new_table_is_empty_and_has_its_columns(versioned: VersionedTables) -> None:
    for table in TABLES:
        assert pq.read_table(str(versioned.root / table)).schema == SCHEMA
        assert content(versioned.root / table) == {}
        assert versioned.count(table) == 0


def test_one_part_is_replaced_and_others_stay(versioned: VersionedTables) -> None:
    put(versioned, "a", "../b", n=1)
    put(versioned, "../b", "", n=2)
    for table in TABLES:
        assert content(versioned.root / table) == {"a": 1, "../b": 2, "": 2}
        assert versioned.count(table) == 3
    with versioned.replacing([key_of("a")]):
        pass
    assert content(versioned.root / "one") == {"../b": 2, "": 2}


def test_readers_see_a_change_only_when_all_is_written(versioned: VersionedTables) -> None:
    put(versioned, "a", n=1)
    before = versioned.directory("one")
    with versioned.replacing([key_of("a")]) as draft:
        draft.write("one", rows("a", n=2), by="run")
        assert content(versioned.root / "one") == {"a": 1}
    assert content(versioned.root / "one") == {"a": 2}
    assert content(versioned.root / "many/two") == {}
    assert content(before) == {"a": 1}


@pytest.mark.parametrize("moment", ["writing", "numbered", "linking"])
def test_interrupted_change_leaves_the_table_unchanged(
    versioned: VersionedTables, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    put(versioned, "a", n=1)

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        if moment == "writing":
            patched.setattr("ensue.spark.lake.versioned_tables._remove", lambda _: None)
            patched.setattr(Path, "hardlink_to", die)
        elif moment == "numbered":
            patched.setattr(Path, "symlink_to", die)
        else:
            patched.setattr(Path, "replace", die)
        with pytest.raises(Killed):
            put(versioned, "b", n=2)
    again = VersionedTables(versioned.root, "s", versioned.tables)
    again.prepare()
    assert content(versioned.root / "one") == {"a": 1}
    assert [path.name for path in versioned.place.glob(".*")] == []
    put(again, "b", n=3)
    assert content(versioned.root / "one") == {"a": 1, "b": 3}


def test_only_a_few_versions_are_retained(versioned: VersionedTables) -> None:
    for n in range(6):
        put(versioned, "a", n=n)
    assert len(list(versioned.place.glob("[0-9]*"))) == VERSIONS_KEPT
    assert content(versioned.root / "one") == {"a": 5}
