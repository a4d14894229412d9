"""Which topics two subscriptions shared: without causal order only these are ordered together.

A subscription counts with all topics that it ever had, also those that it has left, until it ends.
"""

from collections.abc import Iterable

from ensue.core.trace import Row

__all__ = ["SharedTopics"]

_Reader = tuple[str, str]
"""A subscription and its node."""


class SharedTopics:
    """The topics of all subscriptions of a run, and when events were published."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._since: dict[_Reader, dict[str, int]] = {}
        self._until: dict[_Reader, int] = {}
        self._submitted: dict[str, int] = {}
        self._published: dict[str, int] = {}
        present: dict[_Reader, set[str]] = {}
        for row in sorted(rows, key=lambda row: row.true_ns or 0):
            at_ns, reader = row.true_ns or 0, (row.subscription or "", row.node)
            if row.action == "submitted":
                self._submitted.setdefault(row.event or "", at_ns)
            elif row.action == "published":
                self._published.setdefault(row.event or "", at_ns)
            elif row.action == "subscribed":
                self._since.setdefault(reader, {}).setdefault(row.topic or "", at_ns)
                present.setdefault(reader, set()).add(row.topic or "")
            elif row.action == "unsubscribed":
                present.setdefault(reader, set()).discard(row.topic or "")
                if not present[reader]:
                    self._until.setdefault(reader, at_ns)
            elif row.action == "crashed":
                for each in self._since:
                    if each[1] == row.node:
                        self._until.setdefault(each, at_ns)

    def orders(self, name: str, first: Row, second: Row) -> bool:
        """Return whether a durable subscription shared the topics of two events with another.

        It did so for certain from before both were submitted until both had their receipts.
        """
        events = {first.event or "", second.event or ""}
        if not events <= self._submitted.keys() & self._published.keys():
            return False
        begun_ns = min(self._submitted[event] for event in events)
        topics = {first.topic or "", second.topic or ""}
        readers = [
            reader
            for reader, since in self._since.items()
            if all(since.get(topic, begun_ns) < begun_ns for topic in topics)
        ]
        done_ns = max(self._published[event] for event in events)
        is_own = any(reader[0] == name for reader in readers)
        return is_own and any(
            reader[0] != name and self._until.get(reader, done_ns + 1) > done_ns
            for reader in readers
        )
