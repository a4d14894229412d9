"""Policies of `Subscription.run`: how many handlers run at once, and what a failure does.

Concurrency: `Sequential()`, all events in order, or `PerKey(16)`, in order within a key. Failure:
`Stop()`, `Park()`, or `Retry(then=…)`, which retries before one of the other two.

No policy lets an event overtake an earlier one of its key.
"""

import math
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from ensue.client.received_event import ReceivedEvent
from ensue.client.validation import check_handler
from ensue.core.errors import BadInput

__all__ = [
    "Concurrency",
    "FailurePolicy",
    "Handler",
    "Park",
    "Parked",
    "PerKey",
    "Progress",
    "Retry",
    "Sequential",
    "Stop",
]

Handler = Callable[[ReceivedEvent], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Sequential:
    """One event at a time, all of them in order: they count as events of one key."""


@dataclass(frozen=True, slots=True)
class PerKey:
    """Up to `workers` events at a time: in order within a key, in parallel across keys.

    All events with no key are of one key, None, and so in order too. `PerKey(1)` handles one event
    at a time, and promises no order across keys.
    """

    workers: int
    """Handlers that run at once, at most."""
    key: Callable[[ReceivedEvent], Hashable] | None = None
    """Returns the key of an event; `event.key` unless given."""

    def __post_init__(self) -> None:
        _check_count("workers", self.workers)
        if self.key is not None and not callable(self.key):
            raise BadInput(f"key must be a function of an event or None, got {self.key!r}")


@dataclass(frozen=True, slots=True)
class Stop:
    """Read no more events, let running handlers finish, and raise `HandlerFailed`.

    The event stays unacknowledged, as do events whose handler had not begun. The next `run` of the
    subscription begins with them; acknowledge an event to skip it.
    """


@dataclass(frozen=True, slots=True)
class Parked:
    """An event that was parked."""

    event: ReceivedEvent
    """The event; it is acknowledged once it is parked."""
    attempts: int
    """How often its handler ran: 0 if it was parked behind an earlier event of its key."""
    cause: BaseException | None
    """The last exception of the handler; None if it was parked behind an earlier event."""


@dataclass(frozen=True, slots=True)
class Park:
    """Set the event aside, acknowledge it, and continue.

    For the rest of the run later events of its key are parked behind it, in order and without
    calling the handler: they would overtake it. `rest_of_key=False` handles them, which leaves a
    gap. With `Sequential()` all events are of one key.

    HAZARD: without `to`, parked events are in `Progress.collected` and nowhere else. They are
    acknowledged, so they are lost if the process dies.
    """

    to: Callable[[Parked], Awaitable[object]] | None = None
    """Called with each parked event, one at a time within a key. The event is acknowledged when it
    returns; if it raises, the run fails with `HandlerFailed`. None: collect events in
    `Progress.collected`."""
    rest_of_key: bool = True
    """Whether later events of the key are parked too."""
    collected_max: int = 1_000
    """Events collected, at most. One more ends the run, and is not acknowledged."""
    keys_max: int = 10_000
    """Keys whose events are parked, at most. One more ends the run, and is not parked."""

    def __post_init__(self) -> None:
        if self.to is not None:
            check_handler(self.to, "Park.to", "what is parked")
        if not isinstance(self.rest_of_key, bool):
            raise BadInput(f"rest_of_key must be True or False, got {self.rest_of_key!r}")
        _check_count("collected_max", self.collected_max)
        _check_count("keys_max", self.keys_max)


@dataclass(frozen=True, slots=True)
class Retry:
    """Call the handler again with exponential backoff; after the last attempt, do `then`.

    Later events of the key wait until then. A waiting event occupies no worker.
    """

    attempts: int = 5
    """How often the handler is called, the first time included."""
    backoff_s: float = 0.1
    """How long to wait before the second attempt."""
    factor: float = 2.0
    """Each wait is so many times the previous one."""
    backoff_s_max: float = 30.0
    """The longest wait."""
    then: Stop | Park = field(default_factory=Stop)
    """The policy after the last attempt."""

    def __post_init__(self) -> None:
        _check_count("attempts", self.attempts)
        _check_number("backoff_s", self.backoff_s, 0)
        _check_number("factor", self.factor, 1)
        _check_number("backoff_s_max", self.backoff_s_max, self.backoff_s)
        if not isinstance(self.then, Stop | Park):
            raise BadInput(f"then must be ensue.Stop() or ensue.Park(), got {self.then!r}")

    def wait_s(self, attempts: int) -> float:
        """Return how long to wait after a number of attempts."""
        if not self.backoff_s:
            return 0.0
        try:
            return min(self.backoff_s_max, self.backoff_s * self.factor ** (attempts - 1))
        except OverflowError:
            return self.backoff_s_max


@dataclass(slots=True)
class Progress:
    """Counts of a run. Pass one to `run` to watch its progress."""

    handled: int = 0
    """Events whose handler returned."""
    failed: int = 0
    """Calls of the handler that raised, retried or not."""
    parked: int = 0
    """Events parked."""
    collected: list[Parked] = field(default_factory=list)
    """Events parked without a `Park.to`. Removing some makes room for more."""


Concurrency = Sequential | PerKey
FailurePolicy = Stop | Park | Retry


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise BadInput(f"{name} must be at least 1, got {value}")


def _check_number(name: str, value: Any, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"{name} must be a number, got {value!r}")
    if not least <= value < math.inf:
        raise BadInput(f"{name} must be at least {least} and finite, got {value}")
