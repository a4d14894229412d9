"""The content broker of a server, on the station's journal, connections and links.

Theory of operation. The broker is the pure node that the simulator runs
(`ensue.protocols.transactions`). Its records go to the server's journal, with their own prefix, in
the station's batches. Nothing is answered or forwarded before they are synced, so a transaction
reported as committed is committed, and an undecided one is decided after a restart. Brokers of a
chain form a tree (`ServerConfig.neighbors`). Adding or removing a server changes the neighbors of
others when these are restarted.

A frame that makes the broker raise is a bug, and loses what was not synced: the broker restarts
from the journal, as after a crash, while connections stay open. If the journal can't be read, the
server stops.

Permissions. Content is one topic, `content`: a user who may publish on it may advertise and publish
by content, a user who may subscribe to it may subscribe by content, within transactions too; a
durable subscription belongs to the user who made it, and users who may do everything can end it; a
user without either may not begin a transaction. A request that is not permitted gets the reason, in
its turn (`Forbidden`). A plan may act only for clients of the same user. A frame that no client
sends closes the connection.

HAZARD: users choose names, so two users may have clients of one name; an invitation goes to the one
that connected last. Invite by the full name (`bus.name`) if that matters.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import get_args

import msgspec

from ensue.core.clock import Clock
from ensue.core.errors import BadInput, RemoteProtocolError
from ensue.core.wire import Codec, Records
from ensue.journal import Journal
from ensue.protocols.content import frames as f
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.frames import Change, Publication
from ensue.protocols.content.refusals import INVERSE
from ensue.protocols.content.topology import broker_of, server_of
from ensue.protocols.interface import Frame, Persist
from ensue.protocols.recorder import Recorder
from ensue.protocols.shared.link import CONNECTED, LinkAck, LinkData, packed, unpacked
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.nodes import BrokerNode
from ensue.runtime.driver import Driver, Store
from ensue.server.authorization import (
    BUNDLE_ITEMS_MAX,
    BUNDLE_TOO_LARGE,
    PUBLISHED_AT_NS_MAX,
    Authorization,
)
from ensue.server.config import ServerConfig, too_many
from ensue.server.connection import Connection
from ensue.server.station_builder import CONTENT_RECORDS, SECOND_NS
from ensue.server.status import MailboxStatus, Progress
from ensue.transports.framed import FramedTransport

__all__ = ["ContentBroker", "screen_content"]

_NEIGHBORS = f"{CONTENT_RECORDS}neighbours"
_NAMES = Records[list[str]](list[str])
_CODEC = Codec(t.FRAMES)
_PATH = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,99}")
RECONNECT_NS = 2 * SECOND_NS
"""Delay, after a start, before the grace of clients begins: they retry at intervals."""
_CHANGES = (f.ADVERTISE, f.UNADVERTISE, f.SUBSCRIBE, f.UNSUBSCRIBE)

_log = logging.getLogger("ensue")

Request = (
    f.Operate
    | f.Attach
    | f.Acknowledge
    | f.Release
    | f.Dismiss
    | t.Begin
    | t.Invite
    | t.Finish
    | t.End
    | t.Submit
)
_REQUESTS = get_args(Request)


class _OwnRecords:
    """A store that prefixes the broker's records, apart from the station's."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, writes: Sequence[Persist], done: Callable[[], None]) -> None:
        """Persist a batch, then call `done`."""
        self._store.write(
            [Persist(f"{CONTENT_RECORDS}{each.key}", each.value) for each in writes], done
        )


