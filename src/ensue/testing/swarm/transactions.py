"""Programs by content: subscriptions that move between clients in transactions of three kinds."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import ensue
from ensue.core import platform
from ensue.core.errors import (
    EventsInDoubt,
    LocalProtocolError,
    SubscriptionLost,
    TransactionPending,
    TransportError,
)
from ensue.server.permissions import Access
from ensue.testing.cluster import Cluster
from ensue.testing.faults import Striker
from ensue.testing.process import Host, Process
from ensue.testing.swarm.callers import make_callers
from ensue.testing.swarm.client_watch import ClientWatch
from ensue.testing.swarm.content_draw import KINDS, ContentDraw
from ensue.testing.swarm.denied_clients import TOKENS, DeniedClients
from ensue.testing.swarm.leaks import judge_buffers, judge_leaks
from ensue.testing.swarm.mailboxes import Mailboxes
from ensue.testing.swarm.mishaps import Mishap
from ensue.testing.swarm.moves import Moves
from ensue.testing.swarm.networks import late_s
from ensue.testing.swarm.rare_faults import long_busy_s, long_settle_s, may_expire
from ensue.testing.swarm.users import MEMBER, READER, content_access
from ensue.testing.world import World

__all__ = ["ContentProgram"]

BUSY_S = 15.0
SETTLE_S = 40.0
NEWCOMER_S = 8.0
"""How soon a new client is served while another broker is paused: away after 2 s, and a margin."""
HEIR_S = 6.0
"""How soon transactions go on without a dead coordinator: after a grace of 1 s, and a margin."""
LATE_S = 1.0
"""By how much the decision about a plan may pass its timeout: messages travel."""
RETRIES = 3
UNDONE = b"undone"
"""The payload of events in blocks that raise: no client may get them."""
KEPT_BY = ("keeper", "postmaster", "reader-")
"""Clients that read durable subscriptions: these are at any server."""
FILTERS = ("x exists", "x > 2", "x < 3", "x = 1")


class _UndoError(Exception):
    """A transaction is to be undone."""


class ContentProgram:
    """One run of a draw."""

    def __init__(self, world: World, drawn: ContentDraw) -> None:
        self.world, self.drawn = world, drawn
        self.cluster = Cluster(
            world,
            names=[f"server-{number}" for number in range(1, drawn.servers + 1)],
            sync_s=drawn.sync_s,
            records_brokers=True,
            access=content_access() if drawn.logins else Access(),
            reconfigure=drawn.durable.in_life,
            **drawn.durable.server_options(),
        )
        # Content brokers read all that they have when they start, and nothing of it later.
        flips = drawn.mishap == "flipped"
        self.mishap = Mishap(world, self.cluster, drawn.mishap, ends_server=flips)
        self.late_s = long_settle_s(drawn.faults) + late_s(drawn.network)
        """How much later than usual all clients are connected again."""
        self.clients: list[Process] = []
        self.problems: list[str] = []
        self.faults: list[str] = []
        """What struck, and when: one list, also while the program runs."""
        self.calm = False
        self.over = False
        self.calm_ns = 0
        """When faults were over."""
        self._watch = ClientWatch(world, self.problems, self.late_s, self._may_wait)
        self._expired = (LocalProtocolError,) if may_expire(drawn.faults) else ()
        self.denied = DeniedClients(self.problems, self._expired)
        """What a client gets whose session brokers gave up."""
        self.moves = Moves()
        self._decisions = Random(f"{drawn.seed}/decisions")  # noqa: S311 - replays a seed
        """Of held plans, attempts and invitations by content: all else stays as it was drawn."""
        self._pace = 1.0 + long_busy_s(drawn.faults) / BUSY_S
        """How much longer clients pause where faults strike for long."""
        self._attempts: dict[str, str] = {}
        """By transaction that may be repeated: the attempt that was delivered."""
        self._takers: dict[str, None] = {}
        """Clients that take invitations by content."""
        self._taken: dict[str, list[str]] = {}
        """By transaction: clients that have taken part by such an invitation."""
        self._homes: dict[str, dict[str, None]] = {}
        """By process: the servers of its buses."""
        self._names: dict[str, str] = {}
        """By process: the present name of its bus."""
        self._buses: dict[str, ensue.Bus] = {}
        """By process: its present bus."""

    async def run(self) -> None:
        """Start servers and clients, let faults strike, heal, and let everything arrive."""
        drawn, world = self.drawn, self.world
        await self.cluster.start()
        mailboxes = self._start_clients()
        striker = Striker(world, [self.cluster], drawn.faults)
        striker.log = self.faults
        await asyncio.sleep(1.0)
        striker.start()
        self.mishap.begin()
        await asyncio.sleep(BUSY_S / 2 + long_busy_s(drawn.faults))
        if drawn.pauses_broker:
            await self._pause_broker()
        await asyncio.sleep(BUSY_S / 2)
        await self.mishap.ended()
        await striker.stop()
        self.calm, self.calm_ns = True, world.now_ns
        self._watch.healed(self.clients)
        if drawn.dies:
            await self._kill_coordinator()
        await asyncio.sleep(SETTLE_S + self.late_s)
        if not self.mishap.is_refused:  # Plans wait for that server.
            self.problems += judge_buffers(self._buses.values())
        self.over = True
        self._watch.over()
        for client in self.clients:
            with suppress(TimeoutError):
                async with asyncio.timeout(60.0):
                    await client.ended()
            if client.alive and self._may_wait(client.name):
                self.world.crashed(client.machine)  # Nothing is owed to it any more.
            elif client.alive:
                waits = "; ".join(client.waits())
                self.problems.append(f"liveness: {client.name} did not end within 60 s: {waits}")
            elif (error := client.error()) is not None:
                self.problems.append(f"{client.name} failed: {error}")
        if not self.mishap.is_refused:  # What concerns that server waits for it.
            self.problems += mailboxes.judge()
            self.problems += await judge_leaks(self.cluster, self.clients)
        self.cluster.close()
        self.faults += self.mishap.log
        self.problems += [*self.mishap.judge(), *striker.hung]

    def _start_callers(self) -> None:
        for caller in make_callers(
            self.drawn.calls,
            self.world,
            self.problems,
            phase=self,
            url=self._any_url,
            late_s=SETTLE_S / 4 + long_settle_s(self.drawn.faults),
            watch=self._watch,
            expired=self._expired,
            terms=self.drawn.durable,
            reader_url=self._url(self.cluster.names[0], READER),
            servers=self.drawn.servers,
        ):
            self.clients.append(self.world.start(caller.process, caller.run))

    def _start_clients(self) -> Mailboxes:
        drawn, world = self.drawn, self.world
        for number in range(drawn.clients):
            name = f"client-{number}"
            random = Random(world.random.random())  # noqa: S311 - replays a seed
            self.clients.append(world.start(name, self._client, name, random))
        if drawn.streams:
            random = Random(world.random.random())  # noqa: S311 - replays a seed
            self.clients.append(world.start("stream", self._stream, random))
        self._start_callers()
        for user in TOKENS if drawn.users else ():
            random = Random(world.random.random())  # noqa: S311 - replays a seed
            self.clients.append(world.start(user, self._client, user, random, self._trespass))
        mailboxes = Mailboxes(
            world,
            drawn.seed,
            self.problems,
            watch=self._watch,
            expired=self._expired,
            url=self._any_url,
            is_calm=lambda: self.calm,
            is_over=lambda: self.over,
        )
        if drawn.mailboxes:
            self.clients += mailboxes.start()
        return mailboxes

    async def _stream(self, random: Random) -> None:
        """Publish all the time, without waiting for answers."""
        while not self.calm:
            with self._watch.expects("stream", TransportError, EventsInDoubt, *self._expired):
                async with ensue.connect(self._any_url(random), order=None, name="stream") as bus:
                    await bus.advertise(where="x exists")
                    while not self.calm:
                        made = [
                            bus.publish({"x": random.randint(0, 4)}, b"stream", timeout=20.0)
                            for _ in range(3)
                        ]
                        for event in await asyncio.gather(*made):
                            self.moves.confirm(event)
                        await asyncio.sleep(random.uniform(0.0, 0.3) * self._pace)
            self.world.crashed(self.world.host("stream"))

    async def _pause_broker(self) -> None:
        """Pause one broker, and have a new client at another one advertise and subscribe."""
        paused, other = self.world.random.sample(self.cluster.names, 2)
        self.cluster.processes[paused].pause()
        await asyncio.sleep(0.5)
        newcomer = self.world.start("newcomer", self._come, other)
        try:
            async with asyncio.timeout(NEWCOMER_S):
                await newcomer.ended()
        except TimeoutError:
            waits = "; ".join(newcomer.waits())
            self.problems.append(
                f"liveness: {paused} is paused, and a new client of {other} waits: {waits}"
            )
        finally:
            self.cluster.processes[paused].resume()
        await newcomer.ended()

    async def _come(self, server: str) -> None:
        url = self._url(server)
        async with ensue.connect(url, order=None, name="newcomer", close_timeout=0.5) as bus:
            await bus.advertise(where="y exists")
            async with bus.subscribe(where="y exists"):
                pass
        self.world.crashed(self.world.host("newcomer"))

    async def _kill_coordinator(self) -> None:
        """Kill a coordinator, and have another client commit soon afterwards."""
        random = Random(self.world.random.random())  # noqa: S311 - replays a seed
        guests = []
        if self.drawn.orphans:
            guests.append(self.world.start("guest", self._take_part, random))
            await asyncio.sleep(1.0)
        dead = self.world.start("coordinator", self._begin_and_wait, random)
        await asyncio.sleep(2.0)
        dead.kill()
        for guest in guests:
            await self._await_end(guest, "a client that took part")
        await self._await_end(self.world.start("heir", self._commit_one, random), "a transaction")

    async def _await_end(self, process: Process, what: str) -> None:
        """Check that a process does not wait for the dead coordinator's timeout."""
        try:
            async with asyncio.timeout(HEIR_S):
                await process.ended()
        except TimeoutError:
            self.problems.append(
                f"liveness: {what} waited {HEIR_S:g} s for a coordinator that is dead"
            )
        await process.ended()

    async def _begin_and_wait(self, random: Random) -> None:
        async with ensue.connect(self._any_url(random), order=None, name="coordinator") as bus:
            await bus.advertise(where="x exists")
            async with bus.transaction(timeout=30.0) as tx:
                await tx.publish({"x": 1}, b"dead")
                if self.drawn.orphans:
                    await tx.invite("guest")
                await asyncio.sleep(60.0)

    async def _take_part(self, random: Random) -> None:
        """Take part in the coordinator's transaction until it ends."""
        ended = asyncio.Event()

        async def act(tx: ensue.InvitedTransaction) -> None:
            async for _ in await tx.subscribe("x > 9"):
                pass
            ended.set()

        async with ensue.connect(self._any_url(random), order=None, name="guest") as bus:
            await bus.on_invitation(act)
            await ended.wait()
        self.world.crashed(self.world.host("guest"))

    async def _commit_one(self, random: Random) -> None:
        async with ensue.connect(self._any_url(random), order=None, name="heir") as bus:
            await bus.advertise(where="x exists")
            with suppress(ensue.TransactionAborted, TransactionPending):
                async with bus.transaction(timeout=30.0) as tx:
                    await tx.publish({"x": 1}, b"heir")
        self.world.crashed(self.world.host("heir"))

    def _any_url(self, random: Random) -> str:
        return self._url(random.choice(self.cluster.names))

    def _url(self, server: str, token: str = MEMBER) -> str:
        host = platform.current()
        assert isinstance(host, Host)
        self._homes.setdefault(host.name, {})[server] = None
        return self.cluster.url(server, token=token if self.drawn.logins else "")

    def _may_wait(self, client: str) -> bool:
        """Return whether a client waits for a server that refused its log.

        That is its own server, or one that keeps a durable subscription.
        """
        if not self.mishap.is_refused:
            return False
        return client.startswith(KEPT_BY) or self.mishap.server in self._homes.get(client, ())

    async def _trespass(self, user: str, random: Random) -> None:
        """Try what a user may not do."""
        url = self._url(random.choice(self.cluster.names), TOKENS[user])
        async with ensue.connect(url, order=None, name=user) as bus:
            while not self.calm:
                event = await self.denied.visit(bus, user, [*self._names.values()], random)
                if event is not None:
                    self.moves.confirm(event)
            while not self.over:  # noqa: ASYNC110 - processes share no event
                await asyncio.sleep(0.5)

    async def _client(
        self,
        name: str,
        random: Random,
        connected: Callable[[str, Random], Awaitable[None]] | None = None,
    ) -> None:
        """Connect again after errors that applications have to expect."""
        while not self.over:
            self._homes.pop(name, None)
            try:
                try:
                    await (connected or self._connected)(name, random)
                finally:
                    # Plans of others may still name it: nothing is owed to it any more.
                    self.world.crashed(self.world.host(name))
            except (TransportError, SubscriptionLost, EventsInDoubt, *self._expired) as error:
                self._watch.failed(name, error)
                await asyncio.sleep(0.5)

    async def _connected(self, name: str, random: Random) -> None:
        async with ensue.connect(self._any_url(random), order=None, name=name) as bus:
            self._names[name], self._buses[name] = bus.name, bus
            held: list[ensue.Subscription] = []
            readers: list[asyncio.Task[None]] = []
            self.moves.held[name] = []

            def take(events: ensue.Subscription) -> None:
                held.append(events)
                readers.append(asyncio.create_task(self._read(events, random)))

            def take_over(events: ensue.Subscription, where: str) -> None:
                self.moves.hold(name, bus, events, where)
                readers.append(asyncio.create_task(self._read(events, random)))

            async def invited(tx: ensue.InvitedTransaction) -> None:
                """Give up a subscription, or make one."""
                if wanted := tx.attributes.get("give"):
                    if (moved := self.moves.give(name, str(wanted))) is not None:
                        await tx.unsubscribe(moved.events)
                    return
                if held and random.random() < 0.5:
                    given = held.pop(random.randrange(len(held)))
                    if given.topics:
                        await tx.unsubscribe(given)
                        return
                take(await tx.subscribe(random.choice(FILTERS)))

            async def planned(events: ensue.Subscription) -> None:
                if where := self.moves.handed_over(bus, events):
                    take_over(events, where)
                else:
                    take(events)

            await bus.on_invitation(invited)
            await self._take_invitations(bus, name)
            await bus.on_subscription(planned)
            await bus.advertise(where="x exists")
            mover = asyncio.create_task(self._move_on(bus, name, random, take_over))
            try:
                await self._act(bus, name, random)
            finally:
                self._takers.pop(name, None)
                await self._stop(name, mover, *readers)

    async def _stop(self, name: str, *tasks: asyncio.Task[None]) -> None:
        """Cancel tasks of a client, and report those that an error ended that nothing allows."""
        # Brokers that give a client up end its subscriptions.
        allowed = (*self._expired, SubscriptionLost) if self._expired else ()
        for task in tasks:
            task.cancel()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(error, Exception) and not isinstance(error, allowed):
                self.problems.append(f"{name} failed beside its calls: {error!r}")

    async def _move_on(
        self,
        bus: ensue.Bus,
        name: str,
        random: Random,
        take: Callable[[ensue.Subscription, str], None],
    ) -> None:
        """Subscribe to something, and take subscriptions over from other clients."""
        if not self.drawn.moves:
            return
        where = random.choice(FILTERS)
        async with bus.subscribe(where=where) as own:
            take(own, where)
            while not self.calm:
                pause_s = random.uniform(0.3, 1.5) * self._pace
                if self.drawn.rivals:
                    pause_s = 1.0 - self.world.now_s % 1.0
                await asyncio.sleep(pause_s)
                with suppress(ensue.TransactionAborted, TransactionPending, *self._expired):
                    await self._move(bus, name, random, take)
            await asyncio.Event().wait()

    async def _move(
        self,
        bus: ensue.Bus,
        name: str,
        random: Random,
        take: Callable[[ensue.Subscription, str], None],
    ) -> None:
        others = [(each, one) for each, held in self.moves.held.items() for one in held]
        others = [(each, one) for each, one in others if each != name and each in self._names]
        if not others:
            return
        other, wanted = others[0] if self.drawn.rivals else random.choice(others)
        kind, client = random.choice(self.drawn.kinds), self._names[other]
        if kind == "planned" and self.drawn.hands_over and random.random() < 0.5:
            await self.moves.hand_over(bus, name, client)
            return
        if kind == "planned":
            async with bus.transaction(isolation="planned", timeout=10.0) as plan:
                made = await plan.subscribe(wanted.where)
                if self.drawn.rivals:
                    await asyncio.sleep(random.uniform(0.0, 0.2))
                await plan.client(client).unsubscribe(wanted.name)
                self.moves.give(other, wanted.where)
        else:
            async with bus.transaction(isolation=kind, timeout=10.0) as tx:
                made = await tx.subscribe(wanted.where)
                await tx.invite(client, {"give": wanted.where})
        take(made, wanted.where)

    async def _read(self, events: ensue.Subscription, random: Random) -> None:
        slow_s = random.choice((0.0, 0.0, 0.3))
        half = ""
        try:
            async for event in events:
                half = event.payload.decode() if event.payload.startswith(b"half ") else ""
                if event.payload.startswith(b"attempt "):
                    self._check_attempts(events, event.payload)
                if event.payload == UNDONE:
                    self.problems.append(f"undone: {events.name} got an event of a failed block")
                if events.pending > events.pending_max:
                    self.problems.append(
                        f"options: {events.name} has {events.pending} events pending, allowed "
                        f"{events.pending_max}"
                    )
                if slow_s and not self.calm:
                    await asyncio.sleep(slow_s)
        except SubscriptionLost as error:
            if half and "did not keep up" in error.reason:
                self.problems.append(f"torn: {events.name} got {half}, and then nothing")

    async def _act(self, bus: ensue.Bus, name: str, random: Random) -> None:
        wanted, limit = f"{name}-own", self.drawn.pending_max
        async with bus.subscribe(
            where=random.choice(FILTERS), name=wanted, pending_max=limit
        ) as events:
            if (events.name, events.pending_max) != (wanted, limit):
                self.problems.append(f"options: {wanted} is called {events.name}, or has no limit")
            reading = asyncio.create_task(self._read(events, random))
            try:
                while not self.calm:
                    await self._operate(bus, name, random)
                    pause_s = random.expovariate(1.0 / self.drawn.pause_s)
                    await asyncio.sleep(min(3.0, pause_s) * self._pace)
                await self._prove_liveness(bus)
                while not self.over:  # noqa: ASYNC110 - processes share no event
                    await asyncio.sleep(0.5)
            finally:
                await self._stop(name, reading)

    async def _operate(self, bus: ensue.Bus, name: str, random: Random) -> None:
        others = [each for other, each in self._names.items() if other != name]
        with suppress(EventsInDoubt, *self._expired):
            if random.random() < 0.5 or not others:
                event = await bus.publish({"x": random.randint(0, 4)}, b"plain", timeout=20.0)
                self.moves.confirm(event)
                return
        kind = random.choice(self.drawn.kinds)
        with suppress(ensue.TransactionAborted, TransactionPending, _UndoError):
            await self._transact(bus, kind, random.choice(others), random)

    async def _transact(self, bus: ensue.Bus, kind: str, other: str, random: Random) -> None:
        timeout_s = random.choice((2.0, 10.0))
        if kind == "planned":
            if self._decisions.random() < (0.5 if self.drawn.holds else 0.0):
                await self._hold(bus, other, timeout_s)
                return
            async with bus.transaction(isolation="planned", timeout=timeout_s) as plan:
                await plan.publish({"x": random.randint(0, 4)}, b"plan 1")
                await plan.client(other).subscribe(random.choice(FILTERS))
                await plan.publish({"x": random.randint(0, 4)}, b"plan 2")
            return
        if self.drawn.by_content and self._decisions.random() < 0.4:
            await self._invite_all(bus, kind, timeout_s)
            return
        if kind == "serializable" and self.drawn.retries and self._decisions.random() < 0.7:
            await self._retry(bus, timeout_s)
            return
        async with bus.transaction(isolation=kind, timeout=timeout_s) as tx:
            if random.random() < 0.1:
                await tx.publish({"x": random.randint(0, 4)}, UNDONE)
                raise _UndoError
            if random.random() < 0.5:
                # Who gets one of these gets both.
                x, name = random.randint(0, 4), random.randbytes(4).hex().encode()
                await tx.publish({"x": x}, b"half " + name)
                await tx.publish({"x": x}, b"whole " + name)
                return
            await tx.publish({"x": random.randint(0, 4)}, b"first")
            await tx.invite(other)
            await tx.publish({"x": random.randint(0, 4)}, b"second")

    async def _hold(self, bus: ensue.Bus, other: str, timeout_s: float) -> None:
        """Decide about a plan after a while, in one of several ways."""
        random, x = self._decisions, self._decisions.randint(0, 4)
        end, wait_s = random.choice(("commit", "leave", "abort", "raise")), random.uniform(0, 4)
        keeps = end in ("commit", "leave")
        async with bus.transaction(isolation="planned", timeout=timeout_s) as plan:
            await plan.publish({"x": x}, b"held 1" if keeps else UNDONE)
            await plan.client(other).subscribe(random.choice(FILTERS))
            await plan.publish({"x": x}, b"held 2" if keeps else UNDONE)
            await plan.hold()
            await asyncio.sleep(wait_s)
            if end == "commit":
                await plan.commit()
            elif end != "leave":
                if end == "abort":
                    await plan.abort()
                raise _UndoError
        if wait_s > timeout_s + LATE_S and self.drawn.is_quiet:
            self.problems.append(f"late: a plan was committed {wait_s:.1f} s after {timeout_s:g} s")

    async def _retry(self, bus: ensue.Bus, timeout_s: float) -> None:
        """Repeat a transaction that conflicts: subscribers get events of one attempt."""
        random, number = self._decisions, 0
        name, x = random.randbytes(4).hex(), random.randint(0, 4)
        try:
            async for attempt in bus.transaction(timeout=timeout_s, retries=RETRIES):
                async with attempt as tx:
                    number = attempt.number
                    await tx.publish({"x": x}, f"attempt {name} {number}".encode())
                    await asyncio.sleep(random.uniform(0.0, 0.5))
        except ensue.TransactionAborted as error:
            if error.is_conflict and number <= RETRIES:
                self.problems.append(f"retries: attempt {number} of {RETRIES + 1} was the last")
            raise

    async def _take_invitations(self, bus: ensue.Bus, name: str) -> None:
        """Take part in transactions that look for clients."""
        if not self.drawn.by_content:
            return

        async def take(tx: ensue.InvitedTransaction) -> None:
            await tx.publish({"x": tx.attributes["x"]}, b"taken")
            self._taken.setdefault(tx.name, []).append(name)

        await bus.on_invitation(take, where="x > 0")
        self._takers[name] = None

    async def _invite_all(self, bus: ensue.Bus, kind: str, timeout_s: float) -> None:
        """Invite by content: the inviter waits for all that take it, and misses none."""
        x, takers = self._decisions.randint(0, 2), list(self._takers)
        async with bus.transaction(isolation=kind, timeout=timeout_s) as tx:
            await tx.publish({"x": x}, b"before")
            count = await tx.invite({"x": x}, at_least=0)
            await tx.publish({"x": x}, b"after")
            done = self._taken.get(tx.name, [])
        if len(done) != count:
            self.problems.append(f"invited: {count} clients were invited, {len(done)} took part")
        missed = [each for each in takers if self._names.get(each) != bus.name]
        missed = [each for each in missed if each in self._takers and each not in done]
        if x > 0 and missed and self.drawn.is_quiet:
            self.problems.append(f"invited: {', '.join(missed)} was not found")

    def _check_attempts(self, events: ensue.Subscription, payload: bytes) -> None:
        """Check that no subscriber gets events of two attempts at one transaction."""
        _, name, number = payload.decode().split()
        if self._attempts.setdefault(name, number) != number:
            self.problems.append(f"twice: {events.name} got a transaction of two attempts: {name}")

    async def _prove_liveness(self, bus: ensue.Bus) -> None:
        """Commit a transaction of each kind: none may be blocked by what happened before."""
        await asyncio.sleep(SETTLE_S / 4 + self.late_s)
        for kind in KINDS:
            try:
                async with bus.transaction(isolation=kind, timeout=SETTLE_S / 4) as tx:
                    await tx.publish({"x": 0}, b"last")
            except ensue.TransactionAborted as error:
                if error.reason == "timeout" and not self.mishap.is_refused:
                    self.problems.append(f"liveness: a {kind} transaction timed out: {error}")
            except TransactionPending as error:
                if not self.mishap.is_refused:
                    self.problems.append(f"liveness: a {kind} transaction is pending: {error}")
