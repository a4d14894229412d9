"""The page about testing a service prints what it says, and its example is a test that passes."""

import re
import subprocess
import sys
from pathlib import Path

from ensue.testing import Faults

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/test-your-service.md"


def test_page_prints_its_documented_output() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "20 events arrived\n"


def test_page_names_every_fault() -> None:
    text = PAGE.read_text()
    assert [name for name in Faults.__struct_fields__ if f"`{name}`" not in text] == []
