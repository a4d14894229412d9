"""`ensue.spark.campaign`: one row or more for each case, whatever happens."""

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from ensue.core.errors import BadInput
from ensue.spark import campaign
from ensue.spark.campaigns import campaign as campaigns

SQUARE = "square bigint"


# Workers get nested functions by value; functions of a test module would be imported by name.
def squares(*, failing: tuple[int, ...] = (), dying: tuple[int, ...] = ()) -> Any:
    def play(case: int) -> Mapping[str, Any]:
        if case in dying:
            os._exit(7)
        if case in failing:
            raise ArithmeticError(f"planted in {case}")
        return {"square": case * case}

    return play


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def test_every_case_gives_its_row(spark: SparkSession) -> None:
    frame = campaign(spark, squares(), range(3, 9), schema=SQUARE, cases_per_task=2)
    assert frame.columns == ["case", "square", "error", "seconds"]
    assert rows(frame, "case", "square") == [(case, case * case) for case in range(3, 9)]
    assert all(row.error is None and row.seconds >= 0 for row in frame.collect())


def test_a_case_that_raises_is_a_row_with_its_error(spark: SparkSession) -> None:
    play = squares(failing=(1,))
    found = campaign(spark, play, range(3), schema=SQUARE, cases_per_task=3).collect()
    reported = {row.case: (row.square, row.error) for row in found}
    assert reported[0] == (0, None)
    assert reported[2] == (4, None)
    assert reported[1][0] is None
    assert reported[1][1].startswith("raised ArithmeticError: planted in 1 (")


@pytest.mark.verify
def test_case_that_kills_its_process_affects_no_other(spark: SparkSession) -> None:
    play = squares(dying=(2,))
    found = campaign(spark, play, range(5), schema=SQUARE, cases_per_task=5).collect()
    reported = {row.case: (row.square, row.error) for row in found}
    assert {case: square for case, (square, _) in reported.items()} == {
        0: 0,
        1: 1,
        2: None,
        3: 9,
        4: 16,
    }
    assert reported[2][1].startswith("the task died that played it: ")
    assert "exited unexpectedly" in reported[2][1]


def test_a_result_that_does_not_fit_the_schema_is_an_error_of_its_case(spark: SparkSession) -> None:
    def play(case: int) -> Mapping[str, Any]:
        results: list[dict[str, Any]] = [{"square": "text"}, {"cube": 1}, {"square": 4}]
        return results[case]

    found = campaign(spark, play, range(3), schema=SQUARE, cases_per_task=3).collect()
    reported = {row.case: row.error for row in found}
    assert "ArrowInvalid" in reported[0] or "ArrowTypeError" in reported[0]
    assert "the schema has no column cube; it has ['square']" in reported[1]
    assert reported[2] is None


