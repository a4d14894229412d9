"""What a subscriber wants of a topic: all of it, or the events whose headers match a filter.

Whoever passes a message on to a subscriber leaves out the events that it does not want. A message of which nothing is left goes all the same: its round is
settled by it, and what comes later does not have to wait until it is dead.

Whoever was sent a part has that part alone. So it passes the message on to those only who want no more than is in it, and a part of less than is wanted,
sent by somebody who knew an older wish, is passed over.

A wish is the text of a filter (`overlay.parsing`), and the empty text is everything.

HAZARD: the more wishes differ, the fewer peers can pass a message on to each other, and the more is left to brokers and to those who want everything: give such topics a larger
`fan_out`.
"""

from collections.abc import Iterable

import msgspec

from ensue.errors import BadInput
from ensue.protocols.gossip.frames import Rumour
from ensue.protocols.overlay.filters import ALL
from ensue.protocols.overlay.parsing import parse

__all__ = ["EVERYTHING", "are_readable", "holds", "part", "wish"]

EVERYTHING = ""


def wish(where: str) -> str:
    """Return a filter as a wish: two that say the same in other words are often the same text."""
    wanted = parse(where)
    return EVERYTHING if wanted == ALL else wanted.to_text()


def are_readable(wishes: Iterable[str]) -> bool:
    """Tell whether wishes of somebody else are filters."""
    try:
        for each in wishes:
            parse(each)
    except BadInput:
        return False
    return True


def holds(cut: str, wanted: str) -> bool:
    """Tell whether messages cut down to one wish have all that another asks for."""
    if cut in (EVERYTHING, wanted):
        return True
    return wanted != EVERYTHING and parse(cut).covers(parse(wanted))


def part(rumour: Rumour, wanted: str) -> Rumour:
    """Return a message with the events that are wanted."""
    if wanted == EVERYTHING:
        return rumour
    matches = parse(wanted).matches
    events = tuple(event for event in rumour.events if matches(event.headers))
    return msgspec.structs.replace(rumour, events=events)
