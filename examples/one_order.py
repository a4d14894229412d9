"""Two services keep a balance. Without order they end up with different ones; with total order, never.

Deposits and interest are published on two topics by two publishers. Whether interest comes before or
after a deposit changes the balance, so two services that see them in different orders disagree.
"""

import asyncio

import ensue

URL = "memory://bank?jitter_ms=20&seed=11"


async def follow(events: ensue.Subscription, count: int) -> float:
    """Apply so many events and return the balance."""
    balance = 0.0
    for _ in range(count):
        event = await anext(events)
        amount = float(event.payload)
        balance = balance + amount if event.topic == "deposits" else balance * (1 + amount)
    return balance


async def run(order: ensue.Order | None) -> list[float]:
    """Publish the same events once, and return what two services make of them."""
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
    """Show both."""
    for name, order in (("no order", None), ("total order", ensue.Total())):
        one, other = asyncio.run(run(order))
        print(f"{name:12} one service: {one:8.2f}   the other: {other:8.2f}")


if __name__ == "__main__":
    main()
