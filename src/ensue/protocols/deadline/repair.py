"""How brokers get what was lost on its way: each tells others now and then which messages to them it has.

Once in a period a broker that has messages whose deadline is not over picks a few of those whom they are for, `fan_out` for each set of
destinations: a group of two is as well off as one of a hundred, whatever else there is. To each it names what is addressed to it: all that
is new since the last time, and of the rest the latest that fit beside it. Whoever lacks one asks for it by name, and is sent a copy. Messages that nobody can deliver any more are dropped.

Departures from the paper (erratum 7): a summary names single messages, and only those to the broker it is sent to; the largest stamps
alone don't tell what is missing.

Limit: `retained_max` messages, the oldest go first; `batch_max` names a frame, and as many frames as what is new needs.
"""

from collections import OrderedDict
from collections.abc import Collection

from ensue.protocols.gossip.causality import Causality, Sent
from ensue.protocols.gossip.config import GossipConfig
from ensue.protocols.gossip.views import Picker

__all__ = ["Repair"]

Key = tuple[int, int]
"""Source and stamp."""
Names = dict[int, tuple[int, ...]]
"""By source: stamps."""


class Repair:
    """The messages that one broker has."""

    def __init__(self, config: GossipConfig, picker: Picker) -> None:
        self._config = config
        self._picker = picker
        self._kept: OrderedDict[Key, Sent] = OrderedDict()
        self._fresh: set[Key] = set()
        """What has come since others were told the last time."""
        self.due_ns: int | None = None
        """When to tell others what is here."""

    def keep(self, message: Sent, now_ns: int) -> None:
        """Keep a message for whoever lacks it."""
        key = (message.source, message.stamp)
        self._kept[key] = message
        self._fresh.add(key)
        if len(self._kept) > self._config.retained_max:
            self._fresh.discard(self._kept.popitem(last=False)[0])
        if self.due_ns is None:
            self.due_ns = now_ns + self._config.period_ns

    def get(self, source: int, stamp: int) -> Sent | None:
        """Return a message that is kept."""
        return self._kept.get((source, stamp))

    def summaries(self, others: Collection[int], now_ns: int) -> list[tuple[int, Names]]:
        """Return whom of the others to tell what, if it is time."""
        if self.due_ns is None or now_ns < self.due_ns <= now_ns + self._config.period_ns:
            return []
        over = [key for key, kept in self._kept.items() if now_ns > kept.deadline_ns]
        for key in over:
            del self._kept[key]
        self.due_ns = now_ns + self._config.period_ns if self._kept else None
        most = self._config.batch_max
        told = [
            (other, _by_source(keys[at : at + most]))
            for other, keys in self._to_tell(set(others)).items()
            for at in range(0, len(keys), most)
        ]
        self._fresh.clear()
        return told

    def _to_tell(self, others: set[int]) -> dict[int, list[Key]]:
        """Choose whom to tell; return what, the latest first."""
        found: dict[int, list[Key]] = {}
        # Everybody names itself last, and means the same group.
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
        """Return which of the messages that somebody has are missing here, and still of use."""
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
