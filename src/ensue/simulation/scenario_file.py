"""Read a scenario from a TOML file. `docs/simulator.md` says what may stand in it.

Reading is strict: a key nobody knows, a value of another kind or a name nobody bears is refused
with the file, the place in it (`subscribers[1].changes[0].at`) and how to mend it. A scenario that
silently ignored a misspelt fault would prove nothing.

`scenario_tables` holds the tables, `scenario_values` the values in them, and `scenario_build` turns
tables into a `Scenario`. Here are the file, and the words for what is wrong with it.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from ensue.errors import BadInput
from ensue.simulation.scenario import Scenario
from ensue.simulation.scenario_build import build
from ensue.simulation.scenario_tables import File
from ensue.simulation.scenario_values import Delay, DelayTable, read_value

__all__ = ["keys", "load", "loads"]

FILE_BYTES_MAX = 10_000_000
"""A longer file is no scenario."""

_PLACE = re.compile(r" - at `\$([^`]*)`")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": 'text in quotes, such as "orders"',
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def load(path: str | Path) -> Scenario:
    """Read a scenario from a file."""
    file = Path(path)
    try:
        size = file.stat().st_size
        if size > FILE_BYTES_MAX:
            raise BadInput(f"{file}: {size} bytes are too many for a scenario: {FILE_BYTES_MAX}")
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(f"{file}: there is no such file; see examples/scenarios") from None
    except OSError as error:
        raise BadInput(f"{file}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{file}: is not text in UTF-8, as TOML must be") from None
    return loads(text, source=str(file), name=file.stem)


def loads(text: str, *, source: str = "scenario", name: str = "scenario") -> Scenario:
    """Read a scenario from text; `source` is what errors call it."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{source}: is not TOML: {error}") from None
    try:
        file = msgspec.convert(raw, File, dec_hook=read_value)
    except msgspec.ValidationError as error:
        raise BadInput(f"{source}: {_explain(error, raw)}") from None
    try:
        return build(file, name=file.name or name)
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from None


def keys() -> list[str]:
    """List every key a file may have, as `table.key`, so that the manual can be held against it."""
    return list(dict.fromkeys(_keys(inspect.type_info(File), "")))


def _keys(info: inspect.Type, place: str) -> Iterator[str]:
    for struct in _structs(info):
        if struct.tag_field is not None:
            place = "delay"  # Told once, not in each of the places where a delay may stand.
            yield f"{place}.{struct.tag_field}"
        for field in struct.fields:
            name = f"{place}.{field.encode_name}".lstrip(".")
            yield name
            yield from _keys(field.type, name)


def _structs(info: inspect.Type) -> list[inspect.StructType]:
    """List the tables that may stand where a type is expected, or in the list or map there."""
    match info:
        case inspect.StructType():
            return [info]
        case inspect.UnionType(types=types):
            return [struct for one in types for struct in _structs(one)]
        case inspect.VarTupleType(item_type=inner) | inspect.DictType(value_type=inner):
            return _structs(inner)
        case inspect.CustomType(cls=kind) if kind is Delay:
            return _structs(inspect.type_info(DelayTable))
    return []


def _explain(error: msgspec.ValidationError, raw: Any) -> str:
    """Say where and what in words for people who never heard of objects and arrays."""
    text = str(error)
    # A value within a delay's table names its own place first and that of the table after it.
    path = "".join(reversed(_PLACE.findall(text)))
    what = _PLACE.sub("", text)
    place, info = _locate(path, raw)
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        known = [name for struct in _structs(info) for name in _own_keys(struct)]
        what = f"there is no key {found[1]!r} here{_suggest(found[1], known)}"
    elif found := re.fullmatch(r"Object missing required field `(.*)`", what):
        what = f"the key {found[1]!r} is missing; add it"
    elif found := re.fullmatch(r"Expected `(.*)`, got `(.*)`", what):
        what = _explain_kind(found[1], found[2], place)
    elif found := re.fullmatch(r"Invalid (?:enum )?value '?([^']*)'?", what):
        what = f"there is no {found[1]!r} here{_suggest(found[1], _choices(info, place))}"
    return f"{place}: {what}" if place else what


def _explain_kind(expected: str, got: str, place: str) -> str:
    if expected == "array" and got == "object":
        return f"expected a list of tables; write [[{place}]] with two brackets"
    if expected == "object" and got == "array":
        return f"expected one table; write [{place}] with one bracket"
    kinds = [one.strip() for one in expected.split("|")]
    wanted = " or ".join(_KINDS.get(one, one) for one in kinds if one != "null")
    return f"expected {wanted}, not {_KINDS.get(got, got).partition(',')[0]}"


def _own_keys(struct: inspect.StructType) -> list[str]:
    tag = [] if struct.tag_field is None else [struct.tag_field]
    return tag + [field.encode_name for field in struct.fields]


def _choices(info: inspect.Type, place: str) -> list[str]:
    if isinstance(info, inspect.LiteralType):
        return [str(value) for value in info.values]
    structs = _structs(info)
    return [str(one.tag) for one in structs if one.tag_field == place.rpartition(".")[2]]


def _suggest(name: str, known: Iterable[str]) -> str:
    known = list(dict.fromkeys(known))
    near = get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; expected one of {', '.join(known)}" if known else ""


def _locate(path: str, raw: Any) -> tuple[str, inspect.Type]:
    """Follow a path of msgspec; return it as a place in the file, and the type expected there.

    msgspec doesn't say which key of a map is wrong, so the first that can't be read is looked for.
    """
    place, info, here = "", inspect.type_info(File), raw
    for key, index in _STEP.findall(path):
        if key:
            place = f"{place}.{key}".lstrip(".")
            fields = {
                field.encode_name: field.type
                for struct in _structs(info)
                for field in struct.fields
            }
            # The tag of a delay is no field: what is expected there are the delay's own tags.
            info = fields.get(key, info)
            here = here.get(key) if isinstance(here, dict) else None
        elif index == "...":
            assert isinstance(info, inspect.DictType)
            name = next(one for one, value in here.items() if not _readable(value, info))
            place, info, here = f"{place}.{name}", info.value_type, here[name]
        else:
            place = f"{place}[{index}]"
            here = here[int(index)] if isinstance(here, list) else None
    return place, info


def _readable(value: Any, info: inspect.DictType) -> bool:
    inner = info.value_type
    kind = inner.cls if isinstance(inner, inspect.StructType | inspect.CustomType) else object
    try:
        msgspec.convert(value, kind, dec_hook=read_value)
    except msgspec.ValidationError:
        return False
    return True