def test_parameters_are_columns_and_a_case_may_give_several_rows(spark: SparkSession) -> None:
    def play(case: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [{"at": at, "law": case["law"].upper()} for at in range(case["seed"])]

    cases = [{"shape": law, "law": law, "seed": seed} for law in "ab" for seed in (0, 2)]
    with pytest.raises(BadInput, match="the column 'law' occurs twice"):
        campaign(spark, play, cases, schema="at int, law string")
    renamed = [{"law": each["law"], "seed": each["seed"]} for each in cases]

    def again(case: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [{"at": at, "upper": case["law"].upper()} for at in range(case["seed"])]

    listed = campaign(spark, again, renamed, schema="at int, upper string", cases_per_task=3)
    wanted = [
        ("a", 0, None, None),
        ("a", 2, 0, "A"),
        ("a", 2, 1, "A"),
        ("b", 0, None, None),
        ("b", 2, 0, "B"),
        ("b", 2, 1, "B"),
    ]
    # A case without results has a row too, which marks it as done.
    assert rows(listed, "law", "seed", "at", "upper") == wanted
    framed = spark.createDataFrame(pa.Table.from_pylist(renamed))
    from_frame = campaign(spark, again, framed, schema="at int, upper string", cases_per_task=3)
    assert rows(from_frame, "law", "seed", "at", "upper") == wanted


def test_watch_sees_results_in_the_order_of_the_cases(spark: SparkSession) -> None:
    def play(case: int) -> Mapping[str, Any]:
        time.sleep(0.3 if case == 0 else 0)  # The others finish long before.
        return {"square": case * case}

    seen: list[int] = []
    campaign(
        spark,
        play,
        range(6),
        schema=SQUARE,
        cases_per_task=1,
        watch=lambda row: seen.append(row["case"]),
    )
    assert seen == list(range(6))


def test_watch_ends_a_campaign_after_its_case(spark: SparkSession) -> None:
    frame = campaign(
        spark,
        squares(),
        range(1_000_000),
        schema=SQUARE,
        cases_per_task=4,
        watch=lambda row: bool(row["square"] >= 25),
    )
    # The task that played 5 played 6 and 7 too.
    assert rows(frame, "case") == [(case,) for case in range(6)]


def test_interrupted_campaign_resumes(spark: SparkSession, tmp_path: Path) -> None:
    out, played, seen = tmp_path / "out", tmp_path / "played", list[int]()
    played.mkdir()

    def play(case: int) -> Mapping[str, Any]:
        with (played / str(case)).open("a") as file:
            file.write("x")
        return {"square": case * case}

    def interrupt(row: Mapping[str, Any]) -> None:
        if row["case"] == 5:
            raise KeyboardInterrupt

    def again(row: Mapping[str, Any]) -> None:
        seen.append(row["case"])

    with pytest.raises(KeyboardInterrupt):
        campaign(spark, play, range(12), schema=SQUARE, out=out, watch=interrupt, cases_per_task=2)
    kept = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    before = {row.case for row in spark.read.parquet(str(out)).collect()}
    assert before == {0, 1, 2, 3}
    (out / ".part-unfinished.parquet").write_bytes(b"PAR1 torn")
    frame = campaign(spark, play, range(12), schema=SQUARE, out=out, watch=again, cases_per_task=2)
    assert rows(frame, "case", "square") == [(case, case * case) for case in range(12)]
    assert seen == list(range(12))
    assert kept < {path.name for path in out.iterdir()}
    assert all((played / str(case)).read_text() == "x" for case in before)


def test_earlier_results_end_a_campaign_as_new_ones_do(spark: SparkSession, tmp_path: Path) -> None:
    options: dict[str, Any] = {"schema": SQUARE, "out": tmp_path, "cases_per_task": 2}
    campaign(spark, squares(), [0, 1, 4, 5], **options)
    seen: list[int] = []

    def until_four(row: Mapping[str, Any]) -> bool:
        seen.append(row["case"])
        return bool(row["case"] == 4)

    campaign(spark, squares(), range(8), watch=until_four, **options)
    assert seen == [0, 1, 2, 3, 4]
    assert rows(spark.read.parquet(str(tmp_path)), "case") == [(case,) for case in range(6)]


@pytest.mark.verify
def test_tasks_grow_to_their_target_duration(spark: SparkSession, tmp_path: Path) -> None:
    campaign(spark, squares(), range(3_000), schema=SQUARE, out=tmp_path, tasks=2)
    sizes = sorted(pq.read_metadata(str(path)).num_rows for path in tmp_path.glob("*.parquet"))
    assert sizes[0] == 1
    assert sizes[-1] > 100
    assert sum(sizes) == 3_000


@pytest.mark.verify
def test_end_of_a_campaign_kills_endless_tasks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaigns, "GRACE_SECONDS", 0.1)

    def play(case: int) -> Mapping[str, Any]:
        if case:
            threading.Event().wait()
        return {"square": 0}

    frame = campaign(
        spark, play, range(2), schema=SQUARE, cases_per_task=1, tasks=2, watch=lambda _: True
    )
    assert rows(frame, "case") == [(0,)]
    assert spark.range(3).count() == 3  # The session still works.


def test_no_cases_give_no_rows(spark: SparkSession) -> None:
    frame = campaign(spark, squares(), [], schema=SQUARE)
    assert frame.columns == ["case", "square", "error", "seconds"]
    assert frame.count() == 0


@pytest.mark.parametrize(
    ("cases", "schema", "why"),
    [
        ([1, 1], SQUARE, r"{'case': 1} occurs twice"),
        ([1, "a"], SQUARE, "no common type of column"),
        ([{"a": 1}, {"b": 1}], SQUARE, "case 1 has other columns than case 0: {'b': 1}"),
        ([{"a": 1}, 2], SQUARE, "case 1 has other columns than case 0: 2"),
        ([1], "case int", "the column 'case' occurs twice"),
        ([1], "error string", "the column 'error' occurs twice"),
        ([1], "bigint", "expected columns such as"),
    ],
)
def test_bad_cases_and_schemas_are_rejected(
    spark: SparkSession, cases: list[Any], schema: str, why: str
) -> None:
    with pytest.raises(BadInput, match=why):
        campaign(spark, squares(), cases, schema=schema)


def test_bad_options_of_a_campaign_are_rejected(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cases_per_task must be at least 1, got 0"):
        campaign(spark, squares(), [1], schema=SQUARE, cases_per_task=0)
    lock = threading.Lock()
    with pytest.raises(BadInput, match=r"play can't be sent to the executors: .*lock"):
        campaign(spark, lambda _: {"square": lock}, [1], schema=SQUARE)
    with pytest.raises(BadInput, match="is a URL; name a directory"):
        campaign(spark, squares(), [1], schema=SQUARE, out="s3://bucket/place")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is a file; name a directory"):
        campaign(spark, squares(), [1], schema=SQUARE, out=tmp_path / "file")


def test_results_of_another_campaign_are_rejected(spark: SparkSession, tmp_path: Path) -> None:
    campaign(spark, squares(), [1], schema=SQUARE, out=tmp_path, name="first")
    with pytest.raises(BadInput, match="is of the campaign 'first', not 'second'; name a new"):
        campaign(spark, squares(), [2], schema=SQUARE, out=tmp_path, name="second")
    with pytest.raises(BadInput, match="has the columns case, square, error, seconds of a"):
        campaign(spark, squares(), [2], schema="cube int", out=tmp_path, name="first")
    (tmp_path / "x.parquet").write_text("no")
    with pytest.raises(BadInput, match=r"x\.parquet is no Parquet file"):
        campaign(spark, squares(), [2], schema=SQUARE, out=tmp_path, name="first")


def test_a_module_that_executors_lack_is_named(spark: SparkSession) -> None:
    class Absent:
        def __reduce__(self) -> Any:
            return __import__, ("no_such_module",)

    absent = Absent()
    with pytest.raises(BadInput, match=r"can't import 'no_such_module', .* --py-files"):
        campaign(spark, lambda _: {"square": str(absent)}, [1], schema=SQUARE)
