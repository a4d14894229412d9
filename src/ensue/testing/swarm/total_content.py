"""Programs with events by content in total order: publishers, filters, and faults.

Besides the rules of total order on the topics of cells, the program knows the attributes of each
event and the filter of each subscription, and checks both (`ensue.checkers.content_cells`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random

import msgspec

import ensue
from ensue.checkers import content_cells
from ensue.checkers.content_filters import matches
from ensue.core.errors import (
    AccessDenied,
    EventsInDoubt,
    EventVoided,
    SubscriptionLost,
    TransportError,
)
from ensue.core.trace import Row
from ensue.server.config import sequenced
from ensue.testing.cluster import Cluster
from ensue.testing.faults import Faults, Striker, draw_faults
from ensue.testing.process import Process
from ensue.testing.swarm.absences import (
    with_early_ends,
    without_expired,
    without_final_ends,
)
from ensue.testing.swarm.brokers import BrokerDraw, draw_broker, make_broker
from ensue.testing.swarm.client_watch import ClientWatch
from ensue.testing.swarm.judge import SECOND_NS, judge
from ensue.testing.swarm.leaks import judge_leaks
from ensue.testing.swarm.mishaps import Mishap, draw_rare_mishap
from ensue.testing.swarm.rare_faults import (
    add_rare_faults,
    is_expiry,
    long_busy_s,
    long_settle_s,
)
from ensue.testing.world import World

__all__ = ["TotalContentDraw", "TotalContentProgram", "draw_total_content", "judge_total_content"]

BUSY_S = 20.0
SETTLE_S = 40.0
END_S = 30.0
PRICES = 6
SYMBOLS = ("a", "b", "c", "d", "e")
CELLS = ("symbol/4", "symbol='a','b'; price<2<4", "price/3", "symbol/2; price<3", "other/2")
FILTERS = (
    "true",
    "symbol = 'a'",
    "symbol = 'b' and price >= 3",
    "symbol in ('a', 'c', 'd')",
    "symbol starts with 'b' or price = 2",
    "price < 3",
    "price = 4.0",
    "urgent = true",
)


class TotalContentDraw(msgspec.Struct, frozen=True, kw_only=True):
    """What a seed stands for."""

    seed: int
    servers: int
    sync_s: float
    cells: str
    causal: bool
    publishers: int
    readers: tuple[str, ...]
    """The filter of each."""
    durable: tuple[str, ...]
    """The filter of each durable subscription."""
    faults: Faults
    broker: BrokerDraw | None = None
    """What servers and clients are connected to; None: to each other."""
    mishap: str = ""
    """What happens to the disk of a server; empty: nothing."""

    @property
    def order(self) -> ensue.Total:
        """The order of all buses."""
        return ensue.Total(causal=self.causal)


def draw_total_content(seed: int, *, faults: list[str] | None = None) -> TotalContentDraw:
    """Draw a program and its faults."""
    random = Random(f"{seed}/draw/total-content")  # noqa: S311 - replays a seed
    drawn = TotalContentDraw(
        seed=seed,
        servers=random.choice((1, 1, 2, 3)),
        sync_s=random.choice((0.0, 0.0, 0.2)),
        cells=random.choice(CELLS),
        causal=random.random() < 0.8,
        publishers=random.randint(1, 3),
        readers=tuple(random.choices(FILTERS, k=random.randint(1, 3))),
        durable=tuple(random.choices(FILTERS, k=random.choice((0, 1, 2)))),
        faults=draw_faults(random, allowed=faults),
    )
    if faults is None:
        rare = add_rare_faults(drawn.faults, seed, "total-content")
        mishap = draw_rare_mishap(seed, "total-content")
        drawn = msgspec.structs.replace(drawn, faults=rare, mishap=mishap)
    broker = draw_broker(seed, "total-content")
    if broker is None:
        return drawn
    struck = msgspec.structs.replace(drawn.faults, **broker.faults)
    return msgspec.structs.replace(drawn, broker=broker, faults=struck)


class TotalContentProgram:
    """One run of a draw."""

    def __init__(self, world: World, drawn: TotalContentDraw) -> None:
        self.world, self.drawn = world, drawn
        self.random = world.generator("total content")
        self._brokers, url = [], ""
        if drawn.broker is not None:
            broker, url = make_broker(world, drawn.broker)
            self._brokers.append(broker)
        self.cluster = Cluster(
            world,
            broker=url,
            names=[f"server-{number}" for number in range(1, drawn.servers + 1)],
            sync_s=drawn.sync_s,
            sequencer=sequenced(causal=drawn.causal, cells=drawn.cells),
        )
        self.mishap = Mishap(world, self.cluster, drawn.mishap)
        self.clients: list[Process] = []
        self.problems: list[str] = []
        self.faults: list[str] = []
        """What struck, and when: one list, also while the program runs."""
        self.durable = [f"durable-{number}" for number in range(len(drawn.durable))]
        self.events: dict[str, dict[str, bool | int | float | str]] = {}
        """By event: its attributes."""
        self.filters: dict[tuple[str, str], str] = {}
        """By bus and subscription."""
        self.settle_s = SETTLE_S + long_settle_s(drawn.faults)
        self._watch = ClientWatch(world, self.problems, long_settle_s(drawn.faults))
        self.calm = False
        """Whether faults are over: publishers stop."""
        self.over = False
        self.over_ns = 0

    async def run(self) -> None:
        """Start servers and clients, let faults strike, heal, and let everything arrive."""
        drawn = self.drawn
        for broker in self._brokers:
            await broker.start()
        await self.cluster.start()
        for number, where in enumerate(drawn.readers):
            self._start(f"reader-{number}", self._read, where, None, self._generator())
        for name, where in zip(self.durable, drawn.durable, strict=True):
            self._start(name, self._read, where, name, self._generator())
        for number in range(drawn.publishers):
            self._start(f"publisher-{number}", self._publish, self._generator())
        striker = Striker(self.world, [self.cluster], drawn.faults, brokers=self._brokers)
        striker.log = self.faults
        striker.start()
        self.mishap.begin()
        await asyncio.sleep(BUSY_S + long_busy_s(drawn.faults))
        await self.mishap.ended()
        await striker.stop()
        self.calm = True
        self._watch.healed(self.clients)
        await asyncio.sleep(self.settle_s)
        self.over, self.over_ns = True, self.world.now_ns
        self._watch.over()
        await self._end()
        self.problems += await judge_leaks(self.cluster, self.clients)
        self.cluster.close()
        self.faults += self.mishap.log
        self.problems += [*self.mishap.judge(), *striker.hung]

    def _generator(self) -> Random:
        return Random(self.random.random())  # noqa: S311 - replays a seed

    def _start(self, name: str, main: Callable[..., Awaitable[None]], *args: object) -> None:
        self.clients.append(self.world.start(name, self._client, name, main, args))

    async def _client(
        self, name: str, main: Callable[..., Awaitable[None]], args: tuple[object, ...]
    ) -> None:
        """Run a program again after errors that applications have to expect."""
        while not self.over:
            try:
                await main(*args)
            except (TransportError, EventsInDoubt) as error:
                self._watch.failed(name, error)
                await asyncio.sleep(0.5)
            except (SubscriptionLost, AccessDenied) as error:
                expected = "superseded" in str(error) or is_expiry(error, self.drawn.faults)
                if not expected and not self._was_away(error):
                    raise
                self._watch.failed(name, error)
                await asyncio.sleep(0.5)
            else:
                # A durable subscription that closes while faults end is entered once more.
                if self.calm and main == self._publish:
                    return

    def _was_away(self, error: Exception) -> bool:
        return bool(self.drawn.faults.client_pauses) and "away for too long" in str(error)

    async def _end(self) -> None:
        for client in self.clients:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await client.ended()
            if client.alive:
                waits = "; ".join(client.waits())
                self.problems.append(f"liveness: {client.name} did not end: {waits}")
            elif (error := client.error()) is not None:
                self.problems.append(f"{client.name} failed: {error}")

    def _url(self, random: Random) -> str:
        return self.cluster.url(random.choice(self.cluster.names))

    # -- Clients ----------------------------------------------------------------------------------

    async def _publish(self, random: Random) -> None:
        order = self.drawn.order
        async with ensue.connect(self._url(random), order=order, name="publisher") as bus:
            while not self.calm:
                attributes = _attributes(random)
                payload = random.randbytes(random.choice((0, 300)))
                with suppress(EventVoided):
                    if len(payload) == 0:
                        event = await bus.publish(attributes, payload, order=order, receipt=False)
                    else:
                        pairs = ((attributes, payload),)
                        (event,) = await bus.publish_many(pairs, order=order, receipt=False)
                    self.events[event.id] = attributes
                await asyncio.sleep(random.choice((0.01, 0.1, 0.5)))
            with suppress(EventVoided):
                await bus.flush(timeout=self._watch.within_s)
            # A server that is away now would not learn that this publisher leaves.
            await asyncio.sleep(SETTLE_S / 4)

    async def _read(self, where: str, name: str | None, random: Random) -> None:
        order = self.drawn.order
        async with (
            ensue.connect(self._url(random), order=order, name=name or "reader") as bus,
            bus.subscribe(
                where=where,
                order=order,
                name=name,
                durable=name is not None and self.drawn.broker is None,
                pending_max=random.choice((2, 100)),
            ) as events,
        ):
            self.filters[bus.name, events.name] = where
            if name is not None:
                self.filters[f"durable {name}", name] = where
            received = 0
            while not self.over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.choice((0.01, 1.0))):
                        async for event in events:
                            received += 1
                            if event.attributes != self.events.get(event.id, event.attributes):
                                self.problems.append(f"attributes of {event.id} have changed")
                counts = events.counts
                assert counts is not None
                if counts.delivered < received:
                    self.problems.append(f"counts: {counts} after {received} events")
                if not self.calm and random.random() < 0.02:
                    return


def _attributes(random: Random) -> dict[str, bool | int | float | str]:
    found: dict[str, bool | int | float | str] = {}
    if random.random() < 0.9:
        found["symbol"] = random.choice(SYMBOLS)
    if random.random() < 0.8:
        price = random.randrange(PRICES)
        found["price"] = price if random.random() < 0.5 else float(price)
    if random.random() < 0.3:
        found["urgent"] = random.random() < 0.5
    return found


def judge_total_content(program: TotalContentProgram, rows: Sequence[Row]) -> list[str]:
    """Return what is wrong with a run, in words."""
    drawn = program.drawn
    durable = program.durable if drawn.broker is None else []
    pauses = program.world.pauses
    rows = with_early_ends(rows, pauses)
    rows = [*rows, *_discarded(program, rows, durable)]
    judged, settle_s = rows, program.settle_s - SETTLE_S / 2
    is_long = bool(long_busy_s(drawn.faults))
    if is_long:
        judged = without_final_ends(rows, program.over_ns, int(settle_s * SECOND_NS))
    found = judge(
        judged, drawn.order.label, settle_s=None if is_long else settle_s, durable=durable
    )
    found = without_expired(found, rows, pauses)
    finding = content_cells.judge(rows, program.events, program.filters)
    return found + [f"{finding.checker}: {each.because}" for each in finding.violations]


def _discarded(
    program: TotalContentProgram, rows: Sequence[Row], durable: Sequence[str]
) -> list[Row]:
    """Return rows of the events that do not match the filters of durable subscriptions.

    A life that ends when its progress is stored has no time to write that it discarded an event.
    """
    found = []
    for name, where in zip(durable, program.drawn.durable, strict=False):
        first = next((row for row in rows if row.subscription == name), None)
        for event, attributes in program.events.items():
            if first is not None and not matches(where, dict(attributes)):
                changes = {"action": "discarded", "event": event, "verdict": "unmatched"}
                found.append(msgspec.structs.replace(first, topic=None, **changes))
    return found
