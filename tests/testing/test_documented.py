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
    ("page", "printed"),
    [
        (PAGE, "20 events arrived\n"),
        (ROOT / "docs/explanation/simulator.md", "5 seeds are valid\n"),
    ],
    ids=["how-to", "explanation"],
)
def test_page_prints_its_documented_output(page: Path, printed: str) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == printed


def test_page_names_every_fault() -> None:
    text = PAGE.read_text()
    assert [name for name in Faults.__struct_fields__ if f"`{name}`" not in text] == []
