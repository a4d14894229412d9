"""The virtual hypercube: who hands what to whom, worked out from numbers alone.

Nodes are numbered 0, 1, 2, …. Seen from node i, the others fall into clusters: cluster s holds the
2^(s-1) nodes whose numbers first differ from i's in bit s-1, counted from the lowest bit. The paper lists them as
i⊕2^(s-1), followed by that node's own clusters 1 to s-1. That recursion is an order of its own: the
nodes x of the cluster by rising x⊕f, where f is the first of them. A test holds the two against each other.

Seen from a node k of a cluster, the rest of the cluster is exactly k's own clusters 1 to s-1. So
whoever is handed a message for a cluster can hand it on without asking anybody: the tree needs no upkeep.

A set of nodes is an integer with a bit for each. On the wire it is as many bits as its cluster has
nodes. Any number of nodes will do: a number that nobody bears is in no set, and so never chosen.
"""

from collections.abc import Iterable, Iterator

from ensue.errors import ConfigurationError

__all__ = [
    "NODES_MAX",
    "Cube",
    "bits",
    "block",
    "cluster_of",
    "cluster_order",
    "first_in_cluster",
    "pack",
    "split",
    "unpack",
]

NODES_MAX = 1 << 16
"""Nodes of one cube, at the most."""


def cluster_of(node: int, other: int) -> int:
    """Return the number of the cluster of a node in which another one is."""
    return (node ^ other).bit_length()


def cluster_order(node: int, cluster: int) -> list[int]:
    """List a cluster in the order in which a node looks for somebody to hand a message to."""
    first = node ^ (1 << (cluster - 1))
    return [first ^ step for step in range(1 << (cluster - 1))]


def block(node: int, height: int) -> int:
    """Return the lowest number of the 2^(height-1) nodes among which a node of that cluster is."""
    return node & -(1 << (height - 1))


def split(node: int, height: int, targets: int) -> Iterator[tuple[int, int]]:
    """Yield the clusters of a node up to `height` that hold targets, with those; the largest first.

    The largest first, because what is handed over there has the longest way to go.
    """
    for cluster in range(height, 0, -1):
        width = 1 << (cluster - 1)
        part = targets & (((1 << width) - 1) << block(node ^ width, cluster))
        if part:
            yield cluster, part


def first_in_cluster(node: int, cluster: int, candidates: int) -> int | None:
    """Return the first of the candidates in the order of a cluster; they must be of that cluster."""
    if not candidates:
        return None
    first = node ^ (1 << (cluster - 1))
    base, width = block(first, cluster), 1 << (cluster - 1)
    # Halve the cluster over and over: what agrees with `first` in the higher bits comes first.
    while width > 1:
        width >>= 1
        mask = (1 << width) - 1
        near = base + (first & width)
        if candidates & (mask << near):
            base = near
        else:
            base += width - (first & width)
    return base


def pack(targets: int, base: int, height: int) -> bytes:
    """Write a set of nodes of one cluster; the empty set takes no bytes."""
    inside = targets >> base
    assert inside.bit_length() <= 1 << (height - 1)
    return inside.to_bytes((inside.bit_length() + 7) // 8, "little")


def unpack(data: bytes, base: int, height: int) -> int:
    """Read a set of nodes of one cluster; bits beyond it are not believed."""
    inside = int.from_bytes(data, "little") & ((1 << (1 << (height - 1))) - 1)
    return inside << base


def bits(targets: int) -> Iterator[int]:
    """Yield the nodes of a set, rising."""
    while targets:
        low = targets & -targets
        yield low.bit_length() - 1
        targets ^= low


class Cube:
    """The names of the nodes, by number."""

    __slots__ = ("everyone", "names", "numbers")

    def __init__(self, names: Iterable[str]) -> None:
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}
        self.everyone = 0
        """All nodes that are there, as a set."""
        for name in names:
            self.add(name)

    @property
    def dimensions(self) -> int:
        """How many clusters a node has, at the most."""
        return max(0, len(self.names) - 1).bit_length()

    @property
    def gone(self) -> int:
        """All nodes that were there and never will be again, as a set."""
        return ~self.everyone & ((1 << len(self.names)) - 1)

    def add(self, name: str) -> int:
        """Give the next number to a new node."""
        if name in self.numbers:
            raise ConfigurationError(f"the names of a cube must be unique; {name!r} is taken")
        if len(self.names) >= NODES_MAX:
            raise ConfigurationError(f"a cube has at most {NODES_MAX} nodes")
        number = self.numbers[name] = len(self.names)
        self.names.append(name)
        self.everyone |= 1 << number
        return number

    def remove(self, name: str) -> None:
        """Take a node out that is gone for good; its number is never given again."""
        self.everyone &= ~(1 << self.numbers[name])
