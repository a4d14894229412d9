"""Every error Ensue raises: one shallow tree, the facts as attributes, one line of text.

`retriable` says whether the same call may succeed later without changing anything.
"""

import re
from typing import ClassVar

from ensue.event import Event

__all__ = [
    "AccessDenied",
    "BadInput",
    "ConfigurationError",
    "ConnectionLimitReached",
    "EnsueError",
    "EventLimitReached",
    "EventRefused",
    "EventVoided",
    "EventsInDoubt",
    "FilterError",
    "HandlerFailed",
    "HandshakeFailed",
    "InternalError",
    "LimitReached",
    "LocalProtocolError",
    "LogDamaged",
    "LogInUse",
    "LogLost",
    "MissingExtra",
    "OffsetsGone",
    "PublishTimeout",
    "RemoteProtocolError",
    "SubscriptionLimitReached",
    "SubscriptionLost",
    "SubscriptionRefused",
    "TransactionAborted",
    "TransactionLimitReached",
    "TransactionPending",
    "TransportError",
    "UnsupportedOrder",
    "aborted_transaction",
    "ended_connection",
    "limit_in",
    "limit_reason",
    "refused_client",
    "refused_event",
    "refused_subscription",
]

_LIMIT = re.compile(r"\(limit ([a-z_]+)=(\d+)\)")
_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")


class EnsueError(Exception):
    """The root of all errors of this library."""

    retriable: ClassVar[bool] = False


class BadInput(EnsueError, ValueError):
    """A file, an option or a value given by a person can't be used; the text says where and why."""


class ConfigurationError(BadInput):
    """A configuration contradicts itself or the guarantee asked for."""


class FilterError(BadInput):
    """A filter's text can't be read; `position` is where, counted from 0, in `text`."""

    def __init__(self, message: str, *, text: str, position: int) -> None:
        super().__init__(message)
        self.text = text
        self.position = position


class LocalProtocolError(EnsueError):
    """This program misused a protocol object."""


class RemoteProtocolError(EnsueError):
    """A peer broke the protocol: its frame was refused and had no effect."""

    def __init__(self, message: str, *, peer: str = "") -> None:
        super().__init__(message)
        self.peer = peer


class TransportError(EnsueError, ConnectionError):
    """Bytes could not be carried."""

    retriable = True


class HandshakeFailed(TransportError):
    """TLS, the login or the protocol of a connection failed: connecting again as configured is of no use."""

    retriable = False


class AccessDenied(EnsueError, PermissionError):
    """A server refused who asked, or what was asked for; `reason` is its word."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class UnsupportedOrder(EnsueError, ValueError):
    """The transport can't carry the order asked for."""

    def __init__(self, message: str, *, order: str, transport: str) -> None:
        super().__init__(message)
        self.order = order
        self.transport = transport


class LimitReached(EnsueError):
    """A named limit was hit; `limit` names it and `value` is its size.

    Where a limit refuses an event, a subscription, a transaction or a connection, the error is also of the kind that such a refusal has.
    """

    retriable = True

    def __init__(self, message: str, *, limit: str, value: int, reason: str = "") -> None:
        Exception.__init__(self, message)  # The refusals that are also this take other arguments.
        self.limit = limit
        self.value = value
        self.reason = reason


class ConnectionLimitReached(LimitReached, TransportError):
    """A server ended a connection because of a limit."""


class EventVoided(EnsueError):
    """The lease of the event's stamp ran out before the event was out: nobody received it.

    Publishing again gives it a new place in the order.
    """

    retriable = True

    def __init__(self, message: str, *, event: str) -> None:
        super().__init__(message)
        self.event = event


class EventsInDoubt(EnsueError, TimeoutError):
    """Published events without a receipt: each of them is out, will be, or never will be.

    `count` is how many; `events` are the ids of the first `IDS_MAX` of them. Publishing one again may publish it twice.
    """

    IDS_MAX: ClassVar[int] = 1_000

    def __init__(self, message: str, *, events: tuple[str, ...], count: int) -> None:
        super().__init__(message)
        self.events = events
        self.count = count


class PublishTimeout(EnsueError, TimeoutError):
    """There was no room for an event within its timeout: nothing was published."""

    retriable = True


class EventRefused(EnsueError):
    """The sequencer would not order the event: nobody received it. `reason` is its word."""

    def __init__(self, message: str, *, event: str, reason: str) -> None:
        super().__init__(message)
        self.event = event
        self.reason = reason


