"""The check that no other station on a broker uses this station's name.

Two stations with one name would both keep the log of the same topics, and neither would have all of
it. The system lets one process bind a port, but a broker lets any number use a name. So a station
queries the name a few times before it starts, and starts if there is no answer.

HAZARD: a paused or partitioned station does not answer, nor do two that start at the same time.
Have your service manager run one of each.
"""

import asyncio
from collections.abc import Sequence

from ensue.core.errors import ConfigurationError
from ensue.protocols.interface import Frame
from ensue.protocols.total.discovery import DISCOVERY_NAME, Described, Discover
from ensue.protocols.total.status import StatusReply, StatusRequest
from ensue.runtime.request import inbox, request
from ensue.transports.framed import FramedTransport

__all__ = ["check_unclaimed"]

TRIES = 4
TRY_S = 0.25


async def check_unclaimed(
    transport: FramedTransport, *, name: str, nodes: Sequence[str], url: str
) -> None:
    """Raise if a station of this name, or another chain, answers on the broker."""
    conflict: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def receive(frames: Sequence[Frame], _source: str) -> None:
        for frame in frames:
            if conflict.done():
                return
            if isinstance(frame, StatusReply):
                conflict.set_result(f"a station {name!r} already answers")
            elif isinstance(frame, Described):
                there = [each for each, _ in frame.nodes]
                if there != list(nodes):
                    conflict.set_result(
                        f"the chain that answers is {', '.join(there)}, and this station's is "
                        f"{', '.join(nodes)}"
                    )

    async with inbox(transport, "claim", receive) as port:
        await request(
            port,
            lambda: [(name, StatusRequest(number=1)), (DISCOVERY_NAME, Discover(number=1))],
            conflict,
            every_s=TRY_S,
            within_s=TRIES * TRY_S,
        )
    if conflict.done():
        raise ConfigurationError(
            f"on {url} {conflict.result()}: stop it, or use another bus with ?prefix=NAME"
        )
