"""Run the cases of the experiments with deadlines."""

from collections.abc import Iterator

from experiments.deadline.model import Load, gossip, reliable
from experiments.deadline.sizes import between_members, from_brokers
from experiments.experiment import Case, Row, row

__all__ = ["FIGURES", "run_bytes", "run_scale", "run_throughput"]

MS = 1_000_000
FIGURES = {20: "6a", 30: "6b", 40: "6c", 50: "6d"}
"""By percentage of perturbed members."""
SYSTEMS = {"gossip": gossip, "reliable group": reliable}


def run_throughput(case: Case) -> Iterator[Row]:
    """Figure 6: deliveries in order and on time as the group grows."""
    load = Load(
        subscribers=case["subscribers"],
        perturbed=case["perturbed"] / 100,
        duration_ns=case["duration_ms"] * MS,
    )
    found = SYSTEMS[case["system"]](load, case["seed"])
    figure = FIGURES[case["perturbed"]]
    yield row(figure, case["system"], case["subscribers"], 100 * found.on_time)
    curve = f"{case['system']}, {case['perturbed']} %"
    yield row("throughput", curve, case["subscribers"], found.per_second)
    if case["perturbed"] == 20:
        yield row("bytes", case["system"], case["subscribers"], found.bytes / 1000)
        yield row("busiest", case["system"], case["subscribers"], 100 * found.busiest)


def run_scale(case: Case) -> Iterator[Row]:
    """Measure groups larger than the paper's."""
    load = Load(
        subscribers=case["subscribers"],
        perturbed=0.2,
        per_second=5.0,
        duration_ns=case["duration_ms"] * MS,
        alpha=3,
        fan_out=4,
    )
    found = gossip(load, case["seed"])
    yield row("on time", "gossip", case["subscribers"], 100 * found.on_time)
    each = found.frames / case["subscribers"]
    yield row("frames", "gossip", case["subscribers"], each)
    yield row("rounds", "gossip", case["subscribers"], load.config.lifetime_rounds)


def run_bytes(case: Case) -> Iterator[Row]:
    """Count the bytes of ordering information in encoded frames."""
    size = case["size"]
    if case["among"] == "brokers":
        sizes = from_brokers(size)
        yield row("brokers", "to a broker, a number for each pair", size, sizes.plain)
        yield row("brokers", "to a broker, matrix whole", size, sizes.whole)
        yield row("brokers", "to a broker, as it travels", size, sizes.differences)
        yield row("brokers", "to a subscriber", size, sizes.rumor)
    else:
        yield row("members", "reliable group, 4 publish", size, between_members(size, 4))
        yield row("members", "reliable group, all publish", size, between_members(size, size))
