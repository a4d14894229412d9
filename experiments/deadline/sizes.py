"""Bytes of ordering information per message as groups grow, in real encoded frames.

Ordering information is everything in a frame except the event itself: stamps, deadline, matrix,
rounds and vector. Brokers publish in turn and receive all events, so matrices and vectors are as
full as possible.
"""

from statistics import fmean

import msgspec

from ensue.core.event import CLOCK, DEADLINE, Event, Stamp
from ensue.protocols.deadline.broker import DeadlineBroker
from ensue.protocols.deadline.codec import rows_of
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import Enter, Message, Peer, Rumors
from ensue.protocols.interface import Frame, Send
from experiments.deadline.reliable import Copy

__all__ = ["Sizes", "between_members", "from_brokers"]

MS = 1_000_000
TOPIC = "t"
_encode = msgspec.msgpack.Encoder().encode


class Sizes(msgspec.Struct, frozen=True):
    """Mean bytes of ordering information per message."""

    plain: float
    """From broker to broker, if it sent the whole matrix with a number for each pair of brokers."""
    whole: float
    """From broker to broker, if it sent the whole matrix, rows as sets of equal stamps."""
    differences: float
    """From broker to broker, as sent."""
    rumor: float
    """To a subscriber."""


def _bare(event: Event) -> int:
    return len(_encode(msgspec.structs.replace(event, stamp=None)))


class _Brokers:
    """Brokers that publish in turn, one per round, and one subscriber that they all know."""

    def __init__(self, count: int) -> None:
        self.config = DeadlineConfig(
            period_ns=10 * MS,
            subscribers_max=200,
            lifetime_ns=200 * MS,
            lifetime_ns_max=200 * MS,
            durable=False,
        )
        self.now_ns = 1_000 * MS
        names = [f"b{number}" for number in range(count)]
        self.brokers = {
            name: DeadlineBroker(name=name, names=names, config=self.config, now_ns=self.now_ns)
            for name in names
        }
        self.plain: list[int] = []
        self.whole: list[int] = []
        self.messages: list[int] = []
        self.rumors: list[int] = []
        self.measuring = False
        peer = Peer("listener", "", (TOPIC,), self.config.round_of(self.now_ns))
        for name, broker in self.brokers.items():
            broker.subscribe((TOPIC,), now_ns=self.now_ns)
            broker.receive(Enter(peer=peer, asks=False), source="listener", now_ns=self.now_ns)
            self.deliver(name)

    def publish(self, name: str) -> None:
        """Have a broker publish in the next round."""
        self.now_ns += self.config.period_ns
        self.brokers[name].publish(TOPIC, bytes(100), now_ns=self.now_ns)
        self.deliver(name)

    def deliver(self, name: str) -> None:
        """Deliver the frames of a broker, and all frames that follow from them."""
        queue = self._sends(name)
        while queue:
            source, target, frame = queue.pop(0)
            if self.measuring:
                self._measure(frame, target)
            if target in self.brokers:
                self.brokers[target].receive(frame, source=source, now_ns=self.now_ns)
                queue += self._sends(target)

    def _sends(self, name: str) -> list[tuple[str, str, Frame]]:
        effects = self.brokers[name].take_effects()
        return [(name, one.peer, one.frame) for one in effects if isinstance(one, Send)]

    def _measure(self, frame: Frame, target: str) -> None:
        if isinstance(frame, Message):
            # Only the receiver can reconstruct the whole matrix.
            sent = self.brokers[target]._codec.read(frame)  # noqa: SLF001
            assert sent is not None
            bare = _bare(frame.event)
            empty = msgspec.structs.replace(frame, base=0, after={})
            whole = msgspec.structs.replace(empty, after=rows_of(sent.after, sent.stamp))
            self.plain.append(len(_encode(empty)) - 1 + len(_encode(sent.after)) - bare)
            self.whole.append(len(_encode(whole)) - bare)
            self.messages.append(len(_encode(frame)) - bare)
        elif isinstance(frame, Rumors):
            for rumor in frame.rumors:
                self.rumors.append(len(_encode(rumor)) - sum(map(_bare, rumor.events)))


def from_brokers(count: int, *, turns: int = 4) -> Sizes:
    """Measure the messages of `count` brokers that publish in turn, after the first turn."""
    group = _Brokers(count)
    for turn in range(turns):
        group.measuring = turn > 0
        for name in group.brokers:
            group.publish(name)
    return Sizes(*map(fmean, (group.plain, group.whole, group.messages, group.rumors)))


def between_members(members: int, publishers: int) -> float:
    """Return the bytes per message in a reliable group after all publishers have published.

    Each publisher published once, at a different time, to all other members.
    """
    now_ns = 1_700_000_000 * 1_000 * MS
    after = rows_of(
        {
            x: {y: now_ns - (x + 1) * MS for y in range(members) if y != x}
            for x in range(publishers)
        },
        now_ns,
    )
    event = Event(topic=TOPIC, payload=bytes(100), publisher="p0", publisher_seq=1)
    stamped = msgspec.structs.replace(event, stamp=Stamp({CLOCK: now_ns, DEADLINE: now_ns}))
    return len(_encode(Copy(event=stamped, source=0, after=after))) - _bare(event)
