"""Durations and sizes as text: `250ms`, `7d`, `10GB`, to nanoseconds and bytes."""

import math
import re
from typing import Any

from ensue.core.errors import BadInput

__all__ = ["NUMBER", "duration_ns", "parse_duration", "parse_size", "shown", "size_bytes"]

UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
UNITS_BYTES = {
    "B": 1.0,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "kbit": 1e3 / 8,
    "Mbit": 1e6 / 8,
    "Gbit": 1e9 / 8,
}
NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([a-zA-Zµ]*)")


def parse_duration(text: str) -> int:
    """Return a duration such as `250ms` in nanoseconds, for command-line options."""
    try:
        return duration_ns(text)
    except ValueError as error:
        raise BadInput(str(error)) from None


def parse_size(text: str) -> int:
    """Return a size such as `10GB` in bytes, for command-line options."""
    try:
        return size_bytes(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise BadInput(str(error)) from None


def duration_ns(raw: Any, *, negative: bool = False) -> int:
    """Parse a duration from a file; `ValueError` says how to write one."""
    example = '"250ms"; units are ns, us, ms, s, m, h, d'
    if raw == 0 and not isinstance(raw, bool | str):
        return 0
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        # A ValueError, like every other bad value.
        raise ValueError(  # noqa: TRY004
            f'a duration needs a unit: write "{raw}ms" or "{raw}s", not {raw}'
        )
    match = NUMBER.fullmatch(raw.strip()) if isinstance(raw, str) else None
    if match is None or match[2] not in UNITS_NS:
        raise ValueError(f"expected a duration like {example}; got {shown(raw)}")
    duration = _whole(float(match[1]) * UNITS_NS[match[2]], raw)
    if duration < 0 and not negative:
        raise ValueError(f"expected a duration of at least 0, got {shown(raw)}")
    return duration


def size_bytes(raw: Any) -> int:
    """Parse a size from a file; `ValueError` says how to write one."""
    if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
        return raw
    match = NUMBER.fullmatch(raw.strip().removesuffix("/s")) if isinstance(raw, str) else None
    unit = UNITS_BYTES.get(match[2]) if match is not None else None
    if match is None or unit is None or match[1].startswith("-"):
        units = ", ".join(UNITS_BYTES)
        raise ValueError(
            f'expected a size in bytes like 512 or "1kB" (units are {units}), got {shown(raw)}'
        )
    return _whole(float(match[1]) * unit, raw)


def _whole(number: float, raw: Any) -> int:
    if not math.isfinite(number):
        raise ValueError(f"{shown(raw)} is too large")
    return round(number)


def shown(raw: Any) -> str:
    """Return a value as a TOML file has it."""
    if isinstance(raw, str):
        return f'"{raw}"'
    return str(raw).lower() if isinstance(raw, bool) else repr(raw)
