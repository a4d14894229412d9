"""The members of a hub in memory, for orders that buses keep among themselves.

Each bus has a node, numbered in order of arrival. A new node gets the subscriptions of the others,
and they are notified of it. The number of a node that leaves is never used again. All of that
happens in one iteration of the event loop, so nodes never disagree about numbers.
Across processes a registry does this (`ensue.runtime.remote_membership`).
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ensue.protocols.interface import Node
from ensue.runtime.driver import Driver

__all__ = ["MemoryMembership"]


class _Member(Node, Protocol):
    """A node that is notified of new and departed members."""

    def admit(self, name: str, *, now_ns: int) -> None:
        """Add a new node."""

    def dismiss(self, name: str, *, now_ns: int) -> None:
        """Remove a node that has left."""


N = TypeVar("N", bound=_Member)
Make = Callable[[str, list[str], list[N], int], N]
"""Makes a node, given its name, all names by number, the present nodes, and the time."""


class MemoryMembership(Generic[N]):
    """The members of one hub."""

    def __init__(self, make: Make[N]) -> None:
        self._make = make
        self._names: list[str] = []
        self._departed: list[str] = []
        self._drivers: dict[str, Driver[N]] = {}

    def admit(self, name: str, *, now_ns: int) -> N:
        """Return a new node, known to all others."""
        self._names.append(name)
        present = [driver.node for driver in self._drivers.values()]
        for driver in self._drivers.values():
            if not driver.closed:
                driver.command(lambda node, now: node.admit(name, now_ns=now))
        node = self._make(name, self._names, present, now_ns)
        for departed in self._departed:
            node.dismiss(departed, now_ns=now_ns)
        return node

    def enter(self, driver: Driver[N]) -> None:
        """Keep the driver of a node."""
        self._drivers[driver.node.name] = driver

    def leave(self, name: str) -> None:
        """Notify all others that a node has left."""
        if self._drivers.pop(name, None) is None:
            return
        self._departed.append(name)
        for driver in self._drivers.values():
            if not driver.closed:  # Failed ones are closed, too.
                driver.command(lambda node, now: node.dismiss(name, now_ns=now))
