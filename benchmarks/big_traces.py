"""Large traces of a run with total order, made from arrays, with optional planted violations.

Publishers publish on random topics. Every subscriber delivers the events of its topics in one
order, which differs from the order of publication by up to `LATE_NS`. Each subscriber has one file
of rows, sorted by step. A planted violation is described by its events and its subscriber; each has
its own range of deliveries, so that violations do not overlap.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ensue.core import trace

__all__ = ["Planted", "Shape", "generate"]

Integers = npt.NDArray[np.int64]
RUN = "large"
STEP_NS = 10_000
LATE_NS = 50_000_000
GAP = 64
"""Least number of deliveries between two violations of one subscriber."""
NOBODYS = 1_000_000_000
"""Larger than any number of a publisher."""
KINDS = ("total", "fifo", "lost", "duplicate", "phantom", "moved")
joined: Any = pc.binary_join_element_wise


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a trace."""

    deliveries: int
    topics: int = 20
    publishers: int = 16
    subscribers: int = 40
    topics_each: int = 10
    seed: int = 1

    @property
    def events(self) -> int:
        """The number of events that gives about that many deliveries."""
        return max(1, self.deliveries * self.topics // (self.subscribers * self.topics_each))


@dataclass(frozen=True, slots=True)
class Planted:
    """One violation."""

    kind: str
    node: str
    events: tuple[str, ...]


class _Events:
    """All events, in total order."""

    def __init__(self, shape: Shape) -> None:
        random = np.random.default_rng(shape.seed)
        count = shape.events
        self.random = random
        self.topic = random.integers(0, shape.topics, count)
        self.publisher = random.integers(0, shape.publishers, count)
        lane = self.topic * shape.publishers + self.publisher
        by_lane = np.argsort(lane, kind="stable")
        starts = np.searchsorted(lane[by_lane], np.arange(shape.topics * shape.publishers))
        self.number = np.empty(count, dtype=np.int64)
        self.number[by_lane] = np.arange(count) - starts[lane[by_lane]] + 1
        # The times of a publisher never go back: it published in the order of delivery.
        self.time = np.arange(count, dtype=np.int64) * STEP_NS + random.integers(0, LATE_NS, count)
        for publisher in range(shape.publishers):
            mine = self.publisher == publisher
            self.time[mine] = np.sort(self.time[mine])
        self.ids = _ids(self.publisher, self.topic, self.number)


def _ids(publisher: Integers, topic: Integers, number: Integers) -> pa.StringArray:
    texts = (_named("publisher", publisher), _named("topic", topic))
    numbers = pa.array(number).cast(pa.string())
    ids: pa.StringArray = joined(*texts, numbers, "/")
    return ids


def _named(kind: str, which: Integers) -> pa.StringArray:
    names = pa.array([f"{kind}-{number}" for number in range(int(which.max(initial=0)) + 1)])
    return names.take(which)


def generate(
    folder: Path, shape: Shape, *, planted: int = 0
) -> tuple[list[Planted], pa.StringArray]:
    """Write a trace, one file per subscriber; return planted violations and events in order."""
    folder.mkdir(parents=True)
    events = _Events(shape)
    _write_publishers(folder, shape, events)
    found: list[Planted] = []
    random = np.random.default_rng(shape.seed + 1)
    for subscriber in range(shape.subscribers):
        topics = np.sort(random.choice(shape.topics, shape.topics_each, replace=False))
        order = np.flatnonzero(np.isin(events.topic, topics)).astype(np.int64)
        share = planted // shape.subscribers + (subscriber < planted % shape.subscribers)
        node = f"subscriber-{subscriber}"
        unused = NOBODYS * (subscriber + 1)
        delivered, phantoms, violations = _plant(events, order, node, share, unused, random)
        found += violations
        _write_subscriber(folder, events, node, topics, delivered, phantoms)
    return found, events.ids


def _plant(
    events: _Events,
    order: Integers,
    node: str,
    count: int,
    unused: int,
    random: np.random.Generator,
) -> tuple[Integers, dict[int, int], list[Planted]]:
    """Plant violations in a subscriber's deliveries; return these, and phantoms by number.

    Phantoms have numbers from `unused` on, and all are distinct: one phantom at two subscribers
    would be in a different order than all events between, and hide other violations.
    """
    pieces: list[Integers] = []
    phantoms: dict[int, int] = {}
    violations: list[Planted] = []
    end = size = 0
    room = len(order) // max(1, count)
    if count and room < 2 * GAP:
        raise ValueError(f"{len(order)} deliveries have no room for {count} violations")
    for index in range(count):
        kind = KINDS[(index + int(random.integers(0, len(KINDS)))) % len(KINDS)]
        place = index * room + int(random.integers(GAP // 2, room - GAP))
        pieces.append(order[end:place])
        size += place - end
        taken = _violation(events, order, place, kind)
        if taken is None:
            kind, taken = "lost", (1, np.empty(0, dtype=np.int64))
        length, put = taken
        if kind == "phantom":
            phantoms[size + len(put) - 1] = unused + index
        pieces.append(put)
        size += len(put)
        end = place + length
        concerned = _concerned(events, order, place, kind, unused + index)
        violations.append(Planted(kind, node, concerned))
    pieces.append(order[end:])
    return np.concatenate(pieces), phantoms, violations


def _violation(
    events: _Events, order: Integers, place: int, kind: str
) -> tuple[int, Integers] | None:
    """Return the number of deliveries to replace, and the replacement; None if none fits."""
    here = order[place : place + GAP // 2]
    if kind == "lost":
        return 1, here[:0]
    if kind in ("duplicate", "phantom"):
        return 1, here[[0, 0]]
    if kind == "moved":
        return len(here), np.append(here[1:], here[0])
    lane = events.topic[here] * 1_000_000 + events.publisher[here]
    same = lane == lane[0]
    if kind == "total":
        return (2, here[[1, 0]]) if not same[1] else None
    later = np.flatnonzero(same[1:]) + 1
    if not len(later):
        return None
    swapped = here[: later[0] + 1].copy()
    swapped[[0, -1]] = swapped[[-1, 0]]
    return len(swapped), swapped


def _concerned(
    events: _Events, order: Integers, place: int, kind: str, phantom: int
) -> tuple[str, ...]:
    """Return the ids of the events that a violation moved, removed, repeated or invented."""
    first = int(order[place])
    if kind == "phantom":
        return (f"publisher-{events.publisher[first]}/topic-{events.topic[first]}/{phantom}",)
    concerned = [first]
    if kind in ("total", "fifo"):
        length, _ = _violation(events, order, place, kind) or (1, order)
        concerned.append(int(order[place + length - 1]))
    return tuple(events.ids[event].as_py() for event in concerned)


def _write_publishers(folder: Path, shape: Shape, events: _Events) -> None:
    for publisher in range(shape.publishers):
        mine = np.flatnonzero(events.publisher == publisher)
        mine = mine[np.argsort(events.time[mine], kind="stable")]
        columns = {
            "step": np.arange(1, len(mine) + 1),
            "at_ns": events.time[mine],
            "true_ns": events.time[mine],
            **_labels(events, mine),
        }
        _write(folder, f"publisher-{publisher}", [("published", len(mine), columns)])


def _write_subscriber(
    folder: Path,
    events: _Events,
    node: str,
    topics: Integers,
    delivered: Integers,
    phantoms: dict[int, int],
) -> None:
    first = len(topics)
    joins = {
        "step": np.arange(1, first + 1),
        "at_ns": np.full(first, -1),
        "true_ns": np.full(first, -1),
        "topic": _named("topic", topics),
    }
    times = np.maximum.accumulate(events.time[delivered]) + LATE_NS
    labels = _labels(events, delivered)
    if phantoms:
        numbers = events.number[delivered].copy()
        numbers[list(phantoms)] = list(phantoms.values())
        labels = _labels(events, delivered, numbers)
    deliveries = {
        "step": np.arange(first + 1, first + 1 + len(delivered)),
        "at_ns": times,
        "true_ns": times,
        "position": np.arange(1, len(delivered) + 1),
        **labels,
    }
    _write(folder, node, [("subscribed", first, joins), ("delivered", len(delivered), deliveries)])


def _labels(events: _Events, which: Integers, numbers: Integers | None = None) -> dict[str, Any]:
    ids = events.ids.take(which)
    if numbers is not None:
        ids = _ids(events.publisher[which], events.topic[which], numbers)
    return {
        "event": ids,
        "topic": _named("topic", events.topic[which]),
        "publisher": _named("publisher", events.publisher[which]),
        "publisher_seq": events.number[which] if numbers is None else numbers,
    }


def _write(folder: Path, node: str, parts: list[tuple[str, int, dict[str, Any]]]) -> None:
    """Write the rows of one node as a file."""
    schema = trace.schema()
    with pq.ParquetWriter(folder / f"{node}.parquet", schema, compression="zstd") as writer:
        for action, count, columns in parts:
            same = {
                "run": RUN,
                "node": node,
                "action": action,
                "subscription": node if action != "published" else None,
                "verdict": "",
                "order": "total",
            }
            arrays = []
            for field in schema:
                if field.name in columns:
                    arrays.append(pa.array(columns[field.name], type=field.type))
                elif (value := same.get(field.name)) is not None:
                    arrays.append(pa.repeat(pa.scalar(value), count))
                else:
                    arrays.append(pa.nulls(count, field.type))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=1 << 20)
