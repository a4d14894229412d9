"""Strict TOML files, with errors that name the place and the fix.

An unknown key, a value of another type or a missing value raises `BadInput` with the file, the
place in it (`subscribers[1].changes[0].at`) and how to fix it. A `msgspec.Struct` with
`forbid_unknown_fields` defines the file; a hook reads values written as text, such as durations.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar, Union

import msgspec
from msgspec import inspect

from ensue.core.errors import BadInput

__all__ = ["FILE_BYTES_MAX", "TableReader", "parse_json", "read_text"]

FILE_BYTES_MAX = 10_000_000
"""Refuse longer files: people do not write them."""

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
_PLAIN: dict[type, type] = {
    inspect.BoolType: bool,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.StrType: str,
}
_JSON_KINDS = {**_KINDS, "array": "a list in [ ]", "object": "an object in { }"}

T = TypeVar("T", bound=msgspec.Struct)


def read_text(path: str | Path, *, what: str, hint: str) -> str:
    """Return the text of a file; errors name `what` it should be, and a `hint`."""
    file = Path(path)
    try:
        size = file.stat().st_size
        if size > FILE_BYTES_MAX:
            raise BadInput(f"{file}: {size} bytes are too many for {what}; max {FILE_BYTES_MAX}")
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(f"{file}: there is no such file; {hint}") from None
    except OSError as error:
        raise BadInput(f"{file}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{file}: is not UTF-8 text; save it as UTF-8") from None


def parse_json(text: bytes | str) -> Any:
    """Parse JSON of any kind."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = str(error).removeprefix("JSON is malformed: ")
        raise BadInput(f"is not JSON: {why}") from None


