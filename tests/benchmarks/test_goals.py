"""Goals and ratios of the comparison with peers, from small runs."""

import re
from pathlib import Path

import pytest
from benchmarks.peers import report
from benchmarks.peers.cases import CASES
from benchmarks.peers.goals import EVEN_SHAPES, GOALS, RATE, RATIOS, TIMES, share
from benchmarks.peers.measurement import FIRST, Shape
from benchmarks.peers.run import Failure, Run
from tests.benchmarks.runs import figures, run_of

from benchmarks import record

WIDE = Shape(1, 8)


def goal_rows(run: Run) -> dict[str, list[str]]:
    """The cells after a goal's name, by `ratio: figure`, in the order of the goals."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in report.goals(run)[2:]]
    named = {
        f"{goal.ratio.case}/{goal.ratio.peer}/{goal.ratio.figure.name}"
        + ("" if goal.shape == FIRST else f"/{goal.shape.short}"): row[1:]
        for goal, row in zip(GOALS, rows, strict=False)
    }
    kinds = [f"{shape.short}{kind}" for shape in EVEN_SHAPES for kind in ("", " rest")]
    return named | {kind: row[1:] for kind, row in zip(kinds, rows[-len(kinds) :], strict=True)}


def test_goals_are_ratios_of_medians_with_those_of_single_rounds() -> None:
    rows = goal_rows(
        run_of(
            {
                "ensue": [figures(100), figures(900), figures(400)],
                "nats": [figures(100), figures(100), figures(100)],
                "redis-one": [figures(90)],
            }
        )
    )
    assert rows["ensue/nats/events/s"] == [
        f"≥ 4 {TIMES}",
        f"4.00 {TIMES}",
        "1.00 to 9.00",
        "yes",
    ]
    assert rows["ensue/redis-one/events/s"] == [f"≥ 5 {TIMES}", f"4.44 {TIMES}", "", "no"]
    assert rows["ensue/hub/events/s"] == [f"≥ 0.35 {TIMES}", "not measured", "", ""]


def test_less_is_better_for_cpu_and_latency() -> None:
    rows = goal_rows(
        run_of(
            {
                "ensue": [figures(1, cpu_us=8.0, p50_ms=1.3)],
                "nats": [figures(1, cpu_us=40.0, p50_ms=1.0)],
            }
        )
    )
    assert rows["ensue//CPU per event"] == ["≤ 8 µs", "8.00 µs", "", "yes"]
    assert rows["ensue/nats/CPU per event"][1:] == [f"0.20 {TIMES}", "", "yes"]
    assert rows["ensue/nats/p50 at 1,000/s"] == [f"≤ 1.25 {TIMES}", f"1.30 {TIMES}", "", "no"]
    assert rows["ensue/nats/p50 at half load"][1:] == [f"1.30 {TIMES}", "", "yes"]
    assert rows["ensue/nats/CPU at 1,000/s"][1:] == [f"1.00 {TIMES}", "", "yes"]


def test_awaited_receipts_of_many_tasks_are_judged_against_redis() -> None:
    run = run_of(
        {
            "ensue": [figures(1, many_rate=3000)],
            "redis-one": [figures(1, many_rate=2000)],
            "nats": [figures(1)],
        }
    )
    name = "ensue/redis-one/events/s, 100 tasks that await receipts"
    assert goal_rows(run)[name] == [f"≥ 2 {TIMES}", f"1.50 {TIMES}", "", "no"]
    lines = report.awaited(run)
    assert lines[2:] == [
        "| Ensue, synced each second | 300 | 90 | 1.00, 2.00 | 3,000 | 30 | 1.00, 2.00 |",
        "| Redis, one stream | 200 | 90 | 1.00, 2.00 | 2,000 | 30 | 1.00, 2.00 |",
    ]


def test_large_payloads_are_judged_in_their_own_shape() -> None:
    large = Shape(1, 2, 10_000)
    run = run_of(
        {
            ("ensue", FIRST): [figures(100)],
            ("nats", FIRST): [figures(10)],
            ("ensue", large): [figures(9)],
            ("nats", large): [figures(10)],
        }
    )
    row = goal_rows(run)["ensue/nats/events/s/1x2x10000"]
    assert row == [f"≥ 1 {TIMES}", f"0.90 {TIMES}", "", "no"]


def even_run(**changed: float) -> Run:
    """Every case alike in the first shape and a wider one, but for one change in the wider one."""
    names = {name for ratio in RATIOS for name in (ratio.case, ratio.peer)}
    found = {}
    for name in sorted(names):
        found[name, FIRST] = [figures(100)]
        found[name, WIDE] = [figures(**{"rate": 100.0, **(changed if name == "ensue" else {})})]
    return run_of(found)


@pytest.mark.parametrize(
    ("changed", "kind", "measured", "met"),
    [
        ({}, "", "1.00", "yes"),
        ({}, " rest", "1.00", "yes"),
        ({"rate": 79.0}, "", "0.79 (ensue / nats, events/s)", "no"),
        ({"rate": 79.0}, " rest", "1.00", "yes"),
        ({"rate": 81.0}, "", "0.81 (ensue / nats, events/s)", "yes"),
        ({"p50_ms": 1.6}, " rest", "0.62 (ensue / nats, p50 at 1,000/s)", "no"),
        ({"p50_ms": 1.2}, " rest", "0.83 (ensue / nats, p50 at 1,000/s)", "yes"),
        ({"cpu_us": 12.0}, " rest", "0.50 (ensue / nats, CPU per event)", "no"),
        ({"cpu_us": 12.0}, "", "1.00", "yes"),
        ({"rate": 200.0, "cpu_us": 1.0, "p50_ms": 0.5}, "", "1.00", "yes"),
    ],
)
def test_a_shape_is_judged_by_its_worst_ratio(
    changed: dict[str, float], kind: str, measured: str, met: str
) -> None:
    row = goal_rows(even_run(**changed))[WIDE.short + kind]
    assert row[0] == "≥ 0.8 of the first shape's"
    assert row[1].startswith(measured)
    assert row[3] == met


def test_a_shape_with_ratios_missing_is_not_judged() -> None:
    run = run_of({("ensue", FIRST): [figures(1)], ("ensue", WIDE): [figures(1)]})
    rows = goal_rows(run)
    count = sum(ratio.figure == RATE for ratio in RATIOS)
    assert rows[WIDE.short][1:] == [f"0 of {count} measured", "", ""]
    assert rows[f"{WIDE.short} rest"][1:] == [f"0 of {len(RATIOS) - count} measured", "", ""]
    assert share(RATIOS[0], run, WIDE) is None


def test_ratios_by_shape_show_their_share() -> None:
    lines = report.ratios(even_run(rate=50.0))
    assert lines[0] == "| ratio | 1 publisher, 2 topics | 1 publisher, 8 topics |"
    row = f"| Ensue, synced each second / NATS: events/s | 1.00 {TIMES} | 0.50 {TIMES} (0.50) |"
    assert row in lines
    assert len(lines) == 2 + len(RATIOS)


def test_every_goal_names_cases_that_exist() -> None:
    names = {case.name for case in CASES} | {""}
    assert {name for goal in GOALS for name in (goal.ratio.case, goal.ratio.peer)} <= names
    assert len({(goal.ratio, goal.shape) for goal in GOALS}) == len(GOALS)


def test_a_table_has_a_row_for_each_case_and_says_which_failed() -> None:
    run = run_of({"hub": [figures(1000, p50_ms=0.5)]}, Failure("nats", FIRST, 1, "lost"))
    lines = report.table(run, FIRST)
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| NATS | per topic | failed |")
    assert "| 1,000 | 6.0 | 1.0, 2.0, 3.0 | 9 | 0.50, 1.00 | 0.50, 1.00 | yes |" in lines[3]
    assert report.rates(run)[2:] == ["| NATS | failed |", "| Python hub, memory only | 1,000 |"]


def test_the_machine_and_the_day_are_named() -> None:
    text = report.machine(run_of({}))
    for part in ("2026-01-02", "2 cores (Example CPU)", "no hiredis", "load average 0.2 at"):
        assert part in text


def test_a_run_is_written_and_read(tmp_path: Path) -> None:
    run = run_of(
        {("ensue", WIDE): [figures(1, many_rate=2), figures(3)]}, Failure("nats", WIDE, 2, "lost")
    )
    path = tmp_path / "run.json"
    record.write(run, path)
    assert record.read(path, Run, "benchmarks.peers") == run


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"machine": 1}'])
def test_a_file_that_is_no_run_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "run.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(record.BadRecord, match=re.escape(str(path))) as refused:
        record.read(path, Run, "python -m benchmarks.peers")
    assert f"write one with `python -m benchmarks.peers --json {path}`" in str(refused.value)
