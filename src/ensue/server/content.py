"""The content broker of a server: it stands beside the station, on the same journal, connections and links to other servers.

Theory of operation. The broker is the pure node that the simulator runs (`ensue.protocols.transactions`). What it persists goes to the server's journal,
under keys of its own, with the station's batches; nothing is answered or passed on before that is safe, so a transaction that was said to be
committed is, and one that was not decided is decided when the server is back. Brokers of a chain form a tree (`ServerConfig.neighbours`); a server that is added to
the chain or taken out of it changes who stands beside whom when those are started again (`joining`).

A frame that makes the broker raise is a bug, and costs what it had not made safe: the broker begins anew from the journal, as after a
crash, while everybody stays connected. A journal that can't be read any more ends the server.

Permissions. Content is one topic, `content`: who may publish on it may advertise and publish by content, who may subscribe to it may subscribe by
content, within transactions too; who may do neither begins no transaction. A request that is not permitted is answered with why, in its turn (`Forbidden`). A plan may act for other clients of the same user only. Whoever sends what no
client would, is hung up on.

HAZARD: where names are given by people, two users may have clients of one name; an invitation goes to the one that came last. Invite by the
whole name (`bus.name`) where that matters.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence

from ensue.clock import Clock
from ensue.errors import BadInput, RemoteProtocolError
from ensue.journal import Journal
from ensue.protocols.core import Frame, Persist
from ensue.protocols.link import LinkAck, LinkData, packed, unpacked
from ensue.protocols.overlay import frames as f
from ensue.protocols.overlay.config import OverlayConfig
from ensue.protocols.overlay.frames import Change, Publication
from ensue.protocols.overlay.nodes import CONNECTED, BrokerNode, broker_of
from ensue.protocols.overlay.refusing import INVERSE
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.planner import TransactionBroker
from ensue.recorder import Recorder
from ensue.runtime.driver import Driver, Store
from ensue.server.config import ServerConfig, too_many
from ensue.server.rules import BUNDLE_ITEMS_MAX, PUBLISHED_AT_NS_MAX, Rules
from ensue.server.stations import CONTENT_RECORDS, SECOND_NS
from ensue.server.visitor import Visitor
from ensue.transports.framed import FramedTransport
from ensue.wire import Codec, Records

__all__ = ["ContentBroker", "screen_content"]

_NEIGHBOURS = f"{CONTENT_RECORDS}neighbours"
_NAMES = Records[list[str]](list[str])
_CODEC = Codec(t.FRAMES)
_PATH = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,99}")
RECONNECT_NS = 2 * SECOND_NS
"""After a start, how much later the grace of clients begins: they may just pause between two attempts to connect."""
_CHANGES = (f.ADVERTISE, f.UNADVERTISE, f.SUBSCRIBE, f.UNSUBSCRIBE)

_log = logging.getLogger("ensue")

Request = f.Operate | t.Begin | t.Invite | t.Finish | t.End | t.Submit
_REQUESTS = (f.Operate, t.Begin, t.Invite, t.Finish, t.End, t.Submit)


class _OwnRecords:
    """Keeps the broker's records apart from the station's."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, writes: Sequence[Persist], done: Callable[[], None]) -> None:
        """Make a batch safe, and then call `done`."""
        self._store.write(
            [Persist(f"{CONTENT_RECORDS}{each.key}", each.value) for each in writes], done
        )


