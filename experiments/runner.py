"""Run an experiment on Spark and reduce its rows to one table.

Results live in a directory: `NAME/VERSION/cases` has one or more rows per case, and beside it is
the reduced table, `quick.parquet` or `full.parquet`. VERSION is a hash of the code that results
depend on: protocols, simulator, and the packages in this one. So an interrupted run resumes, the
full form reuses the cases of the quick form, and changed code runs again.
"""

from collections.abc import Callable, Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import ensue.protocols
from ensue.core.errors import EnsueError
from ensue.spark.campaigns.campaign import campaign
from experiments.experiment import COLUMNS, Chart, Claim, Experiment, Point, Table

__all__ = ["Result", "code_version", "reduced", "run"]

_SOURCES = (
    (
        Path(ensue.protocols.__file__).parents[1],
        ("core/*.py", "protocols/**/*.py", "simulation/**/*.py"),
    ),
    (Path(__file__).parent, ("*/**/*.py",)),
)
"""The code that results depend on: values, protocols, simulator and the code that runs cases.

Modules named `figures…` are left out: they list cases and judge results.
"""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The results of an experiment."""

    experiment: Experiment
    quick: bool
    directory: Path
    table: Table
    claims: list[Claim]
    cases: int
    seconds: float
    """Time of all cases together, each on one core."""
    full_seconds: float
    """Time of all cases of the full form: estimated in the quick form, measured in the full one."""

    @property
    def charts(self) -> list[Chart]:
        """The figures that have points: the full form may have more."""
        return [each for each in self.experiment.charts if self.table.series(each.figure)]

    @property
    def met(self) -> bool:
        """Whether every judged claim is met."""
        return all(each.met is not False for each in self.claims)


class CaseFailed(EnsueError):
    """A case raised an exception, so there is no table."""


@cache
def code_version() -> str:
    """Return a hash of the code that results depend on."""
    digest = blake2b(digest_size=4)
    for root, patterns in _SOURCES:
        found = {path for pattern in patterns for path in root.glob(pattern)}
        for path in sorted(path for path in found if not path.stem.startswith("figures")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def run(
    spark: SparkSession,
    experiment: Experiment,
    *,
    quick: bool,
    out: Path,
    watch: Callable[[int, int], None] | None = None,
) -> Result:
    """Run every case that has no result yet, and judge the table of all cases.

    `watch` is called with the number of cases done and the number of all cases.
    """
    cases = experiment.cases(quick)
    directory = (out / experiment.name / code_version()).absolute()
    done: set[str] = set()

    def show(row: Mapping[str, Any]) -> None:
        if row["error"] is not None:
            parameters = {name: row[name] for name in cases[0]}
            raise CaseFailed(f"{experiment.name}, {parameters}: {row['error']}")
        done.add(repr([row[name] for name in cases[0]]))
        if watch is not None:
            watch(len(done), len(cases))

    everything = campaign(
        spark,
        experiment.run_case,
        cases,
        schema=COLUMNS,
        watch=show,
        out=directory / "cases",
        name=f"experiment {experiment.name}",
    )
    names = list(cases[0])
    # The directory may hold cases of the other form as well.
    wanted = spark.createDataFrame(pa.Table.from_pylist([dict(each) for each in cases]))
    found = everything.join(wanted, on=names, how="left_semi").cache()
    table = _with_published(reduced(found).toArrow(), experiment)
    pq.write_table(table, str(directory / f"{'quick' if quick else 'full'}.parquet"))
    points = Table(Point(**each) for each in table.drop_columns(["experiment"]).to_pylist())
    took = found.groupBy(*names).agg(f.max("seconds").alias("seconds")).collect()
    found.unpersist()
    seconds = sum(each["seconds"] for each in took)
    done_work = sum(experiment.work(each.asDict()) for each in took)
    all_work = sum(map(experiment.work, experiment.cases(False)))
    return Result(
        experiment=experiment,
        quick=quick,
        directory=directory,
        table=points,
        claims=list(experiment.judge(points)),
        cases=len(took),
        seconds=seconds,
        full_seconds=seconds if not quick else seconds / done_work * all_work,
    )


def reduced(found: DataFrame) -> DataFrame:
    """Reduce the rows of all cases to one row per point of a curve."""
    return (
        found.where("figure IS NOT NULL")
        .groupBy("figure", "series", "x")
        .agg(
            f.count("value").alias("cases"),
            f.avg("value").alias("mean"),
            f.coalesce(f.stddev_samp("value"), f.lit(0.0)).alias("deviation"),
            f.min("value").alias("least"),
            f.max("value").alias("most"),
        )
        .orderBy("figure", "series", "x")
    )


def _with_published(table: pa.Table, experiment: Experiment) -> pa.Table:
    """Add columns for the paper's values and the name of the experiment."""
    places = zip(*(table[name].to_pylist() for name in ("figure", "series", "x")), strict=True)
    published = [experiment.published.get(place) for place in places]
    table = table.append_column("published", pa.array(published, pa.float64()))
    names = pa.array([experiment.name] * table.num_rows, pa.string())
    return table.add_column(0, "experiment", names)
