"""Why a client's operation can't be had."""

from ensue.errors import BadInput, limit_reason
from ensue.protocols.overlay.config import OverlayConfig
from ensue.protocols.overlay.filters import event_of
from ensue.protocols.overlay.frames import (
    ADVERTISE,
    SUBSCRIBE,
    UNADVERTISE,
    UNSUBSCRIBE,
    Change,
    Operate,
    Publication,
)
from ensue.protocols.overlay.parsing import parse
from ensue.protocols.overlay.tables import Tables

__all__ = [
    "INVERSE",
    "SPLIT",
    "no_such",
    "overfull",
    "refusal",
    "too_long",
    "too_many_transactions",
    "uncovered",
]

INVERSE = {ADVERTISE: UNADVERTISE, SUBSCRIBE: UNSUBSCRIBE}
"""What withdraws what."""
SPLIT = "do it in several transactions"


def refusal(frame: Operate, client: str, tables: Tables, config: OverlayConfig) -> str:
    """Say why an operation can't be had, if so."""
    try:
        if frame.publication is not None:
            return uncovered(frame.publication, client, tables, within=bool(frame.transaction))
        if frame.change is not None:
            return _change(frame.change, client, tables, config)
    except BadInput as error:
        return str(error)
    return "it says nothing to do"


def uncovered(publication: Publication, client: str, tables: Tables, *, within: bool) -> str:
    """Say so if a client has not advertised what it publishes.

    Within a transaction, what has not reached all brokers does not count: the event would reach some and not others. Regular ones wait for nothing and nobody.
    """
    event = event_of(publication.attributes)
    returning = ""
    for name in tables.advertised(event, client):
        if not within or name not in tables.returning:
            return ""
        returning = name
    if returning:
        return f"{returning!r} has not reached all brokers: try again"
    return f"no advertisement of {client} covers it"


def too_long(config: OverlayConfig) -> str:
    """Say that a transaction asks for more time than there is."""
    what = "the timeout of the transaction is too long"
    return limit_reason(what, "timeout_ns_max", config.timeout_ns_max, "ask for less")


def too_many_transactions(client: str, config: OverlayConfig) -> str:
    """Say that a client coordinates as many transactions as it may."""
    what = f"{client} coordinates too many transactions"
    how = "end some first, or use another bus"
    return limit_reason(what, "transactions_max", config.transactions_max, how)


def no_such(change: Change) -> str:
    """Say so if nobody knows how to make a change: so nobody could undo it either."""
    known = change.action in INVERSE or change.action in INVERSE.values()
    return "" if known else f"there is no action {change.action!r}"


def overfull(change: Change, client: str, tables: Tables, config: OverlayConfig) -> str:
    """Say so if a client's broker keeps as many subscriptions, or advertisements, as it may, and would have to keep another."""
    if change.action not in INVERSE or change.name in tables.table(change):
        return ""
    count = len(tables.table(change))
    if change.action == SUBSCRIBE:
        limit, kind, named = config.subscriptions_max, "subscriptions", "subscriptions_max"
    else:
        limit, kind, named = config.advertisements_max, "advertisements", "advertisements_max"
    full = limit_reason(
        f"the broker of {client} has too many {kind}", named, limit, "withdraw some"
    )
    return full if count >= limit else ""


def _change(change: Change, client: str, tables: Tables, config: OverlayConfig) -> str:
    unknown = no_such(change)
    if unknown:
        return unknown
    if change.action in INVERSE:
        parse(change.where)
        return overfull(change, client, tables, config)
    held = tables.table(change).get(change.name)
    if held is None:
        return f"there is no {change.name!r}"
    return f"{change.name!r} belongs to somebody else" if held.hop != client else ""
