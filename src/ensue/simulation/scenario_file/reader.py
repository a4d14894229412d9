"""Read a scenario from a TOML file. `docs/simulator.md` says what may stand in it.

Reading is strict (`ensue.tables`): a key nobody knows, a value of another kind or a name nobody bears is
refused with the file, the place in it and how to mend it. A scenario that silently ignored a misspelt
fault would prove nothing.

`scenario_tables` holds the tables, `scenario_values` the values in them, and `scenario_build` turns
tables into a `Scenario`.
"""

from pathlib import Path

from ensue.errors import BadInput
from ensue.simulation.scenario import Scenario
from ensue.simulation.scenario_build import build
from ensue.simulation.scenario_tables import File
from ensue.simulation.scenario_values import Delay, DelayTable, read_value
from ensue.tables import TableReader, read_text

__all__ = ["keys", "load", "loads"]

_READER = TableReader(
    File, read_value=read_value, written_as={Delay: DelayTable}, told_under="delay"
)


def load(path: str | Path) -> Scenario:
    """Read a scenario from a file."""
    file = Path(path)
    text = read_text(file, what="a scenario", hint="see examples/scenarios")
    return loads(text, source=str(file), name=file.stem)


def loads(text: str, *, source: str = "scenario", name: str = "scenario") -> Scenario:
    """Read a scenario from text; `source` is what errors call it."""
    file = _READER.loads(text, source=source)
    try:
        return build(file, name=file.name or name)
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from None


def keys() -> list[str]:
    """List every key a file may have, as `table.key`, so that the manual can be held against it."""
    return _READER.keys()
