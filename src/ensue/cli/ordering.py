"""The options of `pub` and `sub` that say in which order events are published and got."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from ensue.errors import BadInput
from ensue.order import Deadline, Merged, Order, Total, parse

__all__ = [
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

_ORDERS = ("total", "causal", "merged", "deadline", "none")

OrderOption = Annotated[
    str,
    typer.Option(
        metavar="|".join(_ORDERS),
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
MsOption = Annotated[
    float | None,
    typer.Option(
        "--ms",
        metavar="MILLISECONDS",
        help="With --order deadline: how long an event is of use, the same for everybody.",
    ),
]
LateOption = Annotated[
    str | None,
    typer.Option(
        metavar="drop|tag",
        help="With --order merged or deadline: what becomes of an event that comes too late; drop, unless given.",
    ),
]
WhereOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILTER",
        help="By content instead of by topic, such as \"symbol = 'ACME' and price > 10\".",
    ),
]
_MEANT = {
    "--epsilon": ("merged",),
    "--delta": ("merged",),
    "--ms": ("deadline",),
    "--late": ("merged", "deadline"),
}
"""Which orders an option is for."""


def chosen_order(
    name: str,
    *,
    epsilon: float | None,
    delta: float | None,
    ms: float | None,
    late: str | None = None,
) -> Order | None:
    """Return the order that the options name, or say what is wrong with them."""
    order = name.strip().lower()
    if order not in _ORDERS:
        raise BadInput(f"there is no order {name!r}; expected one of {', '.join(_ORDERS)}")
    given = {"--epsilon": epsilon, "--delta": delta, "--ms": ms, "--late": late}
    for option, value in given.items():
        if value is not None and order not in _MEANT[option]:
            meant = " and ".join(f"--order {each}" for each in _MEANT[option])
            raise BadInput(f"{option} is for {meant}, not for --order {name}")
    if late not in (None, "drop", "tag"):
        raise BadInput(f"--late must be drop or tag, not {late!r}")
    if order == "deadline":
        if ms is None:
            raise BadInput(
                "--order deadline needs to know how long an event is of use, the same for everybody, "
                "as with --ms 200"
            )
        with _named_as_options():
            return Deadline(ms=ms, on_late=late or "drop")
    if order != "merged":
        return parse(name)
    if epsilon is None or delta is None:
        raise BadInput(
            "--order merged goes by clocks: say by how much they may differ and how long an event "
            "may take, the same for everybody, as with --epsilon 0.01 --delta 1"
        )
    with _named_as_options():
        return Merged(epsilon=epsilon, delta=delta, late="deliver" if late == "tag" else "drop")


@contextmanager
def _named_as_options() -> Iterator[None]:
    """Have what is said of a value begin with the option that it came from."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"--{error}") from None


def check_content(topic: str | None, order: str, given: Mapping[str, object]) -> None:
    """Refuse what makes no sense by content, where there are no topics and events come as a broker has them."""
    if topic is not None:
        raise BadInput(f"--where is by content, and {topic!r} is a topic: leave one of them out")
    if order.strip().lower() not in ("total", "none"):
        raise BadInput(f"--order {order}: by content there is no order to choose")
    wrong = [option for option, value in given.items() if value]
    if wrong:
        raise BadInput(f"{', '.join(wrong)}: not by content (--where); leave it out")


def check_kept(order: Order | None, options: dict[str, bool]) -> None:
    """Refuse options, if they are given, that need events to be kept where they are not."""
    for option, given in options.items():
        if given and not isinstance(order, Total):
            name = "no" if order is None else order.name
            raise BadInput(f"{option}: nothing is kept in {name} order; leave the option out")