class TableReader(Generic[T]):
    """Reads files that hold one kind of table.

    `read_value` converts TOML values to the file's own types. `written_as` maps such a type to the
    tables it may be written as; `listed_under` is the key under which `keys` lists these.
    """

    def __init__(
        self,
        kind: type[T],
        *,
        read_value: Callable[[type, Any], Any] | None = None,
        written_as: Mapping[type, Any] | None = None,
        listed_under: str = "",
    ) -> None:
        self._kind = kind
        self._read_value = read_value
        self._decode_json = msgspec.json.Decoder(kind, dec_hook=read_value).decode
        self._written_as = written_as or {}
        self._listed_under = listed_under

    def loads(self, text: str, *, source: str) -> T:
        """Read text; errors begin with `source`."""
        try:
            raw = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise BadInput(f"{source}: is not TOML: {error}") from None
        try:
            return self.read(raw)
        except BadInput as error:
            raise BadInput(f"{source}: {error}") from None

    def loads_json(self, text: bytes | str) -> T:
        """Read one object of JSON."""
        try:
            return self._decode_json(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self.read(parse_json(text), json=True)

    def read(self, raw: Any, *, json: bool = False) -> T:
        """Convert parsed TOML; with `json`, errors use the words of JSON."""
        try:
            return msgspec.convert(raw, self._kind, dec_hook=self._read_value)
        except msgspec.ValidationError as error:
            raise BadInput(self._explain(error, raw, json=json)) from None

    def keys(self) -> list[str]:
        """List every key a file may have, as `table.key`: the manual must have each."""
        return list(dict.fromkeys(self._keys(inspect.type_info(self._kind), "")))

    def _keys(self, info: inspect.Type, place: str, within: tuple[type, ...] = ()) -> Iterator[str]:
        for struct in self._structs(info):
            if struct.cls in within:
                continue  # A table that may hold tables of its own kind.
            if struct.tag_field is not None:
                # Listed once, not at each place where such a table may stand.
                place = self._listed_under
                yield f"{place}.{struct.tag_field}"
            for field in struct.fields:
                name = f"{place}.{field.encode_name}".lstrip(".")
                yield name
                yield from self._keys(field.type, name, (*within, struct.cls))

    def _structs(self, info: inspect.Type) -> list[inspect.StructType]:
        """List the tables that may stand where a type is expected, or in the list or map there."""
        match info:
            case inspect.StructType():
                return [info]
            case inspect.UnionType(types=types):
                return [struct for one in types for struct in self._structs(one)]
            case inspect.VarTupleType(item_type=inner) | inspect.DictType(value_type=inner):
                return self._structs(inner)
            case inspect.CustomType(cls=kind) if kind in self._written_as:
                return self._structs(inspect.type_info(self._written_as[kind]))
        return []

    def _explain(self, error: msgspec.ValidationError, raw: Any, *, json: bool) -> str:
        """Rewrite an error of msgspec in the words of TOML, with the place in the file."""
        text = str(error)
        # The error of a value in a nested table has two places: the value's, then the table's.
        path = "".join(reversed(_PLACE.findall(text)))
        what = _PLACE.sub("", text)
        place, info = self._locate(path, raw)
        if found := re.fullmatch(r"Object contains unknown field `(.*)`", what):
            known = [name for struct in self._structs(info) for name in _own_keys(struct)]
            what = f"there is no key {found[1]!r} here{_suggest(found[1], known)}"
        elif found := re.fullmatch(r"Object missing required field `(.*)`", what):
            what = f"the key {found[1]!r} is missing; add it"
        elif found := re.fullmatch(r"Expected `(.*)`, got `(.*)`", what):
            what = _explain_kind(found[1], found[2], place, json=json)
        elif found := re.fullmatch(r"Invalid (?:enum )?value '?([^']*)'?", what):
            what = f"there is no {found[1]!r} here{_suggest(found[1], self._choices(info, place))}"
        return f"{place}: {what}" if place else what

    def _choices(self, info: inspect.Type, place: str) -> list[str]:
        if isinstance(info, inspect.LiteralType):
            return [str(value) for value in info.values]
        structs = self._structs(info)
        return [str(one.tag) for one in structs if one.tag_field == place.rpartition(".")[2]]

    def _locate(self, path: str, raw: Any) -> tuple[str, inspect.Type]:
        """Follow a path of msgspec; return it as a place in the file, and the type expected there.

        msgspec doesn't say which key of a map is wrong: this is the first that can't be read.
        """
        place, info, here = "", inspect.type_info(self._kind), raw
        for key, index in _STEP.findall(path):
            if key:
                place = f"{place}.{key}".lstrip(".")
                fields = {
                    field.encode_name: field.type
                    for struct in self._structs(info)
                    for field in struct.fields
                }
                # A tag is no field: the type there is that of the tables with their tags.
                info = fields.get(key, info)
                here = here.get(key) if isinstance(here, dict) else None
            elif index == "...":
                kinds = info.types if isinstance(info, inspect.UnionType) else (info,)
                of = next(one for one in kinds if isinstance(one, inspect.DictType))
                name = next(one for one, value in here.items() if not self._readable(value, of))
                place, info, here = f"{place}.{name}", of.value_type, here[name]
            else:
                place = f"{place}[{index}]"
                here = here[int(index)] if isinstance(here, list) else None
        return place, info

    def _readable(self, value: Any, info: inspect.DictType) -> bool:
        try:
            msgspec.convert(value, _type_of(info.value_type), dec_hook=self._read_value)
        except msgspec.ValidationError:
            return False
        return True


def _type_of(info: inspect.Type) -> Any:
    """Return the described type, or `object` if any value is allowed."""
    match info:
        case inspect.StructType(cls=kind) | inspect.CustomType(cls=kind):
            return kind
        case inspect.UnionType(types=types):
            return Union[tuple(_type_of(one) for one in types)]  # noqa: UP007 - of what is listed
    return _PLAIN.get(type(info), object)


def _own_keys(struct: inspect.StructType) -> list[str]:
    tag = [] if struct.tag_field is None else [struct.tag_field]
    return tag + [field.encode_name for field in struct.fields]


def _explain_kind(expected: str, got: str, place: str, *, json: bool) -> str:
    if expected == "array" and got == "object" and not json:
        return f"expected a list of tables; write [[{place}]] with two brackets"
    if expected == "object" and got == "array" and not json:
        return f"expected one table; write [{place}] with one bracket"
    words = _JSON_KINDS if json else _KINDS
    kinds = [one.strip() for one in expected.split("|")]
    left_out = ("null", "int") if "float" in kinds else ("null",)
    *others, last = (words.get(one, one) for one in kinds if one not in left_out)
    wanted = f"{', '.join(others)} or {last}" if others else last
    return f"expected {wanted}, got {words.get(got, got).partition(',')[0]}"


def _suggest(name: str, known: Iterable[str]) -> str:
    known = list(dict.fromkeys(known))
    near = get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; expected one of {', '.join(known)}" if known else ""
