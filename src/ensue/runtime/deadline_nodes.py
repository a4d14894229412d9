"""The brokers of deadline order, one per bus: in memory, or registered at a server.

Every bus is the broker of its subscriptions: events go from bus to bus at once, each with its
deadline, without gossip rounds. So a bus that is late or vanishes does not affect the order or the
deadlines of other clients.

Timers fire late on a busy event loop. So an event that waits for a missing one is delivered a tenth
of its lifetime before its deadline, and at most `SLACK_NS_MAX` before: a timer that late is still
in time.

In memory there is one clock. Elsewhere clocks may differ by half of an event's lifetime
(`skew_ns`), which does not affect order; beyond a fraction of that, an alert is logged. All members
of one registry have to agree on the lifetime of events: it bounds what they have to remember.
"""

import msgspec

from ensue.core.clock import Clock
from ensue.core.order import Deadline
from ensue.protocols.deadline.broker import DeadlineBroker
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.registered import RegisteredBroker
from ensue.runtime.memory_membership import MemoryMembership
from ensue.runtime.remote_membership import register
from ensue.transports.framed import FramedTransport

__all__ = ["deadline_membership", "register_deadline_broker"]

MILLISECOND_NS = 1_000_000
SLACK_NS_MAX = 50 * MILLISECOND_NS
PERIOD_NS_MAX = 1_000 * MILLISECOND_NS
"""The longest time until brokers detect a lost event, whatever its lifetime."""
SKEW_NS_MAX = 60_000 * MILLISECOND_NS
RETAINED_MAX = 8192
"""Events that each bus retains for others until their deadlines."""


def _config(order: Deadline) -> DeadlineConfig:
    lifetime_ns = int(order.ms * MILLISECOND_NS)
    tenth_ns = lifetime_ns // 10
    return DeadlineConfig(
        lifetime_ns=lifetime_ns,
        lifetime_ns_max=lifetime_ns,
        slack_ns=min(SLACK_NS_MAX, tenth_ns),
        # How often brokers exchange summaries, to detect lost events.
        period_ns=min(PERIOD_NS_MAX, max(MILLISECOND_NS // 10, tenth_ns)),
        held_max=order.held_max,
        retained_max=RETAINED_MAX,
        # Each subscription decides whether it gets late events.
        deliver_late=True,
        spreads=False,
        durable=False,
    )


def deadline_membership(order: Deadline) -> MemoryMembership[DeadlineBroker]:
    """Return the membership of deadline order in memory."""
    config = _config(order)

    def make(
        name: str, names: list[str], present: list[DeadlineBroker], now_ns: int
    ) -> DeadlineBroker:
        rows = [node.rows[0] for node in present]
        return DeadlineBroker(name=name, names=names, config=config, rows=rows, now_ns=now_ns)

    return MemoryMembership(make)


async def register_deadline_broker(
    transport: FramedTransport, *, name: str, registry: str, order: Deadline, clock: Clock
) -> RegisteredBroker:
    """Register an entered name, and return its broker."""
    members = await register(
        transport, name=name, registry=registry, terms=f"deadlines of {order.ms:g} ms"
    )
    config = _config(order)
    config = msgspec.structs.replace(config, skew_ns=min(SKEW_NS_MAX, config.lifetime_ns // 2))
    return RegisteredBroker(
        name=name, registry=registry, members=members, config=config, now_ns=clock.now_ns()
    )
