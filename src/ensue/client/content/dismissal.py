"""Ending a durable subscription by content without reading it.

A reader ends its own by `await subscription.forget()`. This is for the others: those that no
program reads any more, whose filter is not known, or whose user is gone.
"""

from typing import TYPE_CHECKING

from ensue.client.content.error_text import in_words
from ensue.client.content.session import ContentSession
from ensue.client.validation import check_durable_name
from ensue.core.errors import BadInput, LocalProtocolError

if TYPE_CHECKING:
    from ensue.client.bus import Bus

__all__ = ["forget_durable"]


async def forget_durable(bus: "Bus", name: str) -> None:
    """End a durable subscription by content, with its waiting events, whatever client reads it.

    Raises `BadInput` if there is none of that name, or if it belongs to another user: users who
    may publish and subscribe on `*` may end any.
    """
    check_durable_name(name)
    hub = bus._hub  # noqa: SLF001 - a part of the bus, as this is
    if hub is None:
        raise LocalProtocolError("the bus is not open: use it inside `async with connect(…)`")
    session = ContentSession(hub, hub.unique("operator"), durable=name)
    try:
        await session.open()
        answer = await session.request(lambda client, now: client.dismiss(name, now_ns=now))
    finally:
        session.close()
    if answer.refused:
        raise BadInput(f"it can't be forgotten: {in_words(answer.refused)}")
