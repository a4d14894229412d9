"""A manual network: tests decide when frames arrive."""

from collections.abc import Callable
from typing import Any

from ensue.core.wire import Codec
from ensue.protocols.deadline.broker import DeadlineBroker
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import FRAMES
from ensue.protocols.deadline.subscriber import DeadlineSubscriber
from ensue.protocols.interface import Deliver, Discard, Effect, Frame, Join, Leave, Persist, Send

MS = 1_000_000
AnyNode = DeadlineBroker | DeadlineSubscriber


class Net:
    """Brokers and subscribers, one clock, and frames under way."""

    def __init__(self, config: DeadlineConfig, brokers: int, subscribers: int = 0) -> None:
        self.config = config
        self.now_ns = 1_000 * MS
        self.nodes: dict[str, AnyNode] = {}
        self.records: dict[str, dict[str, bytes]] = {}
        self.under_way: list[tuple[str, str, Frame]] = []
        self.loses: Callable[[str, str, Frame], bool] = lambda _source, _target, _frame: False
        self.sent: list[tuple[str, str, Frame]] = []
        self.effects: dict[str, list[Effect]] = {}
        self.brokers = [f"b{number}" for number in range(brokers)]
        self.subscribers = [f"s{number}" for number in range(subscribers)]
        self._codec = Codec(FRAMES)
        for name in (*self.brokers, *self.subscribers):
            self.start(name)

    def start(self, name: str) -> None:
        records = self.records.setdefault(name, {})
        common: dict[str, Any] = {"config": self.config, "records": records, "now_ns": self.now_ns}
        if name in self.brokers:
            self.nodes[name] = DeadlineBroker(name=name, names=self.brokers, **common)
        else:
            self.nodes[name] = DeadlineSubscriber(name=name, brokers=self.brokers, **common)
        self.drain(name)

    def crash(self, name: str) -> None:
        del self.nodes[name]

    def broker(self, name: str) -> DeadlineBroker:
        node = self.nodes[name]
        assert isinstance(node, DeadlineBroker)
        return node

    def publish(self, name: str, topic: str, text: str, **options: Any) -> None:
        self.broker(name).publish(topic, text.encode(), now_ns=self.now_ns, **options)
        self.drain(name)

    def subscribe(self, name: str, *topics: str, **options: Any) -> None:
        self.nodes[name].subscribe(topics, now_ns=self.now_ns, **options)
        self.drain(name)

    def unsubscribe(self, name: str, *topics: str) -> None:
        self.nodes[name].unsubscribe(topics, now_ns=self.now_ns)
        self.drain(name)

    def drain(self, name: str) -> None:
        for effect in self.nodes[name].take_effects():
            match effect:
                case Send(peer=peer, frame=frame):
                    self.sent.append((name, peer, frame))
                    if not self.loses(name, peer, frame):
                        self.under_way.append((name, peer, frame))
                case Persist(key=key, value=None):
                    self.records[name].pop(key, None)
                case Persist(key=key, value=value):
                    assert value is not None
                    self.records[name][key] = value
                case _:
                    self.effects.setdefault(name, []).append(effect)

    def settle(self) -> None:
        """Deliver all frames under way, as bytes, and those they cause."""
        while self.under_way:
            source, target, frame = self.under_way.pop(0)
            if target in self.nodes:
                read = self._codec.decode(self._codec.encode(frame))
                self.nodes[target].receive(read, source=source, now_ns=self.now_ns)
                self.drain(target)

    def pass_time(self, until_ns: int) -> None:
        """Fire timers, and deliver all frames at once."""
        while True:
            due = [
                (timer_ns, name)
                for name, node in self.nodes.items()
                if (timer_ns := node.next_timer_ns()) is not None and timer_ns <= until_ns
            ]
            if not due:
                break
            timer_ns, name = min(due)
            self.now_ns = max(self.now_ns, timer_ns)
            self.nodes[name].handle_timer(now_ns=self.now_ns)
            self.drain(name)
            self.settle()
        self.now_ns = until_ns

    def wait(self, milliseconds: float) -> None:
        self.settle()
        self.pass_time(self.now_ns + int(milliseconds * MS))

    def got(self, name: str) -> list[str]:
        return [
            effect.event.payload.decode() + (f" ({effect.verdict})" if effect.verdict else "")
            for effect in self.effects.get(name, [])
            if isinstance(effect, Deliver)
        ]

    def dropped(self, name: str) -> dict[str, str]:
        return {
            effect.event.payload.decode(): effect.verdict
            for effect in self.effects.get(name, [])
            if isinstance(effect, Discard)
        }

    def changes(self, name: str) -> list[str]:
        return [
            ("+" if isinstance(effect, Join) else "-") + effect.topic
            for effect in self.effects.get(name, [])
            if isinstance(effect, Join | Leave)
        ]
