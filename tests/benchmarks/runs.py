"""Small runs of the comparison with peers, with figures that are easy to check."""

from collections.abc import Mapping, Sequence

from benchmarks.peers.measurement import FIRST, Awaited, Figures, Shape
from benchmarks.peers.run import Failure, Measured, Run
from benchmarks.record import Machine

__all__ = ["MACHINE", "figures", "run_of"]

MACHINE = Machine(
    day="2026-01-02",
    cores=2,
    cpu="Example CPU",
    python="3.11.7",
    versions=("redis-server 7.0", "no hiredis"),
    load=0.25,
)


def figures(
    rate: float, *, cpu_us: float = 6.0, p50_ms: float = 1.0, many_rate: float | None = None
) -> Figures:
    """Return results of one measurement."""
    latency = (p50_ms, 2 * p50_ms)
    awaited = (
        ()
        if many_rate is None
        else (Awaited(1, many_rate / 10, 90.0, latency), Awaited(100, many_rate, 30.0, latency))
    )
    return Figures(
        rate,
        cpu_us,
        {"servers": cpu_us / 6, "publishers": cpu_us / 3, "subscribers": cpu_us / 2},
        9.0,
        latency,
        latency,
        fell_behind=False,
        same_order=True,
        overtaken=0,
        awaited=awaited,
    )


def run_of(
    found: Mapping[str, Sequence[Figures]] | Mapping[tuple[str, Shape], Sequence[Figures]],
    *failures: Failure,
    quick: bool = False,
) -> Run:
    """Return a run with these rounds; names alone stand for the first shape."""
    measured = [
        Measured(*((where, FIRST) if isinstance(where, str) else where), number, each)
        for where, rounds in found.items()
        for number, each in enumerate(rounds, 1)
    ]
    return Run(MACHINE, 3, quick, "", tuple(measured), failures)
