"""What all servers of a chain have to agree on (`ChainSettings`).

Stamps of a server that groups topics by two subscriptions and of one that groups them by one don't
mix. If some servers alone keep the order of publishers, none promises it. If they divide events by
content differently, a subscriber looks for them in the wrong topics; if only some are closed, they
drop requests that others pass on. Servers refuse each other, and clients refuse the chain, when
they learn of the difference.
"""

from collections.abc import Callable

import msgspec

from ensue.core.errors import RemoteProtocolError
from ensue.protocols.topic_log.log_identity import ChainSettings
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.discovery import Described, settings_of
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


def disagreement(one: str, settings: ChainSettings, other: str, others: ChainSettings) -> str:
    """Return why two servers can't be of one chain; empty: they can.

    Each is given by its name and its settings.
    """
    own, there = _named(settings), _named(others)
    found = next((name for name in own if own[name] != there[name]), None)
    if found is None:
        return ""
    return (
        f"server {one!r} has {found} = {own[found]}, and server {other!r} of the same chain has "
        f"{found} = {there[found]}: configure all servers of a chain alike, and start those that "
        "were wrong"
    )


def _named(settings: ChainSettings) -> dict[str, str]:
    """Return settings as a configuration file has them."""
    flags = {
        "causal": settings.groups == 1,
        "publisher_order": settings.publisher_order,
        "closed": settings.closed,
    }
    named = {name: str(value).lower() for name, value in flags.items()}
    return named | {"cells": f'"{settings.cells}"'}


def check_of_welcome(server: str, settings: ChainSettings) -> Callable[[Welcome], str]:
    """Return a function that compares a known server with one that sends a welcome."""

    def check(welcome: Welcome) -> str:
        config = described(welcome).config
        others = settings_of(config, closed=welcome.closed)
        return disagreement(server, settings, welcome.server, others)

    return check
