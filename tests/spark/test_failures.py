"""Failures of Spark are reported in one sentence; invalid masters before Spark starts."""

import socket

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ensue.core.errors import BadInput
from ensue.spark import session
from ensue.spark.failures import is_of_spark, sentence
from ensue.spark.masters import check_master

IN_A_TASK = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent \
failure:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/spark/python/pyspark/worker.py", line 1, in main
    {}

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""
DAMAGED = """[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///t/a.parquet. X
\tat org.apache.spark.sql.errors
Caused by: java.io.IOException: bad page"""


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (
            IN_A_TASK.format("").replace(
                "    \n", "ModuleNotFoundError: No module named 'pyarrow'\n"
            ),
            "Spark's Python on an executor lacks the module pyarrow: install 'ensue[spark]'",
        ),
        (
            "[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; it was not found.",
            "Spark's Python on an executor lacks the module pyarrow",
        ),
        (
            'java.io.IOException: Cannot run program "python9": error=2, No such file or directory',
            "Spark can't start python9 on an executor: set PYSPARK_PYTHON",
        ),
        (
            DAMAGED,
            "/t/a.parquet can't be read: bad page",
        ),
        (
            (
                "An error occurred while calling None.JavaSparkContext.\n"
                ": java.lang.Exception: no\n\tat x"
            ),
            "no",
        ),
        ("whatever\nit is", "whatever"),
    ],
)
def test_failure_is_reported_in_one_sentence(error: str, reported: str) -> None:
    found = sentence(error)
    assert found.startswith(reported)
    assert "\n" not in found


def test_missing_source_is_reported_with_sparks_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/bare/python")
    error = (
        "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: {}. Make sure the provider name"
    )
    reported = (
        "Spark's Python, /opt/bare/python, does not start or lacks ensue: install 'ensue[spark]'"
    )
    assert sentence(error.format("ensue")).startswith(reported)
    assert sentence(error.format("kafka")) == error.format("kafka")


def test_errors_of_spark_are_recognized() -> None:
    assert is_of_spark(PySparkException("no"))
    assert is_of_spark(Py4JError("no"))
    assert not is_of_spark(ValueError("no"))


@pytest.mark.parametrize(
    "master",
    ["local", "local[2]", "local[*]", "local[*,3]", "local-cluster[2, 1, 1024]", "yarn", "k8s://h"],
)
def test_valid_masters_are_accepted(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize(
    "master", ["", "locla[2]", "local[x]", "local[2", "spark://host", "spark://host:x", "nonsense"]
)
def test_invalid_masters_are_rejected(master: str) -> None:
    with pytest.raises(BadInput, match=r"^master: .* is no master of Spark; expected local\[4\]"):
        check_master(master)


def test_invalid_master_of_the_environment_is_reported_by_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setenv("SPARK_MASTER", "nonsense")
    with pytest.raises(BadInput, match=r"^\$SPARK_MASTER: 'nonsense' is no master of Spark"):
        session()
    with pytest.raises(BadInput, match=r"^master: 'other' is no master of Spark"):
        session("other")


def test_cluster_that_does_not_answer_is_rejected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_master(f"spark://127.0.0.1:{port}")
    with pytest.raises(BadInput, match=f"no Spark master answers at spark://127.0.0.1:{port} "):
        check_master(f"spark://127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        second = server.getsockname()[1]
        check_master(f"spark://127.0.0.1:{port},127.0.0.1:{second}")
