"""What all servers of a chain have to agree on: whether its total order is causal.

Stamps of a server that groups topics by two subscriptions and of one that groups them by one don't
mix. Servers refuse each other, and clients refuse the chain, when they learn of the difference.
"""

from collections.abc import Callable

import msgspec

from ensue.core.errors import RemoteProtocolError
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.discovery import Described
from ensue.transports.tcp.messages import Welcome

__all__ = ["check_of_welcome", "described", "disagreement"]


def described(welcome: Welcome) -> Described:
    """Return the chain that a server's welcome describes."""
    try:
        config = msgspec.msgpack.decode(welcome.config, type=SequencerConfig)
    except (msgspec.DecodeError, ValueError) as error:
        raise RemoteProtocolError(
            f"the configuration of the chain can't be read: {error}", peer=welcome.server
        ) from error
    return Described(
        number=0,
        nodes=tuple((member.name, member.topics) for member in welcome.chain),
        closed=welcome.closed,
        config=config,
        moves=welcome.moves,
    )


def disagreement(one: str, groups: int, other: str, other_groups: int) -> str:
    """Return why two servers can't be of one chain; empty: they can.

    Each is given by its name and by how many subscriptions order topics together there.
    """
    if groups == other_groups:
        return ""
    causal, other_causal = (str(each == 1).lower() for each in (groups, other_groups))
    return (
        f"server {one!r} has causal = {causal}, and server {other!r} of the same chain has causal "
        f"= {other_causal}: configure all servers of a chain alike, and start those that were wrong"
    )


def check_of_welcome(server: str, groups: int) -> Callable[[Welcome], str]:
    """Return a function that compares a known server with one that sends a welcome."""
    return lambda welcome: disagreement(
        server, groups, welcome.server, described(welcome).config.groups
    )
