"""Old versions of the routing tables, by which older publications are still routed.

A commit of a serializable transaction makes a new version of the tables. The broker keeps what the
commit changed while publications routed by the version before may be under way (D8). The old
version is the current tables without the changes of later commits, newest first.
"""

from collections.abc import Mapping, Sequence

import msgspec

from ensue.protocols.content.entries import Entry
from ensue.protocols.content.filters.parser import parse
from ensue.protocols.content.filters.spaces import Value
from ensue.protocols.content.tables import Tables

__all__ = ["Undo", "route_back"]


class Undo(msgspec.Struct, array_like=True):
    """The change of the subscriptions by one commit."""

    version: int
    """The version that the commit made."""
    added: list[str]
    removed: dict[str, Entry]
    transaction: str = ""
    withdrawn: dict[str, list[str]] = {}
    """By client of this broker: withdrawn subscriptions that older events may still match."""


def route_back(
    tables: Tables, undos: Sequence[Undo], event: Mapping[str, Value], hop: str, version: int
) -> tuple[list[str], dict[str, list[str]]]:
    """Return where an event that came from `hop` goes by an old version."""
    hidden: set[str] = set()
    old: dict[str, Entry] = {}
    later = [undo for undo in undos if undo.version > version]
    assert later, "the version was forgotten"
    assert later[0].version == version + 1, "the version was forgotten"
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
