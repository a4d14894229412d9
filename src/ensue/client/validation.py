"""Checks of arguments: each raises an error that names the fix."""

import inspect
import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from ensue import orders
from ensue.core.errors import BadInput, ConfigurationError, UnsupportedOrder
from ensue.core.order import ORDERS, Order, spelled, written
from ensue.protocols.content.cells import is_cell
from ensue.protocols.content.frames import IDENTIFIER_LENGTH_MAX
from ensue.runtime.names import check_name, check_text
from ensue.transports import Capabilities

__all__ = [
    "PENDING_MAX",
    "Acknowledge",
    "Payload",
    "Start",
    "check_accept_loss",
    "check_acknowledge",
    "check_broker_name",
    "check_by_content",
    "check_content_event",
    "check_count",
    "check_durable",
    "check_durable_name",
    "check_handler",
    "check_headers",
    "check_key",
    "check_order",
    "check_pair",
    "check_payload",
    "check_pending_max",
    "check_record",
    "check_resumed",
    "check_seconds",
    "check_size",
    "check_start",
    "check_token",
    "check_topic_event",
    "check_topics",
]

PENDING_MAX = 10_000
"""Events that a subscription may have unhandled, by default."""

Acknowledge = Literal["auto", "manual"]
Start = Literal["earliest", "latest"] | int
Payload = bytes | bytearray | memoryview
_WILDCARD = re.compile(r"(?:(?<=[./])|^)(?:\*\*?|[>#+])(?=[./]|$)")
"""A level that is only a wildcard of NATS, MQTT, AMQP or globs; `C#` and `a*b` are no wildcards."""


def check_topics(
    topics: tuple[str, ...],
    *,
    resumed: bool = False,
    wildcards: bool = False,
    cells: bool = False,
) -> None:
    """Refuse invalid topics, and no topics unless a subscription is resumed.

    Wildcards of other systems are refused: they would be taken literally. `wildcards` allows them,
    to leave topics that an earlier version accepted. `cells` allows those of events by content.
    """
    if not topics and not resumed:
        raise BadInput("name at least one topic")
    for topic in topics:
        check_text(topic, "a topic")
        if is_cell(topic) and not cells:
            raise BadInput(
                f"topics that begin with {topic[: topic.index(':') + 1]!r} are for events by "
                f"content, got {topic!r}: publish attributes, and subscribe with where=…"
            )
        found = None if wildcards else _WILDCARD.search(topic)
        if found is not None:
            raise BadInput(
                f"{topic!r} has the wildcard {found[0]!r}, which topics can't have: name each "
                "topic, or publish and subscribe by content"
            )


def check_resumed(name: str, had: tuple[str, ...], topics: tuple[str, ...]) -> None:
    """Refuse to resume a subscription with fewer topics: it would lose its position there."""
    if any(map(is_cell, had)) and not set(had) <= set(topics):
        raise BadInput(
            f"the durable subscription {name!r} is by content, and was entered with another filter "
            "or none, or the servers have other cells now: enter it with its where=… and order=…, "
            "or choose another name"
        )
    if not had and not topics:
        raise BadInput(f"the durable subscription {name!r} is new: name at least one topic")
    if topics and not set(had) <= set(topics):
        raise BadInput(
            f"the durable subscription {name!r} is to {', '.join(map(repr, sorted(had)))}, and was "
            f"entered with {', '.join(map(repr, topics))}: it would lose its place; enter it with "
            "all its topics or none, then unsubscribe, or choose another name"
        )


def check_order(order: Order | None, capabilities: Capabilities, transport: str) -> None:
    """Refuse a value that is no order, and an order that a transport can't carry."""
    if order is not None and (not isinstance(order, Order) or type(order) is Order):
        raise BadInput(_no_order(order))
    if order is not None and order.name not in orders.offered():
        carried = ", ".join(orders.offered())
        why: str | None = (
            f"{transport} does not carry {order.name} order, which is not registered: call "
            f"ensue.orders.register first, or use one of {carried}"
        )
    else:
        why = orders.of(order).refusal(order, capabilities, transport)
    if why is not None:
        name = "none" if order is None else order.name
        raise UnsupportedOrder(why, order=name, transport=transport)


