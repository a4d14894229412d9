"""Orders: the promises about the sequence of deliveries, as values.

`parse("total")` turns text into one of them. Whether a transport can carry an order is checked when
a bus connects or subscribes; the error names what the transport lacks.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from ensue.core.errors import BadInput

__all__ = [
    "ORDERS",
    "Causal",
    "Deadline",
    "Merged",
    "Order",
    "Promise",
    "Total",
    "order_name",
    "parse",
    "spelled",
    "written",
]

T = TypeVar("T")


TIME_TO_LIVE_MAX_S = 1_000_000_000
DEADLINE_MAX_MS = 86_400_000
"""A day."""


class _Spelled(type):
    """Checks keyword arguments, and shows the right call in errors."""

    def __call__(cls: type[T], *given: Any, **named: Any) -> T:
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        if given:
            shown = ", ".join(map(repr, given))
            raise BadInput(
                f"{cls.__name__} takes keyword arguments only, got {shown}: write {spelled(cls)}"
            )
        for name in named:
            if name not in known:
                raise BadInput(
                    f"{cls.__name__} has no {name!r}; expected {', '.join(known)}: "
                    f"write {spelled(cls)}"
                )
        missing = [name for name in _required(cls) if name not in named]
        if missing:
            raise BadInput(f"{cls.__name__} needs {' and '.join(missing)}: write {spelled(cls)}")
        made: T = type.__call__(cls, **named)
        return made


def _required(order: type) -> list[str]:
    return [field.name for field in fields(order) if field.default is MISSING]


def spelled(order: type) -> str:
    """Return the call that makes an order, with its required options."""
    options = ", ".join(f"{name}=…" for name in _required(order))
    return f"ensue.{order.__name__}({options})"


def written(order: "Order | None") -> str:
    """Return the call that makes this order, without defaults."""
    if order is None:
        return "None"
    given = {field.name: field.default for field in fields(order)}
    options = (
        f"{name}={getattr(order, name)!r}"
        for name, default in given.items()
        if getattr(order, name) != default
    )
    return f"ensue.{type(order).__name__}({', '.join(options)})"


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a trace is checked for."""

    rules: tuple[str, ...]
    """Rules of `ensue.checkers`, in the sequence of a report. The last is `complete`."""
    causal_unless_lossy: bool = False
    """Whether the rule `causal` is left out for transports that lose events."""
    owes_gaps: bool = True
    """Whether an event must be delivered if a later one of its publisher and topic was."""
    judges: Mapping[str, Callable[[Any, Any], None]] = field(default_factory=dict)
    """Rules that `ensue.checkers` does not have: functions of a `History` and a `Collector`."""
    check: Callable[..., Any] | None = None
    """Checks a trace whose rows are of another kind: a function of rows and `violations_max`."""


@dataclass(frozen=True, kw_only=True)
class Order(metaclass=_Spelled):
    """A promise about the sequence in which events are delivered."""

    name: ClassVar[str] = "none"
    promises: ClassVar[Mapping[str, Promise]] = {
        "none": Promise(rules=("positions", "complete"), owes_gaps=False)
    }
    """By label: what traces are checked for."""

    @property
    def label(self) -> str:
        """The name of this order in traces and on the wire."""
        return self.name


@dataclass(frozen=True, kw_only=True)
class Total(Order):
    """Two events reach all their common subscribers in one order, whatever their topics."""

    name: ClassVar[str] = "total"
    promises: ClassVar[Mapping[str, Promise]] = {
        "total": Promise(
            rules=("fifo", "total", "causal", "positions", "complete"), causal_unless_lossy=True
        ),
        "total-noncausal": Promise(rules=("fifo", "total", "positions", "complete")),
    }

    time_to_live: float | None = None
    """Seconds that an event waits for missing earlier ones, on a transport that loses events. A
    missing event that arrives later is delivered at once, tagged `out_of_order`. None: wait
    forever, which needs a transport that retransmits."""
    held_max: int = 65_536
    """Maximum events that a subscription holds back, beside the next one of each topic."""
    causal: bool = True
    """False: an effect may come before its cause, if they have different topics. Common subscribers
    still see one order. Servers with `causal = false` offer only this, and order topics together
    only if two subscribers share them."""

    def __post_init__(self) -> None:
        if not isinstance(self.causal, bool):
            raise BadInput(f"causal must be True or False, got {self.causal!r}")
        ttl = self.time_to_live
        if ttl is not None:
            if isinstance(ttl, bool) or not isinstance(ttl, int | float):
                raise BadInput(f"time_to_live must be a number of seconds, got {ttl!r}")
            if not 0 < ttl <= TIME_TO_LIVE_MAX_S:
                raise BadInput(
                    f"time_to_live must be above 0 seconds and at most {TIME_TO_LIVE_MAX_S}, "
                    f"got {ttl}; None waits forever"
                )
        _check_held_max(self.held_max)

    @property
    def label(self) -> str:
        """The name of this order in traces and on the wire."""
        return "total" if self.causal else "total-noncausal"


