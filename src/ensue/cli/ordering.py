"""The options of `pub` and `sub` that say in which order events are published and got."""

from typing import Annotated

import typer

from ensue.errors import BadInput
from ensue.order import Merged, Order, Total, parse

__all__ = ["DeltaOption", "EpsilonOption", "OrderOption", "check_kept", "chosen_order"]

OrderOption = Annotated[
    str,
    typer.Option(
        metavar="total|causal|merged|none",
        help="The order: the same for all who share these topics.",
    ),
]
EpsilonOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="With --order merged: by how much two clocks may differ, at most."
    ),
]
DeltaOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="With --order merged: how long an event may take."),
]


def chosen_order(
    name: str, *, epsilon: float | None, delta: float | None, late: str | None = None
) -> Order | None:
    """Return the order that the options name, or say what is wrong with them."""
    if name.strip().lower() != "merged":
        given = {"--epsilon": epsilon, "--delta": delta, "--late": late}
        for option, value in given.items():
            if value is not None:
                raise BadInput(f"{option} is for --order merged, not for --order {name}")
        return parse(name)
    if epsilon is None or delta is None:
        raise BadInput(
            "--order merged goes by clocks: say by how much they may differ and how long an event "
            "may take, the same for everybody, as with --epsilon 0.01 --delta 1"
        )
    return Merged(epsilon=epsilon, delta=delta, late=late or "drop")


def check_kept(order: Order | None, options: dict[str, bool]) -> None:
    """Refuse options, if they are given, that need events to be kept where they are not."""
    for option, given in options.items():
        if given and not isinstance(order, Total):
            name = "no" if order is None else order.name
            raise BadInput(f"{option}: nothing is kept in {name} order; leave the option out")
