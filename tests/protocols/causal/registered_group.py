"""A registry, alone or with registered nodes."""

from collections.abc import Callable, Iterable
from random import Random

from ensue.core.wire import Codec
from ensue.orders import wire_frames
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.registered import RegisteredNode
from ensue.protocols.interface import Deliver, Frame, Outcome, Persist, Resumed, Send
from ensue.protocols.membership.client import KnownMembers
from ensue.protocols.membership.frames import Members, Register, TopicDenied, TopicRequest
from ensue.protocols.membership.registry import Registry

__all__ = [
    "CODEC",
    "CONFIG",
    "EXPIRE_NS",
    "MS",
    "REGISTRY",
    "SECOND",
    "Desk",
    "Room",
    "members",
    "settled_in",
]

REGISTRY = "s/causal"
MS = 1_000_000
SECOND = 1_000_000_000
EXPIRE_NS = 60 * SECOND
CODEC = Codec(wire_frames())
STEP_NS = 5 * MS
ASK_AGAIN_NS = 500 * MS
CONFIG = CausalConfig(durable=False)


class Desk:
    """A registry alone, with its persisted records."""

    def __init__(self, expire_ns: int = EXPIRE_NS) -> None:
        self.expire_ns = expire_ns
        self.disk: dict[str, bytes] = {}
        self.now_ns = 5 * SECOND
        self.start()

    def start(self) -> None:
        self.registry = Registry(
            name=REGISTRY,
            order="causal",
            expire_ns=self.expire_ns,
            records=dict(sorted(self.disk.items())),
            now_ns=self.now_ns,
        )
        self.drain()

    def drain(self) -> list[tuple[str, Frame]]:
        sent = []
        for effect in self.registry.take_effects():
            if isinstance(effect, Persist):
                if effect.value is None:
                    del self.disk[effect.key]
                else:
                    self.disk[effect.key] = effect.value
            else:
                assert isinstance(effect, Send)
                sent.append((effect.peer, effect.frame))
        return sent

    def handle(self, source: str, frame: Frame) -> list[tuple[str, Frame]]:
        self.registry.receive(frame, source=source, now_ns=self.now_ns)
        return self.drain()

    def enrol(self, source: str) -> list[tuple[str, Frame]]:
        return self.handle(source, Register(epoch=0, known=0, gone=0))

    def ask(self, source: str, topics: tuple[str, ...] = ()) -> list[tuple[str, Frame]]:
        """Poll as a client that knows the complete lists."""
        registry = self.registry
        known, gone = len(registry.names), len(registry.gone)
        digest = registry._list.digest(known, gone)
        assert digest is not None
        return self.handle(
            source,
            Register(epoch=registry.epoch, known=known, gone=gone, digest=digest, topics=topics),
        )

    def wait(self, period_ns: int) -> list[tuple[str, Frame]]:
        """Advance the time; timers fire when they are due."""
        sent = []
        end_ns = self.now_ns + period_ns
        while (due_ns := self.registry.next_timer_ns()) is not None and due_ns <= end_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.registry.handle_timer(now_ns=self.now_ns)
            sent += self.drain()
        self.now_ns = end_ns
        return sent

    def stall(self, period_ns: int) -> list[tuple[str, Frame]]:
        """Advance the time while the registry is stopped."""
        self.now_ns += period_ns
        self.registry.handle_timer(now_ns=self.now_ns)
        return self.drain()


def members(frame: Frame) -> Members:
    assert isinstance(frame, Members)
    return frame


