"""What people give to a bus, checked before anything happens: refused in words, with `BadInput`."""

import inspect
import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from ensue.errors import BadInput, ConfigurationError, UnsupportedOrder
from ensue.order import ORDERS, Order, Total, spelled
from ensue.protocols.overlay.frames import IDENTIFIER_LENGTH_MAX
from ensue.runtime.names import check_name, check_text
from ensue.transports import Capabilities, refusal

__all__ = [
    "PENDING_MAX",
    "Acknowledge",
    "Payload",
    "Start",
    "check_accept_loss",
    "check_acknowledge",
    "check_broker_name",
    "check_durable",
    "check_handler",
    "check_headers",
    "check_key",
    "check_order",
    "check_payload",
    "check_pending_max",
    "check_resumed",
    "check_seconds",
    "check_size",
    "check_start",
    "check_token",
    "check_topics",
]

PENDING_MAX = 10_000
"""Events that a subscription may have unhandled, unless it says otherwise."""

Acknowledge = Literal["auto", "manual"]
Start = Literal["earliest", "latest"] | int
Payload = bytes | bytearray | memoryview
_WILDCARD = re.compile(r"(?:(?<=[./])|^)(?:\*\*?|[>#+])(?=[./]|$)")
"""A level that is nothing but a wildcard of NATS, MQTT, AMQP or globs; in `C#` and `a*b` it is a character like any other."""


def check_topics(
    topics: tuple[str, ...], *, resumed: bool = False, wildcards: bool = False
) -> None:
    """Refuse what can't be a topic; there may be none where a subscription is resumed.

    Wildcards of other systems are refused, or they would be taken literally, unless `wildcards` are
    allowed: for topics that an earlier version let in, and that are to be left.
    """
    if not topics and not resumed:
        raise BadInput("name at least one topic")
    for topic in topics:
        check_text(topic, "a topic")
        found = None if wildcards else _WILDCARD.search(topic)
        if found is not None:
            raise BadInput(
                f"{topic!r} holds the wildcard {found[0]!r}, and topics have none: name each topic, "
                "or publish and subscribe by content"
            )


def check_resumed(name: str, had: tuple[str, ...], topics: tuple[str, ...]) -> None:
    """Refuse to enter a subscription so that it would leave topics: it would lose its place there."""
    if not had and not topics:
        raise BadInput(f"the durable subscription {name!r} is new: name at least one topic")
    if topics and not set(had) <= set(topics):
        raise BadInput(
            f"the durable subscription {name!r} is to {', '.join(map(repr, sorted(had)))}, and was "
            f"entered with {', '.join(map(repr, topics))}: it would lose its place. Enter it with all "
            "its topics or with none, and then unsubscribe; or choose another name"
        )


def check_order(order: Order | None, capabilities: Capabilities, transport: str) -> None:
    """Refuse what is no order, and by name an order that a transport can't carry."""
    if order is not None and (not isinstance(order, Order) or type(order) is Order):
        raise BadInput(_no_order(order))
    why = refusal(order, capabilities, transport)
    if why is not None:
        name = "none" if order is None else order.name
        raise UnsupportedOrder(why, order=name, transport=transport)


def _no_order(given: object) -> str:
    all_of_them = ", ".join(map(spelled, ORDERS))
    what = f"order is one of {all_of_them}, or None for none at all"
    if isinstance(given, type):
        fix = f": write {spelled(given)}" if given in ORDERS else ""
        return f"{what}; not the class {given.__name__}{fix}"
    named = str(given).strip().lower()
    fix = "".join(f": write {spelled(each)}" for each in ORDERS if each.name == named)
    return f"{what}; not {given!r}{fix}"


def check_durable(
    name: str | None, order: Order | None, capabilities: Capabilities, transport: str
) -> None:
    """Refuse a durable subscription where nothing is kept, or with nothing to keep it under."""
    if not capabilities.durable:
        raise ConfigurationError(f"{transport} keeps nothing: a subscription there is not durable")
    if order is None:
        raise ConfigurationError(
            "a durable subscription needs an order: there is no place to go on at"
        )
    if not isinstance(order, Total):
        raise ConfigurationError(
            f"nothing is kept in {order.name} order: a subscription in it is not durable"
        )
    if name is None:
        raise ConfigurationError("a durable subscription needs a name to be found by: name='…'")
    check_name(name)


def check_accept_loss(accept_loss: object, *, durable: bool) -> None:
    """Refuse what is no yes or no, and a yes where nothing is kept that could be lost."""
    if not isinstance(accept_loss, bool):
        raise BadInput(f"accept_loss must be True or False, got {accept_loss!r}")
    if accept_loss and not durable:
        raise ConfigurationError(
            "accept_loss is for durable subscriptions: others keep nothing at the server"
        )


