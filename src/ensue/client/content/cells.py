"""Events by content in the order of their bus: its topics are the cells of the chain."""

from collections.abc import Mapping

import msgspec

from ensue import orders
from ensue.client.validation import check_by_content, check_order, check_pair
from ensue.core.errors import BadInput, ConfigurationError, UnsupportedOrder
from ensue.core.order import Order, order_name, written
from ensue.protocols.content.cells import Cells, Match, headers_of
from ensue.protocols.content.filters.filter import event_of
from ensue.protocols.content.filters.parser import parse
from ensue.runtime.hub_memory import Hub

__all__ = ["CellRequest", "cell_event", "cell_request"]


class CellRequest(msgspec.Struct, frozen=True):
    """What a subscription by content asks its chain for."""

    where: str
    """Its filter."""
    topics: tuple[str, ...]
    """The cells in which an event could match."""
    matches: Match


def cell_request(hub: Hub, order: Order | None, where: str, topics: tuple[str, ...]) -> CellRequest:
    """Return the cells of a filter; raise if the hub can't order events by content."""
    check_by_content(topics)
    cells = _cells_of(hub, order)
    wanted = parse(where)
    found = cells.topics_in(wanted)
    if not found:
        raise BadInput(f"where must match some event, got {where!r}: no event can match it")
    return CellRequest(where, found, Match(wanted))


def cell_event(
    hub: Hub, order: Order | None, attributes: Mapping[str, object]
) -> tuple[str, dict[str, str]]:
    """Return the topic and the headers of an event by content."""
    checked = event_of(attributes)
    return _cells_of(hub, order).topic_of(checked), headers_of(checked)


def _cells_of(hub: Hub, order: Order | None) -> Cells:
    transport = hub.transport
    check_order(order, transport.capabilities, transport.name)
    same = order is not None and orders.of(order) is orders.of(hub.order)
    if same and orders.of(order).disagreement(hub.order, order) is not None:
        own = written(hub.order)
        raise UnsupportedOrder(
            f"events by content have the order of their bus, {own}: use order=bus.order",
            order=order_name(order),
            transport=transport.name,
        )
    check_pair(hub.order, order, transport.name)
    if not orders.of(order).orders_content:
        name = "no" if order is None else order.name
        able = " or ".join(each.name for each in orders.every() if each.orders_content)
        raise UnsupportedOrder(
            f"events by content can't have {name} order: leave order=… out, or use {able} order",
            order=name,
            transport=transport.name,
        )
    cells = hub.config.partition
    if cells is None:
        where = (
            "memory://?cells=symbol/16"
            if hub.holds_publishers
            else 'cells = "symbol/16" in the servers\' file, or ensue serve --cells'
        )
        raise ConfigurationError(
            f"{transport.name} has no cells to order events by content in: declare the attributes "
            f"that filters use, with {where}"
        )
    return cells
