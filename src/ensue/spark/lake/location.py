"""Relocation of a lake that was moved or copied.

Spark writes absolute paths: the list of a table's files (`_spark_metadata`), the files that a query
on a table has read, and the schema file of a query's state. In a moved lake they name missing
files, which Spark silently ignores; in a copied lake, files of the other lake.

So a pipeline rewrites them before it resumes. Lists of files are rewritten one by one: if
interrupted, the next start completes it. Queries on a table start again: `gaps` and `audit` rebuild
their tables anyway (see `runs`).
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
"""Stages that read tables of the lake."""


def relocate(root: Path) -> bool:
    """Rewrite a lake's paths for its current place; return whether any changed."""
    changed = [*_moved_lists(root), *_moved_states(root)]
    if not changed:
        return False
    for stage in FOLLOWERS:
        shutil.rmtree(root / "_checkpoints" / stage, ignore_errors=True)
    for path, text in changed:
        _replace(path, text)
    return True


def check_whole(root: Path, tables: Sequence[str] = APPENDED) -> None:
    """Raise an error if tables lack files, as in a lake that was copied in part."""
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
    """Yield the lists of files that name another place, and their new text."""
    for table in APPENDED:
        place = root / table
        for path in (place / "_spark_metadata").glob("[0-9]*"):
            version, *lines = path.read_text(encoding="utf-8").splitlines()
            relocated = [_listed_here(line, place) for line in lines]
            if relocated != lines:
                yield path, "\n".join((version, *relocated))


def _listed_here(line: str, place: Path) -> str:
    """Return a line of a list of files, with the path of the file at this place."""
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
        # Hadoop's form of a path, without percent-encoding.
        here = [f"file:{root}/{mine}/{each.rpartition(f'/{mine}/')[2]}" for each in found]
        if here != found:
            store["stateSchemaFilePaths"] = here
            changed = True
    return json.dumps(state, separators=(",", ":")) if changed else line


def _replace(path: Path, text: str) -> None:
    """Replace a file that Spark wrote, and remove its checksum."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    unfinished.replace(path)
