"""Programs of operators: status, metrics, retention, configuration and buses within a process.

Clients publish and read while an operator looks at the servers. Besides the order of events:

- the status of a chain lists every server, and after healing all of them are well;
- no counter of a server decreases while it lives, and bad requests get the right answers;
- no subscription gets events with a gap between them that it does not report, also if it begins in
  the past; without retention, one from the earliest event begins with the first;
- clients that left leave nothing behind;
- a server's file says what its configuration says;
- buses on `memory://` deliver what was published, in order.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, cast

import msgspec

import ensue
from ensue.client.validation import Start
from ensue.core.errors import (
    AccessDenied,
    BadInput,
    ConfigurationError,
    EnsueError,
    EventsInDoubt,
    EventVoided,
    LocalProtocolError,
    SubscriptionLost,
    SubscriptionRefused,
    TransportError,
)
from ensue.core.order import Order
from ensue.core.trace import Row
from ensue.runtime.status import chain_status
from ensue.server import config_file
from ensue.server.config import Limits, Retention, ServerConfig
from ensue.testing.cluster import DATA, PORT, Cluster
from ensue.testing.faults import Faults, Striker, draw_faults
from ensue.testing.process import Process
from ensue.testing.swarm.absences import with_early_ends, without_expired
from ensue.testing.swarm.client_watch import ClientWatch
from ensue.testing.swarm.gap_reports import GapReports
from ensue.testing.swarm.judge import judge
from ensue.testing.swarm.leaks import judge_leaks
from ensue.testing.swarm.lossy_hub import LossyHub
from ensue.testing.swarm.many_calls import one_by_one
from ensue.testing.swarm.memory_content import MemoryContent
from ensue.testing.swarm.rare_calls import EXPIRY, INSIDE, MANY, draw_calls
from ensue.testing.swarm.rare_faults import (
    add_rare_faults,
    is_expiry,
    long_busy_s,
    long_settle_s,
)
from ensue.testing.world import World

__all__ = ["OperationsDraw", "OperationsProgram", "draw_operations", "judge_operations"]

BUSY_S = 20.0
SETTLE_S = 30.0
ADMIN_PORT = 7401
ANSWER_S = 10.0
"""How long a page may take when nothing is wrong."""
TOPICS = ("a", "b", "c")
HASTY = ("publisher",)
"""Clients that close as soon as faults are over, when servers may still be away."""
HUB_TOPICS = ("hub.a", "hub.b")
"""Topics of buses on `memory://`, which no server knows."""
UNWRITTEN = ("listen", "data", "admin", "limits")
"""What servers on hosts of their own have in common: a file names hosts and folders apart."""
_SAMPLE = re.compile(r"^(\w+_total(?:\{.*\})?) (\S+)$", re.MULTILINE)

_BAD_REQUESTS = (
    (b"POST /status HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    (b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    (b"GET /status HTTP/1.1\r\n\r\n", 400),
    (b"GET /status HTTP/1.1\nHost: x\n\n", 400),
    (b"GET /status HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    (b"GET /status HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n", 400),
    (b"GET /status HTTP/1.1\r\nno header\r\n\r\n", 400),
    (b"hello\r\n\r\n", 400),
    (b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    (b"GET /status HT", 408),
)
"""Requests, and the status of their responses."""


_MISTAKES: tuple[Callable[[Any], Any], ...] = (
    lambda bus: bus.publish("a", "text"),
    lambda bus: bus.publish("", b""),
    lambda bus: bus.publish(5, b""),
    lambda bus: bus.publish("a", b"", key="text"),
    lambda bus: bus.publish("a", b"", headers={"x": 1.5j}),
    lambda bus: bus.publish("a", b"", timeout=-1),
    lambda bus: bus.publish("a", b"", timeout="soon"),
    lambda bus: bus.publish("a", b"x" * 64_000_000),
    lambda bus: bus.publish_many([("a", b""), ("a", "text")]),
    lambda bus: bus.publish_many([("a", b""), "a"]),
    lambda bus: bus.publish_many({"a": b""}),
    lambda bus: bus.publish_many([("a", b"")], timeout=-1),
    lambda bus: bus.subscribe("a").batches(max=0),
    lambda bus: bus.subscribe(),
    lambda bus: bus.subscribe(7),
    lambda bus: bus.subscribe("a", pending_max=0),
    lambda bus: bus.subscribe("a", pending_max="many"),
    lambda bus: bus.subscribe("a", acknowledge="maybe"),
    lambda bus: bus.subscribe("a", durable=True),
    lambda bus: bus.subscribe("a", name="a/b~c", durable=True),
    lambda bus: bus.subscribe("a", start="yesterday"),
    lambda bus: bus.subscribe("a", start=-5),
    lambda bus: bus.subscribe("a", order="total"),
    lambda bus: bus.subscribe("a", where="x > 1"),
    lambda bus: bus.subscribe(where="x >"),
    lambda bus: bus.subscribe(where=5),
    lambda bus: bus.flush(timeout=-1),
    lambda bus: bus.token(),
    lambda bus: bus.observe("token"),
    lambda _: ensue.connect("nothing://x"),
    lambda _: ensue.connect("ensue://server:x"),
    lambda _: ensue.connect("memory://", name=cast("Any", 5)),
    lambda _: ensue.connect("memory://", order=cast("Any", "total")),
    lambda _: ensue.connect("memory://?nodes=0"),
    lambda _: ensue.connect("memory://", close_timeout=-1),
)
"""Wrong uses of the API."""


class OperationsDraw(msgspec.Struct, frozen=True, kw_only=True):
    """What a seed stands for."""

    seed: int
    servers: int
    sync_s: float
    retention: Retention
    publishers: int
    hub: Order
    """The order of the buses on `memory://`."""
    hub_nodes: int
    pending_max: int
    """Small: publishers on `memory://` wait for slow readers."""
    faults: Faults
    calls: tuple[str, ...] = ()
    """Calls that few programs make."""


def draw_operations(seed: int, *, faults: list[str] | None = None) -> OperationsDraw:
    """Draw a program and its faults."""
    random = Random(f"{seed}/draw/operations")  # noqa: S311 - replays a seed
    drawn = OperationsDraw(
        seed=seed,
        servers=random.choice((1, 1, 2, 3)),
        sync_s=random.choice((0.0, 0.0, 0.2)),
        retention=Retention(
            bytes=random.choice((None, 60_000, 20_000)),
            age_s=random.choice((None, 8.0)),
            segment_bytes=random.choice((3_000, 8_000)),
        ),
        publishers=random.randint(1, 3),
        hub=random.choice(
            (
                ensue.Total(),
                ensue.Causal(),
                ensue.Merged(epsilon=0.01, delta=0.2),
                ensue.Deadline(ms=5_000),
            )
        ),
        hub_nodes=random.choice((1, 2, 3)),
        pending_max=random.choice((2, 10, 1_000)),
        faults=draw_faults(random, allowed=faults),
        calls=draw_calls(seed, "operations"),
    )
    if faults is not None:
        return drawn
    rare = add_rare_faults(drawn.faults, seed, "operations")
    return msgspec.structs.replace(drawn, faults=rare)


class OperationsProgram:
    """One run of a draw."""

    def __init__(self, world: World, drawn: OperationsDraw) -> None:
        self.world, self.drawn = world, drawn
        self.random = world.generator("operations")
        self.settle_s = SETTLE_S + long_settle_s(drawn.faults)
        self.cluster = Cluster(
            world,
            names=[f"server-{number}" for number in range(1, drawn.servers + 1)],
            topics=TOPICS if drawn.servers > 1 else (),
            sync_s=drawn.sync_s,
            retention=drawn.retention,
            limits=Limits(connections=200),
            admin=f"0.0.0.0:{ADMIN_PORT}",
            insecure_admin=True,
        )
        self.clients: list[Process] = []
        self.problems: list[str] = []
        self.faults: list[str] = []
        """What struck, and when: one list, also while the program runs."""
        self._watch = ClientWatch(world, self.problems, long_settle_s(drawn.faults))
        self.durable: list[str] = ["archive"]
        self.gaps = GapReports()
        self.whole: dict[str, None] = {}
        """Subscriptions that began with the earliest event."""
        self.calm = False
        """Whether faults are over: publishers stop."""
        self.over = False
        self._counts: dict[str, tuple[float, dict[str, float]]] = {}
        """By server: its uptime, and its counters then."""

    async def run(self) -> None:
        """Start servers and clients, let faults strike, heal, and look at everything."""
        await self.cluster.start()
        self._check_file()
        self._start("archive", self._archive)
        for number in range(self.drawn.publishers):
            self._start(f"publisher-{number}", self._publish, self._generator())
        self._start("operator", self._operate, self._generator())
        self._start("historian", self._look_back, self._generator())
        self._start("hub", self._use_hub, self._generator())
        self._start("novice", self._misuse)
        if INSIDE in self.drawn.calls:
            content = MemoryContent(self.world.generator("memory content"), self.problems)
            self._start("inside", content.run)
        if not {EXPIRY, MANY}.isdisjoint(self.drawn.calls):
            faults, random = self.drawn.faults, self.world.generator("lossy hub")
            is_timed = not (faults.client_pauses or faults.client_suspends)
            hub = LossyHub(random, HUB_TOPICS, self.problems, is_timed=is_timed)
            self._start("lossy", hub.run)
        striker = Striker(self.world, [self.cluster], self.drawn.faults)
        striker.log = self.faults
        striker.start()
        await asyncio.sleep(BUSY_S + long_busy_s(self.drawn.faults))
        await striker.stop()
        self.calm = True
        self._watch.healed(self.clients)
        await asyncio.sleep(self.settle_s)
        await self._inspect()
        self.over = True
        self._watch.over()
        await self._end()
        if self.drawn.servers == 1:
            self.cluster.close()
            await self._recover()
        self.problems += striker.hung
        # One that recovered is not in the cluster: it may have lost when sessions ended.
        self.problems += await judge_leaks(self.cluster, self.clients, hasty=HASTY)
        self.cluster.close()
        self.problems += [f"{name} refused: {why}" for name, why in self.cluster.damaged.items()]

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
                if not is_expiry(error, self.drawn.faults):
                    raise
                self._watch.failed(name, error)
                await asyncio.sleep(0.5)
            else:
                return

    async def _end(self) -> None:
        for client in self.clients:
            with suppress(TimeoutError):
                async with asyncio.timeout(30.0):
                    await client.ended()
            if client.alive:
                waits = "; ".join(client.waits())
                self.problems.append(f"liveness: {client.name} did not end in 30 s: {waits}")
            elif (error := client.error()) is not None:
                self.problems.append(f"{client.name} failed: {error}")

    def _url(self, random: Random) -> str:
        return self.cluster.url(random.choice(self.cluster.names))

    # -- Clients ----------------------------------------------------------------------------------

    async def _publish(self, random: Random) -> None:
        async with ensue.connect(self._url(random), name="publisher") as bus:
            while not self.calm:
                with suppress(EventVoided):
                    payload = random.randbytes(random.choice((10, 300, 1_500)))
                    await bus.publish(random.choice(TOPICS), payload, receipt=False)
                await asyncio.sleep(random.choice((0.01, 0.1, 0.5)))
            with suppress(EventVoided):
                await bus.flush(timeout=self._watch.within_s)

    async def _archive(self) -> None:
        """Read everything, durably."""
        url = self.cluster.url(self.cluster.names[0])
        # Only topics of one server can be read from the past.
        start: Start = "earliest" if self.drawn.servers == 1 else "latest"
        async with (
            ensue.connect(url, name="archive") as bus,
            bus.subscribe(*TOPICS, name="archive", durable=True, start=start) as events,
        ):
            if start == "earliest":
                self.whole[events.name] = None
            while not self.over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        async for _ in events:
                            self.gaps.note(events)

    async def _look_back(self, random: Random) -> None:
        """Read the log again from its first event, or from a place in it, while it is trimmed."""
        place: Start = "earliest"
        async with ensue.connect(self._url(random), name="historian") as bus:
            while not self.calm:
                several = len(TOPICS) if self.drawn.servers == 1 else 1
                topics = random.sample(TOPICS, random.randint(1, several))
                async with bus.subscribe(*topics, start=place) as events:
                    if place == "earliest":
                        self.whole[events.name] = None
                    with suppress(TimeoutError):
                        async with asyncio.timeout(random.choice((0.2, 2.0))):
                            async for event in events:
                                self.gaps.note(events)
                                place = event.place
                if random.random() < 0.5:
                    place = "earliest"
                await asyncio.sleep(random.uniform(0.1, 2.0))

    async def _misuse(self) -> None:
        """Make each mistake once: all of them are refused by name, and none is sent."""
        async with ensue.connect(self.cluster.url(self.cluster.names[0]), name="novice") as bus:
            for number, mistake in enumerate(_MISTAKES):
                try:
                    made = mistake(bus)
                    if isinstance(made, Awaitable):
                        await made
                except (LocalProtocolError, BadInput, ConfigurationError, SubscriptionRefused):
                    continue
                except (TransportError, EventsInDoubt):
                    return
                self.problems.append(f"misuse: mistake {number} of {bus.name} is not refused")

    # -- Buses within one process -----------------------------------------------------------------

    async def _use_hub(self, random: Random) -> None:
        """Publish and read on `memory://`: everything arrives, in each publisher's sequence."""
        drawn = self.drawn
        url = f"memory://hub?nodes={drawn.hub_nodes}&jitter_ms=5"
        count = random.choice((5, 40))
        async with (
            ensue.connect(url, order=drawn.hub, name="first") as first,
            ensue.connect(url, order=drawn.hub, name="second") as second,
            first.subscribe(*HUB_TOPICS, pending_max=drawn.pending_max) as events,
        ):
            many = MANY in drawn.calls
            fill = self._fill_at_once if many else self._fill
            source = one_by_one(events, random) if many else events
            publishing = asyncio.create_task(fill((first, second), random, count))
            numbers: dict[str, list[int]] = {}
            try:
                async with asyncio.timeout(300.0):
                    async for event in source:
                        numbers.setdefault(event.publisher, []).append(int(event.payload))
                        if random.random() < 0.2:
                            await asyncio.sleep(random.choice((0.0, 0.05)))
                        if sum(map(len, numbers.values())) == 2 * count:
                            break
            except TimeoutError:
                self.problems.append(f"liveness: a hub delivered {numbers} of {count} each")
            except asyncio.CancelledError:
                publishing.cancel()
                await asyncio.gather(publishing, return_exceptions=True)
                raise
            await publishing
        for publisher, got in numbers.items():
            if got != sorted(got):
                self.problems.append(
                    f"fifo: on a hub {publisher} published in another order: {got}"
                )

    async def _fill(self, buses: tuple[ensue.Bus, ...], random: Random, count: int) -> None:
        for number in range(count):
            for bus in buses:
                await bus.publish(random.choice(HUB_TOPICS), b"%d" % number)

    async def _fill_at_once(self, buses: tuple[ensue.Bus, ...], random: Random, count: int) -> None:
        payloads = [b"%d" % number for number in range(count)]
        calls = [
            bus.publish_many([(random.choice(HUB_TOPICS), each) for each in payloads])
            for bus in buses
        ]
        for bus, events in zip(buses, await asyncio.gather(*calls), strict=True):
            if [event.payload for event in events] != payloads:
                self.problems.append(f"many: on a hub {bus.name} published other events")

    # -- The operator -----------------------------------------------------------------------------

    async def _operate(self, random: Random) -> None:
        looks = (self._ask_status, self._ask_page, self._ask_badly, self._ask_idly)
        while not self.calm:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await random.choice(looks)(random)
            await asyncio.sleep(random.uniform(0.05, 1.0))

    async def _ask_status(self, random: Random) -> None:
        with suppress(EnsueError):
            self._check_status(await chain_status(self._url(random), answer_s=3.0))

    def _check_status(self, found: dict[str, Any]) -> None:
        names = [each["server"] for each in found["servers"]]
        if names != list(self.cluster.names):
            self.problems.append(f"status: lists the servers {names}")
        for topic in found["topics"]:
            if not 1 <= topic["first"] <= topic["next"]:
                self.problems.append(f"status: {topic}")
        for one in found["subscriptions"]:
            if one["lag"] is not None and one["lag"] < 0:
                self.problems.append(f"status: {one}")

    async def _ask_page(self, random: Random) -> None:
        name = random.choice(self.cluster.names)
        await self._page(name, random.choice(("/metrics", "/status", "/healthz")), random)

    async def _page(self, name: str, path: str, random: Random) -> int:
        method = random.choice((b"GET", b"GET", b"GET", b"HEAD"))
        accept = random.choice((b"", b"Accept: text/plain\r\n"))
        asked = b"%s %s HTTP/1.1\r\nHost: x\r\n%s\r\n" % (method, path.encode(), accept)
        status, body = await self._request(name, asked)
        if status not in (200, 503) or (status == 503 and path != "/healthz"):
            self.problems.append(f"admin: {path} of {name} answers {status}: {body!r}")
        if method == b"HEAD" and body:
            self.problems.append(f"admin: HEAD {path} has a body")
        if path == "/metrics" and status == 200 and method == b"GET":
            self._check_counts(name, body.decode())
        return status

    def _check_counts(self, name: str, text: str) -> None:
        """Compare counters with those of an earlier answer of the same life."""
        uptime_s = float(re.findall(r"^ensue_uptime_seconds (\S+)$", text, re.MULTILINE)[0])
        counts = {key: float(value) for key, value in _SAMPLE.findall(text)}
        lives = self.cluster.processes[name].lives
        before_life, before = self._counts.get(name, (lives, {}))
        if before_life == lives:
            for key, value in before.items():
                # A topic may leave the list of those with a series of their own.
                if counts.get(key, value) < value:
                    self.problems.append(
                        f"metrics: {key} of {name} decreased to {counts[key]} at {uptime_s} s"
                    )
        self._counts[name] = (lives, counts)

    async def _ask_badly(self, random: Random) -> None:
        asked, expected = random.choice(_BAD_REQUESTS)
        status, _ = await self._request(random.choice(self.cluster.names), asked)
        if status != expected:
            self.problems.append(f"admin: {asked[:40]!r} got {status}; expected {expected}")

    async def _ask_idly(self, random: Random) -> None:
        """Open more connections than are allowed: the oldest are closed, and others served."""
        name = random.choice(self.cluster.names)
        writers = []
        try:
            for _ in range(70):
                _, writer = await asyncio.open_connection(name, ADMIN_PORT)
                writers.append(writer)
            await self._page(name, "/healthz", random)
        finally:
            for writer in writers:
                writer.close()

    async def _request(self, name: str, asked: bytes) -> tuple[int, bytes]:
        """Send a request in pieces; return the status and the body of its response."""
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(name, ADMIN_PORT)
            try:
                for start in range(0, len(asked), 4_000):
                    writer.write(asked[start : start + 4_000])
                    await asyncio.sleep(0)
                head = await reader.readuntil(b"\r\n\r\n")
                return int(head.split()[1]), await reader.read()
            finally:
                writer.close()

    async def _inspect(self) -> None:
        """Look at servers after healing: all of them are well, and no reader is behind."""
        random = self._generator()
        found = await chain_status(self._url(random))
        self._check_status(found)
        if not found["complete"]:
            self.problems.append(f"status: incomplete long after healing: {found['servers']}")
        late = [one for one in found["subscriptions"] if one["name"] == "archive" and one["lag"]]
        if late:
            self.problems.append(f"status: a reader is behind long after healing: {late}")
        for name in self.cluster.names:
            if await self._page(name, "/healthz", random) != 200:
                self.problems.append(f"status: {name} is not healthy long after healing")
            await self._page(name, "/metrics", random)
        with suppress(AccessDenied, TransportError):
            await chain_status("ensue://nowhere:7400", answer_s=1.0)
            self.problems.append("status: a server that does not exist answers")

    async def _recover(self) -> None:
        """Damage the log of a server, and start it with `accept_loss`: it serves what is left."""
        name, random = self.cluster.names[0], self._generator()
        server = self.cluster.processes[name]
        if server.alive:
            server.terminate()
            await server.ended()
        disk = server.machine.disk
        logs = [DATA / each for each in disk.names(DATA) if each.endswith(".log")]
        how = random.choice(("cut", "first", "flip", "whole"))
        if how == "cut":
            size = disk.size_of(logs[-1])
            disk.truncate(logs[-1], size - random.randint(1, size))
        elif how == "first" and len(logs) > 1:
            disk.remove(logs[0])
        elif how == "flip":
            disk.flip_bit(DATA)
        config = msgspec.structs.replace(self.cluster.configs[name], accept_loss=True)
        server = self.world.start(name, self.cluster.serve, config)
        got: list[bytes] = []
        client = self.world.start("successor", self._continue, got)
        self.clients.append(client)
        with suppress(TimeoutError):
            async with asyncio.timeout(30.0):
                await client.ended()
        if got != [b"1", b"2", b"3"]:
            why = client.error() or server.error() or "; ".join(client.waits())
            self.problems.append(f"recovery: after {how} a client got {got}: {why}")

    async def _continue(self, got: list[bytes]) -> None:
        url = self.cluster.url(self.cluster.names[0])
        async with ensue.connect(url, name="successor") as bus, bus.subscribe("new") as events:
            for number in (b"1", b"2", b"3"):
                await bus.publish("new", number)
            async for event in events:
                got.append(event.payload)
                if len(got) == 3:
                    break

    # -- Files ------------------------------------------------------------------------------------

    def _check_file(self) -> None:
        """Compare each configuration with what is read from its text."""
        text = _as_toml(self.cluster)
        for name, config in self.cluster.configs.items():
            read = config_file.loads(text, name=name)
            differing = [
                field
                for field in ServerConfig.__struct_fields__
                if field not in UNWRITTEN and getattr(read, field) != getattr(config, field)
            ]
            if differing:
                self.problems.append(f"configuration: {name} reads {differing} otherwise")


