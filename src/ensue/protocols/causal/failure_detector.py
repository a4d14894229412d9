"""Who leaves questions unanswered, and is therefore suspected of being away.

A node is suspected when something that needs an answer has gone without any sign of life for
`suspect_ns`, and no longer once it is heard of again. A suspicion may be wrong. It decides who is
asked to forward and for whom one waits: whoever was passed over gets what it lacks when it is back. It also lets an event be given up
in the end, and then whoever is suspected is in doubt (`forsaking`): so it never decides what is delivered before what.
"""

from ensue.protocols.hypercube.cube import bits

__all__ = ["Suspects"]


class Suspects:
    """What one node thinks of the others."""

    __slots__ = ("_asked_ns", "_suspect_ns", "suspected")

    def __init__(self, suspect_ns: int) -> None:
        self._suspect_ns = suspect_ns
        self._asked_ns: dict[int, int] = {}
        """Since when each has owed a sign of life."""
        self.suspected = 0
        """As a set."""

    def ask(self, node: int, now_ns: int) -> None:
        """Note that a node was sent something that needs an answer."""
        since_ns = self._asked_ns.setdefault(node, now_ns)
        if since_ns > now_ns:
            self._asked_ns[node] = now_ns  # The clock went back.

    def heard(self, node: int) -> bool:
        """Note a sign of life; return whether the node was suspected until now."""
        self._asked_ns.pop(node, None)
        was = bool(self.suspected >> node & 1)
        self.suspected &= ~(1 << node)
        return was

    def away(self, node: int, now_ns: int) -> bool:
        """Tell whether a node is to be given up, from what is known now."""
        since_ns = self._asked_ns.get(node)
        if since_ns is not None and now_ns - since_ns >= self._suspect_ns:
            self.suspected |= 1 << node
        return bool(self.suspected >> node & 1)

    def some(self, count: int, turn: int) -> list[int]:
        """Return up to `count` of the suspected, others each turn."""
        all_of_them = list(bits(self.suspected))
        if len(all_of_them) <= count:
            return all_of_them
        start = turn * count % len(all_of_them)
        return (all_of_them + all_of_them)[start : start + count]
