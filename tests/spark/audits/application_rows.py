"""Traces as a bus writes them: what the application submitted, and which receipts it got."""

from random import Random
from typing import Self

import msgspec
from tests.checkers.generator import generate
from tests.checkers.helpers import Script

from ensue.core.event import event_id
from ensue.core.trace import Row

LABEL = ("event", "topic", "publisher", "publisher_seq")


class Application(Script):
    """Rows that clients write, with positions; ids are publisher, topic and number."""

    def __init__(self, *, named: bool = False, simulated: bool = True) -> None:
        super().__init__(simulated=simulated)
        self._named = named
        """Whether events keep the names that the test gives them."""
        self._labels: dict[str, dict[str, object]] = {}
        self._positions: dict[tuple[str, str], int] = {}

    def subscribe(self, node: str, *topics: str, subscription: str = "main") -> Self:
        super().subscribe(node, *topics, subscription=subscription)
        return self

    def crash(self, node: str) -> Self:
        super().crash(node)
        return self

    def restart(self, node: str) -> Self:
        super().restart(node)
        return self

    def submit(self, node: str, *events: str, topic: str = "x") -> Self:
        for event in events:
            number = 1 + sum(
                (known["publisher"], known["topic"]) == (node, topic)
                for known in self._labels.values()
            )
            name = event if self._named else event_id(node, topic, number)
            self._labels[event] = dict(zip(LABEL, (name, topic, node, number), strict=True))
            self.row(node, "submitted", **self._labels[event])
        return self

    def submit_again(self, node: str, event: str) -> Self:
        self.row(node, "submitted", **self._labels[event])
        return self

    def confirm(self, node: str, *events: str) -> Self:
        for event in events:
            self.row(node, "published", **self._labels[event])
        return self

    def hand_over(
        self, node: str, *events: str, subscription: str = "main", position: int | None = None
    ) -> Self:
        for event in events:
            self.row(
                node,
                "delivered",
                **self._labels[event],
                subscription=subscription,
                position=self._position(node, subscription, position),
            )
        return self

    def leave_unread(
        self, node: str, *events: str, subscription: str = "main", position: int | None = None
    ) -> Self:
        for event in events:
            self.row(
                node,
                "discarded",
                **self._labels[event],
                subscription=subscription,
                position=self._position(node, subscription, position),
                verdict="unread",
            )
        return self

    def _position(self, node: str, subscription: str, position: int | None) -> int:
        last = self._positions.get((node, subscription), 0)
        self._positions[node, subscription] = last + 1 if position is None else position
        return self._positions[node, subscription]


def random_application(seed: int) -> list[Row]:
    """Turn a random trace into one that clients wrote.

    Most publications are submitted first and confirmed later, or never; some deliveries are left
    unread; and there are rows of the protocol nodes, which are not judged.
    """
    random = Random(f"application {seed}")
    by_node: dict[str, list[Row]] = {}
    for row in sorted(generate(seed), key=lambda row: (row.node, row.step)):
        by_node.setdefault(row.node, []).append(row)
    leaves_unread = random.random() < 0.3
    found: list[Row] = []
    for rows in by_node.values():
        placed: list[tuple[float, Row]] = []
        """By the place of a row among those of its node."""
        submitted: set[str | None] = set()
        for place, row in enumerate(rows):
            if row.action == "published" and row.event not in submitted:
                submitted.add(row.event)
                placed += _published(random, rows, place)
            elif row.action == "delivered" and leaves_unread and random.random() < 0.2:
                unread = msgspec.structs.replace(row, action="discarded", verdict="unread")
                placed.append((random.choice((place, random.uniform(0, len(rows)))), unread))
            elif row.action == "delivered":
                placed.append((place - 0.1, msgspec.structs.replace(row, action="node_delivered")))
                placed.append((place, row))
            elif row.verdict == "void" and row.event is not None:
                placed.append((place, _labeled(row)))
            elif row.action == "unsubscribed" and random.random() < 0.5:
                placed.append((place, msgspec.structs.replace(row, verdict="lost")))
            else:
                placed.append((place, row))
        placed.sort(key=lambda each: each[0])
        found += [
            msgspec.structs.replace(row, step=step) for step, (_, row) in enumerate(placed, 1)
        ]
    random.shuffle(found)
    return found


def _labeled(row: Row) -> Row:
    """Return the row of a node that discards its event, as recorders write it."""
    assert row.event is not None
    publisher, topic, number = row.event.split("/")
    return msgspec.structs.replace(row, topic=topic, publisher=publisher, publisher_seq=int(number))


def _published(random: Random, rows: list[Row], place: int) -> list[tuple[float, Row]]:
    """Return the rows of one publication, each with its place."""
    row = rows[place]
    if random.random() < 0.1:
        return [(place, row)]
    submitted = msgspec.structs.replace(row, action="submitted")
    of_node = msgspec.structs.replace(row, action="node_published")
    placed = [(place - 0.2, submitted), (place - 0.1, of_node)]
    if random.random() < 0.8:
        later = random.randrange(place, min(place + 6, len(rows)))
        at = rows[later]
        receipt = msgspec.structs.replace(row, at_ns=at.at_ns, true_ns=at.true_ns)
        placed.append((later + 0.1, receipt))
    return placed
