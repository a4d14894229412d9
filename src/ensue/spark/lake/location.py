"""Relocation: a lake works wherever it is moved or copied to.

Spark writes absolute paths: the list of a table's files (`_spark_metadata`), what a query that
follows a table has read, and where the schema of a query's state lies. In a lake that was moved
they name files that are gone, which Spark leaves out in silence; in one that was copied, files of
the other lake.

So they are made those of the place where the lake is, before a pipeline goes on with it. Lists of
files are rewritten, file by file: done halfway, it is completed next time. What followed a table
begins again: `gaps` and `audit` make anew what they make anyhow (see `runs`).
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ensue.core.errors import BadInput
from ensue.spark.lake.files import committed
from ensue.spark.lake.tables import APPENDED

__all__ = ["check_whole", "relocate"]

FOLLOWERS = ("gaps", "audit")
"""Stages that follow tables of the lake."""


def relocate(root: Path) -> bool:
    """Make a lake's paths those of its current place; return whether they changed."""
    changed = [*_moved_lists(root), *_moved_states(root)]
    if not changed:
        return False
    for stage in FOLLOWERS:
        shutil.rmtree(root / "_checkpoints" / stage, ignore_errors=True)
    for path, text in changed:
        _replace(path, text)
    return True


def check_whole(root: Path, tables: Sequence[str] = APPENDED) -> None:
    """Refuse a lake that lacks files of its tables, as one that was copied in part."""
    for table in tables:
        place = root / table
        names = committed(place)
        gone = sorted(name for name in names if not (place / name).is_file())
        if gone:
            raise BadInput(
                f"{place} lacks {len(gone):,} of its {len(names):,} files, such as {gone[0]}: the "
                "lake is damaged or was copied in part; copy it whole, or make a new one"
            )
        began = any((place / "_spark_metadata").glob("[0-9]*"))
        if not began and any((root / "_checkpoints" / table / "commits").glob("[0-9]*")):
            raise BadInput(
                f"{place} lacks its files, or the list of them in _spark_metadata: the lake is "
                "damaged or was copied in part; copy it whole, or make a new one"
            )


def _moved_lists(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the file lists that name another place, and their new text."""
    for table in APPENDED:
        place = root / table
        for path in (place / "_spark_metadata").glob("[0-9]*"):
            version, *lines = path.read_text(encoding="utf-8").splitlines()
            relocated = [_listed_here(line, place) for line in lines]
            if relocated != lines:
                yield path, "\n".join((version, *relocated))


def _listed_here(line: str, place: Path) -> str:
    """Return a line of a list of files, naming the same file at this place."""
    if not line:
        return line
    entry: dict[str, Any] = json.loads(line)
    parent, _, name = entry["path"].rpartition("/")
    if unquote(urlsplit(parent).path) == str(place):
        return line
    return json.dumps(entry | {"path": f"{place.as_uri()}/{name}"}, separators=(",", ":"))


def _moved_states(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the state descriptions that name another place, and their new text."""
    for path in root.glob("_checkpoints/*/state/*/_metadata/v2/[0-9]*"):
        version, *lines = path.read_text(encoding="utf-8").splitlines()
        relocated = [_state_here(line, root, path) for line in lines]
        if relocated != lines:
            yield path, "\n".join((version, *relocated))


def _state_here(line: str, root: Path, path: Path) -> str:
    if not line:
        return line
    state: dict[str, Any] = json.loads(line)
    # The path of the checkpoint within the lake, as `_checkpoints/ordered`.
    mine = "/".join(path.relative_to(root).parts[:2])
    changed = False
    for store in state.get("stateStoreInfo", ()):
        found = store.get("stateSchemaFilePaths", [])
        # Hadoop's way of writing a path, in which nothing is quoted.
        here = [f"file:{root}/{mine}/{each.rpartition(f'/{mine}/')[2]}" for each in found]
        if here != found:
            store["stateSchemaFilePaths"] = here
            changed = True
    return json.dumps(state, separators=(",", ":")) if changed else line


def _replace(path: Path, text: str) -> None:
    """Put a file in the place of one that Spark has written, and of its checksum."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    unfinished.replace(path)
