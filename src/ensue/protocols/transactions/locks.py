"""Locks: which transactions conflict at a broker, so that one waits for the other.

A broker that has voted for a serializable transaction holds a lock for it until it carries the
decision out. The lock is on what the transaction changes or depends on at this broker:

* an event that it publishes;
* the filter of a subscription or advertisement that it makes or withdraws;
* with an advertisement, the filters of all subscriptions here that overlap it: whether these are
  needed at a neighbor depends on all advertisements from there.

Two transactions conflict if a filter of one overlaps a filter of the other or matches its event, or
if both change one subscription or advertisement. Two that only publish do not conflict.

Steps that do not conflict commute: they change different entries, and neither changes what the
other reads. A publication reads the subscriptions that match it. A subscription reads the
advertisements that overlap it, and the subscriptions that cover it; an unsubscription, also those
that it covers. An advertisement reads the subscriptions that overlap it and those that cover these,
which overlap it too; an unadvertisement, also the other advertisements that overlap these.
"""

from collections.abc import Iterator

from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.frames import ADVERTISE, UNADVERTISE
from ensue.protocols.content.tables import Layer, Tables
from ensue.protocols.transactions.contexts import Context, run

__all__ = ["changed_filters", "overlap"]


def changed_filters(context: Context, tables: Tables) -> list[str]:
    """Return the filters that a transaction changes or depends on at this broker."""
    found: dict[str, None] = {}
    layer = Layer(tables).tables
    for step in context.log:
        for change in step.changes:
            held = layer.table(change).get(change.name)
            where = held.where if held is not None else change.where
            if not where:
                continue  # It withdraws what is not here.
            found[where] = None
            if change.action in (ADVERTISE, UNADVERTISE):
                for name in layer.subscriptions.overlapping(parse(where)):
                    found[layer.subscriptions[name].where] = None
        if step.changes:
            run(layer, step)
    return list(found)


def overlap(one: Context, other: Context) -> bool:
    """Return whether two transactions conflict at this broker."""
    mine, its = ([parse(where) for where in each.changed] for each in (one, other))
    if any(here.overlaps(there) for here in mine for there in its):
        return True
    if any(there.matches(event) for event in _events(one) for there in its):
        return True
    if any(here.matches(event) for event in _events(other) for here in mine):
        return True
    return bool(_names(one) & _names(other))


def _events(context: Context) -> Iterator[dict[str, bool | int | float | str]]:
    for step in context.log:
        if step.publication is not None:
            yield step.publication.attributes


def _names(context: Context) -> set[str]:
    return {change.name for step in context.log for change in step.changes}