def _check_held_max(held_max: int) -> None:
    if isinstance(held_max, bool) or not isinstance(held_max, int):
        raise BadInput(f"held_max must be a whole number, got {held_max!r}")
    if held_max < 1:
        raise BadInput(f"held_max must be at least 1, got {held_max}")


@dataclass(frozen=True, kw_only=True)
class Causal(Order):
    """No effect before its cause, with no broker in the middle."""

    name: ClassVar[str] = "causal"
    promises: ClassVar[Mapping[str, Promise]] = {
        "causal": Promise(rules=("fifo", "causal", "positions", "complete")),
        "causal-topic": Promise(rules=("fifo", "causal-topic", "positions", "complete")),
    }

    across_topics: bool = True
    """False: only within each topic, which costs less with many topics."""
    held_max: int = 65_536
    """Maximum events of one topic that wait for their causes, beside the next one of each
    publisher; others are requested again."""

    def __post_init__(self) -> None:
        if not isinstance(self.across_topics, bool):
            raise BadInput(f"across_topics must be True or False, got {self.across_topics!r}")
        _check_held_max(self.held_max)

    @property
    def label(self) -> str:
        """The name of this order in traces and on the wire."""
        return "causal" if self.across_topics else "causal-topic"


@dataclass(frozen=True, kw_only=True)
class Merged(Order):
    """All subscribers sort all events alike, by clock stamps alone; causes come first."""

    name: ClassVar[str] = "merged"
    promises: ClassVar[Mapping[str, Promise]] = {
        "merged": Promise(rules=("fifo", "global", "causal", "positions", "complete"))
    }

    epsilon: float
    """Largest difference between two clocks, in seconds."""
    delta: float
    """Longest delay of a message, in seconds."""
    tick: float = 0.001
    """Length of a clock tick, in seconds; epsilon and delta are rounded up to ticks."""
    late: str = "drop"
    """What to do with an event that arrives too late for its place: `drop`, or `deliver` it at
    once, tagged."""
    held_max: int = 65_536
    """Maximum events that a subscription holds back."""

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta", "tick"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise BadInput(f"{name} must be a number of seconds, got {value!r}")
            if not 0 <= value <= TIME_TO_LIVE_MAX_S:
                raise BadInput(
                    f"{name} must be from 0 to {TIME_TO_LIVE_MAX_S} seconds, got {value}"
                )
        if self.tick < 1e-6:
            raise BadInput(f"tick must be at least a microsecond, got {self.tick} seconds")
        if max(self.epsilon, self.delta) / self.tick > 1_000_000:
            raise BadInput(
                f"epsilon and delta must be at most a million ticks of {self.tick} seconds, "
                f"got {self.epsilon} and {self.delta} seconds: choose a longer tick"
            )
        if self.late not in ("drop", "deliver"):
            raise BadInput(f"late must be 'drop' or 'deliver', got {self.late!r}")
        _check_held_max(self.held_max)


@dataclass(frozen=True, kw_only=True)
class Deadline(Order):
    """Causal and on time, or dropped."""

    name: ClassVar[str] = "deadline"
    promises: ClassVar[Mapping[str, Promise]] = {
        "deadline": Promise(rules=("fifo", "causal", "deadline", "positions", "complete"))
    }

    ms: float
    """Milliseconds from an event's publication to its deadline."""
    on_late: str = "drop"
    """What to do with an event that arrives later, or would break the order: `drop`, or `tag` to
    deliver it at once with a verdict."""
    held_max: int = 65_536
    """Maximum events of a bus that wait for others; further ones are dropped."""

    def __post_init__(self) -> None:
        if isinstance(self.ms, bool) or not isinstance(self.ms, int | float):
            raise BadInput(f"ms must be a number of milliseconds, got {self.ms!r}")
        if not 1 <= self.ms <= DEADLINE_MAX_MS:
            raise BadInput(f"ms must be from 1 to {DEADLINE_MAX_MS:,}, got {self.ms}")
        if self.on_late not in ("drop", "tag"):
            raise BadInput(f"on_late must be 'drop' or 'tag', got {self.on_late!r}")
        _check_held_max(self.held_max)


ORDERS: list[type[Order]] = [Total, Causal, Merged, Deadline]
"""The orders that an application can choose; `ensue.orders.register` adds one."""


def order_name(order: Order | None) -> str:
    """Return the name of an order in traces and on the wire."""
    return Order.name if order is None else order.label


def parse(text: str) -> Order | None:
    """Return the order of a name: `total`, `causal`, or `none` for no order."""
    if not isinstance(text, str):
        raise BadInput(f"the name of an order must be a str, got {type(text).__name__}")
    plain = {each.name: each for each in ORDERS if not _required(each)}
    name = text.strip().lower()
    if name == Order.name:
        return None
    if name not in plain:
        known = ", ".join((*plain, Order.name))
        raise BadInput(f"there is no order {text!r}; expected one of {known}")
    return plain[name]()
