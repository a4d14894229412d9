"""The overlay of a hub in memory: its brokers, made when somebody first uses content and taken down with the last who does.

Brokers form a binary tree; clients are dealt out to them in turn. Everything lives and dies with the process, so nothing is persisted.
"""

from weakref import WeakKeyDictionary

from ensue.protocols.overlay.config import OverlayConfig
from ensue.protocols.overlay.nodes import BrokerNode, ClientNode
from ensue.protocols.transactions.client import TransactionClient
from ensue.protocols.transactions.planner import TransactionBroker
from ensue.runtime.driver import Driver
from ensue.runtime.hub import Hub

__all__ = ["Overlay", "overlay_of"]


class Overlay:
    """The brokers of one hub."""

    def __init__(self, hub: Hub, brokers: int) -> None:
        self._hub = hub
        self.config = OverlayConfig(durable=False)
        self.users = 0
        self._turn = 0
        self.names = [hub.unique("broker") for _ in range(brokers)]
        neighbours: dict[str, list[str]] = {name: [] for name in self.names}
        for number, name in enumerate(self.names[1:], 1):
            parent = self.names[(number - 1) // 2]
            neighbours[name].append(parent)
            neighbours[parent].append(name)
        self._drivers = [self._drive(name, tuple(neighbours[name])) for name in self.names]

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

    def client(self, name: str) -> ClientNode:
        """Return a client, with the next broker as its home."""
        home = self.names[self._turn % len(self.names)]
        self._turn += 1
        now_ns = self._hub.clock.now_ns()
        return ClientNode(
            lambda own: TransactionClient(
                name=name, home=home, config=self.config, records=own, now_ns=now_ns
            ),
            home=home,
            codec=TransactionClient.codec,
            durable=False,
            now_ns=now_ns,
        )

    def leave(self) -> None:
        """Take the brokers down with the last user."""
        self.users -= 1
        if not self.users:
            _overlays.pop(self._hub, None)
            for driver in self._drivers:
                driver.close()


_overlays: WeakKeyDictionary[Hub, Overlay] = WeakKeyDictionary()


def overlay_of(hub: Hub, brokers: int) -> Overlay:
    """Return the overlay of a hub for one more user, who has to leave it."""
    overlay = _overlays.get(hub)
    if overlay is None:
        overlay = _overlays[hub] = Overlay(hub, brokers)
    overlay.users += 1
    return overlay
