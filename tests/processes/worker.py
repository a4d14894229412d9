"""One process of a torture run: a publisher, a subscriber, a server, or a station on a broker.

    python -m tests.processes.worker publisher --url URL …

A worker appends facts to a file, one line at a time, and flushes, so that nothing is lost if it is
killed the next moment. The lines are words separated by tabs.

A publisher's file belongs to one incarnation, which has its own name:

    name    NAME                        the name of the bus
    try     NUMBER  EVENT  TOPIC        it is about to publish this: from now on it may be published
    out     NUMBER  EVENT  TOPIC  SLOT  it has the receipt
    void    NUMBER  EVENT  TOPIC        it got EventVoided: no subscriber got the event
    end                                 it has all receipts

A subscriber's file is that of all its incarnations:

    joined  PROCESS                     it is subscribed
    got     POSITION  EVENT  TOPIC  PAYLOAD  (without its padding)
    safe    POSITION                    acknowledged: no event up to here will be delivered again
    wrong   WHY                         a promise was broken
"""

import argparse
import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

import ensue
from ensue.core.errors import EventVoided, SubscriptionLost, TransportError
from ensue.core.event import event_id

if TYPE_CHECKING:
    from ensue.server import Server, ServerConfig
    from ensue.server.brokered import BrokeredServer

__all__ = ["EXIT_LOST", "EXIT_WRONG", "main"]

EXIT_LOST = 3
"""The subscription was taken over: restart the process."""
EXIT_WRONG = 4
"""A promise was broken; the last line of the file says which."""
EXIT_BROKEN = 5
"""An exception reached the event loop."""
CONNECT_RETRY_S = 0.1
PADDING = "."
PADDING_MAX = 1_000


class Lines:
    """An append-only file of lines; an incomplete last line is removed."""

    def __init__(self, path: Path) -> None:
        self.before: list[list[str]] = []
        whole = 0
        if path.exists():
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1
            self.before = [line.split("\t") for line in data[:whole].decode().splitlines()]
        self._file = path.open("ab")
        self._file.truncate(whole)

    def write(self, *words: object) -> None:
        self._file.write("\t".join(map(str, words)).encode() + b"\n")

    def flush(self) -> None:
        self._file.flush()


async def connect(url: str, name: str | None) -> ensue.Bus:
    """Connect, and retry forever: the harness has the timeout."""
    while True:
        bus = ensue.connect(url, name=name)
        try:
            await bus.__aenter__()
        except TransportError:
            await asyncio.sleep(CONNECT_RETRY_S)
        else:
            return bus


class Publishing:
    """Publishes until it has all receipts: one for each event, or by `flush` for several."""

    def __init__(
        self,
        bus: ensue.Bus,
        lines: Lines,
        topics: list[str],
        *,
        name: str,
        window: int,
        random: Random | None,
    ) -> None:
        self._bus = bus
        self._lines = lines
        self._topics = topics
        self._name = name
        self._random = random
        self._room = asyncio.Semaphore(window)
        self._tried = dict.fromkeys(topics, 0)
        self._number = 0
        self._receipts = 0

    async def run(self, count: int, *, flush: int) -> None:
        while self._receipts < count:
            if flush:
                await self._publish_together(min(flush, count - self._receipts))
                continue
            async with asyncio.TaskGroup() as group:
                for _ in range(count - self._receipts):
                    await self._room.acquire()
                    # Tasks start in the order of their creation: this is the publishing order.
                    group.create_task(self._publish(*self._try()))
        self._lines.write("end")
        self._lines.flush()

    def _try(self) -> tuple[int, str, str, bytes]:
        """Record the next event; return its number, id, topic and payload."""
        number = self._number = self._number + 1
        topic, padding = self._topics[number % len(self._topics)], 0
        if self._random is not None:
            topic = self._random.choice(self._topics)
            padding = int(PADDING_MAX * self._random.random() ** 4)
        self._tried[topic] += 1
        event = event_id(self._bus.name, topic, self._tried[topic])
        self._lines.write("try", number, event, topic)
        self._lines.flush()
        return number, event, topic, f"{self._name}:{number}{PADDING * padding}".encode()

    async def _publish(self, number: int, expected: str, topic: str, payload: bytes) -> None:
        try:
            event = await self._bus.publish(topic, payload)
        except EventVoided:
            self._lines.write("void", number, expected, topic)
        else:
            self._receipts += 1
            self._lines.write("out", number, event.id, topic, event.slot or 0)
        finally:
            self._room.release()
        self._lines.flush()

    async def _publish_together(self, count: int) -> None:
        published: list[tuple[int, str, str]] = []
        for _ in range(count):
            number, _, topic, payload = self._try()
            event = await self._bus.publish(topic, payload, receipt=False)
            published.append((number, event.id, topic))
        try:
            await self._bus.flush()
        except EventVoided as error:
            # Only the first is known to be void.
            for number, name, topic in published:
                if name == error.event:
                    self._lines.write("void", number, name, topic)
        else:
            self._receipts += count
            for number, name, topic in published:
                self._lines.write("out", number, name, topic, 0)
        self._lines.flush()


