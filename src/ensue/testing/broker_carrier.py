"""Carriers on simulated brokers, behind the URLs of real ones.

While a simulation runs, `nats://`, `redis://`, `mqtt://` and `amqp://` in simulated processes lead
to this carrier, with the options that the real ones have. Only the six functions that talk to a
client library differ: pending messages, sessions and reconnection are those of production
(`ensue.transports.brokers.base`).
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from ensue.core import platform
from ensue.testing.broker_messages import (
    KINDS,
    Answer,
    BrokerKind,
    Delete,
    FromBroker,
    FromClient,
    Hello,
    Info,
    Message,
    Open,
    Ping,
    Publish,
    Splitter,
    Subscribe,
    Unsubscribe,
    decode_from_broker,
    encode,
)
from ensue.testing.process import Host
from ensue.transports import schemes
from ensue.transports.brokers.address import Address, read_url
from ensue.transports.brokers.base import INBOX, TOPIC, BrokerCarrier, Place, Session
from ensue.transports.carrier import Carrier

__all__ = ["SimulatedCarrier", "SimulatedOptions", "simulated_schemes"]

ANSWER_S = 10.0
READ_BYTES_MAX = 64 * 1024
STREAM = "topics"
"""The stream of a broker that has one for all places of a prefix."""


class SimulatedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the URL of a simulated broker."""

    kind: BrokerKind
    address: Address
    prefix: str = "ensue"
    is_safe: bool = False
    """Whether the option is on that makes the broker store, or confirm, messages."""

    @classmethod
    def parse(cls, kind: BrokerKind, url: str) -> "SimulatedOptions":
        """Parse a URL; raise `BadInput` if it is wrong."""
        address = read_url(url, scheme=kind.scheme, port=kind.port, options=(kind.option,))
        return cls(
            kind=kind,
            address=address,
            prefix=address.prefix,
            is_safe=address.given.switch(kind.option),
        )


