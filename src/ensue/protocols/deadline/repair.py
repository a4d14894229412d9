"""Repair between brokers: exchange ids of messages, and request missing ones.

Once per period a broker with unexpired messages picks a few of their destinations, `fan_out` for
each set of destinations: a group of two is served as well as one of a hundred. To each it names
the messages addressed to it: all that are new since the last time, and the latest of the rest
that fit. A broker that lacks one requests it, and gets a copy. Expired messages are dropped.

Deviation from the paper (erratum 7): a summary names single messages, and only those to the
broker it is sent to; the largest stamps alone do not say what is missing.

Limits: `retained_max` messages, oldest evicted first; `batch_max` ids per frame.
"""

from collections import OrderedDict
from collections.abc import Collection

from ensue.protocols.deadline.causality import Causality, Sent
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.partial_views import Picker

__all__ = ["Repair"]

Key = tuple[int, int]
"""Source and stamp."""
Names = dict[int, tuple[int, ...]]
"""Stamps by source."""


class Repair:
    """The messages that one broker keeps for others."""

    def __init__(self, config: DeadlineConfig, picker: Picker) -> None:
        self._config = config
        self._picker = picker
        self._kept: OrderedDict[Key, Sent] = OrderedDict()
        self._fresh: set[Key] = set()
        """Messages that came since the last summaries."""
        self.due_ns: int | None = None
        """When to send the next summaries."""

    def keep(self, message: Sent, now_ns: int) -> None:
        """Keep a message for brokers that lack it."""
        key = (message.source, message.stamp)
        self._kept[key] = message
        self._fresh.add(key)
        if len(self._kept) > self._config.retained_max:
            self._fresh.discard(self._kept.popitem(last=False)[0])
        if self.due_ns is None:
            self.due_ns = now_ns + self._config.period_ns

    def get(self, source: int, stamp: int) -> Sent | None:
        """Return a kept message."""
        return self._kept.get((source, stamp))

    def summaries(self, others: Collection[int], now_ns: int) -> list[tuple[int, Names]]:
        """Return the due summaries, by broker."""
        if self.due_ns is None or now_ns < self.due_ns <= now_ns + self._config.period_ns:
            return []
        over = [key for key, kept in self._kept.items() if now_ns > kept.deadline_ns]
        for key in over:
            del self._kept[key]
        self.due_ns = now_ns + self._config.period_ns if self._kept else None
        most = self._config.batch_max
        summaries = [
            (other, _by_source(keys[at : at + most]))
            for other, keys in self._choose_destinations(set(others)).items()
            for at in range(0, len(keys), most)
        ]
        self._fresh.clear()
        return summaries

    def _choose_destinations(self, others: set[int]) -> dict[int, list[Key]]:
        """Choose destinations; return their messages, latest first."""
        found: dict[int, list[Key]] = {}
        # Each sender lists itself last: sort, so that equal groups compare equal.
        for dest in dict.fromkeys(tuple(sorted(message.dest)) for message in self._kept.values()):
            there = [other for other in dest if other in others]
            for other in self._picker.sample(there, self._config.fan_out):
                found.setdefault(other, [])
        for key, message in reversed(self._kept.items()):
            for other in message.dest:
                keys = found.get(other)
                if keys is None or other == message.source:
                    continue
                if key in self._fresh or len(keys) < self._config.batch_max:
                    keys.append(key)
        return found

    def lacking(self, have: Names, causality: Causality) -> Names:
        """Return which of the messages that a broker has are missing here and deliverable."""
        wanted: Names = {}
        for source, stamps in have.items():
            missing = tuple(
                stamp
                for stamp in stamps[: self._config.batch_max]
                if not causality.is_settled(source, stamp)
                and (stamp, source) not in causality.waiting
            )
            if missing:
                wanted[source] = missing
        return wanted


def _by_source(keys: list[Key]) -> Names:
    names: dict[int, list[int]] = {}
    for source, stamp in keys:
        names.setdefault(source, []).append(stamp)
    return {source: tuple(sorted(stamps)) for source, stamps in names.items()}
