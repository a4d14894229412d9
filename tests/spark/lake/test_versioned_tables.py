"""Tables that are made anew: a reader sees all of one version, whatever happens meanwhile."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ensue.spark.lake.versioned_tables import VERSIONS_KEPT, Shelf, key_of

COLUMNS: dict[str, pa.DataType] = {"run": pa.string(), "n": pa.int64()}
SCHEMA = pa.schema(COLUMNS)
TABLES = ("one", "many/two")


class Killed(BaseException):
    pass


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    made = Shelf(tmp_path, "s", dict.fromkeys(TABLES, SCHEMA))
    made.prepare()
    return made


def put(shelf: Shelf, *runs: str, n: int) -> None:
    with shelf.replacing([key_of(run) for run in runs]) as draft:
        for table in TABLES:
            draft.write(table, rows(*runs, n=n), by="run")


def rows(*runs: str, n: int) -> pa.Table:
    return pa.table({"run": list(runs), "n": [n] * len(runs)}, schema=SCHEMA)


def content(place: Path) -> dict[object, object]:
    found = pq.read_table(str(place)).to_pylist()
    assert len({row["run"] for row in found}) == len(found)
    return {row["run"]: row["n"] for row in found}


def test_a_new_table_is_empty_and_has_its_columns(shelf: Shelf) -> None:
    for table in TABLES:
        assert pq.read_table(str(shelf.root / table)).schema == SCHEMA
        assert content(shelf.root / table) == {}
        assert shelf.count(table) == 0


def test_a_part_is_replaced_and_the_others_stay(shelf: Shelf) -> None:
    put(shelf, "a", "../b", n=1)
    put(shelf, "../b", "", n=2)
    for table in TABLES:
        assert content(shelf.root / table) == {"a": 1, "../b": 2, "": 2}
        assert shelf.count(table) == 3
    with shelf.replacing([key_of("a")]):
        pass
    assert content(shelf.root / "one") == {"../b": 2, "": 2}


def test_a_table_changes_for_readers_only_when_all_is_written(shelf: Shelf) -> None:
    put(shelf, "a", n=1)
    before = shelf.directory("one")
    with shelf.replacing([key_of("a")]) as draft:
        draft.write("one", rows("a", n=2), by="run")
        assert content(shelf.root / "one") == {"a": 1}
    assert content(shelf.root / "one") == {"a": 2}
    assert content(shelf.root / "many/two") == {}
    assert content(before) == {"a": 1}


@pytest.mark.parametrize("moment", ["writing", "numbered", "linking"])
def test_a_change_cut_short_leaves_the_table_as_it_was(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    put(shelf, "a", n=1)

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
            put(shelf, "b", n=2)
    again = Shelf(shelf.root, "s", shelf.tables)
    again.prepare()
    assert content(shelf.root / "one") == {"a": 1}
    assert [path.name for path in shelf.place.glob(".*")] == []
    put(again, "b", n=3)
    assert content(shelf.root / "one") == {"a": 1, "b": 3}


def test_only_a_few_versions_are_kept(shelf: Shelf) -> None:
    for n in range(6):
        put(shelf, "a", n=n)
    assert len(list(shelf.place.glob("[0-9]*"))) == VERSIONS_KEPT
    assert content(shelf.root / "one") == {"a": 5}
