"""Causal nodes without a network: tests deliver each frame and advance the time."""

from collections.abc import Callable, Iterable
from typing import Any

from ensue.core.wire import Codec
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.frames import FRAMES, Publication
from ensue.protocols.causal.node import CausalNode
from ensue.protocols.interface import (
    Deliver,
    Discard,
    Frame,
    Join,
    Leave,
    Persist,
    Publish,
    Refuse,
    Send,
    Settle,
)

MS = 1_000_000
SECOND = 1_000_000_000
QUIET = 3600 * SECOND

CALM = CausalConfig(beat_ns=QUIET, digest_ns=QUIET, digest_ns_max=QUIET, retry_ns=QUIET)
"""Nothing happens by itself: only what trees carry is seen."""
CODEC = Codec(FRAMES)


class Table:
    """A few nodes and the frames in flight between them."""

    def __init__(
        self,
        count: int,
        config: CausalConfig = CALM,
        *,
        role: type[CausalNode] = CausalNode,
    ) -> None:
        self.config = config
        self.role = role
        self.names = [f"p{number}" for number in range(count)]
        self.now_ns = 0
        self.disks: dict[int, dict[str, bytes]] = {number: {} for number in range(count)}
        self.nodes: dict[int, CausalNode] = {}
        self.links: dict[tuple[int, int], list[Frame]] = {}
        self.slow: set[tuple[int, int]] = set()
        """Links on which nothing arrives for now."""
        self.cut: set[tuple[int, int]] = set()
        """Links on which everything is lost."""
        self.sent: list[tuple[int, int, Frame]] = []
        """Everything that was ever sent."""
        self.delivered: dict[int, list[str]] = {number: [] for number in range(count)}
        """Payloads, as text."""
        self.outcomes: dict[int, list[Any]] = {number: [] for number in range(count)}
        for number in range(count):
            self.start(number)

    # -- Nodes ----------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Start a node from its records."""
        self.nodes[number] = self.role(
            name=self.names[number],
            names=self.names,
            config=self.config,
            records=dict(sorted(self.disks[number].items())),
            now_ns=self.now_ns,
        )
        self.drain(number)

    def crash(self, number: int) -> None:
        """Crash a node; frames in flight to it are lost when they arrive."""
        del self.nodes[number]

    def drain(self, number: int) -> None:
        for effect in self.nodes[number].take_effects():
            match effect:
                case Persist(key=key, value=None):
                    self.disks[number].pop(key, None)
                case Persist(key=key, value=bytes(value)):
                    self.disks[number][key] = value
                case Send(peer=peer, frame=frame):
                    target = self.names.index(peer)
                    assert CODEC.decode(CODEC.encode(frame)) == frame
                    self.sent.append((number, target, frame))
                    if (number, target) not in self.cut:
                        self.links.setdefault((number, target), []).append(frame)
                case Deliver(event=event, position=position):
                    self.delivered[number].append(event.payload.decode())
                    assert position == len(self.delivered[number])
                case Join() | Leave() | Settle() | Discard() | Publish() | Refuse():
                    self.outcomes[number].append(effect)

    def act(self, number: int, command: Callable[[CausalNode], object]) -> None:
        command(self.nodes[number])
        self.drain(number)

    def subscribe(self, number: int, *topics: str) -> None:
        now_ns = self.now_ns
        self.act(number, lambda node: node.subscribe(topics or ("t",), now_ns=now_ns))

    def unsubscribe(self, number: int, *topics: str) -> None:
        now_ns = self.now_ns
        self.act(number, lambda node: node.unsubscribe(topics or ("t",), now_ns=now_ns))

    def publish(self, number: int, text: str, topic: str = "t") -> None:
        now_ns = self.now_ns
        self.act(number, lambda node: node.publish(topic, text.encode(), now_ns=now_ns))

    def settled(self, number: int) -> list[str]:
        return [
            each.event.payload.decode()
            for each in self.outcomes[number]
            if isinstance(each, Settle)
        ]

    # -- The network ----------------------------------------------------------------------------

    def arrive(self, source: int, target: int, index: int = 0) -> None:
        """Deliver one frame of a link, by default the first."""
        frames = self.links[source, target]
        frame = frames.pop(index)
        if not frames:
            del self.links[source, target]
        node = self.nodes.get(target)
        if node is not None:
            node.receive(frame, source=self.names[source], now_ns=self.now_ns)
            self.drain(target)

    def run(self) -> None:
        """Deliver all frames that are not on a slow link."""
        while links := [link for link in sorted(self.links) if link not in self.slow]:
            for link in links:
                while self.links.get(link):
                    self.arrive(*link)

    def isolate(self, *numbers: int, others: Iterable[int] | None = None) -> None:
        """Lose all frames between these nodes and the others."""
        rest = set(range(len(self.names))) - set(numbers) if others is None else set(others)
        for one in numbers:
            for other in rest:
                self.cut |= {(one, other), (other, one)}

    def heal(self) -> None:
        self.cut.clear()
        self.slow.clear()

    def wait(self, duration_ns: int) -> None:
        """Advance the time: timers fire when they are due, and frames arrive at once."""
        end_ns = self.now_ns + duration_ns
        self.run()
        for _ in range(100_000):
            dues = {
                number: due_ns
                for number, node in self.nodes.items()
                if (due_ns := node.next_timer_ns()) is not None and due_ns <= end_ns
            }
            if not dues:
                self.now_ns = end_ns
                return
            number = min(dues, key=lambda each: (dues[each], each))
            self.now_ns = max(self.now_ns, dues[number])
            self.act(number, lambda node: node.handle_timer(now_ns=self.now_ns))
            self.run()
        raise AssertionError("timers never come to rest")

    # -- What was seen --------------------------------------------------------------------------

    def copies(self) -> list[tuple[int, int]]:
        """List the sender and receiver of each `Publication`."""
        return [(source, target) for source, target, frame in self.sent if _is_copy(frame)]

    def join_all(self, *numbers: int, topic: str = "t") -> None:
        for number in numbers:
            self.subscribe(number, topic)
            self.run()


def _is_copy(frame: Frame) -> bool:
    return isinstance(frame, Publication)


def barrier_of(frame: Frame, index: int = 0) -> dict[str, dict[int, int]]:
    assert isinstance(frame, Publication)
    return frame.items[index].after
