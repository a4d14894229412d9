"""The writer of a real run's trace: collects rows and writes Parquet files.

Tracing must not affect the run: once it has begun, a failing disk loses rows and never an event.
"""

import contextlib
import logging
from pathlib import Path

from ensue.core.errors import BadInput, MissingExtra
from ensue.core.trace import Row, write

__all__ = ["ROWS_MAX", "ParquetSink"]

ROWS_MAX = 100_000
"""Rows held in memory before they are written."""

_log = logging.getLogger("ensue")


class ParquetSink:
    """Writes `part-00001.parquet`, `part-00002.parquet` and so on into a new directory.

    The constructor refuses a directory that can't be used. After that the sink raises nothing: it
    logs the first write that fails, then drops and counts rows.
    """

    def __init__(self, directory: str | Path) -> None:
        if not isinstance(directory, str | Path):
            raise BadInput(f"trace must be a path, got {type(directory).__name__}")
        self.directory = Path(directory)
        self.dropped = 0
        """Rows that could not be written."""
        self._rows: list[Row] = []
        self._parts = 0
        self._failed = False
        self._made = False
        self._written = False
        """Whether any row is on the disk."""
        # Write an empty part now: an unusable directory is refused before the run, and the next
        # run sees that this one is in use.
        try:
            self._made = not self.directory.exists()
            self._claim = self._write([])
        except (BadInput, MissingExtra):
            raise
        except Exception as error:
            self._remove_directory()
            raise BadInput(f"{self.directory} can't hold a trace: {error}") from error

    def append(self, row: Row, /) -> None:
        """Take one row."""
        if self._failed:
            self.dropped += 1
            return
        self._rows.append(row)
        if len(self._rows) >= ROWS_MAX:
            self._flush()

    def close(self) -> None:
        """Write the remaining rows; remove the directory if none was recorded."""
        if self._rows:
            self._flush()
        if self.dropped:
            _log.warning(
                "trace incomplete directory=%s rows_dropped=%d", self.directory, self.dropped
            )
        if not self._written:
            self._remove(self._claim)
            self._remove_directory()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        try:
            self._write(rows)
            self._written = True
        except Exception as error:  # noqa: BLE001 - the run continues
            self._failed = True
            self.dropped += len(rows)
            _log.error("trace failed directory=%s error=%r", self.directory, str(error))
            if not isinstance(error, BadInput):
                # Half a part would make the whole trace unreadable. A file in the way stays.
                self._remove(self._path())

    def _write(self, rows: list[Row]) -> Path:
        self._parts += 1
        return write(rows, self.directory, name=self._path().stem, append=self._parts > 1)

    def _path(self) -> Path:
        return self.directory / f"part-{self._parts:05}.parquet"

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("trace part not removed path=%s error=%r", path, str(error))

    def _remove_directory(self) -> None:
        """Remove the directory, unless it existed before or is in use."""
        if self._made:
            with contextlib.suppress(OSError, ValueError):
                self.directory.rmdir()
