"""Membership: the topics of each node, one row per node, written by that node alone.

Every node stores all rows, so that a publisher need not subscribe. (In the paper only subscribers
publish, and know the rows of their topics.) A row has a version that only its node raises, so two
rows of a node are always comparable: a late old one is ignored. Erratum 7, a forwarder that trusts
an outdated acknowledgement for ever, cannot happen.

A changed row travels to all nodes by a tree; a node that was away compares versions with its
neighbors when it is back.
"""

from hashlib import blake2b

from ensue.core.event import COUNT_MAX
from ensue.protocols.causal.frames import Row

__all__ = ["Membership"]


class Membership:
    """The rows of all nodes."""

    __slots__ = ("_digest", "_members", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self._members: dict[str, int] = {}
        """Members by topic, as sets."""
        self._digest: bytes | None = None

    def members(self, topic: str) -> int:
        """Return the members of a topic, as a set."""
        return self._members.get(topic, 0)

    def version(self, node: int) -> int:
        """Return the version of a node's row; 0 if there is none."""
        row = self.rows.get(node)
        return 0 if row is None else row.version

    def put(self, row: Row) -> bool:
        """Store a row if it is newer; return whether it is."""
        known = self.rows.get(row.node)
        if row.version >= COUNT_MAX:
            return False  # There would be no next version.
        if known is not None:
            if known.version >= row.version:
                return False
            for topic in dict.fromkeys(known.topics):  # A forged row may name a topic twice.
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
        """Return a digest that is equal at two nodes with the same rows."""
        if self._digest is None:
            text = ",".join(f"{node}:{version}" for node, version in self.versions().items())
            self._digest = blake2b(text.encode(), digest_size=8).digest()
        return self._digest

    def newer_than(self, versions: dict[int, int]) -> tuple[Row, ...]:
        """Return the rows that are newer than these versions."""
        return tuple(
            self.rows[node]
            for node in sorted(self.rows)
            if self.rows[node].version > versions.get(node, 0)
        )
