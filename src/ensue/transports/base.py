"""The interface of transports: they carry frames between named peers, unordered.

A transport gives each node a port. A port sends frames to peers, sends a node's requests to topic
logs, and delivers received frames to the node. It has no ordering logic. Each order compares the
`Capabilities` of a transport with its needs and refuses by name what is missing
(`ensue.orders.Guarantee.refusal`), so that nothing degrades silently.
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
    """Frames between two peers keep their order, and none is lost or repeated."""
    durable: bool
    """Accepted events survive a restart."""
    replay: bool
    """Lost events can be read again, from a slot on."""
    conditional: bool
    """The first event put into a slot keeps it, and later ones are refused."""
    in_process: bool = False
    """All nodes are in one process, so that no order needs the support of servers."""
    multicast: bool = False
    """One message reaches all clients that joined a topic."""
    message_bytes_max: int = 16 * 1024 * 1024
    """Maximum bytes of a message."""


class Port(Protocol):
    """One node's end of a transport."""

    def send(self, peer: str, frame: Frame) -> None:
        """Send a frame to a peer."""

    def multicast(self, effect: Multicast) -> None:
        """Send a frame to all listeners of a topic."""

    def ask(self, effect: Broadcast | Attach | Detach, request: Frame) -> None:
        """Send a request to a topic's log; `request` is the frame of the effect."""

    def flush(self) -> None:
        """Send queued frames; called after commands and timers.

        After delivering frames to a node, a transport sends the node's answers by itself.
        """

    def close(self) -> None:
        """Deliver nothing to the node any more."""


class Transport(Protocol):
    """A carrier of frames between nodes."""

    name: str
    capabilities: Capabilities
    lazy: bool
    """Whether it sends the effects of all commands of one event loop turn together."""

    def open(self, name: str, receiver: Receiver) -> Port:
        """Give a node its port."""