async def publish(given: argparse.Namespace) -> int:
    lines = Lines(given.file)
    random = None if given.seed is None else Random(given.seed)
    bus = await connect(given.url, given.name)
    lines.write("name", bus.name)
    publishing = Publishing(
        bus, lines, given.topics, name=given.name, window=given.window, random=random
    )
    await publishing.run(given.count, flush=given.flush)
    await bus.close()
    return 0


class Reading:
    """Records events, then acknowledges them, and checks that positions continue."""

    def __init__(self, lines: Lines, *, batch: int) -> None:
        self._lines = lines
        self._batch = batch
        self._events: list[str] = []
        self._positions: dict[str, int] = {}
        self._safe = 0
        self._acknowledged = 0
        self._more = asyncio.Event()
        for words in lines.before:
            if words[0] == "got":
                self._positions[words[2]] = int(words[1])
                self._events.append(words[2])
            elif words[0] == "safe":
                self._safe = int(words[1])

    async def read(self, events: ensue.Subscription) -> int:
        """Read until cancelled; return an exit code at the first violation."""
        unacknowledged: list[int] = []
        watch = asyncio.create_task(self._watch(events))
        try:
            while True:
                if len(unacknowledged) >= self._batch or not events.waiting:
                    self._acknowledge(events, unacknowledged)
                event = await anext(events)
                wrong = self._take(event)
                if wrong:
                    self._lines.write("wrong", wrong)
                    self._lines.flush()
                    return EXIT_WRONG
                unacknowledged.append(event.position)
        finally:
            watch.cancel()
            await asyncio.wait((watch,))

    def _take(self, event: ensue.ReceivedEvent) -> str:
        """Record an event; return what is wrong with it."""
        position, known = event.position, len(self._events)
        if position <= self._safe:
            return f"{event.id} came at {position}, and up to {self._safe} all was acknowledged"
        if position <= known:
            earlier = self._events[position - 1]
            return "" if earlier == event.id else f"{position} was {earlier} and is now {event.id}"
        if position != known + 1:
            return f"{event.id} came at {position} behind {known}"
        if event.id in self._positions:
            return f"{event.id} came at {position}, and had come at {self._positions[event.id]}"
        self._positions[event.id] = position
        self._events.append(event.id)
        payload = event.payload.decode().rstrip(PADDING)
        self._lines.write("got", position, event.id, event.topic, payload)
        return ""

    def _acknowledge(self, events: ensue.Subscription, positions: list[int]) -> None:
        """Acknowledge recorded events."""
        if positions:
            self._lines.flush()
            for position in positions:
                events.acknowledge(position)
            self._acknowledged = positions[-1]
            self._more.set()
            positions.clear()

    async def _watch(self, events: ensue.Subscription) -> None:
        """Record how far acknowledgements are safe."""
        while True:
            await self._more.wait()
            self._more.clear()
            position = self._acknowledged
            await events.until_safe(position)
            self._safe = max(self._safe, position)
            self._lines.write("safe", self._safe)
            self._lines.flush()


def tell(events: ensue.Subscription) -> None:
    """Print to standard error what a subscription waits for."""
    node = None if events._reader is None else events._reader.node
    waits = [] if node is None else list(node.waits({}))
    sys.stderr.write(
        f"{events.name}: joined {events.topics}, {events.pending} pending, "
        f"{events.held_back} held back; {'; '.join(waits) or 'waits for nothing'}\n"
    )
    sys.stderr.flush()


async def subscribe(given: argparse.Namespace) -> int:
    lines = Lines(given.file)
    reading = Reading(lines, batch=given.batch)
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    bus = None
    try:
        bus = await connect(given.url, None)
        # By content, or by topic.
        wanted = {"start": given.start} if given.where is None else {"where": given.where}
        subscription = bus.subscribe(
            *given.topics,
            **wanted,
            name=given.name,
            acknowledge="manual",
            durable=True,
            pending_max=given.pending_max,
        )
        loop.add_signal_handler(signal.SIGUSR1, tell, subscription)
        async with subscription as events:
            lines.write("joined", os.getpid())
            lines.flush()
            return await reading.read(events)
    except SubscriptionLost as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_LOST
    except asyncio.CancelledError:
        return 0
    finally:
        if bus is not None:
            await bus.close()