def _no_order(given: object) -> str:
    all_of_them = ", ".join(map(spelled, ORDERS))
    what = f"order must be one of {all_of_them}, or None for no order"
    if isinstance(given, type):
        fix = f": write {spelled(given)}" if given in ORDERS else ""
        return f"{what}, got the class {given.__name__}{fix}"
    named = str(given).strip().lower()
    fix = "".join(f": write {spelled(each)}" for each in ORDERS if each.name == named)
    return f"{what}, got {given!r}{fix}"


def check_pair(publishes: Order | None, wanted: Order | None, transport: str) -> None:
    """Refuse a subscription in another order than its bus publishes in."""
    guarantee = orders.of(publishes)
    if wanted is None:
        why = guarantee.unordered_refusal(transport)
    elif orders.of(wanted) is guarantee:
        why = guarantee.disagreement(publishes, wanted)
    else:
        published = "with no order" if publishes is None else f"in {publishes.name} order"
        why = (
            f"this bus publishes {published}, so none of its events has {wanted.name} order: "
            f"leave order=… out, or use a bus of connect(…, order={written(wanted)})"
        )
    if why is not None:
        name = Order.name if wanted is None else wanted.name
        raise UnsupportedOrder(why, order=name, transport=transport)


def check_durable(
    name: str | None, order: Order | None, capabilities: Capabilities, transport: str
) -> None:
    """Refuse a durable subscription without a name, or without a server that stores it."""
    if not capabilities.durable:
        raise ConfigurationError(
            f"{transport} keeps no positions: use ensue:// for durable subscriptions"
        )
    if order is None:
        raise ConfigurationError(
            "a durable subscription needs an order: without one it has no position to resume at"
        )
    if not orders.of(order).keeps_log:
        raise ConfigurationError(
            f"no positions are kept in {order.name} order: leave durable=True out"
        )
    check_durable_name(name)


def check_durable_name(name: str | None) -> None:
    """Refuse a durable subscription without a valid name."""
    if name is None:
        raise ConfigurationError("a durable subscription needs a name to be found by: name='…'")
    check_name(name)


def check_accept_loss(accept_loss: object, *, durable: bool) -> None:
    """Refuse a value that is no bool, and True for a subscription that is not durable."""
    if not isinstance(accept_loss, bool):
        raise BadInput(f"accept_loss must be True or False, got {accept_loss!r}")
    if accept_loss and not durable:
        raise ConfigurationError(
            "accept_loss is for durable subscriptions: others keep nothing at the server"
        )


def check_start(
    start: Start, order: Order | None, capabilities: Capabilities, transport: str
) -> int | None:
    """Return the place to start at; None: with new events."""
    if start == "latest":
        return None
    if start != "earliest" and (isinstance(start, bool) or not isinstance(start, int) or start < 1):
        raise BadInput(
            f"start must be 'earliest', 'latest' or a place in the log, counted from 1, "
            f"got {start!r}"
        )
    if not orders.of(order).keeps_log or not capabilities.durable:
        order_name = "no" if order is None else order.name
        what = transport if not capabilities.durable else f"{transport} in {order_name} order"
        raise ConfigurationError(f"{what} keeps no log to start from: leave start=… out")
    return 1 if start == "earliest" else start


def check_record(
    record: str | bool | None, trace: str | None, *, kept: bool
) -> str | Literal[True] | None:
    """Return where to record a run; refuse it beside a trace, and where servers keep events."""
    if record is False or record is None:
        return None
    if trace is not None:
        raise ConfigurationError("a recorded run has its trace: give record or trace, not both")
    if kept:
        raise ConfigurationError(
            "a server keeps the events itself: give trace, and read its log with its URL"
        )
    return record


def check_payload(payload: Payload, bytes_max: int) -> bytes:
    """Return a payload as immutable bytes."""
    if payload is None:
        raise BadInput("payload must be bytes, got None: use b'' for an empty payload")
    if not isinstance(payload, Payload):
        raise BadInput(
            f"payload must be bytes, got {type(payload).__name__}: encode it first, "
            "for instance with text.encode()"
        )
    fixed = payload if isinstance(payload, bytes) else bytes(payload)
    if len(fixed) > bytes_max:
        raise BadInput(f"payload must have at most {bytes_max} bytes here, got {len(fixed)}")
    return fixed


def check_size(payload: bytes, key: bytes | None, headers: dict[str, str], bytes_max: int) -> None:
    """Refuse an event that is too large with its key and headers."""
    size = len(payload) + len(key or b"")
    size += sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
    if size > bytes_max:
        raise BadInput(
            f"an event must have at most {bytes_max} bytes here, got {size} with key and headers"
        )


