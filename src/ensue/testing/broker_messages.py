"""What simulated brokers and their clients send to each other, and how real brokers differ.

All simulated brokers speak one protocol: messages with a length before each. A `BrokerKind` says
what distinguishes a real broker from the others, as the modules of `ensue.transports.brokers` state
it.
"""

from typing import Literal

import msgspec

from ensue.transports.tcp.messages import PREFIX_BYTES, Framer

__all__ = [
    "KINDS",
    "Answer",
    "BrokerKind",
    "Delete",
    "FromBroker",
    "FromClient",
    "Hello",
    "Info",
    "Message",
    "Open",
    "Ping",
    "Pong",
    "Publish",
    "Splitter",
    "Subscribe",
    "Unsubscribe",
    "decode_from_broker",
    "decode_from_client",
    "encode",
]

MIB = 1024 * 1024
MESSAGE_BYTES_MAX = 64 * MIB
"""More than carriers allow."""


class BrokerKind(msgspec.Struct, frozen=True, kw_only=True):
    """What distinguishes one real broker from another."""

    scheme: str
    name: str
    """As `ensue.transports.peer_probe` names it."""
    port: int
    option: str
    """The option of its URL that makes it store, or confirm, messages."""
    probe_answer: bytes
    """What it answers to bytes that are not of its protocol."""
    message_bytes_max: int
    stored: tuple[str, ...] = ()
    """Kinds of places that it stores with the option: inboxes, topics."""
    stored_max: int = 100_000
    """Messages that a stream keeps; beyond that the oldest are dropped."""
    has_one_stream: bool = False
    """Whether one stream stores all places of a prefix, numbered; else each has its own, and
    positions are times of the broker's clock."""
    keeps_streams: bool = False
    """Whether streams survive the broker's process."""
    queue_bytes_max: int
    """How much it queues for a reader that is behind, …"""
    queue_messages_max: int = 1 << 62
    overflow: Literal["disconnect", "newest", "oldest"]
    """… and what it does beyond that: disconnect the reader, or drop one of its messages."""
    silent_heartbeats: float = 0.0
    """After how many heartbeats without a message it disconnects a client; 0: never."""
    connections: int = 1
    """How many connections a client has: 2 if it subscribes on a connection of its own."""
    in_flight_max: int = 1_000
    """How many messages a client sends before it waits for confirmations."""
    confirms: Literal["option", "always"] = "option"
    """When a client waits for confirmations."""


KINDS = {
    kind.scheme: kind
    for kind in (
        BrokerKind(
            scheme="nats",
            name="a NATS server",
            port=4222,
            option="jetstream",
            probe_answer=b"INFO {}\r\n",
            message_bytes_max=MIB,
            stored=("t",),
            has_one_stream=True,
            keeps_streams=True,
            queue_bytes_max=64 * MIB,
            overflow="disconnect",
        ),
        BrokerKind(
            scheme="redis",
            name="a Redis server",
            port=6379,
            option="streams",
            probe_answer=b"-ERR unknown command\r\n",
            message_bytes_max=8 * MIB,
            stored=("i", "t"),
            queue_bytes_max=32 * MIB,
            overflow="disconnect",
            connections=2,
            confirms="always",
        ),
        BrokerKind(
            scheme="mqtt",
            name="an MQTT broker",
            port=1883,
            option="qos",
            probe_answer=b"",
            message_bytes_max=256 * MIB,
            queue_bytes_max=256 * MIB,
            queue_messages_max=1_000,
            overflow="newest",
            silent_heartbeats=1.5,
            in_flight_max=20,
        ),
        BrokerKind(
            scheme="amqp",
            name="an AMQP broker",
            port=5672,
            option="confirms",
            probe_answer=b"AMQP\x00\x00\x09\x01",
            message_bytes_max=128 * MIB,
            queue_bytes_max=256 * MIB,
            overflow="oldest",
            silent_heartbeats=2.0,
        ),
    )
}
"""By scheme."""


class _Sent(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Any message."""


class Hello(_Sent, frozen=True):
    """A client of a kind of broker connects."""

    scheme: str
    heartbeat_s: float


class Info(_Sent, frozen=True):
    """The broker accepts a client."""

    message_bytes_max: int
    keeps_streams: bool


class Publish(_Sent, frozen=True):
    """A message for a place; answered if it has a number."""

    key: str
    data: bytes
    stream: str = ""
    """Where to store it; empty: nowhere."""
    creates: bool = True
    """Whether to create the stream if it is missing; else the message is lost."""
    number: int = 0


class Open(_Sent, frozen=True):
    """Create a stream unless it exists; the answer has its last position."""

    number: int
    stream: str


class Subscribe(_Sent, frozen=True):
    """Deliver the messages of a place, or those of a stream after a position."""

    number: int
    key: str
    stream: str = ""
    after: int = 0


class Unsubscribe(_Sent, frozen=True):
    """Deliver no more messages of a place."""

    number: int
    key: str


class Delete(_Sent, frozen=True):
    """Delete a stream."""

    number: int
    stream: str


class Ping(_Sent, frozen=True):
    """A question whether the broker is there."""


class Answer(_Sent, frozen=True):
    """A request was executed."""

    number: int
    position: int = 0


class Message(_Sent, frozen=True):
    """A message of a place; `position` is that in its stream."""

    key: str
    data: bytes
    position: int = 0


class Pong(_Sent, frozen=True):
    """The broker is there."""


FromClient = Hello | Publish | Open | Subscribe | Unsubscribe | Delete | Ping
FromBroker = Info | Answer | Message | Pong
decode_from_client = msgspec.msgpack.Decoder(FromClient).decode
decode_from_broker = msgspec.msgpack.Decoder(FromBroker).decode
_encoder = msgspec.msgpack.Encoder()


def encode(message: FromClient | FromBroker) -> bytes:
    """Return a message with its length before it."""
    body = _encoder.encode(message)
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


class Splitter(Framer):
    """Splits received bytes into messages."""

    def __init__(self) -> None:
        super().__init__(MESSAGE_BYTES_MAX)
