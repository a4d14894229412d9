"""`ensue swarm` and `ensue replay`."""

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.cli.helpers import Shell

from ensue.checkers import check
from ensue.cli import narration, seed_pool
from ensue.core import trace
from ensue.simulation import run
from ensue.simulation.run import Outcome
from ensue.simulation.scenario import Change, Scenario, SubscriberSpec
from ensue.simulation.seeds import DRAWS, play_seed


def with_phantom(outcome: Outcome) -> Outcome:
    """Return the same run without the publication of its first delivered event."""
    event = next(row.event for row in outcome.rows if row.action == "delivered")
    rows = [row for row in outcome.rows if (row.action, row.event) != ("published", event)]
    return msgspec.structs.replace(outcome, rows=rows, report=check(rows, "total", lossy=True))


def plant(monkeypatch: pytest.MonkeyPatch, failing: Iterable[int], *, stuck: bool = False) -> None:
    """Make some seeds fail."""
    play, failing = run.play, set(failing)

    def planted(scenario: Scenario, seed: int) -> Outcome:
        outcome = play(scenario, seed)
        if seed not in failing:
            return outcome
        if stuck:
            return msgspec.structs.replace(outcome, stuck=("subscriber-0 waits for 3 events",))
        return with_phantom(outcome)

    monkeypatch.setattr(run, "play", planted)


def test_swarm_without_failures_exits_with_0(shell: Shell) -> None:
    report = shell("swarm", "total", "--seeds", "5:17", "--jobs", 2, "--json").json()
    assert (report["seeds"], report["failures"], report["interrupted"]) == (12, [], False)
    assert (report["first_seed"], report["last_seed"]) == (5, 16)
    assert report["events"] > 100
    assert report["seeds_per_hour"] > 0
    assert report["steps_per_second"] > 0
    ended = shell("swarm", "total", "--seeds", "5:7", "--jobs", 1)
    assert ended.code == 0
    assert "2 of 2" in ended.stdout


def test_number_of_processes_does_not_change_results() -> None:
    chosen = range(30, 42)
    total = partial(play_seed, "total")
    assert list(seed_pool.play_all(total, chosen, 1)) == list(seed_pool.play_all(total, chosen, 3))


def test_failure_stops_the_swarm_and_prints_the_replay_command(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, {3, 5})
    ended = shell("swarm", "total", "--seeds", "0:9", "--jobs", 1)
    assert ended.code == 1
    assert "seed 3 failed:" in ended.stdout
    assert "complete (phantom): " in ended.stdout
    assert "\nreplay: ensue replay total --seed 3\n" in ended.stdout
    assert "seed 5" not in ended.stdout
    assert "4 of 9" in ended.stdout


def test_keep_going_reports_every_failure(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, {3, 5}, stuck=True)
    ended = shell("swarm", "total", "--seeds", "0:7", "--jobs", 1, "--keep-going", "--json")
    assert ended.code == 1
    report = ended.json()
    assert [one["seed"] for one in report["failures"]] == [3, 5]
    assert report["failures"][0]["sentences"][0] == "stuck: subscriber-0 waits for 3 events"
    assert report["failures"][1]["replay"] == "ensue replay total --seed 5"
    assert report["seeds"] == 7


def test_exception_is_a_failure_of_its_seed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Scenario, seed: int) -> Outcome:
        raise AssertionError(f"planted in {seed}")

    monkeypatch.setattr(run, "play", broken)
    ended = shell("swarm", "total", "--seeds", "8:9", "--jobs", 1)
    assert ended.code == 1
    assert "raised AssertionError: planted in 8 (" in ended.stdout
    assert "replay: ensue replay total --seed 8" in ended.stdout
    ended = shell("replay", "total", "--seed", 8)
    assert ended.code == 1
    assert "raised AssertionError: planted in 8 (" in ended.stdout
    assert "Traceback" not in ended.stderr
    assert "Traceback" in shell("replay", "total", "--seed", 8, "--verbose").stderr
    assert shell("replay", "total", "--seed", 8, "--json").json()["verdict"] == "invalid"


def test_trace_of_the_failing_seed_is_written(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch, {2})
    ended = shell("swarm", "total", "--seeds", "0:4", "--jobs", 1, "--trace", tmp_path / "t")
    assert f"trace of seed 2: {tmp_path / 't' / 'trace.parquet'}" in ended.stdout
    (line,) = [each for each in ended.stdout.splitlines() if each.startswith("check: ")]
    words = shlex.split(line)[2:]
    assert words[:4] == ["check", str(tmp_path / "t"), "--order", "total"]
    assert shell(*words).code == 1


def test_single_seed_is_played(shell: Shell) -> None:
    report = shell("swarm", "total", "--seeds", "5", "--jobs", 1, "--json").json()
    assert (report["seeds"], report["first_seed"], report["last_seed"]) == (1, 5, 5)


