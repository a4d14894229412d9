"""Brokers and clients behind their numbered links: what a driver drives.

A broker has links to its neighbours and to each client whose home it is; a client has one, to its home. `Hello`, `Beat` and `Expired` travel as they
are: whoever sends them repeats them. A client that takes nothing for so long that `unacknowledged_max` frames wait for it is taken for gone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ensue.errors import ConfigurationError
from ensue.protocols.core import Effect, Frame
from ensue.protocols.link import LinkConfig, Linked
from ensue.protocols.overlay.broker import Broker
from ensue.protocols.overlay.client import OverlayClient
from ensue.protocols.overlay.frames import Beat, Expired, Hello
from ensue.protocols.overlay.joining import Joining
from ensue.wire import Codec

__all__ = [
    "CONNECTED",
    "UNNUMBERED",
    "BrokerNode",
    "ClientNode",
    "broker_of",
    "check_tree",
    "server_of",
    "tree_of",
]

CONNECTED = LinkConfig(
    retry_ns=2_000_000_000,
    retry_ns_max=10_000_000_000,
    acknowledge_ns=100_000_000,
    group_bytes=64 * 1024,
)
"""For links over connections: these lose nothing but when they end, and then what was under way is sent again at once (`repeat`). Sooner, whoever is merely
busy would be sent everything twice."""
UNNUMBERED: tuple[type[Frame], ...] = (Hello, Beat, Expired)


def broker_of(server: str) -> str:
    """Return the name of the broker beside a station. No client's name holds a slash."""
    return f"{server}/content"


def server_of(broker: str) -> str:
    """Return the name of the server whose broker this is; on `memory://`, the broker's own."""
    return broker.removesuffix("/content")


