"""Ordered publish/subscribe for Python."""

from ensue.client import Bus, ReceivedEvent, Subscription, connect
from ensue.client.policies import Park, Parked, PerKey, Progress, Retry, Sequential, Stop
from ensue.client.transaction import InvitedTransaction, Transaction
from ensue.errors import (
    AccessDenied,
    BadInput,
    ConfigurationError,
    EnsueError,
    EventRefused,
    EventVoided,
    FilterError,
    HandlerFailed,
    InternalError,
    LimitReached,
    LocalProtocolError,
    MissingExtra,
    RemoteProtocolError,
    SubscriptionLost,
    SubscriptionRefused,
    TransactionAborted,
    TransportError,
    UnsupportedOrder,
)
from ensue.event import Event, Stamp
from ensue.order import Causal, Deadline, Merged, Order, Total

__all__ = [
    "AccessDenied",
    "BadInput",
    "Bus",
    "Causal",
    "ConfigurationError",
    "Deadline",
    "EnsueError",
    "Event",
    "EventRefused",
    "EventVoided",
    "FilterError",
    "HandlerFailed",
    "InternalError",
    "InvitedTransaction",
    "LimitReached",
    "LocalProtocolError",
    "Merged",
    "MissingExtra",
    "Order",
    "Park",
    "Parked",
    "PerKey",
    "Progress",
    "ReceivedEvent",
    "RemoteProtocolError",
    "Retry",
    "Sequential",
    "Stamp",
    "Stop",
    "Subscription",
    "SubscriptionLost",
    "SubscriptionRefused",
    "Total",
    "Transaction",
    "TransactionAborted",
    "TransportError",
    "UnsupportedOrder",
    "connect",
]

__version__ = "0.1.0"
