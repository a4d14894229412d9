"""What a seed stands for: the order, servers, clients and faults of a program on topics."""

import dataclasses
from collections.abc import Callable
from random import Random

import msgspec

import ensue
from ensue.core.order import Order
from ensue.testing.faults import Faults, draw_faults
from ensue.testing.swarm.brokers import BrokerDraw, draw_broker
from ensue.testing.swarm.mishaps import HARMLESS_FAULTS, draw_mishap, draw_rare_mishap
from ensue.testing.swarm.networks import SLOW, VERY_SLOW, draw_network
from ensue.testing.swarm.outsiders import draw_outsider
from ensue.testing.swarm.rare_calls import HELD, TERMS, draw_calls
from ensue.testing.swarm.rare_faults import add_rare_faults

__all__ = ["Draw", "draw_topics"]

PROMPT_S, PROMPT_BROKER_S = 3.5, 12.5
"""How long an event may take while publishers are killed: a lease of 1 s or 10 s, and a margin."""
EXPIRE_S = 60.0
"""After how long servers give up clients that were killed."""


class Draw(msgspec.Struct, frozen=True, kw_only=True):
    """What a seed stands for."""

    seed: int
    order: Order
    servers: int
    sync_s: float
    topics: tuple[str, ...]
    publishers: int
    readers: int
    durable: int
    handlers: int
    events: int
    """Events that each publisher publishes, about."""
    segment_bytes: int
    """Small: logs have many segments."""
    mishap: str
    """What happens to the disk of a server; empty: nothing."""
    users: bool
    """Whether clients have to log in, and a guest tries what it may not do."""
    is_full: bool
    """Whether servers have room for exactly the clients that there are."""
    closers: int
    """Clients that publish and close at once."""
    stranger: bool
    """Whether a client with other terms tries to join."""
    faults: Faults
    moves: int = 0
    """How often topics move from server to server."""
    movers: int = 0
    """Subscribers that leave a topic and join another all the time."""
    broker: BrokerDraw | None = None
    """What servers and clients are connected to; None: to each other."""
    calls: tuple[str, ...] = ()
    """Calls that few programs make."""
    network: str = ""
    """What is unusual about the network; empty: nothing."""
    outsider: tuple[str, ...] = ()
    """What a user may read who tries to read everything; empty: there is none."""

    @property
    def prompt_s(self) -> float:
        """How long an event may take while publishers are killed.

        A station on a broker does not see that a client is gone: it waits for the whole lease.
        """
        return PROMPT_S if self.broker is None else PROMPT_BROKER_S

    @property
    def expire_s(self) -> float:
        """How much longer receipts may take: in causal order, until killed subscribers expire."""
        killed = self.faults.client_kills or self.faults.client_power_cuts
        return EXPIRE_S if killed and isinstance(self.order, ensue.Causal) else 0.0

    @property
    def is_prompt(self) -> bool:
        """Whether the time that events take is judged: only clients are killed."""
        return isinstance(self.order, ensue.Total) and self.strikes({"client_kills"})

    def strikes(self, only: set[str]) -> bool:
        """Return whether no other faults than these strike, on the usual network."""
        return not self.mishap and not self.network and self.faults.rates.keys() <= only

    @property
    def writes_little(self) -> bool:
        """Whether servers keep no events, but only what they know of clients and each other."""
        return not isinstance(self.order, ensue.Total)

    @property
    def is_lossy(self) -> bool:
        """Whether events may be missing: by clocks and deadlines, what is late is dropped."""
        return isinstance(self.order, ensue.Merged | ensue.Deadline)