def test_interrupted_swarm_prints_its_totals(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    play = run.play

    def until_three(scenario: Scenario, seed: int) -> Outcome:
        if seed == 3:
            raise KeyboardInterrupt
        return play(scenario, seed)

    monkeypatch.setattr(run, "play", until_three)
    ended = shell("swarm", "total", "--seeds", "0:9", "--jobs", 1)
    assert ended.code == 2
    assert "interrupted; until then:" in ended.stdout
    assert "3 of 9" in ended.stdout


def test_ctrl_c_ends_all_processes() -> None:
    # Progress is printed after every seed: the first line shows that the swarm has started.
    # The handler is set because background jobs of a shell ignore SIGINT.
    source = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from ensue.cli import main, seed_pool; seed_pool.PLAIN_SECONDS = 0; main()"
    )
    words = ["swarm", "total", "--seeds", "0:1000000", "--jobs", "2"]
    with subprocess.Popen(
        [sys.executable, "-c", source, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("swarm total: 1 of 1000000")
        process.send_signal(signal.SIGINT)
        # Returns only after every process has closed the inherited pipes.
        out, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "interrupted; until then:" in out
    assert "Traceback" not in err


def test_closed_stdout_does_not_change_the_exit_code() -> None:
    source = "from ensue.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", source, "replay", "total", "--seed", "3", "--verbose"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


@pytest.mark.parametrize("text", ["5:5", "9:5", "5:", "a:b", ":5", "-1:5", ""])
def test_invalid_seeds_are_rejected(shell: Shell, text: str) -> None:
    ended = shell("swarm", "total", f"--seeds={text}")
    assert ended.code == 2
    assert ended.stderr.startswith(f"ensue: --seeds: {text!r} is not a range of seeds; ")


def test_replay_describes_the_scenario_and_repeats_the_run(shell: Shell, tmp_path: Path) -> None:
    ended = shell("replay", "total", "--seed", 3, "--trace", tmp_path / "t")
    assert ended.code == 0
    assert ended.stdout.startswith("swarm-total: order total, ")
    assert "subscriber subscriber-0 of " in ended.stdout
    assert f"check: ensue check {tmp_path / 't'} --order total" in ended.stdout
    rows = run.play(DRAWS["total"](3), 3).rows
    assert trace.digest(trace.read(tmp_path / "t")) == trace.digest(rows)


def test_replay_of_a_failure_shows_the_rows_around_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, {3})
    ended = shell("replay", "total", "--seed", 3)
    assert ended.code == 1
    head, _, rows = ended.stdout.partition("around it:\n")
    assert "invalid" in head
    assert " delivered " in rows
    assert "all rows:" not in rows
    verbose = shell("replay", "total", "--seed", 3, "--verbose").stdout
    assert len(verbose) > len(ended.stdout)


def test_replay_of_a_stuck_run_shows_the_last_rows_of_stuck_nodes(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, {3}, stuck=True)
    ended = shell("replay", "total", "--seed", 3)
    assert ended.code == 1
    assert "stuck: subscriber-0 waits for 3 events" in ended.stdout
    rows = ended.stdout.partition("around it:\n")[2].splitlines()
    assert {line.split()[1] for line in rows if line.strip()} == {"subscriber-0"}


@pytest.mark.parametrize("seed", range(40))
def test_every_scenario_can_be_described(seed: int) -> None:
    scenario = DRAWS["total"](seed)
    report = "\n".join(narration.scenario_lines(scenario))
    for group in (scenario.chain, scenario.ens, scenario.publishers, scenario.subscribers):
        for each in group:
            assert each.name in report
    times = [
        float(line.split("s")[0])
        for line in report.splitlines()
        if line[2:11].strip()[:1].isdigit()
    ]
    assert times == sorted(times)


def test_leaving_and_joining_at_once_is_described_in_order() -> None:
    change = Change(at_ns=1_000_000_000, subscribe=("a", "b"), unsubscribe=("a",))
    reader = SubscriberSpec(name="reader", topics=("a",), changes=(change,))
    scenario = Scenario(name="small", subscribers=(reader,))
    assert "    at 1s leaves a, then joins a, b" in narration.scenario_lines(scenario)


@pytest.mark.parametrize(("kept", "scope"), [(True, "across topics"), (False, "within a topic")])
def test_scope_of_a_publishers_order_is_described(kept: bool, scope: str) -> None:
    scenario = DRAWS["total"](1)
    sequencer = msgspec.structs.replace(scenario.sequencer, publisher_order=kept)
    scenario = msgspec.structs.replace(scenario, sequencer=sequencer)
    assert f"publishers' order kept {scope}" in "\n".join(narration.scenario_lines(scenario))


@pytest.mark.parametrize("protocol", sorted(DRAWS))
def test_seed_of_any_protocol_can_be_replayed(shell: Shell, protocol: str) -> None:
    ended = shell("replay", protocol, "--seed", 3)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout.split()[-2:] == ["all", "valid"]
