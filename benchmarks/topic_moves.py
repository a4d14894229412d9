"""The pause of publishers while a topic moves to another server.

Three servers of a chain, each in a process of its own, and publishers that wait for each receipt.
While they publish, a topic moves from server to server. The pause is the longest time that any
publisher waited for a receipt during the move.

    python -m benchmarks.topic_moves [--moves N] [--publishers N]

Run it from the root of the repository, on an idle machine.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import ensue
from ensue.runtime.topic_move import move_topic

__all__: list[str] = []

NAMES = ("a", "b", "c")
PAUSE_S_MAX = 1.0
"""The goal."""
BETWEEN_S = 0.2
"""How long publishers run before and after each move."""


def spare_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextlib.contextmanager
def servers(folder: Path, topics: list[str]) -> Iterator[list[str]]:
    """Run the servers of a chain; yield their URLs."""
    lines = []
    for name in NAMES:
        lines += ["[[servers]]", f'name = "{name}"', f'listen = "127.0.0.1:{spare_port()}"']
        hosted = json.dumps(topics if name == "a" else [])
        lines += [f"data = {json.dumps(str(folder / name))}", f"topics = {hosted}"]
    config = folder / "chain.toml"
    config.write_text("\n".join(lines))
    processes = []
    try:
        for name in NAMES:
            words = ("serve", "--json", "--config", str(config), "--name", name)
            command = [sys.executable, "-m", "ensue", *words]
            processes.append(
                subprocess.Popen(  # noqa: S603 - the command is fixed
                    command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
            )
        yield [json.loads(each.stdout.readline())["url"] for each in processes if each.stdout]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate()


async def measure(moves: int, publishers: int) -> list[float]:
    """Return the pause of each move, in seconds."""
    topics = [f"topic-{number}" for number in range(moves)]
    waits: list[tuple[float, float]] = []
    ended = asyncio.Event()

    async def publish(bus: "ensue.Bus", number: int) -> None:
        while not ended.is_set():
            started_s = time.monotonic()
            await bus.publish(topics[number % moves], b"x" * 100)
            waits.append((started_s, time.monotonic()))
            number += 1

    pauses = []
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder), topics) as urls:
        async with contextlib.AsyncExitStack() as stack:
            buses = [
                await stack.enter_async_context(ensue.connect(urls[number % len(urls)]))
                for number in range(publishers)
            ]
            events = await stack.enter_async_context(buses[0].subscribe(*topics))
            publishing = [
                asyncio.create_task(publish(bus, number)) for number, bus in enumerate(buses)
            ]
            for number, topic in enumerate(topics):
                await asyncio.sleep(BETWEEN_S)
                began_s = time.monotonic()
                await move_topic(urls[0], topic, NAMES[1 + number % 2])
                await asyncio.sleep(BETWEEN_S)
                pauses.append(
                    max(end - max(start, began_s) for start, end in waits if end > began_s)
                )
            ended.set()
            await asyncio.gather(*publishing)
            for _ in waits:
                await anext(events)
    return pauses


def main() -> None:
    """Print the pauses."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--publishers", type=int, default=6)
    given = parser.parse_args()
    pauses = asyncio.run(measure(given.moves, given.publishers))
    print("| moves | publishers | median pause | longest pause |")
    print("|---|---|---|---|")
    print(
        f"| {given.moves} | {given.publishers} | {1000 * statistics.median(pauses):.0f} ms "
        f"| {1000 * max(pauses):.0f} ms |"
    )
    if max(pauses) > PAUSE_S_MAX:
        raise SystemExit(f"a publisher paused for more than {PAUSE_S_MAX:g} s")


if __name__ == "__main__":
    main()
