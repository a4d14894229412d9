"""Where a real run's trace goes: rows are gathered and written as Parquet, part by part."""

from pathlib import Path

from ensue.trace import Row, write

__all__ = ["ROWS_MAX", "ParquetSink"]

ROWS_MAX = 100_000
"""Rows held in memory before they are written."""


class ParquetSink:
    """Writes `part-00001.parquet`, `part-00002.parquet` and so on into a directory of its own."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._rows: list[Row] = []
        self._parts = 0
        # Written at once, so that a directory that can't be used is refused before the run.
        self._flush()

    def append(self, row: Row, /) -> None:
        """Take one row."""
        self._rows.append(row)
        if len(self._rows) >= ROWS_MAX:
            self._flush()

    def close(self) -> None:
        """Write what is left."""
        if self._rows:
            self._flush()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        self._parts += 1
        name = f"part-{self._parts:05}"
        write(rows, self.directory, name=name, append=self._parts > 1)
