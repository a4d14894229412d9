"""Relayed orders: clients order events, and a server only relays their frames.

The clients of such an order share a registry, which numbers them (causal order, deadlines), or a
fan-out, which forwards events (merged order, or none). The server does not know how many events a
client holds back; `Subscription.held_back` does.
"""

from collections.abc import Sequence
from typing import Any

from ensue.protocols.causal.hypercube import NODES_MAX
from ensue.protocols.membership.registry import Registry
from ensue.protocols.topic_log.fanout import Fanout
from ensue.runtime.driver import Driver

__all__ = ["RelayedOrders"]

MEMBERS_MAX = 500
"""Members listed by name for each order: the last ones to join."""
SECOND_NS = 1_000_000_000

Json = dict[str, Any]


class RelayedOrders:
    """The registries and fan-outs of one server."""

    def __init__(
        self, registries: Sequence[Driver[Registry]], fanouts: Sequence[Driver[Fanout]]
    ) -> None:
        self._registries = registries
        self._fanouts = fanouts

    @property
    def registries(self) -> dict[str, Registry]:
        """Registries, by order."""
        return {_order(each.node.name): each.node for each in self._registries}

    @property
    def fanouts(self) -> dict[str, Fanout]:
        """Fan-outs, by order."""
        return {_order(each.node.name): each.node for each in self._fanouts}

    def state(self, now_ns: int, names_max: int) -> list[Json]:
        """Return the state of each order in use, with up to `names_max` members by name."""
        names_max = min(names_max, MEMBERS_MAX)
        states: list[Json] = []
        for order, registry in self.registries.items():
            last_seen_ns = registry.last_seen_ns
            if registry.names:
                states.append(
                    {
                        "order": order,
                        "members_count": len(last_seen_ns),
                        "members": [
                            {
                                "name": name,
                                "heard_s": max(0, now_ns - last_seen_ns[name]) / SECOND_NS,
                            }
                            for name in list(last_seen_ns)[-names_max:]
                        ],
                        "numbers": len(registry.names),
                        "numbers_max": NODES_MAX,
                    }
                )
        for order, fanout in self.fanouts.items():
            members = fanout.members
            if members or fanout.passed_on:
                states.append(
                    {
                        "order": order,
                        "members_count": len(members),
                        "members": [
                            {"name": name, "topics": members[name]}
                            for name in list(members)[-names_max:]
                        ],
                        "events": fanout.passed_on,
                    }
                )
        return states


def _order(name: str) -> str:
    return name.partition("/")[2]
