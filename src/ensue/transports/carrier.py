"""Carriers of bytes: named inboxes and topics, nothing more.

A carrier knows nothing of frames, order or logs. It takes bytes to a peer's inbox, or to all
clients that have joined a topic, on a best-effort basis: a message may be lost, repeated or
overtaken, never cut or changed. `ensue.transports.framed.FramedTransport` puts frames on it. Each
`scheme://` other than `memory://` is one module with one carrier, and all have the same surface.

A carrier belongs to one event loop. `send` and `multicast` never wait: what can't go out at once is
kept up to `pending_bytes_max`; beyond, new messages are dropped and counted. Senders repeat what
matters.
"""

from collections.abc import Callable
from typing import Protocol

from ensue.transports.base import Capabilities

__all__ = ["Carrier", "Inbox"]

Inbox = Callable[[bytes], None]
"""Called with each complete message. What it raises is a bug, not the peer's fault."""


class Carrier(Protocol):
    """Takes bytes to inboxes and topics."""

    name: str
    """The scheme, such as `nats://`, for messages to people."""
    capabilities: Capabilities
    on_reconnect: Callable[[], None] | None
    """Called when a lost connection is back and all inboxes and topics are open again."""
    dropped: int
    """Messages that were dropped because too much was pending."""

    async def start(self) -> None:
        """Connect; raise `TransportError`, with how to start a server, if none answers."""

    async def open(self, peer: str, receive: Inbox) -> None:
        """Open an inbox; return when no later message to it is missed."""

    async def shut(self, peer: str) -> None:
        """Close an inbox."""

    async def join(self, topic: str, receive: Inbox) -> None:
        """Join a topic; return when no later message to it is missed."""

    async def leave(self, topic: str) -> None:
        """Leave a topic."""

    def send(self, peer: str, data: bytes) -> None:
        """Send to a peer's inbox. If it is not open, the message is lost."""

    def multicast(self, topic: str, data: bytes) -> None:
        """Send to all clients that have joined a topic."""

    async def close(self) -> None:
        """Flush for up to a second, and disconnect."""