async def serve(given: argparse.Namespace) -> int:
    from ensue.server import Server  # noqa: PLC0415 - for servers alone

    server = Server(replace(_config(given), listen=given.listen))
    await server.start()
    return await _until_asked_to_end(server)


async def serve_on_broker(given: argparse.Namespace) -> int:
    from ensue.server.brokered import BrokeredServer  # noqa: PLC0415 - for servers alone

    while True:
        server = BrokeredServer(_config(given), given.url)
        try:
            await server.start()
        except TransportError:
            # The broker is down: retry, as a service manager would.
            await asyncio.sleep(CONNECT_RETRY_S)
        else:
            return await _until_asked_to_end(server)


def _config(given: argparse.Namespace) -> "ServerConfig":
    from ensue.server import ServerConfig  # noqa: PLC0415 - for servers alone
    from ensue.server.config import Retention  # noqa: PLC0415 - as above
    from ensue.transports.tcp.messages import Member  # noqa: PLC0415 - as above

    return ServerConfig(
        data=str(given.data),
        name=given.name,
        chain=msgspec.json.decode(given.chain, type=tuple[Member, ...]),
        sync_s=given.sync,
        retention=Retention(segment_bytes=given.segment_bytes),
    )


async def _until_asked_to_end(server: "Server | BrokeredServer") -> int:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    tasks = [asyncio.ensure_future(server.wait()), asyncio.ensure_future(stop.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    if tasks[0].done():
        await tasks[0]
    await server.stop()
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks)
    return 0


def _topics(text: str) -> list[str]:
    return text.split(",")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.processes.worker")
    kinds = parser.add_subparsers(required=True)

    publisher = kinds.add_parser("publisher")
    publisher.set_defaults(run=publish)
    publisher.add_argument("--url", required=True)
    publisher.add_argument("--name", required=True, help="a new one each time")
    publisher.add_argument("--topics", type=_topics, required=True)
    publisher.add_argument("--count", type=int, required=True)
    publisher.add_argument("--window", type=int, default=200, help="events under way")
    publisher.add_argument("--flush", type=int, default=0, help="one receipt for so many")
    publisher.add_argument("--seed", type=int, help="draw topics and sizes; else topics take turns")
    publisher.add_argument("--file", type=Path, required=True)

    subscriber = kinds.add_parser("subscriber")
    subscriber.set_defaults(run=subscribe)
    subscriber.add_argument("--url", required=True)
    subscriber.add_argument("--name", required=True)
    what = subscriber.add_mutually_exclusive_group(required=True)
    what.add_argument("--topics", type=_topics, default=[])
    what.add_argument("--where", help="a filter: read by content")
    subscriber.add_argument("--start", choices=("earliest", "latest"), default="latest")
    subscriber.add_argument("--batch", type=int, default=1, help="acknowledge so many together")
    subscriber.add_argument("--pending-max", type=int, default=10_000)
    subscriber.add_argument("--file", type=Path, required=True)

    for kind, run in (("server", serve), ("station", serve_on_broker)):
        server = kinds.add_parser(kind)
        server.set_defaults(run=run)
        server.add_argument("--data", type=Path, required=True)
        where = "--listen" if kind == "server" else "--url"
        server.add_argument(where, required=True)
        server.add_argument("--name", required=True)
        server.add_argument("--chain", default="[]", help="JSON: [[name, address, [topic, …]], …]")
        server.add_argument("--sync", type=float, default=0.0)
        server.add_argument("--segment-bytes", type=int, default=256 * 1024)
    return parser


def main() -> int:
    # Prints its stacks on standard error at SIGUSR2.
    faulthandler.register(signal.SIGUSR2)
    given = _parser().parse_args()
    return asyncio.run(_run(given))


async def _run(given: argparse.Namespace) -> int:
    def end(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        # The event loop would only log this, and a task may then wait forever.
        loop.default_exception_handler(context)
        sys.stderr.flush()
        os._exit(EXIT_BROKEN)

    asyncio.get_running_loop().set_exception_handler(end)
    code: int = await given.run(given)
    return code


if __name__ == "__main__":
    sys.exit(main())
