"""Brokers and clients with their numbered links: the nodes that a driver runs.

A broker has links to its neighbors and to each of its clients; a client has one, to its home.
`Hello`, `Beat` and `Expired` travel without numbers: their senders repeat them. If
`unacknowledged_max` frames wait for a client, its session ends.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ensue.core.wire import Codec
from ensue.protocols.content.frames import UNNUMBERED, Beat, Hello
from ensue.protocols.interface import Effect, Frame
from ensue.protocols.shared.link import LinkConfig, Linked
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.client import TransactionClient

__all__ = ["BrokerNode", "ClientNode"]


class BrokerNode:
    """A broker with its links. `make` builds the broker from its records."""

    def __init__(
        self,
        make: Callable[[Mapping[str, bytes]], TransactionBroker],
        *,
        neighbors: Iterable[str],
        codec: Codec,
        link: LinkConfig | None = None,
        durable: bool = True,
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        kept = records or {}
        peers = [key.partition("/")[2] for key in kept if key.startswith(("client/", "neighbour/"))]
        self.links = Linked(
            make,
            peers=dict.fromkeys((*neighbors, *peers)),
            codec=codec,
            unnumbered=UNNUMBERED,
            config=link,
            durable=durable,
            records=kept,
            now_ns=now_ns,
        )
        self.broker = self.links.inner
        """The broker itself."""
        self.name = self.broker.name
        self._heard_ns: dict[str, int] = {}
        """By neighbor: when it last sent something."""

    @property
    def under_way_count(self) -> int:
        """The number of unacknowledged frames."""
        return self.links.under_way_count

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame; open a link to a new client.

        Beats are handled even while links are congested.
        """
        links, broker = self.links, self.broker
        if isinstance(frame, Hello) and not links.is_linked(source):
            links.link(source)
            links.persist(f"client/{source}", b"")
        if isinstance(frame, Beat | Hello):
            links.advance(now_ns)
            broker.receive(frame, source=source, now_ns=now_ns)
            return
        if source in broker.neighbors:
            self._heard_ns[source] = now_ns
            broker.note_back(source, now_ns=now_ns)
        links.receive(frame, source=source, now_ns=now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Run the timers; note neighbors that have acknowledged nothing for `away_ns`."""
        self._note_away(now_ns)
        self.links.handle_timer(now_ns=now_ns)

    def repeat(self, *, now_ns: int, peer: str | None = None) -> None:
        """Retransmit unacknowledged frames now, to one peer or all: a connection is new."""
        self._note_away(now_ns)
        self.links.repeat(now_ns=now_ns, peer=peer)

    def _note_away(self, now_ns: int) -> None:
        for neighbor in self.broker.neighbors:
            due_ns = self._away_at_ns(neighbor)
            if due_ns is not None and due_ns <= now_ns:
                self.broker.note_away(neighbor, now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due."""
        dues = [self._away_at_ns(neighbor) for neighbor in self.broker.neighbors]
        dues.append(self.links.next_timer_ns())
        return min((due_ns for due_ns in dues if due_ns is not None), default=None)

    def _away_at_ns(self, neighbor: str) -> int | None:
        """Return when a neighbor counts as away, unless it sends something before.

        A neighbor that never answered may not know this broker yet (`topology`): clients wait.
        """
        since_ns = self.links.unacknowledged_since_ns(neighbor)
        if since_ns is None or self.broker.is_away(neighbor):
            return None
        if not self.links.has_answered(neighbor):
            return None
        return max(since_ns, self._heard_ns.get(neighbor, 0)) + self.broker.config.away_ns

    def lose_connection(self, client: str, *, now_ns: int) -> None:
        """Start the grace period of a client that lost its connection."""
        self.broker.lose_connection(client, now_ns=now_ns)

    def regain_connection(self, client: str, *, now_ns: int) -> None:
        """End the grace period of a client that has a connection."""
        self.links.advance(now_ns)
        self.broker.regain_connection(client, now_ns=now_ns)

    def adopt(self, neighbor: str, *, now_ns: int) -> None:
        """Add a neighbor that joins; do nothing if it is one already."""
        if neighbor not in self.broker.neighbors:
            self.links.advance(now_ns)
            self.links.link(neighbor)
            self.links.persist(f"neighbour/{neighbor}", b"")
            self.broker.adopt(neighbor, now_ns=now_ns)

    def abandon(self, neighbor: str, *, now_ns: int) -> None:
        """Remove a neighbor that has no client, entry or transaction left."""
        self.links.advance(now_ns)
        self.broker.abandon(neighbor, now_ns=now_ns)
        self.links.unlink(neighbor)
        self.links.persist(f"neighbour/{neighbor}", None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects; close the links of departed clients."""
        for client in self.links.take_full():
            if client in self.broker.sessions:
                self.broker.expire(client, now_ns=self.links.now_ns)
        effects = list(self.links.take_effects())
        for client in self.broker.take_departed():
            self.links.unlink(client)
            self.links.persist(f"client/{client}", None)
        effects += self.links.take_link_effects()
        return effects


class ClientNode:
    """A client with its link. `make` builds the client from its records."""

    def __init__(
        self,
        make: Callable[[Mapping[str, bytes]], TransactionClient],
        *,
        home: str,
        codec: Codec,
        link: LinkConfig | None = None,
        durable: bool = True,
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        self.links = Linked(
            make,
            peers=(home,),
            codec=codec,
            unnumbered=UNNUMBERED,
            config=link,
            durable=durable,
            records=records,
            now_ns=now_ns,
        )
        self.client = self.links.inner
        """The client itself: commands go there."""
        self.name = self.client.name

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame."""
        self.links.receive(frame, source=source, now_ns=now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Run the timers, until the home knows that this client has left."""
        if not self.client.gone:
            self.links.handle_timer(now_ns=now_ns)

    def repeat(self, *, now_ns: int, peer: str | None = None) -> None:
        """Retransmit unacknowledged frames now: the connection is new."""
        if not self.client.gone:
            self.links.repeat(now_ns=now_ns, peer=peer)

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due."""
        return None if self.client.gone else self.links.next_timer_ns()

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects."""
        return self.links.take_effects()
