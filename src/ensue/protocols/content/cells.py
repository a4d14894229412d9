"""Cells: events by content, divided among topics that total order puts in sequence.

Theory of operation. The operator of a chain declares the attributes that filters use, and how their
values are divided into classes. A *cell* is one class of each attribute: a fixed partition, known
to all clients of the chain. Each cell is one topic.

* An event goes to exactly one cell: the classes of its values, or class 0 of an attribute that it
  does not have. So it has one stamp, and needs no more than any other event.
* A subscription joins every cell in which an event could match its filter, and drops what does not
  match. Two filters that overlap share the cell of every event that matches both, so the order of
  their topics is the order of their events. Two that share no cell never wait for each other.

What a subscriber gets and drops came in vain: `ContentCounts` has the numbers. Finer classes make
it less, and more topics.

A declaration is text: `symbol/16; price<10<100; region='eu','us'`.

* `symbol/16`: 16 classes by a hash of the value, for tests of equality;
* `price<10<100`: ranges, here below 10, from 10 to below 100, and from 100 on;
* `region='eu','us'`: a class for each of these values, and one for all others.

The partition never changes while a chain runs, so no event can fall between two partitions. The
names of the topics contain a digest of the declaration: servers refuse the cells of another one.

HAZARD: filters that are disjoint and share a cell do wait for each other there: two symbols with
one hash, or two ranges within one class.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise, product
from math import prod

import msgspec

from ensue.core.errors import BadInput
from ensue.core.event import Event, wire_bytes
from ensue.protocols.content.filters.filter import Attributes, Filter, check_name
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.filters.spaces import (
    EVERYTHING,
    Space,
    Value,
    contains,
    covers,
    cut_before,
    intersection,
    one_of,
)

__all__ = [
    "CELLS_MAX",
    "PREFIX",
    "Cells",
    "ContentCounts",
    "Match",
    "attributes_of",
    "headers_of",
    "is_cell",
]

CELLS_MAX = 512
"""Cells of one declaration; a subscription to all of them has as many topics."""
PREFIX = "content:"
"""How the topics of cells begin."""
_PART = re.compile(r"""(?:[^;'"]|'(?:[^']|'')*'|"(?:[^"]|"")*")+""")
_NAME = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<word>[A-Za-z_](?:[\w.-]*\w)?))\s*')
_COUNT = re.compile(r"/\s*(\d{1,6})\s*")
_VALUES = re.compile(r"""(?P<sign>[<=,])\s*(?P<value>'(?:[^']|'')*'|[^\s<=,'"]+)\s*""")
_JSON = msgspec.json.Decoder(bool | int | float | str)


class ContentCounts(msgspec.Struct, kw_only=True):
    """Counts of the events that reached one subscription by content."""

    received: int = 0
    delivered: int = 0
    """Those that match its filter."""
    in_vain: int = 0
    """Events of its cells that do not match its filter; they are not delivered."""
    in_vain_bytes: int = 0
    """Their size in messages, about."""
    late: int = 0
    """Always 0, as `overflow`: such events are tagged. The counts of the other orders have them."""
    overflow: int = 0


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """One attribute, and the classes of its values; class 0 is its absence."""

    name: str
    buckets: int = 0
    """Classes by hash; 0: by `spaces`."""
    spaces: tuple[Space, ...] = ()
    is_open: bool = False
    """Whether values in none of the spaces have a class of their own, the last one."""

    @property
    def count(self) -> int:
        """The number of classes, with that of its absence."""
        return 1 + (self.buckets or len(self.spaces) + self.is_open)

    def class_of(self, value: Value | None) -> int:
        """Return the class of a value; None: the attribute is absent."""
        if value is None:
            return 0
        if self.buckets:
            return 1 + _hash(value) % self.buckets
        for number, space in enumerate(self.spaces, 1):
            if contains(space, value):
                return number
        return self.count - 1

    def classes_in(self, wanted: Space | None) -> tuple[int, ...]:
        """Return the classes that share a value with a space; None: all, and absence."""
        if wanted is None:
            return tuple(range(self.count))
        if self.buckets:
            if any(high != (*low[:2], 1) or low[2] for low, high in wanted):
                return tuple(range(1, self.count))  # More than single values.
            return tuple(sorted({self.class_of(low[1]) for low, _ in wanted}))
        found = [n for n, space in enumerate(self.spaces, 1) if intersection(space, wanted)]
        listed = tuple(span for space in self.spaces for span in space)
        if self.is_open and not covers(tuple(sorted(listed)), wanted):
            found.append(self.count - 1)
        return tuple(found)