class ContentBroker:
    """The content broker of one server."""

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
        self._neighbors = tuple(broker_of(each) for each in config.neighbors)
        self._journal = journal
        self._store = store
        self._transport = transport
        self._clock = clock
        self._on_failure = on_failure
        self._is_connected = is_connected
        """Returns whether a client is connected now."""
        self._recorder = recorder
        default = ContentConfig()
        self._config = ContentConfig(
            lease_ns=max(default.lease_ns, int(config.expire_s * SECOND_NS)),
            grace_ns=int(config.transaction_grace_s * SECOND_NS),
            mailbox_expire_ns=int((config.mailbox_expire_s or 0) * SECOND_NS),
        )
        self._driver: Driver[BrokerNode] | None = None
        self.restarts = 0
        """Number of restarts after an exception."""
        names = [member.name for member in config.members]
        self._later = {broker_of(each) for each in names[names.index(config.name) :]}
        """Brokers of later servers in the chain, which may become neighbors."""
        self._previous_neighbors = self._load_neighbors()

    @property
    def broker(self) -> TransactionBroker:
        """The broker's protocol node, for inspection."""
        assert self._driver is not None
        inner = self._driver.node.broker
        assert isinstance(inner, TransactionBroker)
        return inner

    def progress(self) -> Iterator[Progress]:
        """Yield the progress of the durable subscriptions that this broker keeps."""
        now_ns = self._clock.now_ns()
        mailboxes = self.broker.state.mailboxes
        for name, mailbox in mailboxes.open.items():
            idle_ns = now_ns - mailbox.idle_since_ns if mailbox.idle_since_ns else 0
            # No other durable subscription has a slash in its name.
            yield Progress(
                f"{f.CONTENT}/{name.partition('/')[2]}",
                mailbox.acknowledged,
                len(mailbox.kept),
                (f.CONTENT,),
                {},
                MailboxStatus(
                    server=server_of(self.name),
                    user=mailbox.owner,
                    where=mailbox.where,
                    bytes=mailboxes.bytes_of(name),
                    has_reader=bool(mailbox.reader),
                    idle_s=max(0, idle_ns) / SECOND_NS,
                    lost=mailbox.overfull,
                ),
            )

    async def open(self) -> None:
        """Start the broker."""
        await self._transport.enter(self.name)
        neighbors = Persist(_NEIGHBORS, _NAMES.encode(list(self._previous_neighbors)))
        self._store.write([neighbors], _ignore)
        self._drive()

    def close(self) -> None:
        """Stop the broker."""
        if self._driver is not None:
            self._driver.close()

    def connected(self, peer: str) -> None:
        """Record that a peer is connected, and retransmit what it may have missed."""
        if self._driver is not None and not self._driver.closed:
            self._driver.command(lambda node, now: node.regain_connection(peer, now_ns=now))
            self._driver.command(lambda node, now: node.repeat(now_ns=now, peer=peer))

    def disconnected(self, peer: str) -> None:
        """Start the grace of a disconnected client."""
        if self._driver is not None and not self._driver.closed:
            self._driver.command(lambda node, now: node.lose_connection(peer, now_ns=now))

    def _track_connections(self, node: BrokerNode, now_ns: int) -> None:
        """Start the grace of disconnected clients; after a restart, later."""
        for client in node.broker.sessions:
            if self._is_connected(client):
                node.regain_connection(client, now_ns=now_ns)
            else:
                node.lose_connection(client, now_ns=now_ns + RECONNECT_NS)

    def _load_neighbors(self) -> tuple[str, ...]:
        """Return the neighbors of the last run; for an unused broker, the configured ones."""
        known = self._journal.records.get(_NEIGHBORS)
        used = any(
            key.startswith(CONTENT_RECORDS) and key != _NEIGHBORS for key in self._journal.records
        )
        return tuple(_NAMES.decode(known)) if known is not None and used else self._neighbors

    def _change_neighbors(self, node: BrokerNode, now_ns: int) -> None:
        """Adopt brokers added since the last run, and abandon those removed."""
        broker = node.broker
        assert isinstance(broker, TransactionBroker)
        added = [each for each in self._neighbors if each not in broker.neighbors]
        removed = [each for each in broker.neighbors if each not in self._neighbors]
        for each in added:
            if each not in self._later:
                raise BadInput(
                    f"{self.name} is in use and can't become a neighbor of {each}, an earlier "
                    "server of the chain: start it with an empty data directory"
                )
        for each in removed:
            held = broker.hold_of(each)
            if held:
                raise BadInput(
                    f"{self.name} still has {held} of its neighbor {each}: start it with {each} "
                    "once more, let its clients leave and transactions end, and then remove it"
                )
        for each in removed:
            node.abandon(each, now_ns=now_ns)
        for each in added:
            node.adopt(each, now_ns=now_ns)

    def _drive(self) -> None:
        now_ns = self._clock.now_ns()
        records = {
            key.removeprefix(CONTENT_RECORDS): value
            for key, value in self._journal.records.items()
            if key.startswith(CONTENT_RECORDS) and key != _NEIGHBORS
        }
        node = BrokerNode(
            lambda own: TransactionBroker(
                name=self.name,
                neighbors=self._previous_neighbors,
                config=self._config,
                records=own,
                now_ns=now_ns,
            ),
            neighbors=self._previous_neighbors,
            codec=TransactionBroker.codec,
            link=CONNECTED,
            records=records,
            now_ns=now_ns,
        )
        self._change_neighbors(node, now_ns)
        self._track_connections(node, now_ns)
        if self._recorder is not None:
            for at_ns, outcome in node.broker.recovered:
                self._recorder.outcome(self.name, None, outcome, at_ns)
        self._driver = Driver(
            node,
            transport=self._transport,
            clock=self._clock,
            store=_OwnRecords(self._store),
            on_failure=self._restart,
            recorder=self._recorder,
        )

    def _restart(self, error: Exception) -> None:
        """Restart from the journal, as after a crash."""
        self.restarts += 1
        _log.error("content broker restarted name=%s: %r", self.name, error)
        try:
            self._drive()
        except Exception as again:  # noqa: BLE001 - the journal can't be read
            self._on_failure(again)


