"""The brokers of a hub with deadlines: one for each bus. In memory a roster makes them; elsewhere each enlists with a registry.

Every bus publishes and subscribes as a broker: events go from bus to bus at once, each with its deadline, and there are no rounds. So
whoever may be late or vanish is a broker of its own subscriptions alone, and nobody else's order or time depends on it.

A timer of the event loop fires late, the more so the busier the loop is. So what waits for something that is missing is handed over a tenth of its
time before its deadline, and no more than `SLACK_NS_MAX` before: that much later, a timer is still in time.

In memory there is one clock. Elsewhere clocks may differ by half of the time that an event has (`skew_ns`), which order does not mind; beyond
a fraction of that, people are told. How long events are of use all who are on one registry have to agree on: by that everybody knows what it
may forget.
"""

import msgspec

from ensue.clock import Clock
from ensue.order import Deadline
from ensue.protocols.gossip.broker import GossipBroker
from ensue.protocols.gossip.config import GossipConfig
from ensue.protocols.gossip.enrolled import EnrolledBroker
from ensue.runtime.roster import Roster, enlist
from ensue.transports.framed import FramedTransport

__all__ = ["broker_roster", "enrol_broker"]

MILLISECOND_NS = 1_000_000
SLACK_NS_MAX = 50 * MILLISECOND_NS
PERIOD_NS_MAX = 1_000 * MILLISECOND_NS
"""Whoever waits for what was lost waits no longer than that for somebody to tell of it, however long events are of use."""
SKEW_NS_MAX = 60_000 * MILLISECOND_NS
RETAINED_MAX = 8192
"""Events that each bus keeps for others until their deadlines."""


def _config(order: Deadline) -> GossipConfig:
    lifetime_ns = int(order.ms * MILLISECOND_NS)
    tenth_ns = lifetime_ns // 10
    return GossipConfig(
        lifetime_ns=lifetime_ns,
        lifetime_ns_max=lifetime_ns,
        slack_ns=min(SLACK_NS_MAX, tenth_ns),
        # How often brokers tell each other what they have, in case it was lost.
        period_ns=min(PERIOD_NS_MAX, max(MILLISECOND_NS // 10, tenth_ns)),
        held_max=order.held_max,
        retained_max=RETAINED_MAX,
        # Each subscription decides for itself what becomes of what is late.
        deliver_late=True,
        spreads=False,
        durable=False,
    )


def broker_roster(order: Deadline) -> Roster[GossipBroker]:
    """Return the roster of brokers in memory."""
    config = _config(order)

    def make(name: str, names: list[str], there: list[GossipBroker], now_ns: int) -> GossipBroker:
        rows = [node.rows[0] for node in there]
        return GossipBroker(name=name, names=names, config=config, rows=rows, now_ns=now_ns)

    return Roster(make)


async def enrol_broker(
    transport: FramedTransport, *, name: str, registry: str, order: Deadline, clock: Clock
) -> EnrolledBroker:
    """Have a registry make a name, which has been entered, a broker; return it."""
    lists = await enlist(
        transport, name=name, registry=registry, terms=f"deadlines of {order.ms:g} ms"
    )
    config = _config(order)
    config = msgspec.structs.replace(config, skew_ns=min(SKEW_NS_MAX, config.lifetime_ns // 2))
    return EnrolledBroker(
        name=name, registry=registry, lists=lists, config=config, now_ns=clock.now_ns()
    )
