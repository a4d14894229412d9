"""An experiment on Spark: it reduces to one table, and resumes after an interruption."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from experiments.experiment import Case, Chart, Claim, Experiment, Row, Table, close_to, row
from experiments.runner import CaseFailed, run
from pyspark.sql import SparkSession


def experiment(marks: Path, *, fails: bool = False) -> Experiment:
    """Return an experiment that leaves a mark for every case it runs."""

    def run_case(case: Case) -> Iterator[Row]:
        with (marks / f"{case['at']}-{case['seed']}").open("a") as mark:
            mark.write("ran\n")
        if fails and case["at"] == 2:
            raise ValueError("as planted")
        yield row("1", "doubled", case["at"], 2 * case["at"] + case["seed"])
        yield row("1", "halved", case["at"], case["at"] / 2)

    def cases(quick: bool) -> list[Case]:
        return [
            {"at": at, "seed": seed} for at in ((1, 2) if quick else (1, 2, 3)) for seed in (0, 1)
        ]

    def judge(table: Table) -> list[Claim]:
        return [close_to("1", "7.5 at 3", 7.5, table.at("1", "doubled", 3), 20)]

    return Experiment(
        name="tried",
        paper="",
        figures="",
        title="Tried",
        setting=("none",),
        cases=cases,
        run_case=run_case,
        charts=(Chart(figure="1", title="", x_label="x", y_label="y"),),
        judge=judge,
        work=lambda case: float(case["at"]),
        published={("1", "doubled", 3.0): 7.5},
    )


@pytest.mark.verify
def test_experiment_resumes_after_interruption(spark: SparkSession, tmp_path: Path) -> None:
    marks, out = tmp_path / "marks", tmp_path / "out"
    marks.mkdir()
    with pytest.raises(CaseFailed, match=r"tried, \{'at': 2, 'seed': 0\}: .*as planted"):
        run(spark, experiment(marks, fails=True), quick=True, out=out)
    seen: list[int] = []
    tried = experiment(marks)
    quick = run(spark, tried, quick=True, out=out, watch=lambda done, _of: seen.append(done))
    assert seen[-1] == 4
    assert len((marks / "1-0").read_text().split()) == 1, "a case with a result ran again"
    assert quick.cases == 4
    assert quick.table.at("1", "doubled", 2) == 4.5
    assert quick.claims[0].met is None
    assert quick.met
    assert quick.full_seconds == pytest.approx(2 * quick.seconds)
    full = run(spark, tried, quick=False, out=out)
    assert len((marks / "1-0").read_text().split()) == 1, "the full form must reuse the case"
    assert full.claims[0].met
    assert full.full_seconds == full.seconds
    rows = pq.read_table(str(full.directory / "full.parquet")).to_pylist()
    assert [(each["series"], each["x"], each["mean"]) for each in rows] == [
        ("doubled", 1.0, 2.5),
        ("doubled", 2.0, 4.5),
        ("doubled", 3.0, 6.5),
        ("halved", 1.0, 0.5),
        ("halved", 2.0, 1.0),
        ("halved", 3.0, 1.5),
    ]
    assert rows[2]["published"] == 7.5
    assert rows[0]["cases"] == 2
    assert rows[0]["experiment"] == "tried"
    again = run(spark, tried, quick=True, out=out)
    assert len(again.table.points) == 4, "cases of the other form are left out"