def _ignore() -> None:
    """Do nothing: later writes have their own callbacks."""


# -- Authorization --------------------------------------------------------------------------------


def screen_content(
    authorization: Authorization, connection: Connection, source: str, frames: list[Frame]
) -> tuple[list[Frame], list[Frame]]:
    """Return a client's frames for the broker, with rejected requests marked.

    The broker answers rejected requests in their turn, so there are no answers here.
    """
    if len(frames) > BUNDLE_ITEMS_MAX:
        raise RemoteProtocolError(BUNDLE_TOO_LARGE)
    admitted: list[Frame] = []
    for frame in frames:
        if isinstance(frame, LinkData):
            admitted.append(_screen_numbered(authorization, connection, source, frame))
        elif isinstance(frame, LinkAck | f.Hello | f.Beat):
            admitted.append(frame)
        else:
            raise RemoteProtocolError(f"{type(frame).__name__} is not for a broker")
    return admitted, []


def _screen_numbered(
    authorization: Authorization, connection: Connection, source: str, data: LinkData
) -> LinkData:
    parts = unpacked(data.payload, source)
    screened = [_screen_one(authorization, connection, source, part) for part in parts]
    if screened == parts:
        return data
    return LinkData(number=data.number, payload=packed(screened))


def _screen_one(
    authorization: Authorization, connection: Connection, source: str, encoded: bytes
) -> bytes:
    frame = _CODEC.decode(encoded, peer=source)
    if isinstance(frame, f.Goodbye):
        return encoded
    if not isinstance(frame, _REQUESTS):
        raise RemoteProtocolError(f"{type(frame).__name__} is not for clients to send")
    if frame.number < 1:
        raise RemoteProtocolError(f"request number must be at least 1, got {frame.number}")
    why = next((why for why in _refusals(authorization, connection, source, frame) if why), "")
    if not why:
        return (
            _owned(authorization, connection, frame)
            if isinstance(frame, f.Attach | f.Dismiss)
            else encoded
        )
    connection.server.fault(connection, "permission", why)
    return _CODEC.encode(f.Forbidden(number=frame.number, reason=why))


def _owned(
    authorization: Authorization, connection: Connection, frame: f.Attach | f.Dismiss
) -> bytes:
    """Return a request about a durable subscription with the required owner.

    A request to attach also has the limit of that user, by which the broker recovers later.
    """
    grants = connection.grants
    if isinstance(frame, f.Dismiss):
        owner = "" if grants.may_all else grants.user
        return _CODEC.encode(msgspec.structs.replace(frame, owner=owner))
    owned_max = authorization.limits.mailboxes_per_user if grants.user else 0
    return _CODEC.encode(msgspec.structs.replace(frame, owner=grants.user, owned_max=owned_max))


