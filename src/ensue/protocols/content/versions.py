"""Old versions of the routing tables, by which older publications are still routed.

A version of the tables is a set of commits of serializable transactions. The home of a coordinator
numbers its commits, and every broker carries them out by number, so a version is a number for each
home. A publication is routed everywhere by the version of its first broker (D8). It carries the
numbers of the homes that have commits which this broker has not forgotten. Of a home that it does
not name, its first broker had forgotten all commits that it had carried out.

A broker keeps what a commit changed until no publication that has not seen it can be under way. An
older version is the current tables without the changes of commits that it has not seen, newest
first. Commits may be carried out in different sequences at different brokers, but only if they do
not conflict; then they change different entries, and no event matches entries of both.

No broker lacks a commit that a publication has seen, and none has forgotten one that a publication
has not seen: links are FIFO, decisions and `Forget` are flooded along the tree, and `Forget`
follows the answers of all brokers, which push older publications out of the links.
"""

from collections.abc import Mapping, Sequence

import msgspec

from ensue.protocols.content.entries import Entry
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.filters.spaces import Value
from ensue.protocols.content.tables import Tables

__all__ = ["Undo", "route_back", "unseen"]


class Undo(msgspec.Struct, array_like=True):
    """The change of the subscriptions by one commit."""

    number: int
    """The number of the commit among those of its coordinator's home."""
    added: list[str]
    removed: dict[str, Entry]
    transaction: str = ""
    withdrawn: dict[str, list[str]] = {}
    """By client of this broker: withdrawn subscriptions that older events may still match."""
    home: str = ""
    """The home of the client that coordinated the transaction."""


def unseen(undos: Sequence[Undo], seen: Mapping[str, int]) -> list[Undo]:
    """Return the changes of commits that a version has not seen, oldest first."""
    return [undo for undo in undos if undo.number > seen.get(undo.home, 0)]


def route_back(
    tables: Tables, later: Sequence[Undo], event: Mapping[str, Value], hop: str
) -> tuple[list[str], dict[str, list[str]]]:
    """Return where an event that came from `hop` goes without the changes of later commits."""
    hidden: set[str] = set()
    old: dict[str, Entry] = {}
    for undo in reversed(later):
        for name in undo.added:
            old.pop(name, None)
            hidden.add(name)
        old.update(undo.removed)
    matched = [
        (name, tables.subscriptions[name])
        for name in tables.match(event)
        if name not in hidden and name not in old
    ]
    matched += [(name, entry) for name, entry in old.items() if parse(entry.where).matches(event)]
    return tables.destinations(iter(matched), hop)
