"""How `Subscription.run` handles events, and what becomes of one whose handler fails: values, not flags.

How many at once: `Sequential()`, all in order, or `PerKey(16)`, in order within a key. What then:
`Stop()`, `Park()`, or `Retry(then=…)`, which tries again before one of the other two.

None of them lets an event overtake an earlier one of its key.
"""

import math
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from ensue.client.checks import check_handler
from ensue.client.received import ReceivedEvent
from ensue.errors import BadInput

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
    """Handlers that run at once, at the most."""
    key: Callable[[ReceivedEvent], Hashable] | None = None
    """Gives the key of an event; `event.key` unless given."""

    def __post_init__(self) -> None:
        _check_count("workers", self.workers)
        if self.key is not None and not callable(self.key):
            raise BadInput(f"key is a function of an event, or None; not {self.key!r}")


@dataclass(frozen=True, slots=True)
class Stop:
    """Take no more events, let running handlers finish, and raise `HandlerFailed`.

    The event stays unacknowledged, and so does everything whose handler had not begun. The next
    `run` of the subscription begins with them; acknowledge an event to leave it out.
    """


@dataclass(frozen=True, slots=True)
class Parked:
    """An event that was set aside."""

    event: ReceivedEvent
    """The event; it is acknowledged once it is parked."""
    attempts: int
    """How often it was tried: 0 if it was parked behind an earlier event of its key."""
    cause: BaseException | None
    """What the handler raised at last; None if it was parked behind an earlier event."""


@dataclass(frozen=True, slots=True)
class Park:
    """Set the event aside, acknowledge it, and go on.

    For the rest of the run the later events of its key are parked behind it, in order and untried:
    handling them would overtake it. `rest_of_key=False` handles them, which leaves a gap. With
    `Sequential()` all events are of one key.

    HAZARD: without `to`, what is parked is in `Progress.collected` and nowhere else. It has been
    acknowledged, so it is gone if the process dies.
    """

    to: Callable[[Parked], Awaitable[object]] | None = None
    """Is given what is parked, one at a time within a key. What it returned from is acknowledged;
    if it fails, so does the run, with `HandlerFailed`. None: collect it in `Progress.collected`."""
    rest_of_key: bool = True
    """Whether later events of the key are parked too."""
    collected_max: int = 1_000
    """Events collected, at the most. One more ends the run, and is not acknowledged."""
    keys_max: int = 10_000
    """Keys whose events are parked, at the most. One more ends the run, and is not parked."""

    def __post_init__(self) -> None:
        if self.to is not None:
            check_handler(self.to, "Park.to", "what is parked")
        if not isinstance(self.rest_of_key, bool):
            raise BadInput(f"rest_of_key is True or False, not {self.rest_of_key!r}")
        _check_count("collected_max", self.collected_max)
        _check_count("keys_max", self.keys_max)


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after a while, then after a longer one; give up with `then`.

    The later events of the key wait meanwhile. Waiting takes no worker away from other keys.
    """

    attempts: int = 5
    """How often an event is tried altogether, the first time included."""
    backoff_s: float = 0.1
    """How long to wait before the second attempt."""
    factor: float = 2.0
    """Each further wait is so many times as long as the one before."""
    backoff_s_max: float = 30.0
    """The longest wait."""
    then: Stop | Park = field(default_factory=Stop)
    """What becomes of the event after the last attempt."""

    def __post_init__(self) -> None:
        _check_count("attempts", self.attempts)
        _check_number("backoff_s", self.backoff_s, 0)
        _check_number("factor", self.factor, 1)
        _check_number("backoff_s_max", self.backoff_s_max, self.backoff_s)
        if not isinstance(self.then, Stop | Park):
            raise BadInput(f"then is ensue.Stop() or ensue.Park(), not {self.then!r}")

    def wait_s(self, attempts: int) -> float:
        """Return how long to wait after so many attempts."""
        if not self.backoff_s:
            return 0.0
        try:
            return min(self.backoff_s_max, self.backoff_s * self.factor ** (attempts - 1))
        except OverflowError:
            return self.backoff_s_max


@dataclass(slots=True)
class Progress:
    """What a run has done so far. Give `run` one of your own to look at it meanwhile."""

    handled: int = 0
    """Events whose handler returned."""
    failed: int = 0
    """Calls of the handler that raised, whether tried again or not."""
    parked: int = 0
    """Events set aside."""
    collected: list[Parked] = field(default_factory=list)
    """What was parked with no `Park.to` to take it. Taking it out makes room for more."""


Concurrency = Sequential | PerKey
FailurePolicy = Stop | Park | Retry


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{name} is a whole number, not {value!r}")
    if value < 1:
        raise BadInput(f"{name} must be at least 1, not {value}")


def _check_number(name: str, value: Any, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"{name} is a number, not {value!r}")
    if not least <= value < math.inf:
        raise BadInput(f"{name} must be at least {least} and finite, not {value}")
