"""Transactions while a seed decides when broker and client processes are killed.

The trace is checked: nothing may be torn, dirty, lost or doubled, and no client may be blocked. At
the end every kind of transaction commits.
"""

import asyncio
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
from tests.brokers.servers import spare_port
from tests.processes.runs import Process
from tests.server.helpers import within

import ensue
from ensue.checkers import Verdict, check
from ensue.core import trace
from ensue.core.trace import Row

SERVERS = ("s0", "s1", "s2")
KILLS = 5
ROUNDS = 10
READY_S = 120.0


def command(*words: str) -> list[str]:

    return [sys.executable, "-m", "tests.processes.content_worker", *words]


def configure(directory: Path) -> dict[str, str]:
    """Write the servers' file; return their URLs."""
    urls, text = {}, 'sync = "1s"\n'
    for name in SERVERS:
        address = f"127.0.0.1:{spare_port()}"
        urls[name] = f"ensue://{address}"
        text += f'[[servers]]\nname = "{name}"\nlisten = "{address}"\ndata = "{name}"\n'
    (directory / "ensue.toml").write_text(text)
    return urls


async def line_of(process: Process, word: str) -> str:
    """Wait for a line with a word from the last incarnation of a process; return it."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        text = process.log.read_text(errors="replace") if process.log.exists() else ""
        for line in text.rpartition("-- start")[2].splitlines():
            if line.startswith(word):
                return line
        assert process.running, process.tail()
        await asyncio.sleep(0.02)
    raise AssertionError(f"{process.name} never printed {word!r}: {process.tail()}")


class Run:
    """One run: three servers, three clients that survive, and one that is killed."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.random = Random(seed)
        self.urls = configure(directory)
        self.servers = {
            name: Process(
                name,
                "server",
                lambda _start, name=name: command(  # type: ignore[misc]
                    "server",
                    str(directory / "ensue.toml"),
                    name,
                    str(directory / f"{name}.rows"),
                ),
                directory,
            )
            for name in SERVERS
        }
        self.doomed = Process(
            "doomed", "client", lambda _start: command("client", self.urls["s1"]), directory
        )
        self.gone = ""
        self.held: dict[str, ensue.Subscription] = {}
        self.outcomes: list[str] = []
        self.came: dict[str, list[bytes]] = {}

    async def start(self) -> None:
        for server in self.servers.values():
            server.start()
        for name in self.servers:
            await self.ready(name)

    async def ready(self, name: str) -> None:
        """Wait until a server that was started is ready."""
        await line_of(self.servers[name], "ready")

    def end(self) -> None:
        for process in (*self.servers.values(), self.doomed):
            process.kill()

    async def kill(self) -> None:
        """Kill and restart servers one by one; kill the client with the open transaction."""
        self.doomed.start()
        self.gone = (await line_of(self.doomed, "open")).split()[1]
        for number in range(KILLS):
            await asyncio.sleep(self.random.uniform(0, 0.3))
            name = self.random.choice(SERVERS)
            self.servers[name].kill()
            self.servers[name].start()
            await self.ready(name)
            if number == KILLS // 2:
                self.doomed.kill()

    async def act(self, bus: ensue.Bus, others: list[str], random: Random) -> None:
        """Run transactions that move subscriptions, and publish in between."""
        for number in range(ROUNDS):
            kind = random.choice(["serializable", "atomic", "planned"])
            mark = f"{bus.name}-{number}".encode()
            try:
                await self.transact(bus, kind, random.choice(others), mark)
                self.outcomes.append("committed")
            except ensue.TransactionAborted as error:
                self.outcomes.append(error.reason)
            await bus.publish({"x": number, "from": bus.name}, b"regular " + mark)

    async def transact(self, bus: ensue.Bus, kind: str, other: str, mark: bytes) -> None:
        if kind == "planned":
            async with bus.transaction(isolation="planned", timeout=120) as plan:
                await plan.publish({"x": 1}, b"first " + mark)
                await plan.client(other).subscribe("x < 0")
                await plan.publish({"x": 2}, b"then " + mark)
            return
        async with bus.transaction(isolation=kind, timeout=60) as tx:
            await tx.publish({"x": 1}, b"first " + mark)
            await tx.invite(other)
            await tx.publish({"x": 2}, b"then " + mark)


async def moves(run: Run, bus: ensue.Bus, tx: ensue.InvitedTransaction) -> None:
    """Unsubscribe, or subscribe if there is no subscription."""
    held = run.held.pop(bus.name, None)
    if held is not None and held.topics:
        await tx.unsubscribe(held)
    else:
        run.held[bus.name] = await tx.subscribe("x exists")


