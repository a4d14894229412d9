"""A process with the publisher, or with some of the subscribers, controlled like `peers.worker`.

| command | to | effect |
|---|---|---|
| publish | publisher | as in `peers.worker` |
| expect, wait, result | subscribers | the same, of all of them together |

A subscriber has a connection of its own, not a process.

    python -m benchmarks.scaling.worker URL TOPICS SUBSCRIBERS PATTERN RUN publish
    python -m benchmarks.scaling.worker URL TOPICS SUBSCRIBERS PATTERN RUN subscribe FIRST STOP
"""

import asyncio
import json
import sys
from typing import Any

from benchmarks.peers.clients import find_client
from benchmarks.peers.tally import Tally
from benchmarks.peers.worker import obey, publish
from benchmarks.scaling.layout import Layout

import ensue

__all__: list[str] = []

OPENING_MAX = 20
"""Subscribers that connect at the same time."""

Answer = dict[str, Any]


async def run_publisher(url: str, layout: Layout) -> None:
    """Publish events as ordered."""
    make_sender, _ = find_client("ensue")
    topics = layout.round
    sender = make_sender(url, topics)
    await sender.open()

    async def send(order: Answer) -> Answer:
        return await publish(sender, topics, 0, order)

    await obey({"publish": send})
    await sender.close()


async def run_subscribers(url: str, layout: Layout, numbers: range) -> None:
    """Receive events with a connection for each subscriber."""
    _, make_receiver = find_client("ensue")
    loop = asyncio.get_running_loop()
    tallies = {number: Tally(loop) for number in numbers}
    receivers = {number: make_receiver(url, layout.topics_of(number)) for number in numbers}
    turn = asyncio.Semaphore(OPENING_MAX)

    async def open_one(number: int) -> None:
        async with turn:
            await receivers[number].open(tallies[number])

    await asyncio.gather(*map(open_one, numbers))
    expected: dict[int, list[int]] = {}

    async def expect(order: Answer) -> Answer:
        for number, tally in tallies.items():
            expected[number] = layout.events_of(number, order["start"], order["stop"])
            tally.expect(len(expected[number]), timed=order["timed"])
        return {}

    async def wait(order: Answer) -> Answer:
        busy = {number: events for number, events in expected.items() if events}
        found = await asyncio.gather(*(tallies[number].wait(**order) for number in busy))
        return {
            "last_ns": max((each["last_ns"] for each in found), default=0),
            "missing": sum(each["missing"] for each in found),
        }

    async def result(order: Answer) -> Answer:
        del order
        found = [
            tally.compare((0, each) for each in expected[number])
            for number, tally in tallies.items()
        ]
        faults = ("missing", "repeated", "overtaken")
        return {
            # The order of one publisher's events is judged by their numbers.
            "order": "",
            "latencies_ns": [ns for each in found for ns in each["latencies_ns"]],
            **{fault: sum(each[fault] for each in found) for fault in faults},
        }

    await obey({"expect": expect, "wait": wait, "result": result})
    await asyncio.gather(*(receiver.close() for receiver in receivers.values()))


async def main(url: str, layout: Layout, role: str, numbers: range) -> None:
    """Connect and run commands; report a refusal instead of being ready."""
    try:
        if role == "publish":
            await run_publisher(url, layout)
        else:
            await run_subscribers(url, layout, numbers)
    except ensue.EnsueError as error:
        print(json.dumps({"refused": str(error)}), flush=True)
        sys.stdin.read()  # The benchmark ends this process.


if __name__ == "__main__":
    _url, *_rest = sys.argv[1:]
    asyncio.run(
        main(_url, Layout.parse(_rest[:4]), _rest[4], range(*map(int, _rest[5:] or ("0", "0"))))
    )
