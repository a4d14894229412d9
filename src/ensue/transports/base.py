"""What a transport is: it carries frames between named peers and events between topics, unordered.

A transport gives each node a port. A port sends frames to peers, carries out what a node asks of the
event notification service, and hands over what arrives. It has no ordering logic. What it can do is
said in its `Capabilities`; `refusal` compares them with what an order needs and names what is
missing, so that nothing degrades silently.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from ensue.order import Order, Total
from ensue.protocols.core import Attach, Broadcast, Detach, Frame, Multicast

__all__ = ["Capabilities", "Port", "Receiver", "Transport", "refusal"]

Receiver = Callable[[Sequence[Frame], str], None]
"""Called with what arrived together and whom it is from."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a transport can do."""

    orders: tuple[str, ...]
    """The orders whose protocols it runs."""
    fifo: bool
    """Frames between two peers keep their order and none is lost or repeated."""
    durable: bool
    """What it accepted survives a restart."""
    replay: bool
    """An event that was lost on its way can be had again from a slot on."""
    conditional: bool
    """The first event put into a slot keeps it, and later ones are refused."""
    multicast: bool = False
    """One message reaches everybody who joined a topic, however many they are."""
    message_bytes_max: int = 16 * 1024 * 1024
    """The largest message it carries."""


class Port(Protocol):
    """One node's end of a transport."""

    def send(self, peer: str, frame: Frame) -> None:
        """Send a frame to a peer."""

    def multicast(self, effect: Multicast) -> None:
        """Send a frame to everybody who listens to a topic."""

    def ask(self, effect: Broadcast | Attach | Detach) -> None:
        """Carry out what a node asks of the event notification service."""

    def flush(self) -> None:
        """Let everything go that was sent; called after commands and timers.

        After handing frames over, a transport lets the answers go by itself.
        """

    def close(self) -> None:
        """Hand nothing over any more."""


class Transport(Protocol):
    """Something that carries frames."""

    name: str
    capabilities: Capabilities
    lazy: bool
    """Whether what several commands cause within one turn of the event loop had better go out together."""

    def open(self, name: str, receiver: Receiver) -> Port:
        """Give a node its port."""


def refusal(order: Order | None, capabilities: Capabilities, transport: str) -> str | None:
    """Say by name why a transport can't carry an order; None if it can."""
    name = "none" if order is None else order.name
    if name not in capabilities.orders:
        carried = ", ".join(capabilities.orders)
        return f"{transport} does not carry {name} order; it carries: {carried}"
    if isinstance(order, Total) and order.time_to_live is None and not capabilities.replay:
        return (
            f"{transport} loses events and can't send them again, so {name} order would wait for "
            "ever: say how long to wait with Total(time_to_live=SECONDS)"
        )
    return None
