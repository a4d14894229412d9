"""Every benchmark runs, and prints what it says it measures. How fast is not asserted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(900)
"""Some start Spark, which takes its time on a busy machine."""

LABELS = {
    "batches": (
        "events",
        "publish, receipt=False",
        "publish_many",
        "async for",
        "batches",
        "µs/event",
        "ensue://",
        "goal: 5 µs",
    ),
    "cube_processes": ("processes", "across topics", "within a topic", "deliveries/s", "CPU s"),
    "transactions": (
        "three brokers",
        "planned",
        "atomic",
        "serializable",
        "transactions/s",
        "CPU ms",
        "regular traffic",
        "one broker, 10 subscribers",
        "goals: 1,000",
    ),
    "cells": ("cells declared", "topics", "received", "in vain", "symbol/16; price<100<500"),
    "filter_index": (
        "three predicates",
        "index/s",
        "loop/s",
        "matched",
        "times as many",
        "goal: 20",
    ),
    "merge": (
        "bytes of a timestamp",
        "counter mod B",
        "HLC",
        "timestamps/s",
        "through each of 4 mergers",
        "recovery: 4 seeds",
    ),
    "spark_merge": (
        "merged, Spark",
        "sorted, DuckDB",
        "rows/s",
        "as fast as DuckDB",
        "the same order: True",
    ),
    "spark_audit": (
        "session",
        "deliveries/s",
        "Java MB",
        "invalid: checked fifo, total, causal, positions, complete",
        "planted 60, found 60;",
        " 0 of them of nothing planted",
        "DuckDB",
        "goals:",
    ),
    "spark_order": (
        "batch, Spark",
        "batch, DuckDB",
        "stream, only copied",
        "stream, ordered",
        "CPU s",
        "sustained",
        "goal: 100,000",
        "each once: True",
    ),
    "spark_source": (
        "rows/s",
        "CPU s",
        "all columns",
        "as a stream",
        "a copy in Parquet",
        "the reader alone",
        "goal:",
    ),
    "stamps": ("cores", "Python 3", "stamps/s", "µs/stamp", "left out", "whole", "goal:"),
    "stamp_sizes": (
        "cores",
        "Python 3",
        "quick: scaled down",
        "shape 0.901",
        "shape 0.349",
        "groups by",
        "over events",
        "over topics",
        "left out",
        "whole",
        "bytes",
    ),
}


def run(name: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "benchmarks" / f"{name}.py"), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


VERIFY = ("cube_processes", "transactions")
"""Benchmarks that take longest even in their quick form, besides those that start Spark."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[pytest.mark.verify] if name.startswith(("spark_", *VERIFY)) else []
        )
        for name in LABELS
    ],
)
def test_it_runs_quickly_and_prints_its_labels(name: str) -> None:
    printed = run(name, "--quick")
    missing = [label for label in LABELS[name] if label not in printed]
    assert not missing, printed


def test_the_law_of_the_paper_is_the_one_that_fits() -> None:
    printed = run("stamp_sizes", "--quick", "--laws")
    steep, flat = (
        line.split() for line in printed.splitlines() if line.startswith("pareto, cut off")
    )
    assert steep[-3] == "80.3%"
    assert flat[-2] == "79.8%"


@pytest.mark.verify
def test_visits_are_measured_by_what_a_server_does() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "benchmarks.visits", "--quick"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for label in (
        "stamped and published",
        "nothing to add: 0.",
        "repeated request: 0.",
        "µs a req",
    ):
        assert label in done.stdout, done.stdout
