"""SVG building blocks: elements, scales, ticks, and formatted numbers.

All text of a trace goes through `element` or `text`, which escape it: a topic named `<script>` is
shown and never run.
"""

import math
from collections.abc import Callable, Sequence
from html import escape

__all__ = [
    "Scale",
    "count_text",
    "duration_text",
    "element",
    "linear",
    "logarithmic",
    "shortened",
    "text",
    "ticks_linear",
    "ticks_log",
    "time_unit",
]

Scale = Callable[[float], float]

_UNITS = ((1e-6, "ns"), (1e-3, "µs"), (1.0, "ms"), (1e3, "s"), (60e3, "min"), (3600e3, "h"))


def element(name: str, *content: str, **attributes: object) -> str:
    """Return an element; `content` is markup, attributes are escaped.

    `class_` is `class`.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(content)
    return (
        f"<{name}{written}>{inside}</{name}>"
        if inside or name not in _EMPTY
        else f"<{name}{written}/>"
    )


_EMPTY = frozenset({"line", "circle", "rect", "path", "polyline", "polygon"})


def _plain(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def text(content: str, x: float, y: float, *, anchor: str = "start", class_: str = "") -> str:
    """Return a text element at a point."""
    return element(
        "text", escape(content), x=float(x), y=float(y), text_anchor=anchor, class_=class_ or None
    )


def shortened(name: str, length: int) -> str:
    """Return a name of at most this length, with its middle elided if necessary."""
    if len(name) <= length:
        return name
    front = (length - 1 + 1) // 2
    return f"{name[:front]}…{name[len(name) - (length - 1 - front) :]}"


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """Return a linear scale from values to coordinates; an empty range maps to the start."""
    span = high - low
    return lambda value: start + (end - start) * ((value - low) / span if span else 0.0)


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """Return a logarithmic scale from positive values to coordinates."""
    inner = linear(math.log10(low), math.log10(high), start, end)
    return lambda value: inner(math.log10(value))


def ticks_linear(low: float, high: float, count: int = 5) -> list[float]:
    """Return about this many round values between two."""
    if high <= low:
        return [low]
    rough = (high - low) / count
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * scale for factor in (1, 2, 5, 10) if factor * scale >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def ticks_log(low: float, high: float, count: int = 8) -> list[float]:
    """Return about this many round values between two, for a logarithmic axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    choices: tuple[Sequence[float], ...] = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7))
    found: list[float] = []
    for factors in choices:
        ticks = [factor * 10.0**decade for decade in decades for factor in factors]
        ticks = [value for value in ticks if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(ticks) > count and found:
            return found
        found = ticks
    if len(found) < 3:
        return [value for value in ticks_linear(low, high, count) if value > 0]
    every = math.ceil(len(found) / count)
    return found[::every]


def duration_text(ms: float) -> str:
    """Return a duration in a suitable unit: `250 µs`, `41.5 ms`, `2 min`."""
    if ms == 0:
        return "0 ms"
    factor, unit = _UNITS[0]
    for each, name in _UNITS:
        if abs(ms) >= each * (1 if each <= 1e3 else 2) * (1 - 1e-9):
            factor, unit = each, name
    return f"{_three_digits(ms / factor)} {unit}"


def _three_digits(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def count_text(value: float) -> str:
    """Return a number for an axis: `1,500`, `2.5 M`, `0.25`."""
    for factor, suffix in ((1e9, " G"), (1e6, " M"), (1e5, None)):
        if abs(value) >= factor:
            return f"{_three_digits(value / (1e3 if suffix is None else factor))}{suffix or ' k'}"
    return f"{value:,.0f}" if value == int(value) else _three_digits(value)


def time_unit(span_ms: float) -> tuple[float, str]:
    """Return the unit of a time axis: its milliseconds and its name."""
    if span_ms < 3_000:
        return 1.0, "ms"
    if span_ms < 300_000:
        return 1e3, "s"
    return (60e3, "min") if span_ms < 4 * 3600e3 else (3600e3, "h")
