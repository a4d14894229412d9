"""Which broker is in which groups, as one broker knows it: a row for each, written by that broker alone.

Brokers know each other. A row has a version, which only its broker raises, so an old one that comes late is passed over. A broker tells
its row to all others until each of them has taken note; the answers tell theirs, so that a restarted broker learns all of them.
"""

from ensue.protocols.core import Effect, Send
from ensue.protocols.gossip.frames import Groups, Noted, Row

__all__ = ["GroupRolls"]


class GroupRolls:
    """All rows."""

    def __init__(
        self, number: int, names: list[str], retry_ns: int, version: int, now_ns: int
    ) -> None:
        self._number = number
        self._names = names
        """Shared with the broker, which adds to it."""
        self._retry_ns = retry_ns
        self.rows: dict[int, Row] = {}
        self._own = Row(number, version, ())
        self._unnoted: dict[int, int] = {}
        """Brokers that have not taken note of this one's row, and when to tell them again."""
        self._others = {other: None for other in range(len(names)) if other != number}
        """All other brokers that are not gone."""
        for other in self._others:
            self._unnoted[other] = now_ns

    @property
    def row(self) -> Row:
        """This broker's own row."""
        return self._own

    def others(self) -> list[int]:
        """Return all other brokers that are not gone."""
        return list(self._others)

    @property
    def edition(self) -> int:
        """How often brokers came and went. Of two lists of them the one with the larger number is the newer."""
        return 2 * len(self._names) - 1 - len(self._others)

    def present(self) -> tuple[str, ...]:
        """Name all brokers that are not gone, this one included."""
        return tuple(
            name
            for number, name in enumerate(self._names)
            if number == self._number or number in self._others
        )

    def members(self, topic: str) -> tuple[int, ...]:
        """Return the brokers of a group, this one left out."""
        return tuple(
            number
            for number in sorted(self.rows)
            if number != self._number and topic in self.rows[number].topics
        )

    def change(self, topics: tuple[str, ...], now_ns: int) -> int:
        """Be in these groups from now on; return the version of that."""
        self._own = Row(self._number, self._own.version + 1, topics)
        for other in self._others:
            self._unnoted[other] = now_ns
        return self._own.version

    def admit(self, number: int, now_ns: int) -> None:
        """Take note of a broker that is new, and tell it this one's row."""
        self._others[number] = None
        self._unnoted[number] = now_ns

    def dismiss(self, number: int) -> None:
        """Take note that a broker is gone for good."""
        self._others.pop(number, None)
        self._unnoted.pop(number, None)
        self.rows.pop(number, None)

    def all_noted(self) -> bool:
        """Tell whether everybody has taken note of this broker's row."""
        return not self._unnoted

    def put(self, row: Row) -> bool:
        """Take a row over if it is newer; return whether it is."""
        known = self.rows.get(row.node)
        newer = row.node in self._others and (known is None or known.version < row.version)
        if newer:
            self.rows[row.node] = row
        return newer

    def hear(self, row: Row, number: int) -> bool:
        """Take note of what a broker says of itself; return whether it is news. A row is written by its broker alone."""
        return row.node == number and self.put(row)

    def answer(self, frame: Groups, number: int) -> list[Effect]:
        """Say that another's row was taken note of."""
        if frame.row.node != number:
            return []
        return [Send(self._names[number], Noted(version=frame.row.version, row=self._own))]

    def noted(self, frame: Noted, number: int) -> None:
        """Take note that another has taken note."""
        if frame.version == self._own.version:
            self._unnoted.pop(number, None)

    def tell(self, now_ns: int) -> list[Effect]:
        """Tell those who have not taken note, if it is time."""
        if not self._unnoted:
            return []
        effects: list[Effect] = []
        for number, due_ns in self._unnoted.items():
            if not now_ns < due_ns <= now_ns + self._retry_ns:
                self._unnoted[number] = now_ns + self._retry_ns
                effects.append(Send(self._names[number], Groups(row=self._own)))
        return effects

    def repeat(self, now_ns: int) -> None:
        """Tell those again at once who have not taken note."""
        self._unnoted = dict.fromkeys(self._unnoted, now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when to tell somebody again."""
        return min(self._unnoted.values(), default=None)
