"""A process with one publisher or subscriber, controlled by commands on stdin.

It prints `{"ready": true}` once it is connected. Every command is one line of JSON and gets one
line back.

| command | to | effect |
|---|---|---|
| publish: start, stop, payload_bytes, rate, batch | publisher | publish events with these numbers |
| await: start, stop, payload_bytes, tasks | publisher | the same, waiting for each receipt |
| expect: count, start, stop, timed, payload_bytes | subscriber | start a phase |
| wait: seconds | subscriber | wait for all events |
| result: publishers, start, stop | subscriber | return the results of the phase |

At end of file on stdin it disconnects and exits.

    python -m benchmarks.peers.worker publish|subscribe CLIENT URL NUMBER TOPIC…
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from benchmarks.peers.clients import AwaitedSender, Lane, Sender, find_client
from benchmarks.peers.tally import Tally, make_batch, sampled

__all__ = ["obey", "publish"]

SECOND_NS = 1_000_000_000


async def publish(
    sender: Sender, topics: Sequence[str], number: int, order: dict[str, Any]
) -> dict[str, Any]:
    """Publish events at a rate, or without one as fast as possible; return the times."""
    start, stop, batch_max = order["start"], order["stop"], order["batch"]
    payload_bytes: int = order["payload_bytes"]
    rate: float | None = order["rate"]
    clock = time.monotonic_ns
    first_ns = clock()
    sent = start
    while sent < stop:
        due = stop
        if rate is not None:
            passed_ns = clock() - first_ns
            due = min(stop, start + 1 + int(passed_ns * rate / SECOND_NS))
            if due <= sent:
                next_ns = (sent - start) * SECOND_NS / rate
                await asyncio.sleep((next_ns - passed_ns) / SECOND_NS)
                continue
        upto = min(due, sent + batch_max)
        await sender.send(make_batch(topics, number, sent, upto, payload_bytes))
        sent = upto
        await asyncio.sleep(0)
    sent_ns = clock()
    await sender.settle()
    return {"first_ns": first_ns, "sent_ns": sent_ns, "settled_ns": clock()}


async def publish_awaited(
    sender: Sender, topics: Sequence[str], number: int, order: dict[str, Any]
) -> dict[str, Any]:
    """Publish events from tasks that each wait for a receipt before they publish again."""
    assert isinstance(sender, AwaitedSender)
    lanes = await sender.lanes(order["tasks"])
    payload_bytes: int = order["payload_bytes"]
    numbers = iter(range(order["start"], order["stop"]))
    clock = time.monotonic_ns
    taken_ns: list[int] = []

    async def run(lane: Lane) -> None:
        for each in numbers:
            begun_ns = clock()
            ((topic, payload),) = make_batch(topics, number, each, each + 1, payload_bytes)
            await lane(topic, payload)
            taken_ns.append(clock() - begun_ns)

    first_ns = clock()
    async with asyncio.TaskGroup() as tasks:
        for lane in lanes:
            tasks.create_task(run(lane))
    settled_ns = clock()
    return {
        "first_ns": first_ns,
        "sent_ns": settled_ns,
        "settled_ns": settled_ns,
        "receipts_ns": sampled(taken_ns),
    }


async def main(role: str, client: str, url: str, number: int, topics: Sequence[str]) -> None:
    """Connect and run commands."""
    make_sender, make_receiver = find_client(client)
    tally = Tally(asyncio.get_running_loop())
    sender = receiver = None
    if role == "publish":
        sender = make_sender(url, topics)
        await sender.open()
    else:
        receiver = make_receiver(url, topics)
        await receiver.open(tally)

    async def send(order: dict[str, Any]) -> dict[str, Any]:
        assert sender is not None
        return await publish(sender, topics, number, order)

    async def send_awaited(order: dict[str, Any]) -> dict[str, Any]:
        assert sender is not None
        return await publish_awaited(sender, topics, number, order)

    async def expect(order: dict[str, Any]) -> dict[str, Any]:
        del order["start"], order["stop"]  # This subscriber has all topics.
        tally.expect(**order)
        return {}

    async def wait(order: dict[str, Any]) -> dict[str, Any]:
        return await tally.wait(**order)

    async def result(order: dict[str, Any]) -> dict[str, Any]:
        return tally.result(**order)

    await obey(
        {
            "publish": send,
            "await": send_awaited,
            "expect": expect,
            "wait": wait,
            "result": result,
        }
    )
    if sender is not None:
        await sender.close()
    if receiver is not None:
        await receiver.close()


async def obey(
    commands: Mapping[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]],
) -> None:
    """Say that the process is ready, and run commands until the end of stdin."""
    _say({"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        order: dict[str, Any] = json.loads(line)
        _say(await commands[order.pop("do")](order))


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _, _role, _client, _url, _number, *_topics = sys.argv
    asyncio.run(main(_role, _client, _url, int(_number), _topics))