class Room:
    """A registry and nodes; tests decide which frames are delayed or lost."""

    def __init__(
        self,
        *,
        seed: int = 0,
        loss: float = 0.0,
        denied: Iterable[str] = (),
        expire_ns: int = EXPIRE_NS,
        config: CausalConfig = CONFIG,
    ) -> None:
        self.desk = Desk(expire_ns)
        self.config = config
        self.random = Random(seed)
        self.loss = loss
        self.denied = frozenset(denied)
        self.lists: dict[str, KnownMembers] = {}
        self.nodes: dict[str, RegisteredNode] = {}
        self.outcomes: dict[str, list[Outcome]] = {}
        self.way: list[tuple[int, int, str, str, Frame]] = []
        self.deaf: set[str] = set()
        self.cut: set[tuple[str, str]] = set()
        """From whom to whom nothing comes."""
        self.lost: Callable[[Frame], bool] = lambda _frame: False
        """Which frames are lost for sure."""
        self._sent = 0
        self._ask_again_ns = 0
        """When those who are not let in yet ask again."""

    @property
    def now_ns(self) -> int:
        return self.desk.now_ns

    def delivered(self, name: str) -> list[str]:
        return [
            each.event.payload.decode() for each in self.outcomes[name] if isinstance(each, Deliver)
        ]

    def come(self, name: str) -> None:
        self.lists[name] = KnownMembers()
        self.outcomes[name] = []
        self.send(name, REGISTRY, self.lists[name].question())

    def act(self, name: str, what: str, *given: object, **named: object) -> None:
        getattr(self.nodes[name], what)(*given, now_ns=self.now_ns, **named)
        self.drain(name)

    def kill(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.lists.pop(name, None)

    def send(self, source: str, target: str, frame: Frame) -> None:
        if self.random.random() < self.loss or {source, target} & self.deaf:
            return
        if (source, target) in self.cut or self.lost(frame):
            return
        self._sent += 1
        due_ns = self.now_ns + self.random.randrange(1, 20) * MS
        frame = CODEC.decode(CODEC.encode(frame))
        self.way.append((due_ns, self._sent, source, target, frame))

    def drain(self, name: str) -> None:
        for effect in self.nodes[name].take_effects():
            if isinstance(effect, Send):
                self.send(name, effect.peer, effect.frame)
            else:
                assert not isinstance(effect, Persist)
                self.outcomes[name].append(effect)  # type: ignore[arg-type]

    def hand(self, source: str, target: str, frame: Frame) -> None:
        if target == REGISTRY:
            if isinstance(frame, TopicRequest) and frame.topic in self.denied:
                denied = TopicDenied(topic=frame.topic, action=frame.action, reason="it is secret")
                self.send(REGISTRY, source, denied)
                return
            for peer, answer in self.desk.handle(source, frame):
                self.send(REGISTRY, peer, answer)
        elif target in self.nodes:
            self.nodes[target].receive(frame, source=source, now_ns=self.now_ns)
            self.drain(target)
        elif target in self.lists and isinstance(frame, Members) and self.lists[target].take(frame):
            self.nodes[target] = self.make(target)
            self.drain(target)

    def make(self, name: str) -> RegisteredNode:
        """Create the node of an admitted process."""
        return RegisteredNode(
            name=name,
            registry=REGISTRY,
            members=self.lists[name],
            config=self.config,
            now_ns=self.now_ns,
        )

    def run(self, period_ns: int) -> None:
        end_ns = self.now_ns + period_ns
        while self.now_ns < end_ns:
            self.desk.now_ns = min(end_ns, self._next_ns())
            due = sorted(each for each in self.way if each[0] <= self.now_ns)
            self.way = [each for each in self.way if each[0] > self.now_ns]
            for _, _, source, target, frame in due:
                self.hand(source, target, frame)
            for name in list(self.nodes):
                due_ns = self.nodes[name].next_timer_ns()
                if due_ns is not None and due_ns <= self.now_ns:
                    self.nodes[name].handle_timer(now_ns=self.now_ns)
                    self.drain(name)
            for peer, answer in self.desk.wait(0):
                self.send(REGISTRY, peer, answer)
            if self.now_ns >= self._ask_again_ns:
                self._ask_again_ns = self.now_ns + ASK_AGAIN_NS
                for name, lists in self.lists.items():
                    if name not in self.nodes:
                        self.send(name, REGISTRY, lists.question())

    def _next_ns(self) -> int:
        """Return when something may happen, in steps of a few milliseconds."""
        dues = [self._ask_again_ns, *(each[0] for each in self.way)]
        timers = [node.next_timer_ns() for node in self.nodes.values()]
        timers.append(self.desk.registry.next_timer_ns())
        dues += [due_ns for due_ns in timers if due_ns is not None]
        soonest_ns = max(min(dues), self.now_ns + 1)
        return -(-soonest_ns // STEP_NS) * STEP_NS


def settled_in(room: Room, *names: str) -> bool:
    return all(any(isinstance(each, Resumed) for each in room.outcomes[name]) for name in names)
