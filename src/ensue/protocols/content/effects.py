"""The effects of a node, collected until its driver drains them."""

from collections.abc import Sequence
from typing import Any

from ensue.protocols.interface import Effect, Frame, Notification, Persist, Send

__all__ = ["Effects"]


class Effects:
    """Effects in the order in which they were caused."""

    def __init__(self) -> None:
        self.pending: list[Effect] = []

    def send(self, peer: str, frame: Frame) -> None:
        """Send a frame to a peer."""
        self.pending.append(Send(peer, frame))

    def persist(self, key: str, value: bytes | None) -> None:
        """Write a record, or remove it."""
        self.pending.append(Persist(key, value))

    def notify(self, value: object, **row: Any) -> None:
        """Notify the application with a value, and the trace with a row."""
        self.pending.append(Notification(value, row or None))

    def drain(self) -> Sequence[Effect]:
        """Return the effects, and begin a new list."""
        effects, self.pending = self.pending, []
        return effects
