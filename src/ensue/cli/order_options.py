"""The options of `pub` and `sub` that choose an order."""

from collections.abc import Mapping
from typing import Annotated

import typer

from ensue import orders
from ensue.core.errors import BadInput
from ensue.core.order import Order, Total

__all__ = [
    "DEFAULT_ORDER",
    "DeltaOption",
    "EpsilonOption",
    "LateOption",
    "MsOption",
    "OrderOption",
    "WhereOption",
    "check_content",
    "check_kept",
    "chosen_order",
]

DEFAULT_ORDER = Total.name
"""The default order, in which events are published and read, and traces are judged."""

OrderOption = Annotated[
    str,
    typer.Option(
        metavar="|".join(orders.offered()),
        help="The order: the same for all clients of these topics.",
    ),
]
EpsilonOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="With --order merged: largest difference between two clocks."
    ),
]
DeltaOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="With --order merged: longest delay of an event."),
]
MsOption = Annotated[
    float | None,
    typer.Option(
        "--ms",
        metavar="MILLISECONDS",
        help="With --order deadline: how long an event is of use, the same for all clients.",
    ),
]
LateOption = Annotated[
    str | None,
    typer.Option(
        metavar="drop|tag",
        help="With --order merged or deadline: drop late events (default), or tag them.",
    ),
]
WhereOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILTER",
        help="By content instead of by topic, such as \"symbol = 'ACME' and price > 10\".",
    ),
]


def chosen_order(
    name: str,
    *,
    epsilon: float | None,
    delta: float | None,
    ms: float | None,
    late: str | None = None,
) -> Order | None:
    """Return the order that the options name; raise `BadInput` if they are wrong."""
    known = orders.offered()
    if name.strip().lower() not in known:
        raise BadInput(f"there is no order {name!r}; expected one of {', '.join(known)}")
    guarantee = orders.named(name.strip().lower())
    given = {"--epsilon": epsilon, "--delta": delta, "--ms": ms, "--late": late}
    for option, value in given.items():
        if value is not None and option not in guarantee.options:
            fits = [each.name for each in orders.every() if option in each.options]
            meant = " and ".join(f"--order {each}" for each in fits)
            raise BadInput(f"{option} is for {meant}, not for --order {name}")
    if late not in (None, "drop", "tag"):
        raise BadInput(f"--late must be drop or tag, not {late!r}")
    return guarantee.from_options(given)


def check_content(topic: str | None, order: str, given: Mapping[str, object]) -> None:
    """Raise if an argument or option does not apply to events by content."""
    if topic is not None:
        raise BadInput(f"--where is by content, and {topic!r} is a topic: leave one of them out")
    if order.strip().lower() not in (DEFAULT_ORDER, Order.name):
        raise BadInput(f"--order {order}: by content there is no order to choose")
    wrong = [option for option, value in given.items() if value]
    if wrong:
        raise BadInput(f"{', '.join(wrong)}: not by content (--where); leave it out")


def check_kept(order: Order | None, options: dict[str, bool]) -> None:
    """Raise if an option is given that needs a log, in an order without one."""
    for option, given in options.items():
        if given and not orders.of(order).keeps_log:
            name = "no" if order is None else order.name
            raise BadInput(f"{option}: nothing is kept in {name} order; leave the option out")
