"""Total order between processes that may be killed at any moment."""

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
    # Kept only after a failure.
    shutil.rmtree(directory)


VERIFY = pytest.mark.verify


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("deliveries", "kills"),
    [
        (10_000, 6),
        pytest.param(50_000, 12, marks=VERIFY),
        pytest.param(250_000, 40, marks=VERIFY),
    ],
)
def test_total_order_survives_on_one_server(deliveries: int, kills: int, tmp_path: Path) -> None:
    plan = Plan(url="ensue://", seed=1, deliveries=deliveries, kills=kills, deadline_s=900)
    run(plan, tmp_path)


@VERIFY
@pytest.mark.timeout(600)
def test_total_order_survives_on_a_chain_of_three_servers(tmp_path: Path) -> None:
    run(Plan(url="ensue://?servers=3", seed=2, deliveries=8_000, kills=9, everything=2), tmp_path)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("url", "deliveries", "kills"),
    [
        ("nats://?jetstream=1", 3_000, 4),
        *(
            pytest.param(url, 6_000, 6, marks=VERIFY)
            for url in (
                "nats://",
                "nats://?jetstream=1",
                "nats://?servers=2",
                "redis://",
                "redis://?streams=1",
                "mqtt://",
                "mqtt://?qos=1",
                "amqp://",
            )
        ),
    ],
)
def test_total_order_survives_on_a_broker(
    url: str, deliveries: int, kills: int, tmp_path: Path
) -> None:
    """The broker is killed, too."""
    kind = BROKER_OF[url.partition(":")[0]]
    if kind.found() is None:
        pytest.skip(f"{kind.package} is not installed: `make brokers` installs it")
    plan = Plan(url=url, seed=3, deliveries=deliveries, kills=kills, deadline_s=600)
    run(plan, tmp_path)