def draw_topics(seed: int, order: str, *, faults: list[str] | None = None) -> Draw:
    """Draw a program and its faults."""
    random = Random(f"{seed}/draw/{order}")  # noqa: S311 - replays a seed
    value = _VALUES[order](random)
    servers = random.choice((1, 1, 2, 3))
    sync_s = random.choice((0.0, 0.0, 0.2))
    mishap = ""
    if isinstance(value, ensue.Total):
        mishap = draw_mishap(random, servers=servers, sync_s=sync_s)
    allowed = list(HARMLESS_FAULTS) if mishap else faults
    drawn = Draw(
        seed=seed,
        order=value,
        servers=servers,
        sync_s=sync_s,
        topics=tuple("abcd"[: random.randint(1, 4)]),
        publishers=random.randint(1, 3),
        readers=random.randint(1, 3),
        durable=random.choice((0, 1, 2)) if isinstance(value, ensue.Total) else 0,
        handlers=random.choice((0, 0, 1)),
        events=random.choice((5, 20, 60)),
        segment_bytes=random.choice((64_000_000, 3_000, 20_000)),
        mishap=mishap,
        users=random.random() < 0.3,
        is_full=servers > 1 and random.random() < 0.3,
        closers=random.choice((0, 0, 1)),
        stranger=random.random() < 0.5,
        faults=draw_faults(random, allowed=allowed),
    )
    if (not drawn.mishap or order == "total-moves") and faults is None:
        rare = add_rare_faults(drawn.faults, seed, order)
        drawn = msgspec.structs.replace(drawn, faults=rare, network=draw_network(seed, order))
    # Clients that reconnect would be refused while their old connection is not given up.
    is_full = drawn.is_full and drawn.strikes({"server_kills", "server_stops"})
    stranger = drawn.stranger and drawn.strikes({"clock_steps", "slow_disks", "resets"})
    has_terms = isinstance(value, ensue.Merged | ensue.Deadline) or order == "total-noncausal"
    outsider = () if drawn.mishap or is_full else draw_outsider(seed, order, drawn.topics)
    drawn = msgspec.structs.replace(
        drawn,
        is_full=is_full,
        stranger=stranger and has_terms and not is_full,
        users=bool(outsider) or (drawn.users and not is_full),
        outsider=outsider,
        closers=0 if is_full or drawn.mishap else drawn.closers,
        calls=() if is_full else draw_calls(seed, order),
    )
    if order == "total-noncausal" and len(drawn.topics) > 2 and not is_full:
        movers = Random(f"{seed}/draw/movers").choice((0, 1, 2))  # noqa: S311 - replays a seed
        drawn = msgspec.structs.replace(drawn, movers=movers)
    if TERMS in drawn.calls:
        drawn = msgspec.structs.replace(drawn, order=with_terms(value, seed))
    if HELD in drawn.calls:
        drawn = msgspec.structs.replace(drawn, order=with_little_held(drawn.order, seed))
    if order == "total-moves":
        drawn = msgspec.structs.replace(
            drawn,
            servers=max(2, servers),
            mishap="",
            is_full=False,
            users=False,
            outsider=(),
            moves=Random(f"{seed}/draw/moves").randint(1, 6),  # noqa: S311 - replays a seed
        )
    elif (broker := draw_broker(seed, order)) is not None:
        if drawn.network == VERY_SLOW:  # A station gives up after five seconds when it starts.
            drawn = msgspec.structs.replace(drawn, network=SLOW)
        changes = broker.changes(value, drawn.faults, stranger=drawn.stranger)
        drawn = msgspec.structs.replace(drawn, broker=broker, **changes)
    return drawn if faults is not None else _with_mishap(drawn, order)


def _with_mishap(drawn: Draw, order: str) -> Draw:
    """Add what few programs draw in orders that do not draw a mishap among the first things."""
    has_journal = drawn.broker is None or not isinstance(drawn.order, ensue.Merged)
    if order in ("total", "total-noncausal") or not has_journal:
        return drawn
    mishap = draw_rare_mishap(drawn.seed, order)
    # A server that starts again does not know the terms of the others any more.
    stranger = drawn.stranger and not mishap
    return msgspec.structs.replace(drawn, mishap=mishap, stranger=stranger)


def with_terms(order: Order, seed: int) -> Order:
    """Return an order with other terms that its clients may choose."""
    random = Random(f"{seed}/terms")  # noqa: S311 - replays a seed
    if isinstance(order, ensue.Merged):
        return ensue.Merged(
            epsilon=order.epsilon,
            delta=order.delta,
            tick=random.choice((0.0001, 0.001, 0.02)),
            late=random.choice(("deliver", "deliver", "drop")),
        )
    return (
        ensue.Deadline(ms=order.ms, on_late="tag") if isinstance(order, ensue.Deadline) else order
    )


def with_little_held(order: Order, seed: int) -> Order:
    """Return an order whose subscriptions hold back few events."""
    random = Random(f"{seed}/held")  # noqa: S311 - replays a seed
    return dataclasses.replace(order, held_max=random.choice((1, 2, 8)))  # type: ignore[call-arg]


_VALUES: dict[str, Callable[[Random], Order]] = {
    "total": lambda _random: ensue.Total(),
    "total-noncausal": lambda _random: ensue.Total(causal=False),
    "total-moves": lambda random: ensue.Total(causal=random.random() < 0.7),
    "causal": lambda random: ensue.Causal(across_topics=random.random() < 0.7),
    "merged": lambda random: ensue.Merged(
        epsilon=random.choice((0.002, 0.05)), delta=random.choice((0.3, 1.0))
    ),
    "deadline": lambda random: ensue.Deadline(ms=random.choice((200, 1000, 5000))),
}
