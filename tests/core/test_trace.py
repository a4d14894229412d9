"""Traces on disk: a roundtrip keeps every row, and errors name a bad column."""

import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.checkers.generator import generate

from ensue.core import trace
from ensue.core.errors import BadInput, MissingExtra
from ensue.core.trace import Row, digest, read, schema, write

FULL = Row(
    run="r",
    node="n",
    step=1,
    at_ns=-5,
    true_ns=2**62,
    action="delivered",
    event="e",
    topic="x",
    publisher="p",
    publisher_seq=1,
    position=1,
    subscription="s",
    verdict="late",
    order="total",
    stamp={"y": 2, "x": 1},
    transaction="t",
    deadline_ns=7,
    bytes=2**31 - 1,
)


def by_step(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.run, row.node, row.step))


def test_every_column_survives_the_disk(tmp_path: Path) -> None:
    rows = [FULL, Row(run="r", node="n", step=2, at_ns=0, action="crashed", stamp={})]
    path = write(rows, tmp_path / "new" / "trace", name="part-1")
    assert path == tmp_path / "new" / "trace" / "part-1.parquet"
    assert read(path.parent) == rows
    assert read(path) == rows


def test_rows_are_sorted_by_run_node_and_step(tmp_path: Path) -> None:
    rows = [
        msgspec.structs.replace(FULL, run=run, node=node, step=step)
        for run in ("r2", "r1")
        for node in ("n2", "n1")
        for step in (10, 9)
    ]
    write(rows, tmp_path)
    assert pq.read_table(tmp_path).column("step").to_pylist() == [9, 10] * 4
    assert read(tmp_path) == by_step(rows)


def test_random_traces_survive_the_disk(tmp_path: Path) -> None:
    for seed in range(20):
        rows = generate(seed)
        write(rows, tmp_path / str(seed))
        assert read(tmp_path / str(seed)) == by_step(rows)


