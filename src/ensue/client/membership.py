"""Membership of a bus's node: its wait until it can take commands."""

import asyncio

from ensue.core.errors import TransportError
from ensue.orders import PublisherNode
from ensue.runtime.driver import Driver
from ensue.runtime.hub_memory import Hub

__all__ = ["AGREE_S", "settle_in"]

AGREE_S = 10.0
"""How long a server may take to answer with its terms of merged order."""


async def settle_in(
    resumed: "asyncio.Future[None]", hub: Hub, driver: Driver[PublisherNode]
) -> None:
    """Wait until a node is a member, or has agreed on the terms of merged order."""
    try:
        async with asyncio.timeout(AGREE_S if hub.fanouts else None):
            await resumed
    except BaseException as error:
        if not driver.closed:
            # Otherwise other nodes wait for it until it expires.
            driver.command(lambda node, _now: node.say_goodbye())
            hub.close_client(driver)
        if isinstance(error, TimeoutError):
            raise TransportError(
                f"{hub.server} did not answer within {AGREE_S:g} s with its terms of merged "
                "order: check that it has the version of this client"
            ) from None
        raise