class _Link:
    """One connection to a broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._splitter = Splitter()
        self._number = 0
        self._answers: dict[int, asyncio.Future[int]] = {}
        self.received_s = asyncio.get_running_loop().time()

    def write(self, message: FromClient) -> None:
        self.writer.write(encode(message))

    async def read(self, handle: Callable[[FromBroker], None]) -> None:
        """Handle messages until the connection is lost."""
        loop = asyncio.get_running_loop()
        while data := await self._reader.read(READ_BYTES_MAX):
            self.received_s = loop.time()
            for body in self._splitter.feed(data):
                message = decode_from_broker(body)
                if isinstance(message, Answer):
                    waiting = self._answers.pop(message.number, None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(message.position)
                else:
                    handle(message)
        raise ConnectionError("the broker closed the connection")

    async def greet(self, scheme: str, heartbeat_s: float) -> Info:
        """Wait until the broker accepts this client."""
        self.write(Hello(scheme, heartbeat_s))
        accepted: list[Info] = []
        while not accepted:
            data = await self._reader.read(READ_BYTES_MAX)
            if not data:
                raise ConnectionError("the broker closed the connection")
            found = map(decode_from_broker, self._splitter.feed(data))
            accepted += [each for each in found if isinstance(each, Info)]
        return accepted[0]

    def ask(self, make: Callable[[int], FromClient]) -> "asyncio.Future[int]":
        """Send a request with a new number; return the future position in its answer."""
        self._number += 1
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._answers[self._number] = answer
        self.write(make(self._number))
        return answer

    def close(self) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the connection was closed"))
                answer.exception()  # Retrieved: there may be no waiter.
        self.writer.close()


async def _answered(answer: "asyncio.Future[int]") -> int:
    async with asyncio.timeout(ANSWER_S):
        return await answer


class SimulatedCarrier(BrokerCarrier):
    """A carrier on a simulated broker."""

    how_to_start = "await simulation.broker()"

    def __init__(self, options: SimulatedOptions) -> None:
        kind = options.kind
        confirms = options.is_safe if kind.confirms == "option" else kind.confirms == "always"
        super().__init__(options.address.url, repeats=options.is_safe)
        self.name, self.kind, self.address = f"{kind.scheme}://", kind.name, options.address
        self._options = options
        self._stored = kind.stored if options.is_safe else ()
        self._confirmed = self._stored or ((INBOX, TOPIC) if confirms else ())
        """Kinds of places whose messages the broker confirms."""
        self._commands: _Link | None = None
        self._subscriber: _Link | None = None
        self._places: dict[str, Place] = {}
        """By key: subscribed places."""
        self._read_to: dict[str, int] = {}
        """By key: the position of the last delivered message."""

    def _key(self, place: Place) -> str:
        return f"{self._options.prefix}/{place[0]}/{place[1]}"

    def _stream(self, place: Place) -> str:
        if place[0] not in self._stored:
            return ""
        has_one = self._options.kind.has_one_stream
        return f"{self._options.prefix}/{STREAM}" if has_one else self._key(place)

    async def _connect(self, session: Session) -> None:  # noqa: ARG002 - others use it
        address, kind = self._options.address, self._options.kind
        self._places.clear()
        self._commands = self._subscriber = None
        for _ in range(kind.connections):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=address.tls.context()
            )
            self._subscriber = _Link(reader, writer)
            self._commands = self._commands or self._subscriber
            info = await self._subscriber.greet(kind.scheme, self.heartbeat_s)
        self._limit_messages(info.message_bytes_max)
        if INBOX in self._stored:
            self.capabilities = msgspec.structs.replace(
                self.capabilities, durable=info.keeps_streams
            )

    async def _read(self, session: Session) -> None:
        async with asyncio.TaskGroup() as group:
            for link in self._links():
                group.create_task(link.read(self._receive))
            group.create_task(self._watch_heartbeat(session))

    def _links(self) -> list[_Link]:
        links = {id(link): link for link in (self._commands, self._subscriber) if link is not None}
        return list(links.values())

    async def _watch_heartbeat(self, session: Session) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.heartbeat_s)
            for link in self._links():
                silent_s = loop.time() - link.received_s
                if silent_s > 2 * self.heartbeat_s:
                    session.lose(f"silent for {silent_s:.1f} s")
                link.write(Ping())

    def _receive(self, message: FromBroker) -> None:
        if not isinstance(message, Message):
            return
        key, position = message.key, message.position
        place = self._places.get(key)
        if place is None:
            return
        if position:
            if position <= self._read_to.get(key, position):
                return
            self._read_to[key] = position
        self._deliver(place, message.data)

    async def _write(self, batch: Sequence[tuple[Place, bytes]]) -> None:
        link = self._commands
        assert link is not None
        size = self._options.kind.in_flight_max
        for start in range(0, len(batch), size):
            part = batch[start : start + size]
            asked = [number for number, each in enumerate(part) if each[0][0] in self._confirmed]
            last = asked[-1] if asked else None
            confirmed = None
            for number, (place, data) in enumerate(part):
                make = partial(self._publication, place, data)
                if number == last:
                    # The broker executes in sequence: the last one confirmed means all.
                    confirmed = link.ask(make)
                else:
                    link.write(make(0))
            await link.writer.drain()
            if confirmed is not None:
                await _answered(confirmed)

    def _publication(self, place: Place, data: bytes, number: int) -> Publish:
        # A closed inbox has no stream: do not create one.
        creates = place[0] != INBOX
        return Publish(self._key(place), data, self._stream(place), creates, number)

    def _reset_position(self, place: Place) -> None:
        self._read_to.pop(self._key(place), None)

    async def _subscribe(self, places: Collection[Place]) -> None:
        commands, subscriber = self._commands, self._subscriber
        assert commands is not None
        assert subscriber is not None
        opened = {}
        for place in places:
            if stream := self._stream(place):
                opened[self._key(place)] = commands.ask(partial(_open, stream))
        for key, answer in opened.items():
            self._read_to.setdefault(key, await _answered(answer))
        subscribed = []
        for place in places:
            key = self._key(place)
            self._places[key] = place
            after = self._read_to.get(key, 0)
            make = partial(_subscription, key, self._stream(place), after)
            subscribed.append(subscriber.ask(make))
        for answer in subscribed:
            await _answered(answer)

    async def _unsubscribe(self, place: Place) -> None:
        key, stream = self._key(place), self._stream(place)
        commands, subscriber = self._commands, self._subscriber
        assert commands is not None
        assert subscriber is not None
        self._places.pop(key, None)
        await _answered(subscriber.ask(lambda number: Unsubscribe(number, key)))
        if stream and place[0] == INBOX:
            await _answered(commands.ask(lambda number: Delete(number, stream)))

    async def _clean_up(self) -> None:
        commands = self._commands
        assert commands is not None
        for place in self._places.values():
            stream = self._stream(place)
            if stream and place[0] == INBOX:
                await _answered(commands.ask(partial(_deletion, stream)))

    async def _disconnect(self) -> None:
        for link in self._links():
            link.close()
        self._commands = self._subscriber = None


def _open(stream: str, number: int) -> Open:
    return Open(number, stream)


def _subscription(key: str, stream: str, after: int, number: int) -> Subscribe:
    return Subscribe(number, key, stream, after)


def _deletion(stream: str, number: int) -> Delete:
    return Delete(number, stream)


Parse = Callable[[str], tuple[Any, Callable[[Any], Carrier]]]


def _parser(kind: BrokerKind, real: Parse) -> Parse:
    def parse(url: str) -> tuple[Any, Callable[[Any], Carrier]]:
        if not isinstance(platform.current(), Host):
            return real(url)
        return SimulatedOptions.parse(kind, url), SimulatedCarrier

    return parse


@contextmanager
def simulated_schemes() -> Iterator[None]:
    """Lead the URLs of brokers in simulated processes to simulated brokers."""
    before = dict(schemes.BROKERS)
    for scheme, kind in KINDS.items():
        schemes.BROKERS[scheme] = _parser(kind, before[scheme])
    try:
        yield
    finally:
        schemes.BROKERS.update(before)