class ContentBroker:
    """The broker of one server, from its start to its end."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        journal: Journal,
        store: Store,
        transport: FramedTransport,
        clock: Clock,
        on_failure: Callable[[Exception], None],
        is_connected: Callable[[str], bool],
        recorder: Recorder | None = None,
    ) -> None:
        self.name = broker_of(config.name)
        self._neighbours = tuple(broker_of(each) for each in config.neighbours)
        self._journal = journal
        self._store = store
        self._transport = transport
        self._clock = clock
        self._on_failure = on_failure
        self._is_connected = is_connected
        """Tells whether a client has a connection now."""
        self._recorder = recorder
        default = OverlayConfig()
        self._config = OverlayConfig(
            lease_ns=max(default.lease_ns, int(config.expire_s * SECOND_NS)),
            grace_ns=int(config.transaction_grace_s * SECOND_NS),
        )
        self._driver: Driver[BrokerNode] | None = None
        self.restarts = 0
        """How often it began anew because something was raised."""
        names = [member.name for member in config.members]
        self._behind = {broker_of(each) for each in names[names.index(config.name) :]}
        """Brokers that come behind this one in the chain, and may come to stand beside it."""
        self._at_first = self._neighbours_at_first()

    @property
    def broker(self) -> TransactionBroker:
        """The broker itself, to be looked at."""
        assert self._driver is not None
        inner = self._driver.node.broker
        assert isinstance(inner, TransactionBroker)
        return inner

    async def open(self) -> None:
        """Bring the broker to life."""
        await self._transport.enter(self.name)
        at_first = Persist(_NEIGHBOURS, _NAMES.encode(list(self._at_first)))
        self._store.write([at_first], _nothing)
        self._drive()

    def close(self) -> None:
        """Let the broker rest."""
        if self._driver is not None:
            self._driver.close()

    def connected(self, peer: str) -> None:
        """Hear that somebody is connected, maybe again, and send it what it may have missed."""
        if self._driver is not None and not self._driver.closed:
            self._driver.command(lambda node, now: node.regain_connection(peer, now_ns=now))
            self._driver.command(lambda node, now: node.repeat(now_ns=now, peer=peer))

    def disconnected(self, peer: str) -> None:
        """Start the grace of a client that has lost its connection."""
        if self._driver is not None and not self._driver.closed:
            self._driver.command(lambda node, now: node.lose_connection(peer, now_ns=now))

    def _note_connections(self, node: BrokerNode, now_ns: int) -> None:
        """Start the grace of clients without a connection; after a restart they need time to come back."""
        for client in node.broker.clients:
            if self._is_connected(client):
                node.regain_connection(client, now_ns=now_ns)
            else:
                node.lose_connection(client, now_ns=now_ns + RECONNECT_NS)

    def _neighbours_at_first(self) -> tuple[str, ...]:
        """Return who stood beside the broker when it was last seen; of a broker that is not in use, who does now."""
        known = self._journal.records.get(_NEIGHBOURS)
        used = any(
            key.startswith(CONTENT_RECORDS) and key != _NEIGHBOURS for key in self._journal.records
        )
        return tuple(_NAMES.decode(known)) if known is not None and used else self._neighbours

    def _change_neighbours(self, node: BrokerNode, now_ns: int) -> None:
        """Let brokers that have come since stand beside this one, and do without those that have left."""
        broker = node.broker
        assert isinstance(broker, TransactionBroker)
        come = [each for each in self._neighbours if each not in broker.neighbours]
        gone = [each for each in broker.neighbours if each not in self._neighbours]
        for each in come:
            if each not in self._behind:
                raise BadInput(
                    f"{self.name} is in use and would come to stand beside {each}, which is before it in the chain: "
                    "a broker that comes to others begins with an empty directory"
                )
        for each in gone:
            held = broker.hold_of(each)
            if held:
                raise BadInput(
                    f"{self.name} stands beside {each}, of which there is still {held}: start it with {each} "
                    "once more, let its clients leave and transactions end, and then leave it out"
                )
        for each in gone:
            node.abandon(each, now_ns=now_ns)
        for each in come:
            node.adopt(each, now_ns=now_ns)

    def _drive(self) -> None:
        now_ns = self._clock.now_ns()
        records = {
            key.removeprefix(CONTENT_RECORDS): value
            for key, value in self._journal.records.items()
            if key.startswith(CONTENT_RECORDS) and key != _NEIGHBOURS
        }
        node = BrokerNode(
            lambda own: TransactionBroker(
                name=self.name,
                neighbours=self._at_first,
                config=self._config,
                records=own,
                now_ns=now_ns,
            ),
            neighbours=self._at_first,
            codec=TransactionBroker.codec,
            link=CONNECTED,
            records=records,
            now_ns=now_ns,
        )
        self._change_neighbours(node, now_ns)
        self._note_connections(node, now_ns)
        if self._recorder is not None:
            for at_ns, told in node.broker.recovered:
                self._recorder.outcome(self.name, None, told, at_ns)
        self._driver = Driver(
            node,
            transport=self._transport,
            clock=self._clock,
            store=_OwnRecords(self._store),
            on_failure=self._begin_anew,
            recorder=self._recorder,
        )

    def _begin_anew(self, error: Exception) -> None:
        """Go on from what is safe, as after a crash."""
        self.restarts += 1
        _log.error("%s begins anew from its journal: %r", self.name, error)
        try:
            self._drive()
        except Exception as again:  # noqa: BLE001 - whatever it is, there is nothing to go on from
            self._on_failure(again)


def _nothing() -> None:
    """Wait for nothing: what comes behind waits for itself."""


# -- What clients may send ------------------------------------------------------------------------


def screen_content(
    rules: Rules, visitor: Visitor, source: str, frames: list[Frame]
) -> tuple[list[Frame], list[Frame]]:
    """Return what a client may send to a broker of all it sent; what it may not is answered by the broker, in its turn."""
    if len(frames) > BUNDLE_ITEMS_MAX:
        raise RemoteProtocolError("a bundle of more than any client puts into one")
    admitted: list[Frame] = []
    for frame in frames:
        if isinstance(frame, LinkData):
            admitted.append(_screen_numbered(rules, visitor, source, frame))
        elif isinstance(frame, LinkAck | f.Hello | f.Beat):
            admitted.append(frame)
        else:
            raise RemoteProtocolError(f"{type(frame).__name__} is not for a broker")
    return admitted, []


def _screen_numbered(rules: Rules, visitor: Visitor, source: str, data: LinkData) -> LinkData:
    parts = unpacked(data.payload, source)
    screened = [_screen_one(rules, visitor, source, part) for part in parts]
    if screened == parts:
        return data
    return LinkData(number=data.number, payload=packed(screened))


def _screen_one(rules: Rules, visitor: Visitor, source: str, encoded: bytes) -> bytes:
    frame = _CODEC.decode(encoded, peer=source)
    if isinstance(frame, f.Goodbye):
        return encoded
    if not isinstance(frame, _REQUESTS):
        raise RemoteProtocolError(f"{type(frame).__name__} is not for clients to send")
    if frame.number < 1:
        raise RemoteProtocolError("a request without a number")
    why = next((why for why in _refusals(rules, visitor, source, frame) if why), "")
    if not why:
        return encoded
    visitor.house.fault(visitor, "permission", why)
    return _CODEC.encode(f.Forbidden(number=frame.number, reason=why))


def _refusals(rules: Rules, visitor: Visitor, source: str, frame: Request) -> Iterator[str]:
    """Yield why a request is not permitted; raise if no client would send it."""
    if isinstance(frame, f.Operate | t.Invite | t.Finish) and frame.path:
        _check_path(frame.path)
    if isinstance(frame, f.Operate):
        if (frame.change is None) == (frame.publication is None):
            raise RemoteProtocolError("an operation that is none, or two")
        yield from _operation(rules, visitor, source, frame.change, frame.publication)
    elif isinstance(frame, t.Begin):
        yield _no_part(rules, visitor)
    elif isinstance(frame, t.Invite):
        # Said to one client, within a transaction: nobody else reads it.
        _check_publication(source, frame.publication)
        yield _no_part(rules, visitor)
    elif isinstance(frame, t.Submit):
        for one in frame.operations:
            _check_path(one.path)
            if one.home:
                raise RemoteProtocolError("a plan that says where a client is at home")
            yield rules.acting_refusal(visitor, source, one.client)
            yield from _operation(rules, visitor, one.client, one.change, one.publication)


def _no_part(rules: Rules, visitor: Visitor) -> str:
    """Say so if somebody has no part in content: then it could only hold up others' transactions."""
    if not rules.why_not(visitor, "publish", f.CONTENT):
        return ""
    if not rules.why_not(visitor, "subscribe", f.CONTENT):
        return ""
    return f"{visitor.grants.user!r} may neither publish on {f.CONTENT!r} nor subscribe to it"


