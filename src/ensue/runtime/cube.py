"""The nodes of a cube: one for each bus, numbered as they come.

In memory (`Roster`), whoever comes is told the subscriptions of those who are there, and they are told of it; whoever goes is
gone for good, and its number is never given again. All of that happens in one turn of the event loop, so
that no two nodes ever differ about who has which number. Elsewhere (`enrol`) a registry beside the first station sees to that.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from ensue.clock import Clock
from ensue.errors import AccessDenied, TransportError
from ensue.order import Causal
from ensue.protocols.core import Frame
from ensue.protocols.enlistment import Lists
from ensue.protocols.hypercube.config import HypercubeConfig
from ensue.protocols.hypercube.enrolled import EnrolledNode
from ensue.protocols.hypercube.enrolment import Expelled, Members, Resign
from ensue.protocols.hypercube.node import HypercubeNode
from ensue.runtime.driver import Driver
from ensue.transports.framed import FramedTransport

__all__ = ["Roster", "enrol"]

RETAINED_MAX = 8192
"""Events that each bus keeps for others."""
SUSPECT_NS = 2_000_000_000
"""How long a process may leave something unanswered before the others go on without it."""
PATIENCE_NS = 10_000_000_000
"""How long to wait for an event that others depend on and that only a suspected process has."""
ENROL_S = 10.0
ENROL_AGAIN_S = 0.5


def _config(order: Causal) -> HypercubeConfig:
    return HypercubeConfig(
        across_topics=order.across_topics,
        held_max=order.held_max,
        retained_max=RETAINED_MAX,
        durable=False,
    )


class Roster:
    """Who is in the cube."""

    def __init__(self, order: Causal) -> None:
        self._config = _config(order)
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


async def enrol(
    transport: FramedTransport, *, name: str, registry: str, order: Causal, clock: Clock
) -> EnrolledNode:
    """Have a registry make a name, which has been entered, a node; return it."""
    loop = asyncio.get_running_loop()
    lists = Lists()
    done: asyncio.Future[None] = loop.create_future()

    def receive(frames: Sequence[Frame], source: str) -> None:
        for frame in frames:
            if source != registry or done.done():
                return
            if isinstance(frame, Expelled):
                why = f"{registry} does not let {name!r} in: {frame.reason}"
                done.set_exception(AccessDenied(why, reason=frame.reason))
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
    except BaseException:
        # It may have been enrolled, and the others would wait for it until it expires.
        port.send(registry, Resign(epoch=lists.epoch))
        transport.flush()
        raise
    finally:
        port.close()
    if not done.done():
        raise TransportError(
            f"{registry.partition('/')[0]}, which numbers those who use causal order, does not answer within {ENROL_S:g} s: "
            "is it up, and of this version?"
        )
    done.result()
    bytes_max = transport.capabilities.message_bytes_max // 2
    config = _config(order)
    config = msgspec.structs.replace(
        config,
        suspect_ns=SUSPECT_NS,
        patience_ns=PATIENCE_NS,
        batch_bytes_max=min(config.batch_bytes_max, bytes_max),
    )
    return EnrolledNode(
        name=name, registry=registry, lists=lists, config=config, now_ns=clock.now_ns()
    )
