"""The virtual hypercube: relay paths computed from node numbers alone.

Nodes are numbered 0, 1, 2, …. Seen from node i, the others fall into clusters: cluster s holds the
2^(s-1) nodes whose numbers differ from i's in bit s-1 as the highest bit. The paper lists them as
i⊕2^(s-1), followed by that node's own clusters 1 to s-1. That recursion equals an order: the nodes
x of the cluster by rising x⊕f, where f is the first of them. A test compares the two.

Seen from a node k of a cluster, the rest of the cluster is exactly k's own clusters 1 to s-1. So a
node that gets a message for a cluster can relay it without asking: the tree needs no upkeep.

A set of nodes is an integer with a bit for each. On the wire it has as many bits as its cluster has
nodes. Any number of nodes works: a number without a node is in no set, and so never chosen.
"""

from collections.abc import Iterable, Iterator

from ensue.core.errors import ConfigurationError

__all__ = [
    "NODES_MAX",
    "Hypercube",
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
"""Maximum number of nodes of one hypercube."""


def cluster_of(node: int, other: int) -> int:
    """Return which cluster of a node another node is in."""
    return (node ^ other).bit_length()


def cluster_order(node: int, cluster: int) -> list[int]:
    """List a cluster in the order in which a node tries its members as children."""
    first = node ^ (1 << (cluster - 1))
    return [first ^ step for step in range(1 << (cluster - 1))]


def block(node: int, height: int) -> int:
    """Return the lowest of the 2^(height-1) numbers of the cluster that a node is in."""
    return node & -(1 << (height - 1))


def split(node: int, height: int, targets: int) -> Iterator[tuple[int, int]]:
    """Yield the clusters of a node up to `height` that contain targets, largest first.

    Messages to the largest cluster have the longest way to go.
    """
    for cluster in range(height, 0, -1):
        width = 1 << (cluster - 1)
        part = targets & (((1 << width) - 1) << block(node ^ width, cluster))
        if part:
            yield cluster, part


def first_in_cluster(node: int, cluster: int, candidates: int) -> int | None:
    """Return the first candidate in the order of a cluster that contains them all."""
    if not candidates:
        return None
    first = node ^ (1 << (cluster - 1))
    base, width = block(first, cluster), 1 << (cluster - 1)
    # Halve the cluster repeatedly: numbers that agree with `first` in higher bits come first.
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
    """Encode a set of nodes of one cluster; the empty set takes no bytes."""
    inside = targets >> base
    assert inside.bit_length() <= 1 << (height - 1)
    return inside.to_bytes((inside.bit_length() + 7) // 8, "little")


def unpack(data: bytes, base: int, height: int) -> int:
    """Decode a set of nodes of one cluster; ignore bits beyond it."""
    inside = int.from_bytes(data, "little") & ((1 << (1 << (height - 1))) - 1)
    return inside << base


def bits(targets: int) -> Iterator[int]:
    """Yield the nodes of a set in ascending order."""
    while targets:
        low = targets & -targets
        yield low.bit_length() - 1
        targets ^= low


class Hypercube:
    """Names and numbers of the nodes."""

    __slots__ = ("everyone", "names", "numbers")

    def __init__(self, names: Iterable[str]) -> None:
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}
        self.everyone = 0
        """All present nodes, as a set."""
        for name in names:
            self.add(name)

    @property
    def dimensions(self) -> int:
        """Maximum number of clusters of a node."""
        return max(0, len(self.names) - 1).bit_length()

    @property
    def gone(self) -> int:
        """All nodes that left permanently, as a set."""
        return ~self.everyone & ((1 << len(self.names)) - 1)

    def add(self, name: str) -> int:
        """Give the next number to a new node."""
        if name in self.numbers:
            raise ConfigurationError(
                f"node names must be unique, and {name!r} is taken: choose another"
            )
        if len(self.names) >= NODES_MAX:
            raise ConfigurationError(f"a hypercube has at most {NODES_MAX} nodes")
        number = self.numbers[name] = len(self.names)
        self.names.append(name)
        self.everyone |= 1 << number
        return number

    def remove(self, name: str) -> None:
        """Remove a node that left permanently; its number is never reused."""
        self.everyone &= ~(1 << self.numbers[name])