def _operation(
    rules: Rules,
    visitor: Visitor,
    client: str,
    change: Change | None,
    publication: Publication | None,
) -> Iterator[str]:
    if publication is not None:
        _check_publication(client, publication)
        limit = rules.limits.headers_per_event
        if len(publication.attributes) > limit:
            yield too_many(rules.limits, "headers_per_event", "the event has too many attributes")
        yield rules.why_not(visitor, "publish", f.CONTENT)
    if change is not None:
        if change.action not in _CHANGES:
            raise RemoteProtocolError("a change of the tables that is none")
        # Whether there is such a name to be withdrawn, the broker says.
        if change.action in INVERSE and not change.name.startswith(f"{client}."):
            raise RemoteProtocolError(f"{change.name[:100]!r} is no name that {client!r} gives")
        if change.action == f.SUBSCRIBE:
            yield rules.why_not(visitor, "subscribe", f.CONTENT)
        elif change.action == f.ADVERTISE:
            yield rules.why_not(visitor, "publish", f.CONTENT)


def _check_publication(client: str, publication: Publication) -> None:
    if publication.publisher != client:
        raise RemoteProtocolError(f"an event of {publication.publisher!r}, which {client!r} is not")
    if not 0 <= publication.published_at_ns <= PUBLISHED_AT_NS_MAX:
        raise RemoteProtocolError("an event was published at no time that there is")


def _check_path(path: str) -> None:
    if not _PATH.fullmatch(path):
        raise RemoteProtocolError("an operation that has no place in a transaction")
