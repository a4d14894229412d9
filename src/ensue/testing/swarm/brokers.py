"""Which broker a program runs on instead of Ensue's own servers, and its faults."""

from random import Random
from typing import Any

import msgspec

import ensue
from ensue.core.order import Order
from ensue.testing.broker import Broker
from ensue.testing.broker_messages import KINDS
from ensue.testing.faults import Faults
from ensue.testing.world import World

__all__ = ["BrokerDraw", "draw_broker", "make_broker"]

EVERY = 4
"""Every fourth seed of an order is a program on a broker: 3, 7, 11 …"""
FAULTS = ("broker_kills", "broker_pauses", "slow_brokers")


class BrokerDraw(msgspec.Struct, frozen=True, kw_only=True):
    """A broker, and how its clients use it."""

    kind: str
    is_safe: bool
    """Whether clients let it store, or confirm, their messages."""
    keeps_streams: bool
    """Whether its streams survive its process, where that is a setting."""
    faults: dict[str, float]

    def changes(self, order: Order, faults: Faults, *, stranger: bool) -> dict[str, Any]:
        """Return what is different in a program on a broker.

        Stations leave logins and connections to it. In merged order there are none, so that no
        program compares the terms of clients.
        """
        agrees = isinstance(order, ensue.Deadline | ensue.Total) and not self.faults
        return {
            "faults": msgspec.structs.replace(faults, **self.faults),
            "is_full": False,
            "users": False,
            "outsider": (),
            "stranger": stranger and agrees,
        }


def draw_broker(seed: int, order: str) -> BrokerDraw | None:
    """Draw a broker; None: the program runs on Ensue's own servers."""
    if seed % EVERY != EVERY - 1:
        return None
    random = Random(f"{seed}/draw/{order}/broker")  # noqa: S311 - replays a seed
    chosen = random.sample(FAULTS, random.choice((0, 1, 1, 2)))
    return BrokerDraw(
        kind=random.choice(list(KINDS)),
        is_safe=random.random() < 0.5,
        keeps_streams=random.random() < 0.5,
        faults={name: random.choice((2.0, 6.0)) for name in chosen},
    )


def make_broker(world: World, drawn: BrokerDraw) -> tuple[Broker, str]:
    """Return the broker of a run, and the URL of its clients."""
    kind = KINDS[drawn.kind]
    keeps = kind.keeps_streams or drawn.keeps_streams
    broker = Broker(world, drawn.kind, keeps_streams=keeps)
    return broker, f"{broker.url}?{kind.option}=1" if drawn.is_safe else broker.url
