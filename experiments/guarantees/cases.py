"""One workload under every guarantee: deliveries, latency and cost.

Four publishers of 25 events a second and eight subscribers of both topics run for three seconds
after all have joined; messages take 1 to 5 ms. Only the guarantee differs:

- *none*, *total*: through a topic log; total order with one sequencer.
- *causal*, *deadline*: directly between the clients; deadlines of 100 ms.
- *merged*: through a relay; clocks within 2 ms, messages within 12 ms.
- *transactions*: three brokers in a line; each event is published by its own planned transaction.

Faults: none; 2 % of messages lost; one subscriber down for half a second; the node in the middle
(topic log, sequencer, relay or broker) down for half a second, if there is one.
"""

from collections.abc import Iterator
from random import Random

import msgspec

from ensue.core.trace import Row as TraceRow
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.merged.config import MergedConfig
from ensue.protocols.transactions.frames import PLANNED
from ensue.simulation import run as simulation
from ensue.simulation.content_spec import ContentSpec
from ensue.simulation.deployments.transaction_clients import Act, RegularSpec, TransactionSpec
from ensue.simulation.scenario import (
    DeadlineSpec,
    MergeSpec,
    PublisherSpec,
    Rate,
    Scenario,
    SubscriberSpec,
)
from ensue.simulation.world.delays import Constant, Uniform
from ensue.simulation.world.disks import DiskConfig
from ensue.simulation.world.faults import Crash, Faults
from ensue.simulation.world.network import NetworkConfig
from experiments.experiment import Case, Row, row

__all__ = ["BUSY", "FAULTS", "ORDERS", "Load", "choice", "figures_of", "run_choice"]

MS = 1_000_000
SECOND = 1_000_000_000
ORDERS = ("none", "total", "causal", "merged", "deadline", "transactions")
FAULTS = ("calm", "loss", "subscriber", "middle")
PUBLISHERS, SUBSCRIBERS, TOPICS = 4, 8, ("a", "b")
SIZE = 100
START_NS = 2 * SECOND


class Load(msgspec.Struct, frozen=True):
    """How much each publisher publishes."""

    per_second: float
    seconds: int

    @property
    def end_ns(self) -> int:
        """When the last events are published."""
        return START_NS + self.seconds * SECOND


BUSY = Load(25, 3)
CRASH = {"at_ns": 3 * SECOND, "restart_after_ns": 500 * MS}
MIDDLE = {"none": "ens", "total": "node-1", "merged": "ens", "transactions": "b1"}


def _faults(order: str, faults: str) -> Faults:
    if faults == "subscriber":
        return Faults(crashes=(Crash(node="s0", **CRASH),))
    if faults == "middle" and order in MIDDLE:
        return Faults(crashes=(Crash(node=MIDDLE[order], **CRASH),))
    return Faults()


def choice(order: str, faults: str, seed: int, load: Load = BUSY) -> Scenario:
    """Return the scenario of a guarantee under one kind of fault."""
    subscribers = tuple(f"s{number}" for number in range(SUBSCRIBERS))
    publishers = tuple(f"p{number}" for number in range(PUBLISHERS))
    rate = Rate(
        topics=TOPICS,
        per_second=load.per_second,
        from_ns=START_NS,
        until_ns=load.end_ns,
        size=SIZE,
    )
    by_topic = order != "transactions"
    return Scenario(
        name=f"choosing-{order}",
        order=order,
        duration_ns=load.end_ns,
        publishers=tuple(
            PublisherSpec(name=name, rates=(rate,)) for name in publishers if by_topic
        ),
        subscribers=tuple(
            SubscriberSpec(name=name, topics=TOPICS) for name in subscribers if by_topic
        ),
        merge=MergeSpec(config=MergedConfig(epsilon_ticks=2, delta_ticks=12)),
        deadline=DeadlineSpec(
            config=DeadlineConfig(lifetime_ns=100 * MS, lifetime_ns_max=100 * MS, spreads=False),
            listening=subscribers,
        ),
        overlay=ContentSpec() if by_topic else _overlay(publishers, subscribers, seed, load),
        network=NetworkConfig(
            default=Uniform(1 * MS, 5 * MS), loss=0.02 if faults == "loss" else 0.0
        ),
        disk=DiskConfig(sync=Constant(0)),
        faults=_faults(order, faults),
    )


def _overlay(
    publishers: tuple[str, ...], subscribers: tuple[str, ...], seed: int, load: Load
) -> ContentSpec:
    """Return the workload for brokers: the topic is an attribute, each event a transaction."""
    random = Random(f"choosing/{seed}")
    brokers = {"b0": ("b1",), "b1": ("b0", "b2"), "b2": ("b1",)}
    homes = list(brokers)
    regular = [
        RegularSpec(
            client=name, at_ns=100 * MS, act=Act(action="adv", where="topic exists", label=name)
        )
        for name in publishers
    ]
    regular += [
        RegularSpec(
            client=name, at_ns=500 * MS, act=Act(action="sub", where="topic exists", label=name)
        )
        for name in subscribers
    ]
    transactions = []
    for name in publishers:
        at_ns = float(START_NS)
        while (at_ns := at_ns + random.expovariate(load.per_second) * SECOND) < load.end_ns:
            act = Act(
                action="pub", attributes={"topic": random.choice(TOPICS)}, payload=bytes(SIZE)
            )
            transactions.append(
                TransactionSpec(
                    client=name, at_ns=int(at_ns), acts=(act,), isolation=PLANNED, attempts=5
                )
            )
    return ContentSpec(
        brokers=brokers,
        clients={name: homes[at % 3] for at, name in enumerate((*publishers, *subscribers))},
        regular=tuple(regular),
        transactions=tuple(transactions),
    )


def run_choice(case: Case) -> Iterator[Row]:
    """Run one guarantee under one kind of fault."""
    order, faults, seed = case["order"], case["faults"], case["seed"]
    if faults == "middle" and order not in MIDDLE:
        return
    outcome = simulation.play(choice(order, faults, seed), seed, encode=True, peer_frames=True)
    assert outcome.valid or order in ("none", "deadline", "merged"), outcome.sentences()
    at = ORDERS.index(order)
    for name, value in figures_of(outcome.rows).items():
        yield row(faults, name, at, value)
        if name == "latency, mean ms":
            yield row("latency", faults, at, value)


def figures_of(rows: list[TraceRow], load: Load = BUSY) -> dict[str, float]:
    """Measure the events that were published after all clients had joined."""
    published = {
        each.event: each.true_ns or 0
        for each in rows
        if each.action == "published" and (each.true_ns or 0) >= START_NS
    }
    given = [
        each
        for each in rows
        if each.action == "delivered" and each.event in published and not each.verdict
    ]
    took = sorted(((each.true_ns or 0) - published[each.event]) / MS for each in given)
    sent = [
        each
        for each in rows
        if each.action == "sent" and START_NS <= (each.true_ns or 0) < load.end_ns
    ]
    count = max(1, len(given))
    return {
        "latency, mean ms": sum(took) / count,
        "median, ms": took[len(took) // 2] if took else 0.0,
        "99 %, ms": took[int(0.99 * (len(took) - 1))] if took else 0.0,
        "longest, ms": took[-1] if took else 0.0,
        "messages a delivery": len(sent) / count,
        "bytes a delivery": sum(each.bytes or 0 for each in sent) / count,
        "not delivered, %": 100 * (1 - len(given) / (len(published) * SUBSCRIBERS)),
    }
