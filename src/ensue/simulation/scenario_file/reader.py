"""Read a scenario from a TOML file; `docs/how-to/simulator.md` lists its keys.

Reading is strict (`ensue.core.toml_file`): an unknown key, a value of another kind or an unknown
name is refused with the file, the place in it and how to mend it. A scenario that silently ignored
a misspelt fault would prove nothing.

`tables` holds the tables, `values` the values in them, and `builder` turns tables into a
`Scenario`.
"""

from functools import cache
from pathlib import Path
from typing import cast

import msgspec

from ensue import orders
from ensue.core.errors import BadInput
from ensue.core.toml_file import TableReader, read_text
from ensue.simulation.scenario import Scenario
from ensue.simulation.scenario_file.builder import build
from ensue.simulation.scenario_file.tables import File
from ensue.simulation.scenario_file.values import Delay, DelayTable, read_value

__all__ = ["keys", "load", "loads"]


@cache
def _reader(own: tuple[tuple[str, type[msgspec.Struct]], ...]) -> TableReader[File]:
    """Return a reader of files that may also have these tables, of orders in their own packages."""
    kind = File
    if own:
        fields = [(name, table | None, None) for name, table in own]
        wider = msgspec.defstruct(
            "File", fields, bases=(File,), frozen=True, kw_only=True, forbid_unknown_fields=True
        )
        kind = cast("type[File]", wider)
    return TableReader(
        kind, read_value=read_value, written_as={Delay: DelayTable}, listed_under="delay"
    )


def _current_reader() -> TableReader[File]:
    tables = ((each.name, each.scenario_table()) for each in orders.every())
    return _reader(tuple((name, table) for name, table in tables if table is not None))


def load(path: str | Path) -> Scenario:
    """Read a scenario from a file."""
    file = Path(path)
    text = read_text(file, what="a scenario", hint="see examples/scenarios")
    return loads(text, source=str(file), name=file.stem)


def loads(text: str, *, source: str = "scenario", name: str = "scenario") -> Scenario:
    """Read a scenario from text; `source` is what errors call it."""
    file = _current_reader().loads(text, source=source)
    try:
        return build(file, name=file.name or name)
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from None


def keys() -> list[str]:
    """List every key a file may have, as `table.key`, to check the manual against."""
    return _current_reader().keys()
