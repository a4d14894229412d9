"""A durable subscription by content while its reader and all servers are killed.

Three servers and the reader are processes of their own. What had a receipt comes, and what was
acknowledged does not come again.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.brokers.deadlines import until
from tests.processes.records import Tail
from tests.processes.runs import Process, worker
from tests.processes.test_content_killed import SERVERS, Run
from tests.server.helpers import within

import ensue

BATCH = 4
"""How many events the reader acknowledges together."""
PAUSE_S = 0.002
"""Between two events of a publisher, so that the reader keeps up."""


class Reading:
    """The reader's process, and what it recorded over all its lives."""

    def __init__(self, run: Run) -> None:
        path = run.directory / "reader.lines"
        urls = [run.urls[name] for name in SERVERS]

        def command(start: int) -> list[str]:
            """Connect to the servers in turn."""
            return worker(
                "subscriber",
                url=urls[start % len(urls)],
                where="x exists",
                name="billing",
                batch=BATCH,
                file=path,
            )

        self.process = run.doomed = Process("reader", "subscriber", command, run.directory)
        self.got: list[str] = []
        """Payloads, each once, by position."""
        self.safe = 0
        self._tail = Tail(path)
        self._joined = 0

    async def start(self) -> None:
        self.process.start()
        await self.until(lambda: self._joined == self.process.starts, "it is subscribed")

    async def more(self, count: int) -> None:
        """Wait until it has `count` events more."""
        wanted = len(self.got) + count
        await self.until(lambda: len(self.got) >= wanted, f"event {wanted}")

    async def until(self, condition: Callable[[], object], what: str) -> None:
        def holds() -> object:
            self._read()
            assert self.process.running, self.process.tail()
            return condition()

        await until(holds, f"reader: {what}")

    def _read(self) -> None:
        for words in self._tail.read():
            match words:
                case ["got", position, _event, _topic, payload]:
                    self.got.append(payload)
                    assert int(position) == len(self.got)
                case ["safe", position]:
                    self.safe = int(position)
                case ["joined", _]:
                    self._joined += 1
                case _:
                    raise AssertionError(words)


class Publishing:
    """Publishes until it is stopped, one event after the other."""

    def __init__(self, bus: ensue.Bus, name: str) -> None:
        self.receipts: list[str] = []
        self._bus = bus
        self._name = name
        self._stopped = False

    async def run(self) -> None:
        while not self._stopped:
            await self.publish()
            await asyncio.sleep(PAUSE_S)

    async def publish(self) -> None:
        number = len(self.receipts)
        payload = f"{self._name}:{number}"
        await self._bus.publish({"x": number}, payload.encode())
        self.receipts.append(payload)

    def stop(self) -> None:
        self._stopped = True


async def restart(run: Run, names: list[str]) -> None:
    for name in names:
        run.servers[name].kill()
    for name in names:
        run.servers[name].start()
    for name in names:
        await run.ready(name)


async def disturb(run: Run, reading: Reading, rounds: int) -> None:
    """Kill a server with the reader, another one alone, and all at once, while events flow."""
    for _ in range(rounds):
        names = list(SERVERS)
        run.random.shuffle(names)
        for name in names[:2]:
            await reading.more(BATCH + 1)
            await asyncio.sleep(run.random.uniform(0, 0.05))
            with_reader = name == names[0]
            if with_reader:
                reading.process.kill()
            await restart(run, [name])
            if with_reader:
                await reading.start()
        await reading.more(BATCH + 1)
        await restart(run, names)


async def play(run: Run, rounds: int) -> None:
    await run.start()
    reading = Reading(run)
    async with (
        ensue.connect(run.urls["s0"], order=None, name="a") as a,
        ensue.connect(run.urls["s2"], order=None, name="b") as b,
    ):
        publishing = [Publishing(a, "a"), Publishing(b, "b")]
        for bus in (a, b):
            await within(bus.advertise(where="x exists"))
        await reading.start()
        tasks = [asyncio.create_task(each.run()) for each in publishing]
        await disturb(run, reading, rounds)
        for each in publishing:
            each.stop()
        await within(asyncio.gather(*tasks))
        receipts = [each.receipts for each in publishing]
        wanted = sum(map(len, receipts))
        await reading.until(lambda: reading.safe >= wanted, f"all {wanted} events are acknowledged")
        for name, had in zip("ab", receipts, strict=True):
            assert [each for each in reading.got if each.startswith(name)] == had
        # Acknowledged, they do not come again to the next reader: it would record what is wrong.
        reading.process.kill()
        await restart(run, list(SERVERS))
        await within(publishing[0].publish())
        await reading.start()
        await reading.until(lambda: reading.safe > wanted, "the last event is acknowledged")
        assert reading.got[wanted:] == publishing[0].receipts[-1:]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "rounds"),
    [(1, 1), *(pytest.param(seed, 4, marks=pytest.mark.verify) for seed in range(2, 6))],
)
def test_nothing_is_lost_and_nothing_acknowledged_comes_again(
    seed: int, rounds: int, tmp_path: Path
) -> None:
    run = Run(tmp_path, seed)
    try:
        asyncio.run(play(run, rounds))
    finally:
        run.end()
