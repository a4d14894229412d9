"""Who comes and goes, where buses keep an order among themselves: each has a node, numbered as it comes.

In memory (`Roster`), whoever comes is told the subscriptions of those who are there, and they are told of it; whoever goes is
gone for good, and its number is never given again. All of that happens in one turn of the event loop, so
that no two nodes ever differ about who has which number. Elsewhere (`enlist`) a registry beside the first station sees to that.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from ensue.errors import TransportError, refused_client
from ensue.protocols.core import Frame, Node
from ensue.protocols.enlistment import Lists
from ensue.protocols.hypercube.enrolment import Expelled, Members, Resign
from ensue.runtime.driver import Driver
from ensue.transports.framed import FramedTransport

__all__ = ["Roster", "enlist"]

ENROL_S = 10.0
ENROL_AGAIN_S = 0.5


class _Member(Node, Protocol):
    """A node that is told who comes and goes."""

    def admit(self, name: str, *, now_ns: int) -> None:
        """Take note of a node that is new."""

    def dismiss(self, name: str, *, now_ns: int) -> None:
        """Take note of a node that is gone for good."""


N = TypeVar("N", bound=_Member)
Make = Callable[[str, list[str], list[N], int], N]
"""Makes a node: its name, the names of all in the order of their numbers, those who are there, and the time."""


class Roster(Generic[N]):
    """Who is there."""

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


async def enlist(transport: FramedTransport, *, name: str, registry: str, terms: str = "") -> Lists:
    """Have a registry number a name, which has been entered; return who is there.

    `terms` is what all who are there have to agree on, in words.
    """
    loop = asyncio.get_running_loop()
    lists = Lists(terms)
    done: asyncio.Future[None] = loop.create_future()

    def receive(frames: Sequence[Frame], source: str) -> None:
        for frame in frames:
            if source != registry or done.done():
                return
            if isinstance(frame, Expelled):
                why = f"{registry} does not let {name!r} in: {frame.reason}"
                done.set_exception(refused_client(why, reason=frame.reason))
            elif isinstance(frame, Members):
                if lists.take(frame):
                    done.set_result(None)
                else:
                    port.send(registry, lists.question())

    port = transport.open(name, receive)
    try:
        deadline_s = loop.time() + ENROL_S
        while not done.done() and loop.time() < deadline_s:
            port.send(registry, lists.question())
            port.flush()
            await asyncio.wait((done,), timeout=ENROL_AGAIN_S)
    finally:
        if not done.done():
            # It may have been enrolled, and the others would wait for it until it expires.
            port.send(registry, Resign(epoch=lists.epoch))
            transport.flush()
        port.close()
    if not done.done():
        station, _, order = registry.partition("/")
        raise TransportError(
            f"{station}, which numbers those who use {order} order, does not answer within {ENROL_S:g} s: "
            "is it up, and of this version?"
        )
    done.result()
    return lists
