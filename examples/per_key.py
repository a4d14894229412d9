"""Handle accounts in parallel, and each account in order.

A booking takes time, and one account is much busier than the others. Eight workers handle different
accounts at the same time, but never two events of one account. One account rejects a booking: that
event and later ones of the account are parked in order, and all other accounts continue.
"""

import asyncio
from random import Random

import ensue

ACCOUNTS = ("busy", "anna", "bert", "carl", "dora", "broken")
EVENTS = 60


class Ledger:
    """The bookings of each account, and how many ran at once."""

    def __init__(self, events: ensue.Subscription) -> None:
        self.booked: dict[str, list[int]] = {account: [] for account in ACCOUNTS}
        self.at_once = 0
        self.at_once_max = 0
        self._events = events
        self._random = Random(7)  # noqa: S311 - the time of a booking needs no secrecy

    async def book(self, event: ensue.ReceivedEvent) -> None:
        """Handle one event."""
        account = (event.key or b"").decode()
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            await asyncio.sleep(self._random.random() / 200)
            if account == "broken" and self.booked[account]:
                raise ValueError("the account is closed")
            self.booked[account].append(event.position)
        finally:
            self.at_once -= 1
        if event.position == EVENTS:
            self._events.close()


async def main() -> None:
    """Publish bookings, handle them, and print the result."""
    random = Random(1)  # noqa: S311 - the same run every time
    async with ensue.connect("memory://") as bus, bus.subscribe("bookings") as events:
        for _ in range(EVENTS - 1):
            account = random.choice([*ACCOUNTS, "busy", "busy"])
            await bus.publish("bookings", b"", key=account.encode())
        await bus.publish("bookings", b"", key=b"anna")
        ledger = Ledger(events)
        progress = await events.run(
            ledger.book, concurrency=ensue.PerKey(8), on_failure=ensue.Park()
        )
    for account, positions in ledger.booked.items():
        in_order = "in order" if positions == sorted(positions) else "OUT OF ORDER"
        print(f"{account:6} {in_order}: {positions}")
    parked = [each.event.position for each in progress.collected]
    print(f"parked, in order: {parked}, because {progress.collected[0].cause}")
    print(f"{progress.handled} handled, {progress.parked} parked, {ledger.at_once_max} at once")


if __name__ == "__main__":
    asyncio.run(main())
