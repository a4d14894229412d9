"""A fuzz target for the wire: input raises `RemoteProtocolError` or nothing.

`make fuzz` runs it under atheris (`fuzz/__main__.py`), which searches for bytes that reach new
code. Input takes three ways: as a stream of bytes through `Framer` and both decoders; as the body
of a control message or a bundle; and as choices of frames and their fields. Decoded frames go to a
station, alone or in the middle of a chain, from clients and neighbors; or to another node: a
fan-out, a registry, a node of a cube, a broker. Frames that a node sends must encode, and a node
must restart from its records.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import inspect

from ensue import orders
from ensue.core.errors import LimitReached, RemoteProtocolError
from ensue.core.event import COUNT_MAX
from ensue.core.wire import VERSION, Codec, bundle
from ensue.protocols.causal import frames as cube
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.registered import RegisteredNode
from ensue.protocols.deadline.config import DeadlineConfig
from ensue.protocols.deadline.frames import BETWEEN_BROKERS
from ensue.protocols.deadline.registered import RegisteredBroker
from ensue.protocols.interface import Frame, Multicast, Node, Persist, Send
from ensue.protocols.membership import frames as membership
from ensue.protocols.membership.client import KnownMembers
from ensue.protocols.membership.frames import Members
from ensue.protocols.membership.registry import Registry
from ensue.protocols.shared.link import Linked
from ensue.protocols.topic_log.fanout import Fanout
from ensue.protocols.topic_log.frames import AttachRequest, DetachRequest, Put, TopicLogConfig
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.station import UNNUMBERED, Station, StationConfig
from ensue.transports.tcp.messages import CONTROL, Framer, decode_control

CODEC = Codec(orders.wire_frames())
NAMES = ("t", "u", "a.b", "c~1", "d~2", "durable", "s0", "s1", "s2")
"""A few names, so that frames are likely to refer to each other."""
SOURCES = ("c~1", "d~2", "durable", "s0", "s2")
STEP_NS = 400_000_000
ALONE, CHAINED, FANOUT, REGISTRY, NODE, BROKER = range(6)
"""Targets of frames: a station, alone or in a chain, or another node."""
KINDS_OF_RIG = 6
RIGS = (ALONE, CHAINED, ALONE, CHAINED, FANOUT, REGISTRY, NODE, NODE, BROKER, BROKER)
"""Targets by share of inputs; stations are the most complex."""
FRAMES_MAX = 40
DEADLINES = DeadlineConfig(
    lifetime_ns_max=3_600_000_000_000,
    durable=False,
    spreads=False,
    deliver_late=True,
    held_max=4,
    retained_max=4,
)


class Draw:
    """Choices made by input bytes; after the last byte, every choice is the first."""

    names: tuple[str, ...] = NAMES
    """The strings to choose from."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, below: int) -> int:
        """Return a number from 0 up to, but not including, `below`."""
        if below <= 1 or self._at >= len(self._data):
            return 0
        size = 1 if below <= 256 else 8
        found = int.from_bytes(self._data[self._at : self._at + size], "big")
        self._at += size
        return found % below

    def rest(self) -> bytes:
        """Return the remaining bytes."""
        left = self._data[self._at :]
        self._at = len(self._data)
        return left

    @property
    def done(self) -> bool:
        """Whether all bytes are used."""
        return self._at >= len(self._data)


KINDS = [inspect.type_info(kind) for kind in orders.wire_frames()]
OWN = {
    FANOUT: (Put, AttachRequest, DetachRequest),
    REGISTRY: membership.FROM_NODES,
    NODE: (*cube.FRAMES, *membership.FRAMES),
    BROKER: (*BETWEEN_BROKERS, *membership.FRAMES),
}
"""Frames that targets other than stations handle: most other frames are not for them."""
OWN_KINDS = {rig: [inspect.type_info(kind) for kind in kinds] for rig, kinds in OWN.items()}


