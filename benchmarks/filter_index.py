"""Events matched per second against many subscriptions: the index and a plain loop.

Subscriptions have three predicates: a symbol, a range of prices, a range of sizes. Times are CPU
time, which other load disturbs little; the ratio is the result. The loop is what brokers would do
without an index: it stops at the first predicate that fails.

    python benchmarks/filter_index.py [--quick]
"""

import argparse
import os
import platform
import time
from random import Random

from ensue.protocols.content.filters.filter import Filter
from ensue.protocols.content.filters.index import MatchIndex
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.filters.spaces import Value

SYMBOLS = 500
GOAL_RATIO = 20


def subscription(random: Random) -> str:
    """Return the text of a subscription that about one event in 15,000 matches."""
    price, size = random.randrange(900), random.randrange(900)
    return (
        f"symbol = 'S{random.randrange(SYMBOLS)}' and price between {price} and {price + 150} "
        f"and size > {size}"
    )


def event(random: Random) -> dict[str, Value]:
    """Return an event."""
    return {
        "symbol": f"S{random.randrange(SYMBOLS)}",
        "price": random.randrange(1000),
        "size": random.randrange(1000),
        "venue": "X",
    }


def loop(filters: dict[str, Filter], attributes: dict[str, Value]) -> list[str]:
    """Match subscriptions one by one."""
    return [key for key, wanted in filters.items() if wanted.matches(attributes)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few subscriptions and events")
    quick = parser.parse_args().quick
    sizes = (200, 1_000, 2_000) if quick else (1_000, 10_000, 100_000)
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, three predicates each")
    print(
        f"{'subscriptions':>13} {'loaded/s':>10} {'index/s':>10} {'loop/s':>8} {'ratio':>7} "
        f"{'matched':>8}"
    )
    rates: dict[int, float] = {}
    for count in sizes:
        random = Random(count)
        filters = {f"s{number}": parse(subscription(random)) for number in range(count)}
        index = MatchIndex()
        start = time.process_time()
        for key, wanted in filters.items():
            index.add(key, wanted)
        index.match({})
        loaded = count / max(time.process_time() - start, 1e-9)
        events = [event(random) for _ in range(200 if quick else 2_000)]
        plain = events[: max(3, 200_000 // count)]
        start = time.process_time()
        found = [index.match(each) for each in events]
        rates[count] = len(events) / max(time.process_time() - start, 1e-9)
        start = time.process_time()
        expected = [loop(filters, each) for each in plain]
        slow = len(plain) / max(time.process_time() - start, 1e-9)
        assert [sorted(keys) for keys in found[: len(plain)]] == [sorted(keys) for keys in expected]
        matched = sum(len(keys) for keys in found) / len(events)
        print(
            f"{count:>13,} {loaded:>10,.0f} {rates[count]:>10,.0f} {slow:>8,.1f} "
            f"{rates[count] / slow:>6,.0f}x {matched:>8.2f}"
        )
    few, many = sizes[1], sizes[2]
    print(
        f"{many / few:.0f} times as many subscriptions take {rates[few] / rates[many]:.1f} times "
        f"as long; goal: {GOAL_RATIO} times the loop at 10,000, and slower growth than theirs"
    )


if __name__ == "__main__":
    main()