def _as_toml(cluster: Cluster) -> str:
    """Write the configuration of all servers as the file of a chain."""
    config = cluster.configs[cluster.names[0]]
    kept = config.retention
    lines = [
        "insecure = true",
        "insecure_admin = true",
        f'sync = "{config.sync_s}s"' if config.sync_s else 'sync = "always"',
        "[retention]",
        *([] if kept.bytes is None else [f"bytes = {kept.bytes}"]),
        *([] if kept.age_s is None else [f'age = "{kept.age_s:g}s"']),
        f"segment_bytes = {kept.segment_bytes}",
    ]
    members = {member.name: member for member in config.members}
    for name in cluster.names:
        lines += [
            "[[servers]]",
            f'name = "{name}"',
            f'listen = "{name}:{PORT}"',
            f'data = "{name}"',
            f'admin = "{name}:{ADMIN_PORT}"',
        ]
        if len(cluster.names) > 1:
            lines += [
                f'address = "{members[name].address}"',
                f"topics = {list(members[name].topics)}".replace("'", '"'),
            ]
    return "\n".join(lines)


def judge_operations(program: OperationsProgram, rows: list[Row]) -> list[str]:
    """Return what is wrong with the events that clients got; hubs are judged where they run."""
    inside = {row.node for row in rows if row.topic in HUB_TOPICS}
    kept = [row for row in rows if row.node not in inside]
    pauses = program.world.pauses
    kept = with_early_ends(kept, pauses)
    retention = program.drawn.retention
    is_kept = retention.bytes is None and retention.age_s is None
    problems = judge(kept, "total", settle_s=program.settle_s / 2, durable=program.durable)
    problems = program.gaps.without_reported(problems, kept)
    problems = without_expired(problems, kept, pauses)
    return problems + program.gaps.judge(kept, program.whole if is_kept else ())
