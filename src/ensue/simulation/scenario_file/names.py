"""Names of a scenario file: nodes, groups of nodes, sites and topics.

A table with `count` is a group: its name stands for all its members wherever nodes are named, and
so does the name of a site for all nodes there. A file that lists topics, at the top or at the nodes
of the chain, may use no others; one that lists none may use any.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import chain

from ensue import orders
from ensue.core.errors import BadInput, ConfigurationError
from ensue.simulation.scenario_file.tables import File, Member, Topics
from ensue.simulation.scenario_file.values import COUNT_MAX, Names, read_value

__all__ = ["REGISTRY", "Directory", "placed", "unknown"]

EVENTS_MAX = 10_000_000
"""Maximum events of all rates of a file: a run with more takes too long."""
EVENT_BYTES_MAX = 16_000_000
"""The largest payload: half of the largest frame."""
REGISTRY = "registry"
"""The node that clients register with."""

Placed = Sequence[tuple[str, str]]
"""The name and site of each node of a table."""

_SHOWN_MAX = 12
"""How many known names an error lists."""


def unknown(place: str, what: str, name: str, known: Iterable[str]) -> BadInput:
    """Return the error for an unknown name, with the nearest known one."""
    names = list(dict.fromkeys(known))
    near = get_close_matches(name, names, n=1)
    if near:
        return BadInput(f"{place}: there is no {what} {name!r}; did you mean {near[0]!r}?")
    listed = ", ".join(names[:_SHOWN_MAX]) + (", …" if len(names) > _SHOWN_MAX else "")
    return BadInput(f"{place}: there is no {what} {name!r}; there are: {listed or 'none'}")


@contextmanager
def placed(place: str) -> Iterator[None]:
    """Turn an error of a configuration into one with the place in the file."""
    try:
        yield
    except ConfigurationError as error:
        text = re.sub(r"\b[A-Z]\w+\.(?=[a-z])", "", str(error)).replace("_ns", "")
        raise BadInput(f"{place}: {text}") from None


class Directory:
    """All names of one file, and the nodes and topics they stand for."""

    def __init__(self, file: File) -> None:
        self.sites: dict[str, list[str]] = {site: [] for site in file.sites}
        """Site to the nodes there."""
        self._duration_ns = file.duration
        self._closed_sites = bool(file.sites)
        self._nodes: dict[str, list[str]] = {}
        self.chain = self._members("chain", file.chain)
        """For each table of the chain, the name and site of each of its members."""
        self.ens = self._members("ens", file.ens)
        self.publishers = self._members("publishers", file.publishers)
        self.subscribers = self._members("subscribers", file.subscribers)
        self.brokers = self._members("brokers", file.brokers)
        self.clients = self._members("clients", file.clients)
        if file.registered:
            self._nodes.setdefault(REGISTRY, [REGISTRY])
        # Without a chain, what strikes a site strikes the others there.
        self._absent: set[str] = set()
        self._order = file.order
        guarantee = orders.named(file.order)
        if not guarantee.has_chain:
            self._absent = {name for table in self.chain for name, _ in table}
        if not guarantee.has_topic_log:
            self._absent |= {name for table in self.ens for name, _ in table}
        self._asked = 0.0
        """Events of all rates so far."""
        self._topics: dict[str, list[str]] = {}
        self._declare_topics(file)

    def nodes(self, place: str, names: Names) -> tuple[str, ...]:
        """Return the nodes that names of nodes, groups and sites stand for, each once."""
        found: list[str] = []
        for name in names:
            if name in self._nodes:
                members = self._nodes[name]
                if self._absent.issuperset(members):
                    ens = orders.named(self._order).has_topic_log
                    missing = "no chain" if ens else "neither chain nor ens"
                    raise BadInput(
                        f'{place}: with order = "{self._order}" there is {missing}, so {name!r} is '
                        'not there; name another, or use order = "total"'
                    )
            elif name in self.sites:
                members = [one for one in self.sites[name] if one not in self._absent]
            else:
                raise unknown(place, "node, group or site", name, [*self._nodes, *self.sites])
            if not members:
                # An empty tuple of names would mean all nodes.
                raise BadInput(f"{place}: no node is at {name!r}; name a node or another site")
            found += members
        return tuple(dict.fromkeys(found))

    def publishers_named(self, place: str, names: Names) -> tuple[str, ...]:
        """Return the publishers, or clients of brokers, that names stand for; refuse others."""
        if self.clients:
            return self.members(place, "client", self.clients, names)
        return self.members(place, "publisher", self.publishers, names)

    def members(
        self, place: str, what: str, tables: Sequence[Placed], names: Iterable[str]
    ) -> tuple[str, ...]:
        """Return the nodes of one kind that names stand for; refuse others."""
        known = [name for table in tables for name, _ in table]
        found = self.nodes(place, Names(names))
        for name in found:
            if name not in known:
                raise unknown(place, what, name, known)
        return found

    def site(self, place: str, name: str) -> str:
        """Return a site; raise if it is unknown."""
        if name not in self.sites:
            raise unknown(place, "site", name, self.sites)
        return name

    def topics(self, place: str, names: Iterable[str]) -> tuple[str, ...]:
        """Return the topics that names of topics stand for, each once."""
        if not self._topics:
            return tuple(names)
        found: list[str] = []
        for name in names:
            if name not in self._topics:
                error = unknown(place, "topic", name, self._topics)
                raise BadInput(f"{error} (or add it to `topics` at the top of the file)")
            found += self._topics[name]
        return tuple(dict.fromkeys(found))

    def topic(self, place: str, name: str) -> str:
        """Return one topic; raise if it is unknown."""
        found = self.topics(place, (name,))
        if len(found) != 1:
            raise BadInput(f"{place}: {name!r} stands for {len(found)} topics; name one of them")
        return found[0]

    def within(self, place: str, at_ns: int) -> int:
        """Return a time; raise if it is after the scenario's duration."""
        if at_ns > self._duration_ns:
            raise BadInput(
                f"{place}: comes after the scenario's duration ({self._duration_ns / 1e9:g}s); "
                "make it earlier, or `duration` longer"
            )
        return at_ns

    def span(self, place: str, from_ns: int, until_ns: int | None) -> None:
        """Check that something begins within the duration, and ends after it began."""
        self.within(f"{place}.from", from_ns)
        if until_ns is not None and until_ns <= from_ns:
            raise BadInput(f"{place}.until: must come after `from`")

    def size(self, place: str, size: int) -> int:
        """Return the size of a payload; raise if it is too large."""
        if size > EVENT_BYTES_MAX:
            raise BadInput(f"{place}.size: must be at most {EVENT_BYTES_MAX} bytes, got {size}")
        return size

    def count_events(
        self, place: str, per_second: float, from_ns: int, until_ns: int | None
    ) -> None:
        """Add the events of a rate of one node; raise if those of the file are too many."""
        self._asked += per_second * ((until_ns or self._duration_ns) - from_ns) / 1e9
        if self._asked > EVENTS_MAX:
            raise BadInput(
                f"{place}: ask for {self._asked:.0f} events, more than {EVENTS_MAX}; lower "
                "per_second or the duration"
            )

    def _declare_topics(self, file: File) -> None:
        for index, entry in enumerate(file.topics):
            place = f"topics[{index}]"
            if isinstance(entry, Topics):
                names = numbered(place, entry.name, entry.count)
                self._topics[entry.name] = names
            else:
                try:
                    names = list(read_value(Names, entry))
                except ValueError as error:
                    raise BadInput(f"{place}: {error}") from None
            self._topics.update({name: [name] for name in names})
        for name in chain.from_iterable(node.topics for node in file.chain):
            self._topics.setdefault(name, [name])

    def _members(self, where: str, tables: Sequence[Member]) -> list[list[tuple[str, str]]]:
        members = []
        for index, table in enumerate(tables):
            place = f"{where}[{index}]"
            names = numbered(place, table.name, table.count)
            for name in dict.fromkeys((table.name, *names)):
                if name in self._nodes:
                    raise BadInput(f"{place}.name: {name!r} is taken; every name must be unique")
            self._nodes[table.name] = names
            self._nodes.update({name: [name] for name in names})
            sites = [self._site_of(f"{place}.site", site) for site in table.site] or [""]
            placed = [(name, sites[number % len(sites)]) for number, name in enumerate(names)]
            for name, site in placed:
                if site:
                    self.sites.setdefault(site, []).append(name)
            members.append(placed)
        return members

    def _site_of(self, place: str, site: str) -> str:
        if self._closed_sites and site not in self.sites:
            raise unknown(place, "site", site, self.sites)
        return site


def numbered(place: str, name: str, count: int | None) -> list[str]:
    """Return `name-1`, `name-2`, … if there is a count, else the name itself."""
    if not name:
        raise BadInput(f"{place}.name: must not be empty")
    if count is None:
        return [name]
    if not 1 <= count <= COUNT_MAX:
        raise BadInput(f"{place}.count: must be from 1 to {COUNT_MAX}, got {count}")
    return [f"{name}-{number}" for number in range(1, count + 1)]
