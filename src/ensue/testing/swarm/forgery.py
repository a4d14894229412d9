"""Frames that a client sends against the rules: in another's name, or about another.

A server with users must let none of them through: no reader may get a forged event, and no
publisher may be silenced.
"""

import asyncio
from collections.abc import Sequence
from random import Random

import ensue
from ensue.core.errors import EnsueError
from ensue.core.event import CLOCK, DEADLINE, Event, Stamp
from ensue.protocols.causal import frames as causal
from ensue.protocols.deadline import frames as deadline
from ensue.protocols.deadline.codec import bits_of, rows_digest
from ensue.protocols.interface import Frame
from ensue.protocols.membership.client import MembershipClient

__all__ = ["forge", "usurp"]

FORGED = b"forged"
USURP_S = 5.0
AHEAD_NS = 10_000_000_000


async def usurp(bus: ensue.Bus, name: str, topic: str) -> list[str]:
    """Try to take over another user's durable subscription; return what is wrong."""
    try:
        async with asyncio.timeout(USURP_S), bus.subscribe(topic, name=name, durable=True):
            return [f"permission: {bus.name} took over the durable subscription {name}"]
    except (TimeoutError, EnsueError):
        return []


def forge(bus: ensue.Bus, victims: Sequence[str], topic: str, random: Random) -> None:
    """Send forged frames to the other clients, where the bus has to do with them directly."""
    driver = bus._driver  # noqa: SLF001 - an adversary does not keep to the API
    node = None if driver is None or driver.closed else driver.node
    membership = getattr(node, "_client", None)
    members = None
    if isinstance(membership, MembershipClient):
        members = membership.members.names
    if driver is None or members is None:
        return
    known = [each for each in victims if each in members]
    if not known:
        return
    victim = random.choice(known)
    number = members.index(victim)
    for receiver, name in enumerate(members):
        if name != bus.name:
            for frame in _frames(bus, victim, number, receiver, topic, random):
                driver._port.send(name, frame)  # noqa: SLF001 - as above
    driver._port.flush()  # noqa: SLF001 - as above


def _frames(
    bus: ensue.Bus, victim: str, number: int, receiver: int, topic: str, random: Random
) -> list[Frame]:
    now_ns = bus._hub.clock.now_ns() if bus._hub is not None else 0  # noqa: SLF001 - as above
    count = random.choice((1, 2, 3, 10))
    event = Event(
        topic=topic,
        payload=FORGED,
        publisher=victim,
        publisher_seq=count,
        published_at_ns=now_ns,
    )
    if isinstance(bus.order, ensue.Causal):
        item = causal.Item(event)
        return [
            causal.Publication(token=1, height=1, below=b"", items=(item,)),
            causal.Fill(topic=topic, items=(item,), more=False),
            causal.Rows(rows=(causal.Row(number, 1 << 40, ()),)),
        ]
    stamped = Event(
        topic=topic,
        payload=FORGED,
        publisher=victim,
        publisher_seq=count,
        published_at_ns=now_ns,
        stamp=Stamp({CLOCK: now_ns, DEADLINE: now_ns + AHEAD_NS}),
    )
    return [
        deadline.Message(
            event=stamped,
            source=number,
            dest=bits_of((receiver,)),
            base=0,
            after={},
            round=0,
            live={},
            heard=0,
            digest=rows_digest({}),
        )
    ]
