"""The content brokers of a hub, and their clients.

In memory, the first bus that uses content starts the brokers and the last one stops them. They form
a binary tree; clients are assigned to them in turn. Nothing is persisted: durable subscriptions
end with the brokers. On `ensue://` they run in the servers, and the home of a client is the broker
of the server that its URL names. The name of a durable subscription picks the broker that keeps it,
and is the home of its readers.
"""

from weakref import WeakKeyDictionary

from ensue.core.errors import BadInput
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.topology import broker_of, tree_of
from ensue.protocols.shared.link import CONNECTED, LinkConfig
from ensue.protocols.total.placement import Placement
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.client import TransactionClient
from ensue.protocols.transactions.nodes import BrokerNode, ClientNode
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
        """Also for clients: their state ends with their process."""

    def client(self, name: str, *, durable: str = "") -> ClientNode:
        """Return a new client node, linked to its home broker.

        `durable` names the durable subscription that it reads: its home is where that is kept.
        """
        home = self._keeper(durable) if durable else self._home()
        now_ns = self._hub.clock.now_ns()
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
        """Return the home broker of the next client."""
        raise NotImplementedError

    def _keeper(self, durable: str) -> str:
        """Return the broker that keeps a durable subscription."""
        raise NotImplementedError

    def leave(self) -> None:
        """Release the broker tree: one bus less uses it."""


class ServedBrokers(ContentBrokers):
    """Brokers in server processes."""

    _link = CONNECTED

    def _home(self) -> str:
        return broker_of(self._hub.server)

    def _keeper(self, durable: str) -> str:
        return broker_of(self._hub.placement.state_store(durable))


class MemoryBrokers(ContentBrokers):
    """A tree of brokers in memory."""

    def __init__(self, hub: Hub, brokers: int) -> None:
        super().__init__(hub)
        self.users = 0
        self._turn = 0
        self.names = [hub.unique("broker") for _ in range(brokers)]
        neighbors = tree_of(self.names)
        self._drivers = [self._drive(name, tuple(neighbors[name])) for name in self.names]
        assert isinstance(hub.transport, MemoryTransport)
        hub.transport.on_closed = self._disconnected

    def _drive(self, name: str, neighbors: tuple[str, ...]) -> Driver[BrokerNode]:
        hub, now_ns = self._hub, self._hub.clock.now_ns()
        node = BrokerNode(
            lambda own: TransactionBroker(
                name=name, neighbors=neighbors, config=self.config, records=own, now_ns=now_ns
            ),
            neighbors=neighbors,
            codec=TransactionBroker.codec,
            durable=False,
            now_ns=now_ns,
        )
        return Driver(node, transport=hub.transport, clock=hub.clock, recorder=hub.recorder)

    def _disconnected(self, name: str) -> None:
        """Start the grace period of a client that ended without a `Goodbye`."""
        for driver in self._drivers:
            if not driver.closed:
                driver.command(lambda node, now: node.lose_connection(name, now_ns=now))

    def _home(self) -> str:
        self._turn += 1
        return self.names[(self._turn - 1) % len(self.names)]

    def _keeper(self, durable: str) -> str:
        return Placement(self.names).state_store(durable)

    def leave(self) -> None:
        """Stop the brokers if the last bus leaves."""
        self.users -= 1
        if not self.users:
            _trees.pop(self._hub, None)
            assert isinstance(self._hub.transport, MemoryTransport)
            self._hub.transport.on_closed = None
            for driver in self._drivers:
                driver.close()


_trees: WeakKeyDictionary[Hub, MemoryBrokers] = WeakKeyDictionary()


def content_brokers_of(hub: Hub) -> ContentBrokers:
    """Return the brokers of a hub for one more bus, which must call `leave`."""
    if isinstance(hub, MemoryHub):
        tree = _trees.get(hub)
        if tree is None:
            tree = _trees[hub] = MemoryBrokers(hub, hub.options.brokers)
        tree.users += 1
        return tree
    if not hub.server:
        raise BadInput(
            f"content and transactions need memory:// or ensue://, got {hub.transport.name}"
        )
    return ServedBrokers(hub)
