"""Random scenarios with events by content in total order, one from each seed.

The network, the chain and the faults are those of the same seed in `total`. Publishers publish
events with attributes instead of topics, and subscribers have a filter each: some equal, some that
overlap, some disjoint. They join at the start or later, and leave and come back.
"""

from random import Random

import msgspec

from ensue.simulation.scenario import Change, PublisherSpec, Rate, Scenario, SubscriberSpec
from ensue.simulation.swarms import total

__all__ = ["draw"]

CELLS = (
    "symbol/4",
    "symbol='a','b'",
    "price<2<4",
    "symbol/2; price<2<4",
    "symbol='a','b','c'; price<3",
    "symbol/3; urgent=true",
    "price/3",
    "price/5",
    "other/2",
)
PRICES = 6
_SYMBOLS = ("a", "b", "c", "d", "e")


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    scenario = total.draw(seed)
    random = Random(f"swarm/content/{seed}")
    cells = random.choice(CELLS)
    sequencer = msgspec.structs.replace(
        scenario.sequencer, cells=cells, fixed=None, groups=random.choice((1, 1, 2))
    )
    publishers = tuple(_publisher(random, each) for each in scenario.publishers)
    subscribers = tuple(
        _subscriber(random, each, scenario.duration_ns) for each in scenario.subscribers
    )
    return msgspec.structs.replace(
        scenario,
        name="swarm-total-content",
        sequencer=sequencer,
        publishers=publishers,
        subscribers=subscribers,
    )


def _publisher(random: Random, spec: PublisherSpec) -> PublisherSpec:
    events = tuple(_event(random) for _ in range(random.choice((2, 6, 20))))
    rate = Rate(topics=events, per_second=random.choice((3.0, 10.0, 30.0)))
    return msgspec.structs.replace(spec, events=(), rates=(rate,))


def _event(random: Random) -> str:
    parts = [f"symbol = '{random.choice(_SYMBOLS)}'"] if random.random() < 0.9 else []
    if random.random() < 0.8 or not parts:
        # A whole number is the same value as a fraction.
        price = random.randrange(PRICES)
        parts.append(f"price = {price if random.random() < 0.5 else float(price)}")
    if random.random() < 0.3:
        parts.append(f"urgent = {random.choice(('true', 'false'))}")
    return " and ".join(parts)


def _subscriber(random: Random, spec: SubscriberSpec, duration_ns: int) -> SubscriberSpec:
    where = (_filter(random),)
    topics = where if random.random() < 0.7 else ()
    changes = []
    joined = bool(topics)
    for at_ns in sorted(random.randrange(duration_ns) for _ in range(random.choice((0, 0, 1, 3)))):
        if joined:
            changes.append(Change(at_ns=at_ns, unsubscribe=where))
        else:
            changes.append(Change(at_ns=at_ns, subscribe=where))
        joined = not joined
    return msgspec.structs.replace(spec, topics=topics, changes=tuple(changes), replies=())


def _filter(random: Random) -> str:
    tests = (
        lambda: f"symbol = '{random.choice(_SYMBOLS)}'",
        lambda: "symbol in ('a', 'c')",
        lambda: "symbol starts with 'b'",
        lambda: f"price {random.choice(('<', '<=', '>', '>='))} {random.randrange(PRICES)}",
        lambda: f"price = {random.randrange(PRICES)}",
        lambda: f"price = {float(random.randrange(PRICES))}",
        lambda: "urgent = true",
        lambda: "urgent exists",
        lambda: "true",
    )
    first, second = random.choice(tests)(), random.choice(tests)()
    return random.choice((first, first, f"{first} and {second}", f"{first} or {second}"))
