"""Filters over typed attributes: what advertisements announce and subscriptions ask for.

Theory of operation. A filter is a union of *boxes*. A box has, for some attributes, the space of
values in which each must lie; an attribute that it does not name may have any value or be absent.
An event matches a box if it has every attribute that the box names, with a value inside; it matches
a filter if it matches one of its boxes. `and`, `or`, ranges, equality, sets, prefixes and presence
all have this form (`parser` reads it from text, `to_text` writes it), so that the three questions
of brokers have one answer each:

* `matches` (subsumption of a point filter, Definition 2): does this event match?
* `overlaps` (Definition 1): could an event match both? It holds if two boxes share values in *all*
  attributes that both name. The paper says "exists" (erratum D10); with that, tables grow, and
  brokers that use different rules wait for each other.
* `covers` (Definition 2): does every event that matches the other match this? Decided box by box:
  a yes is always right; a no is wrong where only several boxes together cover another, which
  merely forwards a subscription.

Limits: `BOXES_MAX` boxes after `and` was multiplied out, `ATTRIBUTES_MAX` attributes in an event or
a box. `cost_of_both` and `cost_of_either` estimate the work of combining two filters, so that
`parser` can refuse a short text that would keep a broker busy for minutes.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isinf

import msgspec

from ensue.core.errors import BadInput
from ensue.protocols.content.filters.spaces import (
    EVERYTHING,
    Space,
    Value,
    check_text,
    contains,
    covers,
    cut_after,
    cut_before,
    intersection,
    next_character,
    sample,
    split,
    union,
    value_of,
)

__all__ = [
    "ALL",
    "ATTRIBUTES_MAX",
    "BOXES_MAX",
    "KEYWORDS",
    "NOTHING",
    "Attributes",
    "Box",
    "Filter",
    "check_name",
    "cost_of_both",
    "cost_of_either",
    "event_of",
    "inside",
    "touch",
    "where",
]

BOXES_MAX = 64
ATTRIBUTES_MAX = 64
NAME_LENGTH_MAX = 128

Attributes = Mapping[str, Value]
"""The attributes of an event."""
Box = tuple[tuple[str, Space], ...]
"""Attributes and their spaces, sorted by name; no space is empty."""


class Filter(msgspec.Struct, frozen=True, weakref=True):
    """A union of boxes. Made by `parser.parse`, `every`, `where`, `both` and `either`."""

    boxes: tuple[Box, ...]

    def matches(self, event: Attributes) -> bool:
        """Return whether an event matches."""
        return any(inside(box, event) for box in self.boxes)

    def overlaps(self, other: "Filter") -> bool:
        """Return whether an event could match both."""
        return any(touch(one, two) for one in self.boxes for two in other.boxes)

    def covers(self, other: "Filter") -> bool:
        """Return whether certainly all events that match the other match this."""
        return all(any(_box_covers(mine, box) for mine in self.boxes) for box in other.boxes)

    def both(self, other: "Filter") -> "Filter":
        """Return the filter of the events that match both."""
        met = [meet(one, two) for one in self.boxes for two in other.boxes]
        return _simplified((), [box for box in met if box is not None])

    def either(self, other: "Filter") -> "Filter":
        """Return the filter of the events that match this or the other."""
        return _simplified(self.boxes, other.boxes)

    def samples(self) -> Iterator[dict[str, Value]]:
        """Yield a matching event for each box: a filter that covers this matches all of them."""
        for box in self.boxes:
            yield {name: sample(space) for name, space in box}

    def to_text(self) -> str:
        """Return the text that `parser.parse` reads as this filter."""
        if not self.boxes:
            return "false"
        texts = [" and ".join(_space_text(*each) for each in box) or "true" for box in self.boxes]
        return texts[0] if len(texts) == 1 else " or ".join(f"({text})" for text in texts)

    def __str__(self) -> str:
        return self.to_text()


NOTHING = Filter(())
"""No event matches it."""
ALL = Filter(((),))
"""Every event matches it."""


def where(name: str, space: Space) -> Filter:
    """Return the filter of the events with an attribute in a space."""
    return Filter((((name, space),),)) if space else NOTHING


def check_name(name: str) -> None:
    """Refuse an invalid name of an attribute."""
    if not name or len(name) > NAME_LENGTH_MAX:
        raise BadInput(
            f"an attribute's name must have 1 to {NAME_LENGTH_MAX} characters, got {len(name)}"
        )
    check_text(name, "an attribute's name")


def event_of(attributes: Mapping[str, object]) -> dict[str, Value]:
    """Return the attributes of an event, sorted by name; raise if they are invalid."""
    if not isinstance(attributes, Mapping):
        raise BadInput(
            f"an event by content needs attributes such as {{'price': 12}}, got {attributes!r}"
        )
    for name in attributes:
        if not isinstance(name, str):
            raise BadInput(f"an attribute's name must be text, got {name!r}")
    if len(attributes) > ATTRIBUTES_MAX:
        raise BadInput(
            f"an event may have at most {ATTRIBUTES_MAX} attributes, got {len(attributes)}"
        )
    found: dict[str, Value] = {}
    for name in sorted(attributes):
        check_name(name)
        value = found[name] = value_of(attributes[name])
        if isinstance(value, float) and isinf(value):
            raise BadInput(f"attribute {name!r} must be a finite number, got {value}")
    return found


def inside(box: Box, event: Attributes) -> bool:
    """Return whether an event lies in a box."""
    for name, space in box:
        value = event.get(name)
        if value is None or not contains(space, value):
            return False
    return True


def touch(one: Box, two: Box) -> bool:
    """Return whether two boxes have an intersection that is not empty."""
    for name, space in two:
        for its, mine in one:
            if its == name:
                if not intersection(mine, space):
                    return False
                break
    return True


def meet(one: Box, two: Box) -> Box | None:
    """Return the intersection of two boxes, or None if it is empty."""
    spaces = dict(one)
    for name, space in two:
        mine = spaces.get(name)
        if mine is not None:
            space = intersection(mine, space)  # noqa: PLW2901 - the name is shared on purpose
            if not space:
                return None
        spaces[name] = space
    return tuple(sorted(spaces.items()))


def _box_covers(outer: Box, inner: Box) -> bool:
    spaces = dict(inner)
    return all(name in spaces and covers(space, spaces[name]) for name, space in outer)


def cost_of_both(one: Filter, other: Filter) -> int:
    """Return how much work `both` may be, in spans that are compared."""
    pairs = len(one.boxes) * len(other.boxes)
    return pairs * pairs * (_width(one) + _width(other))


def cost_of_either(one: Filter, other: Filter) -> int:
    """Return how much work `either` may be, in spans that are compared."""
    return len(one.boxes) * len(other.boxes) * (_width(one) + _width(other))


def _width(wanted: Filter) -> int:
    """Return the average number of spans of a box, plus a constant cost."""
    spans = sum(len(space) for box in wanted.boxes for _, space in box)
    return 5 + spans // (len(wanted.boxes) or 1)


def _simplified(simple: Sequence[Box], boxes: Sequence[Box]) -> Filter:
    """Add boxes to simple ones: drop those inside others, join those that differ in one space."""
    kept = list(simple)
    for box in sorted(set(boxes)):
        joined = box
        for other in list(kept):
            if _box_covers(other, joined):
                joined = other
                kept.remove(other)
            elif _box_covers(joined, other):
                kept.remove(other)
            elif (together := _joined(other, joined)) is not None:
                kept.remove(other)
                joined = together
        kept.append(joined)
    if len(kept) > BOXES_MAX:
        raise BadInput(
            f"the filter has {len(kept)} alternatives after 'and' is multiplied out; "
            f"at most {BOXES_MAX} are allowed"
        )
    return Filter(tuple(sorted(kept)))


def _joined(one: Box, two: Box) -> Box | None:
    if [name for name, _ in one] != [name for name, _ in two]:
        return None
    differing = [
        index for index, (mine, its) in enumerate(zip(one, two, strict=True)) if mine != its
    ]
    if len(differing) != 1:
        return None
    index = differing[0]
    name, space = one[index]
    return (*one[:index], (name, union(space, two[index][1])), *one[index + 1 :])


# -- Text ---------------------------------------------------------------------------------------


def _space_text(name: str, space: Space) -> str:
    if space == EVERYTHING:
        return f"{name_text(name)} exists"
    space = split(space)
    points = [low[1] for low, high in space if high == cut_after(low[1]) and not low[2]]
    parts: list[str] = []
    if len(points) == 1:
        parts.append(f"{name_text(name)} = {value_text(points[0])}")
    elif points:
        parts.append(f"{name_text(name)} in ({', '.join(value_text(one) for one in points)})")
    for low, high in space:
        if not (high == cut_after(low[1]) and not low[2]):
            parts.append(_span_text(name_text(name), low, high))
    return parts[0] if len(parts) == 1 else f"({' or '.join(parts)})"


def _span_text(name: str, low: tuple[int, object, int], high: tuple[int, object, int]) -> str:
    prefix = _prefix_of(low, high)
    if prefix is not None:
        return f"{name} starts with {value_text(prefix)}"
    parts = []
    lowest = {1: (1, float("-inf"), 0), 2: (2, "", 0)}.get(low[0])
    if low != lowest:
        parts.append(f"{name} {'>' if low[2] else '>='} {value_text(low[1])}")
    if high[0] == low[0]:
        parts.append(f"{name} {'<=' if high[2] else '<'} {value_text(high[1])}")
    if not parts:
        return f"{name} >= {value_text(low[1])}"
    return parts[0] if len(parts) == 1 else f"({' and '.join(parts)})"


def _prefix_of(low: tuple[int, object, int], high: tuple[int, object, int]) -> str | None:
    text = low[1]
    if not isinstance(text, str) or not text or low[2] or high[2] or not isinstance(high[1], str):
        return None
    if ord(text[-1]) == 0x10FFFF:
        return None
    return text if high == cut_before(text[:-1] + next_character(text[-1])) else None


def name_text(name: str) -> str:
    """Return an attribute's name as it is written."""
    plain = name.isidentifier() and name.isascii() and name.lower() not in KEYWORDS
    return name if plain else '"' + name.replace('"', '""') + '"'


def value_text(value: object) -> str:
    """Return a value as it is written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


KEYWORDS = ("and", "or", "in", "exists", "starts", "with", "true", "false", "between", "inf")
"""Words that are not names unless quoted."""
