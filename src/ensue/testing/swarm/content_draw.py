"""What a seed stands for: the servers, clients, transactions and faults of a program by content."""

from random import Random

import msgspec

from ensue.testing.faults import Faults, draw_faults
from ensue.testing.swarm.denied_clients import draw_users
from ensue.testing.swarm.durable_calls import DurableTerms, draw_terms
from ensue.testing.swarm.mishaps import draw_rare_mishap
from ensue.testing.swarm.networks import draw_network
from ensue.testing.swarm.rare_calls import draw_calls
from ensue.testing.swarm.rare_faults import add_rare_faults, rarely

__all__ = ["KINDS", "ContentDraw", "draw_content"]

KINDS = ("serializable", "atomic", "planned")
RIVALS = 5
"""The number of the generator of rivals. With it, seeds that tests note draw none."""
RIVAL_KINDS = ("serializable", "planned")
HANDS_OVER = 12
"""The number of the generator of plans that give subscriptions away. See `RIVALS`."""
MAILBOXES = 2
"""The number of the generator: with this, few seeds that tests note have a durable subscription."""


class ContentDraw(msgspec.Struct, frozen=True, kw_only=True):
    """What a seed stands for."""

    seed: int
    servers: int
    sync_s: float
    clients: int
    kinds: tuple[str, ...]
    pause_s: float
    """The mean time between two operations of a client."""
    pending_max: int
    """Small: slow readers have no room for whole transactions."""
    streams: bool
    """Whether a client publishes all the time, while subscriptions move."""
    pauses_broker: bool
    """Whether a broker is paused while a new client uses another one."""
    dies: bool
    """Whether a coordinator is killed within a transaction that has a long timeout."""
    faults: Faults
    moves: bool = False
    """Whether clients move subscriptions to each other while a client publishes all the time."""
    holds: bool = False
    """Whether clients decide about some of their plans later."""
    retries: bool = False
    """Whether clients repeat transactions that conflict."""
    calls: tuple[str, ...] = ()
    """Calls that few programs make."""
    network: str = ""
    """What is unusual about the network; empty: nothing."""
    mishap: str = ""
    """What happens to the disk of a server; empty: nothing."""
    users: bool = False
    """Whether clients have to log in, and some try what they may not do."""
    by_content: bool = False
    """Whether clients invite each other by content."""
    orphans: bool = False
    """Whether the coordinator that is killed has invited another client."""
    rivals: bool = False
    """Whether clients take over the same subscription at the same time."""
    hands_over: bool = False
    """Whether clients plan that others have their subscriptions."""
    mailboxes: bool = False
    """Whether processes read a durable subscription, one after the other."""
    durable: DurableTerms = DurableTerms()
    """How servers treat durable subscriptions."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing goes wrong but what the program does itself."""
        return not self.faults.rates and not self.network and not self.mishap

    @property
    def logins(self) -> bool:
        """Whether clients have to log in."""
        return self.users or self.durable.logins


def draw_content(seed: int, *, faults: list[str] | None = None) -> ContentDraw:
    """Draw a program and its faults."""
    random = Random(f"{seed}/draw/transactions")  # noqa: S311 - replays a seed
    drawn = ContentDraw(
        seed=seed,
        servers=random.choice((1, 2, 3)),
        sync_s=random.choice((0.0, 0.0, 0.2)),
        clients=random.randint(2, 4),
        kinds=tuple(random.sample(KINDS, random.randint(1, 3))),
        pause_s=random.choice((0.2, 0.5, 1.0)),
        pending_max=random.choice((3, 1_000)),
        streams=random.random() < 0.3,
        pauses_broker=random.random() < 0.5,
        dies=random.random() < 0.5,
        faults=draw_faults(random, allowed=faults),
    )
    if faults is None:
        rare = add_rare_faults(drawn.faults, seed, "transactions")
        network = draw_network(seed, "transactions")
        mishap = draw_rare_mishap(seed, "transactions", flips=drawn.sync_s == 0)
        drawn = msgspec.structs.replace(drawn, faults=rare, network=network, mishap=mishap)
    quiet = drawn.is_quiet
    moves = Random(f"{seed}/draw/transactions/moves").random() < 0.4  # noqa: S311 - as above
    holds = Random(f"{seed}/draw/transactions/held plans").random() < 0.4  # noqa: S311 - as above
    retries = Random(f"{seed}/draw/transactions/repeats").random() < 0.4  # noqa: S311 - as above
    found = Random(f"{seed}/draw/transactions/unknown recipients").random()  # noqa: S311 - as above
    orphans = Random(f"{seed}/draw/transactions/participants").random()  # noqa: S311 - as above
    mailboxes = rarely("mailboxes", MAILBOXES, seed, "transactions") is not None
    rivals = rarely("rivals", RIVALS, seed, "transactions") is not None and faults is None
    hands_over = rarely("handed over", HANDS_OVER, seed, "transactions") is not None
    hands_over = hands_over and not rivals and faults is None
    kinds = RIVAL_KINDS if rivals else drawn.kinds
    if hands_over and "planned" not in kinds:
        kinds = (*kinds, "planned")
    moves, durable = moves or rivals or hands_over, draw_terms(seed)
    return msgspec.structs.replace(
        drawn,
        mailboxes=(mailboxes and faults is None and not draw_users(seed) and not durable.expires)
        or durable.logins,
        durable=durable,
        moves=moves,
        rivals=rivals,
        hands_over=hands_over,
        kinds=kinds,
        orphans=orphans < 0.5 and drawn.dies and quiet,
        by_content=found < 0.4 and drawn.kinds != ("planned",),
        retries=retries and "serializable" in drawn.kinds,
        holds=holds and "planned" in drawn.kinds,
        streams=drawn.streams or moves,
        pauses_broker=drawn.pauses_broker and quiet and drawn.servers > 1,
        dies=drawn.dies and quiet,
        calls=draw_calls(seed, "transactions"),
        users=draw_users(seed),
    )
