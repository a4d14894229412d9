"""Who keeps an order among themselves at a server that only carries it, for people and programs that look at it.

A room is what clients of one order share at one server: a registry, which numbers them (causal order, deadlines), or an exchange, which
carries events (merged order, or none). How much each client holds back only that client knows: `Subscription.held_back`.
"""

from collections.abc import Sequence
from typing import Any

from ensue.protocols.exchange import Exchange
from ensue.protocols.hypercube.cube import NODES_MAX
from ensue.protocols.hypercube.enrolment import Registry
from ensue.runtime.driver import Driver

__all__ = ["Rooms"]

MEMBERS_MAX = 500
"""Members of one room that are told of by name: those that came last."""
SECOND_NS = 1_000_000_000

Json = dict[str, Any]


class Rooms:
    """All rooms of one server."""

    def __init__(
        self, registries: Sequence[Driver[Registry]], exchanges: Sequence[Driver[Exchange]]
    ) -> None:
        self._registries = registries
        self._exchanges = exchanges

    @property
    def registries(self) -> dict[str, Registry]:
        """Registries, by order."""
        return {_order(each.node.name): each.node for each in self._registries}

    @property
    def exchanges(self) -> dict[str, Exchange]:
        """Exchanges, by order."""
        return {_order(each.node.name): each.node for each in self._exchanges}

    def state(self, now_ns: int, told: int) -> list[Json]:
        """Return what is told of each room that anybody ever came to; `told` of its members by name."""
        told = min(told, MEMBERS_MAX)
        rooms: list[Json] = []
        for order, registry in self.registries.items():
            heard = registry.heard
            if registry.names:
                rooms.append(
                    {
                        "order": order,
                        "members_count": len(heard),
                        "members": [
                            {"name": name, "heard_s": max(0, now_ns - heard[name]) / SECOND_NS}
                            for name in list(heard)[-told:]
                        ],
                        "numbers": len(registry.names),
                        "numbers_max": NODES_MAX,
                    }
                )
        for order, exchange in self.exchanges.items():
            members = exchange.members
            if members or exchange.passed_on:
                rooms.append(
                    {
                        "order": order,
                        "members_count": len(members),
                        "members": [
                            {"name": name, "topics": members[name]}
                            for name in list(members)[-told:]
                        ],
                        "events": exchange.passed_on,
                    }
                )
        return rooms


def _order(name: str) -> str:
    return name.partition("/")[2]
