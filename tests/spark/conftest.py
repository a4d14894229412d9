"""One Spark session for all tests of a process: starting it costs more than most tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.drivers import SHORT_LIVED

from ensue.spark import session
from ensue.spark.sessions import SETTINGS

HERE = Path(__file__).parent
AUDITS = frozenset(
    {"audits", "campaigns", "test_total_order", "test_trace_metrics", "test_topic_placement"}
)
"""Folders and files whose tests share a session; the others, as long, share a second one."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
COMPILE_QUICKLY = f"{SHORT_LIVED} -XX:ReservedCodeCacheSize=240m"
"""Compile quickly rather than well: tests repeat little, and take two fifths less time.

By default the quick compiler reserves 48 MB for code, which one session for all tests fills.
"""


def _half(path: Path) -> str:
    """Return which of two sessions runs a file: each costs a Java to start and warm up."""
    return "audits" if path.parent.name in AUDITS or path.stem in AUDITS else "lakes"


# First, because pytest-xdist reads the groups in a hook of the same name.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    with_session = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    for item in items:
        if item.path.is_relative_to(HERE):
            if item.path in with_session and item.get_closest_marker("xdist_group") is None:
                # With --verify one group per file: one process would end long after the others.
                name = item.path.stem if config.getoption("--verify") else _half(item.path)
                group = f"spark-{name}"
                item.add_marker(pytest.mark.xdist_group(group))
            if item.get_closest_marker("timeout") is None:
                # Tests start and kill dozens of drivers, which takes long on a busy machine.
                item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    options = f"{SETTINGS[JAVA_OPTIONS]} {COMPILE_QUICKLY}"
    started = session("local[2]", app="ensue tests", settings={JAVA_OPTIONS: options})
    yield started
    started.stop()
