"""All errors: one shallow tree, facts as attributes, one line of text.

`retriable` says whether the same call may succeed later, unchanged.
"""

import re
from collections.abc import Mapping
from typing import ClassVar

from ensue.core.event import Event

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
    "PublishedInPart",
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
    """Root of all errors of this library."""

    retriable: ClassVar[bool] = False


class BadInput(EnsueError, ValueError):
    """A file, option or value is unusable; the text says where and why."""


class ConfigurationError(BadInput):
    """A configuration contradicts itself or the requested guarantee."""


class FilterError(BadInput):
    """A filter does not parse; `position` is the offset in `text`, from 0."""

    def __init__(self, message: str, *, text: str, position: int) -> None:
        super().__init__(message)
        self.text = text
        self.position = position


class LocalProtocolError(EnsueError):
    """This program called something that is not possible now."""


class RemoteProtocolError(EnsueError):
    """A peer violated the protocol; its frame had no effect."""

    def __init__(self, message: str, *, peer: str = "") -> None:
        super().__init__(message)
        self.peer = peer


class TransportError(EnsueError, ConnectionError):
    """A connection failed."""

    retriable = True


class HandshakeFailed(TransportError):
    """TLS, login or protocol of a connection failed; retrying does not help."""

    retriable = False


class AccessDenied(EnsueError, PermissionError):
    """A server rejected the credentials or the request; see `reason`."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class UnsupportedOrder(EnsueError, ValueError):
    """The transport cannot carry the requested order."""

    def __init__(self, message: str, *, order: str, transport: str) -> None:
        super().__init__(message)
        self.order = order
        self.transport = transport


class LimitReached(EnsueError):
    """A named limit was hit; `limit` names it and `value` is its size.

    A limit that refuses an event, subscription, transaction or connection raises a subclass that is
    also the error of that refusal.
    """

    retriable = True

    def __init__(self, message: str, *, limit: str, value: int, reason: str = "") -> None:
        Exception.__init__(self, message)  # The other bases of subclasses take other arguments.
        self.limit = limit
        self.value = value
        self.reason = reason


class ConnectionLimitReached(LimitReached, TransportError):
    """A server closed a connection because of a limit."""


class EventVoided(EnsueError):
    """The lease expired before the event was published; no subscriber got it.

    Publish it again: it gets a new place in the order.
    """

    retriable = True

    def __init__(self, message: str, *, event: str) -> None:
        super().__init__(message)
        self.event = event


class EventsInDoubt(EnsueError, TimeoutError):
    """Receipts are missing: each event is published, will be, or never will be.

    `count` is their number; `events` has the ids of the first `IDS_MAX`. Publishing one of them
    again may publish it twice.
    """

    IDS_MAX: ClassVar[int] = 1_000

    def __init__(self, message: str, *, events: tuple[str, ...], count: int) -> None:
        super().__init__(message)
        self.events = events
        self.count = count


class PublishTimeout(EnsueError, TimeoutError):
    """No room for an event within its timeout; nothing was published."""

    retriable = True


class PublishedInPart(EnsueError):
    """`publish_many` published some of its events and not others.

    The first `published` pairs were published. `failures` has the errors of those among them that
    reached no subscriber, by index. No pair from index `published` on was published.
    """

    def __init__(self, message: str, *, published: int, failures: Mapping[int, EnsueError]) -> None:
        super().__init__(message)
        self.published = published
        self.failures = dict(failures)


class EventRefused(EnsueError):
    """The sequencer refused the event; no subscriber got it. See `reason`."""

    def __init__(self, message: str, *, event: str, reason: str) -> None:
        super().__init__(message)
        self.event = event
        self.reason = reason


class SubscriptionRefused(EnsueError):
    """The sequencer refused a subscription change; see `reason`."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class EventLimitReached(LimitReached, EventRefused):
    """A limit refused an event; no subscriber got it."""

    def __init__(self, message: str, *, event: str, reason: str, limit: str, value: int) -> None:
        LimitReached.__init__(self, message, limit=limit, value=value, reason=reason)
        self.event = event


class SubscriptionLimitReached(LimitReached, SubscriptionRefused):
    """A limit refused a subscription."""

    def __init__(self, message: str, *, reason: str, limit: str, value: int) -> None:
        LimitReached.__init__(self, message, limit=limit, value=value, reason=reason)


class HandlerFailed(EnsueError):
    """A handler failed, and `run` stopped; the event is not acknowledged.

    `cause` is the exception of the last attempt, or why the event could not be parked.
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
    """A bug: the bus or subscription has ended; `__cause__` is the exception.

    Operations under way may or may not have taken effect.
    """


class SubscriptionLost(EnsueError):
    """The server or transport ended a subscription; `reason` says why.

    `superseded`: another process uses the durable name. `expired`: the client was away too long.
    `forgotten`: the server has no record of it, or another client ended it. `replaced`, `rolled
    back`, `damaged`: as for `LogLost`, which is the cause.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class TransactionAborted(EnsueError):
    """A transaction had no effect; `reason`: conflict, timeout, departed client."""

    retriable = True

    def __init__(self, message: str, *, reason: str, transaction: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.transaction = transaction

    @property
    def is_conflict(self) -> bool:
        """Whether it conflicted with another transaction: the same may succeed when tried again."""
        return self.reason.startswith(CONFLICT)


class TransactionLimitReached(LimitReached, TransactionAborted):
    """A limit aborted a transaction; it had no effect."""

    def __init__(
        self, message: str, *, reason: str, limit: str, value: int, transaction: str = ""
    ) -> None:
        LimitReached.__init__(self, message, limit=limit, value=value, reason=reason)
        self.transaction = transaction


class TransactionPending(EnsueError, TimeoutError):
    """The outcome of a transaction is not known yet: do not repeat it."""


class LogDamaged(EnsueError):
    """A file of an event log is damaged; `path` names it."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class LogLost(EnsueError):
    """A server lost its log: receipted events may be gone. Connect again to continue.

    `server` names it. `reason` is `replaced` (another log), `rolled back` (an older copy, or a
    state before delivered events) or `damaged`.
    """

    def __init__(self, message: str, *, server: str, reason: str) -> None:
        super().__init__(message)
        self.server = server
        self.reason = reason


class LogInUse(EnsueError):
    """Another process writes to the event log: it takes one writer at a time."""

    retriable = True

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class OffsetsGone(EnsueError, LookupError):
    """Events `start` to `end`, exclusive, of a topic are not in the log."""

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


CONFLICT = "conflict: "
"""How the reason of a transaction that lost against another one begins."""

# -- Refusals that name a limit -------------------------------------------------------------------


def limit_reason(what: str, limit: str, value: int, how: str) -> str:
    """Format the reason of a refusal by a limit, with what to do about it."""
    return f"{what} (limit {limit}={value}): {how}"


def limit_in(reason: str) -> tuple[str, int] | None:
    """Return name and size of the limit that a reason names; None without one."""
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
    """Return the error of a closed connection: also `LimitReached` if a limit did it."""
    found = limit_in(reason)
    if found is None:
        return TransportError(message)
    return ConnectionLimitReached(message, limit=found[0], value=found[1], reason=reason)
