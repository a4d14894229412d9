"""The page about testing a service prints what it says, and its example is a test that passes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ensue.testing import Faults

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/test-your-service.md"


@pytest.mark.parametrize(
    ("number", "printed"),
    [
        (0, "20 events arrived"),
        (1, "20 events arrived, the broker was started 2 times"),
    ],
)
def test_page_prints_its_documented_output(number: int, printed: str) -> None:
    text = PAGE.read_text()
    programs = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(programs) == 2
    assert f"It prints `{printed}`" in text
    run = subprocess.run(
        [sys.executable, "-c", programs[number]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{printed}\n"


def test_page_names_every_fault() -> None:
    text = PAGE.read_text()
    assert [name for name in Faults.__struct_fields__ if f"`{name}`" not in text] == []
