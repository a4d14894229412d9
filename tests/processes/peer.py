"""One process that publishes, subscribes and answers, in an order that clients keep themselves.

    python -m tests.processes.peer --url URL --order causal --file FILE …

It appends what it sees to a file, one JSON object per line, so that nothing is lost if it is killed
the next moment. It records a publication before it publishes. It runs until SIGTERM.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any

import msgspec

import ensue
from ensue.core.errors import AccessDenied, TransportError
from ensue.core.event import event_id
from ensue.runtime import causal_nodes

__all__ = ["ORDERS", "TOPICS", "main"]

TOPICS = ("alpha", "beta", "gamma")
ORDERS: dict[str, ensue.Order] = {
    "causal": ensue.Causal(),
    # A busy machine may stall for seconds, and a later event is late.
    "merged": ensue.Merged(epsilon=0.02, delta=6.0),
    "deadline": ensue.Deadline(ms=3_000, on_late="tag"),
}
RETRY_S = 0.1
ANSWERED = 0.25


class Peer:
    """One process."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._random = Random(f"{given.seed}/{given.name}")
        self._numbers: Counter[str] = Counter()
        self._file = os.open(given.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._tasks: list[asyncio.Task[None]] = []

    def note(self, action: str, node: str, **fields: Any) -> None:
        """Record what was seen, or is about to be done."""
        os.write(self._file, self._line(action, node, **fields))

    def _line(self, action: str, node: str, **fields: Any) -> bytes:
        line = {"node": node, "at_ns": time.time_ns(), "action": action, **fields}
        return msgspec.json.encode(line) + b"\n"

    async def run(self) -> None:
        order = ORDERS[self._given.order]
        while True:
            bus = ensue.connect(
                self._given.url, order=order, name=self._given.name, trace=self._given.trace
            )
            try:
                await bus.__aenter__()
            except (TransportError, AccessDenied) as error:
                sys.stderr.write(f"not yet: {error}\n")
                await asyncio.sleep(RETRY_S)
            else:
                break
        try:
            await self._go(bus)
        finally:
            await bus.close()

    async def _go(self, bus: ensue.Bus) -> None:
        topics = [topic for topic in self._given.topics.split(",") if topic]
        async with bus.subscribe(*topics, name="turn") as events:
            for topic in topics:
                self.note("subscribed", bus.name, topic=topic, subscription="turn")
            work: list[Coroutine[Any, Any, None]] = [
                self._publish(bus),
                self._read(bus, events, "turn", answers=self._given.order != "merged"),
            ]
            if self._given.order == "merged":
                early = await bus.subscribe(*topics, name="early", order=None).__aenter__()
                for topic in topics:
                    self.note("subscribed", bus.name, topic=topic, subscription="early")
                work.append(self._read(bus, early, "early", answers=True))
            await asyncio.gather(*work, self._look(bus, events))

    async def _look(self, bus: ensue.Bus, events: ensue.Subscription) -> None:
        """Record gaps: events that only a killed process had, and others depend on."""
        reported = 0
        while not events.closed:
            for missed in events.missed[reported:]:
                reported += 1
                self.note(
                    "subscribed",
                    bus.name,
                    topic=missed.topic,
                    subscription="turn",
                    verdict="missed",
                )
            await asyncio.sleep(0.1)

    async def _publish(self, bus: ensue.Bus) -> None:
        asked = 0
        while not self._given.until.exists() if self._given.until else asked < self._given.count:
            topic = TOPICS[asked % 3] if self._given.markers else self._random.choice(TOPICS)
            asked += 1
            await self._publish_one(bus, topic, b"marker" if self._given.markers else b"question")
            await asyncio.sleep(self._random.random() * self._given.pace)
        await bus.flush()
        self.note("ended", bus.name)

    async def _publish_one(
        self, bus: ensue.Bus, topic: str, payload: bytes, *, after: bytes = b""
    ) -> None:
        """Publish an event, and record it in one write with the line that it comes after."""
        self._numbers[topic] += 1
        number = self._numbers[topic]
        expected = event_id(bus.name, topic, number)
        line = self._line(
            "published",
            bus.name,
            event=expected,
            topic=topic,
            publisher=bus.name,
            publisher_seq=number,
        )
        os.write(self._file, after + line)
        event = await bus.publish(topic, payload, receipt=False)
        assert event.id == expected

    async def _read(
        self, bus: ensue.Bus, events: ensue.Subscription, name: str, *, answers: bool
    ) -> None:
        async for event in events:
            line = self._line(
                "delivered",
                bus.name,
                event=event.id,
                topic=event.topic,
                publisher=event.publisher,
                publisher_seq=int(event.id.rpartition("/")[2]),
                position=event.position,
                subscription=name,
                verdict=event.verdict,
            )
            if answers and event.payload == b"question" and self._random.random() < ANSWERED:
                topic = self._random.choice(TOPICS)
                await self._publish_one(bus, topic, b"answer", after=line)
            else:
                os.write(self._file, line)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--order", required=True, choices=ORDERS)
    parser.add_argument("--name", required=True)
    parser.add_argument("--topics", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--markers", action="store_true", help="to each topic in turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--trace")
    parser.add_argument("--pace", type=float, default=0.02)
    parser.add_argument("--until", type=Path, help="instead of a count: a file that ends it")
    peer = Peer(parser.parse_args())
    causal_nodes.PATIENCE_NS = 2 * causal_nodes.SUSPECT_NS

    async def until_told() -> None:
        task = asyncio.create_task(peer.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            return

    asyncio.run(until_told())
    return 0


if __name__ == "__main__":
    sys.exit(main())
