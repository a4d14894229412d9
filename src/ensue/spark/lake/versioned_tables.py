"""Tables that are rebuilt one part at a time and change atomically for readers.

A part has all rows of one key, such as those of one run. Below `_versions/<name>` lies one
directory per version, with one directory per table, with the files of each key:

    _versions/<name>/00000007/<table>/<key>-….parquet
    _versions/<name>/current -> 00000007
    <table> -> _versions/<name>/current/<table>

A change is written to a draft that no reader sees. Files of unchanged keys are hard-linked into it,
the draft is renamed to the next number, and one rename switches `current` to it. Before that rename
a reader sees all of the old version, afterwards all of the new one, for all of these tables. A
process killed at any moment leaves at most a draft behind, which the next one removes.

Keys are hashes, so that the name of a run never becomes part of a path. A table without rows has
one empty file, so that its columns can be read.

A reader that follows a link while it moves may find a file missing, and has to read again;
`directory` returns the version itself, of which the last few are retained.

HAZARD: the directory must be on a file system with hard and symbolic links, the same for the driver
and all executors.
"""

import hashlib
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from ensue.core.errors import BadInput

__all__ = ["ALL", "Draft", "VersionedTables", "key_of"]

VERSIONS_KEPT = 3
"""Number of retained versions: the current one, and earlier ones that readers may have open."""
ALL = "all"
"""Key of a table with a single part."""

_EMPTY = "empty"
_KEY = "_key"
_KEY_LENGTH = 32


def key_of(name: str) -> str:
    """Return the key of a run."""
    return hashlib.sha256(name.encode()).hexdigest()[:_KEY_LENGTH]


def _key_column(column: str) -> Column:
    """Return `key_of` as a column."""
    return f.substring(f.sha2(f.col(column).cast("binary"), 256), 1, _KEY_LENGTH)


class Draft:
    """An unpublished version."""

    def __init__(self, place: Path, tables: Iterable[str]) -> None:
        self.place = place
        for table in tables:
            (place / table).mkdir(parents=True)

    def write(self, table: str, rows: pa.Table, *, by: str | None = None) -> None:
        """Add rows, one part for each value of the column `by`."""
        if by is None:
            self._write_part(table, ALL, rows)
            return
        places: dict[str, list[int]] = {}
        for index, name in enumerate(rows.column(by).to_pylist()):
            places.setdefault(str(name), []).append(index)
        for name, mine in places.items():
            self._write_part(table, key_of(name), rows.take(pa.array(mine, pa.int64())))

    def write_frame(self, table: str, frame: DataFrame, *, by: str) -> None:
        """Add rows of any number; Spark writes them."""
        staged = self.place / f".staged-{table.replace('/', '-')}"
        keyed = frame.withColumn(_KEY, _key_column(by))
        keyed.write.partitionBy(_KEY).parquet(str(staged))
        for path in staged.glob(f"{_KEY}=*/*.parquet"):
            key = path.parent.name.removeprefix(f"{_KEY}=")
            path.rename(self.place / table / _file_name(key))
        shutil.rmtree(staged)

    def _write_part(self, table: str, key: str, rows: pa.Table) -> None:
        if rows.num_rows:
            path = self.place / table / _file_name(key)
            pq.write_table(rows, str(path), compression="zstd")


class VersionedTables:
    """Tables that change together."""

    def __init__(self, root: Path, name: str, tables: Mapping[str, pa.Schema]) -> None:
        self.root = root
        self.tables = tables
        self.place = root / "_versions" / name
        self.link = self.place / "current"

    def prepare(self) -> None:
        """Create empty tables if absent; remove unpublished drafts."""
        heads = dict.fromkeys(table.split("/")[0] for table in self.tables)
        for link in (self.link, *(self.root / head for head in heads)):
            if link.exists() and not link.is_symlink():
                raise BadInput(
                    f"{link} should be a link: {self.root} was copied without its symbolic links; "
                    "copy it with them, as cp -a does"
                )
            if link.is_symlink() and not self.link.exists():
                raise BadInput(
                    f"{link} leads nowhere: {self.root} is damaged or was copied in part; copy it "
                    "whole, or make a new one"
                )
        self.place.mkdir(parents=True, exist_ok=True)
        for path in self.place.glob(".*"):
            _remove(path)
        if not self.link.is_symlink():
            draft = Draft(self._unfinished(), self.tables)
            for table, schema in self.tables.items():
                path = draft.place / table / f"{_EMPTY}.parquet"
                pq.write_table(schema.empty_table(), str(path))
            self._publish(draft, 0)
        for head in heads:
            if not (self.root / head).is_symlink():
                (self.root / head).symlink_to(Path("_versions", self.place.name, "current", head))

    def directory(self, table: str) -> Path:
        """Return the directory of a table's current version, which never changes."""
        return self.link.resolve(strict=True) / table

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        files = self.directory(table).glob("*.parquet")
        return sum(pq.read_metadata(str(path)).num_rows for path in files)

    @contextmanager
    def replacing(self, keys: Collection[str]) -> Iterator[Draft]:
        """Yield a draft for the parts of these keys; publish it on exit.

        A table without new rows loses its rows of these keys.
        """
        draft = Draft(self._unfinished(), self.tables)
        try:
            yield draft
        except BaseException:
            _remove(draft.place)
            raise
        before = self.link.resolve(strict=True)
        gone = set(keys)
        for table in self.tables:
            for path in (before / table).iterdir():
                if path.name.partition("-")[0].removesuffix(".parquet") not in gone:
                    (draft.place / table / path.name).hardlink_to(path)
        self._publish(draft, int(before.name) + 1)

    def _unfinished(self) -> Path:
        return self.place / f".draft-{uuid4().hex}"

    def _publish(self, draft: Draft, number: int) -> None:
        place = self.place / f"{number:08}"
        # A process may have been killed between the next two renames.
        if place.exists():
            _remove(place)
        draft.place.rename(place)
        link = self.place / f".link-{uuid4().hex}"
        link.symlink_to(place.name)
        link.replace(self.link)
        for path in self.place.glob("[0-9]*"):
            if int(path.name) <= number - VERSIONS_KEPT:
                _remove(path)


def _file_name(key: str) -> str:
    return f"{key}-{uuid4().hex}.parquet"


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path)
