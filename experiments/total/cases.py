"""Run the cases of the experiments on stamps."""

from collections.abc import Iterator

import numpy as np

from experiments.experiment import Case, Row, row
from experiments.total.servers import SERVICE_NS, Load, measure
from experiments.total.workload import TOPICS, counts_of, law, subscribe

__all__ = ["PATTERNS", "run_rates", "run_sizes"]

US, MS = 1_000, 1_000_000
PATTERNS = {0.901: "geographic", 0.349: "spray-and-diffuse"}
"""The paper's name of a popularity pattern, by shape."""


def run_sizes(case: Case) -> Iterator[Row]:
    """Figures 7 and 8: entries per stamp, each topic counted once."""
    shape, each = case["shape"], case["each"]
    chances = law(shape)
    random = np.random.default_rng([int(shape * 1000), case["subscribers"], each, case["seed"]])
    counts = counts_of(subscribe(chances, case["subscribers"], each, random))
    total = case["subscribers"] * each / 1000
    published = (counts >= 2).sum(axis=1)
    grouped = counts >= 1
    # A stamp names a partner topic if it had an event since the topic's own last event.
    named = (grouped * (chances / (chances + chances[:, None]))).sum(axis=1)
    yield row("7", f"published rules, {shape}", total, published.mean())
    yield row("7", f"ours, {shape}", total, named.mean())
    yield row("8", f"published rules, {shape}", total, published.std())
    yield row("8", f"ours, {shape}", total, named.std())
    yield row("events", f"published rules, {shape}", total, (published * chances).sum())
    yield row("events", f"ours, {shape}", total, (named * chances).sum())
    assert published.max() < TOPICS


def run_rates(case: Case) -> Iterator[Row]:
    """Figures 9 to 14: latency, throughput and traffic between servers."""
    system, pattern = case["system"], PATTERNS[case["shape"]]
    load = Load(
        shape=case["shape"],
        per_second=case["per_second"],
        each=case["each"],
        duration_ns=case["duration_ms"] * MS,
        seed=case["seed"],
        service_ns=case["service_us"] * US,
    )
    found = measure(system, load)
    if load.service_ns != SERVICE_NS:
        yield row("fast", f"{system}, {pattern}", case["per_second"], found.latency_ms)
        return
    subscribed = load.clients * case["each"] / 1000
    if case["each"] == 10:
        yield row(f"9 {pattern}", system, case["per_second"], found.latency_ms)
        yield row(f"10 {pattern}", system, case["per_second"], found.per_second)
    if case["per_second"] == 5000:
        yield row(f"13 {pattern}", system, subscribed, found.latency_ms)
        yield row(f"14 {pattern}", system, subscribed, found.per_second)
    if case["per_second"] == 1000 and case["each"] == 10:
        figure = "11" if case["shape"] == 0.901 else "12"
        for server, share in found.outgoing.items():
            yield row(figure, system, server - 1, 100 * share)
