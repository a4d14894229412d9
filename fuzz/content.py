"""A fuzz target for content: a broker raises `RemoteProtocolError` or nothing.

Input chooses frames, their fields and their senders. Frames of clients pass the admission check of
a server; frames of neighbors do not, because neighbors are servers of the same chain, which a
broker trusts. The broker is in the middle of a tree. Frames that it sends must encode, and a
restart from its records must give the same state.
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
NEIGHBORS = ("s0/content", "s2/content")
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


class NullHost:
    """A connection host that ignores faults."""

    def fault(self, connection: Connection, kind: str, why: str) -> None:
        """Ignore a fault."""


class ContentRig:
    """A broker, its records, and the time."""

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
        self._connection = Connection(cast("Any", NullHost()))
        self.node = self._build()
        for client in CLIENTS:
            self.receive(f.Hello(), client)

    def _build(self) -> BrokerNode:
        now_ns = self._now_ns
        return BrokerNode(
            lambda own: TransactionBroker(
                name=BROKER, neighbors=NEIGHBORS, records=own, now_ns=now_ns
            ),
            neighbors=NEIGHBORS,
            codec=TransactionBroker.codec,
            records=self.records,
            now_ns=now_ns,
        )

    def request(self, payload: bytes, client: str) -> None:
        """Send a payload over a client's link; count it unless the broker rejects it."""
        number = self._sent.get(client, 0) + 1
        self.receive(LinkData(number=number, payload=payload), client)
        self._sent[client] = number

    def receive(self, frame: Frame, client: str) -> None:
        """Pass a client's frame to the broker if it is admitted, and apply the effects."""
        admitted, _ = screen_content(self._rules, self._connection, client, [frame])
        for each in admitted:
            self.node.receive(each, source=client, now_ns=self._now_ns)
        self._apply_effects()

    def wait(self) -> None:
        """Advance the time, and acknowledge all frames to the neighbors."""
        self._now_ns += STEP_NS
        for neighbor in NEIGHBORS:
            self.node.receive(LinkAck(number=1 << 40), source=neighbor, now_ns=self._now_ns)
        self.node.handle_timer(now_ns=self._now_ns)
        self._apply_effects()

    def restart(self) -> None:
        """Restart the broker from its records."""
        before = self.node.broker.tables.record()
        self.node = self._build()
        assert self.node.broker.tables.record() == before, "the tables changed in a restart"
        self._apply_effects()

    def _apply_effects(self) -> None:
        for effect in self.node.take_effects():
            if isinstance(effect, Persist):
                if effect.value is None:
                    self.records.pop(effect.key, None)
                else:
                    self.records[effect.key] = effect.value
            elif isinstance(effect, Send):
                _WIRE.body(effect.frame)


def one_input(data: bytes) -> None:
    """Run one input; an exception is a bug."""
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
    """Make the sender the publisher of its events: others are rejected early."""
    if isinstance(fields, list):
        if len(fields) == len(f.Publication.__struct_fields__) and isinstance(fields[2], dict):
            return [client, *fields[1:]]
        return [_named(each, client) for each in fields]
    return fields
