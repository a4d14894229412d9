"""Causal order between processes on loopback: deliveries per second.

    python benchmarks/cube_processes.py [--quick] [--processes 16] [--events 500] [--url URL]

Every process subscribes to one topic and publishes its share of the events, which all processes
deliver. Events travel along the trees of the cube; an Ensue server, in another process, relays the
frames without ordering them. With `--url`, processes use a running server, or a station on a
broker. Time runs from the start signal until every process has every event. The result is checked:
each event once, and the events of each publisher in its order.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections import defaultdict

import ensue

__all__: list[str] = []

TOPIC = "cube"
PAYLOAD = bytes(100)


async def work(url: str, across: bool, events: int, processes: int) -> None:
    """Run one of the processes: report ready, wait for the start signal, report the result."""
    order = ensue.Causal(across_topics=across)
    loop = asyncio.get_running_loop()
    async with ensue.connect(url, order=order) as bus, bus.subscribe(TOPIC) as received:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await loop.run_in_executor(None, sys.stdin.readline)

        async def publish() -> None:
            for _ in range(events):
                await bus.publish(TOPIC, PAYLOAD, receipt=False)
            await bus.flush()

        publishing = asyncio.create_task(publish())
        numbers: defaultdict[str, int] = defaultdict(int)
        for _ in range(events * processes):
            event = await anext(received)
            number = int(event.id.rpartition("/")[2])
            if number != numbers[event.publisher] + 1:
                raise SystemExit(f"{event.id} came after number {numbers[event.publisher]}")
            numbers[event.publisher] = number
        await publishing
        cpu_s = time.process_time()
        sys.stdout.write(f"done {cpu_s:.2f}\n")
        sys.stdout.flush()
        # Stay until the others are done: they may need its events.
        await loop.run_in_executor(None, sys.stdin.readline)


def start_server(directory: str) -> "tuple[subprocess.Popen[str], str]":
    """Start a server; return it and its URL."""
    words = ["--listen", "127.0.0.1:0", "--data", f"{directory}/data", "--sync", "1", "--json"]
    command = [sys.executable, "-c", "from ensue.cli import main; main()", "serve", *words]
    command += ["--log-level", "error"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this package
    assert server.stdout is not None
    line = server.stdout.readline()
    return server, line.split('"url":')[1].split('"')[1]


def measure(url: str, *, across: bool, processes: int, events: int) -> str:
    """Run all processes once; return a line of results."""
    words = [sys.executable, __file__, "--work", "--url", url]
    words += ["--processes", str(processes), "--events", str(events)]
    words += [] if across else ["--within"]
    workers = [
        subprocess.Popen(  # noqa: S603 - this file
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for _ in range(processes)
    ]
    try:
        _hear(workers, "ready")
        began_s = time.perf_counter()
        _tell(workers)
        cpu_s = sum(float(said.split()[1]) for said in _hear(workers, "done"))
        taken_s = time.perf_counter() - began_s
        _tell(workers)
        for worker in workers:
            worker.wait(60)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    deliveries = processes * processes * events
    name = "across topics" if across else "within a topic"
    return (
        f"{name:>16} {processes:>10} {processes * events:>8,} {deliveries:>11,} {taken_s:>7.1f} "
        f"{deliveries / taken_s:>13,.0f} {cpu_s:>9.1f}"
    )


def _hear(workers: "list[subprocess.Popen[str]]", word: str) -> list[str]:
    said = []
    for worker in workers:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        if not line.startswith(word):
            raise SystemExit(f"a process said {line!r} where {word!r} was expected")
        said.append(line)
    return said


def _tell(workers: "list[subprocess.Popen[str]]") -> None:
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="Causal order among processes on loopback.")
    parser.add_argument("--quick", action="store_true", help="rough figures in seconds")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--events", type=int, default=500, help="of each process")
    parser.add_argument("--url", default="")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--within", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        asyncio.run(work(given.url, not given.within, given.events, given.processes))
        return
    processes, events = (4, 50) if given.quick else (given.processes, given.events)
    with tempfile.TemporaryDirectory() as directory:
        server, url = (None, given.url) if given.url else start_server(directory)
        try:
            print(f"{len(PAYLOAD)}-byte payloads, one topic, every process delivers every event")
            print(
                f"{'order':>16} {'processes':>10} {'events':>8} {'deliveries':>11} {'seconds':>7} "
                f"{'deliveries/s':>13} {'CPU s':>9}"
            )
            for across in (True, False):
                print(measure(url, across=across, processes=processes, events=events), flush=True)
        finally:
            if server is not None:
                server.kill()
                server.wait()


if __name__ == "__main__":
    main()
