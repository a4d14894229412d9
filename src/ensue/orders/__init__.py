"""The orders of Ensue: the only place that switches on an order.

An order is a `Guarantee` (`base.py`): one module here for each. The client, the simulator, the
checkers, the command line and Spark find it by its name (`named`) or by its value (`of`), and ask
it for what they need.

How to add an order, in one package of its own and nothing else:

1. The value: a frozen dataclass that inherits `ensue.core.order.Order`, with a `name` and its
   `promises`: the rules that `ensue.checkers` judges a trace by. A rule that the checkers lack is a
   function in `Promise.judges`.
2. The nodes: pure classes with the methods of `ensue.protocols.interface.Node`. If applications use
   the order, the publisher takes `publish` and `say_goodbye`, the subscriber `subscribe`,
   `unsubscribe`, `acknowledge`, `pause` and `resume`.
3. The deployment: a subclass of `ensue.simulation.deployments.base.Deployment` that puts the nodes
   into a simulated world and judges the trace, and a function that draws a scenario from a seed.
4. A subclass of `Guarantee` that names all of these, and `ensue.orders.register(MyOrder())`.

`tests/orders/toy` is such a package. A built-in order also has its value in `ensue.core.order` and
a line in the registry below.

Limits of an order in a package of its own: it runs on `memory://`, in the simulator and under the
checkers. Servers and brokers encode the built-in frames only, `pub` and `sub` have no options for
it, scenario files no table, and the Spark audit refuses rules in `Promise.judges`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from ensue.core.errors import BadInput
from ensue.core.order import ORDERS, Order
from ensue.orders.base import Guarantee, PublisherNode, Wanted
from ensue.orders.causal import CausalOrder
from ensue.orders.deadline import DeadlineOrder
from ensue.orders.merged import MergedOrder
from ensue.orders.total import TotalOrder
from ensue.orders.transactions import Transactions
from ensue.orders.unordered import Unordered

if TYPE_CHECKING:
    from ensue.simulation.scenario import Scenario

__all__ = [
    "DRAWS",
    "UNORDERED",
    "Guarantee",
    "PublisherNode",
    "Wanted",
    "every",
    "named",
    "of",
    "offered",
    "register",
    "registries",
    "unregister",
]

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


def register(guarantee: Guarantee) -> None:
    """Add an order, which is known by its name and by the class of its values from now on."""
    if guarantee.name in _registry:
        raise BadInput(f"there is an order {guarantee.name!r} already: choose another name")
    _registry[guarantee.name] = guarantee
    if guarantee.value is not None:
        ORDERS.append(guarantee.value)


def unregister(name: str) -> None:
    """Remove an order that `register` added."""
    guarantee = _registry.pop(name)
    if guarantee.value is not None:
        ORDERS.remove(guarantee.value)


def every() -> tuple[Guarantee, ...]:
    """Return all orders."""
    return tuple(_registry.values())


def offered() -> tuple[str, ...]:
    """Return the names of the orders that `connect`, scenario files, `pub` and `sub` offer."""
    return tuple(each.name for each in every() if each.is_offered)


def named(name: str) -> Guarantee:
    """Return an order by its name."""
    if name not in _registry:
        raise BadInput(f"there is no order {name!r}; expected one of {', '.join(_registry)}")
    return _registry[name]


def of(order: Order | None) -> Guarantee:
    """Return an order by its value; None is no order."""
    return UNORDERED if order is None else named(order.name)


def registries() -> dict[str, bool]:
    """Return the registries that servers need, by label, and whether order spans topics in each."""
    return {label: across for each in every() for label, across in each.registries().items()}


class _Draws(Mapping[str, Callable[[int], "Scenario"]]):
    """How to draw scenarios, by the name of each order that `swarm` searches for faults."""

    def __getitem__(self, name: str) -> Callable[[int], "Scenario"]:
        if name not in tuple(self):
            raise KeyError(name)
        return _registry[name].draw

    def __iter__(self) -> Iterator[str]:
        return (each.name for each in every() if each.is_searched)

    def __len__(self) -> int:
        return sum(1 for _ in self)


DRAWS: Mapping[str, Callable[[int], "Scenario"]] = _Draws()
