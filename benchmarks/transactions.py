"""Measure content and transactions: three brokers in three processes, and one alone.

    python benchmarks/transactions.py [--quick] [--sync always|SECONDS] [--seconds 5]

A transaction withdraws a subscription, makes another one, and publishes an event that a client at
another broker reads: three operations. Clients at all three brokers run them concurrently, in one
process. Regular traffic is events that a client at one broker publishes at a constant rate and a
client at another reads. It is measured alone and during planned transactions; the loss is the share
of events that did not arrive in the same time. Last, events through one broker to one and to ten
subscribers, with publisher and subscribers in separate processes.

Servers answer when data is on disk (`--sync always`) or, for a slow or shared disk, when the
operating system has it; then the disk is synced every SECONDS.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import ensue

__all__: list[str] = []

PAYLOAD = bytes(100)
SERVE = [sys.executable, "-c", "from ensue.cli import main; main()", "serve"]
WARM_UP_S = 0.5
RATES = {("planned", 30): 3_000, ("serializable", 6): 200, ("serializable", 30): 600}
"""Goals: transactions a second, by isolation and number of clients."""
SPREAD_MAX = 3
"""Goal: the p99 of serializable transactions is at most so many times their p50."""
LOSS_MAX = 0.05
"""Goal: the share of regular traffic that is lost beside planned transactions."""


class Servers:
    """Servers, each in a process."""

    def __init__(self, urls: list[str], processes: "list[subprocess.Popen[str]]") -> None:
        self.urls = urls
        self._processes = processes

    def cpu_s(self) -> float:
        """Return the CPU time of the servers and this process."""
        ticks = 0
        for process in self._processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK") + time.process_time()


def serve(stack: ExitStack, count: int, sync: str) -> Servers:
    """Start `count` servers."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
    for probe in probes:
        probe.close()
    written = "always" if sync == "always" else f"{sync}s"
    text = f'sync = "{written}"\n' + "".join(
        f'[[servers]]\nname = "s{number}"\nlisten = "{address}"\ndata = "d{number}"\n'
        for number, address in enumerate(addresses)
    )
    (directory / "ensue.toml").write_text(text)
    processes = []
    for number in range(count):
        words = ["--config", str(directory / "ensue.toml"), "--name", f"s{number}", "--json"]
        words += ["--log-level", "error"]
        command = [*SERVE, *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ours
        stack.callback(_end, process)
        assert process.stdout is not None
        process.stdout.readline()
        processes.append(process)
    return Servers([f"ensue://{address}" for address in addresses], processes)


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    process.wait(60)


class Clients:
    """Clients at all brokers, and one that reads what transactions publish."""

    def __init__(self, stack: AsyncExitStack, urls: list[str]) -> None:
        self._stack = stack
        self._urls = urls
        self.workers: list[ensue.Bus] = []
        self.read = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, count: int) -> None:
        """Connect clients to the brokers in turn."""
        reader = await self._bus(self._urls[-1])
        events = await self._stack.enter_async_context(reader.subscribe(where="done exists"))
        self._tasks.append(asyncio.create_task(self._count(events)))
        for number in range(count):
            bus = await self._bus(self._urls[number % len(self._urls)])
            await bus.advertise(where=f"done = {number}")
            self.workers.append(bus)

    async def _bus(self, url: str) -> ensue.Bus:
        return await self._stack.enter_async_context(ensue.connect(url, order=None))

    async def _count(self, events: ensue.Subscription) -> None:
        async for _ in events:
            self.read += 1

    async def run(self, isolation: str, seconds: float) -> tuple[float, int, list[float]]:
        """Have all clients run transactions; return the rate, aborts, and durations."""
        took_s: list[float] = []
        aborted = [0]
        began_s = time.perf_counter()
        until_s = began_s + seconds

        async def work(number: int, bus: ensue.Bus) -> None:
            held: ensue.Subscription | None = None
            while time.perf_counter() < until_s:
                start_s = time.perf_counter()
                try:
                    made = None
                    async with bus.transaction(isolation=isolation, timeout=60) as tx:
                        if held is not None:
                            await tx.unsubscribe(held)
                        made = await tx.subscribe(f"own = {number}")
                        await tx.publish({"done": number}, PAYLOAD)
                    if held is not None:
                        held.close()
                    held = made
                    took_s.append(time.perf_counter() - start_s)
                except ensue.TransactionAborted:
                    aborted[0] += 1
            if held is not None:
                held.close()

        await asyncio.gather(*(work(*each) for each in enumerate(self.workers)))
        return len(took_s) / (time.perf_counter() - began_s), aborted[0], took_s


