"""A request to move a topic, repeated until the chain has moved it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from ensue import orders
from ensue.core import platform
from ensue.core.errors import BadInput, TransportError
from ensue.core.wire import Codec
from ensue.protocols.interface import Frame
from ensue.protocols.topic_log.frames import topic_of
from ensue.protocols.total.frames import MoveReply, MoveRequest
from ensue.runtime.hub_remote import discover
from ensue.runtime.request import inbox
from ensue.transports.framed import FramedTransport
from ensue.transports.memory import MemoryOptions
from ensue.transports.schemes import SERVED, parse_url
from ensue.transports.tcp.carrier import TcpCarrier
from ensue.transports.tcp.options import TcpOptions, parse_address

__all__ = ["MOVE_S", "move_topic"]

MOVE_S = 10.0
"""How long a move may take."""
AGAIN_S = 0.05


async def move_topic(url: str, topic: str, to: str, *, within_s: float = MOVE_S) -> None:
    """Move a topic to a server of the chain at a URL; raise `BadInput` if that is refused."""
    why = "the first server of the chain does not answer"
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    answers: asyncio.Queue[MoveReply] = asyncio.Queue()

    def receive(frames: Sequence[Frame], _source: str) -> None:
        for frame in frames:
            if isinstance(frame, MoveReply):
                answers.put_nowait(frame)

    async with (
        _first_station(url, within_s) as (transport, station),
        inbox(transport, "move", receive) as port,
    ):
        request = MoveRequest(number=platform.current().random_bits(48), topic=topic, to=to)
        while loop.time() < deadline_s:
            port.send(station, request)
            port.flush()
            await asyncio.sleep(0)  # It is sent before the name is given up.
            try:
                async with asyncio.timeout(AGAIN_S):
                    answer = await answers.get()
            except TimeoutError:
                continue
            if answer.moved:
                return
            if answer.refusal and not answer.again:
                raise BadInput(f"{topic!r} is not moved to {to!r}: {answer.refusal}")
            why = answer.refusal or answer.waits or why
            await asyncio.sleep(AGAIN_S)
    raise TransportError(f"{topic!r} has not moved to {to!r} within {within_s:g} s: {why}")


@asynccontextmanager
async def _first_station(url: str, within_s: float) -> AsyncIterator[tuple[FramedTransport, str]]:
    """Connect to the first station of the chain at a URL."""
    options = parse_url(url, expected=SERVED)
    if isinstance(options, MemoryOptions):
        raise BadInput(f"{url} is within one process; expected ensue://HOST:PORT or a broker")
    codec = Codec(orders.wire_frames())
    if not isinstance(options, TcpOptions):
        carrier = options.make()
        try:
            await carrier.start()
            transport = FramedTransport(carrier, codec, home=_nowhere, topic_of=topic_of)
            described = await discover(transport, options.url, within_s=within_s)
            yield transport, described.nodes[0][0]
        finally:
            await carrier.close()
        return
    tcp = TcpCarrier(options, client="move")
    try:
        welcome = await tcp.start_one()
        first = welcome.chain[0]
        if first.name != welcome.server:
            await tcp.close()
            host, port = parse_address(first.address, what="a server's address")
            tcp = TcpCarrier(msgspec.structs.replace(options, host=host, port=port), client="move")
            await tcp.start_one()
        yield FramedTransport(tcp, codec, home=_nowhere, topic_of=topic_of), first.name
    finally:
        await tcp.close()


def _nowhere(topic: str) -> str:
    raise AssertionError(f"a move has no home for {topic!r}")
