"""What a bus and a subscription say of themselves where they are printed: who they are, what they are for, and whether they are open."""

from typing import TYPE_CHECKING

from ensue.client.content_reader import Where
from ensue.order import Order, written

if TYPE_CHECKING:
    from ensue.client.subscription import Subscription

__all__ = ["shown_bus", "shown_subscription"]


def shown_bus(name: str | None, order: Order | None, state: str) -> str:
    """Return a bus as it is printed."""
    who = f" {name!r}" if name else ""
    return f"<ensue.Bus{who}, order={written(order)}, {state}>"


def shown_subscription(given: "Subscription") -> str:
    """Return a subscription as it is printed."""
    name = given.name or given._wanted_name  # noqa: SLF001 - it shows itself
    who = f" {name!r}" if name else ""
    if isinstance(given.order, Where):
        what = f"where={given.order.where!r}"
    else:
        topics = given.topics or given._topics  # noqa: SLF001
        what = f"to {', '.join(map(repr, topics))}, order={written(given.order)}"
    if given.closed:
        state = "closed"
    elif given._safety.lost is not None:  # noqa: SLF001
        state = "lost"
    else:
        state = "not entered" if given._reader is None else "open"  # noqa: SLF001
    return f"<ensue.Subscription{who} {what}, {state}, {given.waiting} waiting>"
