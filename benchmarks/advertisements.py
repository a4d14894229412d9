"""CPU time of publishing by content at a broker, alone and beside many advertisements of others.

A broker with a durable input log, without its disk and network, takes publications of one client,
which has advertised them. The others' advertisements come from its clients and from a neighbor;
half of them overlap the events. Both brokers take turns in one run, so that other load disturbs
both alike; the ratio is the result.

    python benchmarks/advertisements.py [--quick]
"""

import argparse
import os
import platform
import time
from statistics import median

from ensue.protocols.content import frames as f
from ensue.protocols.content.frames import Change, Publication
from ensue.protocols.transactions.broker import TransactionBroker

GOAL_RATIO = 1.2
OTHERS = 20_000
CLIENTS = 20
EVENTS = 500
"""Events of one round."""
ROUNDS = 21


def broker_with(advertisements: int) -> TransactionBroker:
    """Return a broker with advertisements of others, and one of the publisher."""
    broker = TransactionBroker(name="b0", neighbors=("b1",))
    names = ["publisher", "subscriber", *(f"c{number}" for number in range(CLIENTS))]
    for name in names:
        broker.receive(f.Hello(), source=name, now_ns=0)
    for number in range(advertisements):
        place = number % (2 * CLIENTS)
        hop = "b1" if place >= CLIENTS else f"c{place}"
        where = f"price exists and size > {number}" if number % 2 else f"kind = 'K{number}'"
        change = Change(f.ADVERTISE, f"{hop}.adv{number}", where)
        broker.content.change((change,), hop)
    broker.content.change((Change(f.ADVERTISE, "publisher.adv", "price exists"),), "publisher")
    broker.content.change((Change(f.SUBSCRIBE, "subscriber.sub", "price > 0"),), "subscriber")
    broker.take_effects()
    return broker


def publish(broker: TransactionBroker, first: int) -> float:
    """Have the publisher publish events; return the CPU time of each, in microseconds."""
    requests = [
        f.Operate(
            number=number,
            publication=Publication(
                publisher="publisher",
                number=number,
                attributes={"price": number, "size": 10**6, "kind": "K1"},
                payload=bytes(100),
            ),
        )
        for number in range(first, first + EVENTS)
    ]
    began_s = time.thread_time()
    for request in requests:
        broker.receive(request, source="publisher", now_ns=0)
        broker.take_effects()
    return 1e6 * (time.thread_time() - began_s) / EVENTS


def main() -> None:
    """Print the CPU time of a publication beside no and many advertisements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few advertisements and rounds")
    quick = parser.parse_args().quick
    others, rounds = (2_000, 5) if quick else (OTHERS, ROUNDS)
    alone, beside = broker_with(0), broker_with(others)
    pairs = [
        (publish(alone, 1 + round_ * EVENTS), publish(beside, 1 + round_ * EVENTS))
        for round_ in range(rounds)
    ]
    ratio = median(many / none for none, many in pairs)
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{'advertisements of others':>24} {'CPU µs a publication':>21}")
    print(f"{0:>24,} {median(none for none, _ in pairs):>21.1f}")
    print(f"{others:>24,} {median(many for _, many in pairs):>21.1f}")
    print(f"{ratio:.2f} times as much (goal: at most {GOAL_RATIO})")


if __name__ == "__main__":
    main()
