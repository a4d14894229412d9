"""Filters over attributes, in one order: what two traders both see, they see alike.

Events are divided into cells by their symbol and price. A trader of one symbol and a risk desk that
watches high prices share some cells, and so one order; a trader of another symbol shares none with
the first, and waits for none of its events. Run it: python examples/filters_in_order.py
"""

import asyncio

import ensue

CELLS = "symbol='ACME','BETA'; price<100"
TOTAL = ensue.Total()


async def main() -> None:
    """Publish quotes, and compare what subscribers got."""
    async with (
        ensue.connect(f"memory://?nodes=2&jitter_ms=2&cells={CELLS}") as bus,
        bus.subscribe(where="symbol = 'ACME'", order=TOTAL) as acme,
        bus.subscribe(where="symbol = 'BETA'", order=TOTAL) as beta,
        bus.subscribe(where="price >= 150", order=TOTAL) as risk,
    ):
        for number in range(40):
            symbol = ("ACME", "BETA", "ZINC")[number % 3]
            quote = {"symbol": symbol, "price": 10 * (number % 20)}
            await bus.publish(quote, str(number).encode(), order=TOTAL)
        quotes = [await anext(acme) for _ in range(14)]
        alarms = [await anext(risk) for _ in range(10)]
        both = {event.id for event in quotes} & {event.id for event in alarms}
        assert [event.id for event in quotes if event.id in both] == [
            event.id for event in alarms if event.id in both
        ]
        print(f"{len(both)} quotes reached both, in one order")
        for name, events in (("ACME", acme), ("BETA", beta), ("risk", risk)):
            print(f"{name}: {events.counts}")
        assert not set(acme.topics) & set(beta.topics)


if __name__ == "__main__":
    asyncio.run(main())
