"""Commands on a cluster whose executors are separate processes in other directories."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import msgspec
import pyspark
import pytest
from tests.spark.drivers import ROOT, SHORT_LIVED
from tests.spark.lake.sources import record

from ensue.store import open_log

# Every command starts a cluster. Without one, `test_source` checks that paths are resolved on the
# driver, and `test_failures` the sentence about an executor's Python.
pytestmark = pytest.mark.verify

MASTER = "local-cluster[1,1,1024]"
AUDIT = ("audit", "run", "--order", "total")
COUNT = f"""
import json
from ensue.spark import session

spark = session({MASTER!r})
print(json.dumps({{"events": spark.read.format("ensue").load("run").count()}}))
spark.stop()
"""
"""Counts the events of a log."""
PIPELINE = ("pipeline", "run", "--lake", "lake", "--once")


class Ended(msgspec.Struct):
    """Exit code and output of a command."""

    code: int
    output: dict[str, Any]
    stderr: str


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Spark home, because workers of a local cluster write into it."""
    place = tmp_path_factory.mktemp("spark")
    for each in Path(pyspark.__file__).parent.iterdir():
        (place / each.name).symlink_to(each)
    return place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Working directory of the commands, with a recorded run."""
    place = tmp_path_factory.mktemp("commands")
    record(place / "run")
    return place


def ensue(home: Path, place: Path, *words: str, python: str = sys.executable) -> Ended:
    """Run a command on a cluster of one worker, in `place`; its executors use `python`."""
    words = ("-m", "ensue", *words, "--master", MASTER, "--json")
    ended = run(home, place, *words, python=python)
    assert "Traceback" not in ended.stderr
    assert "incubator modules" not in ended.stderr
    assert "TransformWithState" not in ended.stderr
    return ended


def run(home: Path, place: Path, *words: str, python: str = sys.executable) -> Ended:
    """Run Python, which prints one JSON object."""
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=place,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "PYSPARK_PYTHON": python,
            "SPARK_HOME": str(home),
            "JAVA_TOOL_OPTIONS": SHORT_LIVED,
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.stdout, ended.stderr
    return Ended(ended.returncode, json.loads(ended.stdout), ended.stderr)


def test_relative_paths_are_resolved_on_the_driver(home: Path, place: Path) -> None:
    audited = ensue(home, place, *AUDIT, "--violations", "violations")
    assert (audited.code, audited.output["verdict"]) == (0, "valid"), audited.stderr
    assert list((place / "violations").glob("*.parquet"))
    assert list((home / "work").glob("app-*/0")), "the executor had another directory"
    counted = run(home, place, "-c", COUNT)
    events = sum(each.next - each.first for each in open_log(place / "run").bounds().values())
    assert (counted.code, counted.output) == (0, {"events": events}), counted.stderr
    assert events > 0


def test_relative_paths_of_a_pipeline_are_resolved_on_the_driver(home: Path, place: Path) -> None:
    found = ensue(home, place, *PIPELINE)
    assert (found.code, found.output["verdict"]) == (0, "valid"), found.stderr
    assert found.output["tables"]["ordered"] == found.output["tables"]["events"] > 0
    assert found.output["lake"] == str(place / "lake")


@pytest.mark.parametrize("words", [AUDIT, PIPELINE])
def test_executors_without_pyarrow_are_reported_in_one_sentence(
    home: Path, place: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    ended = ensue(home, place, *words, python=python)
    assert ended.code == 2
    (reported,) = ended.output.values()
    assert "lacks" in reported
    assert "set PYSPARK_PYTHON to a Python that has it" in reported
    assert ended.stderr.splitlines()[-1] == f"ensue: {reported}"
