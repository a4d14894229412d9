"""The values of a scenario file: durations, sizes, chances, names and delays.

Each kind of value has its own type, so that `tables` declares what it expects and an error can name
it. `read_value` converts a TOML value; its `ValueError` explains the format. Numbers are
nanoseconds and bytes.
"""

import re
from typing import Any, TypeAlias

import msgspec

from ensue.core.units import duration_ns, parse_duration, shown, size_bytes
from ensue.simulation.world.delays import Constant, DelayModel, LogNormal, Normal, Uniform

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
"""Maximum names of one pattern or one `count`."""

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
    """The common fields of delay tables."""


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


def read_value(kind: type, raw: Any) -> Any:
    """Convert a TOML value to one of the types of this module."""
    if kind is Duration:
        return Duration(duration_ns(raw))
    if kind is SignedDuration:
        return SignedDuration(duration_ns(raw, negative=True))
    if kind is Size:
        return Size(size_bytes(raw))
    if kind is Chance:
        return Chance(_chance(raw))
    if kind is Names:
        return Names(_names(raw))
    if kind is Delay:
        return Delay(_delay(raw))
    raise NotImplementedError(kind)


def _chance(raw: Any) -> float:
    if not isinstance(raw, int | float) or isinstance(raw, bool) or not 0 <= raw <= 1:
        raise ValueError(f"expected a chance from 0 to 1, such as 0.05, got {shown(raw)}")
    return float(raw)


def _names(raw: Any) -> list[str]:
    entries = [raw] if isinstance(raw, str) else raw
    if not isinstance(entries, list) or not all(isinstance(one, str) and one for one in entries):
        raise ValueError(f'expected a name or a list of names like ["a", "t1..t8"], got {raw!r}')
    names: list[str] = []
    for entry in entries:
        names += _expand(entry)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"named more than once: {', '.join(repeated)}; name each once")
    return names


def _expand(entry: str) -> list[str]:
    """Expand a pattern; return a name without one unchanged."""
    if ".." not in entry:
        return [entry]
    match = _RANGE.fullmatch(entry)
    if match is None or match[1] != match[3]:
        raise ValueError(
            f'{shown(entry)} is no pattern: write the first and the last name, as in "t1..t8"'
        )
    first, last = int(match[2]), int(match[4])
    if not first <= last < first + COUNT_MAX:
        raise ValueError(
            f"{shown(entry)} must rise from its first to its last name, over at most {COUNT_MAX}"
        )
    return [f"{match[1]}{number}" for number in range(first, last + 1)]


def _delay(raw: Any) -> DelayModel:
    if not isinstance(raw, dict):
        return Constant(duration_ns(raw))
    try:
        table: DelayTable = msgspec.convert(raw, DelayTable, dec_hook=read_value)
    except msgspec.ValidationError as error:
        # msgspec adds the place of this table to a ValueError, but not to a ValidationError.
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
