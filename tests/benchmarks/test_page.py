"""The page of benchmarks: made of recorded runs, and up to date."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.page import CHART, DOCS, PAGE, RESULTS, fill, write
from benchmarks.scaling.layout import Layout
from benchmarks.scaling.measurement import Figures
from benchmarks.scaling.run import Measured
from benchmarks.scaling.run import Run as ScalingRun
from tests.benchmarks.runs import MACHINE, figures, run_of

from benchmarks import record

ROOT = Path(__file__).parents[2]


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A copy of the page."""
    (tmp_path / "docs" / PAGE).parent.mkdir(parents=True)
    shutil.copy(DOCS / PAGE, tmp_path / "docs" / PAGE)
    return tmp_path / "docs"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A directory for runs."""
    path = tmp_path / "results"
    path.mkdir()
    return path


def scaling_run(*, quick: bool = False) -> ScalingRun:
    layout = Layout(10, 3, "same")
    cost = Figures(
        rate=1_000.0,
        server_us=1.0,
        publisher_us=2.0,
        subscribers_us=3.0,
        subscribed_s=0.1,
        memory_before=1_000_000,
        memory_peak=2_000_000,
    )
    return ScalingRun(
        MACHINE, 3, quick, {"topics": "Topics of all"}, (Measured("topics", layout, cost),)
    )


def test_the_page_and_the_chart_are_those_of_the_recorded_runs(docs: Path) -> None:
    write(RESULTS, docs)
    for name in (PAGE, CHART):
        remedy = f"{name} is not what `python -m benchmarks.page` writes: run it"
        assert (docs / name).read_text() == (DOCS / name).read_text(), remedy


def test_runs_become_tables_and_a_chart(docs: Path, results: Path) -> None:
    run = run_of(
        {
            "ensue": [figures(500, many_rate=300)],
            "nats": [figures(100)],
            "redis-one": [figures(100, many_rate=100)],
        }
    )
    record.write(run, results / "peers.json")
    record.write(scaling_run(), results / "scaling.json")
    assert write(results, docs) == []
    text = (docs / PAGE).read_text()
    for line in (
        "| Ensue, synced each second | total | 500 | 6.0 | 1.0, 2.0, 3.0 | 9 | ",
        "| NATS | 100 |",
        "| Redis, one stream | 10 | 90 | 1.00, 2.00 | 100 | 30 | 1.00, 2.00 |",
        "| … events/s against NATS | ≥ 4 \N{MULTIPLICATION SIGN} | 5.00 ",
        "Topics of all:",
        "| 10 | 3 | 1 | 3 | 1,000 | 6.0 | ",
    ):
        assert f"\n{line}" in text
    assert text.count(MACHINE.day) == 2
    assert "41,053" not in text
    assert all(
        len(line) <= 100 for line in text.splitlines() if line[:1] not in "|!" and "](" not in line
    )
    assert MACHINE.day in (docs / CHART).read_text()
    before = (DOCS / PAGE).read_text()
    block = re.compile(r"(?<=<!-- benchmark )([\w-]+) -->.*?<!-- end -->", re.DOTALL)
    assert block.sub("", text) == block.sub("", before)


def test_what_has_no_run_stays(docs: Path, results: Path) -> None:
    before = (docs / PAGE).read_text()
    assert write(results, docs) == []
    assert (docs / PAGE).read_text() == before
    assert not (docs / CHART).exists()


def test_only_named_blocks_are_filled() -> None:
    text = "a\n<!-- benchmark x -->\nold\n<!-- end -->\n<!-- benchmark y -->\n<!-- end -->\nb\n"
    filled = fill(text, {"y": ["new", "lines"]})
    assert filled == text.replace("y -->\n", "y -->\n\nnew\nlines\n\n")
    assert fill(filled, {"y": ["new", "lines"]}) == filled
    with pytest.raises(record.BadRecord, match="no block <!-- benchmark z -->"):
        fill(text, {"z": []})


def page(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.page", *arguments],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_rough_runs_are_refused_in_the_documentation(results: Path) -> None:
    record.write(scaling_run(quick=True), results / "scaling.json")
    before = (DOCS / PAGE).read_text()
    done = page("--results", str(results))
    assert done.returncode == 2
    assert f"{results / 'scaling.json'} is a quick run" in done.stderr
    assert (DOCS / PAGE).read_text() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--quick",), "--quick says how to measure: add --measure"),
        (("--measure", "--quick"), "--quick needs --results and --docs"),
        (("--results", "nowhere"), "argument --results: there is no directory 'nowhere'"),
        (("--docs", "nowhere"), "argument --docs: there is no directory 'nowhere'"),
        (("--docs", "benchmarks"), "benchmarks/explanation/benchmarks.md: No such file"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments: tuple[str, ...], said: str) -> None:
    done = page(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
