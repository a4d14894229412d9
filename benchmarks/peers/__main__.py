"""Compares Ensue with its peers in one run: throughput, CPU time and latency.

Every case starts its servers, 3 subscribers of all topics and its publishers in separate processes.
After a warm-up it runs at full load, then at 1,000 events per second, and then at half of its
maximum. A round runs all cases, every other round in reverse.

- events/s: from the first publish to the last delivery at the last of the three subscribers;
- CPU: user and system time of all processes, servers included, per event;
- latency: from the publish call to the subscriber, over all deliveries.

Ensue's subscribers check that no event is missing and that all three got the same order; if not,
the exit code is 1. For peers, missing events and different orders are only reported.

    python -m benchmarks.peers [--quick] [--only CASE…] [--shapes 1x2 4x8…] [--rounds N]
        [--events N] [--seconds S] [--profile DIR]

Run it from the root of the repository, on an idle machine.
"""

import argparse
import asyncio
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.peers import report
from benchmarks.peers.cases import CASES, Case
from benchmarks.peers.measurement import Figures, Settings, Shape, measure
from benchmarks.peers.processes import Failed

__all__: list[str] = []

SHAPES = (Shape(1, 2), Shape(1, 8), Shape(4, 2), Shape(4, 8))
QUICK_SHAPES = (Shape(1, 2),)


async def run(
    cases: list[Case], shapes: list[Shape], settings: Settings, rounds: int, note: str
) -> int:
    """Measure all cases and print the tables; return the exit code."""
    main = asyncio.current_task()
    assert main is not None
    # Ends all started processes.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    print(report.machine(rounds, note), flush=True)
    found: dict[tuple[str, Shape], list[Figures]] = {}
    failed: dict[tuple[str, Shape], str] = {}
    for turn in range(rounds):
        for shape in shapes:
            for case in cases if turn % 2 == 0 else cases[::-1]:
                where = (case.name, shape)
                what = f"round {turn + 1}, {shape}, {case.name}"
                try:
                    figures = await measure(case, shape, settings)
                except Failed as failure:
                    failed[where] = str(failure)
                    _tell(f"{what}: FAILED: {failure}")
                else:
                    found.setdefault(where, []).append(figures)
                    _tell(f"{what}: {figures.rate:,.0f} events/s")
    for shape in shapes:
        print(f"\n### {str(shape).capitalize()}\n")
        print("\n".join(report.table(found, failed, shape)))
    print(f"\n### Goals, {shapes[0]}\n")
    print("\n".join(report.goals(found, shapes[0])))
    for (name, shape), why in failed.items():
        print(f"\nFAILED: {name}, {shape}: {why}")
    return 1 if failed else 0


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _shape(text: str) -> Shape:
    publishers, _, topics = text.partition("x")
    return Shape(int(publishers), int(topics))


def main() -> int:
    """Read the options and measure."""
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one small round of one shape")
    parser.add_argument("--only", nargs="+", choices=names, metavar="CASE", help=", ".join(names))
    parser.add_argument("--shapes", nargs="+", type=_shape, metavar="PUBLISHERSxTOPICS")
    parser.add_argument("--rounds", type=int, help="how often everything is measured; 3")
    parser.add_argument("--events", type=int, help="under full load; as many as take --seconds")
    parser.add_argument("--seconds", type=float, help="how long each phase takes; 3")
    parser.add_argument(
        "--profile",
        type=Path,
        help="sample where each process spends its time, into this directory",
    )
    chosen = parser.parse_args()
    quick = chosen.quick
    settings = Settings(
        warm_up=200 if quick else 5_000,
        events=chosen.events or (2_000 if quick else None),
        seconds=chosen.seconds or (0.3 if quick else 3.0),
        profile=None if chosen.profile is None else chosen.profile.resolve(),
    )
    cases = [case for case in CASES if chosen.only is None or case.name in chosen.only]
    for case in cases:
        if case.missing:
            _tell(f"{case.name} is left out: {case.needs} is not installed (`make brokers`)")
    if any(case.needs == "redis-server" for case in cases) and find_spec("hiredis") is None:
        _tell(
            "hiredis is not installed: Redis' client costs 2 to 3 times as much (pip install "
            "hiredis)"
        )
    notes = "; quick: figures are rough" if quick else ""
    if settings.profile is not None:
        notes += "; sampled"
    return asyncio.run(
        run(
            [case for case in cases if not case.missing],
            chosen.shapes or list(QUICK_SHAPES if quick else SHAPES),
            settings,
            chosen.rounds or (1 if quick else 3),
            notes,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
