"""The cube of a hub in memory: one node for each bus, numbered as they come.

Whoever comes is told the subscriptions of those who are there, and they are told of it; whoever goes is
gone for good, and its number is never given again. All of that happens in one turn of the event loop, so
that no two nodes ever differ about who has which number.
"""

from ensue.order import Causal
from ensue.protocols.hypercube.config import HypercubeConfig
from ensue.protocols.hypercube.node import HypercubeNode
from ensue.runtime.driver import Driver

__all__ = ["Roster"]

RETAINED_MAX = 8192
"""Events that each bus keeps for others: in one process nobody is away for long."""


class Roster:
    """Who is in the cube."""

    def __init__(self, order: Causal) -> None:
        self._config = HypercubeConfig(
            across_topics=order.across_topics,
            held_max=order.held_max,
            retained_max=RETAINED_MAX,
            durable=False,
        )
        self._names: list[str] = []
        self._gone: list[str] = []
        self._drivers: dict[str, Driver[HypercubeNode]] = {}

    def admit(self, name: str, *, now_ns: int) -> HypercubeNode:
        """Return a new node, known to all others."""
        self._names.append(name)
        rows = [row for driver in self._drivers.values() for row in driver.node.rows]
        for driver in self._drivers.values():
            if not driver.closed:
                driver.command(lambda node, now: node.admit(name, now_ns=now))
        node = HypercubeNode(
            name=name, names=self._names, config=self._config, rows=rows, now_ns=now_ns
        )
        for gone in self._gone:
            node.dismiss(gone, now_ns=now_ns)
        return node

    def enter(self, driver: Driver[HypercubeNode]) -> None:
        """Take note of who drives a node."""
        self._drivers[driver.node.name] = driver

    def leave(self, name: str) -> None:
        """Tell all others that a node is gone for good."""
        if self._drivers.pop(name, None) is None:
            return
        self._gone.append(name)
        for driver in self._drivers.values():
            if not driver.closed:  # As it is if it has failed, too.
                driver.command(lambda node, now: node.dismiss(name, now_ns=now))
