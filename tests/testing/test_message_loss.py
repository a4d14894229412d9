"""On a broker that loses 2 % of all messages, 99 % of deliveries take at most five times as long.

Whole programs in the configuration that they have in production, on links of 1 to 5 ms, at two
rates: at the low one no later event shows that one is missing. Time is virtual, so the figures are
those of the protocols, and the same in each run.
"""

import asyncio
from collections.abc import Sequence
from itertools import product

import pytest

import ensue
from ensue.core.order import Order
from ensue.testing import NetworkOptions, Simulation, simulate

SECOND_NS = 1_000_000_000
LINKS = NetworkOptions(latency_ms=(1.0, 5.0), slow=0.0, cuts=0.0)
SYNC_MS = (0.1, 1.0)
LOST = 0.02
TIMES = 5
TOPICS = ("low", "high")
"""Events on the first one are ordered with the other one, so in a chain all cross a link."""
PUBLISHERS, READERS = 3, 2
RATES = {"busy": (25, 6), "quiet": (1, 120)}
"""Events per second and publisher, and for how many seconds."""
JOINED_S = 3
"""When all clients know each other: what a loss costs one that joins is not measured."""
ORDERS: dict[str, tuple[Order, Sequence[str]]] = {
    "total": (ensue.Total(), ("station",)),
    "total, a chain": (ensue.Total(), ("left", "right")),
    "causal": (ensue.Causal(), ("station",)),
    "deadline": (ensue.Deadline(ms=200), ("station",)),
}


async def publish(url: str, order: Order, number: int, rate: int, seconds: int) -> None:
    async with ensue.connect(url, order=order) as bus:
        for topic in TOPICS:
            await bus.publish(topic, b"", receipt=False)
        # One after the other, or the next publisher's event would show what is missing.
        await asyncio.sleep(JOINED_S + 1 + number / rate / PUBLISHERS)
        for _ in range(rate * seconds):
            await bus.publish(TOPICS[0], b"", receipt=False)
            await asyncio.sleep(1 / rate)
        await asyncio.sleep(10)


async def read(url: str, order: Order) -> None:
    async with ensue.connect(url, order=order) as bus, bus.subscribe(*TOPICS) as events:
        async for _ in events:
            pass


def waits_ms(name: str, rate: str, lost: float) -> list[float]:
    """Return how long each delivery took after its call, rising."""
    order, stations = ORDERS[name]

    async def main(simulation: Simulation) -> None:
        broker = await simulation.broker("nats")
        topics = TOPICS if len(stations) > 1 else ()
        await simulation.serve(*stations, topics=topics, broker=broker.url)
        for number in range(READERS):
            simulation.start(f"reader-{number}", read, broker.url, order)
        publishers = [
            simulation.start(
                f"publisher-{number}", publish, broker.url, order, number, *RATES[rate]
            )
            for number in range(PUBLISHERS)
        ]
        await asyncio.sleep(JOINED_S)
        broker.loss = lost
        for each in publishers:
            await each

    rows = simulate(main, seed=1, network=LINKS, disk_sync_ms=SYNC_MS).rows
    at_ns = {
        row.event: row.true_ns
        for row in rows
        if row.action == "submitted" and (row.true_ns or 0) > JOINED_S * SECOND_NS
    }
    waits = sorted(
        ((row.true_ns or 0) - (at_ns[row.event] or 0)) / 1e6
        for row in rows
        if row.action == "delivered" and row.event in at_ns
    )
    per_second, seconds = RATES[rate]
    assert len(waits) == READERS * PUBLISHERS * per_second * seconds, "some were not delivered"
    return waits


def p99(waits: Sequence[float]) -> float:
    return waits[len(waits) * 99 // 100]


QUICK = (("total", "busy"), ("total", "quiet"), ("total, a chain", "busy"), ("causal", "busy"))


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        pytest.param(*each, marks=() if each in QUICK else pytest.mark.verify)
        for each in product(ORDERS, RATES)
    ],
)
def test_a_lost_message_costs_a_few_round_trips_on_a_broker(name: str, rate: str) -> None:
    lossless, lossy = p99(waits_ms(name, rate, 0.0)), p99(waits_ms(name, rate, LOST))
    assert lossy <= TIMES * lossless, f"99 % within {lossy:.1f} ms, without loss {lossless:.1f} ms"
