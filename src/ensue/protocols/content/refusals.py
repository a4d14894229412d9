"""Reasons why a broker refuses a client's operation."""

from ensue.core.errors import BadInput, limit_reason
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.filters.filter import event_of
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.frames import (
    ADVERTISE,
    INVITATION,
    SUBSCRIBE,
    UNADVERTISE,
    UNSUBSCRIBE,
    Change,
    Operate,
    Publication,
)
from ensue.protocols.content.tables import Tables

__all__ = [
    "INVERSE",
    "SPLIT",
    "no_such",
    "overfull",
    "refusal",
    "reserved",
    "reserved_name",
    "too_long",
    "too_many_transactions",
    "uncovered",
]

INVERSE = {ADVERTISE: UNADVERTISE, SUBSCRIBE: UNSUBSCRIBE}
"""The action that withdraws each addition."""
SPLIT = "do it in several transactions"


def refusal(frame: Operate, client: str, tables: Tables, config: ContentConfig) -> str:
    """Return why an operation is refused, or nothing."""
    try:
        if frame.publication is not None:
            return reserved(frame.publication) or uncovered(
                frame.publication, client, tables, within=bool(frame.transaction)
            )
        if frame.change is not None:
            return _change(frame.change, client, tables, config)
    except BadInput as error:
        return str(error)
    return "an operation needs a change or a publication"


def reserved(publication: Publication) -> str:
    """Return the refusal of a publication with a reserved attribute, or nothing."""
    return reserved_name(INVITATION) if INVITATION in publication.attributes else ""


def reserved_name(attribute: str) -> str:
    """Return the refusal of an attribute that applications may not use."""
    return f"the attribute {attribute!r} is reserved: use another name"


def uncovered(publication: Publication, client: str, tables: Tables, *, within: bool) -> str:
    """Return the refusal if a client has not advertised what it publishes, or nothing.

    Within a transaction, an advertisement counts only when it has reached all brokers: otherwise
    the event would reach some subscribers and not others.
    """
    event = event_of(publication.attributes)
    spreading = ""
    for name in tables.advertised(event, client):
        if not within or name not in tables.spreading:
            return ""
        spreading = name
    if spreading:
        return f"{spreading!r} has not reached all brokers: try again"
    return f"no advertisement of {client} covers it"


def too_long(config: ContentConfig) -> str:
    """Return the refusal of a timeout that is too long."""
    what = "the timeout of the transaction is too long"
    return limit_reason(what, "timeout_ns_max", config.timeout_ns_max, "ask for less")


def too_many_transactions(client: str, config: ContentConfig) -> str:
    """Return the refusal if a client coordinates too many transactions."""
    what = f"{client} coordinates too many transactions"
    how = "end some first, or use another bus"
    return limit_reason(what, "transactions_max", config.transactions_max, how)


def no_such(change: Change) -> str:
    """Return the refusal of an unknown action, or nothing: it could not be undone."""
    known = change.action in INVERSE or change.action in INVERSE.values()
    return "" if known else f"there is no action {change.action!r}"


def overfull(change: Change, client: str, tables: Tables, config: ContentConfig) -> str:
    """Return the refusal if the broker of a client has no room for a change, or nothing."""
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


def _change(change: Change, client: str, tables: Tables, config: ContentConfig) -> str:
    unknown = no_such(change)
    if unknown:
        return unknown
    if change.action in INVERSE:
        parse(change.where)
        return overfull(change, client, tables, config)
    held = tables.table(change).get(change.name)
    if held is None:
        return f"there is no {change.name!r}"
    return f"{change.name!r} belongs to another client" if held.hop != client else ""
