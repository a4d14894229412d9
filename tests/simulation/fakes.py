"""Scripted nodes for tests of the world, which record what they observe."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from ensue.protocols.interface import Effect, Frame, Send
from ensue.simulation import Constant, DiskConfig, Factory, NetworkConfig, World

MILLISECOND = 1_000_000


class Note(Frame, frozen=True, tag=101):
    text: str


class Other(Frame, frozen=True, tag=102):
    text: str


class NoteCodec:
    def __init__(self) -> None:
        self.encoded = 0

    def encode(self, frame: Frame, /) -> bytes:
        self.encoded += 1
        return msgspec.msgpack.encode(frame)

    def decode(self, data: bytes, /) -> Frame:
        return msgspec.msgpack.decode(data, type=Note | Other)


class Diary:
    """The observations of one node over all its incarnations."""

    def __init__(self) -> None:
        self.received: list[tuple[int, str, str]] = []
        self.timers: list[int] = []
        self.clock: list[int] = []
        self.started: list[dict[str, bytes]] = []

    @property
    def texts(self) -> list[str]:
        return [text for _, _, text in self.received]

    @property
    def times(self) -> list[int]:
        return [at for at, _, _ in self.received]


Reaction = Callable[["Probe", str, str, int], None]


class Probe:
    """A node that records what happens and reacts by script."""

    def __init__(self, name: str, diary: Diary, reaction: Reaction | None) -> None:
        self.name = name
        self.diary = diary
        self.reaction = reaction
        self.timer_ns: int | None = None
        self.period_ns: int | None = None
        self.volatile: list[str] = []
        self.effects: list[Effect] = []

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        assert isinstance(frame, Note | Other)
        self.diary.clock.append(now_ns)
        self.diary.received.append((now_ns, source, frame.text))
        self.volatile.append(frame.text)
        if self.reaction is not None:
            self.reaction(self, source, frame.text, now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        self.diary.clock.append(now_ns)
        if self.timer_ns is not None and now_ns >= self.timer_ns:
            self.diary.timers.append(now_ns)
            self.timer_ns = None if self.period_ns is None else now_ns + self.period_ns

    def next_timer_ns(self) -> int | None:
        return self.timer_ns

    def take_effects(self) -> Sequence[Effect]:
        effects, self.effects = self.effects, []
        return effects


def build(name: str, diary: Diary, reaction: Reaction | None = None) -> Factory:
    def factory(records: Mapping[str, bytes], now_ns: int) -> Probe:
        del now_ns
        diary.started.append(dict(records))
        return Probe(name, diary, reaction)

    return factory


def add(world: World, *names: str, reaction: Reaction | None = None) -> list[Diary]:
    diaries = [Diary() for _ in names]
    for name, diary in zip(names, diaries, strict=True):
        world.add(name, build(name, diary, reaction))
    return diaries


def do(world: World, name: str, *effects: Effect, at: int | None = None) -> None:
    world.call(name, lambda node, _now_ns: node.effects.extend(effects), at_ns=at)


def say(world: World, source: str, target: str, *texts: str, at: int | None = None) -> None:
    do(world, source, *(Send(target, Note(text=text)) for text in texts), at=at)


def wake(world: World, name: str, timer_ns: int, *, at: int | None = None) -> None:
    def command(node: Probe, _now_ns: int) -> None:
        node.timer_ns = timer_ns

    world.call(name, command, at_ns=at)


STEADY = NetworkConfig(default=Constant(10))
"""Every frame takes 10 ns."""
INSTANT = DiskConfig(sync=Constant(0))


def steady_world(seed: int = 1) -> World:
    return World(seed, network=STEADY, disk=INSTANT)
