"""Rows to append to a log, and the rows of a log as plain values."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ensue.store import DirectoryReader


def row(topic: str, number: int, *, publisher: str = "web", **more: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "value": f"{topic} {number}".encode(),
        "publisher": publisher,
        "publisher_seq": number,
        "published_at": number,
        **more,
    }


def rows(topic: str, numbers: Iterable[int], **more: Any) -> list[dict[str, Any]]:
    return [row(topic, number, **more) for number in numbers]


def everything(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """Read all rows, by topic."""
    reader = DirectoryReader(directory)
    return {
        topic: [each for batch in reader.read(topic, *bounds) for each in batch.to_pylist()]
        for topic, bounds in reader.bounds().items()
    }


def numbers(directory: Path) -> dict[str, list[int]]:
    """Return the `publisher_seq` of each topic's rows, in log order."""
    return {
        topic: [each["publisher_seq"] for each in found]
        for topic, found in everything(directory).items()
    }
