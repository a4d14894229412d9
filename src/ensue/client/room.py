"""Publishers wait for readers who can't keep up, where both are in one process."""

import asyncio
import logging

from ensue.errors import LocalProtocolError
from ensue.runtime.hub import Hub

__all__ = ["wait_for_room"]

PATIENCE_S = 5.0
"""A wait longer than this is logged, and again after as long."""

_log = logging.getLogger("ensue")


async def wait_for_room(hub: Hub, topic: str, ended: "asyncio.Future[None]") -> None:
    """Wait until no subscription to a topic lacks room; `ended` is done when the bus is closed."""
    began_s = asyncio.get_running_loop().time()
    patience_s = PATIENCE_S
    while (slow := hub.blocker(topic)) is not None:
        left_s = began_s + patience_s - asyncio.get_running_loop().time()
        room = asyncio.ensure_future(slow.room.wait())
        try:
            done, _ = await asyncio.wait(
                (room, ended),
                timeout=max(0.0, left_s),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            room.cancel()
        if ended.done():
            raise LocalProtocolError(
                "the bus was closed while this publish waited for room: nothing was published"
            )
        if not done:
            _log.warning(
                "publishing on %r has waited %g s: subscription %r has no room "
                "(pending_max); read it faster, or give it more",
                topic,
                patience_s,
                slow.name,
            )
            patience_s += PATIENCE_S
