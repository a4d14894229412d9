"""Brokers and clients behind their numbered links: the nodes that a driver drives.

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

__all__ = ["CONNECTED", "BrokerNode", "ClientNode"]

CONNECTED = LinkConfig(
    retry_ns=2_000_000_000,
    retry_ns_max=10_000_000_000,
    acknowledge_ns=100_000_000,
    group_bytes=64 * 1024,
)
"""For links over connections, which lose frames only when they end.

Then frames under way are retransmitted at once (`repeat`). A shorter `retry_ns` would send a peer
that is merely busy everything twice.
"""


class BrokerNode(Linked):
    """A broker with its links. `make` builds the broker from its records."""

    inner: TransactionBroker

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
        self._heard_ns: dict[str, int] = {}
        """By neighbor: when it last sent something."""
        peers = [key.partition("/")[2] for key in kept if key.startswith(("client/", "neighbour/"))]
        super().__init__(
            make,
            peers=dict.fromkeys((*neighbors, *peers)),
            codec=codec,
            unnumbered=UNNUMBERED,
            config=link,
            durable=durable,
            records=kept,
            now_ns=now_ns,
        )

    @property
    def broker(self) -> TransactionBroker:
        """The broker itself."""
        return self.inner

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Handle a frame; give a new client a link of its own.

        Beats are handled however many frames are under way to others.
        """
        if isinstance(frame, Hello) and source not in self._out:
            self.link(source)
            self._persist(f"client/{source}", b"")
        if isinstance(frame, Beat | Hello):
            self._now_ns = now_ns
            self.inner.receive(frame, source=source, now_ns=now_ns)
            return
        if source in self.inner.neighbors:
            self._heard_ns[source] = now_ns
            self.inner.note_back(source, now_ns=now_ns)
        super().receive(frame, source=source, now_ns=now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Handle timers; note neighbors that have acknowledged nothing for `away_ns`."""
        for neighbor in self.inner.neighbors:
            due_ns = self._away_at_ns(neighbor)
            if due_ns is not None and due_ns <= now_ns:
                self.inner.note_away(neighbor, now_ns=now_ns)
        super().handle_timer(now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when `handle_timer` has something to do."""
        dues = [self._away_at_ns(neighbor) for neighbor in self.inner.neighbors]
        dues.append(super().next_timer_ns())
        return min((due_ns for due_ns in dues if due_ns is not None), default=None)

    def _away_at_ns(self, neighbor: str) -> int | None:
        """Return when a neighbor is away, unless it sends something before.

        One that was never heard may not know this broker yet (`topology`): clients wait for it.
        """
        link = self._out[neighbor]
        if not link.unacknowledged or self.inner.is_away(neighbor):
            return None
        if self._in[neighbor].next == 1 and next(iter(link.unacknowledged)) == 1:
            return None
        since_ns = max(link.since_ns, self._heard_ns.get(neighbor, 0))
        return since_ns + self.inner.config.away_ns

    def lose_connection(self, client: str, *, now_ns: int) -> None:
        """Note that a client has no connection; its grace begins at `now_ns`."""
        self.inner.lose_connection(client, now_ns=now_ns)

    def regain_connection(self, client: str, *, now_ns: int) -> None:
        """Note that a client has a connection."""
        self._now_ns = now_ns
        self.inner.regain_connection(client, now_ns=now_ns)

    def adopt(self, neighbor: str, *, now_ns: int) -> None:
        """Take in a neighbor that joins; do nothing if it is one already."""
        if neighbor not in self.inner.neighbors:
            self._now_ns = now_ns
            self.link(neighbor)
            self._persist(f"neighbour/{neighbor}", b"")
            self.inner.adopt(neighbor, now_ns=now_ns)

    def abandon(self, neighbor: str, *, now_ns: int) -> None:
        """Remove a neighbor of which nothing is left."""
        self._now_ns = now_ns
        self.inner.abandon(neighbor, now_ns=now_ns)
        self.unlink(neighbor)
        self._persist(f"neighbour/{neighbor}", None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain the effects; end the links of clients that have left."""
        for client in self.inner.clients:
            link = self._out.get(client)
            if link and len(link.unacknowledged) >= self._config.unacknowledged_max:
                self.inner.expire(client, now_ns=self._now_ns)
        effects = list(super().take_effects())
        for client in self.inner.take_departed():
            self.unlink(client)
            self._persist(f"client/{client}", None)
        effects += self._effects
        self._effects = []
        return effects


class ClientNode(Linked):
    """A client with its link."""

    inner: TransactionClient

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
        super().__init__(
            make,
            peers=(home,),
            codec=codec,
            unnumbered=UNNUMBERED,
            config=link,
            durable=durable,
            records=records,
            now_ns=now_ns,
        )

    @property
    def client(self) -> TransactionClient:
        """The client itself: commands go there."""
        return self.inner

    def handle_timer(self, *, now_ns: int) -> None:
        """Handle timers, until the home knows that this client has left."""
        if not self.inner.gone:
            super().handle_timer(now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when `handle_timer` has something to do."""
        return None if self.inner.gone else super().next_timer_ns()
