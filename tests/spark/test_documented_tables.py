"""Every table of the lake is documented, with its columns and their types."""

import re
from pathlib import Path

from ensue.spark.lake.tables import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "spark.md"


def test_reference_documents_all_tables() -> None:
    documented: dict[str, dict[str, str]] = {}
    for name, body in re.findall(
        r"^### `(\S+)`\n(.*?)(?=^##)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    ):
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", body, re.MULTILINE)
        documented[name] = {column: kind.replace("\\", "") for column, kind in rows}
    assert documented == {
        name: {column: kind for column, (kind, _) in table.columns.items()}
        for name, table in TABLES.items()
    }
