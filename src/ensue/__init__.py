"""Ordered publish/subscribe for Python."""

from ensue.client import Bus, ReceivedEvent, Subscription, connect
from ensue.errors import (
    BadInput,
    ConfigurationError,
    EnsueError,
    EventRefused,
    EventVoided,
    LimitReached,
    LocalProtocolError,
    MissingExtra,
    RemoteProtocolError,
    SubscriptionRefused,
    TransportError,
    UnsupportedOrder,
)
from ensue.event import Event, Stamp
from ensue.order import Causal, Deadline, Merged, Order, Total

__all__ = [
    "BadInput",
    "Bus",
    "Causal",
    "ConfigurationError",
    "Deadline",
    "EnsueError",
    "Event",
    "EventRefused",
    "EventVoided",
    "LimitReached",
    "LocalProtocolError",
    "Merged",
    "MissingExtra",
    "Order",
    "ReceivedEvent",
    "RemoteProtocolError",
    "Stamp",
    "Subscription",
    "SubscriptionRefused",
    "Total",
    "TransportError",
    "UnsupportedOrder",
    "connect",
]

__version__ = "0.1.0"
