"""Planted bugs of total order that is not causal, for the swarm of the whole stack to find.

Each breaks what only chains with `causal = false` do: group topics by two subscriptions, deliver by
vectors, and refuse clients that need more. `mutants` tries them with all others.
"""

from typing import Any

import msgspec
from tests.simulation.swarms.test_total_noncausal import (
    ignore_cuts,
    register_no_left_topics,
)

import ensue
from ensue.orders.total import TotalOrder
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.groups import Groups
from ensue.protocols.total.hold_back import VectorQueue
from ensue.protocols.total.subscription_changes import SubscriptionChanges
from ensue.runtime.hub_memory import Hub

__all__ = ["BUGS", "ORDER", "SEEDS"]

ORDER = "total-noncausal"
Patch = tuple[object, str, object]

real_partners = Groups.partners
real_apply = SubscriptionChanges._apply
real_restore = SubscriptionChanges.restore
real_config = Hub.subscriber_config


def need_three_subscriptions(self: Groups, topic: str) -> list[str]:
    """Topics that only two subscribers share are not ordered together."""
    shared = self._shared.get(topic, {})
    return [other for other, count in shared.items() if count > 2 or self._are_near(topic, other)]


def miss_partners_of_other_servers(self: Groups, topic: str) -> list[str]:
    """Stamps name topics of one server alone."""
    return [each for each in real_partners(self, topic) if self._are_near(topic, each)]


def apply_to_no_group_in_use(self: SubscriptionChanges, frame: Any) -> None:
    """After a join, stamps miss the new partners of their topic."""
    groups = dict(self._state.group_cache)
    real_apply(self, frame)
    self._state.group_cache.update(groups)


def expect_positions(self: Hub, order: ensue.Total, *, durable: bool = False) -> SequencerConfig:
    """A client takes the sum of a stamp for a position, as on a causal chain."""
    return msgspec.structs.replace(real_config(self, order, durable=durable), groups=1)


def restore_without_left_topics(
    self: SubscriptionChanges, kind: str, subscriber: str, value: bytes
) -> None:
    """A server that restarts forgets which topics subscribers have left."""
    real_restore(self, kind, subscriber, value)
    groups = self._state.groups
    groups.replace(subscriber, groups.subscriptions.get(subscriber, ()))


def refuse_nothing(*_: object) -> None:
    """What an order promises and what a chain keeps are not compared."""


BUGS: tuple[tuple[str, Patch], ...] = (
    ("two subscriptions are not enough", (Groups, "partners", need_three_subscriptions)),
    ("stamps name one server", (Groups, "partners", miss_partners_of_other_servers)),
    ("stamps miss new partners", (SubscriptionChanges, "_apply", apply_to_no_group_in_use)),
    ("clients expect positions", (Hub, "subscriber_config", expect_positions)),
    ("stamps are ignored", (VectorQueue, "_unmet", refuse_nothing)),
    ("vectors ignore cuts", (VectorQueue, "_unmet", ignore_cuts)),
    ("left topics do not count", (SubscriptionChanges, "_registration", register_no_left_topics)),
    ("servers forget left topics", (SubscriptionChanges, "restore", restore_without_left_topics)),
    ("causal clients are let in", (TotalOrder, "chain_refusal", refuse_nothing)),
    ("causal subscriptions are let in", (TotalOrder, "disagreement", refuse_nothing)),
)
SEEDS = {
    "two subscriptions are not enough": 8,
    "stamps name one server": 8,
    "stamps miss new partners": 12,
    "clients expect positions": 19,
    "stamps are ignored": 2,
    "vectors ignore cuts": 41,
    "left topics do not count": 95,
    "causal clients are let in": 8,
    "causal subscriptions are let in": 8,
}
"""By bug: a seed that finds it, and finds nothing without it."""
