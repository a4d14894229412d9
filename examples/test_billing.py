"""A service and its test in a simulated world: `pytest examples/test_billing.py`.

The service keeps an account balance from two topics. It acknowledges an event when the balance is
stored, so that a crash loses nothing, and it skips what it has stored before.
"""

import asyncio

import pytest

import ensue
from ensue.testing import Faults, Simulation, simulate


class Store:
    """Stands for the service's database, which survives the service."""

    def __init__(self) -> None:
        self.balance = 0
        self.position = 0


async def billing(url: str, store: Store) -> None:
    """Apply deposits and withdrawals in one order, each exactly once."""
    while True:
        try:
            async with (
                ensue.connect(url, name="billing") as bus,
                bus.subscribe(
                    "deposits", "withdrawals", name="billing", durable=True, acknowledge="manual"
                ) as events,
            ):
                async for event in events:
                    if event.position > store.position:
                        amount = int(event.payload)
                        store.balance += amount if event.topic == "deposits" else -amount
                        store.position = event.position
                    await event.ack()
        except ensue.TransportError:
            await asyncio.sleep(1)  # The server is away: connect again.


async def customer(url: str, amounts: list[int]) -> None:
    """Deposit and withdraw, with a receipt for each."""
    async with ensue.connect(url, name="customer") as bus:
        for amount in amounts:
            topic = "deposits" if amount > 0 else "withdrawals"
            await bus.publish(topic, b"%d" % abs(amount))
            await asyncio.sleep(0.5)


@pytest.mark.parametrize("seed", range(5))
def test_balance_is_right_whatever_fails(seed: int) -> None:
    """Every amount counts once, though servers crash and connections break."""

    async def main(simulation: Simulation) -> None:
        server = await simulation.serve("server")
        store = Store()
        simulation.start("billing", billing, server.url("server"), store)
        await asyncio.sleep(2)
        amounts = [simulation.random.randint(-50, 100) or 1 for _ in range(40)]
        simulation.strike()
        paying = simulation.start("customer", customer, server.url("server"), amounts)
        await asyncio.sleep(20)
        await simulation.heal()
        await paying
        await asyncio.sleep(20)
        assert store.balance == sum(amounts)

    faults = Faults(server_kills=6, power_cuts=3, resets=6, partitions=6)
    simulate(main, seed=seed, faults=faults)


if __name__ == "__main__":
    for number in range(5):
        test_balance_is_right_whatever_fails(number)
        print(f"seed {number}: the balance is right")
