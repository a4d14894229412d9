"""The clients of each system: its own Python client, tuned as well as we can.

A sender takes events in lists and may write them together; a receiver records events in a tally.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol

from benchmarks.peers.tally import Tally

__all__ = ["CLIENTS", "Receiver", "Sender", "find_client"]


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


def find_client(name: str) -> tuple[SenderMaker, ReceiverMaker]:
    """Return factories of a sender and a receiver, from a URL and all topics."""
    module_name, sender, receiver = CLIENTS[name]
    module = import_module(f"benchmarks.peers.{module_name}")
    return getattr(module, sender), getattr(module, receiver)
