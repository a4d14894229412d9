"""Measures what an event costs as topics, subscribers and runs grow, and the server's memory.

The server and the publisher are processes of their own. Subscribers have a connection each and
share two processes, so that 500 of them fit on a machine of two cores. Each row of a table is a
new server; a round goes through all of them, every other round in reverse.

- topics: 10 to 10,000, with 3 subscribers of all of them; and dealt out to 100 subscribers;
- disjoint, overlapping, same: 1 to 500 subscribers, where a topic has one, two, or all of them;
- runs: 1 to 100 events of a topic in a row.

Where topics are dealt out, neighboring ones belong to different subscribers. Every subscriber
checks that it gets exactly the events of its topics, in order; if not, the exit code is 1. A layout
that the server refuses, or that does not finish in time, has a row that says so.

    python -m benchmarks.scaling [--quick] [--only PART…] [--rounds N] [--events N] [--seconds S]
        [--json FILE]

Run it from the root of the repository, on an idle machine.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence

from benchmarks.peers.cases import versions
from benchmarks.peers.processes import Failed
from benchmarks.scaling.layout import PARTS, QUICK_PARTS, Part
from benchmarks.scaling.measurement import Settings, measure
from benchmarks.scaling.run import Failure, Measured, Run, machine, table

from benchmarks import options, record

__all__: list[str] = []


async def run(parts: Sequence[Part], settings: Settings, rounds: int, *, quick: bool) -> Run:
    """Measure all layouts."""
    main = asyncio.current_task()
    assert main is not None
    # Ends all started processes.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    here = record.this_machine([each for each in versions() if each.startswith("ensue ")])
    measured: list[Measured] = []
    failures: list[Failure] = []
    places = [(part.name, layout) for part in parts for layout in part.layouts]
    for turn in range(rounds):
        for name, layout in places if turn % 2 == 0 else places[::-1]:
            what = f"round {turn + 1}, {name}: {layout}"
            try:
                figures = await measure(layout, settings)
            except Failed as failure:
                failures.append(Failure(name, layout, str(failure)))
                _tell(f"{what}: FAILED: {failure}")
            else:
                measured.append(Measured(name, layout, figures))
                _tell(f"{what}: {figures.cpu_us:,.1f} µs an event")
    titles = {part.name: part.title for part in parts}
    return Run(here, rounds, quick, titles, tuple(measured), tuple(failures))


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def show(run: Run) -> None:
    """Print the tables."""
    print(machine(run))
    for name, title in run.titles.items():
        print(f"\n### {title}\n")
        print("\n".join(table(run, name)))
    for failure in run.failures:
        print(f"\nFAILED: {failure.part}: {failure.layout}: {failure.why}")


def main() -> int:
    """Read the options and measure."""
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one small round of small layouts")
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--rounds", type=options.count, help="how often; 3")
    parser.add_argument(
        "--events", type=options.count, help="under full load; as many as take --seconds"
    )
    parser.add_argument("--seconds", type=options.seconds, help="how long a layout is loaded; 3")
    parser.add_argument(
        "--json", type=options.output, metavar="FILE", help="write all figures here"
    )
    chosen = parser.parse_args()
    quick = chosen.quick
    settings = Settings(
        warm_up=200 if quick else 10_000,
        events=chosen.events or (1_000 if quick else None),
        seconds=chosen.seconds or (0.3 if quick else 3.0),
    )
    parts = [
        part
        for part in (QUICK_PARTS if quick else PARTS)
        if chosen.only is None or part.name in chosen.only
    ]
    found = asyncio.run(run(parts, settings, chosen.rounds or (1 if quick else 3), quick=quick))
    if chosen.json is not None:
        record.write(found, chosen.json)
    show(found)
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