def tree_of(names: Sequence[str], parents: Mapping[str, str] | None = None) -> dict[str, list[str]]:
    """Return for each broker who is next to it: below its parent, or, without one, as in a binary tree by rank."""
    neighbours: dict[str, list[str]] = {name: [] for name in names}
    for number, name in enumerate(names[1:], 1):
        parent = (parents or {}).get(name) or names[(number - 1) // 2]
        if parent not in names[:number]:
            raise ConfigurationError(f"{name!r} stands beside {parent!r}, which is not before it")
        neighbours[name].append(parent)
        neighbours[parent].append(name)
    return neighbours


class BrokerNode(Linked):
    """A broker with its links. `make` builds the broker from its records."""

    inner: Broker

    def __init__(
        self,
        make: Callable[[Mapping[str, bytes]], Broker],
        *,
        neighbours: Iterable[str],
        codec: Codec,
        link: LinkConfig | None = None,
        durable: bool = True,
        records: Mapping[str, bytes] | None = None,
        now_ns: int = 0,
    ) -> None:
        kept = records or {}
        self._heard_ns: dict[str, int] = {}
        """By neighbour: when it last sent something."""
        peers = [key.partition("/")[2] for key in kept if key.startswith(("client/", "neighbour/"))]
        super().__init__(
            make,
            peers=dict.fromkeys((*neighbours, *peers)),
            codec=codec,
            unnumbered=UNNUMBERED,
            config=link,
            durable=durable,
            records=kept,
            now_ns=now_ns,
        )

    @property
    def broker(self) -> Broker:
        """The broker itself."""
        return self.inner

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        """Give a client that comes a link of its own, and hear of one that is there however much is on its way to others."""
        if isinstance(frame, Hello) and source not in self._out:
            self.link(source)
            self._persist(f"client/{source}", b"")
        if isinstance(frame, Beat | Hello):
            self._now_ns = now_ns
            self.inner.receive(frame, source=source, now_ns=now_ns)
            return
        if source in self.inner.neighbours:
            self._heard_ns[source] = now_ns
            self.inner.note_back(source, now_ns=now_ns)
        super().receive(frame, source=source, now_ns=now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Do what is due; take neighbours for away that have acknowledged nothing for `away_ns`."""
        for neighbour in self.inner.neighbours:
            due_ns = self._away_at_ns(neighbour)
            if due_ns is not None and due_ns <= now_ns:
                self.inner.note_away(neighbour, now_ns=now_ns)
        super().handle_timer(now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when something is due."""
        dues = [self._away_at_ns(neighbour) for neighbour in self.inner.neighbours]
        dues.append(super().next_timer_ns())
        return min((due_ns for due_ns in dues if due_ns is not None), default=None)

    def _away_at_ns(self, neighbour: str) -> int | None:
        """Return when a neighbour is away, unless it sends something before.

        One that was never heard may know nothing of this broker yet (`joining`): that is waited for.
        """
        link = self._out[neighbour]
        if not link.unacknowledged or self.inner.is_away(neighbour):
            return None
        if self._in[neighbour].next == 1 and next(iter(link.unacknowledged)) == 1:
            return None
        since_ns = max(link.since_ns, self._heard_ns.get(neighbour, 0))
        return since_ns + self.inner.config.away_ns

    def lose_connection(self, client: str, *, now_ns: int) -> None:
        """Note that a client has no connection; its grace begins at `now_ns`."""
        self.inner.lose_connection(client, now_ns=now_ns)

    def regain_connection(self, client: str, *, now_ns: int) -> None:
        """Note that a client has a connection."""
        self._now_ns = now_ns
        self.inner.regain_connection(client, now_ns=now_ns)

    def adopt(self, neighbour: str, *, now_ns: int) -> None:
        """Let a newcomer stand beside this broker; one that does already is no matter."""
        assert isinstance(self.inner, Joining)
        if neighbour not in self.inner.neighbours:
            self._now_ns = now_ns
            self.link(neighbour)
            self._persist(f"neighbour/{neighbour}", b"")
            self.inner.adopt(neighbour, now_ns=now_ns)

    def abandon(self, neighbour: str, *, now_ns: int) -> None:
        """Be without a neighbour of which nothing is there any more."""
        assert isinstance(self.inner, Joining)
        self._now_ns = now_ns
        self.inner.abandon(neighbour, now_ns=now_ns)
        self.unlink(neighbour)
        self._persist(f"neighbour/{neighbour}", None)

    def take_effects(self) -> Sequence[Effect]:
        """Drain what is to be done; end the links of clients that are gone."""
        for client in self.inner.clients:
            link = self._out.get(client)
            if link and len(link.unacknowledged) >= self._config.unacknowledged_max:
                self.inner.expire(client, now_ns=self._now_ns)
        effects = list(super().take_effects())
        departed, self.inner.departed = self.inner.departed, []
        for client in departed:
            self.unlink(client)
            self._persist(f"client/{client}", None)
        effects += self._effects
        self._effects = []
        return effects


class ClientNode(Linked):
    """A client with its link."""

    inner: OverlayClient

    def __init__(
        self,
        make: Callable[[Mapping[str, bytes]], OverlayClient],
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
    def client(self) -> OverlayClient:
        """The client itself: commands go there."""
        return self.inner

    def handle_timer(self, *, now_ns: int) -> None:
        """Do what is due: nothing, once the home knows that this client is gone."""
        if not self.inner.gone:
            super().handle_timer(now_ns=now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when something is due."""
        return None if self.inner.gone else super().next_timer_ns()


def check_tree(neighbours: Mapping[str, Iterable[str]]) -> None:
    """Refuse brokers that do not form one tree; `neighbours` says for each who is next to it."""
    links = {frozenset((one, other)) for one, others in neighbours.items() for other in others}
    for one, others in neighbours.items():
        for other in others:
            if other not in neighbours or one not in neighbours[other] or one == other:
                raise ConfigurationError(f"brokers {one!r} and {other!r} must name each other")
    reached: list[str] = list(neighbours)[:1]
    for one in reached:
        reached += [other for other in sorted(neighbours[one]) if other not in reached]
    if len(reached) != len(neighbours) or len(links) != len(neighbours) - 1:
        raise ConfigurationError("brokers must form one tree: no cycle, and nobody apart")
