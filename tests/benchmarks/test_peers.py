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
from benchmarks.peers.cases import CASES
from benchmarks.peers.hub import Framed, framed
from benchmarks.peers.measurement import FIRST, TASKS, Crew, Shape
from benchmarks.peers.processes import Failed, find_server
from benchmarks.peers.run import Run
from benchmarks.peers.tally import (
    HEAD_BYTES,
    KEPT_BYTES_MAX,
    PAYLOAD_BYTES,
    Tally,
    make_batch,
    sampled,
)

from benchmarks import record

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
            "--json",
            str(tmp_path / "run.json"),
            "--shapes",
            FIRST.short,
            "1x3x1000",
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
    by_name = {case.name: case for case in CASES}
    receipts = [name for name in cases if by_name[name].has_receipts]
    # One in the table of each shape, and one in that of receipts.
    assert len(rows) == 2 * len(cases) + len(receipts)
    assert all("failed" not in row for row in rows)
    run = record.read(tmp_path / "run.json", Run, "benchmarks.peers")
    assert run.quick
    assert run.shapes == [FIRST, Shape(1, 3, 1_000)]
    for each in run.measured:
        awaits = each.shape == FIRST and each.case in receipts
        assert [one.tasks for one in each.figures.awaited] == (list(TASKS) if awaits else [])
        assert all(one.rate > 0 and one.receipt_ms[0] > 0 for one in each.figures.awaited)
    for name in cases:
        profiles = list((tmp_path / f"{name}-1x2").iterdir())
        assert len(profiles) >= 4
        assert all("of CPU in" in each.read_text(encoding="utf-8") for each in profiles)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--shapes", "0x2", "expected PUBLISHERSxTOPICS or PUBLISHERSxTOPICSxBYTES"),
        ("--shapes", "2", "got '2'"),
        ("--shapes", "1x2x9", "payloads have 14 to 1,000,000 bytes, got 9"),
        ("--rounds", "0", "expected a whole number above 0, got '0'"),
        ("--events", "some", "expected a whole number above 0, got 'some'"),
        ("--seconds", "nan", "expected seconds above 0, got 'nan'"),
        ("--json", "nowhere/run.json", "expected a file in an existing directory"),
        ("--only", "kafka", "invalid choice: 'kafka'"),
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
        assert (await tally.wait(5))["missing"] == 0
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


@pytest.mark.parametrize("size", [HEAD_BYTES, KEPT_BYTES_MAX, KEPT_BYTES_MAX + 1, 10_000])
def test_a_tally_keeps_little_of_large_payloads_and_sees_the_same(size: int) -> None:
    batch = [payload for _, payload in make_batch(TOPICS, 0, 0, 6, size)]
    assert {len(payload) for payload in batch} == {size}

    async def run() -> tuple[dict[str, object], int]:
        tally = Tally(asyncio.get_running_loop())
        tally.expect(5, timed=True, payload_bytes=size)
        tally.take(batch[1])
        tally.take_all([batch[0], *batch[3:]])
        assert (await tally.wait(5))["missing"] == 0
        kept = max(len(payload) for payload in tally._payloads)
        return tally.result(publishers=1, start=0, stop=6), kept

    result, kept = asyncio.run(run())
    assert (result["missing"], result["repeated"], result["overtaken"]) == (1, 0, 1)
    assert len(str(result["order"])) == 64
    assert kept <= KEPT_BYTES_MAX


def test_a_sample_of_durations_is_even_and_sorted() -> None:
    assert sampled([3, 1, 2]) == [1, 2, 3]
    many = sampled(range(12_000, 0, -1))
    assert len(many) == 4_000
    assert many[:2] == [2, 5]
    assert many[-1] == 11_999


def test_a_tally_that_waits_in_vain_says_how_many_are_missing() -> None:
    async def run() -> dict[str, object]:
        tally = Tally(asyncio.get_running_loop())
        tally.expect(3, timed=False)
        tally.take_all(published(2))
        return await tally.wait(0.01)

    assert asyncio.run(run())["missing"] == 1


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


@pytest.mark.parametrize("size", [1, 3, 4, 5, 7, 100])
def test_the_hub_splits_its_input_wherever_it_is_cut(size: int) -> None:
    messages = [b"", b"a", b"bcd" * 20, b"", b"e"]
    data = b"".join(framed(message) for message in messages)
    connection = Framed()
    found = [
        message
        for at in range(0, len(data), size)
        for message in connection.cut(data[at : at + size])
    ]
    assert found == messages
