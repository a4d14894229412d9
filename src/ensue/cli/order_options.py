"""The options of `pub` and `sub` that choose an order."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from ensue import orders
from ensue.core.errors import BadInput
from ensue.core.order import Order, Total

__all__ = [
    "DEFAULT_ORDER",
    "NO_OPTIONS",
    "OrderOption",
    "OrderOptions",
    "WhereOption",
    "check_content",
    "check_kept",
    "chosen_order",
    "with_order_options",
]

DEFAULT_ORDER = Total.name
"""The default order, in which events are published and read, and traces are judged."""

OrderOptions = Mapping[str, Any]
"""The values of the options of orders, by option; None: not given. See `with_order_options`."""
NO_OPTIONS: OrderOptions = {}
OrderOption = str | None
"""The value of `--order`; None: not given. See `with_order_options`."""
WhereOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILTER",
        help="By content instead of by topic, such as \"symbol = 'ACME' and price > 10\": by "
        "brokers, or in total order with --order total.",
    ),
]


def with_order_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with one parameter for each option of the registered orders.

    They replace its parameter `order_options`, and `--order` lists the orders. Other commands are
    returned as they are.
    """
    signature = inspect.signature(command)
    if "order_options" not in signature.parameters:
        return command
    options = {
        option.name: option
        for each in orders.every()
        for option in each.options
        if command.__name__ in option.commands
    }
    # Options of all commands first.
    sorted_options = sorted(options.values(), key=lambda option: -len(option.commands))
    names = {option.name.lstrip("-").replace("-", "_"): option for option in sorted_options}
    taken = sorted(names.keys() & signature.parameters.keys())
    if taken:
        option = names[taken[0]]
        raise BadInput(f"{command.__name__} has an option {option.name}: choose another name")
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name == "order":
            parameters.append(parameter.replace(annotation=_order_annotation()))
        elif parameter.name == "order_options":
            parameters += [
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=None,
                    annotation=_annotation(option),
                )
                for name, option in names.items()
            ]
        else:
            parameters.append(parameter)

    @functools.wraps(command)
    def run(*args: Any, **given: Any) -> None:
        values = {option.name: given.pop(name) for name, option in names.items()}
        command(*args, order_options=values, **given)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _order_annotation() -> Any:
    text = (
        "The order: the same for all clients of these topics. "
        f"\\[default: {DEFAULT_ORDER}; with --where none]"
    )
    return Annotated[OrderOption, typer.Option(metavar="|".join(orders.offered()), help=text)]


def _annotation(option: orders.Option) -> Any:
    fits = [each.name for each in orders.every() if option in each.options]
    text = f"With --order {' or '.join(fits)}: {option.help}"
    kind: Any = option.kind
    return Annotated[kind | None, typer.Option(option.name, metavar=option.metavar, help=text)]


def chosen_order(name: OrderOption, given: OrderOptions, where: str | None = None) -> Order | None:
    """Return the order that the options name; raise `BadInput` if they are wrong.

    Events by content have no order by default: brokers route them.
    """
    if name is None:
        name = DEFAULT_ORDER if where is None else Order.name
    known = orders.offered()
    if name.strip().lower() not in known:
        raise BadInput(f"there is no order {name!r}; expected one of {', '.join(known)}")
    guarantee = orders.named(name.strip().lower())
    options = {option.name: option for each in orders.every() for option in each.options}
    for option, value in given.items():
        if value is None:
            continue
        if options[option] not in guarantee.options:
            fits = [each.name for each in orders.every() if options[option] in each.options]
            meant = " and ".join(f"--order {each}" for each in fits)
            raise BadInput(f"{option} is for {meant}, not for --order {name}")
        choices = options[option].choices
        if choices and value not in choices:
            raise BadInput(f"{option} must be {' or '.join(choices)}, got {value!r}")
    return guarantee.from_options({**dict.fromkeys(options), **given})


def check_content(topic: str | None, order: Order | None, given: Mapping[str, object]) -> None:
    """Raise if an argument or option does not apply to events by content."""
    if topic is not None:
        raise BadInput(f"--where and the topic {topic!r} exclude each other: leave one of them out")
    if order is not None and not orders.of(order).orders_content:
        raise BadInput(
            f"--order {order.name} does not apply to --where: leave it out, or use "
            f"--order {Total.name}"
        )
    wrong = [option for option, value in given.items() if value]
    if wrong:
        raise BadInput(f"{wrong[0]} does not apply to --where: leave it out")


def check_kept(order: Order | None, options: dict[str, bool]) -> None:
    """Raise if an option is given that needs a log, in an order without one."""
    for option, given in options.items():
        if given and not orders.of(order).keeps_log:
            name = "none" if order is None else order.name
            raise BadInput(f"{option} needs a log, and --order {name} keeps none: leave it out")
