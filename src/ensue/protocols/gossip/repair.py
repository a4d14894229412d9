"""How brokers get what was lost on its way: each tells others now and then which messages to them it has.

Once in a period a broker that has messages whose deadline is not over picks a few others and names, to each of them, those that are addressed
to it. Whoever lacks one asks for it by name, and is sent a copy. Messages that nobody can deliver any more are dropped.

Departures from the paper (erratum 7): a summary names single messages, and only those to the broker it is sent to; the largest stamps
alone don't tell what is missing.

Limit: `retained_max` messages, the oldest go first; `batch_max` names a frame.
"""

from collections import OrderedDict
from collections.abc import Sequence

from ensue.protocols.gossip.causality import Causality, Sent
from ensue.protocols.gossip.config import GossipConfig
from ensue.protocols.gossip.views import Picker

__all__ = ["Repair"]

Names = dict[int, tuple[int, ...]]
"""By source: stamps."""


class Repair:
    """The messages that one broker has."""

    def __init__(self, config: GossipConfig, picker: Picker) -> None:
        self._config = config
        self._picker = picker
        self._kept: OrderedDict[tuple[int, int], Sent] = OrderedDict()
        """By source and stamp."""
        self.due_ns: int | None = None
        """When to tell others what is here."""

    def keep(self, message: Sent, now_ns: int) -> None:
        """Keep a message for whoever lacks it."""
        self._kept[message.source, message.stamp] = message
        if len(self._kept) > self._config.retained_max:
            self._kept.popitem(last=False)
        if self.due_ns is None:
            self.due_ns = now_ns + self._config.period_ns

    def get(self, source: int, stamp: int) -> Sent | None:
        """Return a message that is kept."""
        return self._kept.get((source, stamp))

    def summaries(self, others: Sequence[int], now_ns: int) -> list[tuple[int, Names]]:
        """Return whom to tell what, if it is time."""
        if self.due_ns is None or now_ns < self.due_ns <= now_ns + self._config.period_ns:
            return []
        over = [key for key, kept in self._kept.items() if now_ns > kept.deadline_ns]
        for key in over:
            del self._kept[key]
        self.due_ns = now_ns + self._config.period_ns if self._kept else None
        found: list[tuple[int, Names]] = []
        for other in self._picker.sample(others, self._config.fan_out):
            names: dict[int, list[int]] = {}
            left = self._config.batch_max
            for (source, stamp), message in self._kept.items():
                if left and source != other and other in message.dest:
                    names.setdefault(source, []).append(stamp)
                    left -= 1
            if names:
                found.append((other, {x: tuple(stamps) for x, stamps in names.items()}))
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