def test_the_schema_is_the_documented_one() -> None:
    page = (
        Path(__file__)
        .parents[2]
        .joinpath("docs", "reference", "trace.md")
        .read_text(encoding="utf-8")
    )
    table = page.partition("| column |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    documented = {name.strip().strip("`"): kind.split(", null")[0].strip() for name, kind in cells}
    names = {"int64": "int64", "int32": "int32", "string": "string"}
    assert documented == {
        field.name: names.get(str(field.type), "map<string, int64>") for field in schema()
    }
    assert schema().field("stamp").type == pa.map_(pa.string(), pa.int64())


def test_files_are_compressed_with_zstd(tmp_path: Path) -> None:
    column = pq.ParquetFile(write([FULL], tmp_path)).metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match="is not empty"):
        write([FULL], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_appending_adds_a_file_and_replaces_none(tmp_path: Path) -> None:
    write([FULL], tmp_path)
    second = msgspec.structs.replace(FULL, step=2)
    write([second], tmp_path, name="more", append=True)
    assert read(tmp_path) == [FULL, second]
    with pytest.raises(BadInput, match=r"more\.parquet exists"):
        write([FULL], tmp_path, name="more", append=True)


def test_file_instead_of_a_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(BadInput, match="is a file"):
        write([FULL], path)


def test_a_value_that_does_not_fit_names_its_column(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="column 'bytes' can't be written as int32"):
        write([msgspec.structs.replace(FULL, bytes=2**31)], tmp_path / "trace")
    assert not (tmp_path / "trace").exists()


def test_a_missing_or_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere does not exist"):
        read(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="holds no Parquet file"):
        read(tmp_path)


def test_files_of_other_tools_are_skipped(tmp_path: Path) -> None:
    write([FULL], tmp_path)
    (tmp_path / "_scratch.parquet").write_text("not Parquet")
    assert read(tmp_path) == [FULL]


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_text("not Parquet")
    with pytest.raises(BadInput, match=r"broken\.parquet can't be read as Parquet"):
        read(tmp_path)


def spoiled(tmp_path: Path, table: pa.Table) -> Path:
    pq.write_table(table, tmp_path / "spoiled.parquet")
    return tmp_path


def table_of_one(tmp_path: Path) -> pa.Table:
    return pq.read_table(write([FULL], tmp_path / "good"))


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    table = table_of_one(tmp_path).drop_columns(["topic"])
    expected = r"spoiled\.parquet: column 'topic' is missing; expected string"
    with pytest.raises(BadInput, match=expected):
        read(spoiled(tmp_path, table) / "spoiled.parquet")


def test_a_column_of_another_type_is_named(tmp_path: Path) -> None:
    table = table_of_one(tmp_path)
    index = table.schema.get_field_index("step")
    table = table.set_column(index, "step", table.column("step").cast(pa.int32()))
    expected = r"spoiled\.parquet: column 'step' is int32; expected int64"
    with pytest.raises(BadInput, match=expected):
        read(spoiled(tmp_path, table) / "spoiled.parquet")


def test_surplus_column_is_named(tmp_path: Path) -> None:
    table = table_of_one(tmp_path).append_column("colour", pa.array(["red"]))
    with pytest.raises(BadInput, match="column 'colour' is not part of a trace"):
        read(spoiled(tmp_path, table) / "spoiled.parquet")


def test_duplicate_column_is_named(tmp_path: Path) -> None:
    table = table_of_one(tmp_path)
    table = table.append_column("node", table.column("node"))
    with pytest.raises(BadInput, match="column 'node' occurs more than once"):
        read(spoiled(tmp_path, table) / "spoiled.parquet")


def test_null_in_a_required_column_is_named(tmp_path: Path) -> None:
    table = table_of_one(tmp_path)
    index = table.schema.get_field_index("node")
    table = table.set_column(index, "node", pa.array([None], type=pa.string()))
    with pytest.raises(BadInput, match="column 'node' is null in 1 rows"):
        read(spoiled(tmp_path, table) / "spoiled.parquet")


@pytest.mark.parametrize("name", ["_temporary", ".snapshot", "day=1/_temporary/0"])
def test_folders_of_other_tools_are_skipped(tmp_path: Path, name: str) -> None:
    write([FULL], tmp_path / "trace")
    write([FULL], tmp_path / "trace" / name)
    assert read(tmp_path / "trace") == [FULL]


def test_folder_named_like_a_parquet_file_is_searched(tmp_path: Path) -> None:
    write([FULL], tmp_path / "run.parquet", name="part-1")
    assert read(tmp_path) == read(tmp_path / "run.parquet") == [FULL]


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("node", None, "column 'node' needs a value in each row"),
        ("node", "\ud800", "column 'node' can't be written as string: .* surrogates"),
        ("step", 2**63, "column 'step' can't be written as int64"),
    ],
)
def test_unwritable_column_is_named(
    tmp_path: Path, column: str, value: object, reason: str
) -> None:
    with pytest.raises(BadInput, match=reason):
        write([msgspec.structs.replace(FULL, **{column: value})], tmp_path / "trace")
    assert not (tmp_path / "trace").exists()


def test_an_unknown_action_is_named(tmp_path: Path) -> None:
    write([msgspec.structs.replace(FULL, action="devoured")], tmp_path)
    with pytest.raises(BadInput, match="column 'action' holds 'devoured'; expected one of subm"):
        read(tmp_path)


def test_missing_extra_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for use in (lambda: trace.write([FULL], tmp_path), lambda: trace.read(tmp_path)):
        with pytest.raises(MissingExtra, match=r"pip install 'ensue\[trace\]'"):
            use()


def test_digest_ignores_the_sequence_of_rows() -> None:
    rows = generate(1)
    assert digest(rows) == digest(rows[::-1])
    assert digest([FULL]) == digest([msgspec.structs.replace(FULL, stamp={"x": 1, "y": 2})])
    assert digest([FULL]) == digest([msgspec.structs.replace(FULL, run="another")])


def test_digest_changes_with_every_column_but_the_run() -> None:
    digests = {digest([FULL]), digest([])}
    for name in Row.__struct_fields__[1:]:
        value = getattr(FULL, name)
        other = {"x": 3} if name == "stamp" else value + (1 if isinstance(value, int) else "!")
        digests.add(digest([msgspec.structs.replace(FULL, **{name: other})]))
    assert len(digests) == 2 + len(Row.__struct_fields__) - 1


def test_digest_is_stable() -> None:
    assert digest([FULL]) == "20a8524912cc7784ff94e95fdb841230622c39f3ebc4a72bcc81e5e058f5701d"
