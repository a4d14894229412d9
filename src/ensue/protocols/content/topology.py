"""The tree of brokers: its shape, and neighbors that join and leave while it is in use.

Theory of operation. Brokers join and leave at the leaves. A broker that joins is empty. The broker
it is attached to *adopts* it: ahead of all else it sends its version of the tables and the commits
that events under way may not have seen (`Adopted`); then, as regular steps, all advertisements and
all clients. The new broker passes all of it on to the brokers behind it. Until it is adopted its
own clients wait to be welcomed: its link keeps its steps to the broker that does not know it yet.

Transactions that are open meanwhile. A serializable transaction that has advertised something, and
that this broker has not voted for, is refused as a conflict: the new broker does not know the
advertisement. One that was voted for is corrected behind its commit, as after any regular change
(D11). Plans continue among the brokers that were present when the plan came.

A broker is *abandoned* when nothing of it is left: no client, advertisement, subscription or open
transaction (`hold_of` names what is left). Brokers that do not know yet may plan operations for its
former clients; the broker that abandoned it answers for those (`transactions.plans`).

HAZARD: two trees that were both in use can't be joined: their versions are unrelated. A broker that
was abandoned can only join again empty, as a new one.
"""

from collections.abc import Iterable, Mapping, Sequence

from ensue.core.errors import ConfigurationError
from ensue.protocols.content import frames as f
from ensue.protocols.content.frames import Change
from ensue.protocols.content.state import BrokerState
from ensue.protocols.content.steps import Pending, Steps
from ensue.protocols.content.versions import Undo

__all__ = ["Topology", "broker_of", "check_tree", "server_of", "tree_of"]

CHANGES_MAX = 500
"""Advertisements that a new broker is sent in one step."""


class Topology:
    """The neighbors of one broker."""

    def __init__(self, state: BrokerState, steps: Steps) -> None:
        self._state = state
        self._steps = steps

    def adopt(self, newcomer: str, introduction: f.Adopted) -> None:
        """Add a neighbor that joins, and send it the state of the tree."""
        state = self._state
        state.neighbors = tuple(sorted({*state.neighbors, newcomer}))
        state.tables.add_neighbor(newcomer)
        state.send(newcomer, introduction)
        pending = Pending()
        advertised = [
            Change(f.ADVERTISE, name, entry.where)
            for name, entry in state.tables.advertisements.items()
        ]
        for first in range(0, len(advertised), CHANGES_MAX):
            self._steps.cause(pending, newcomer, tuple(advertised[first : first + CHANGES_MAX]))
        for client, (home, _) in state.members.items():
            self._steps.cause(pending, newcomer, member=client, home=home)
        self._steps.settle(pending)

    def adopted(self, frame: f.Adopted, source: str) -> None:
        """Begin with the versions that the other brokers have."""
        self._state.commits = dict(frame.commits)
        self._state.undos = [Undo(number, [], {}, home=home) for home, number in frame.kept]
        self._state.flood(frame, but=source)

    def abandon(self, neighbor: str) -> None:
        """Remove a neighbor that has left permanently."""
        state = self._state
        state.neighbors = tuple(each for each in state.neighbors if each != neighbor)
        state.tables.remove_neighbor(neighbor)
        self._steps.remove_neighbor(neighbor)

    def hold_of(self, neighbor: str) -> str:
        """Return what is left of a neighbor and the brokers behind it; empty if nothing."""
        for client, (_, hop) in self._state.members.items():
            if hop == neighbor:
                return f"its client {client}"
        tables = self._state.tables
        for table in (tables.advertisements, tables.subscriptions):
            for name, entry in table.items():
                if entry.hop == neighbor:
                    return f"{name}, of its clients"
        return ""


# -- The shape of the tree ------------------------------------------------------------------------


def broker_of(server: str) -> str:
    """Return the name of a server's broker. No client's name has a slash."""
    return f"{server}/content"


def server_of(broker: str) -> str:
    """Return the name of a broker's server; on `memory://`, the broker's own name."""
    return broker.removesuffix("/content")


def tree_of(names: Sequence[str], parents: Mapping[str, str] | None = None) -> dict[str, list[str]]:
    """Return the neighbors of each broker.

    A broker without a parent in `parents` has that of a binary tree, by its rank.
    """
    neighbors: dict[str, list[str]] = {name: [] for name in names}
    for number, name in enumerate(names[1:], 1):
        parent = (parents or {}).get(name) or names[(number - 1) // 2]
        if parent not in names[:number]:
            raise ConfigurationError(
                f"the parent of broker {name!r} must be an earlier broker, got {parent!r}"
            )
        neighbors[name].append(parent)
        neighbors[parent].append(name)
    return neighbors


def check_tree(neighbors: Mapping[str, Iterable[str]]) -> None:
    """Raise `ConfigurationError` unless brokers, each with its neighbors, form one tree."""
    links = {frozenset((one, other)) for one, others in neighbors.items() for other in others}
    for one, others in neighbors.items():
        for other in others:
            if other not in neighbors or one not in neighbors[other] or one == other:
                raise ConfigurationError(f"brokers {one!r} and {other!r} must name each other")
    reached: list[str] = list(neighbors)[:1]
    for one in reached:
        reached += [other for other in sorted(neighbors[one]) if other not in reached]
    if len(reached) != len(neighbors) or len(links) != len(neighbors) - 1:
        raise ConfigurationError(
            "brokers must form one tree, without cycles or unconnected brokers"
        )
