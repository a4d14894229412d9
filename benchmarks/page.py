"""The tables and the chart of the documentation, from recorded runs.

`benchmarks/results` has the runs that the documentation shows: `peers.json` of `benchmarks.peers`,
and `scaling.json` of `benchmarks.scaling`. This command writes what lies between the lines
`<!-- benchmark NAME -->` and `<!-- end -->` of `docs/explanation/benchmarks.md`, and
`docs/pictures/peers.svg`. With `--measure` it measures both first, which takes an hour and a half
on two idle cores.

    python -m benchmarks.page [--measure [--quick]] [--results DIR] [--docs DIR]

Run it from the root of the repository. The figures of `--quick` are rough: they need directories of
their own, and the documentation does not take them.
"""

import argparse
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from benchmarks.peers import chart, report
from benchmarks.peers import run as peers_run
from benchmarks.peers.measurement import FIRST
from benchmarks.peers.processes import ROOT
from benchmarks.scaling import run as scaling_run

from benchmarks import options, record

__all__ = ["fill", "write"]

RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs"
PAGE, CHART = Path("explanation", "benchmarks.md"), Path("pictures", "peers.svg")
PEERS, SCALING = "benchmarks.peers", "benchmarks.scaling"
COLUMNS = 100
NOT_MEASURED = "This run did not measure it."
ROUGH = "{path} is a quick run, whose figures are rough: the documentation does not take it"
BLOCK = re.compile(r"(?<=<!-- benchmark )([\w-]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


def write(results: Path, docs: Path) -> list[str]:
    """Write the page and the chart from recorded runs; return what failed in them."""
    blocks: dict[str, list[str]] = {}
    peers = _read(results, PEERS, peers_run.Run, docs)
    scaling = _read(results, SCALING, scaling_run.Run, docs)
    failed = []
    if peers is not None:
        blocks |= _peers(peers)
        failed += [f"{each.case}, {each.shape}: {each.why}" for each in peers.failures]
    if scaling is not None:
        blocks |= _scaling(scaling)
        failed += [f"{each.part}, {each.layout}: {each.why}" for each in scaling.failures]
    page = docs / PAGE
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise record.BadRecord(f"cannot read {page}: {error.strerror}: check --docs") from None
    page.write_text(fill(text, blocks), encoding="utf-8")
    if peers is not None:
        (docs / CHART).parent.mkdir(exist_ok=True)
        (docs / CHART).write_text(chart.draw(peers) + "\n", encoding="utf-8")
    return failed


def _read(
    results: Path, module: str, kind: type[record.Record], docs: Path
) -> "record.Record | None":
    """Return the recorded run of a benchmark, if there is one."""
    path = results / f"{module.rpartition('.')[2]}.json"
    if not path.exists():
        return None
    run = record.read(path, kind, f"python -m {module}")
    if getattr(run, "quick", False) and docs == DOCS:
        raise record.BadRecord(ROUGH.format(path=path))
    return run


def _peers(run: peers_run.Run) -> dict[str, list[str]]:
    awaited = report.awaited(run)
    return {
        "peers-machine": _wrapped(report.machine(run)),
        "peers-table": report.table(run, FIRST),
        "peers-rates": report.rates(run),
        "peers-awaited": awaited if len(awaited) > 2 else [NOT_MEASURED],
        "peers-goals": report.goals(run),
    }


def _scaling(run: scaling_run.Run) -> dict[str, list[str]]:
    tables: list[str] = []
    for name, title in run.titles.items():
        tables += ["", f"{title}:", "", *scaling_run.table(run, name)]
    return {"scaling": [*_wrapped(scaling_run.machine(run)), *tables]}


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(f"{text}.", COLUMNS, break_long_words=False, break_on_hyphens=False)


def fill(text: str, blocks: dict[str, list[str]]) -> str:
    """Replace blocks of a page, each of which it must have."""
    there = [found[1] for found in BLOCK.finditer(text)]
    if missing := sorted(blocks.keys() - set(there)):
        raise record.BadRecord(f"{PAGE} has no block <!-- benchmark {missing[0]} --> to fill")

    def filled(found: re.Match[str]) -> str:
        name = found[1]
        if name not in blocks:
            return found[0]
        return f"{name}{found[2]}\n" + "\n".join(blocks[name]) + "\n\n"

    return BLOCK.sub(filled, text)


def _measure(results: Path, *, quick: bool) -> int:
    """Measure both; return the exit code of the first that could not run at all."""
    for module in (PEERS, SCALING):
        path = results / f"{module.rpartition('.')[2]}.json"
        command = [sys.executable, "-m", module, "--json", str(path)]
        if quick:
            command.append("--quick")
        done = subprocess.run(command, cwd=ROOT, check=False)  # noqa: S603 - our own module
        # With 1 it wrote what it measured, and what failed.
        if done.returncode not in (0, 1):
            return done.returncode
    return 0


def main() -> int:
    """Read the options, measure if asked to, and write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--measure", action="store_true", help="measure first")
    parser.add_argument("--quick", action="store_true", help="measure roughly")
    parser.add_argument(
        "--results", type=options.directory, metavar="DIR", help="of runs; benchmarks/results"
    )
    parser.add_argument("--docs", type=options.directory, metavar="DIR", help="to fill; docs")
    chosen = parser.parse_args()
    results, docs = chosen.results or RESULTS, chosen.docs or DOCS
    if chosen.quick and not chosen.measure:
        parser.error("--quick says how to measure: add --measure")
    if chosen.quick and (results == RESULTS or docs == DOCS):
        parser.error("--quick needs --results and --docs: name a directory, and a copy of docs")
    if chosen.measure and (code := _measure(results, quick=chosen.quick)):
        return code
    try:
        failed = write(results, docs)
    except record.BadRecord as error:
        parser.error(str(error))
    for each in failed:
        sys.stderr.write(f"FAILED: {each}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
