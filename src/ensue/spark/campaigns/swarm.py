"""Search the seeds of a protocol for faults, on Spark.

The same seeds give the same result as `ensue swarm` on one machine: the same function runs a seed,
and results come in the order of the seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ensue.simulation.seeds import SeedResult
from ensue.spark.campaigns.campaign import campaign

__all__ = ["SWARM_SCHEMA", "play_seeds"]

SWARM_SCHEMA = (
    "valid boolean, failure array<string>, steps bigint, published bigint, delivered bigint"
)
"""The columns of an outcome between `seed` and `error`, `seconds`."""


def play_seeds(
    spark: SparkSession,
    play: Callable[[int], SeedResult],
    seeds: Sequence[int],
    *,
    name: str,
    watch: Callable[[SeedResult], bool | None] | None = None,
    out: str | Path | None = None,
    cases_per_task: int | None = None,
) -> DataFrame:
    """Run the scenarios of many seeds; return a row for each.

    `watch` sees the results in the order of the seeds; True ends the search. The other options are
    those of `campaign`.
    """

    def show(row: Mapping[str, Any]) -> bool | None:
        return None if watch is None else watch(_result(row))

    return campaign(
        spark,
        partial(_outcome, play),
        seeds,
        schema=SWARM_SCHEMA,
        key="seed",
        watch=show,
        out=out,
        name=name,
        cases_per_task=cases_per_task,
    )


def _outcome(play: Callable[[int], SeedResult], seed: int) -> dict[str, Any]:
    result = play(seed)
    return {
        "valid": not result.failure,
        "failure": list(result.failure),
        "steps": result.steps,
        "published": result.published,
        "delivered": result.delivered,
    }


def _result(row: Mapping[str, Any]) -> SeedResult:
    if row["error"] is not None:
        return SeedResult(seed=row["seed"], failure=(row["error"],))
    return SeedResult(
        seed=row["seed"],
        failure=tuple(row["failure"]),
        steps=row["steps"],
        published=row["published"],
        delivered=row["delivered"],
    )
