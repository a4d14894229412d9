"""The brokers of a hub in memory with deadlines: one for each bus, numbered as they come.

Everybody here publishes and subscribes as a broker: events go from bus to bus at once, each with its deadline, and there are no rounds. Whoever
comes is told the groups of those who are there, and they are told of it; whoever goes is gone for good.

A timer of the event loop fires late, the more so the busier the loop is. So what waits for something that is missing is handed over a tenth of its
time before its deadline, and no more than `SLACK_NS_MAX` before: that much later, a timer is still in time.
"""

from ensue.order import Deadline
from ensue.protocols.gossip.broker import GossipBroker
from ensue.protocols.gossip.config import GossipConfig
from ensue.runtime.driver import Driver

__all__ = ["BrokerRoster"]

MILLISECOND_NS = 1_000_000
SLACK_NS_MAX = 50 * MILLISECOND_NS
RETAINED_MAX = 8192
"""Events that each bus keeps for others until their deadlines."""


class BrokerRoster:
    """Who is there."""

    def __init__(self, order: Deadline) -> None:
        lifetime_ns = int(order.ms * MILLISECOND_NS)
        tenth_ns = lifetime_ns // 10
        self._config = GossipConfig(
            lifetime_ns=lifetime_ns,
            lifetime_ns_max=lifetime_ns,
            slack_ns=min(SLACK_NS_MAX, tenth_ns),
            # How often brokers tell each other what they have, in case it was lost.
            period_ns=max(MILLISECOND_NS // 10, tenth_ns),
            held_max=order.held_max,
            retained_max=RETAINED_MAX,
            # Each subscription decides for itself what becomes of what is late.
            deliver_late=True,
            spreads=False,
            durable=False,
        )
        self._names: list[str] = []
        self._gone: list[str] = []
        self._drivers: dict[str, Driver[GossipBroker]] = {}

    def admit(self, name: str, *, now_ns: int) -> GossipBroker:
        """Return a new broker, known to all others."""
        self._names.append(name)
        rows = [driver.node.rows[0] for driver in self._drivers.values()]
        for driver in self._drivers.values():
            if not driver.closed:
                driver.command(lambda node, now: node.admit(name, now_ns=now))
        node = GossipBroker(
            name=name, names=self._names, config=self._config, rows=rows, now_ns=now_ns
        )
        for gone in self._gone:
            node.dismiss(gone, now_ns=now_ns)
        return node

    def enter(self, driver: Driver[GossipBroker]) -> None:
        """Take note of who drives a broker."""
        self._drivers[driver.node.name] = driver

    def leave(self, name: str) -> None:
        """Tell all others that a broker is gone for good."""
        if self._drivers.pop(name, None) is None:
            return
        self._gone.append(name)
        for driver in self._drivers.values():
            if not driver.closed:  # As it is if it has failed, too.
                driver.command(lambda node, now: node.dismiss(name, now_ns=now))