async def transactions(servers: Servers, clients: int, seconds: float) -> None:
    """Print transactions per second."""
    for isolation in ("planned", "atomic", "serializable"):
        async with AsyncExitStack() as stack:
            crew = Clients(stack, servers.urls)
            await crew.start(clients)
            await crew.run(isolation, WARM_UP_S)
            cpu_s = servers.cpu_s()
            rate, aborted, took_s = await crew.run(isolation, seconds)
            cpu_ms = 1000 * (servers.cpu_s() - cpu_s) / len(took_s)
            took_s.sort()
            p50_ms = 1000 * took_s[len(took_s) // 2]
            p99_ms = 1000 * took_s[len(took_s) * 99 // 100]
            print(
                f"{isolation:>14} {clients:>8} {rate:>16,.0f} {aborted:>8,} {p50_ms:>8.1f} "
                f"{p99_ms:>8.1f} {cpu_ms:>8.2f}   {goals(isolation, clients, rate, p50_ms, p99_ms)}"
            )


def goals(isolation: str, clients: int, rate: float, p50_ms: float, p99_ms: float) -> str:
    """Return the goals of a row, and whether they are met."""
    found = []
    wanted = RATES.get((isolation, clients))
    if wanted is not None:
        found.append(f"{wanted:,}/s: {judged(rate >= wanted)}")
    if isolation == "serializable":
        found.append(f"p99 <= {SPREAD_MAX} x p50: {judged(p99_ms <= SPREAD_MAX * p50_ms)}")
    return "; ".join(found)


def judged(is_met: bool) -> str:
    """Return the judgement of a goal."""
    return "met" if is_met else "not met"


async def regular(urls: list[str], rate: int, seconds: float, planned: int) -> float:
    """Return the rate of regular events while clients run plans at full speed."""
    async with AsyncExitStack() as stack:
        crew = Clients(stack, urls)
        await crew.start(planned)
        publisher = await stack.enter_async_context(ensue.connect(urls[0], order=None))
        reader = await stack.enter_async_context(ensue.connect(urls[1], order=None))
        await publisher.advertise(where="tick exists")
        events = await stack.enter_async_context(reader.subscribe(where="tick exists"))
        beside = asyncio.create_task(crew.run("planned", seconds + WARM_UP_S))
        await asyncio.sleep(WARM_UP_S)
        came = 0

        async def count() -> None:
            nonlocal came
            async for _ in events:
                came += 1

        counting = asyncio.create_task(count())
        began_s = time.perf_counter()
        sending: list[asyncio.Task[ensue.Event]] = []
        for number in range(int(rate * seconds)):
            sending.append(asyncio.create_task(publisher.publish({"tick": number}, PAYLOAD)))
            ahead_s = began_s + (number + 1) / rate - time.perf_counter()
            await asyncio.sleep(max(0.0, ahead_s))
        got, taken_s = came, time.perf_counter() - began_s
        await asyncio.gather(*sending)
        await beside
        counting.cancel()
        return got / taken_s


async def subscriber(url: str) -> None:
    """Run a subscriber process: report ready, and count events until it is stopped."""
    async with (
        ensue.connect(url, order=None) as bus,
        bus.subscribe(where="n exists") as events,
    ):
        print("ready", flush=True)
        async for event in events:
            if event.attributes["n"] == -1:
                break
        print("done", flush=True)


async def throughput(url: str, subscribers: int, events: int) -> float:
    """Return the events per second through one broker to its subscribers."""
    words = [sys.executable, __file__, "--subscriber", url]
    readers = [
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220, S603
        for _ in range(subscribers)
    ]
    loop = asyncio.get_running_loop()
    try:
        for reader in readers:
            assert reader.stdout is not None
            await loop.run_in_executor(None, reader.stdout.readline)
        async with ensue.connect(url, order=None) as bus:
            await bus.advertise(where="n exists")
            began_s = time.perf_counter()
            left = iter(range(events))

            async def publish() -> None:
                for number in left:
                    await bus.publish({"n": number}, PAYLOAD)

            await asyncio.gather(*(publish() for _ in range(200)))
            await bus.publish({"n": -1})
            for reader in readers:
                assert reader.stdout is not None
                await loop.run_in_executor(None, reader.stdout.readline)
            return events / (time.perf_counter() - began_s)
    finally:
        for reader in readers:
            reader.terminate()
            reader.wait(60)


async def measure(options: argparse.Namespace) -> None:
    seconds = 0.5 if options.quick else options.seconds
    with ExitStack() as stack:
        servers = serve(stack, 3, options.sync)
        urls = servers.urls
        print(
            "three brokers   clients   transactions/s   aborted   p50 ms   p99 ms   CPU ms   goals"
        )
        for clients in [3] if options.quick else options.clients:
            await transactions(servers, clients, seconds)
        rate = 200
        alone = await regular(urls, rate, seconds, 0)
        beside = await regular(urls, rate, seconds, 6)
        lost = 1 - beside / alone
        print(
            f"regular traffic at {rate} events/s: {alone:.1f} alone, {beside:.1f} beside planned "
            f"transactions: {100 * lost:.1f} % less (goal: at most {100 * LOSS_MAX:g} %: "
            f"{judged(lost <= LOSS_MAX)})"
        )
    with ExitStack() as stack:
        (url,) = serve(stack, 1, options.sync).urls
        for subscribers in (1, 10):
            events = 500 if options.quick else 10_000
            each = await throughput(url, subscribers, events)
            print(f"one broker, {subscribers} subscribers: {each:,.0f} publications/s")
    print(json.dumps({"sync": options.sync, "seconds": seconds}))


def main() -> None:
    parser = argparse.ArgumentParser(description="Content and transactions on servers.")
    parser.add_argument("--quick", action="store_true", help="rough figures in seconds")
    parser.add_argument("--sync", default="always", help="as for ensue serve")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--clients", type=int, nargs="+", default=[6, 30])
    parser.add_argument("--subscriber", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.subscriber:
        asyncio.run(subscriber(options.subscriber))
    else:
        asyncio.run(measure(options))


if __name__ == "__main__":
    main()
