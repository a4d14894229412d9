"""The comparison with peers: it runs, detects a wrong order, and ends all its processes."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.peers import report
from benchmarks.peers.cases import CASES
from benchmarks.peers.measurement import Crew, Figures, Shape
from benchmarks.peers.processes import Failed, find_server
from benchmarks.peers.report import TIMES
from benchmarks.peers.tally import PAYLOAD_BYTES, Tally, make_batch

ROOT = Path(__file__).parents[2]
TOPICS = ("one", "two")
COMMAND = (sys.executable, "-W", "error", "-m", "benchmarks.peers")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"}

pytestmark = pytest.mark.timeout(600)
"""Each case starts five processes or more, which takes its time on a busy machine."""


@pytest.mark.parametrize(
    ("server", "cases"),
    [
        ("", ("ensue", "hub")),
        pytest.param("nats-server", ("ensue-nats", "jetstream-one"), marks=pytest.mark.verify),
        pytest.param("redis-server", ("redis", "redis-pubsub"), marks=pytest.mark.verify),
    ],
)
def test_it_runs_and_prints_its_tables(server: str, cases: Sequence[str], tmp_path: Path) -> None:
    if server and find_server(server) is None:
        pytest.skip(f"{server} is not installed: `make brokers` installs it")
    done = subprocess.run(
        [
            *COMMAND,
            "--quick",
            "--events",
            "200",
            "--seconds",
            "0.1",
            "--profile",
            str(tmp_path),
            "--only",
            *cases,
        ],
        env=ENVIRONMENT,
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    labels = [case.label for case in CASES if case.name in cases]
    for label in (*labels, "cores", "Python 3", "quick: figures are rough", "| goal | wanted |"):
        assert label in done.stdout
    rows = [
        line
        for line in done.stdout.splitlines()
        if line.startswith(tuple(f"| {each} |" for each in labels))
    ]
    assert len(rows) == len(cases)
    assert all("failed" not in row for row in rows)
    for name in cases:
        profiles = list((tmp_path / f"{name}-1x2").iterdir())
        assert len(profiles) >= 4
        assert all("of CPU in" in each.read_text(encoding="utf-8") for each in profiles)


@pytest.mark.skipif(shutil.which("pgrep") is None, reason="pgrep lists children")
def test_whoever_stops_it_stops_everything() -> None:
    running = subprocess.Popen(
        [*COMMAND, "--only", "ensue", "--seconds", "60"],
        env=ENVIRONMENT,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while len(started := children(running.pid)) < 5:
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) != 0
        assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    finally:
        running.kill()
        running.wait()


def children(pid: int) -> list[int]:
    listed = subprocess.run(
        ["pgrep", "-P", str(pid)], capture_output=True, encoding="ascii", check=False
    )
    return [int(line) for line in listed.stdout.split()]


def tally_of(payloads: Sequence[bytes], wanted: int) -> dict[str, object]:
    async def run() -> dict[str, object]:
        tally = Tally(asyncio.get_running_loop())
        tally.expect(len(payloads), timed=True)
        for payload in payloads[:2]:
            tally.take(payload)
        tally.take_all(payloads[2:])
        assert (await tally.wait(5))["arrived"] == len(payloads)
        return tally.result(publishers=1, start=0, stop=wanted)

    return asyncio.run(run())


def published(count: int) -> list[bytes]:
    return [payload for _, payload in make_batch(TOPICS, 0, 0, count)]


def test_a_batch_goes_round_the_topics() -> None:
    batch = make_batch(TOPICS, 1, 0, 4)
    assert [topic for topic, _ in batch] == ["two", "one", "two", "one"]
    assert {len(payload) for _, payload in batch} == {PAYLOAD_BYTES}


def test_a_tally_sees_what_is_missing_repeated_and_overtaken() -> None:
    events = published(6)
    good = tally_of(events, 6)
    assert (good["missing"], good["repeated"], good["overtaken"]) == (0, 0, 0)
    lost = tally_of(events[:3] + events[4:], 6)
    assert (lost["missing"], lost["repeated"], lost["overtaken"]) == (1, 0, 0)
    twice = tally_of([*events, events[2]], 6)
    assert (twice["missing"], twice["repeated"], twice["overtaken"]) == (0, 1, 1)
    swapped = tally_of([events[1], events[0], *events[2:]], 6)
    assert (swapped["missing"], swapped["repeated"], swapped["overtaken"]) == (0, 0, 1)
    assert len({str(each["order"]) for each in (good, lost, twice, swapped)}) == 4


def test_a_tally_that_waits_in_vain_says_how_many_came() -> None:
    async def run() -> dict[str, object]:
        tally = Tally(asyncio.get_running_loop())
        tally.expect(3, timed=False)
        tally.take_all(published(2))
        return await tally.wait(0.01)

    assert asyncio.run(run())["arrived"] == 2


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"missing": 1}, "1 missing"),
        ({"repeated": 2}, "2 repeated"),
        ({"overtaken": 3}, "3 overtaken"),
    ],
)
def test_ensue_is_judged_and_peers_are_not(fault: dict[str, int], said: str) -> None:
    clean = {"missing": 0, "repeated": 0, "overtaken": 0}
    by_name = {case.name: case for case in CASES}
    judge = Crew(by_name["ensue"], (), (), ())._judge
    judge([clean, clean], same_order=True)
    with pytest.raises(Failed, match=said):
        judge([clean, {**clean, **fault}], same_order=True)
    with pytest.raises(Failed, match="different orders"):
        judge([clean, clean], same_order=False)
    Crew(by_name["nats"], (), (), ())._judge([{**clean, **fault}], same_order=False)


def figures(rate: float, p50_ms: float) -> Figures:
    kinds = {"servers": 1.0, "publishers": 2.0, "subscribers": 3.0}
    latency = (p50_ms, 2 * p50_ms)
    return Figures(
        rate, 6.0, kinds, 9.0, latency, latency, fell_behind=False, same_order=True, overtaken=0
    )


def test_goals_are_ratios_of_medians() -> None:
    shape = Shape(1, 2)
    found = {
        ("ensue", shape): [figures(100, 1.0), figures(300, 1.0), figures(200, 1.0)],
        ("nats", shape): [figures(100, 0.4)],
        ("redis-one", shape): [figures(150, 1.0)],
    }
    lines = report.goals(found, shape)
    assert (
        f"| Ensue, synced each second: rate against NATS | ≥ 1 {TIMES} | 2.00 {TIMES} | yes |"
        in lines
    )
    assert f"| … against Redis in one stream | ≥ 1.5 {TIMES} | 1.33 {TIMES} | no |" in lines
    assert f"| … p50 at 1,000/s against NATS | ≤ 2 {TIMES} | 2.50 {TIMES} | no |" in lines
    assert f"| … against the Python hub | ≥ 0.15 {TIMES} | not measured | |" in lines


def test_a_table_has_a_row_for_each_case_and_says_which_failed() -> None:
    shape = Shape(1, 2)
    lines = report.table({("hub", shape): [figures(1000, 0.5)]}, {("nats", shape): "lost"}, shape)
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| NATS | per topic | failed |")
    assert "| 1,000 | 6.0 | 1.0, 2.0, 3.0 | 9 | 0.50, 1.00 | 0.50, 1.00 | yes |" in lines[3]


def test_what_a_slow_subscriber_costs_the_others_is_printed() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "benchmarks.slow_consumer", "--quick"],
        env=ENVIRONMENT,
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in ("none", "good", "stopped", "slow"):
        assert f"\n| {kind} | " in done.stdout
    assert "goal, stopped: " in done.stdout
    assert "goal, slow: " in done.stdout
