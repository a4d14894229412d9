"""Driver processes with their own Spark, to be killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options of a process that ends after seconds: compile quickly rather than well."""


@contextmanager
def driver(arguments: Sequence[str], reported: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start Python with these arguments; kill it and its Java on exit.

    Its standard error goes to `reported`.
    """
    with reported.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "src"),
                "SPARK_MASTER": "local[2]",
                "JAVA_TOOL_OPTIONS": SHORT_LIVED,
            },
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
