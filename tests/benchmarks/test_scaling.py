"""Costs by topics, subscribers and runs: layouts, what is judged, and the tables."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.peers.goals import TIMES
from benchmarks.scaling.layout import PARTS, QUICK_PARTS, Layout
from benchmarks.scaling.measurement import Figures
from benchmarks.scaling.run import Failure, Measured, Run, table
from tests.benchmarks.runs import MACHINE

from benchmarks import record

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-W", "error", "-m", "benchmarks.scaling")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"}

pytestmark = pytest.mark.timeout(600)
"""Each layout starts four processes, which takes its time on a busy machine."""


def test_it_runs_and_prints_its_tables(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    done = subprocess.run(
        [
            *COMMAND,
            "--quick",
            "--events",
            "300",
            "--only",
            "overlapping",
            "--json",
            str(path),
        ],
        env=ENVIRONMENT,
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for label in ("### Subscribers of 20 topics", "quick: figures are rough", "server MB"):
        assert label in done.stdout
    assert "FAILED" not in done.stdout + done.stderr
    run = record.read(path, Run, "benchmarks.scaling")
    assert run.quick
    assert [each.layout.subscribers for each in run.measured] == [1, 10]
    for each in run.measured:
        figures = each.figures
        assert min(figures.server_us, figures.publisher_us, figures.subscribers_us) > 0
        assert figures.memory_peak >= figures.memory_before > 1_000_000


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--only", "planets", "invalid choice: 'planets'"),
        ("--rounds", "-1", "expected a whole number above 0, got '-1'"),
        ("--events", "0", "expected a whole number above 0, got '0'"),
        ("--seconds", "0", "expected seconds above 0, got '0'"),
        ("--json", ".", "expected a file in an existing directory, got '.'"),
    ],
)
def test_bad_arguments_are_refused_by_name(option: str, value: str, said: str) -> None:
    done = subprocess.run(
        [*COMMAND, option, value],
        env=ENVIRONMENT,
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 2
    assert f"argument {option}: " in done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    ("pattern", "subscribers", "copies"),
    [
        ("same", 3, 3),
        ("disjoint", 1, 1),
        ("disjoint", 5, 1),
        ("overlapping", 1, 1),
        ("overlapping", 2, 2),
        ("overlapping", 5, 2),
    ],
)
@pytest.mark.parametrize("run", [1, 3])
def test_every_event_has_its_number_of_subscribers(
    pattern: str, subscribers: int, copies: int, run: int
) -> None:
    layout = Layout(20, subscribers, pattern, run)
    assert layout.copies == copies
    topics = [layout.topics_of(number) for number in range(subscribers)]
    assert all(sum(name in each for each in topics) == copies for name in layout.names)
    assert all(topics)
    events = [layout.events_of(number, 7, 200) for number in range(subscribers)]
    assert sum(map(len, events)) == 193 * copies
    for mine, names in zip(events, topics, strict=True):
        published = [layout.round[number % len(layout.round)] for number in mine]
        assert set(published) == set(names)


def test_neighbors_of_a_disjoint_layout_are_strangers_and_runs_stay_whole() -> None:
    layout = Layout(6, 3, "disjoint", 2)
    assert layout.topics_of(1) == ["topic-1", "topic-4"]
    assert layout.events_of(1, 0, 12) == [2, 3, 8, 9]
    assert Layout.parse(layout.words) == layout


def test_the_full_form_has_the_sizes_of_its_goal() -> None:
    by_name = {part.name: part.layouts for part in PARTS}
    assert [each.topics for each in by_name["topics"]] == [10, 100, 1_000, 10_000]
    assert [each.topics for each in by_name["topics-disjoint"]] == [10, 100, 1_000, 10_000]
    for name in ("disjoint", "overlapping", "same"):
        assert [each.subscribers for each in by_name[name]] == [1, 10, 100, 500]
    assert [each.run for each in by_name["runs"]] == [1, 10, 100]
    assert [part.name for part in QUICK_PARTS] == list(by_name)


def cost(server_us: float) -> Figures:
    return Figures(
        rate=1_234.0,
        server_us=server_us,
        publisher_us=1.0,
        subscribers_us=2.0,
        subscribed_s=0.5,
        memory_before=50_000_000,
        memory_peak=75_400_000,
    )


def test_a_table_shows_growth_medians_and_what_failed() -> None:
    small, large, huge = (Layout(topics, 3, "same") for topics in (10, 100, 10_000))
    measured = [Measured("topics", large, cost(each)) for each in (17.0, 900.0, 5.0)]
    measured.insert(1, Measured("topics", small, cost(7.0)))
    run = Run(
        MACHINE,
        3,
        quick=False,
        titles={"topics": "Topics"},
        measured=tuple(measured),
        failures=(Failure("topics", huge, "refused: too | many\nof them"),),
    )
    lines = table(run, "topics")
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2:] == [
        f"| 10 | 3 | 1 | 3 | 1,234 | 10.0 | 1.00 {TIMES} | 7.0, 1.0, 2.0 | 50, 75 | 0.5 |",
        f"| 100 | 3 | 1 | 3 | 1,234 | 20.0 | 2.00 {TIMES} | 17.0, 1.0, 2.0 | 50, 75 | 0.5 |",
        "| 10,000 | 3 | 1 | 3 | refused: too / many of them |  |  |  |  |  |",
    ]
