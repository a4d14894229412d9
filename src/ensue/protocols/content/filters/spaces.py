"""Sets of attribute values, as filters use them.

Theory of operation. Values are truth values, numbers and texts. All of them are on one line: truth
values first, then numbers, then texts, each kind in its own order. A *cut* is a place between two
values: just before one or just after it. A *span* is what lies between two cuts, and a *space* is a
sorted sequence of spans with gaps between them. Ranges, equality, finite sets, prefixes and
"anything at all" are all spaces, so that there is one intersection, one union, one test for
membership and one for inclusion.

Whole numbers and fractions are one kind: `1` and `1.0` are the same value. Truth values are not
numbers: `true` is not `1`. NaN is no value: it has no place in any order.
"""

from bisect import bisect_right
from math import inf
from typing import Any

from ensue.core.errors import BadInput

__all__ = [
    "EVERYTHING",
    "TEXT_LENGTH_MAX",
    "Cut",
    "Space",
    "Value",
    "above",
    "below",
    "check_text",
    "contains",
    "covers",
    "cut_after",
    "cut_before",
    "intersection",
    "next_character",
    "one_of",
    "sample",
    "split",
    "starting_with",
    "union",
    "value_of",
]

Value = bool | int | float | str
Cut = tuple[int, Any, int]
"""The kind of a value, the value, and 0 for just before it or 1 for just after it."""
Span = tuple[Cut, Cut]
Space = tuple[Span, ...]

TEXT_LENGTH_MAX = 1024
"""Maximum length of a text value."""
_TRUTH, _NUMBER, _TEXT, _END = 0, 1, 2, 3
_KINDS = {bool: _TRUTH, int: _NUMBER, float: _NUMBER, str: _TEXT}
_FIRST: dict[int, Cut] = {
    _TRUTH: (_TRUTH, False, 0),
    _NUMBER: (_NUMBER, -inf, 0),
    _TEXT: (_TEXT, "", 0),
    _END: (_END, 0, 0),
}
"""Where each kind begins."""
_LAST_CHARACTER = chr(0x10FFFF)

EVERYTHING: Space = ((_FIRST[_TRUTH], _FIRST[_END]),)
"""Any value whatsoever: an attribute that is present."""


def cut_before(value: Value) -> Cut:
    """Return the place just before a value."""
    return (_KINDS[type(value)], value, 0)


def value_of(value: object) -> Value:
    """Return the value, or raise `BadInput` if it is invalid."""
    if type(value) not in _KINDS:
        raise BadInput(
            f"an attribute must be text, a number, True or False, got {type(value).__name__}"
        )
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - the test for not-a-number
        raise BadInput("an attribute must not be NaN: it lies in no range")
    if isinstance(value, str) and len(value) > TEXT_LENGTH_MAX:
        raise BadInput(
            f"a text attribute may have at most {TEXT_LENGTH_MAX} characters, got {len(value)}"
        )
    if isinstance(value, str):
        check_text(value, "a text attribute")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        raise BadInput(f"a whole number must be between -2**63 and 2**63, got {value}")
    return value  # type: ignore[return-value]


def check_text(text: str, what: str) -> None:
    """Refuse a text that no frame can carry."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(
            f"{what} must be text that UTF-8 can carry; {text[:20]!a} has an unpaired surrogate"
        ) from None


def cut_after(value: Value) -> Cut:
    """Return the place just after a value."""
    return (_KINDS[type(value)], value, 1)


def one_of(values: tuple[Value, ...]) -> Space:
    """Return a finite set."""
    return _merged([(cut_before(value), cut_after(value)) for value in values])


def above(value: Value, *, inclusive: bool) -> Space:
    """Return all values of the same kind that are greater, or equal if inclusive."""
    low = cut_before(value) if inclusive else cut_after(value)
    return ((low, _FIRST[low[0] + 1]),) if low < _FIRST[low[0] + 1] else ()


def below(value: Value, *, inclusive: bool) -> Space:
    """Return all values of the same kind that are less, or equal if inclusive."""
    high = cut_after(value) if inclusive else cut_before(value)
    return ((_FIRST[high[0]], high),) if _FIRST[high[0]] < high else ()


def starting_with(prefix: str) -> Space:
    """Return all texts that begin with a prefix."""
    stem = prefix.rstrip(_LAST_CHARACTER)
    if not stem:
        return ((cut_before(prefix), _FIRST[_END]),)
    return ((cut_before(prefix), cut_before(stem[:-1] + next_character(stem[-1]))),)


def next_character(character: str) -> str:
    """Return the next character, without surrogates; the given one is not the last."""
    number = ord(character) + 1
    return chr(0xE000 if 0xD800 <= number < 0xE000 else number)


def contains(space: Space, value: Value) -> bool:
    """Return whether a value lies in a space."""
    kind = _KINDS[type(value)]
    at = bisect_right(space, (kind, value, 0), key=_low) - 1
    return at >= 0 and (kind, value, 1) <= space[at][1]


def intersection(one: Space, other: Space) -> Space:
    """Return the intersection."""
    found: list[Span] = []
    left = right = 0
    while left < len(one) and right < len(other):
        low = max(one[left][0], other[right][0])
        high = min(one[left][1], other[right][1])
        if low < high:
            found.append((low, high))
        if one[left][1] <= other[right][1]:
            left += 1
        else:
            right += 1
    return tuple(found)


def union(one: Space, other: Space) -> Space:
    """Return the union."""
    return _merged([*one, *other])


def covers(outer: Space, inner: Space) -> bool:
    """Return whether everything in the inner space lies in the outer one."""
    at = 0
    for low, high in inner:
        while at < len(outer) and outer[at][1] < high:
            at += 1
        if at == len(outer) or outer[at][0] > low:
            return False
    return True


def sample(space: Space) -> Value:
    """Return some value of a space that is not empty, always the same.

    Between two adjacent texts or numbers there may be none: then the nearest one is returned, which
    lies outside.
    """
    for (kind, value, after), high in space:
        if not after and value != -inf:
            return value  # type: ignore[no-any-return]
        if value == -inf:
            top = 0.0 if high[0] != kind or high[1] > 0 else high[1]
            return top if (kind, top, 1) <= high else top - 1
        if kind == _TEXT:
            return value + "\x00"  # type: ignore[no-any-return]
        if high[0] != kind or high[1] == inf:
            return value + 1 if value + 1 != value else value * 2  # type: ignore[no-any-return]
        return (value + high[1]) / 2  # type: ignore[no-any-return]
    raise AssertionError("an empty space has no value")


def split(space: Space) -> Space:
    """Return the same space with a cut between kinds of values."""
    pieces = [
        piece for kind in (_TRUTH, _NUMBER, _TEXT) for piece in intersection(space, _all_of(kind))
    ]
    return tuple(pieces)


def _all_of(kind: int) -> Space:
    return ((_FIRST[kind], _FIRST[kind + 1]),)


def _low(span: Span) -> Cut:
    return span[0]


def _merged(spans: list[Span]) -> Space:
    found: list[Span] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)
