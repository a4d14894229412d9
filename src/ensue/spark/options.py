"""Options of the source and the sink, parsed and checked.

Names are those of Spark's Kafka source where it has the option, in any case.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ensue.spark.conditions import SparkFault

__all__ = ["Offsets", "SinkOptions", "SourceOptions"]

EARLIEST, LATEST = -2, -1
"""The two ends of a topic in the JSON of Kafka's source."""
PARTITION_ROWS = 500_000

_Offset = Annotated[int, msgspec.Meta(ge=EARLIEST)]
Offsets = Literal["earliest", "latest"] | Mapping[str, int]

_SOURCE = (
    "url",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "partitionRows",
)
_SINK = ("url", "publisher", "topic", "lockTimeoutSeconds")
_OF_SPARK = ("path", "checkpointlocation", "queryname")
"""Options that Spark adds: load(path), save(path), and the options of every stream."""


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `spark.read.format("ensue")`."""

    url: str
    topics: tuple[str, ...] | None = None
    """None: all topics, or those that match `pattern`."""
    pattern: str | None = None
    starting: Offsets = "earliest"
    ending: Offsets = "latest"
    offsets_max: int | None = None
    """Most offsets of one micro-batch."""
    fail_on_data_loss: bool = True
    partition_rows: int = PARTITION_ROWS

    @property
    def shown(self) -> str:
        """The URL for messages: without options, because a server's token is one."""
        return self.url.partition("?")[0] if self.url.lower().startswith("ensue://") else self.url

    def wants(self, topic: str) -> bool:
        """Return whether a topic is subscribed."""
        if self.topics is not None:
            return topic in self.topics
        return self.pattern is None or re.fullmatch(self.pattern, topic) is not None

    def named(self) -> set[str]:
        """Return the topics that options name."""
        both = (self.starting, self.ending)
        offsets = {topic for each in both if isinstance(each, Mapping) for topic in each}
        return offsets.union(self.topics or ())

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool | None) -> "SourceOptions":
        """Parse the options of a batch or a stream; None: not known yet which."""
        options = _check_names(given, _SOURCE)
        subscribe, pattern = options.get("subscribe"), options.get("subscribepattern")
        if subscribe is not None and pattern is not None:
            raise SparkFault("CONFLICTING_OPTIONS", "give subscribe or subscribePattern, not both")
        if streaming and "endingoffsets" in options:
            raise SparkFault(
                "CONFLICTING_OPTIONS",
                "endingOffsets is for batches: a stream has no end, or stops by "
                "trigger(availableNow=True)",
            )
        if streaming is False and "maxoffsetspertrigger" in options:
            raise SparkFault("CONFLICTING_OPTIONS", "maxOffsetsPerTrigger is for streams")
        starting = _offsets("startingOffsets", options.get("startingoffsets", "earliest"))
        if streaming is False and _names_end(starting, "latest", LATEST):
            raise _invalid("startingOffsets", "a batch that starts at the latest has no rows")
        ending = _offsets("endingOffsets", options.get("endingoffsets", "latest"))
        if _names_end(ending, "earliest", EARLIEST):
            raise _invalid("endingOffsets", "a batch that ends at the earliest has no rows")
        parsed = cls(
            url=_url(options),
            topics=None if subscribe is None else _topics(subscribe),
            pattern=None if pattern is None else _pattern(pattern),
            starting=starting,
            ending=ending,
            offsets_max=_positive("maxOffsetsPerTrigger", options.get("maxoffsetspertrigger")),
            fail_on_data_loss=_flag("failOnDataLoss", options.get("failondataloss", "true")),
            partition_rows=_positive("partitionRows", options.get("partitionrows"))
            or PARTITION_ROWS,
        )
        for name, offsets in (("startingOffsets", starting), ("endingOffsets", ending)):
            for topic in offsets if isinstance(offsets, Mapping) else ():
                if not parsed.wants(topic):
                    raise _invalid(name, f"it names {topic!r}, which is not subscribed")
        _check_ends(starting, ending)
        return parsed


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `df.write.format("ensue")`."""

    url: str
    publisher: str | None = None
    topic: str | None = None
    lock_timeout_s: float = 60.0
    """Time to wait for another writer of the same log."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "SinkOptions":
        """Parse the options."""
        options = _check_names(given, _SINK)
        for name in ("publisher", "topic"):
            if not options.get(name, "x").strip():
                raise _invalid(name, "it is empty")
        timeout = options.get("locktimeoutseconds", "60")
        try:
            timeout_s = float(timeout)
        except ValueError:
            timeout_s = -1.0
        if not 0 <= timeout_s <= 86_400:
            raise _invalid("lockTimeoutSeconds", f"expected 0 to 86400, got {timeout!r}")
        return cls(
            url=_url(options),
            publisher=options.get("publisher"),
            topic=options.get("topic"),
            lock_timeout_s=timeout_s,
        )


def _invalid(name: str, why: str) -> SparkFault:
    return SparkFault("INVALID_OPTION_VALUE", f"{name}: {why}")


def _check_names(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Return the options by lower-case name."""
    options = {name.lower(): value for name, value in given.items()}
    known = {name.lower() for name in names}
    for name in sorted(options):
        if name not in known and name not in _OF_SPARK:
            raise SparkFault(
                "UNKNOWN_OPTION", f"there is no option {name!r}; expected {', '.join(names)}"
            )
    return options


def _url(options: Mapping[str, str]) -> str:
    url, path = options.get("url"), options.get("path")
    if url is not None and path is not None and url != path:
        raise SparkFault("CONFLICTING_OPTIONS", "give the log as url or as a path, not both")
    found = url or path
    if not found:
        raise SparkFault(
            "MISSING_OPTION",
            "url is missing: name an event log, or a recorded run, by its path, or a server",
        )
    # Executors have other working directories: resolve the path on the driver.
    return found if "://" in found else str(Path(found).absolute())


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(topics):
        raise _invalid("subscribe", f"expected topics between commas, got {text!r}")
    return topics


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise _invalid("subscribePattern", f"{text!r} is no regular expression: {error}") from None
    return text


def _offsets(name: str, text: str) -> Offsets:
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    try:
        return msgspec.json.decode(text, type=dict[str, _Offset])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        example = json.dumps({"orders": 0, "payments": 17})
        raise _invalid(
            name, f"expected earliest, latest or JSON such as {example}, got {text!r}: {error}"
        ) from None


def _names_end(offsets: Offsets, word: str, number: int) -> bool:
    """Return whether offsets name this end of a topic."""
    if isinstance(offsets, str):
        return offsets == word
    return number in offsets.values()


def _check_ends(starting: Offsets, ending: Offsets) -> None:
    """Raise an error if a topic ends before it starts."""
    if isinstance(starting, Mapping) and isinstance(ending, Mapping):
        for topic, end in ending.items():
            start = starting.get(topic, EARLIEST)
            if 0 <= end < start:
                raise _invalid("endingOffsets", f"{topic!r} ends at {end}, and starts at {start}")


def _positive(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise _invalid(name, f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise _invalid(name, f"expected true or false, got {text!r}")
    return text.strip().lower() == "true"
