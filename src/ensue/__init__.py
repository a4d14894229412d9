"""Ordered publish/subscribe for Python.

Names are imported on first use: `ensue --help`, a Spark worker or a program that needs one error
class does not load the whole client. This module imports nothing, not even from the standard
library, so that the command line handles Ctrl-C before its first slow import.
"""

TYPE_CHECKING = False  # Type checkers know the name; importing `typing` would take time.
if TYPE_CHECKING:
    from ensue.client import Bus, ReceivedEvent, Subscription, connect
    from ensue.client.content.plan import PlannedTransaction
    from ensue.client.content.transaction import InvitedTransaction, Transaction
    from ensue.client.policies import Park, Parked, PerKey, Progress, Retry, Sequential, Stop
    from ensue.core.errors import (
        AccessDenied,
        BadInput,
        ConfigurationError,
        EnsueError,
        EventRefused,
        EventsInDoubt,
        EventVoided,
        FilterError,
        HandlerFailed,
        HandshakeFailed,
        InternalError,
        LimitReached,
        LocalProtocolError,
        LogLost,
        MissingExtra,
        PublishedInPart,
        PublishTimeout,
        RemoteProtocolError,
        SubscriptionLost,
        SubscriptionRefused,
        TransactionAborted,
        TransactionPending,
        TransportError,
        UnsupportedOrder,
    )
    from ensue.core.event import Event, Stamp
    from ensue.core.order import Causal, Deadline, Merged, Order, Total

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
    "EventsInDoubt",
    "FilterError",
    "HandlerFailed",
    "HandshakeFailed",
    "InternalError",
    "InvitedTransaction",
    "LimitReached",
    "LocalProtocolError",
    "LogLost",
    "Merged",
    "MissingExtra",
    "Order",
    "Park",
    "Parked",
    "PerKey",
    "PlannedTransaction",
    "Progress",
    "PublishTimeout",
    "PublishedInPart",
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
    "TransactionPending",
    "TransportError",
    "UnsupportedOrder",
    "connect",
]

__version__ = "0.1.0"

# From light to heavy: an error class is found before the client is imported.
_HOMES = (
    "ensue.core.errors",
    "ensue.core.event",
    "ensue.core.order",
    "ensue.client.policies",
    "ensue.client.content.transaction",
    "ensue.client.content.plan",
    "ensue.client",
)

if not TYPE_CHECKING:  # With a `__getattr__`, type checkers would accept any name.

    def __getattr__(name: str) -> object:
        if name in __all__:
            from importlib import import_module  # noqa: PLC0415 - see above

            for module in map(import_module, _HOMES):
                if name in module.__all__:
                    # Cached: Python calls `__getattr__` once for each name.
                    value = globals()[name] = getattr(module, name)
                    return value
        msg = f"module 'ensue' has no attribute {name!r}"
        raise AttributeError(msg)

    def __dir__() -> list[str]:
        return sorted([*__all__, "__version__"])
