"""The content brokers that a hub's buses use, and how a bus becomes a client of one.

In memory they are made when somebody first uses content and taken down with the last who does. They form a binary tree; clients are dealt out to them in turn.
Everything lives and dies with the process, so nothing is persisted. On `ensue://` they run in the servers, and the home of a client is the broker of the server that its URL
names.
"""

from weakref import WeakKeyDictionary

from ensue.errors import BadInput
from ensue.protocols.link import LinkConfig
from ensue.protocols.overlay.config import OverlayConfig
from ensue.protocols.overlay.nodes import CONNECTED, BrokerNode, ClientNode, broker_of, tree_of
from ensue.protocols.transactions.client import TransactionClient
from ensue.protocols.transactions.planner import TransactionBroker
from ensue.runtime.driver import Driver
from ensue.runtime.hub import Hub, MemoryHub
from ensue.transports import MemoryTransport

__all__ = ["Overlay", "overlay_of"]


class Overlay:
    """The brokers that the buses of one hub use."""

    _link: LinkConfig | None = None

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.config = OverlayConfig(durable=False)
        """Of clients too: what they are about ends with their process."""

    def client(self, name: str) -> ClientNode:
        """Return a client at its home."""
        home, now_ns = self._home(), self._hub.clock.now_ns()
        return ClientNode(
            lambda own: TransactionClient(
                name=name, home=home, config=self.config, records=own, now_ns=now_ns
            ),
            home=home,
            codec=TransactionClient.codec,
            link=self._link,
            durable=False,
            now_ns=now_ns,
        )

    def _home(self) -> str:
        """Return the home of the next client."""
        raise NotImplementedError

    def leave(self) -> None:
        """Hear that a user has left."""


class ServedOverlay(Overlay):
    """Brokers that run in servers."""

    _link = CONNECTED

    def _home(self) -> str:
        return broker_of(self._hub.server)


class MemoryOverlay(Overlay):
    """Brokers of a hub in memory."""

    def __init__(self, hub: Hub, brokers: int) -> None:
        super().__init__(hub)
        self.users = 0
        self._turn = 0
        self.names = [hub.unique("broker") for _ in range(brokers)]
        neighbours = tree_of(self.names)
        self._drivers = [self._drive(name, tuple(neighbours[name])) for name in self.names]
        assert isinstance(hub.transport, MemoryTransport)
        hub.transport.on_closed = self._disconnected

    def _drive(self, name: str, neighbours: tuple[str, ...]) -> Driver[BrokerNode]:
        hub, now_ns = self._hub, self._hub.clock.now_ns()
        node = BrokerNode(
            lambda own: TransactionBroker(
                name=name, neighbours=neighbours, config=self.config, records=own, now_ns=now_ns
            ),
            neighbours=neighbours,
            codec=TransactionBroker.codec,
            durable=False,
            now_ns=now_ns,
        )
        return Driver(node, transport=hub.transport, clock=hub.clock, recorder=hub.recorder)

    def _disconnected(self, name: str) -> None:
        """Start the grace of a client that ended without a goodbye, as after a failure."""
        for driver in self._drivers:
            if not driver.closed:
                driver.command(lambda node, now: node.lose_connection(name, now_ns=now))

    def _home(self) -> str:
        self._turn += 1
        return self.names[(self._turn - 1) % len(self.names)]

    def leave(self) -> None:
        """Take the brokers down with the last user."""
        self.users -= 1
        if not self.users:
            _overlays.pop(self._hub, None)
            assert isinstance(self._hub.transport, MemoryTransport)
            self._hub.transport.on_closed = None
            for driver in self._drivers:
                driver.close()


_overlays: WeakKeyDictionary[Hub, MemoryOverlay] = WeakKeyDictionary()


def overlay_of(hub: Hub) -> Overlay:
    """Return the overlay of a hub for one more user, who has to leave it."""
    if isinstance(hub, MemoryHub):
        overlay = _overlays.get(hub)
        if overlay is None:
            overlay = _overlays[hub] = MemoryOverlay(hub, hub.options.brokers)
        overlay.users += 1
        return overlay
    if not hub.server:
        raise BadInput(
            f"content and transactions are on memory:// and ensue://, not on {hub.transport.name}"
        )
    return ServedOverlay(hub)
