"""Registration with the registry beside the first station, which numbers clients.

For orders that clients in different processes keep among themselves.
"""

import asyncio
from collections.abc import Sequence

from ensue.core.errors import TransportError, refused_client
from ensue.protocols.interface import Frame
from ensue.protocols.membership.client import KnownMembers
from ensue.protocols.membership.frames import Deregister, Evicted, Members
from ensue.runtime.request import request
from ensue.transports.framed import FramedTransport

__all__ = ["register"]

REGISTER_S = 10.0
REGISTER_AGAIN_S = 0.5


async def register(
    transport: FramedTransport, *, name: str, registry: str, terms: str = ""
) -> KnownMembers:
    """Register an entered name with a registry; return the members.

    All members must have the same `terms`, a text.
    """
    members = KnownMembers(terms)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def receive(frames: Sequence[Frame], source: str) -> None:
        for frame in frames:
            if source != registry or done.done():
                return
            if isinstance(frame, Evicted):
                why = f"{registry} refused {name!r}: {frame.reason}"
                done.set_exception(refused_client(why, reason=frame.reason))
            elif isinstance(frame, Members):
                if members.take(frame):
                    done.set_result(None)
                else:
                    port.send(registry, members.question())

    port = transport.open(name, receive)
    answered = False
    try:
        await request(
            port,
            lambda: [(registry, members.question())],
            done,
            every_s=REGISTER_AGAIN_S,
            within_s=REGISTER_S,
        )
        answered = done.done()
    finally:
        if not answered:
            # It may be registered: others would wait for it until it expires. Also if this task is
            # cancelled when the answer has just arrived.
            port.send(registry, Deregister(epoch=members.epoch))
            transport.flush()
        port.close()
    if not done.done():
        station, _, order = registry.partition("/")
        raise TransportError(
            f"no answer from {station}, the registry of {order} order, within {REGISTER_S:g} s: "
            "check that it runs, in this version"
        )
    done.result()
    return members
