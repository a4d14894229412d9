"""The content brokers of a hub, and their clients.

In memory the first user of content starts them and the last one stops them. They form a binary
tree; clients are assigned to them in turn. Nothing is persisted. On `ensue://` they run in the
servers, and the home of a client is the broker of the server that its URL names.
"""

from weakref import WeakKeyDictionary

from ensue.core.errors import BadInput
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.topology import broker_of, tree_of
from ensue.protocols.shared.link import LinkConfig
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.client import TransactionClient
from ensue.protocols.transactions.nodes import CONNECTED, BrokerNode, ClientNode
from ensue.runtime.driver import Driver
from ensue.runtime.hub_memory import Hub, MemoryHub
from ensue.transports import MemoryTransport

__all__ = ["ContentBrokers", "content_brokers_of"]


class ContentBrokers:
    """The brokers that the buses of one hub use."""

    _link: LinkConfig | None = None

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.config = ContentConfig(durable=False)
        """Of clients, too: their state ends with their process."""

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
        """Release the overlay of a user that leaves."""


class ServedBrokers(ContentBrokers):
    """Brokers that run in servers."""

    _link = CONNECTED

    def _home(self) -> str:
        return broker_of(self._hub.server)


class MemoryBrokers(ContentBrokers):
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
                name=name, neighbors=neighbours, config=self.config, records=own, now_ns=now_ns
            ),
            neighbors=neighbours,
            codec=TransactionBroker.codec,
            durable=False,
            now_ns=now_ns,
        )
        return Driver(node, transport=hub.transport, clock=hub.clock, recorder=hub.recorder)

    def _disconnected(self, name: str) -> None:
        """Start the grace period of a client that ended without a goodbye."""
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


_overlays: WeakKeyDictionary[Hub, MemoryBrokers] = WeakKeyDictionary()


def content_brokers_of(hub: Hub) -> ContentBrokers:
    """Return the overlay of a hub for one more user, which has to leave it."""
    if isinstance(hub, MemoryHub):
        overlay = _overlays.get(hub)
        if overlay is None:
            overlay = _overlays[hub] = MemoryBrokers(hub, hub.options.brokers)
        overlay.users += 1
        return overlay
    if not hub.server:
        raise BadInput(
            f"content and transactions are on memory:// and ensue://, not on {hub.transport.name}"
        )
    return ServedBrokers(hub)