def value(info: inspect.Type, draw: Draw) -> Any:
    """Return a value of a type, as plain data."""
    match info:
        case inspect.IntType():
            kind = draw.number(8)
            if kind == 0:
                return COUNT_MAX - draw.number(3)
            if kind == 1:
                return draw.number(COUNT_MAX)
            # Often 0: most protocols start there.
            return draw.number(6) if kind < 5 else 0
        case inspect.StrType():
            return draw.names[draw.number(len(draw.names))]
        case inspect.BytesType():
            kind = draw.number(4)
            if kind == 1:
                return b""
            if kind:
                # A frame within a frame, as links carry them.
                inner = KINDS[draw.number(len(KINDS))]
                return bytes((VERSION,)) + msgspec.msgpack.encode(value(inner, draw))
            return bytes(draw.number(20))
        case inspect.BoolType():
            return bool(draw.number(2))
        case inspect.FloatType():
            return float(draw.number(100))
        case inspect.NoneType():
            return None
        case inspect.UnionType(types=types):
            return value(types[draw.number(len(types))], draw)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return [value(item, draw) for _ in range(draw.number(5))]
        case inspect.TupleType(item_types=items):
            return [value(item, draw) for item in items]
        case inspect.DictType(key_type=key, value_type=item):
            return {value(key, draw): value(item, draw) for _ in range(draw.number(4))}
        case inspect.StructType():
            return structure(info, draw)
        case inspect.LiteralType(values=values):
            return values[draw.number(len(values))]
    raise NotImplementedError(info)


def structure(info: inspect.StructType, draw: Draw) -> Any:
    """Return a structure as plain data."""
    if info.array_like:
        fields = [value(field.type, draw) for field in info.fields]
        return fields if info.tag is None else [info.tag, *fields]
    return {}  # A configuration with defaults.


def build(records: Mapping[str, bytes], now_ns: int, kind: int) -> Node:
    """Return the node of a number: a station, alone or in a chain, or another node."""
    alone = kind == ALONE
    nodes = ["s1"] if alone else ["s0", "s1", "s2"]
    if kind not in (ALONE, CHAINED):
        return _other_node(records, now_ns, kind)
    placement = Placement(nodes, topics={"s1": ("t", "u")})

    def station(own: Mapping[str, bytes]) -> Station:
        return Station(
            name="s1",
            placement=placement,
            config=SequencerConfig(carries=True, window=8, clients_max=4, topics_max=6),
            station_config=StationConfig(expire_ns=2_000_000_000),
            topic_log_config=TopicLogConfig(gives_places=True, batch_max=4),
            records=own,
            now_ns=now_ns,
        )

    if alone:
        return station(records)
    return Linked(
        station,
        peers=("s0", "s2"),
        codec=CODEC,
        unnumbered=UNNUMBERED,
        records=records,
        now_ns=now_ns,
    )


def _other_node(records: Mapping[str, bytes], now_ns: int, kind: int) -> Node:
    """Return a target that is not a station."""
    if kind == FANOUT:
        return Fanout(name="s1/merged", attachments_max=4)
    if kind == REGISTRY:
        return Registry(
            name="s1/causal",
            order="causal",
            expire_ns=2_000_000_000,
            records=records,
            now_ns=now_ns,
        )
    lists = KnownMembers()
    names = ("c~1", "d~2", "own~1")
    lists.take(Members(epoch=1, first=0, names=names, total=3, gone_first=0, gone=(), gone_total=0))
    node: RegisteredNode | RegisteredBroker
    if kind == BROKER:
        node = RegisteredBroker(
            name="own~1", registry="durable", members=lists, config=DEADLINES, now_ns=now_ns
        )
    else:
        config = CausalConfig(durable=False, held_max=4, retained_max=4, outgoing_max=64)
        node = RegisteredNode(
            name="own~1", registry="durable", members=lists, config=config, now_ns=now_ns
        )
    node.subscribe(("t",), now_ns=now_ns)
    node.publish("u", b"", now_ns=now_ns)
    return node


