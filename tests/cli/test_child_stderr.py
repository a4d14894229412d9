"""The stderr of Spark's processes: noise is dropped, everything else is passed on."""

import os
import subprocess
import sys
import threading

import pytest

from ensue.cli.child_stderr import Noise, filtered

DAEMON = '  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager'
HEAD = "Traceback (most recent call last):"
BROKEN = "BrokenPipeError: [Errno 32] Broken pipe"
WORKER = "Streaming TransformWithStateInPandas Python worker finish init stage of Python runner."


def passed(*lines: str) -> list[str]:
    found: list[str] = []
    noise = Noise(found.append)
    for line in lines:
        noise.add(line)
    noise.flush()
    return found


@pytest.mark.parametrize(
    "noise",
    [
        ["WARNING: Using incubator modules: jdk.incubator.vector"],
        ["Starting Streaming TransformWithStateInPandas Python worker.", ""],
        [WORKER, "", WORKER, "", ""],
        [HEAD, DAEMON, DAEMON, BROKEN],
        # Two processes write at once.
        [HEAD, HEAD, DAEMON, DAEMON, BROKEN, DAEMON, DAEMON, BROKEN],
        [HEAD, DAEMON, HEAD, DAEMON, BROKEN, DAEMON, BROKEN],
    ],
)
def test_noise_is_dropped(noise: list[str]) -> None:
    assert passed(*noise) == []
    assert passed("before", *noise, "after") == ["before", "after"]


@pytest.mark.parametrize(
    "lines",
    [
        ["26/11/17 ERROR Executor: it failed", "\tat org.apache.spark.Executor"],
        [HEAD, DAEMON, "ValueError: no"],
        [HEAD, '  File "/home/me/job.py", line 3, in <module>', BROKEN],
        [HEAD, DAEMON],
        ["", "one", "", "two"],
    ],
)
def test_other_lines_are_passed_on_unchanged(lines: list[str]) -> None:
    assert passed(*lines) == lines


def test_child_is_filtered_until_it_ends() -> None:
    found: list[str] = []
    finished = threading.Event()

    def write(line: str) -> None:
        found.append(line)
        if line == "last":
            finished.set()

    program = (
        "import sys; sys.stdin.readline(); sys.stderr.write("
        "'WARNING: Using incubator modules: x\\nkept\\n'); sys.stderr.write('last')"
    )
    before = os.fstat(2)
    with filtered(write):
        child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, text=True)
    assert os.path.samestat(os.fstat(2), before)
    child.communicate("go\n", timeout=60)
    assert finished.wait(60)
    assert found == ["kept", "last"]


def test_child_does_not_block_if_its_output_can_not_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ensue.cli.child_stderr.IDLE_S", 0.01)
    failed = threading.Event()

    def write(line: str) -> None:
        failed.set()
        raise BrokenPipeError(line)

    # The first line is held until the child is idle; the others exceed the buffer of a pipe.
    program = (
        f"import sys; sys.stderr.write('{HEAD}\\n'); sys.stderr.flush(); sys.stdin.readline(); "
        "sys.stderr.write('a line\\n' * 100_000)"
    )
    with filtered(write):
        child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, text=True)
    try:
        assert failed.wait(60)
        child.communicate("go\n", timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0
