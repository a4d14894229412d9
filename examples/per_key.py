"""Accounts are booked in parallel, and each of them in order.

A booking takes a while, and one account is much busier than the others. Eight workers book different
accounts at the same time, never two events of one account. One account refuses a booking: that event
and the later ones of the same account are set aside in order, and all other accounts go on.
"""

import asyncio
from random import Random

import ensue

ACCOUNTS = ("busy", "anna", "bert", "carl", "dora", "broken")
EVENTS = 60


class Ledger:
    """What was booked on each account, and how many bookings were under way at once."""

    def __init__(self, events: ensue.Subscription) -> None:
        self.booked: dict[str, list[int]] = {account: [] for account in ACCOUNTS}
        self.at_once = 0
        self.at_once_max = 0
        self._events = events
        self._random = Random(7)  # noqa: S311 - how long a booking takes is no secret

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
    """Publish, book, and show what came of it."""
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
    aside = [parked.event.position for parked in progress.collected]
    print(f"set aside, in order: {aside}, because {progress.collected[0].cause}")
    print(f"{progress.handled} handled, {progress.parked} parked, {ledger.at_once_max} at once")


if __name__ == "__main__":
    asyncio.run(main())
