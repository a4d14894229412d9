"""The members of a hub in memory, where buses keep an order among themselves.

Each bus has a node, numbered in order of arrival. A new node learns the subscriptions of the
others, and they learn of it; a node that leaves is gone for good, and its number is not given
again. All of that happens in one turn of the event loop, so nodes never disagree about numbers.
Across processes a registry does this (`ensue.runtime.remote_membership`).
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ensue.protocols.interface import Node
from ensue.runtime.driver import Driver

__all__ = ["MemoryMembership"]


class _Member(Node, Protocol):
    """A node that is notified of members that come and go."""

    def admit(self, name: str, *, now_ns: int) -> None:
        """Add a new node."""

    def dismiss(self, name: str, *, now_ns: int) -> None:
        """Remove a node that is gone for good."""


N = TypeVar("N", bound=_Member)
Make = Callable[[str, list[str], list[N], int], N]
"""Makes a node, given its name, all names by number, the present nodes, and the time."""


class MemoryMembership(Generic[N]):
    """The members of one hub."""

    def __init__(self, make: Make[N]) -> None:
        self._make = make
        self._names: list[str] = []
        self._gone: list[str] = []
        self._drivers: dict[str, Driver[N]] = {}

    def admit(self, name: str, *, now_ns: int) -> N:
        """Return a new node, known to all others."""
        self._names.append(name)
        there = [driver.node for driver in self._drivers.values()]
        for driver in self._drivers.values():
            if not driver.closed:
                driver.command(lambda node, now: node.admit(name, now_ns=now))
        node = self._make(name, self._names, there, now_ns)
        for gone in self._gone:
            node.dismiss(gone, now_ns=now_ns)
        return node

    def enter(self, driver: Driver[N]) -> None:
        """Keep the driver of a node."""
        self._drivers[driver.node.name] = driver

    def leave(self, name: str) -> None:
        """Tell all others that a node is gone for good."""
        if self._drivers.pop(name, None) is None:
            return
        self._gone.append(name)
        for driver in self._drivers.values():
            if not driver.closed:  # Failed ones are closed, too.
                driver.command(lambda node, now: node.dismiss(name, now_ns=now))
