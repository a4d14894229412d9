"""The files of workers, read while they are written."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Delivered", "Published", "Records", "Tail"]


class Tail:
    """Complete lines of a growing file, each once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0

    def read(self) -> list[list[str]]:
        """Return the lines completed since the last call, as words."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._at += whole
        return [line.split("\t") for line in data[:whole].decode().splitlines()]


@dataclass(frozen=True, slots=True)
class Published:
    """An event that a publisher was about to publish."""

    event: str
    topic: str
    number: int
    """1, 2, 3, … of its incarnation, over all topics."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """An event that a subscriber recorded."""

    position: int
    event: str
    topic: str
    payload: str


@dataclass
class Incarnation:
    """The record of one incarnation of a publisher."""

    tail: Tail
    tried: dict[str, Published] = field(default_factory=dict)
    """By event, in the order they were published."""
    slots: dict[str, int] = field(default_factory=dict)
    """Event to the slot in its receipt."""
    void: dict[str, None] = field(default_factory=dict)
    ended: bool = False


@dataclass
class Reader:
    """The record of a subscriber, over all its incarnations."""

    tail: Tail
    topics: tuple[str, ...]
    got: list[Delivered] = field(default_factory=list)
    joined: int = 0
    """How often."""
    wrong: list[str] = field(default_factory=list)


class Records:
    """The records of all workers."""

    def __init__(self) -> None:
        self.publishers: dict[str, Incarnation] = {}
        """By the name of the incarnation."""
        self.subscribers: dict[str, Reader] = {}
        self.receipts: Counter[str] = Counter()
        """By publisher."""
        self.deliveries = 0
        self._wanted: dict[str, dict[str, None]] = {}
        """By topic: events that must reach all subscribers: receipted, or delivered to one."""
        self._publisher_of: dict[str, str] = {}

    def add_publisher(self, publisher: str, incarnation: str, path: Path) -> None:
        self.publishers[incarnation] = Incarnation(Tail(path))
        self._publisher_of[incarnation] = publisher

    def add_subscriber(self, name: str, topics: tuple[str, ...], path: Path) -> None:
        self.subscribers[name] = Reader(Tail(path), topics)

    def read(self) -> None:
        """Read new lines."""
        for name, publisher in self.publishers.items():
            if not publisher.ended:
                for words in publisher.tail.read():
                    self._said(self._publisher_of[name], publisher, words)
        for reader in self.subscribers.values():
            for words in reader.tail.read():
                self._heard(reader, words)

    def wrongs(self) -> list[str]:
        """Return the violations that subscribers recorded."""
        return [f"{name}: {why}" for name, one in self.subscribers.items() for why in one.wrong]

    def missing(self) -> dict[str, int]:
        """Return the number of missing events by subscriber, without zeros."""
        found: dict[str, int] = {}
        for name, reader in self.subscribers.items():
            wanted = sum(len(self._wanted.get(topic, ())) for topic in reader.topics)
            if wanted != len(reader.got):
                found[name] = wanted - len(reader.got)
        return found

    def first_missing(self, name: str, count: int = 5) -> list[str]:
        """Return some events that a subscriber must still get."""
        reader = self.subscribers[name]
        got = {one.event for one in reader.got}
        wanted = (event for topic in reader.topics for event in self._wanted.get(topic, ()))
        return [event for event in wanted if event not in got][:count]

    def _said(self, publisher: str, incarnation: Incarnation, words: list[str]) -> None:
        match words:
            case ["try", number, event, topic]:
                incarnation.tried[event] = Published(event, topic, int(number))
            case ["out", _, event, topic, slot]:
                self.receipts[publisher] += 1
                incarnation.slots[event] = int(slot)
                self._wanted.setdefault(topic, {})[event] = None
            case ["void", _, event, _]:
                incarnation.void[event] = None
            case ["end"]:
                incarnation.ended = True
            case _:
                assert words[0] == "name", words

    def _heard(self, reader: Reader, words: list[str]) -> None:
        match words:
            case ["got", position, event, topic, payload]:
                reader.got.append(Delivered(int(position), event, topic, payload))
                self.deliveries += 1
                self._wanted.setdefault(topic, {})[event] = None
            case ["joined", _]:
                reader.joined += 1
            case ["wrong", why]:
                reader.wrong.append(why)
            case _:
                assert words[0] == "safe", words
