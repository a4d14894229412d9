"""Pages about testing a service print what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ensue.testing import Faults

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/test-your-service.md"


@pytest.mark.parametrize(
    ("page", "number", "printed"),
    [
        (PAGE, 0, "20 events arrived"),
        (PAGE, 1, "cancelled at 1 it leaves {'a': 90, 'b': 0}"),
        (PAGE, 2, "20 events arrived, the broker was started 2 times"),
        (ROOT / "docs/explanation/simulator.md", 0, "5 seeds are valid"),
    ],
    ids=["how-to", "cancelled", "broker", "explanation"],
)
def test_page_prints_its_documented_output(page: Path, number: int, printed: str) -> None:
    text = page.read_text()
    programs = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert f"`{printed}`" in text
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
