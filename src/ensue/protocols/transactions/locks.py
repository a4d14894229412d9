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

from ensue.protocols.content.filters.filter import Box, inside, touch
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.filters.spaces import Value
from ensue.protocols.transactions.contexts import Context, Lock

__all__ = ["overlap"]


def overlap(one: Context, other: Context) -> bool:
    """Return whether two transactions conflict at this broker."""
    mine, its = _lock_of(one), _lock_of(other)
    if not mine.names.isdisjoint(its.names):
        return True
    # Loops: every vote compares its transaction with all that are voted on.
    for here in mine.boxes:
        for there in its.boxes:
            if touch(here, there):
                return True
    return _matches(mine.events, its.boxes) or _matches(its.events, mine.boxes)


def _matches(events: list[dict[str, Value]], boxes: list[Box]) -> bool:
    for event in events:
        for box in boxes:
            if inside(box, event):
                return True
    return False


def _lock_of(context: Context) -> Lock:
    if context.lock is None:
        context.lock = Lock(
            [box for where in context.changed for box in parse(where).boxes],
            _events(context),
            _names(context),
        )
    return context.lock


def _events(context: Context) -> list[dict[str, Value]]:
    return [step.publication.attributes for step in context.log if step.publication is not None]


def _names(context: Context) -> set[str]:
    return {change.name for step in context.log for change in step.changes}
