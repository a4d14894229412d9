"""One Spark session a process of pytest-xdist: starting it costs more than most tests below this folder."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ensue.spark import session


# First, because pytest-xdist reads the groups in a hook of the same name.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(__file__.rpartition("/")[0]):
            if item.get_closest_marker("xdist_group") is None:
                # A module at a time, so that all processes have their share.
                item.add_marker(pytest.mark.xdist_group(f"spark-{item.path.stem}"))
            if item.get_closest_marker("timeout") is None:
                # Drivers are started, and killed, by the dozen: a busy machine takes its time.
                item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    started = session("local[2]", app="ensue tests")
    yield started
    started.stop()
