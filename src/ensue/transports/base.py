"""The interface of transports: they carry frames between named peers, unordered.

A transport gives each node a port. A port sends frames to peers, carries out what a node asks of
the event notification service, and hands over what arrives. It has no ordering logic. Its
`Capabilities` say what it can do; each order compares them with what it needs and names what is
missing (`ensue.orders.Guarantee.refusal`), so that nothing degrades silently.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from ensue.protocols.interface import Attach, Broadcast, Detach, Frame, Multicast

__all__ = ["Capabilities", "Port", "Receiver", "Transport"]

Receiver = Callable[[Sequence[Frame], str], None]
"""Called with frames that arrived together, and their source."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a transport can do."""

    fifo: bool
    """Frames between two peers keep their order and none is lost or repeated."""
    durable: bool
    """What it accepted survives a restart."""
    replay: bool
    """An event that was lost on its way can be had again from a slot on."""
    conditional: bool
    """The first event put into a slot keeps it, and later ones are refused."""
    in_process: bool = False
    """All nodes are in one process, so that an order needs no support of servers."""
    multicast: bool = False
    """One message reaches all clients that joined a topic, however many."""
    message_bytes_max: int = 16 * 1024 * 1024
    """The largest message it carries."""


class Port(Protocol):
    """One node's end of a transport."""

    def send(self, peer: str, frame: Frame) -> None:
        """Send a frame to a peer."""

    def multicast(self, effect: Multicast) -> None:
        """Send a frame to all listeners of a topic."""

    def ask(self, effect: Broadcast | Attach | Detach, request: Frame) -> None:
        """Send what a node asks of a topic's log; `request` is the frame that says it."""

    def flush(self) -> None:
        """Send what is queued; called after commands and timers.

        After handing frames over, a transport sends the answers by itself.
        """

    def close(self) -> None:
        """Hand nothing over any more."""


class Transport(Protocol):
    """Carries frames between nodes."""

    name: str
    capabilities: Capabilities
    lazy: bool
    """Whether the effects of several commands in one turn of the event loop go out together."""

    def open(self, name: str, receiver: Receiver) -> Port:
        """Give a node its port."""
