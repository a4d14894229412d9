"""`ensue sim`, and behavior common to all commands."""

import importlib.util
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.cli.helpers import Shell

from ensue.core import trace
from ensue.simulation import run
from ensue.store import open_log

EXAMPLES = Path(__file__).parents[2] / "examples" / "scenarios"

SMALL = """
duration = "300ms"
topics = ["a", "b"]
[[publishers]]
name = "publisher"
rates = [{ topics = ["a", "b"], per_second = 100 }]
[[subscribers]]
name = "reader"
count = 2
topics = ["a", "b"]
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_runs_unchanged(shell: Shell, path: Path) -> None:
    ended = shell("sim", path)
    assert ended.code == 0
    assert f"{path.stem}, seed 1" in ended.stdout
    assert "latency, 99th percentile" in ended.stdout
    if not re.search(
        r'^order = "(causal|deadline|transactions)"', path.read_text(encoding="utf-8"), re.MULTILINE
    ):
        # These orders have dependencies instead of stamps.
        assert "stamp bytes, mean" in ended.stdout
    assert ended.stderr == ""


def test_trace_depends_on_the_seed_only(shell: Shell, small: Path, tmp_path: Path) -> None:
    digests = []
    for name, seed in (("first", 7), ("again", 7), ("other", 8)):
        ended = shell("sim", small, "--seed", seed, "--trace", tmp_path / name)
        assert ended.code == 0
        assert f"trace: {tmp_path / name / 'trace.parquet'}" in ended.stdout
        digests.append(trace.digest(trace.read(tmp_path / name)))
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_recorded_run_has_a_trace_and_an_event_log(
    shell: Shell, small: Path, tmp_path: Path
) -> None:
    ended = shell("sim", small, "--record", tmp_path / "run")
    assert ended.code == 0
    assert f"ensue check {tmp_path / 'run'} " in ended.stdout
    published = {row.event for row in trace.read(tmp_path / "run") if row.action == "published"}
    log = open_log(tmp_path / "run")
    found = [
        event
        for topic, bounds in log.bounds().items()
        for batch in log.read(topic, *bounds, ["event"])
        for event in batch.column("event").to_pylist()
    ]
    assert len(found) == len(published)
    assert set(found) == published
    again = shell("sim", small, "--record", tmp_path / "run")
    assert again.code == 2
    assert "--record" in again.stderr
    both = shell("sim", small, "--record", tmp_path / "a", "--trace", tmp_path / "b")
    assert both.code == 2


def test_json_is_one_object_with_figures_and_the_report(shell: Shell, small: Path) -> None:
    ended = shell("sim", small, "--seed", 3, "--json")
    result = ended.json()
    assert ended.code == 0
    assert result["verdict"] == "valid"
    assert result["seed"] == 3
    assert result["statistics"]["events"] > 0
    assert result["statistics"]["held_count"] is None
    assert [one["checker"] for one in result["report"]["findings"]][:2] == ["fifo", "total"]
    assert result["trace"] is None


def test_recorded_frames_show_held_back_events(shell: Shell, small: Path, tmp_path: Path) -> None:
    result = shell("sim", small, "--frames", "--trace", tmp_path / "t", "--json").json()
    assert result["statistics"]["held_count"] is not None
    assert {"received", "sent"} <= {row.action for row in trace.read(tmp_path / "t")}


def test_run_without_deliveries_is_unknown(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "silent.toml"
    path.write_text('duration = "1s"', encoding="utf-8")
    ended = shell("sim", path)
    assert ended.code == 2
    assert "no deliveries" in ended.stdout or "empty" in ended.stdout


def test_run_that_can_not_settle_is_a_violation(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "hasty.toml"
    path.write_text('settle = "1ms"\n' + SMALL + '[network]\ndefault = "1s"', encoding="utf-8")
    ended = shell("sim", path)
    assert ended.code == 1
    assert "stuck: " in ended.stdout


def test_exception_inside_a_run_is_one_line(
    shell: Shell, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(run, "play", broken)
    ended = shell("sim", small)
    assert ended.code == 1
    assert ended.stdout.startswith("raised ZeroDivisionError: planted (")
    assert "Traceback" not in ended.stderr


def test_bad_input_is_one_line_on_stderr(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('duratoin = "1s"', encoding="utf-8")
    ended = shell("sim", path)
    problem = f"{path}: there is no key 'duratoin' here; did you mean 'duration'?"
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr == f"ensue: {problem}\n"
    assert shell("sim", path, "--json").json() == {"error": problem}


def test_directory_in_use_is_rejected_before_the_run(
    shell: Shell, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "play", lambda *_, **__: pytest.fail("was played"))
    ended = shell("sim", small, "--trace", small.parent)
    assert ended.code == 2
    assert ended.stderr == f"ensue: --trace: {small.parent} is not empty; name a new directory\n"
    ended = shell("sim", small, "--trace", small)
    assert ended.stderr == f"ensue: --trace: {small} is a file; name a directory\n"


def test_interrupt_exits_cleanly(
    shell: Shell, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "play", interrupted)
    ended = shell("sim", small)
    assert (ended.code, ended.stderr) == (2, "ensue: interrupted\n")


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (["sim"], "Missing argument"),
        (["sim", "x.toml", "--seed", "one"], "'--seed'"),
        (["sim", "x.toml", "--seed", "-1"], "'--seed'"),
        (["sim", "x.toml", "--sed", "1"], "No such option: --sed"),
        (["fly"], "No such command 'fly'"),
        (["swarm", "totl", "--seeds", "0:9"], "'totl' is not one of 'total'"),
        (["replay", "total"], "Missing option '--seed'"),
        (["check", "x"], "x does not exist"),
    ],
)
def test_error_names_the_invalid_option(shell: Shell, words: list[str], result: str) -> None:
    ended = shell(*words)
    assert ended.code == 2
    assert result in ended.stderr


@pytest.mark.parametrize("name", ["demo", "sim", "swarm", "replay", "check"])
def test_help_has_an_example(shell: Shell, name: str) -> None:
    ended = shell(name, "--help")
    assert ended.code == 0
    # A flag is shown without a value.
    assert "--json" in ended.stdout
    assert "bool" not in ended.stdout.lower()
    assert f"Example: ensue {name} " in ended.stdout
    assert name in shell("--help").stdout


COMMANDS = [
    "demo",
    "serve",
    "status",
    "token",
    "pub",
    "sub",
    "tx",
    "sim",
    "swarm",
    "replay",
    "check",
    "audit",
    "report",
    "pipeline",
]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_whole_option_names_at_80_columns(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = shell(name, "--help").stdout
    assert max(map(len, result.splitlines())) <= 80
    assert "--help" in result
    # Nothing is truncated: `…` occurs only in a help text.
    assert "…" not in result.replace("[TOPIC…]", "")


def test_version_is_printed(shell: Shell) -> None:
    ended = shell("--version")
    assert ended.code == 0
    assert ended.stdout.startswith("ensue ")


@pytest.mark.parametrize("missing", ["typer", "rich", "pyarrow"])
def test_missing_extra_prints_the_install_command(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else find_spec(name)
    )
    ended = shell("--help")
    assert ended.code == 2
    assert ended.stderr == (f"ensue: the command line needs {missing}: pip install 'ensue[cli]'\n")


def test_installed_command_works(small: Path) -> None:
    command = [sys.executable, "-c", "from ensue.cli import main; main()", "sim", str(small)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "small, seed 1" in ended.stdout


def test_sim_counts_the_transactions_that_committed(shell: Shell) -> None:
    ended = shell("sim", EXAMPLES / "dispatch.toml")
    assert re.search(r"transactions committed +3 of 3", ended.stdout)
