"""Membership: the groups of each broker, one row per broker, written by that broker alone.

Brokers know each other. A row has a version that only its broker raises, so a late old one is
ignored. A broker sends its row to all others until each has acknowledged it; the acknowledgements
carry theirs, so that a restarted broker learns all rows.
"""

from ensue.protocols.deadline.frames import Groups, Noted, Row
from ensue.protocols.interface import Effect, Send

__all__ = ["Membership"]


class Membership:
    """The rows of all brokers."""

    def __init__(
        self, number: int, names: list[str], retry_ns: int, version: int, now_ns: int
    ) -> None:
        self._number = number
        self._names = names
        """Shared with the broker, which appends to it."""
        self._retry_ns = retry_ns
        self.rows: dict[int, Row] = {}
        self._own = Row(number, version, ())
        self._unnoted: dict[int, int] = {}
        """Brokers that have not acknowledged this row, and when to send it again."""
        self._others = {other: None for other in range(len(names)) if other != number}
        """All other present brokers."""
        for other in self._others:
            self._unnoted[other] = now_ns

    @property
    def row(self) -> Row:
        """The row of this broker."""
        return self._own

    def others(self) -> list[int]:
        """Return all other present brokers."""
        return list(self._others)

    @property
    def edition(self) -> int:
        """Number of joins and departures: the list with the larger edition is newer."""
        return 2 * len(self._names) - 1 - len(self._others)

    def present(self) -> tuple[str, ...]:
        """Return the names of all present brokers, including this one."""
        return tuple(
            name
            for number, name in enumerate(self._names)
            if number == self._number or number in self._others
        )

    def members(self, topic: str) -> tuple[int, ...]:
        """Return the other brokers of a group."""
        return tuple(
            number
            for number in sorted(self.rows)
            if number != self._number and topic in self.rows[number].topics
        )

    def change(self, topics: tuple[str, ...], now_ns: int) -> int:
        """Set the groups of this broker; return the new version."""
        self._own = Row(self._number, self._own.version + 1, topics)
        for other in self._others:
            self._unnoted[other] = now_ns
        return self._own.version

    def admit(self, number: int, now_ns: int) -> None:
        """Add a new broker, and send it this row."""
        self._others[number] = None
        self._unnoted[number] = now_ns

    def dismiss(self, number: int) -> None:
        """Remove a broker that left permanently."""
        self._others.pop(number, None)
        self._unnoted.pop(number, None)
        self.rows.pop(number, None)

    def all_noted(self) -> bool:
        """Return whether all brokers have acknowledged this row."""
        return not self._unnoted

    def put(self, row: Row) -> bool:
        """Store a row if it is newer; return whether it is."""
        known = self.rows.get(row.node)
        newer = row.node in self._others and (known is None or known.version < row.version)
        if newer:
            self.rows[row.node] = row
        return newer

    def hear(self, row: Row, number: int) -> bool:
        """Store the row that a broker sent of itself; return whether it is newer."""
        return row.node == number and self.put(row)

    def answer(self, frame: Groups, number: int) -> list[Effect]:
        """Acknowledge the row of another broker."""
        if frame.row.node != number:
            return []
        return [Send(self._names[number], Noted(version=frame.row.version, row=self._own))]

    def noted(self, frame: Noted, number: int) -> None:
        """Record the acknowledgement of another broker."""
        if frame.version == self._own.version:
            self._unnoted.pop(number, None)

    def announce(self, now_ns: int) -> list[Effect]:
        """Send this row to brokers that have not acknowledged it, if due."""
        if not self._unnoted:
            return []
        effects: list[Effect] = []
        for number, due_ns in self._unnoted.items():
            if not now_ns < due_ns <= now_ns + self._retry_ns:
                self._unnoted[number] = now_ns + self._retry_ns
                effects.append(Send(self._names[number], Groups(row=self._own)))
        return effects

    def repeat(self, now_ns: int) -> None:
        """Send this row again now to brokers that have not acknowledged it."""
        self._unnoted = dict.fromkeys(self._unnoted, now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when to send this row again."""
        return min(self._unnoted.values(), default=None)
