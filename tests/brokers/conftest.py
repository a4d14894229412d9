"""What every test of brokers is given; each broker's tests stay in one process of pytest-xdist."""

from pathlib import Path

import pytest
from tests.brokers.servers import (
    missing,
    mosquitto_server,
    nats_server,
    rabbitmq_server,
    redis_server,
)

__all__ = ["mosquitto_server", "nats_server", "rabbitmq_server", "redis_server"]

HERE = Path(__file__).parent


# First, because pytest-xdist reads the groups in a hook of the same name.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.xdist_group(f"broker-{item.path.stem}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    absent = missing()
    if absent:
        terminalreporter.section("brokers not found")
        terminalreporter.line(f"not tested: {', '.join(absent)}; `make brokers` installs them")
