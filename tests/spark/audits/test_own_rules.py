"""The Spark audit judges the rules of an order in its own package, as the checkers do."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.orders.toy import BatchOrder

from ensue import orders
from ensue.checkers import Verdict, check
from ensue.core import trace
from ensue.core.trace import Row
from ensue.simulation import run
from ensue.simulation.seeds import DRAWS
from ensue.spark import audit, read_trace
from ensue.spark.audits import Sizes


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    order = BatchOrder()
    orders.register(order)
    yield
    orders.unregister(order.name)


def runs() -> list[Row]:
    """Return the rows of three valid runs."""
    return [row for seed in range(3) for row in run.play(DRAWS["batches"](seed), seed).rows]


def test_audit_accepts_valid_runs(spark: SparkSession, tmp_path: Path) -> None:
    rows = runs()
    trace.write(rows, tmp_path / "trace")
    found = audit(read_trace(spark, tmp_path / "trace"), "batches")
    assert found.verdict is Verdict.VALID
    assert found.sentences() == check(rows, "batches").sentences()


@pytest.mark.parametrize(
    "sizes",
    [Sizes(), pytest.param(Sizes(whole_rows=0, tile_rows=4), marks=pytest.mark.verify)],
)
def test_audit_finds_the_violation_that_the_checkers_find(
    spark: SparkSession, tmp_path: Path, sizes: Sizes
) -> None:
    rows = runs()
    node = next((row.run, row.node) for row in rows if row.action == "delivered")
    places = (
        at
        for at, row in enumerate(rows)
        if (row.run, row.node) == node and row.action == "delivered"
    )
    first, second = islice(places, 2)
    one, other = rows[first], rows[second]
    rows[first] = msgspec.structs.replace(one, step=other.step, position=other.position)
    rows[second] = msgspec.structs.replace(other, step=one.step, position=one.position)
    trace.write(rows, tmp_path / "trace")
    found = audit(read_trace(spark, tmp_path / "trace"), "batches", sizes=sizes)
    assert found.verdict is Verdict.INVALID
    assert any("was due" in sentence for sentence in found.sentences())
    assert found.sentences() == check(rows, "batches").sentences()