class SubscriptionRefused(EnsueError):
    """The sequencer refused a change of subscription; `reason` is its word."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class EventLimitReached(LimitReached, EventRefused):
    """An event was refused because of a limit: nobody received it."""

    def __init__(self, message: str, *, event: str, reason: str, limit: str, value: int) -> None:
        LimitReached.__init__(self, message, limit=limit, value=value, reason=reason)
        self.event = event


class SubscriptionLimitReached(LimitReached, SubscriptionRefused):
    """A subscription was refused because of a limit."""

    def __init__(self, message: str, *, reason: str, limit: str, value: int) -> None:
        LimitReached.__init__(self, message, limit=limit, value=value, reason=reason)


class HandlerFailed(EnsueError):
    """A run of a subscription has stopped at an event: it was given up, and not acknowledged.

    `cause` is what the handler raised at its last attempt, or why the event could not be parked.
    """

    def __init__(
        self, message: str, *, event: Event, position: int, attempts: int, cause: BaseException
    ) -> None:
        super().__init__(message)
        self.event = event
        self.position = position
        self.attempts = attempts
        self.cause = self.__cause__ = cause


class InternalError(EnsueError, RuntimeError):
    """Something failed that must not, and what it was part of is over; the cause is what was raised.

    What was under way may have taken effect, or not.
    """


class SubscriptionLost(EnsueError):
    """A subscription is over, and not by its reader's will; `reason` says why.

    `superseded`: another process uses the durable name. `expired`: its client was away for too long. `forgotten`: the
    server keeps nothing of it any more. `replaced`, `rolled back`, `damaged`: as for `LogLost`, which is the cause.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class TransactionAborted(EnsueError):
    """Nothing of a transaction has happened; `reason` says why: a conflict, a timeout, somebody who is gone."""

    retriable = True

    def __init__(self, message: str, *, reason: str, transaction: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.transaction = transaction


class TransactionLimitReached(LimitReached, TransactionAborted):
    """Nothing of a transaction has happened, because of a limit."""

    def __init__(
        self, message: str, *, reason: str, limit: str, value: int, transaction: str = ""
    ) -> None:
        LimitReached.__init__(self, message, limit=limit, value=value, reason=reason)
        self.transaction = transaction


class TransactionPending(EnsueError, TimeoutError):
    """A transaction was handed in, or was to be committed, and what came of it is not known yet: it must not be repeated."""


class LogDamaged(EnsueError):
    """A file of an event log is not what was written there; `path` names it."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class LogLost(EnsueError):
    """The log of a server is not the one that this client knows, or can't be read: connect anew to go on.

    `server` names it. `reason` is `replaced`: it has another log; `rolled back`: it goes on from an older copy, or from
    before events that were delivered; or `damaged`. Events may be gone that had receipts.
    """

    def __init__(self, message: str, *, server: str, reason: str) -> None:
        super().__init__(message)
        self.server = server
        self.reason = reason


class LogInUse(EnsueError):
    """Somebody else writes to the event log: it takes one writer at a time."""

    retriable = True

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class OffsetsGone(EnsueError, LookupError):
    """Events of a topic from `start` up to, not including, `end` are not, or no longer, in the log."""

    def __init__(self, message: str, *, topic: str, start: int, end: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.start = start
        self.end = end


class MissingExtra(EnsueError, ImportError):
    """An optional dependency is not installed; the text is the line that installs it."""

    def __init__(self, *, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs an extra: pip install 'ensue[{extra}]'")
        self.extra = extra


# -- Refusals that name a limit -------------------------------------------------------------------


def limit_reason(what: str, limit: str, value: int, how: str) -> str:
    """Return why a limit refuses something, and how to go on: nodes and servers tell it as the reason."""
    return f"{what} (limit {limit}={value}): {how}"


def limit_in(reason: str) -> tuple[str, int] | None:
    """Return the name and the size of the limit that a reason names, if it does."""
    found = _LIMIT.search(_QUOTED.sub("", reason))  # Names that clients chose are quoted.
    return None if found is None else (found[1], int(found[2]))


def refused_event(message: str, *, event: str, reason: str) -> EventRefused:
    """Return the error of a refused event: also `LimitReached` if a limit refused it."""
    found = limit_in(reason)
    if found is None:
        return EventRefused(message, event=event, reason=reason)
    limit, value = found
    return EventLimitReached(message, event=event, reason=reason, limit=limit, value=value)


def refused_subscription(message: str, *, reason: str) -> SubscriptionRefused:
    """Return the error of a refused subscription: also `LimitReached` if a limit refused it."""
    found = limit_in(reason)
    if found is None:
        return SubscriptionRefused(message, reason=reason)
    return SubscriptionLimitReached(message, reason=reason, limit=found[0], value=found[1])


def aborted_transaction(message: str, *, reason: str, transaction: str = "") -> TransactionAborted:
    """Return the error of an aborted transaction: also `LimitReached` if a limit aborted it."""
    found = limit_in(reason)
    if found is None:
        return TransactionAborted(message, reason=reason, transaction=transaction)
    limit, value = found
    return TransactionLimitReached(
        message, reason=reason, limit=limit, value=value, transaction=transaction
    )


def refused_client(message: str, *, reason: str) -> AccessDenied | LimitReached:
    """Return the error of a client that a server refuses: `LimitReached` if a limit refused it."""
    found = limit_in(reason)
    if found is None:
        return AccessDenied(message, reason=reason)
    return LimitReached(message, limit=found[0], value=found[1], reason=reason)


def ended_connection(message: str, *, reason: str) -> TransportError:
    """Return the error of a connection that a server ended: also `LimitReached` if a limit did."""
    found = limit_in(reason)
    if found is None:
        return TransportError(message)
    return ConnectionLimitReached(message, limit=found[0], value=found[1], reason=reason)
