"""Servers for the tests of brokers, one of each kind for every process of pytest-xdist.

`make test` runs both suites in full on NATS, which restarts at once, and on other brokers without
the tests in `SLOW`; a bus only in the mode of a URL without options. The rest is marked verify.
"""

from pathlib import Path

import pytest
from tests.brokers.bus_suite import BusSuite
from tests.brokers.servers import (
    missing,
    mosquitto_server,
    nats_server,
    rabbitmq_server,
    redis_server,
)

__all__ = ["mosquitto_server", "nats_server", "rabbitmq_server", "redis_server"]

HERE = Path(__file__).parent
IN_FULL = ("TestNats", "TestNatsBus")
RESTART = "test_carrier_reconnects_to_a_restarted_broker"
SLOW = frozenset(
    {
        RESTART,
        "test_a_restarted_broker_loses_nothing",
        "test_topic_moves_from_station_to_station_while_events_flow",
        "test_topic_moves_while_the_broker_restarts",
        "test_silent_broker_is_disconnected",
        "test_slow_reader_of_merged_order_delays_no_other_and_counts_losses",
        "test_slow_reader_with_deadlines_delays_no_other_and_counts_losses",
        "test_client_ends_if_a_station_returns_with_another_log",
        "test_merged_order_needs_no_station_and_continues_after_a_cut",
        "test_merged_subscriptions_come_and_go",
        "test_merged_and_causal_order_continue_after_a_station_restart",
        "test_client_with_other_terms_of_merged_order_is_refused_with_both",
    }
)
"""Tests that take seconds, because they wait for time to pass or for a server."""


def _group(item: pytest.Item) -> str:
    """Return the group of all tests that use one server, so that it starts once."""
    used = [name for name in getattr(item, "fixturenames", ()) if name in __all__]
    spec = getattr(item, "callspec", None)
    named = spec.params.get("fixture") if spec is not None else None
    suite = getattr(getattr(item, "cls", None), "server_fixture", None)
    return f"broker-{named or suite or (used[0] if used else item.path.stem)}"


def _is_for_verify(item: pytest.Item) -> bool:
    suite = getattr(item, "cls", None)
    if suite is None or suite.__name__ in IN_FULL:
        return False
    second_mode = getattr(suite, "options", "") not in ("", "qos=0")
    if item.name == f"{RESTART}[killed]":
        return second_mode
    name = item.name.partition("[")[0]
    return name in SLOW or (second_mode and issubclass(suite, BusSuite))


# First, because pytest-xdist reads the groups in a hook of the same name.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.xdist_group(_group(item)))
            if _is_for_verify(item):
                item.add_marker(pytest.mark.verify)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    absent = missing()
    if absent:
        terminalreporter.section("brokers not found")
        terminalreporter.line(f"not tested: {', '.join(absent)}; `make brokers` installs them")
