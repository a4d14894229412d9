"""The demo ends with the audit on Spark of what it recorded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.verify
def test_the_demo_audits_both_halves_on_spark(tmp_path: Path) -> None:
    code = "import sys; from ensue.cli import main; main()"
    run = subprocess.run(
        [sys.executable, "-c", code, "demo", "--seconds", "1", "--json", "--trace", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    reported = json.loads(run.stdout)
    for half in ("none", "total"):
        assert (
            reported[half]["audit"]["delivery_count"] == reported[half]["statistics"]["deliveries"]
        )
    assert reported["total"]["audit"]["verdict"] == "valid"
    assert reported["none"]["audit"]["verdict"] == "invalid"
    assert "audit both recorded runs" in run.stderr
