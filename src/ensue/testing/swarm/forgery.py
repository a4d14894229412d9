"""Frames that a client sends against the rules: in another's name, or about another.

A server with users must let none of them through: no reader may get a forged event, no publisher
may be silenced, and no reader cut off by a subscription that it does not have, or by the word that
it has left.
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
from ensue.protocols.membership.frames import Evicted, Members

__all__ = ["forge", "usurp"]

FORGED = b"forged"
USURP_S = 5.0
AHEAD_NS = 10_000_000_000
VERSION = 1 << 40
"""Of forged subscriptions: beyond any that a client has."""
NUMBER = 0
"""Of the generator of forged membership: with it, seeds that tests note find what they found."""
EVERY = 4
"""One bus of so many forges it."""


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
    attacks = _membership_frames(bus, members)
    if not known and not attacks:
        return
    victim = random.choice(known) if known else ""
    for receiver, name in enumerate(members):
        if name == bus.name:
            continue
        frames = []
        if known:
            number = members.index(victim)
            frames = _frames(bus, victim, number, receiver, topic, random)
        for frame in (*frames, *attacks):
            driver._port.send(name, frame)  # noqa: SLF001 - as above
    driver._port.flush()  # noqa: SLF001 - as above


def _membership_frames(bus: ensue.Bus, members: Sequence[str]) -> list[Frame]:
    """Return what few buses claim about another member: its subscriptions, and that it left.

    Drawn by a generator of its own, so that all other buses send what they sent before.
    """
    random = Random(f"forged membership/{NUMBER}/{bus.name}")  # noqa: S311 - replays a seed
    others = [each for each in members if each != bus.name]
    if not others or random.randrange(EVERY):
        return []
    number = members.index(random.choice(others))
    if random.random() < 0.2:  # As its registry: the server closes the connection.
        gone = Members(
            epoch=1, first=0, names=(), total=0, gone_first=0, gone=(number,), gone_total=1
        )
        return [Evicted(reason="forged"), gone]
    if isinstance(bus.order, ensue.Causal):
        row = causal.Row(number, VERSION, ())
        change = causal.Change(token=1, height=1, below=b"", row=row)
        versions = causal.Versions({number: VERSION})
        return [causal.Rows(rows=(row,)), change, versions]
    groups = deadline.Row(number, VERSION, ())
    return [deadline.Groups(row=groups), deadline.Noted(version=1, row=groups)]


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
            causal.Fill(topic=topic, request=1, items=(item,), more=False),
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
