"""A tree of brokers and clients in one process, driven by a seed.

Frames in flight are delivered in random order, in sequence per link. They travel as bytes. A node
can restart from its records at any time; effects that were not drained are lost, as in a crash.
"""

from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from ensue.core.wire import Codec
from ensue.protocols.content.client import Answered, Notified
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.interface import Notification, Persist, Send
from ensue.protocols.shared.link import FRAMES as LINK_FRAMES
from ensue.protocols.shared.link import LinkConfig
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.client import TransactionClient
from ensue.protocols.transactions.frames import FRAMES
from ensue.protocols.transactions.nodes import BrokerNode, ClientNode

MS = 1_000_000
Tree = Mapping[str, tuple[str, ...]]


def line(count: int) -> dict[str, tuple[str, ...]]:
    names = [f"b{number}" for number in range(count)]
    return {
        name: tuple(names[other] for other in (at - 1, at + 1) if 0 <= other < count)
        for at, name in enumerate(names)
    }


def random_tree(random: Random, count: int) -> dict[str, tuple[str, ...]]:
    links: dict[str, list[str]] = {f"b{number}": [] for number in range(count)}
    for number in range(1, count):
        other = f"b{random.randrange(number)}"
        links[f"b{number}"].append(other)
        links[other].append(f"b{number}")
    return {name: tuple(others) for name, others in links.items()}


class Net:
    """Brokers, clients and the frames under way between them."""

    link = LinkConfig(retry_ns=10**14, retry_ns_max=10**14)

    def __init__(
        self,
        tree: Tree,
        homes: Mapping[str, str],
        *,
        seed: int = 0,
        config: ContentConfig | None = None,
        broker_type: type[TransactionBroker] = TransactionBroker,
    ) -> None:
        self.random = Random(seed)
        self.config = config or ContentConfig(lease_ns=10**15, beat_ns=10**14, away_ns=10**15)
        self.now_ns = 0
        self.tree, self.homes = tree, dict(homes)
        self.broker_type = broker_type
        self.codec = Codec(FRAMES)
        self.wire = Codec((*LINK_FRAMES, *FRAMES))
        self.disks: dict[str, dict[str, bytes]] = {}
        self.flying: dict[tuple[str, str], deque[bytes]] = {}
        self.notified: dict[str, list[Any]] = {}
        self.rows: list[dict[str, Any]] = []
        self.nodes: dict[str, Any] = {}
        self.on_notified: Callable[[str, Any], None] | None = None
        for name in (*tree, *homes):
            self.disks[name] = {}
            self.notified[name] = []
            self.start(name)

    # -- Nodes ----------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a node from its disk."""
        records, now_ns = dict(self.disks[name]), self.now_ns
        if name in self.tree:

            def make_broker(own: Mapping[str, bytes]) -> TransactionBroker:
                return self.broker_type(
                    name=name,
                    neighbors=self.tree[name],
                    config=self.config,
                    records=own,
                    now_ns=now_ns,
                )

            self.nodes[name] = BrokerNode(
                make_broker,
                neighbors=self.tree[name],
                codec=self.codec,
                link=self.link,
                records=records,
                now_ns=now_ns,
            )
        else:

            def make_client(own: Mapping[str, bytes]) -> TransactionClient:
                return TransactionClient(
                    name=name,
                    home=self.homes[name],
                    config=self.config,
                    records=own,
                    now_ns=now_ns,
                )

            self.nodes[name] = ClientNode(
                make_client,
                home=self.homes[name],
                codec=self.codec,
                link=self.link,
                records=records,
                now_ns=now_ns,
            )
        self.timer(name)

    def crash(self, name: str) -> None:
        """Lose unpersisted state and frames under way to a node; restart it, and retransmit."""
        for (source, target), frames in self.flying.items():
            if target == name:
                del source
                frames.clear()
        self.start(name)
        for other in self.nodes:
            self.resend(other)

    def resend(self, name: str) -> None:
        node = self.nodes[name]
        for link in node.links._out.values():
            if link.unacknowledged:
                link.due_ns = self.now_ns
        node.handle_timer(now_ns=self.now_ns)
        self.drain(name)

    def broker(self, name: str) -> Any:
        return self.nodes[name].broker

    def client(self, name: str) -> Any:
        return self.nodes[name].client

    def command(self, name: str, call: Callable[[Any, int], Any]) -> Any:
        found = call(self.client(name), self.now_ns)
        self.drain(name)
        return found

    def timer(self, name: str) -> None:
        self.nodes[name].handle_timer(now_ns=self.now_ns)
        self.drain(name)

    def drain(self, name: str) -> None:
        outcomes = []
        for effect in self.nodes[name].take_effects():
            if isinstance(effect, Persist):
                if effect.value is None:
                    self.disks[name].pop(effect.key, None)
                else:
                    self.disks[name][effect.key] = effect.value
            elif isinstance(effect, Send):
                link = self.flying.setdefault((name, effect.peer), deque())
                link.append(self.wire.encode(effect.frame))
            elif isinstance(effect, Notification):
                outcomes.append(effect)
        for effect in outcomes:
            if effect.row is not None:
                self.rows.append({"node": name, **effect.row})
            if effect.value is not None:
                self.notified[name].append(effect.value)
                if self.on_notified is not None:
                    self.on_notified(name, effect.value)

    # -- Time -----------------------------------------------------------------------------------

    def step(self) -> bool:
        """Deliver the first frame of some link; return whether there was one."""
        ready = [key for key, frames in self.flying.items() if frames]
        if not ready:
            return False
        self.step_on(self.random.choice(ready))
        return True

    def step_on(self, key: tuple[str, str]) -> None:
        """Deliver the first frame of a link."""
        source, target = key
        data = self.flying[key].popleft()
        if target in self.nodes:
            self.now_ns += 1000
            frame = self.wire.decode(data)
            self.nodes[target].receive(frame, source=source, now_ns=self.now_ns)
            self.drain(target)

    def settle(self, turns_max: int = 200_000) -> None:
        """Deliver until no frame is under way."""
        for _ in range(turns_max):
            if not self.step():
                return
        raise AssertionError("frames circulate forever")

    def elapse(self, duration_ns: int) -> None:
        """Advance the time, with the timers of all nodes, until no frame is under way."""
        self.now_ns += duration_ns
        for name in self.nodes:
            self.timer(name)
        self.settle()

    # -- What came of it ------------------------------------------------------------------------

    def events(self, client: str) -> list[tuple[str, str]]:
        """Return the payloads delivered to a client, with the subscription."""
        return [
            (one.subscription, one.publication.payload.decode())
            for one in self.notified[client]
            if isinstance(one, Notified)
        ]

    def payloads(self, client: str) -> list[str]:
        return [payload for _, payload in self.events(client)]

    def answers(self, client: str) -> dict[int, str]:
        return {
            one.number: one.refused for one in self.notified[client] if isinstance(one, Answered)
        }
