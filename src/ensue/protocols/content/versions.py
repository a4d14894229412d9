"""Old versions of the routing tables: what they were before the latest commits.

A commit of a serializable transaction makes a new version. What it changed is kept for as long as a publication that was routed by the version before may
be under way (D8); the old version is the tables as they are without what later commits did, newest first.
"""

from collections.abc import Mapping, Sequence

import msgspec

from ensue.protocols.overlay.parsing import parse
from ensue.protocols.overlay.spaces import Value
from ensue.protocols.overlay.tables import Entry, Tables

__all__ = ["Undo", "route_back"]


class Undo(msgspec.Struct, array_like=True):
    """What a commit changed in the PRT."""

    version: int
    """The version that the commit made."""
    added: list[str]
    removed: dict[str, Entry]
    transaction: str = ""
    withdrawn: dict[str, list[str]] = {}
    """By client of this broker: subscriptions that it withdrew, and for which events routed by the version before may still come."""


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
