"""Interest: the events of a topic that a subscriber wants, by a header filter.

A process that forwards a message to a subscriber leaves out unwanted events. A message without
any wanted event is sent all the same: it settles its round, so that later messages need not wait
until it has expired.

A process that received a filtered part has only that part. So it forwards the message only to
peers that want no more than it contains. A part with less than is wanted, sent by a peer that
knew an older interest, is ignored.

An interest is the text of a filter (`content.filters`); the empty text is everything.

HAZARD: the more interests differ, the fewer peers can forward a message to each other, and the
more falls to brokers and to peers that want everything. Give such topics a larger `fan_out`.
"""

from collections.abc import Iterable

import msgspec

from ensue.core.errors import BadInput
from ensue.protocols.content.filters.filter import ALL
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.deadline.frames import Rumor

__all__ = ["EVERYTHING", "are_readable", "filter_text", "holds", "part"]

EVERYTHING = ""


def filter_text(where: str) -> str:
    """Return the normalized text of a filter."""
    wanted = parse(where)
    return EVERYTHING if wanted == ALL else wanted.to_text()


def are_readable(filters: Iterable[str]) -> bool:
    """Return whether texts of a peer are valid filters."""
    try:
        for each in filters:
            parse(each)
    except BadInput:
        return False
    return True


def holds(cut: str, wanted: str) -> bool:
    """Return whether messages filtered by `cut` contain all that `wanted` matches."""
    if cut in (EVERYTHING, wanted):
        return True
    return wanted != EVERYTHING and parse(cut).covers(parse(wanted))


def part(rumor: Rumor, wanted: str) -> Rumor:
    """Return a message with the wanted events only."""
    if wanted == EVERYTHING:
        return rumor
    matches = parse(wanted).matches
    events = tuple(event for event in rumor.events if matches(event.headers))
    return msgspec.structs.replace(rumor, events=events)
