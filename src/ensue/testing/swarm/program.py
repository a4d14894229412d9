"""Programs on topics: publishers, and subscriptions of every kind, drawn from a seed.

Besides what the trace shows, programs check what applications can see themselves: no event of a
topic that was left, none again whose acknowledgement returned, none skipped that was not
acknowledged, no publication without permission, no wait beyond a stated bound.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from random import Random

import ensue
from ensue.core.errors import (
    AccessDenied,
    EnsueError,
    EventRefused,
    EventsInDoubt,
    EventVoided,
    LocalProtocolError,
    LogLost,
    PublishTimeout,
    SubscriptionLost,
    TransportError,
)
from ensue.server.config import Limits, Retention, sequenced
from ensue.server.permissions import Access
from ensue.testing.cluster import Cluster
from ensue.testing.faults import Striker
from ensue.testing.process import Process
from ensue.testing.swarm.brokers import make_broker
from ensue.testing.swarm.call_clients import CallClients
from ensue.testing.swarm.client_watch import ClientWatch
from ensue.testing.swarm.durable_reader import DurableReader
from ensue.testing.swarm.forgery import forge, usurp
from ensue.testing.swarm.handlers import HandlerRun
from ensue.testing.swarm.leaks import judge_leaks
from ensue.testing.swarm.mishaps import FORGETFUL, Mishap
from ensue.testing.swarm.movers import move_topics
from ensue.testing.swarm.networks import late_s
from ensue.testing.swarm.outsiders import Outsider
from ensue.testing.swarm.rare_faults import is_expiry, long_busy_s, long_settle_s
from ensue.testing.swarm.strangers import join_with_other_terms
from ensue.testing.swarm.taken import Taken
from ensue.testing.swarm.topic_calls import header_problems
from ensue.testing.swarm.topic_draw import Draw
from ensue.testing.swarm.unordered_calls import SENDER
from ensue.testing.swarm.users import GUEST, MEMBER, OUTSIDER, access
from ensue.testing.world import World

__all__ = ["NOTICE_NS", "SETTLE_S", "Program"]

BUSY_S = 20.0
"""How long faults strike, in virtual seconds."""
SETTLE_S = 40.0
"""How long after healing everything that is owed has arrived."""
FINAL_S = 12.0
"""How long after healing publishers publish once more, which nothing may stop."""
CLOSE_MARGIN_S = 3.0
"""How much longer than its `close_timeout` closing a bus may take."""
NOTICE_NS = 5_000_000_000
"""How soon after healing: clients ask stations on a broker for their logs every 2 seconds."""


class Program:
    """One run of a draw."""

    def __init__(self, world: World, drawn: Draw) -> None:
        self.world, self.drawn = world, drawn
        self.random = world.random
        self.busy_s = BUSY_S + long_busy_s(drawn.faults)
        self.late_s = long_settle_s(drawn.faults) + late_s(drawn.network)
        """How much later than usual all clients are connected again."""
        self._ack_s = self.busy_s + SETTLE_S
        """How long an acknowledgement may take: longer than all faults together."""
        readers = drawn.readers + drawn.durable + drawn.handlers + drawn.is_prompt
        self._brokers, url = [], ""
        if drawn.broker is not None:
            broker, url = make_broker(world, drawn.broker)
            self._brokers.append(broker)
        self.cluster = Cluster(
            world,
            broker=url,
            names=[f"server-{number}" for number in range(1, drawn.servers + 1)],
            sync_s=drawn.sync_s,
            topics=drawn.topics if drawn.servers > 1 else (),
            retention=Retention(segment_bytes=drawn.segment_bytes),
            limits=Limits(connections=drawn.publishers + readers) if drawn.is_full else Limits(),
            access=access(drawn.outsider) if drawn.users else Access(),
            sequencer=sequenced(causal=getattr(drawn.order, "causal", True)),
        )
        self.mishap = Mishap(world, self.cluster, drawn.mishap, ends_server=drawn.writes_little)
        self.clients: list[Process] = []
        self.faults: list[str] = []
        """What struck, and when: one list, also while the program runs."""
        self.problems: list[str] = []
        """What applications met that they must not meet."""
        self._client_watch = ClientWatch(
            world, self.problems, self.late_s, lambda _client: self.mishap.is_refused
        )
        self.durable: list[str] = []
        """Names of durable subscriptions."""
        self.broken: dict[str, int] = {}
        """By durable subscription: when it learned that its log is lost, and began anew."""
        self.prompt: dict[str, None] = {}
        """Buses whose events may not be late."""
        self.final_ns = 0
        """When publishers publish for the last time."""
        self.noticed_ns = 0
        """When every client of a broker has noticed that a log was lost."""
        self.calm = False
        """Whether faults are over: publishers stop."""
        self.over = False
        """Whether readers stop."""
        self.over_ns = 0
        """Since when they do: what is published later is owed to no durable subscription."""
        self._saw_damage = False
        """Whether a client learned that a log is lost or damaged."""
        self._hands: dict[str, DurableReader] = {}
        self.taken = Taken(world.generator("cancelled reads"))
        self.calls = CallClients(self)
        self.closed_ns: dict[str, int] = {}
        """When buses of closers were closed: their processes go on."""
        self._closed: list[str] = []
        """Buses of the guest that it closed long after healing."""
        self.outsider = Outsider(drawn.topics, drawn.outsider, self.problems)
        self.publishers: dict[str, str] = {}
        """By process: the name of its bus."""

    async def run(self) -> None:
        """Start servers and clients, let faults strike, heal, and let everything arrive."""
        drawn, world = self.drawn, self.world
        for broker in self._brokers:
            await broker.start()
        await self.cluster.start()
        self._start_readers()
        await asyncio.sleep(world.random.choice((0.0, 0.5, 2.0)))
        self._start_others()
        striker = Striker(world, [self.cluster], drawn.faults, brokers=self._brokers)
        striker.log = self.faults
        striker.start()
        self.mishap.begin()
        if drawn.stranger:
            await asyncio.sleep(3.0)
            self._start("stranger", self._differ, self._generator())
        await asyncio.sleep(self.busy_s)
        await striker.stop()
        self.calm = True
        self._client_watch.healed(self.clients)
        if drawn.mishap == "flipped" and drawn.servers == 1:
            self._start("auditor", self._audit)
        self.noticed_ns = world.now_ns + NOTICE_NS
        await asyncio.sleep(FINAL_S + self.late_s)
        self.final_ns = world.now_ns
        await asyncio.sleep(SETTLE_S - FINAL_S)
        self.over, self.over_ns = True, world.now_ns
        self._client_watch.over()
        await self._end()
        await self.mishap.ended()
        forgotten = self.calls.forgotten.names
        self.problems += await judge_leaks(
            self.cluster,
            self.clients,
            self._closed,
            forgotten=forgotten,
            refused=self.mishap.is_refused,
        )
        self.cluster.close()
        self.faults += self.mishap.log
        self.problems += [*self.mishap.judge(), *striker.hung]
        if drawn.mishap == "flipped" and self._saw_damage and not self.cluster.damaged:
            self.problems.append(
                "refusal: clients got an error about damage, and the server goes on"
            )

    def _start_others(self) -> None:
        drawn = self.drawn
        for number in range(drawn.publishers):
            name = f"publisher-{number}"
            self._start(name, self._publish, name, self._generator())
        for number in range(drawn.closers):
            self._start(f"closer-{number}", self._close, self._generator())
        if drawn.users:
            self._start("guest", self._trespass, self._generator())
        self.durable += self.calls.hands
        self._hands |= self.calls.hands
        for name, main in self.calls.mains():
            self._start(name, main)
        if drawn.outsider:
            self._start("outsider", self._visit, self._generator())
        if drawn.moves:
            self._start("operator", self._move, self.world.generator("moves"))

    async def _move(self, random: Random) -> None:
        """Move topics from server to server."""
        await move_topics(self.world, self.drawn, self.cluster, random, phase=self, url=self.url)

    def _start_readers(self) -> None:
        drawn = self.drawn
        kinds = [self._read] * drawn.readers + [self._handle] * drawn.handlers
        for number, kind in enumerate(kinds):
            self._start(f"reader-{number}", kind, self._topics(), self._generator())
        if drawn.is_prompt:
            self._start("watcher", self._watch)
        for number in range(drawn.movers):
            name = f"mover-{number}"
            self._start(name, self._move_on, self.world.generator(name))
        for number in range(drawn.durable):
            name = f"durable-{number}"
            self.durable.append(name)
            random = self.world.generator(f"durable reader {name}")
            self._hands[name] = DurableReader(name, self.problems, random)
            topics = self._topics()
            reads = self.random.random() < 0.7
            main = self._read_durable if reads else self._handle_durable
            self._start(name, main, name, topics, self._generator())

    async def _end(self) -> None:
        """Wait for all clients: none may hang."""
        anywhere = {*self.durable, SENDER}
        for client in self.clients:
            with suppress(TimeoutError):
                async with asyncio.timeout(30.0 + self.drawn.expire_s):
                    await client.ended()
            if client.alive:
                waits = "; ".join(client.waits())
                if not self.mishap.holds_up(anywhere=client.name in anywhere):
                    self.problems.append(f"liveness: {client.name} did not end in time: {waits}")
            elif (error := client.error()) is not None:
                self.problems.append(f"{client.name} failed: {error}")

    def _generator(self) -> Random:
        """Return a generator for the choices of one client."""
        return Random(self.random.random())  # noqa: S311 - replays a seed

    def _topics(self) -> tuple[str, ...]:
        topics = self.drawn.topics
        return tuple(sorted(self.random.sample(topics, self.random.randint(1, len(topics)))))

    def url(self, random: Random, token: str = MEMBER) -> str:
        """Draw a server; return its URL for a user."""
        name = random.choice(self.cluster.names)
        return self.cluster.url(name, token=token if self.drawn.users else "")

    def _start(self, name: str, main: Callable[..., Awaitable[None]], *args: object) -> None:
        if self.drawn.faults.clock_steps:
            # It starts before its clock is synchronized.
            ms = self.random.uniform(-1.0, 1.0) * self.drawn.faults.clock_step_ms
            self.world.host(name).step_clock(int(ms * 1_000_000))
        self.clients.append(self.world.start(name, self._client, name, main, args))

    async def _client(
        self, name: str, main: Callable[..., Awaitable[None]], args: tuple[object, ...]
    ) -> None:
        """Run a client's program again after errors that applications have to expect."""
        once = (self._publish, self._differ, self._close, self._move)
        while not self.over:
            try:
                await main(*args)
            except (
                TransportError,
                SubscriptionLost,
                EventsInDoubt,
                LogLost,
                AccessDenied,
            ) as error:
                if not self._expects(error):
                    self.problems.append(f"{name}: {error!r}")
                    return
                self._client_watch.failed(name, error)
                if isinstance(error, SubscriptionLost | LogLost):
                    self._saw_damage = True
                    if name in self._hands:
                        self._break(name)
                await asyncio.sleep(0.5)
            else:
                # A durable subscription that closes while faults end is entered once more.
                if self.calm and main in once:
                    return

    def _expects(self, error: EnsueError) -> bool:
        if is_expiry(error, self.drawn.faults):
            return True
        if isinstance(error, LogLost):
            return self.mishap.explains(error.reason)
        if isinstance(error, SubscriptionLost):
            return error.reason == "superseded" or self.mishap.explains(error.reason)
        return not isinstance(error, AccessDenied)

    def _break(self, name: str) -> None:
        """Note that a durable subscription begins anew."""
        if self.mishap.is_accepted:
            self.broken[name] = self.world.now_ns
            self._hands[name].forget()

    # -- Publishing -------------------------------------------------------------------------------

    async def _publish(self, name: str, random: Random) -> None:
        drawn = self.drawn
        async with ensue.connect(self.url(random), order=drawn.order, name="publisher") as bus:
            self.publishers[name] = bus.name
            gap_s = self.busy_s / drawn.events
            while not self.calm:
                burst = random.choice((1, 1, 1, 5, 20))
                for _ in range(burst):
                    await self._publish_one(bus, random)
                await asyncio.sleep(min(5.0, random.expovariate(1.0 / (gap_s * burst))))
            with suppress(EventVoided):  # Of an event from before: a publisher goes on after it.
                await self._flush(bus)
            if isinstance(drawn.order, ensue.Causal):
                return
            # A server that is away now would not learn that this publisher leaves.
            while not self.final_ns:  # noqa: ASYNC110 - set by another event loop
                await asyncio.sleep(0.5)
            with suppress(EventVoided):
                for _ in range(3):
                    for topic in drawn.topics:
                        await bus.publish(topic, b"final", receipt=False)
                    await asyncio.sleep(0.2)
                await self._flush(bus)

    async def _flush(self, bus: ensue.Bus) -> None:
        try:
            await bus.flush(timeout=SETTLE_S / 2 + self.late_s + self.drawn.expire_s)
        except EventsInDoubt as error:
            if not self.mishap.holds_up():
                self.problems.append(f"liveness: no receipts long after healing: {error}")
        else:
            if bus.unsettled:
                self.problems.append(f"flush: returned with {bus.unsettled} events unsettled")

    async def _publish_one(self, bus: ensue.Bus, random: Random) -> None:
        topic = random.choice(self.drawn.topics)
        how = random.random()
        payload = random.randbytes(random.choice((0, 10, 100, 3000)))
        with suppress(EventVoided, EventsInDoubt, PublishTimeout):
            if how < 0.4:
                await bus.publish(topic, payload, receipt=False)
            elif how < 0.8:
                await bus.publish(topic, payload, key=random.randbytes(1))
            elif how < 0.9:
                await bus.publish(topic, payload, timeout=random.choice((0.001, 0.05, 1.0)))
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.choice((0.0001, 0.01, 0.5))):
                        await bus.publish(topic, payload)

    async def _close(self, random: Random) -> None:
        """Publish, and close at once, whether or not a server answers."""
        limit_s = random.choice((0.0, 0.5, 2.0))
        url, loop = self.url(random), asyncio.get_running_loop()
        bus = ensue.connect(url, order=self.drawn.order, name="closer", close_timeout=limit_s)
        await bus.__aenter__()
        closed_s = loop.time()
        try:
            with suppress(EventVoided, EventsInDoubt):
                for _ in range(random.randint(0, 5)):
                    await bus.publish(random.choice(self.drawn.topics), b"", receipt=False)
                    await asyncio.sleep(random.choice((0.0, 0.0, 0.5)))
            closed_s = loop.time()
        finally:
            with suppress(EventsInDoubt):
                await bus.close()
            self.closed_ns[bus.name] = self.world.now_ns
        took_s = loop.time() - closed_s
        if took_s > limit_s + CLOSE_MARGIN_S and not self.drawn.faults.client_pauses:
            self.problems.append(f"liveness: closing took {took_s:.1f} s, allowed {limit_s:g} s")
        await asyncio.sleep(random.uniform(0.5, 4.0))

    async def _trespass(self, random: Random) -> None:
        """Try to publish without permission, by the API and by forged frames."""
        drawn, url = self.drawn, self.url(random, GUEST)
        async with ensue.connect(url, order=drawn.order, name="guest", close_timeout=1.0) as bus:
            topic = random.choice(drawn.topics)
            keeps_names = drawn.mishap not in FORGETFUL
            if self.durable and keeps_names and self._hands[self.durable[0]].has_begun:
                self.problems += await usurp(bus, self.durable[0], topic)
            if random.random() < 0.5:
                try:
                    await bus.publish(topic, b"forbidden", timeout=5.0)
                except (EventRefused, EventsInDoubt, AccessDenied, EventVoided):
                    pass
                else:
                    self.problems.append(f"permission: a guest published on {topic}")
            for _ in range(5):
                forge(bus, tuple(self.publishers.values()), topic, random)
                await asyncio.sleep(random.uniform(0.1, 1.0))
            stays = self.calm
            # A bus that is closed while a server is away may be registered until it expires.
            while stays and not self.over:  # noqa: ASYNC110 - set by another event loop
                await asyncio.sleep(0.5)
        if stays:
            self._closed.append(bus.name)

    async def _visit(self, random: Random) -> None:
        """Try to read without permission."""
        url, order = self.url(random, OUTSIDER), self.drawn.order
        async with ensue.connect(url, order=order, name="outsider", close_timeout=1.0) as bus:
            await self.outsider.visit(bus, self.cluster.names, random, lambda: self.over)

    async def _differ(self, random: Random) -> None:
        """Try to join with other terms, which all others have to be spared."""
        await join_with_other_terms(partial(self.url, random), self.drawn.order, self.problems)
        while not self.calm:  # noqa: ASYNC110 - set by another event loop
            await asyncio.sleep(0.5)

    # -- Reading ----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Read everything at once, so that what is late is not late because of the reader."""
        url, order = self.url(Random(0)), self.drawn.order  # noqa: S311 - any server
        async with (
            ensue.connect(url, order=order, name="watcher") as bus,
            bus.subscribe(*self.drawn.topics, pending_max=100_000) as events,
        ):
            self.prompt[bus.name] = None
            while not self.over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        async for _ in events:
                            pass

    async def _audit(self) -> None:
        """Read the whole log, so that damage is read too."""
        order, topics = self.drawn.order, self.drawn.topics
        async with (
            ensue.connect(self.url(Random(0)), order=order, name="auditor") as bus,  # noqa: S311
            bus.subscribe(*topics, start="earliest") as events,
        ):
            while not self.over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        async for _ in events:
                            pass

    async def _read(self, topics: tuple[str, ...], random: Random) -> None:
        """Read a plain subscription, joining and leaving topics, cancelling waits."""
        order = self.drawn.order
        async with ensue.connect(self.url(random), order=order, name="reader") as bus:
            while not self.over:
                other = asyncio.create_task(self._read_beside(bus, topics, random))
                try:
                    start = "latest"
                    if (
                        isinstance(order, ensue.Total)
                        and self.drawn.servers == 1
                        and random.random() < 0.3
                    ):
                        start = "earliest"
                    async with bus.subscribe(
                        *topics,
                        pending_max=random.choice((2, 16, 1000)),
                        start=start,  # type: ignore[arg-type]
                    ) as events:
                        await self._read_some(events, topics, random)
                finally:
                    other.cancel()
                    await asyncio.gather(other, return_exceptions=True)

    async def _read_beside(self, bus: ensue.Bus, topics: tuple[str, ...], random: Random) -> None:
        """Open and close other subscriptions of the same bus."""
        if random.random() < 0.7:
            return
        while not self.calm:
            await asyncio.sleep(random.uniform(0.1, 2.0))
            async with bus.subscribe(random.choice(topics)) as events:
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.uniform(0.1, 4.0)):
                        async for _ in events:
                            pass

    async def _read_some(
        self, events: ensue.Subscription, topics: tuple[str, ...], random: Random
    ) -> None:
        slow_s = random.choice((0.0, 0.0, 0.001, 0.05, 0.5))
        left: dict[str, int] = {}
        self.taken.watch(events)
        while not self.over:
            await self.taken.snatch(events)
            with suppress(TimeoutError):
                # Cancelled again and again: no event may be lost by that.
                async with asyncio.timeout(random.choice((0.001, 0.1, 1.0))):
                    async for event in events:
                        self.taken.take(events, event)
                        self._check_event(events, event, left)
                        if slow_s and not self.calm:
                            break
            if slow_s and not self.calm:
                await asyncio.sleep(slow_s)
            if not self.calm and random.random() < 0.02:
                if random.random() < 0.3:
                    return  # Leave, and subscribe anew.
                await self._change(events, random.choice(topics), left)

    async def _move_on(self, random: Random) -> None:
        """Read one topic after the other, beside one that stays."""
        order = self.drawn.order
        stays, topic, *others = random.sample(self.drawn.topics, len(self.drawn.topics))
        async with (
            ensue.connect(self.url(random), order=order, name="mover") as bus,
            bus.subscribe(stays, topic) as events,
        ):
            self.taken.watch(events)
            # It has not got any event of the others yet.
            left = dict.fromkeys(others, len(self.world.rows))
            while not self.over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.choice((0.05, 0.2, 1.0))):
                        async for event in events:
                            self.taken.take(events, event)
                            self._check_event(events, event, left)
                if not self.calm:
                    await self._change(events, topic, left)
                    topic = random.choice(others)
                    others = [each for each in left if each != topic]
                    await self._change(events, topic, left)

    def _check_event(
        self, events: ensue.Subscription, event: ensue.ReceivedEvent, left: dict[str, int]
    ) -> None:
        """Check its headers, and that it counted as delivered before its topic was left, if so."""
        self.problems += header_problems(event)
        count = left.get(event.topic)
        if count is not None and not any(
            (row.action, row.event, row.subscription) == ("delivered", event.id, events.name)
            for row in self.world.rows[:count]
        ):
            self.problems.append(f"left: {event.id} was handed out after its topic was left")

    @property
    def leaves(self) -> dict[str, list[tuple[int, str]]]:
        """By durable subscription: when it began to leave topics."""
        hands = {**self._hands, **self.calls.forgotten.hands}
        return {name: each.leaves for name, each in hands.items()}

    async def _change(
        self,
        events: ensue.Subscription,
        topic: str,
        left: dict[str, int],
        hands: DurableReader | None = None,
    ) -> None:
        """Leave a topic, or join it again. `left` says how many rows there were then."""
        if topic in events.topics and len(events.topics) > 1 and topic not in left:
            if hands is not None:
                hands.leave(topic, self.world.now_ns)
            await events.unsubscribe(topic)
            left[topic] = len(self.world.rows)
        elif topic in left:
            with suppress(LocalProtocolError):
                left.pop(topic)
                await events.subscribe(topic)

    async def _read_durable(  # noqa: C901 - what an application may do, one after the other
        self, name: str, topics: tuple[str, ...], random: Random
    ) -> None:
        order, hands = self.drawn.order, self._hands[name]
        manual = random.random() < 0.7
        async with (
            ensue.connect(self.url(random), order=order, name=name) as bus,
            bus.subscribe(
                *topics,
                name=name,
                durable=True,
                acknowledge="manual" if manual else "auto",
                pending_max=random.choice((2, 100)),
                accept_loss=name in self.broken,
            ) as events,
        ):
            hands.begin(self.mishap.lost_ns)
            self.taken.watch(events)
            left: dict[str, int] = {}
            late: list[ensue.ReceivedEvent] = []
            while not self.over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.choice((0.01, 1.0))):
                        async for event in events:
                            self.taken.take(events, event)
                            self._check_event(events, event, left)
                            hands.hand(event)
                            if not manual:
                                hands.done(event)
                                continue
                            late.append(event)
                            if random.random() < 0.5 or len(late) > 1:
                                await self._acknowledge(late, hands, random, keeps_some=True)
                            if not self.calm and random.random() < 0.05:
                                break
                if random.random() < 0.5:
                    await self._acknowledge(late, hands, random)
                if not self.calm and random.random() < 0.3 and len(topics) > 1:
                    topic = random.choice(topics)
                    # What was handed out and is not acknowledged would lose its position.
                    await self._acknowledge(late, hands, random)
                    await self._change(events, topic, left, hands)
                if self.calm:
                    await self._acknowledge(late, hands, random)
                if self.calm and left:
                    await self._change(events, next(iter(left)), left)
                if not self.calm and not left and random.random() < 0.02:
                    return

    async def _acknowledge(
        self,
        events: list[ensue.ReceivedEvent],
        hands: DurableReader,
        random: Random,
        *,
        keeps_some: bool = False,
    ) -> None:
        """Acknowledge some events, in any sequence."""
        random.shuffle(events)
        while events:
            event = events[-1]
            safe = hands.done(event)
            limit_s = random.choice((0.001, 5.0, self._ack_s))
            try:
                # Cancelled at times: then the event may come again or not.
                async with asyncio.timeout(limit_s):
                    await event.ack()
                    hands.safe(safe)
            except TimeoutError:
                if limit_s == self._ack_s and not self.mishap.holds_up(anywhere=True):
                    self.problems.append(f"liveness: an acknowledgement took {limit_s:g} s")
            events.remove(event)
            if keeps_some and hands.random.random() < 0.5:
                return  # The others stay open: a later position does not count for them.

    async def _handle(self, topics: tuple[str, ...], random: Random) -> None:
        order = self.drawn.order
        async with (
            ensue.connect(self.url(random), order=order, name="handler") as bus,
            bus.subscribe(*topics) as events,
        ):
            await self._run(events, topics, random, None)

    async def _handle_durable(self, name: str, topics: tuple[str, ...], random: Random) -> None:
        order, hands = self.drawn.order, self._hands[name]
        async with (
            ensue.connect(self.url(random), order=order, name=name) as bus,
            bus.subscribe(
                *topics, name=name, durable=True, accept_loss=name in self.broken
            ) as events,
        ):
            hands.begin(self.mishap.lost_ns)
            await self._run(events, topics, random, hands)

    async def _run(  # noqa: C901 - what an application may do, one after the other
        self,
        events: ensue.Subscription,
        topics: tuple[str, ...],
        random: Random,
        hands: DurableReader | None,
    ) -> None:
        left: dict[str, int] = {}
        begun: dict[str, None] = {}
        own = HandlerRun(
            events.name, self.world.generator(f"run {events.name}"), self.problems, phase=self
        )

        async def handle(event: ensue.ReceivedEvent) -> None:
            if event.id not in begun:  # A retry goes on after its topic was left.
                self._check_event(events, event, left)
            begun[event.id] = None
            if hands is not None:
                hands.hand(event)
            try:
                await own.handle(event)
            except ValueError:
                if hands is not None and own.parks:
                    hands.done(event)
                raise
            if hands is not None:
                hands.done(event)

        async def change() -> None:
            while not self.over:
                await asyncio.sleep(0.5)
                if hands is None and (left or not self.calm) and random.random() < 0.2:
                    topic = next(iter(left), random.choice(topics))
                    await self._change(events, topic, left)
            events.close()

        changing = asyncio.create_task(change())
        try:
            await own.run(events, handle)
        except (SubscriptionLost, LogLost):
            raise
        except EnsueError as error:
            self.problems.append(f"handler: {error!r}")
        finally:
            changing.cancel()
            await asyncio.gather(changing, return_exceptions=True)
