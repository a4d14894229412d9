"""The failure detector: suspect nodes that leave requests unanswered.

A node is suspected when a request has gone without a sign of life for `suspect_ns`, until it
sends a frame. A suspicion may be wrong. It decides which nodes relay and which are waited for; a
node that was routed around gets what it lacks when it is back. A suspicion can also let an event be
skipped, and then the suspected node is in doubt (`loss_recovery`): it never decides the order.
"""

from ensue.protocols.causal.hypercube import bits

__all__ = ["FailureDetector"]


class FailureDetector:
    """The suspicions of one node."""

    __slots__ = ("_asked_ns", "_suspect_ns", "suspected")

    def __init__(self, suspect_ns: int) -> None:
        self._suspect_ns = suspect_ns
        self._asked_ns: dict[int, int] = {}
        """Since when each node has owed a sign of life."""
        self.suspected = 0
        """Suspected nodes, as a set."""

    def ask(self, node: int, now_ns: int) -> None:
        """Record that a node was sent a request."""
        since_ns = self._asked_ns.setdefault(node, now_ns)
        if since_ns > now_ns:
            self._asked_ns[node] = now_ns  # The clock went back.

    def received_from(self, node: int) -> bool:
        """Record a sign of life; return whether the node was suspected."""
        self._asked_ns.pop(node, None)
        was = bool(self.suspected >> node & 1)
        self.suspected &= ~(1 << node)
        return was

    def away(self, node: int, now_ns: int) -> bool:
        """Return whether a node is suspected now."""
        since_ns = self._asked_ns.get(node)
        if since_ns is not None and now_ns - since_ns >= self._suspect_ns:
            self.suspected |= 1 << node
        return bool(self.suspected >> node & 1)

    def some(self, count: int, turn: int) -> list[int]:
        """Return up to `count` suspected nodes, different ones each turn."""
        all_of_them = list(bits(self.suspected))
        if len(all_of_them) <= count:
            return all_of_them
        start = turn * count % len(all_of_them)
        return (all_of_them + all_of_them)[start : start + count]
