"""Carriers of bytes: named inboxes and topics, nothing more.

A carrier knows nothing of frames, order or logs. It sends bytes to a peer's inbox, or to all
clients that have joined a topic, on a best-effort basis: a message may be lost, repeated or
overtaken, never truncated or changed. `ensue.transports.framed.FramedTransport` sends frames
through it. Each URL scheme other than `memory://` has one carrier in one module.

A carrier belongs to one event loop. `send` and `multicast` never wait: messages that can't be sent
at once are queued, up to `pending_bytes_max`; beyond that, new messages are dropped and counted.
Protocols retransmit.
"""

from collections.abc import Callable
from typing import Protocol

from ensue.transports.base import Capabilities

__all__ = ["Carrier", "Inbox"]

Inbox = Callable[[bytes], None]
"""Called with each complete message. If it raises, that is a bug, not the peer's fault."""


class Carrier(Protocol):
    """A carrier of bytes to inboxes and topics."""

    name: str
    """The scheme, such as `nats://`, for errors and logs."""
    capabilities: Capabilities
    on_reconnect: Callable[[], None] | None
    """Called after a reconnect, when all inboxes and topics are open again."""
    dropped: int
    """Number of messages dropped because too many bytes were pending."""

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
        """Flush for up to a second, then disconnect."""
