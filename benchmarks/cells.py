"""Measure the traffic that reaches subscribers by content in vain, by the cells of their chain.

Run `python benchmarks/cells.py`. 40 subscriptions on `memory://`: half ask for one of 50 symbols,
a quarter for a symbol above a price, a quarter for a range of prices. 2,000 events have a symbol,
drawn by a law of popularity, and a price from 0 to 999. The declarations go from one cell for
everything, as without this layer, to many.

The output has, for each declaration, its cells, the topics of a subscription on average, how many
events reached subscriptions, and the share of them that came in vain, in events and in bytes.
"""

import argparse
import asyncio
from contextlib import AsyncExitStack
from random import Random

import ensue
from ensue.protocols.content.cells import Cells, ContentCounts

SYMBOLS = tuple(f"S{number:02}" for number in range(50))
DECLARATIONS = (
    "nothing=0",
    "price<100<500",
    "symbol/4",
    "symbol/16",
    "symbol/64",
    "symbol/16; price<100<500",
    "symbol/64; price<100<500",
)
"""The first is one cell for everything: no event has such an attribute."""
TOTAL = ensue.Total()


def filters(count: int, random: Random) -> list[str]:
    """Draw the filters of subscriptions."""
    found = []
    for number in range(count):
        symbol, price = random.choice(SYMBOLS), random.choice((100, 500))
        if number % 2 == 0:
            found.append(f"symbol = '{symbol}'")
        elif number % 4 == 1:
            found.append(f"symbol = '{symbol}' and price >= {price}")
        else:
            found.append(f"price >= {price} and price < {price + 400}")
    return found


async def measure(cells: str, subscriptions: int, events: int) -> tuple[int, float, ContentCounts]:
    """Publish all events; return cells, topics a subscription, and all counts together."""
    random = Random("cells")
    weights = [1 / rank for rank in range(1, len(SYMBOLS) + 1)]
    summed = ContentCounts()
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(ensue.connect(f"memory://?cells={cells}"))
        readers = [
            await stack.enter_async_context(bus.subscribe(where=where, order=TOTAL))
            for where in filters(subscriptions, random)
        ]
        for _ in range(events):
            (symbol,) = random.choices(SYMBOLS, weights)
            event = {"symbol": symbol, "price": random.randrange(1000)}
            await bus.publish(event, bytes(100), order=TOTAL)
        topics = sum(len(reader.topics) for reader in readers) / len(readers)
        for reader in readers:
            counts = reader.counts
            assert isinstance(counts, ContentCounts)
            summed.received += counts.received
            summed.delivered += counts.delivered
            summed.in_vain += counts.in_vain
            summed.in_vain_bytes += counts.in_vain_bytes
    return Cells.parse(cells).count, topics, summed


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subscriptions", type=int, default=40)
    parser.add_argument("--events", type=int, default=2_000)
    parser.add_argument("--cells", action="append", help="measure this declaration instead")
    parser.add_argument("--quick", action="store_true", help="100 events")
    options = parser.parse_args()
    if options.quick:
        options.events = 100
    heads = ("cells declared", "cells", "topics", "received", "matched", "in vain", "kB in vain")
    print(f"{heads[0]:28}" + "".join(f"{head:>12}" for head in heads[1:]))
    for text in options.cells or DECLARATIONS:
        count, topics, counts = asyncio.run(measure(text, options.subscriptions, options.events))
        share = counts.in_vain / max(1, counts.received)
        row = (count, f"{topics:.1f}", f"{counts.received:,}", f"{counts.delivered:,}")
        tail = (f"{share:.1%}", f"{counts.in_vain_bytes / 1000:,.0f}")
        print(f"{text:28}" + "".join(f"{value:>12}" for value in (*row, *tail)))


if __name__ == "__main__":
    main()
