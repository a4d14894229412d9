"""Who is subscribed to what, as one node knows it: a row for each node, written by that node alone.

Every node keeps all rows, not only subscribers those of their topics, so that a publisher need not
subscribe (the paper has only subscribers publish). A row has a version, which only its node raises, so
two rows of a node are never in doubt: an old one that comes late, on whatever way, is passed over.
Erratum 7, a forwarder that believes an outdated acknowledgement for ever, can't happen.

A row travels to everybody by a tree when it changes; whoever was away compares versions with its
neighbours when it is back.
"""

from hashlib import blake2b

from ensue.event import COUNT_MAX
from ensue.protocols.hypercube.frames import Row

__all__ = ["Rolls"]


class Rolls:
    """All rows."""

    __slots__ = ("_digest", "_members", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self._members: dict[str, int] = {}
        """By topic, as sets of nodes."""
        self._digest: bytes | None = None

    def members(self, topic: str) -> int:
        """Return who is subscribed to a topic, as a set."""
        return self._members.get(topic, 0)

    def version(self, node: int) -> int:
        """Return the version of a node's row, 0 if it never said anything."""
        row = self.rows.get(node)
        return 0 if row is None else row.version

    def put(self, row: Row) -> bool:
        """Take a row over if it is newer; return whether it is."""
        known = self.rows.get(row.node)
        if row.version >= COUNT_MAX:
            return (
                False  # Nobody changes a subscription so often, and there would be no next version.
            )
        if known is not None:
            if known.version >= row.version:
                return False
            for topic in dict.fromkeys(known.topics):  # Who lies may name one twice.
                left = self._members[topic] & ~(1 << row.node)
                if left:
                    self._members[topic] = left
                else:
                    del self._members[topic]
        self.rows[row.node] = row
        for topic in row.topics:
            self._members[topic] = self._members.get(topic, 0) | 1 << row.node
        self._digest = None
        return True

    def versions(self) -> dict[int, int]:
        """Return the version of every row."""
        return {node: self.rows[node].version for node in sorted(self.rows)}

    def digest(self) -> bytes:
        """Return what is equal at two nodes that know the same rows."""
        if self._digest is None:
            text = ",".join(f"{node}:{version}" for node, version in self.versions().items())
            self._digest = blake2b(text.encode(), digest_size=8).digest()
        return self._digest

    def newer_than(self, versions: dict[int, int]) -> tuple[Row, ...]:
        """Return the rows that somebody with these versions does not know."""
        return tuple(
            self.rows[node]
            for node in sorted(self.rows)
            if self.rows[node].version > versions.get(node, 0)
        )