class Cells(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of all events. Made by `parse`."""

    text: str
    axes: tuple[Axis, ...]
    stem: str
    """How the topics of these cells begin."""

    @staticmethod
    def parse(text: str) -> "Cells":
        """Return the partition of a declaration; raise `BadInput` if it is wrong."""
        if not isinstance(text, str):
            raise BadInput(f"cells must be text such as 'symbol/16', got {type(text).__name__}")
        return _parse(text)

    @property
    def count(self) -> int:
        """The number of cells."""
        return prod(axis.count for axis in self.axes)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of all cells."""
        return tuple(map(self._topic, product(*(range(axis.count) for axis in self.axes))))

    def has(self, event: Event) -> bool:
        """Return whether an event is on the topic of the cell of its attributes."""
        try:
            return self.topic_of(attributes_of(event.headers)) == event.topic
        except msgspec.DecodeError:
            return False

    def topic_of(self, event: Attributes) -> str:
        """Return the topic of the cell of an event."""
        return self._topic(tuple(axis.class_of(event.get(axis.name)) for axis in self.axes))

    def topics_in(self, wanted: Filter) -> tuple[str, ...]:
        """Return the topics of all cells in which an event could match a filter."""
        found: dict[tuple[int, ...], None] = {}
        for box in wanted.boxes:
            spaces = dict(box)
            classes = (axis.classes_in(spaces.get(axis.name)) for axis in self.axes)
            found.update(dict.fromkeys(product(*classes)))
        return tuple(map(self._topic, sorted(found)))

    def _topic(self, classes: tuple[int, ...]) -> str:
        return f"{self.stem}{'-'.join(map(str, classes))}"


class Match:
    """Whether an event of a cell matches a filter: a function of events."""

    def __init__(self, wanted: Filter) -> None:
        self._wanted = wanted
        self.counts = ContentCounts()

    def __call__(self, event: Event) -> bool:
        """Return whether an event matches, and count it."""
        try:
            matches = self._wanted.matches(attributes_of(event.headers))
        except msgspec.DecodeError:
            matches = False  # No client of Ensue published it.
        self.counts.received += 1
        if matches:
            self.counts.delivered += 1
        else:
            self.counts.in_vain += 1
            self.counts.in_vain_bytes += wire_bytes(event)
        return matches


def is_cell(topic: str) -> bool:
    """Return whether a topic is that of a cell."""
    return topic.startswith(PREFIX)


def headers_of(attributes: Attributes) -> dict[str, str]:
    """Return the headers of an event with these attributes: their values as JSON."""
    return {name: msgspec.json.encode(value).decode() for name, value in attributes.items()}


def attributes_of(headers: Mapping[str, str]) -> dict[str, Value]:
    """Return the attributes of an event; raise `msgspec.DecodeError` if it has none."""
    return {name: _JSON.decode(text) for name, text in headers.items()}


def _hash(value: Value) -> int:
    """Return a hash that is equal for equal values, at every client."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1 and 1.0 are one value.
    text = f"{type(value).__name__}:{value!r}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


@lru_cache(maxsize=256)
def _parse(text: str) -> Cells:
    axes: list[Axis] = []
    parts = _PART.findall(text)
    if not parts or any(not part.strip() for part in parts):
        raise _wrong(text, "an attribute is missing")
    for part in parts:
        axis = _axis(part, text)
        if any(axis.name == other.name for other in axes):
            raise _wrong(text, f"{axis.name!r} is declared twice")
        axes.append(axis)
    digest = blake2b(repr(axes).encode(), digest_size=4).hexdigest()
    cells = Cells(text=text, axes=tuple(axes), stem=f"{PREFIX}{digest}:")
    if cells.count > CELLS_MAX:
        raise BadInput(
            f"cells {text!r} are {cells.count}; at most {CELLS_MAX} are allowed: declare fewer "
            "attributes or classes"
        )
    return cells


def _axis(part: str, text: str) -> Axis:
    found = _NAME.match(part)
    if found is None:
        raise _wrong(text, f"{part.strip()!r} does not begin with an attribute")
    name = found["word"] or found["quoted"].replace('""', '"')
    check_name(name)
    rest = part[found.end() :]
    counted = _COUNT.fullmatch(rest)
    if counted is not None:
        buckets = int(counted[1])
        if buckets < 2:
            raise _wrong(text, f"{name!r} needs at least 2 classes, got {buckets}")
        return Axis(name=name, buckets=buckets)
    sign, values = _values(rest, name, text)
    if sign == "=":
        return Axis(name=name, spaces=tuple(one_of((each,)) for each in values), is_open=True)
    cuts = [cut_before(each) for each in values]
    if any(low >= high for low, high in pairwise(cuts)):
        raise _wrong(text, f"the bounds of {name!r} must increase")
    if len({cut[0] for cut in cuts}) > 1:
        raise _wrong(text, f"the bounds of {name!r} must be numbers, or all texts")
    ((first, last),) = EVERYTHING
    ends = zip((first, *cuts), (*cuts, last), strict=True)
    return Axis(name=name, spaces=tuple(((low, high),) for low, high in ends if low < high))


def _values(rest: str, name: str, text: str) -> tuple[str, list[Value]]:
    """Return what separates the values of an attribute, `<` or `=`, and the values."""
    signs, values, at = "", list[Value](), 0
    while (found := _VALUES.match(rest, at)) is not None:
        signs += found["sign"]
        try:
            ((value,),) = (
                tuple(each.values()) for each in parse(f"x = {found['value']}").samples()
            )
        except BadInput:
            raise _wrong(
                text, f"{found['value']!r} must be a number, true, false or 'a text'"
            ) from None
        if cut_before(value) in map(cut_before, values):
            raise _wrong(text, f"{name!r} has {value!r} twice")
        values.append(value)
        at = found.end()
    if at < len(rest) or not re.fullmatch(r"<+|=,*", signs):
        raise _wrong(text, f"{rest.strip()!r} is no division of {name!r}")
    return signs[0], values


def _wrong(text: str, why: str) -> BadInput:
    return BadInput(
        f"cells {text!r}: {why}; expected such as symbol/16; price<10<100; region='eu','us'"
    )