async def keep_reading(run: Run, name: str, events: ensue.Subscription) -> None:
    async for event in events:
        run.came.setdefault(name, []).append(event.payload)


async def play(run: Run) -> None:
    await run.start()
    buses: list[ensue.Bus] = []
    for name in SERVERS:
        bus = ensue.connect(
            run.urls[name], order=None, name=f"c-{name}", trace=str(run.directory / f"{name}.trace")
        )
        buses.append(await bus.__aenter__())
    for bus in buses:
        bus.on_invitation(lambda tx, bus=bus: moves(run, bus, tx))  # type: ignore[misc]
        await within(bus.on_subscription(_nothing))
        await within(bus.advertise(where="x exists"))
    watching = [bus.subscribe(where="x exists") for bus in buses]
    tasks = []
    for number, events in enumerate(watching):
        await within(events.__aenter__())
        tasks.append(asyncio.create_task(keep_reading(run, f"w{number}", events)))
    killing = asyncio.create_task(run.kill())
    acting = [
        run.act(bus, [each.name for each in buses if each is not bus], Random(run.random.random()))
        for bus in buses
    ]
    await asyncio.wait_for(asyncio.gather(*acting, killing), 400)
    for kind in ("serializable", "atomic", "planned"):
        mark = f"last {kind}".encode()
        async with buses[0].transaction(isolation=kind, timeout=120) as tx:
            await tx.publish({"x": 3}, mark)
        await _until_all_have(run, mark)
    await _until_all_are_decided(run)
    for task in tasks:
        task.cancel()
    for bus in buses:
        await bus.close()


async def _nothing(_events: ensue.Subscription) -> None:
    """Ignore the subscription: no event matches it."""


async def _until_all_have(run: Run, mark: bytes) -> None:
    deadline = time.monotonic() + 120
    while not all(mark in run.came.get(f"w{number}", ()) for number in range(len(SERVERS))):
        assert time.monotonic() < deadline, f"{mark!r} did not reach all clients"
        await asyncio.sleep(0.02)


async def _until_all_are_decided(run: Run) -> None:
    """Wait for the timeout of the killed client's transaction, which may last longer than the run.

    Its server gets no word of the client's end if it was down then.
    """
    deadline = time.monotonic() + 120
    while open_ones := _undecided(_broker_rows(run)):
        assert time.monotonic() < deadline, f"{open_ones} were never decided"
        await asyncio.sleep(0.1)


def _undecided(rows: Iterable[Row]) -> list[str]:
    began, ended = set[str](), set[str]()
    for row in rows:
        if row.action == "began":
            began.add(row.transaction or "")
        elif row.action in ("committed", "aborted"):
            ended.add(row.transaction or "")
    return sorted(began - ended)


def _broker_rows(run: Run) -> Iterator[Row]:
    for name in SERVERS:
        whole, _, _ = (run.directory / f"{name}.rows").read_bytes().rpartition(b"\n")
        for line in whole.splitlines():
            yield msgspec.json.decode(line, type=Row)


def rows_of(run: Run) -> list[Row]:
    """Return the rows of brokers and clients, without those that a restarted broker repeats."""
    rows: dict[object, Row] = {}
    for row in _broker_rows(run):
        key = (row.node, row.action, row.event, row.transaction, row.subscription, row.publisher)
        rows.setdefault(key, row)
    every = list(rows.values())
    for name in SERVERS:
        every += trace.read(run.directory / f"{name}.trace")
    last_ns = max(row.at_ns for row in every)
    every.append(Row(run="ensue", node=run.gone, step=1, at_ns=last_ns, action="crashed"))
    return every


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.verify) for seed in range(2, 10))]
)
def test_transactions_survive_while_brokers_and_clients_are_killed(
    seed: int, tmp_path: Path
) -> None:
    run = Run(tmp_path, seed)
    try:
        asyncio.run(play(run))
    finally:
        run.end()
    rows = rows_of(run)
    report = check(rows, order="transactions")
    sentences = "\n".join(report.sentences())
    assert report.verdict is Verdict.VALID, f"seed {seed}: {sentences}"
    assert run.outcomes.count("committed") >= len(SERVERS), run.outcomes
    assert report.event_count > 2 * len(SERVERS) * ROUNDS
    # The killed client's transaction was open: no client saw any of it, and all brokers aborted it.
    assert not any(b"never" in came for came in run.came.values())
    assert not _undecided(rows), f"seed {seed}"
