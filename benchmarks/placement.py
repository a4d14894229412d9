"""Compare placed topics with hashed topics under the workloads of the paper.

Run `python benchmarks/placement.py`. 10,000 subscribers of 10 of 1,000 topics each, drawn by the
popularity laws of `stamp_sizes.py`. Nearly every topic is ordered with the most popular ones, so
one component has almost all topics and must be split. Then the same subscribers with interests:
each draws 95 % or 100 % of its topics from one of 40 fields of 25 topics, and a field has its
publishers at one of two sites.

The output has the share of stamps that never leave their node, hops per stamp, the share of events
at a node of their site, the load of the busiest node as a multiple of an even share, and seconds.
"""

import argparse
import os
import platform
import time
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ensue.spark import placement, session

if TYPE_CHECKING:
    from benchmarks.stamp_sizes import SHAPES, Size, Workload, pareto
else:  # As a script, it finds the module beside it by its bare name.
    from stamp_sizes import SHAPES, Size, Workload, pareto

NODES = 4
SITES = ("east", "west")
FIELDS = 40
FAITHFUL = (0.95, 1.0)
"""The chance that a topic is drawn from the subscriber's own field."""


class Drawn(msgspec.Struct, frozen=True):
    """Subscriptions, and the sites of publishers."""

    name: str
    subscriptions: list[tuple[str, str]]
    publications: list[tuple[str, str, float]]


def popular(shape: float, size: Size) -> Drawn:
    """Draw the workload of the paper, and the sites of its events."""
    work = Workload(shape, size)
    random = Random(f"placement {shape}")
    rows = zip(work.topics, pareto(size.topics, shape), strict=True)
    return Drawn(
        f"paper, shape {shape}",
        [(name, topic) for name, topics in work.subscriptions.items() for topic in topics],
        [(topic, random.choice(SITES), rate) for topic, rate in rows],
    )


def fields(faithful: float, size: Size) -> Drawn:
    """Draw subscribers with nearly all topics from one field."""
    random = Random(f"fields {faithful}")
    each = size.topics // FIELDS
    names = [[f"field-{field}/topic-{n}" for n in range(each)] for field in range(FIELDS)]
    bounds = list(accumulate(pareto(each, 0.349)))
    subscriptions: list[tuple[str, str]] = []
    for index in range(size.subscribers):
        own = random.randrange(FIELDS)
        chosen: dict[str, None] = {}
        while len(chosen) < min(size.each, each):
            field = own if random.random() < faithful else random.randrange(FIELDS)
            chosen[random.choices(names[field], cum_weights=bounds)[0]] = None
        subscriptions += [(f"subscriber-{index}", topic) for topic in chosen]
    publications = [
        (topic, SITES[field % len(SITES)], rate)
        for field, listed in enumerate(names)
        for topic, rate in zip(listed, pareto(each, 0.349), strict=True)
    ]
    return Drawn(f"fields, {faithful:.0%} faithful", subscriptions, publications)


def frame(
    spark: SparkSession, columns: tuple[str, ...], rows: Sequence[tuple[str | float, ...]]
) -> DataFrame:
    """Pass rows to Spark as columns, which needs no Python worker to read them."""
    values = zip(*rows, strict=True)
    return spark.createDataFrame(pa.table(dict(zip(columns, map(list, values), strict=True))))


def report(spark: SparkSession, drawn: Drawn, *, nodes: int) -> None:
    """Print the figures of one workload."""
    subscribed = frame(spark, ("subscriber", "topic"), drawn.subscriptions)
    published = frame(spark, ("topic", "site", "rate"), drawn.publications)
    named = {f"node-{index + 1}": SITES[index % len(SITES)] for index in range(nodes)}
    started_s = time.perf_counter()
    made = placement(subscribed, published, nodes=named)
    took_s = time.perf_counter() - started_s
    components = made.assignment.select("component").distinct().count()
    print(f"\n{drawn.name}: {components:,} components, {took_s:.1f} s\n{made}", flush=True)


def main() -> None:
    """Measure all workloads."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a tenth of the workload")
    parser.add_argument("--nodes", type=int, default=NODES)
    arguments = parser.parse_args()
    size = Size(topics=200, subscribers=1000) if arguments.quick else Size()
    print(f"Placement; {os.cpu_count()} cores; Python {platform.python_version()}")
    print(
        f"{size.topics:,} topics, {size.subscribers:,} subscribers of {size.each} topics each, "
        f"{arguments.nodes} nodes at {len(SITES)} sites"
        f"{' (quick: scaled down)' if arguments.quick else ''}"
    )
    spark = session("local[*]", app="ensue benchmark")
    for shape in SHAPES:
        report(spark, popular(shape, size), nodes=arguments.nodes)
    for faithful in FAITHFUL:
        report(spark, fields(faithful, size), nodes=arguments.nodes)
    spark.stop()


if __name__ == "__main__":
    main()
