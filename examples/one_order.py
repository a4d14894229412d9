"""Two services keep a balance: without order they disagree, with total order they never do.

Two publishers publish deposits and interest on two topics. Interest before a deposit gives another
balance than interest after it, so services that receive them in different orders disagree.
"""

import asyncio

import ensue

URL = "memory://bank?jitter_ms=20&seed=11"


async def follow(events: ensue.Subscription, count: int) -> float:
    """Apply `count` events and return the balance."""
    balance = 0.0
    for _ in range(count):
        event = await anext(events)
        amount = float(event.payload)
        balance = balance + amount if event.topic == "deposits" else balance * (1 + amount)
    return balance


async def run(order: ensue.Order | None) -> list[float]:
    """Publish events once, and return the balances of two services."""
    async with (
        ensue.connect(URL, order=order) as bank,
        ensue.connect(URL, order=order) as branch,
        bank.subscribe("deposits", "interest") as first,
        branch.subscribe("deposits", "interest") as second,
    ):
        for _ in range(10):
            await bank.publish("deposits", b"100")
            await branch.publish("interest", b"0.05")
        return [await follow(first, 20), await follow(second, 20)]


def main() -> None:
    """Compare no order and total order."""
    for name, order in (("no order", None), ("total order", ensue.Total())):
        one, other = asyncio.run(run(order))
        print(f"{name:12} one service: {one:8.2f}   the other: {other:8.2f}")


if __name__ == "__main__":
    main()
