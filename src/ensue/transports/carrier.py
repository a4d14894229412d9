"""What carries bytes: named inboxes and topics, nothing more.

A carrier knows nothing of frames, order or logs. It takes bytes to a peer's inbox and to whoever has
joined a topic, as well as it can: a message may be lost, repeated or overtaken, never cut or changed.
`ensue.transports.framed.FramedTransport` puts frames on it. Each `scheme://` other than `memory://` is one module with
one carrier, so that whoever has read one has read all of them.

Everything here belongs to one event loop. `send` and `multicast` never wait: what can't go out at once
is kept up to `pending_bytes_max`, and beyond that dropped and counted, oldest kept first; whoever
sends repeats what matters.
"""

from collections.abc import Callable
from typing import Protocol

from ensue.transports.base import Capabilities

__all__ = ["Carrier", "Inbox"]

Inbox = Callable[[bytes], None]
"""Called with each message that arrives, whole. What it raises is a bug, not the peer's fault."""


class Carrier(Protocol):
    """Takes bytes to inboxes and topics."""

    name: str
    """The scheme, such as `nats://`, for messages to people."""
    capabilities: Capabilities
    on_reconnect: Callable[[], None] | None
    """Called after a lost connection is there again, everything that was open included."""
    dropped: int
    """Messages that were dropped because too much was pending."""

    async def start(self) -> None:
        """Connect; raise `TransportError` if nobody answers, saying who should and how to start it."""

    async def open(self, peer: str, receive: Inbox) -> None:
        """Take what is sent to a name; returns when nothing sent from now on is missed."""

    async def shut(self, peer: str) -> None:
        """Take nothing more for a name."""

    async def join(self, topic: str, receive: Inbox) -> None:
        """Take what is multicast to a topic; returns when nothing sent from now on is missed."""

    async def leave(self, topic: str) -> None:
        """Take nothing more of a topic."""

    def send(self, peer: str, data: bytes) -> None:
        """Send to a peer's inbox. Nobody there: the message is lost."""

    def multicast(self, topic: str, data: bytes) -> None:
        """Send to everybody who has joined a topic."""

    async def close(self) -> None:
        """Let out what is pending, for a moment, and disconnect."""
