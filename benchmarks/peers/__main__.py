"""Compares Ensue with its peers in one run: throughput, CPU time and latency.

Every case starts its servers, 3 subscribers of all topics and its publishers in separate processes.
After a warm-up it runs at full load, then at 1,000 events per second, and then at half of its
maximum. In the first shape (1 publisher, 2 topics, 100-byte payloads) publishers then wait for the
receipt of each event: one at a time, and in 100 tasks at once. A round runs all cases, every other
round in reverse.

- events/s: from the first publish to the last delivery at the last of the three subscribers; with
  receipts awaited, to the last receipt;
- CPU: user and system time of all processes, servers included, per event;
- latency: from the publish call to the subscriber, over all deliveries.

Ensue's subscribers check that no event is missing and that all three got the same order; if not,
the exit code is 1. For peers, missing events and different orders are only reported.

    python -m benchmarks.peers [--quick] [--only CASE…] [--shapes 1x2 4x8 1x2x1000…]
        [--rounds N] [--events N] [--seconds S] [--json FILE] [--profile DIR]

A shape is publishers x topics, and bytes of a payload if not 100. Run it from the root of the
repository, on an idle machine. `python -m benchmarks.page` makes tables and a chart for the
documentation from the file of `--json`.
"""

import argparse
import asyncio
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.peers import report
from benchmarks.peers.cases import CASES, Case, versions
from benchmarks.peers.goals import EVEN_SHAPES
from benchmarks.peers.measurement import FIRST, Settings, Shape, measure
from benchmarks.peers.processes import Failed
from benchmarks.peers.run import Failure, Measured, Run
from benchmarks.peers.tally import HEAD_BYTES, PAYLOAD_BYTES

from benchmarks import options, record

__all__: list[str] = []

SHAPES = (FIRST, *EVEN_SHAPES, Shape(1, 2, 10_000))
PAYLOAD_BYTES_MAX = 1_000_000
"""NATS accepts 1 MB, less its own headers."""


async def run(
    cases: list[Case], shapes: list[Shape], settings: Settings, rounds: int, *, quick: bool
) -> Run:
    """Measure all cases."""
    main = asyncio.current_task()
    assert main is not None
    # Ends all started processes.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    machine = record.this_machine(versions())
    measured: list[Measured] = []
    failures: list[Failure] = []
    for turn in range(rounds):
        for shape in shapes:
            for case in cases if turn % 2 == 0 else cases[::-1]:
                where = (case.name, shape, turn + 1)
                what = f"round {turn + 1}, {shape}, {case.name}"
                try:
                    figures = await measure(case, shape, settings)
                except Failed as failure:
                    failures.append(Failure(*where, str(failure)))
                    _tell(f"{what}: FAILED: {failure}")
                else:
                    measured.append(Measured(*where, figures))
                    _tell(f"{what}: {figures.rate:,.0f} events/s")
    note = "; quick: figures are rough" if quick else ""
    if settings.profile is not None:
        note += "; sampled"
    return Run(machine, rounds, quick, note, tuple(measured), tuple(failures))


def show(run: Run) -> None:
    """Print the tables."""
    print(report.machine(run))
    for shape in run.shapes:
        print(f"\n### {shape}\n")
        print("\n".join(report.table(run, shape)))
    if any(each.figures.awaited for each in run.measured):
        print(f"\n### Receipts awaited, {FIRST}\n")
        print("\n".join(report.awaited(run)))
    if len(run.shapes) > 1:
        print("\n### Ratios by shape\n")
        print("\n".join(report.ratios(run)))
    print("\n### Goals\n")
    print("\n".join(report.goals(run)))
    for failure in run.failures:
        where = f"round {failure.round}, {failure.shape}, {failure.case}"
        print(f"\nFAILED: {where}: {failure.why}")


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _shape(text: str) -> Shape:
    parts = text.split("x")
    if len(parts) not in (2, 3) or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(
            f"expected PUBLISHERSxTOPICS or PUBLISHERSxTOPICSxBYTES, such as 4x8 or 1x2x1000, "
            f"got {text!r}"
        )
    publishers, topics, payload_bytes = (*map(int, parts), PAYLOAD_BYTES)[:3]
    if not HEAD_BYTES <= payload_bytes <= PAYLOAD_BYTES_MAX:
        raise argparse.ArgumentTypeError(
            f"payloads have {HEAD_BYTES} to {PAYLOAD_BYTES_MAX:,} bytes, got {payload_bytes:,} "
            f"in {text!r}"
        )
    return Shape(publishers, topics, payload_bytes)


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
    parser.add_argument("--shapes", nargs="+", type=_shape, metavar="SHAPE", help="all six")
    parser.add_argument("--rounds", type=options.count, help="how often; 3")
    parser.add_argument(
        "--events", type=options.count, help="under full load; as many as take --seconds"
    )
    parser.add_argument("--seconds", type=options.seconds, help="how long each phase takes; 3")
    parser.add_argument(
        "--json", type=options.output, metavar="FILE", help="write all figures here"
    )
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
    found = asyncio.run(
        run(
            [case for case in cases if not case.missing],
            chosen.shapes or list((FIRST,) if quick else SHAPES),
            settings,
            chosen.rounds or (1 if quick else 3),
            quick=quick,
        )
    )
    if chosen.json is not None:
        record.write(found, chosen.json)
    show(found)
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