def check_key(key: bytes | None) -> None:
    """Refuse an invalid key."""
    if key is not None and not isinstance(key, bytes):
        raise BadInput(f"key must be bytes or None, got {type(key).__name__}")


def check_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return a copy of headers, which the caller can't change."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise BadInput(f"headers must be a mapping of str to str, got {type(headers).__name__}")
    copy = dict(headers)
    for name, value in copy.items():
        for each in (name, value):
            if not isinstance(each, str):
                raise BadInput(
                    f"headers must be a mapping of str to str, got {type(each).__name__} in "
                    f"{name!r}: {value!r}"
                )
            try:
                each.encode()
            except UnicodeEncodeError:
                raise BadInput(
                    f"headers must be text that UTF-8 can carry; {each[:20]!a} has an "
                    "unpaired surrogate"
                ) from None
    return copy


def check_broker_name(name: object, given_by: str) -> None:
    """Refuse a name that no advertisement or subscription has; `given_by` returns valid ones."""
    if not isinstance(name, str) or not name or len(name) > IDENTIFIER_LENGTH_MAX:
        raise BadInput(f"name must be the one that {given_by} returned, got {name!r:.100}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadInput(
            f"name must be the one that {given_by} returned, got {name!a:.100}"
        ) from None


def check_by_content(topics: tuple[str, ...], **given: bool) -> None:
    """Refuse topics, and options without order, which `given` maps to True."""
    if topics:
        raise BadInput("subscribe to topics or by content (where=…), not both")
    wrong = ", ".join(option for option, is_given in given.items() if is_given)
    if wrong:
        raise BadInput(
            f"a subscription by content can't have {wrong}: brokers deliver events as they arrive, "
            "and keep no log; with order=ensue.Total() it can"
        )


def check_topic_event(*, ordered: bool) -> None:
    """Refuse an order of an event on a topic."""
    if ordered:
        raise BadInput("order is for events by content: events on a topic have that of the bus")


def check_content_event(key: object, headers: object) -> None:
    """Refuse a key or headers of an event by content."""
    if key is not None or headers is not None:
        raise BadInput("an event by content has no key and no headers: give it attributes")


def check_token(token: Mapping[str, int]) -> None:
    """Refuse a value that `bus.token()` can't have returned."""
    if not isinstance(token, Mapping) or not all(
        isinstance(name, str) and type(value) is int for name, value in token.items()
    ):
        raise BadInput(f"token must be the value that bus.token() returned, got {token!r}")


def check_seconds(seconds: float, what: str, *, zero: bool = False) -> None:
    """Refuse an invalid time to wait."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not math.isfinite(seconds) or seconds < 0 or (not seconds and not zero):
        least = "0 or more" if zero else "above 0"
        raise BadInput(f"{what} must be a finite number of seconds, {least}, got {seconds!r}")


def check_pending_max(pending_max: int) -> None:
    """Refuse an invalid number of events that may be pending."""
    check_count(pending_max, "pending_max")


def check_count(count: int, what: str) -> None:
    """Refuse an invalid number of events."""
    if isinstance(count, bool) or not isinstance(count, int):
        raise BadInput(f"{what} must be a whole number, got {count!r}")
    if count < 1:
        raise BadInput(f"{what} must be at least 1, got {count}")


def check_acknowledge(acknowledge: Acknowledge) -> None:
    """Refuse a value that is not 'auto' or 'manual'."""
    if acknowledge not in ("auto", "manual"):
        raise BadInput(f"acknowledge must be 'auto' or 'manual', got {acknowledge!r}")


def check_handler(handler: object, what: str, argument: str) -> None:
    """Refuse a handler that is known not to be an async function."""
    if not callable(handler):
        raise BadInput(f"{what} must be an async function of {argument}, got {handler!r}")
    inner: object = handler
    while isinstance(inner, partial):
        inner = inner.func
    if not _may_be_async(inner):
        name = getattr(inner, "__name__", type(inner).__name__)
        raise BadInput(
            f"{what} must be an async function of {argument}, and {name} is not: "
            "define it with `async def`"
        )


def _may_be_async(function: Any) -> bool:
    if not inspect.isroutine(function):
        function = type(function).__call__
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        return True
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        return True  # Unknown, such as a builtin.
    # A lambda, and a function with a return annotation, may return the awaitable of another.
    returns = getattr(function, "__annotations__", {}).get("return")
    return function.__name__ == "<lambda>" or returns not in (None, "None")
