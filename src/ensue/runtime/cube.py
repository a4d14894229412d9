"""The nodes of a cube: one for each bus. In memory a roster makes them; elsewhere each enlists with a registry."""

import msgspec

from ensue.clock import Clock
from ensue.order import Causal
from ensue.protocols.hypercube.config import HypercubeConfig
from ensue.protocols.hypercube.enrolled import EnrolledNode
from ensue.protocols.hypercube.node import HypercubeNode
from ensue.runtime.roster import Roster, enlist
from ensue.transports.framed import FramedTransport

__all__ = ["cube_roster", "enrol_node"]

RETAINED_MAX = 8192
"""Events that each bus keeps for others."""
SUSPECT_NS = 2_000_000_000
"""How long a process may leave something unanswered before the others go on without it."""
PATIENCE_NS = 10_000_000_000
"""How long to wait for an event that others depend on and that only a suspected process has."""


def _config(order: Causal) -> HypercubeConfig:
    return HypercubeConfig(
        across_topics=order.across_topics,
        held_max=order.held_max,
        retained_max=RETAINED_MAX,
        durable=False,
    )


def cube_roster(order: Causal) -> Roster[HypercubeNode]:
    """Return the roster of a cube in memory."""
    config = _config(order)

    def make(name: str, names: list[str], there: list[HypercubeNode], now_ns: int) -> HypercubeNode:
        rows = [row for node in there for row in node.rows]
        return HypercubeNode(name=name, names=names, config=config, rows=rows, now_ns=now_ns)

    return Roster(make)


async def enrol_node(
    transport: FramedTransport, *, name: str, registry: str, order: Causal, clock: Clock
) -> EnrolledNode:
    """Have a registry make a name, which has been entered, a node; return it."""
    lists = await enlist(transport, name=name, registry=registry)
    bytes_max = transport.capabilities.message_bytes_max // 2
    config = _config(order)
    config = msgspec.structs.replace(
        config,
        suspect_ns=SUSPECT_NS,
        patience_ns=PATIENCE_NS,
        batch_bytes_max=min(config.batch_bytes_max, bytes_max),
        row_bytes_max=min(config.row_bytes_max, bytes_max // 2),
    )
    return EnrolledNode(
        name=name, registry=registry, lists=lists, config=config, now_ns=clock.now_ns()
    )
