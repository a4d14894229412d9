"""Look, before a station answers under its name on a broker, whether somebody else does already.

Two stations with one name would both keep the log of the same topics, and neither would have all of it. A
port can be had once; a name on a broker can't, so whoever starts asks, a few times, and goes on if
nobody answers.

HAZARD: one that is paused or cut off does not answer, and two that start at the same moment don't
either. Have whatever starts your services run one of each.
"""

import asyncio
from collections.abc import Sequence
from secrets import token_hex

from ensue.errors import ConfigurationError
from ensue.protocols.core import Frame
from ensue.protocols.guide import GUIDE, Described, Discover
from ensue.protocols.looking import Look, Seen
from ensue.protocols.station import EPHEMERAL
from ensue.transports.framed import FramedTransport

__all__ = ["check_unclaimed"]

TRIES = 4
TRY_S = 0.25


async def check_unclaimed(
    transport: FramedTransport, *, name: str, nodes: Sequence[str], url: str
) -> None:
    """Refuse if a station of this name answers, or if those who do make another chain."""
    loop = asyncio.get_running_loop()
    wrong: asyncio.Future[str] = loop.create_future()
    own = f"claim{EPHEMERAL}{token_hex(6)}"

    def receive(frames: Sequence[Frame], _source: str) -> None:
        for frame in frames:
            if wrong.done():
                return
            if isinstance(frame, Seen):
                wrong.set_result(f"a station {name!r} already answers")
            elif isinstance(frame, Described):
                there = [each for each, _ in frame.nodes]
                if there != list(nodes):
                    wrong.set_result(
                        f"the chain that answers is {', '.join(there)}, and this station's is "
                        f"{', '.join(nodes)}"
                    )

    await transport.enter(own)
    port = transport.open(own, receive)
    try:
        for _ in range(TRIES):
            port.send(name, Look(number=1))
            port.send(GUIDE, Discover(number=1))
            port.flush()
            if (await asyncio.wait((wrong,), timeout=TRY_S))[0]:
                break
    finally:
        port.close()
        await transport.exit(own)
    if wrong.done():
        raise ConfigurationError(
            f"on {url} {wrong.result()}: stop it, or make this another bus with ?prefix=NAME"
        )
