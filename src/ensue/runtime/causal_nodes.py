"""The nodes of causal order, one per bus: in memory, or registered at a server."""

import msgspec

from ensue.core.clock import Clock
from ensue.core.order import Causal
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.node import CausalNode
from ensue.protocols.causal.registered import RegisteredNode
from ensue.protocols.shared.round_trips import RETRY_NS_MIN
from ensue.runtime.memory_membership import MemoryMembership
from ensue.runtime.remote_membership import register
from ensue.transports.framed import FramedTransport

__all__ = ["causal_membership", "register_causal_node"]

RETAINED_MAX = 8192
"""Events that each bus retains for others."""
SUSPECT_NS = 2_000_000_000
"""How long a request may be unanswered before others suspect the process."""
PATIENCE_NS = 10_000_000_000
"""How long to wait for an event that only a suspected process has."""


def _config(order: Causal) -> CausalConfig:
    return CausalConfig(
        across_topics=order.across_topics,
        held_max=order.held_max,
        retained_max=RETAINED_MAX,
        durable=False,
    )


def causal_membership(order: Causal) -> MemoryMembership[CausalNode]:
    """Return the membership of causal order in memory."""
    config = _config(order)

    def make(name: str, names: list[str], present: list[CausalNode], now_ns: int) -> CausalNode:
        rows = [row for node in present for row in node.rows]
        return CausalNode(name=name, names=names, config=config, rows=rows, now_ns=now_ns)

    return MemoryMembership(make)


async def register_causal_node(
    transport: FramedTransport, *, name: str, registry: str, order: Causal, clock: Clock
) -> RegisteredNode:
    """Register an entered name, and return its node."""
    members = await register(transport, name=name, registry=registry)
    bytes_max = transport.capabilities.message_bytes_max // 2
    config = _config(order)
    config = msgspec.structs.replace(
        config,
        suspect_ns=SUSPECT_NS,
        patience_ns=PATIENCE_NS,
        batch_bytes_max=min(config.batch_bytes_max, bytes_max),
        row_bytes_max=min(config.row_bytes_max, bytes_max // 2),
        # Brokers may lose single messages; connections lose them only when they end.
        retry_ns_min=0 if transport.capabilities.fifo else RETRY_NS_MIN,
    )
    return RegisteredNode(
        name=name, registry=registry, members=members, config=config, now_ns=clock.now_ns()
    )