def _refusals(
    authorization: Authorization, connection: Connection, source: str, frame: Request
) -> Iterator[str]:
    """Yield why a request is not permitted, or empty texts; raise if it is invalid."""
    if isinstance(frame, f.Operate | t.Invite | t.Finish) and frame.path:
        _check_path(frame.path)
    if isinstance(frame, f.Operate):
        if (frame.change is None) == (frame.publication is None):
            raise RemoteProtocolError("an operation needs exactly one of change, publication")
        yield from _operation(authorization, connection, source, frame.change, frame.publication)
    elif isinstance(frame, f.Attach | f.Dismiss):
        yield from _attachment(authorization, connection, frame)
    elif isinstance(frame, t.Begin):
        yield _transaction_refusal(authorization, connection)
    elif isinstance(frame, t.Invite):
        yield from _invitation(authorization, connection, source, frame)
    elif isinstance(frame, t.Submit):
        for one in frame.operations:
            _check_path(one.path)
            if one.home:
                raise RemoteProtocolError(f"a plan must not set home, got {one.home[:100]!r}")
            yield authorization.acting_refusal(connection, source, one.client)
            yield from _operation(
                authorization, connection, one.client, one.change, one.publication
            )


def _invitation(
    authorization: Authorization, connection: Connection, source: str, frame: t.Invite
) -> Iterator[str]:
    # Only the invited client reads it, so permissions of the topic don't apply; by content it is a
    # publication.
    _check_publication(source, frame.publication)
    if frame.client == t.ANYONE:
        yield authorization.why_not(connection, "publish", f.CONTENT)
    yield _transaction_refusal(authorization, connection)


def _attachment(
    authorization: Authorization, connection: Connection, frame: f.Attach | f.Dismiss
) -> Iterator[str]:
    if frame.owner:
        raise RemoteProtocolError(f"a client must not set owner, got {frame.owner[:100]!r}")
    if isinstance(frame, f.Attach) and frame.owned_max:
        raise RemoteProtocolError(f"a client must not set owned_max, got {frame.owned_max}")
    yield authorization.durable_refusal(frame.name)
    yield authorization.why_not(connection, "subscribe", f.CONTENT)


def _transaction_refusal(authorization: Authorization, connection: Connection) -> str:
    """Return why a user may not take part in transactions; empty if it may.

    Without permissions on content it could only delay transactions of others.
    """
    if not authorization.why_not(connection, "publish", f.CONTENT):
        return ""
    if not authorization.why_not(connection, "subscribe", f.CONTENT):
        return ""
    return f"{connection.grants.user!r} may neither publish on {f.CONTENT!r} nor subscribe to it"


def _operation(
    authorization: Authorization,
    connection: Connection,
    client: str,
    change: Change | None,
    publication: Publication | None,
) -> Iterator[str]:
    if publication is not None:
        _check_publication(client, publication)
        limit = authorization.limits.headers_per_event
        if len(publication.attributes) > limit:
            yield too_many(
                authorization.limits, "headers_per_event", "the event has too many attributes"
            )
        yield authorization.why_not(connection, "publish", f.CONTENT)
    if change is not None:
        if change.action not in _CHANGES:
            raise RemoteProtocolError(f"unknown change: {change.action[:100]!r}")
        # The broker checks whether the name exists.
        if change.action in INVERSE and not change.name.startswith(f"{client}."):
            raise RemoteProtocolError(f"the name {change.name[:100]!r} is not one of {client!r}")
        if change.action == f.SUBSCRIBE:
            yield authorization.why_not(connection, "subscribe", f.CONTENT)
        elif change.action == f.ADVERTISE:
            yield authorization.why_not(connection, "publish", f.CONTENT)


def _check_publication(client: str, publication: Publication) -> None:
    if publication.publisher != client:
        raise RemoteProtocolError(
            f"the event's publisher is {publication.publisher!r}, but {client!r} sent it"
        )
    if not 0 <= publication.published_at_ns <= PUBLISHED_AT_NS_MAX:
        raise RemoteProtocolError(f"published_at_ns is out of range: {publication.published_at_ns}")


def _check_path(path: str) -> None:
    if not _PATH.fullmatch(path):
        raise RemoteProtocolError(f"path must be numbers separated by dots, got {path[:100]!r}")
