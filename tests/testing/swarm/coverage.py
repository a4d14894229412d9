"""Lines of clients, servers, the runtime and the journal that the swarm of the whole stack runs.

    python -m tests.testing.swarm.coverage [--seeds A:B] [--orders NAME …] [--missing]

plays the seeds of each order in this process, and prints the share of lines for each package and
module. `--missing` lists the lines that no seed reached. It counts every statement, also those that
a simulation cannot reach: docs/explanation/simulator.md has these, with reasons.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import coverage
import msgspec

__all__ = ["PACKAGES", "Measured", "main", "measure"]

PACKAGES = ("client", "server", "runtime", "journal")
SOURCE = Path(__file__).parents[3] / "src" / "ensue"


class Measured(msgspec.Struct, frozen=True):
    """How many lines a module has, and which of them did not run."""

    module: str
    lines: int
    missing: tuple[int, ...]

    @property
    def package(self) -> str:
        """The package of Ensue that it belongs to."""
        return self.module.partition("/")[0]

    @property
    def runs(self) -> str:
        """The lines that did not run, as ranges."""
        found: list[list[int]] = []
        for line in self.missing:
            if found and line == found[-1][-1] + 1:
                found[-1][1:] = [line]
            else:
                found.append([line])
        return " ".join("-".join(map(str, each)) for each in found)


def measure(orders: Sequence[str], seeds: range) -> tuple[list[Measured], list[str]]:
    """Play seeds under coverage; return the modules, and the problems of the runs."""
    measuring = coverage.Coverage(
        data_file=None, config_file=False, source=[str(SOURCE / each) for each in PACKAGES]
    )
    # Nothing is left out of the figure.
    measuring.exclude(r"\A\Z")
    problems: list[str] = []
    measuring.start()
    try:
        # Imported late: lines that run at import count too.
        from ensue.testing.swarm.seeds import ORDERS, play_seed  # noqa: PLC0415 - as above

        for order in orders or ORDERS:
            for seed in seeds:
                result = play_seed(order, seed)
                problems += [f"{order} {seed}: {each}" for each in result.failure]
    finally:
        measuring.stop()
    return list(_modules(measuring)), problems


def _modules(measuring: coverage.Coverage) -> Iterator[Measured]:
    for package in PACKAGES:
        for path in sorted((SOURCE / package).rglob("*.py")):
            _, lines, _, missing, _ = measuring.analysis2(str(path))
            name = path.relative_to(SOURCE).as_posix()
            yield Measured(name, len(lines), tuple(missing))


def _row(name: str, modules: Sequence[Measured]) -> str:
    lines = sum(each.lines for each in modules)
    reached = lines - sum(len(each.missing) for each in modules)
    return f"{100 * reached / max(1, lines):6.1f} %  {reached:6,} of {lines:6,}  {name}"


def main(arguments: Sequence[str]) -> int:
    """Measure, and print what was reached; return 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.testing.swarm.coverage")
    parser.add_argument("--seeds", default="0:60", metavar="A:B")
    parser.add_argument("--orders", nargs="*", default=[])
    parser.add_argument("--missing", action="store_true", help="list the lines not reached")
    options = parser.parse_args(arguments)
    first, _, end = options.seeds.partition(":")
    modules, problems = measure(options.orders, range(int(first), int(end)))
    for package in PACKAGES:
        own = [each for each in modules if each.package == package]
        print(_row(f"{package}/", own))
        for module in own:
            print(_row(f"  {module.module}", [module]))
            if options.missing and module.missing:
                print(f"{'':26}  {module.runs}")
    print(_row("all", modules))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
