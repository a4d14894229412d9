"""The clients of each system: its own Python client, tuned as well as we can.

A sender takes events in lists and may write them together; a receiver records events in a tally.
"""

from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import Protocol, runtime_checkable

from benchmarks.peers.tally import Tally

__all__ = ["CLIENTS", "RECEIPTS", "AwaitedSender", "Lane", "Receiver", "Sender", "find_client"]

Lane = Callable[[str, bytes], Awaitable[object]]
"""Publishes one event, and returns when its receipt has arrived."""


class Sender(Protocol):
    """One publisher."""

    async def open(self) -> None:
        """Connect."""

    async def send(self, batch: Sequence[tuple[str, bytes]]) -> None:
        """Publish events in order."""

    async def settle(self) -> None:
        """Return when all events are acknowledged, as far as the system can report it."""

    async def close(self) -> None:
        """Disconnect."""


@runtime_checkable
class AwaitedSender(Sender, Protocol):
    """One publisher that can wait for the receipt of each event."""

    async def lanes(self, count: int) -> Sequence[Lane]:
        """Return a lane for each of so many tasks."""


class Receiver(Protocol):
    """One subscriber of all topics."""

    async def open(self, tally: Tally) -> None:
        """Connect; return when every later event will arrive."""

    async def close(self) -> None:
        """Disconnect."""


SenderMaker = Callable[[str, Sequence[str]], Sender]
ReceiverMaker = Callable[[str, Sequence[str]], Receiver]
CLIENTS = {
    "ensue": ("with_ensue", "EnsueSender", "EnsueReceiver"),
    "hub": ("hub", "HubSender", "HubReceiver"),
    "jetstream": ("with_nats", "JetStreamSender", "JetStreamReceiver"),
    "jetstream-one": ("with_nats", "JetStreamSender", "OneJetStreamReceiver"),
    "nats": ("with_nats", "NatsSender", "NatsReceiver"),
    "pubsub": ("with_redis", "PubSubSender", "PubSubReceiver"),
    "redis": ("with_redis", "RedisSender", "RedisReceiver"),
    "redis-one": ("with_redis", "OneRedisSender", "OneRedisReceiver"),
}
"""By name: the module, the sender and the receiver. Imported on use."""
RECEIPTS = frozenset({"ensue", "jetstream", "jetstream-one", "redis", "redis-one"})
"""Those that acknowledge each event: their senders are `AwaitedSender`s."""


def find_client(name: str) -> tuple[SenderMaker, ReceiverMaker]:
    """Return factories of a sender and a receiver, from a URL and all topics."""
    module_name, sender, receiver = CLIENTS[name]
    module = import_module(f"benchmarks.peers.{module_name}")
    return getattr(module, sender), getattr(module, receiver)