def check_start(
    start: Start, order: Order | None, capabilities: Capabilities, transport: str
) -> int | None:
    """Return the place to start at; None: with what is new."""
    if start == "latest":
        return None
    if start != "earliest" and (isinstance(start, bool) or not isinstance(start, int) or start < 1):
        raise BadInput(
            f"a subscription starts at 'earliest', 'latest' or a place in the log, counted from 1; "
            f"not {start!r}"
        )
    if not isinstance(order, Total) or not capabilities.durable:
        order_name = "no" if order is None else order.name
        what = transport if not capabilities.durable else f"{transport} in {order_name} order"
        raise ConfigurationError(
            f"{what} keeps no log to start from: a subscription there starts with what is new"
        )
    return 1 if start == "earliest" else start


def check_payload(payload: Payload, bytes_max: int) -> bytes:
    """Return a payload as bytes that nobody can change any more."""
    if payload is None:
        raise BadInput("a payload is bytes, not None: give b'' if there is nothing to say")
    if not isinstance(payload, Payload):
        raise BadInput(
            f"a payload is bytes, not {type(payload).__name__}: encode it first, "
            "for instance with text.encode()"
        )
    fixed = payload if isinstance(payload, bytes) else bytes(payload)
    if len(fixed) > bytes_max:
        raise BadInput(f"a payload has at most {bytes_max} bytes here, this one {len(fixed)}")
    return fixed


def check_size(payload: bytes, key: bytes | None, headers: dict[str, str], bytes_max: int) -> None:
    """Refuse an event that is too large with its key and headers."""
    size = len(payload) + len(key or b"")
    size += sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
    if size > bytes_max:
        raise BadInput(
            f"an event has at most {bytes_max} bytes here, this one {size} with key and headers"
        )


def check_key(key: bytes | None) -> None:
    """Refuse what can't be a key."""
    if key is not None and not isinstance(key, bytes):
        raise BadInput(f"a key is bytes or None, not {type(key).__name__}")


def check_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return a copy of headers: the caller may go on using its own."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise BadInput(f"headers are a mapping of str to str, not {type(headers).__name__}")
    copy = dict(headers)
    for name, value in copy.items():
        for each in (name, value):
            if not isinstance(each, str):
                raise BadInput(
                    f"headers are a mapping of str to str; {name!r}: {value!r} holds "
                    f"{type(each).__name__}"
                )
            try:
                each.encode()
            except UnicodeEncodeError:
                raise BadInput(
                    f"headers must be text that UTF-8 can carry; {each[:20]!a} holds half a "
                    "surrogate pair"
                ) from None
    return copy


def check_broker_name(name: object, given_by: str) -> None:
    """Refuse what brokers can't have called an advertisement or a subscription; `given_by` says what tells."""
    if not isinstance(name, str) or not name or len(name) > IDENTIFIER_LENGTH_MAX:
        raise BadInput(f"give the name that {given_by} returned, not {name!r:.100}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadInput(f"give the name that {given_by} returned, not {name!a:.100}") from None


def check_token(token: Mapping[str, int]) -> None:
    """Refuse what no bus can have given for a token."""
    if not isinstance(token, Mapping) or not all(
        isinstance(name, str) and type(value) is int for name, value in token.items()
    ):
        raise BadInput(
            f"a token is what bus.token() returned, names and whole numbers; not {token!r}"
        )


def check_seconds(seconds: float, what: str, *, zero: bool = False) -> None:
    """Refuse what can't be a time to wait."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not math.isfinite(seconds) or seconds < 0 or (not seconds and not zero):
        least = "0 or more" if zero else "above 0"
        raise BadInput(f"{what} must be a finite number of seconds, {least}, got {seconds!r}")


def check_pending_max(pending_max: int) -> None:
    """Refuse what can't be a number of events."""
    if isinstance(pending_max, bool) or not isinstance(pending_max, int):
        raise BadInput(f"pending_max is a whole number, not {pending_max!r}")
    if pending_max < 1:
        raise BadInput(f"pending_max must be at least 1, not {pending_max}")


def check_acknowledge(acknowledge: Acknowledge) -> None:
    """Refuse what is no way of acknowledging."""
    if acknowledge not in ("auto", "manual"):
        raise BadInput(f"acknowledge must be 'auto' or 'manual', not {acknowledge!r}")


def check_handler(handler: object, what: str, argument: str) -> None:
    """Refuse what can't be awaited once it was called, as far as that can be told before."""
    if not callable(handler):
        raise BadInput(f"{what} is an async function of {argument}, not {handler!r}")
    inner: object = handler
    while isinstance(inner, partial):
        inner = inner.func
    if not _may_be_async(inner):
        name = getattr(inner, "__name__", type(inner).__name__)
        raise BadInput(
            f"{what} is an async function of {argument}, and {name} is a plain one: "
            "make it with `async def`"
        )


def _may_be_async(function: Any) -> bool:
    if not inspect.isroutine(function):
        function = type(function).__call__
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        return True
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        return True  # Nothing is known of it.
    # One that says what it returns, and one that can't be `async def`, may pass on what another returns.
    returns = getattr(function, "__annotations__", {}).get("return")
    return function.__name__ == "<lambda>" or returns not in (None, "None")
