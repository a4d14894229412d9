"""A moved or copied lake continues from its new place, or is refused; it loses no result."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.lake.sources import add_trace, agreeing, disagreeing, grow_log, stamped

from ensue.checkers import Verdict
from ensue.core.errors import BadInput
from ensue.spark import pipeline, read_table, table_files
from ensue.spark.lake.location import relocate

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with a run of 12 events, in which two subscribers disagree, and its lake."""
    place = tmp_path_factory.mktemp("moving")
    grow_log(place / "run" / "log", stamped(12, counts={}))
    add_trace(place / "run" / "trace", "1", disagreeing("r"))
    outcome = pipeline(spark, place / "run", place / "lake", once=True)
    assert (outcome.verdict, outcome.tables["ordered"]) == (Verdict.INVALID, 12)
    return place


def copied(made: Path, place: Path) -> Path:
    """A copy of the lake, whose first place is gone."""
    shutil.copytree(made / "lake", place, symlinks=True)
    return place


@pytest.mark.verify
def test_moved_or_copied_lake_resumes(spark: SparkSession, made: Path) -> None:
    control = copied(made, made / "ein zweiter Ort für alles")
    moved = (made / "lake").rename(made / "moved")
    try:
        for place in (moved, control):
            assert read_table(spark, place, "events").count() == 12
            assert all(Path(each).is_relative_to(place) for each in table_files(place, "trace"))
        counts = {"a": 6, "b": 6}
        grow_log(made / "run" / "log", stamped(4, counts=counts))
        add_trace(made / "run" / "trace", "2", agreeing("other"))
        for place in (moved, control):
            again = pipeline(spark, made / "run", place, once=True)
            assert not again.failed
            assert {one.run: one.verdict for one in again.verdicts} == {
                "r": Verdict.INVALID,
                "other": Verdict.VALID,
            }
            found = {name: again.tables[name] for name in ("events", "ordered", "gaps")}
            assert found == {"events": 16, "ordered": 16, "gaps": 0}
            # Spark's own list of files is that of this place from then on.
            assert spark.read.parquet(str(place / "events")).count() == 16
            assert not relocate(place)
    finally:
        moved.rename(made / "lake")


@pytest.mark.verify
def test_lake_without_some_of_its_files_is_rejected(
    spark: SparkSession, made: Path, tmp_path: Path
) -> None:
    lake = copied(made, tmp_path / "lake")
    (first, *_) = (lake / "trace").glob("*.parquet")
    first.unlink()
    for read in (
        lambda: pipeline(spark, made / "run", lake, once=True),
        lambda: read_table(spark, lake, "trace"),
        lambda: table_files(lake, "trace"),
    ):
        with pytest.raises(BadInput, match=r"trace lacks 1 of its \d+ files, such as part-"):
            read()
    shutil.rmtree(lake / "trace")
    with pytest.raises(BadInput, match=r"trace lacks its files, or the list of them"):
        pipeline(spark, made / "run", lake, once=True)


@pytest.mark.verify
def test_lake_without_its_links_is_rejected(
    spark: SparkSession, made: Path, tmp_path: Path
) -> None:
    shutil.copytree(made / "lake", tmp_path / "followed")
    with pytest.raises(BadInput, match=r"was copied without its symbolic links; .* as cp -a does"):
        pipeline(spark, made / "run", tmp_path / "followed", once=True)
    lake = copied(made, tmp_path / "lake")
    shutil.rmtree(lake / "_versions")
    with pytest.raises(BadInput, match=r"leads nowhere: .* was copied in part"):
        pipeline(spark, made / "run", lake, once=True)
