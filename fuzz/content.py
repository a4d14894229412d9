"""A fuzz target for content: whatever clients and neighbours send to a broker, it raises `RemoteProtocolError` or nothing at all.

Input chooses frames, their fields and who sends them. What clients send goes through the screen that a server has in front of its broker; what neighbours send does not,
since they are servers of the same chain, and so is what they would send: a broker believes them. The broker is one in the middle of a tree. What it wants sent must encode, and
it must come back from what it persisted, with the same state.
"""

from contextlib import suppress
from typing import Any, cast

import msgspec
from fuzz.wire import Draw, value
from msgspec import inspect

from ensue import orders
from ensue.core.errors import RemoteProtocolError
from ensue.core.wire import VERSION, Codec
from ensue.protocols.content import frames as f
from ensue.protocols.interface import Frame, Persist, Send
from ensue.protocols.shared.link import LinkAck, LinkData
from ensue.protocols.total.placement import Placement
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.nodes import BrokerNode
from ensue.server.authorization import Authorization
from ensue.server.config import ServerConfig
from ensue.server.connection import Connection
from ensue.server.content_broker import screen_content

BROKER = "s1/content"
NEIGHBOURS = ("s0/content", "s2/content")
CLIENTS = ("c~1.content", "d~2.content")
NAMES = (
    "x = 1",
    "x > 0 and y exists",
    "x exists or (",
    "c~1.content",
    "d~2.content",
    "d.content",
    "c~1.content.sub1",
    "d~2.content.adv1",
    "0000000001-s1/content",
    "0000000002-s1/content",
    "1",
    "2",
    "1.1",
    "adv",
    "sub",
    "usub",
    "uadv",
    "serializable",
    "atomic",
    "x",
    "",
)
REQUESTS = (f.Operate, t.Begin, t.Invite, t.Finish, t.End, t.Submit, f.Goodbye)
KINDS = [inspect.type_info(kind) for kind in (*REQUESTS * 3, *t.FRAMES)]
STEPS_MAX = 40
STEP_NS = 500_000_000

_CODEC = Codec(t.FRAMES)
_WIRE = Codec(orders.wire_frames())


class Nobody:
    """A house with nobody in it: faults are not counted."""

    def fault(self, connection: Connection, kind: str, why: str) -> None:
        """Take no note."""


class ContentRig:
    """A broker, what it persisted, and the time."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}
        self._now_ns = 1
        self._sent: dict[str, int] = {}
        self._rules = Authorization(
            ServerConfig(data="nowhere"),
            placement=Placement(["node-1"]),
            may_put=lambda _event, _source: False,
            owners={},
            write=lambda _writes, done: done(),
        )
        self._connection = Connection(cast("Any", Nobody()))
        self.node = self._build()
        for client in CLIENTS:
            self.receive(f.Hello(), client)

    def _build(self) -> BrokerNode:
        now_ns = self._now_ns
        return BrokerNode(
            lambda own: TransactionBroker(
                name=BROKER, neighbors=NEIGHBOURS, records=own, now_ns=now_ns
            ),
            neighbors=NEIGHBOURS,
            codec=TransactionBroker.codec,
            records=self.records,
            now_ns=now_ns,
        )

    def request(self, payload: bytes, client: str) -> None:
        """Send what a client would over its link; one that is hung up on sends nothing."""
        number = self._sent.get(client, 0) + 1
        self.receive(LinkData(number=number, payload=payload), client)
        self._sent[client] = number

    def receive(self, frame: Frame, client: str) -> None:
        """Hand a client's frame over, if it is let through, and carry out what comes of it."""
        admitted, _ = screen_content(self._rules, self._connection, client, [frame])
        for each in admitted:
            self.node.receive(each, source=client, now_ns=self._now_ns)
        self._carry_out()

    def wait(self) -> None:
        """Let time pass, and neighbours acknowledge what they were sent."""
        self._now_ns += STEP_NS
        for neighbour in NEIGHBOURS:
            self.node.receive(LinkAck(number=1 << 40), source=neighbour, now_ns=self._now_ns)
        self.node.handle_timer(now_ns=self._now_ns)
        self._carry_out()

    def restart(self) -> None:
        """Start again from what was persisted."""
        before = self.node.broker.tables.record()
        self.node = self._build()
        assert self.node.broker.tables.record() == before, "the tables are others than before"
        self._carry_out()

    def _carry_out(self) -> None:
        for effect in self.node.take_effects():
            if isinstance(effect, Persist):
                if effect.value is None:
                    self.records.pop(effect.key, None)
                else:
                    self.records[effect.key] = effect.value
            elif isinstance(effect, Send):
                _WIRE.body(effect.frame)


def one_input(data: bytes) -> None:
    """Try one input. Whatever it raises is a fault."""
    draw = Draw(data)
    draw.names = NAMES
    rig = ContentRig()
    for _ in range(STEPS_MAX):
        if draw.done:
            break
        chosen = draw.number(len(KINDS) + 3)
        client = CLIENTS[draw.number(len(CLIENTS))]
        with suppress(RemoteProtocolError):
            if chosen == len(KINDS):
                rig.wait()
            elif chosen == len(KINDS) + 1:
                rig.restart()
            elif chosen == len(KINDS) + 2:
                rig.request(draw.rest(), client)
            else:
                body = msgspec.msgpack.encode(_named(value(KINDS[chosen], draw), client))
                rig.request(bytes((VERSION,)) + body, client)
    rig.restart()


def _named(fields: Any, client: str) -> Any:
    """Have events be of whoever sends them, or hardly any would get anywhere."""
    if isinstance(fields, list):
        if len(fields) == len(f.Publication.__struct_fields__) and isinstance(fields[2], dict):
            return [client, *fields[1:]]
        return [_named(each, client) for each in fields]
    return fields
