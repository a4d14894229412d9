"""Which topics there are, who subscribes to them, and in which order events are published."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PARTS", "QUICK_PARTS", "Layout", "Part"]

PATTERNS = ("same", "disjoint", "overlapping")


@dataclass(frozen=True)
class Layout:
    """Topics, subscribers, and the events of one publisher.

    Topics are dealt out to subscribers in turn, so that neighboring topics belong to different
    subscribers: the run of a topic is the run of all its subscribers.
    """

    topics: int
    subscribers: int
    pattern: str
    """`same`: each subscriber has all topics; `disjoint`: each topic has one subscriber;
    `overlapping`: each topic has two, and each subscriber shares with two others."""
    run: int = 1
    """Events of a topic in a row."""

    def __str__(self) -> str:
        return (
            f"{self.topics:,} topics, {self.subscribers} subscribers, {self.pattern}, "
            f"runs of {self.run}"
        )

    @classmethod
    def parse(cls, words: Sequence[str]) -> "Layout":
        """Return the layout of an argument list."""
        topics, subscribers, pattern, run = words
        return cls(int(topics), int(subscribers), pattern, int(run))

    @property
    def words(self) -> list[str]:
        """The layout as an argument list."""
        return [str(self.topics), str(self.subscribers), self.pattern, str(self.run)]

    @property
    def copies(self) -> int:
        """Subscribers of each topic: deliveries of each event."""
        if self.pattern == "same":
            return self.subscribers
        return min(self.subscribers, 1 if self.pattern == "disjoint" else 2)

    @property
    def names(self) -> list[str]:
        """The names of all topics."""
        return [f"topic-{number}" for number in range(self.topics)]

    @property
    def round(self) -> list[str]:
        """The topics of consecutive events, from the first event on; then it begins again."""
        return [name for name in self.names for _ in range(self.run)]

    def has(self, subscriber: int, topic: int) -> bool:
        """Whether a subscriber has a topic."""
        if self.pattern == "same":
            return True
        return (topic - subscriber) % self.subscribers < self.copies

    def topics_of(self, subscriber: int) -> list[str]:
        """Return the topics of a subscriber."""
        return [name for number, name in enumerate(self.names) if self.has(subscriber, number)]

    def events_of(self, subscriber: int, start: int, stop: int) -> list[int]:
        """Return the numbers of a subscriber's events in this range."""
        return [
            number
            for number in range(start, stop)
            if self.has(subscriber, number // self.run % self.topics)
        ]


@dataclass(frozen=True)
class Part:
    """Layouts that differ in one number."""

    name: str
    title: str
    layouts: tuple[Layout, ...]


def _parts(
    topics: Sequence[int], subscribers: Sequence[int], runs: Sequence[int], *, spread: int
) -> tuple[Part, ...]:
    """Return all parts; `spread` is the number of topics where subscribers or runs vary."""
    some = max(subscribers) // 5
    return (
        Part(
            "topics",
            "Topics, 3 subscribers of all of them",
            tuple(Layout(each, 3, "same") for each in topics),
        ),
        Part(
            "topics-disjoint",
            f"Topics, dealt out to at most {some} subscribers",
            tuple(Layout(each, min(each, some), "disjoint") for each in topics),
        ),
        Part(
            "disjoint",
            f"Subscribers of {spread:,} topics, each topic with one subscriber",
            tuple(Layout(spread, each, "disjoint") for each in subscribers),
        ),
        Part(
            "overlapping",
            f"Subscribers of {spread:,} topics, each topic with two subscribers",
            tuple(Layout(spread, each, "overlapping") for each in subscribers),
        ),
        Part(
            "same",
            f"Subscribers of the same {topics[0]} topics",
            tuple(Layout(topics[0], each, "same") for each in subscribers),
        ),
        Part(
            "runs",
            f"Runs: events of a topic in a row, {spread:,} topics dealt out to {some} subscribers",
            tuple(Layout(spread, some, "disjoint", each) for each in runs),
        ),
    )


PARTS = _parts((10, 100, 1_000, 10_000), (1, 10, 100, 500), (1, 10, 100), spread=1_000)
QUICK_PARTS = _parts((10, 100), (1, 10), (1, 10), spread=20)