class Rig:
    """A node, its records, and the time."""

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self._records: dict[str, bytes] = {}
        self._now_ns = 1
        self._node = build({}, 1, kind)

    def receive(self, frame: Frame, source: str) -> None:
        """Pass a frame to the node, and apply the effects."""
        self._node.receive(frame, source=source, now_ns=self._now_ns)
        self._apply_effects()

    def command(self, draw: Draw) -> None:
        """Run a command of the node's application or host."""
        node, now_ns = self._node, self._now_ns
        topic = NAMES[draw.number(3)]
        match node:
            case Fanout():
                node.forget(SOURCES[draw.number(len(SOURCES))], now_ns=now_ns)
            case RegisteredNode() | RegisteredBroker():
                match draw.number(4):
                    case 0:
                        node.subscribe((topic,), now_ns=now_ns)
                    case 1:
                        node.unsubscribe((topic,), now_ns=now_ns)
                    case 2:
                        with suppress(LimitReached):
                            node.publish(topic, b"x", now_ns=now_ns)
                    case _:
                        node.repeat(now_ns=now_ns)
        self._apply_effects()

    def wait(self) -> None:
        """Advance the time."""
        self._now_ns += STEP_NS
        due_ns = self._node.next_timer_ns()
        if due_ns is not None and due_ns <= self._now_ns:
            self._node.handle_timer(now_ns=self._now_ns)
            self._apply_effects()

    def restart(self) -> None:
        """Restart the node from its records."""
        self._node = build(self._records, self._now_ns, self._kind)
        self._apply_effects()

    def _apply_effects(self) -> None:
        answers: list[tuple[Frame, str]] = []
        for effect in self._node.take_effects():
            if isinstance(effect, Persist):
                if effect.value is None:
                    self._records.pop(effect.key, None)
                else:
                    self._records[effect.key] = effect.value
            elif isinstance(effect, Send | Multicast):
                CODEC.body(effect.frame)
                if isinstance(effect, Send) and (answer := _answer(effect.frame)) is not None:
                    answers.append((answer, effect.peer))
        for answer, peer in answers:
            self.receive(answer, peer)


def _answer(frame: Frame) -> Frame | None:
    """Return the answer to a node of a cube: without answers it would never join a topic."""
    match frame:
        case cube.Change(token=token) | cube.Publication(token=token):
            return cube.Receipt(token=token, covered=b"\x07", final=True)
        case membership.TopicRequest(topic=topic, action=action) if topic != "a.b":
            return membership.TopicGranted(topic=topic, action=action)
    return None


def stream(draw: Draw) -> None:
    """Split bytes into messages and decode them."""
    framer = Framer(1 + draw.number(4096))
    data = draw.rest()
    size = 1 + len(data) // 3
    for start in range(0, len(data), size):
        for message in framer.feed(data[start : start + size]):
            read(message)


def read(message: bytes) -> None:
    """Decode a message as a connection does."""
    if message[0] == CONTROL:
        decode_control(message)
    else:
        CODEC.unbundle(message)


def inside(draw: Draw) -> None:
    """Decode a message with a valid first byte, and pass its frames to a node."""
    rig = Rig(draw.number(KINDS_OF_RIG))
    if draw.number(3) == 0:
        decode_control(bytes((CONTROL,)) + draw.rest())
        return
    _, source, frames = CODEC.unbundle(bytes((VERSION,)) + draw.rest())
    for frame in frames[:FRAMES_MAX]:
        rig.receive(frame, source)


def frames(draw: Draw) -> None:
    """Make frames, encode and decode them, and pass them to a node."""
    kind = RIGS[draw.number(len(RIGS))]
    rig = Rig(kind)
    for _ in range(FRAMES_MAX):
        if draw.done:
            break
        kinds = OWN_KINDS.get(kind, KINDS) if draw.number(8) else KINDS
        chosen = draw.number(len(kinds) + 3)
        if chosen == len(kinds):
            rig.wait()
        elif chosen == len(kinds) + 1:
            rig.restart()
        elif chosen == len(kinds) + 2:
            rig.command(draw)
        else:
            source = SOURCES[draw.number(len(SOURCES))]
            body = msgspec.msgpack.encode(value(kinds[chosen], draw))
            try:
                _, _, found = CODEC.unbundle(bundle("s1", source, [body]))
            except RemoteProtocolError:
                continue
            rig.receive(found[0], source)
    rig.restart()


def one_input(data: bytes) -> None:
    """Run one input; an exception is a bug."""
    draw = Draw(data)
    way = (stream, inside, frames, frames)[draw.number(4)]
    with suppress(RemoteProtocolError):
        way(draw)
