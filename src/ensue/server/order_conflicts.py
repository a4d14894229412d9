"""Warnings about topics that clients use in two orders.

Each order has its own streams: a subscriber in one order never gets events published in another. A
topic used in two orders almost always means a client with the wrong `order`.
"""

import logging

__all__ = ["TopicOrders"]

TOPICS_MAX = 10_000
"""Topics whose orders are recorded; beyond, all are forgotten, and warnings may repeat."""

WARNINGS_MAX = 100
"""Warnings logged in total, so that a client can't fill the log."""

logger = logging.getLogger("ensue.server")


class TopicOrders:
    """The orders that each topic is used in."""

    def __init__(self) -> None:
        self._orders: dict[str, tuple[str, ...]] = {}
        self._warnings = 0

    def note(self, topic: str, order: str) -> None:
        """Record the order a client uses a topic in; warn if it is a second one."""
        known = self._orders.get(topic, ())
        if order in known:
            return
        if len(self._orders) >= TOPICS_MAX:
            self._orders.clear()
        self._orders[topic] = (*known, order)
        if known and self._warnings < WARNINGS_MAX:
            self._warnings += 1
            logger.warning(
                "topic %r is used in %s order: subscribers of one order never get events published "
                "in another; give all clients of a topic the same order",
                topic,
                " and in ".join(self._orders[topic]),
            )
