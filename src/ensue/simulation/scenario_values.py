"""The values a scenario file is written in: durations, sizes, chances, names and delays.

Each is a type of its own, so that the tables of `scenario_tables` say what they expect and an
error can say what was expected. `read_value` turns what TOML holds into them; it raises
`ValueError` with a sentence that says how to write it. The numbers are nanoseconds and bytes.
"""

import re
from typing import Any, TypeAlias

import msgspec

from ensue.errors import BadInput
from ensue.simulation.delays import Constant, DelayModel, LogNormal, Normal, Uniform

__all__ = [
    "COUNT_MAX",
    "Chance",
    "Delay",
    "DelayTable",
    "Duration",
    "Names",
    "SignedDuration",
    "Size",
    "parse_duration",
    "read_value",
]

COUNT_MAX = 10_000
"""How many names one pattern or one `count` may stand for."""

UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
}
UNITS_BYTES = {
    "B": 1.0,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "kbit": 1e3 / 8,
    "Mbit": 1e6 / 8,
    "Gbit": 1e9 / 8,
}
_NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([a-zA-Zµ]*)")
_RANGE = re.compile(r"(.*?)(\d+)\.\.(.*?)(\d+)")


class Duration(int):
    """A time or a length of time, at least 0, in nanoseconds."""


class SignedDuration(int):
    """A length of time that may be negative, in nanoseconds."""


class Size(int):
    """A number of bytes, or of bytes per second."""


class Chance(float):
    """A number from 0 to 1."""


class Names(tuple[str, ...]):
    """Names, of which a pattern such as `t1..t8` stands for several."""

    __slots__ = ()


class Delay:
    """A delay model, as a duration or as a table."""

    def __init__(self, model: DelayModel) -> None:
        self.model = model


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the kinds of delay have in common."""


class _Constant(_Table, frozen=True, kw_only=True, tag="constant", tag_field="kind"):
    delay: Duration


class _Uniform(_Table, frozen=True, kw_only=True, tag="uniform", tag_field="kind"):
    low: Duration
    high: Duration


class _Normal(_Table, frozen=True, kw_only=True, tag="normal", tag_field="kind"):
    mean: Duration
    std: Duration


class _LogNormal(_Table, frozen=True, kw_only=True, tag="log_normal", tag_field="kind"):
    mean: Duration
    std: Duration


DelayTable: TypeAlias = _Constant | _Uniform | _Normal | _LogNormal
"""A delay as a table."""


def parse_duration(text: str) -> int:
    """Return a duration such as `250ms` in nanoseconds; for options of the command line."""
    try:
        return _duration(text)
    except ValueError as error:
        raise BadInput(str(error)) from None


def read_value(kind: type, raw: Any) -> Any:
    """Turn what TOML holds into a value of one of the kinds of this module."""
    if kind is Duration:
        return Duration(_duration(raw))
    if kind is SignedDuration:
        return SignedDuration(_duration(raw, negative=True))
    if kind is Size:
        return Size(_size(raw))
    if kind is Chance:
        return Chance(_chance(raw))
    if kind is Names:
        return Names(_names(raw))
    if kind is Delay:
        return Delay(_delay(raw))
    raise NotImplementedError(kind)


def _duration(raw: Any, *, negative: bool = False) -> int:
    example = '"250ms"; units are ns, us, ms, s, m, h'
    if raw == 0 and not isinstance(raw, bool | str):
        return 0
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        raise ValueError(f'a duration needs a unit: write "{raw}ms" or "{raw}s", not {raw}')  # noqa: TRY004 — reported like every other value
    match = _NUMBER.fullmatch(raw.strip()) if isinstance(raw, str) else None
    if match is None or match[2] not in UNITS_NS:
        raise ValueError(f"expected a duration like {example}; not {_shown(raw)}")
    duration_ns = round(float(match[1]) * UNITS_NS[match[2]])
    if duration_ns < 0 and not negative:
        raise ValueError(f"expected a duration of at least 0, not {_shown(raw)}")
    return duration_ns


def _size(raw: Any) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
        return raw
    match = _NUMBER.fullmatch(raw.strip().removesuffix("/s")) if isinstance(raw, str) else None
    unit = UNITS_BYTES.get(match[2]) if match is not None else None
    if match is None or unit is None or match[1].startswith("-"):
        units = ", ".join(UNITS_BYTES)
        raise ValueError(
            f'expected a size in bytes like 512 or "1kB" (units are {units}), not {_shown(raw)}'
        )
    return round(float(match[1]) * unit)


def _chance(raw: Any) -> float:
    if not isinstance(raw, int | float) or isinstance(raw, bool) or not 0 <= raw <= 1:
        raise ValueError(f"expected a chance from 0 to 1, such as 0.05, not {_shown(raw)}")
    return float(raw)


def _names(raw: Any) -> list[str]:
    entries = [raw] if isinstance(raw, str) else raw
    if not isinstance(entries, list) or not all(isinstance(one, str) and one for one in entries):
        raise ValueError(f'expected a name or a list of names like ["a", "t1..t8"], not {raw!r}')
    names: list[str] = []
    for entry in entries:
        names += _expand(entry)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"named more than once: {', '.join(repeated)}; name each once")
    return names


def _expand(entry: str) -> list[str]:
    """Write out a pattern; a name without one stands for itself."""
    if ".." not in entry:
        return [entry]
    match = _RANGE.fullmatch(entry)
    if match is None or match[1] != match[3]:
        raise ValueError(
            f'{_shown(entry)} is no pattern: write the first and the last name, as in "t1..t8"'
        )
    first, last = int(match[2]), int(match[4])
    if not first <= last < first + COUNT_MAX:
        raise ValueError(
            f"{_shown(entry)} must rise from its first to its last name, over at most {COUNT_MAX}"
        )
    return [f"{match[1]}{number}" for number in range(first, last + 1)]


def _delay(raw: Any) -> DelayModel:
    if not isinstance(raw, dict):
        return Constant(_duration(raw))
    try:
        table: DelayTable = msgspec.convert(raw, DelayTable, dec_hook=read_value)
    except msgspec.ValidationError as error:
        # As another kind of error it is given the place of this table on top of its own.
        raise ValueError(str(error)) from None
    match table:
        case _Constant(delay=delay):
            return Constant(delay)
        case _Uniform(low=low, high=high):
            if high < low:
                raise ValueError("high must not be below low")
            return Uniform(low, high)
        case _Normal(mean=mean, std=std):
            return Normal(mean, std)
        case _LogNormal(mean=mean, std=std):
            return LogNormal(mean, std)


def _shown(raw: Any) -> str:
    """Show a value as it stands in the file."""
    if isinstance(raw, str):
        return f'"{raw}"'
    return str(raw).lower() if isinstance(raw, bool) else repr(raw)
