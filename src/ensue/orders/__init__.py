"""The orders of Ensue: the only place that switches on an order.

Each order is a `Guarantee` (`base.py`) in a module of this package. The client, servers, the
simulator, the checkers, the command line and Spark find it by its name (`named`) or by its value
(`of`), and ask it for what they need.

To add an order, write one package, and change nothing else:

1. The value: a frozen dataclass that inherits `ensue.core.order.Order`, with a `name` and its
   `promises`: the rules that `ensue.checkers` judges a trace by. A rule that the checkers lack is a
   function in `Promise.judges`.
2. The nodes: pure classes with the methods of `ensue.protocols.interface.Node`, and of
   `PublisherNode` and `SubscriberNode`. `ensue.protocols.unordered` has both without order; an
   order that only holds events back reuses its publisher. A node may also have
   `repeat(now_ns=…)`, to retransmit at once after a reconnect. Frames of the order have tags from
   `TAG_MIN` up.
3. The deployment: a subclass of `ensue.simulation.deployments.base.Deployment`, or of its
   subclass `TopicLogDeployment`, that puts the nodes into a simulated world and judges the trace;
   a function that draws a scenario from a seed (without one, set `is_searched = False`); and, if
   it has settings, a table for scenario files.
4. A subclass of `Guarantee` that returns all of these, and the options of `pub` and `sub`. Its
   flags say which parts of Ensue carry its events: `has_topic_log` for events that go through a
   topic log, with `uses_topics_alone` if servers need not keep them, `has_chain` if sequencers
   stamp them, or `shares_node` if the buses order them among themselves.
5. `ensue.orders.register(MyOrder())`, before clients connect and servers start. For the command
   line, name the class in an entry point of the group `ensue.orders`, under the order's name.

`tests/orders/toy` is such a package. A built-in order also has its value in `ensue.core.order` and
a line in the registry below.

Limits of an order in its own package:

- Brokers (NATS, Redis, MQTT, AMQP) carry its events, but not its own frames: they have no process
  of Ensue on the way that would fan these out. `connect` refuses such an order by name.
- Servers check the events in frames between its clients, but seal no claims about other clients
  (`ensue.server.relay_claims`): what a claim means is known to its protocol alone.
- The Spark audit judges a rule of `Promise.judges` with one task for each run, by the function
  itself. The rules of `ensue.checkers` are judged in parallel within a run.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from ensue.core.errors import BadInput, ConfigurationError
from ensue.core.order import ORDERS, Order
from ensue.orders.base import (
    Guarantee,
    LogReaderNode,
    ObservingNode,
    Option,
    PublisherNode,
    RelayedFrame,
    SharedProtocolNode,
    SubscriberNode,
    SubscriptionOptions,
)
from ensue.orders.causal import CausalOrder
from ensue.orders.deadline import DeadlineOrder
from ensue.orders.merged import MergedOrder
from ensue.orders.total import TotalOrder
from ensue.orders.transactions import Transactions
from ensue.orders.unordered import Unordered
from ensue.protocols.interface import Frame

if TYPE_CHECKING:
    from ensue.protocols.total.config import SequencerConfig
    from ensue.simulation.scenario import Scenario

__all__ = [
    "DRAWS",
    "ENTRY_POINTS",
    "TAG_MIN",
    "UNORDERED",
    "Guarantee",
    "LogReaderNode",
    "ObservingNode",
    "Option",
    "PublisherNode",
    "RelayedFrame",
    "SharedProtocolNode",
    "SubscriberNode",
    "SubscriptionOptions",
    "every",
    "load_installed",
    "log_order",
    "named",
    "of",
    "offered",
    "register",
    "registries",
    "relayed_frames",
    "unregister",
    "wire_frames",
]

ENTRY_POINTS = "ensue.orders"
"""The group of entry points that name the orders of installed packages."""
TAG_MIN = 1_000
"""The lowest tag of a frame of an order in its own package; Ensue has those below."""

UNORDERED = Unordered()

_registry: dict[str, Guarantee] = {
    each.name: each
    for each in (
        TotalOrder(),
        CausalOrder(),
        MergedOrder(),
        DeadlineOrder(),
        UNORDERED,
        Transactions(),
    )
}
_relayed: dict[type[Frame], RelayedFrame] = {}
"""A cache, empty until it is first asked for: servers look up every relayed frame."""


def register(guarantee: Guarantee) -> None:
    """Add an order: from now on it is found by its name and by the class of its values."""
    if guarantee.name in _registry:
        raise BadInput(f"there is an order {guarantee.name!r} already: choose another name")
    _check_parts(guarantee)
    _check_tags(guarantee)
    _check_options(guarantee)
    _registry[guarantee.name] = guarantee
    _relayed.clear()
    if guarantee.value is not None:
        ORDERS.append(guarantee.value)


def unregister(name: str) -> None:
    """Remove an order that `register` added."""
    guarantee = _registry.pop(name)
    _relayed.clear()
    if guarantee.value is not None:
        ORDERS.remove(guarantee.value)


def load_installed() -> None:
    """Register the orders of installed packages, by their entry points."""
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name in _registry:
            continue
        try:
            guarantee = entry.load()()
        except Exception as error:
            raise ConfigurationError(
                f"the order {entry.name!r} ({entry.value}) can't be loaded: {error!r}"
            ) from error
        if not isinstance(guarantee, Guarantee) or guarantee.name != entry.name:
            raise ConfigurationError(
                f"the entry point {entry.name!r} of {ENTRY_POINTS} must name a class of "
                f"ensue.orders.Guarantee with this name, got {entry.value}"
            )
        register(guarantee)


def every() -> tuple[Guarantee, ...]:
    """Return all orders."""
    return tuple(_registry.values())


def offered() -> tuple[str, ...]:
    """Return the names of the orders that `connect`, `pub` and `sub` offer."""
    return tuple(each.name for each in every() if each.is_offered)


def named(name: str) -> Guarantee:
    """Return an order by its name."""
    if name not in _registry:
        load_installed()
    if name not in _registry:
        raise BadInput(f"there is no order {name!r}; expected one of {', '.join(_registry)}")
    return _registry[name]


def of(order: Order | None) -> Guarantee:
    """Return an order by its value; None is no order."""
    return UNORDERED if order is None else named(order.name)


def log_order(chain: "SequencerConfig") -> str:
    """Return the name in traces of the order in which a chain of servers logs events."""
    return next(each.log_order(chain) for each in every() if each.has_chain)


def registries() -> dict[str, bool]:
    """Return the registries that servers need, by label: whether order spans topics."""
    return {label: across for each in every() for label, across in each.registries().items()}


def wire_frames() -> tuple[type[Frame], ...]:
    """Return all frames that clients and servers encode."""
    from ensue.protocols.total.station import FRAMES

    own = (frame for each in every() for frame in (*each.topic_frames(), *each.relayed_frames()))
    return (*FRAMES, *own)


def relayed_frames() -> Mapping[type[Frame], RelayedFrame]:
    """Return the frames that clients send each other through servers."""
    if not _relayed:
        for each in every():
            _relayed.update(each.relayed_frames())
    return _relayed


def _check_parts(guarantee: Guarantee) -> None:
    """Raise if no part of Ensue would carry the events of an order."""
    if not (guarantee.has_chain or guarantee.has_topic_log or guarantee.shares_node):
        raise BadInput(
            f"no part of Ensue carries {guarantee.name} order: set has_topic_log, has_chain or "
            "shares_node"
        )


def _check_tags(guarantee: Guarantee) -> None:
    """Raise if a frame of an order could be taken for another."""
    known = {_tag(frame): frame for frame in wire_frames()}
    for frame in (*guarantee.topic_frames(), *guarantee.relayed_frames()):
        tag = _tag(frame)
        if tag < TAG_MIN:
            raise BadInput(f"tag of {frame.__name__} must be at least {TAG_MIN}, got {tag}")
        if tag in known:
            other = known[tag].__name__
            raise BadInput(f"tag {tag} of {frame.__name__} is that of {other}: choose another")
        known[tag] = frame


def _tag(frame: type[Frame]) -> int:
    tag = frame.__struct_config__.tag
    return tag if isinstance(tag, int) else -1


def _check_options(guarantee: Guarantee) -> None:
    """Raise if an option of an order means something else in another order."""
    known = {option.name: (option, each) for each in every() for option in each.options}
    for option in guarantee.options:
        other, owner = known.get(option.name, (option, guarantee))
        if other != option:
            raise BadInput(
                f"{option.name} of {guarantee.name} order differs from that of {owner.name} order: "
                "choose another name"
            )


class _Draws(Mapping[str, Callable[[int], "Scenario"]]):
    """How to draw scenarios, by the names of what `swarm` searches for faults."""

    def __getitem__(self, name: str) -> Callable[[int], "Scenario"]:
        for each in every():
            if name in (draws := each.draws()):
                return draws[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for each in every() for name in each.draws())

    def __len__(self) -> int:
        return sum(1 for _ in self)


DRAWS: Mapping[str, Callable[[int], "Scenario"]] = _Draws()
