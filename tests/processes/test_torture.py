"""Total order, with every client and server a process of its own that may die at any moment."""

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.brokers.servers import BROKERS
from tests.processes.torture import Plan, torture

BROKER_OF = {kind.scheme: kind for kind in BROKERS}


def run(plan: Plan, directory: Path) -> None:
    result = asyncio.run(torture(plan, directory))
    assert result.deliveries >= plan.deliveries
    killed = {what: count for what, count in result.counts.items() if what.endswith("killed")}
    assert sum(killed.values()) == plan.kills
    assert result.counts["cuts"]
    # Kept only for whoever has to find out what went wrong.
    shutil.rmtree(directory)


@pytest.mark.timeout(600)
def test_total_order_survives_on_one_server(tmp_path: Path) -> None:
    run(Plan(url="ensue://", seed=1, deliveries=50_000, kills=12), tmp_path)


@pytest.mark.timeout(600)
def test_total_order_survives_on_a_chain_of_three_servers(tmp_path: Path) -> None:
    run(Plan(url="ensue://?servers=3", seed=2, deliveries=8_000, kills=9, everything=2), tmp_path)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "url",
    [
        "nats://",
        "nats://?jetstream=1",
        "nats://?servers=2",
        "redis://",
        "redis://?streams=1",
        "mqtt://",
        "mqtt://?qos=1",
        "amqp://",
    ],
)
def test_total_order_survives_on_a_broker(url: str, tmp_path: Path) -> None:
    """The broker is killed, too."""
    kind = BROKER_OF[url.partition(":")[0]]
    if kind.found() is None:
        pytest.skip(f"{kind.package} is not installed: `make brokers` installs it")
    run(Plan(url=url, seed=3, deliveries=6_000, kills=6, deadline_s=600), tmp_path)
