"""The command line finds an order of an installed package by its entry point."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENSUE = [sys.executable, "-c", "from ensue.cli import main; main()"]
DEADLINE_S = 100.0
"""How long a test waits for what must happen; the machine may be busy."""

Process = subprocess.Popen[str]
Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start commands in processes that have the toy order installed."""
    installed = tmp_path / "site" / "toy_order-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-order\nVersion: 1.0\n")
    entry = "[ensue.orders]\nbatches = tests.orders.toy:BatchOrder\n"
    (installed / "entry_points.txt").write_text(entry)
    path = os.pathsep.join((str(installed.parent), str(ROOT), os.environ.get("PYTHONPATH", "")))
    processes: list[Process] = []

    def started(*words: object) -> Process:
        process = subprocess.Popen(
            [*ENSUE, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "TERM": "dumb"},
        )
        processes.append(process)
        return process

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def test_pub_and_sub_use_its_option_on_a_server(start: Start, tmp_path: Path) -> None:
    server = start("serve", "--json", "--listen", "127.0.0.1:0", "--data", tmp_path / "data")
    assert server.stdout is not None
    url = json.loads(server.stdout.readline())["url"]
    choice = ("--url", url, "--order", "batches", "--size", 3)
    reader = start("sub", "numbers", "-n", 5, *choice)
    assert reader.stderr is not None
    assert "subscribed to numbers" in reader.stderr.readline()
    messages = [word for number in range(1, 6) for word in ("-m", number)]
    writer = start("pub", "numbers", *choice, *messages)
    _, error = writer.communicate(timeout=DEADLINE_S)
    assert (writer.returncode, error) == (0, "")
    output, _ = reader.communicate(timeout=DEADLINE_S)
    assert output.split() == ["3", "2", "1", "5", "4"]


def test_help_lists_its_option_and_errors_name_it(start: Start) -> None:
    output, _ = start("sub", "--help").communicate(timeout=DEADLINE_S)
    assert "total|causal|merged|deadline|none|batches" in output
    assert "With --order batches: events in a batch." in output
    wrong = start("sub", "numbers", "--order", "batches", "--size", 0)
    _, error = wrong.communicate(timeout=DEADLINE_S)
    assert "--size must be from 1 to 1000, got 0" in error
    assert wrong.returncode == 2


def test_order_that_cannot_be_loaded_ends_the_command(start: Start, tmp_path: Path) -> None:
    entries = next(tmp_path.glob("site/*.dist-info")) / "entry_points.txt"
    entries.write_text("[ensue.orders]\nbatches = tests.orders.toy:Missing\n")
    process = start("sub", "--help")
    _, error = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "the order 'batches' (tests.orders.toy:Missing) can't be loaded" in error
