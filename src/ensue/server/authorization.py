"""Authorization: logins, owners of names, and permitted frames.

A request that is not permitted, or exceeds a limit, gets an answer, and the connection stays open:

| frame | answer | at the client |
|---|---|---|
| Hello | Farewell, final | `AccessDenied` on connecting |
| Enter | Exited | `AccessDenied` on entering the name, `LimitReached` if there are too many |
| OrderRequest | Refused, for each event that is not permitted | `EventRefused` |
| Put | Taken | `EventVoided` |
| AttachRequest from now on | Attached, to nothing | the change that follows is rejected |
| ChangeRequest | Refused | `SubscriptionRefused` |
| AttachRequest from a slot, Fetch | Refused, of no number | `SubscriptionLost` |

`ensue.server.relay_authorization` has the same for relayed frames.

A frame that no client sends raises `RemoteProtocolError`, which closes the connection.

A name belongs to the user who first entered it. The owners of durable names, which users choose,
are recorded permanently. Process names end with their process, and every subscriber can read them
in its events; the owners of the last `RECENT_MAX` are recorded.

Only `.` separates the levels of a topic; `/` is a character like any other.

HAZARD: two users who enter one new durable name at the same time, at two servers of a chain, may
own it at one server each, and then neither can use it. They have to choose other names.

If several servers order an event, its publisher sends the event with the stamp that it received.
With users and a secret of the servers (`stations.secret_file`), the server that assigned the stamp
seals it, and a stamp without its seal is answered with Taken.

HAZARD: with only certificates of servers, or without users, the publisher is trusted. A publisher
that lies can take the slots of others and delay the subscribers of its topic.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from hmac import compare_digest

import msgspec

from ensue.core.errors import RemoteProtocolError
from ensue.core.event import NAME_LENGTH_MAX, Event
from ensue.core.order import Total
from ensue.protocols.content.cells import is_cell
from ensue.protocols.content.frames import CONTENT
from ensue.protocols.content.topology import broker_of
from ensue.protocols.interface import Frame, Persist
from ensue.protocols.topic_log.frames import (
    Attached,
    AttachRequest,
    DetachRequest,
    Fetch,
    Put,
    Taken,
)
from ensue.protocols.total.frames import (
    ChangeRequest,
    MoveReply,
    MoveRequest,
    OrderRequest,
    Refused,
    StampRequest,
)
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.stamp_seals import stamp_proof
from ensue.protocols.total.station import EPHEMERAL, FROM_CLIENTS
from ensue.protocols.total.status import StatusRequest
from ensue.server.config import ServerConfig, too_many
from ensue.server.connection import Connection
from ensue.server.order_conflicts import TopicOrders
from ensue.server.peer import Peer
from ensue.server.permissions import Action, Grants
from ensue.server.station_builder import OWNER
from ensue.transports.tcp.messages import Hello
from ensue.transports.tcp.options import parse_address

__all__ = [
    "BUNDLE_ITEMS_MAX",
    "BUNDLE_TOO_LARGE",
    "PUBLISHED_AT_NS_MAX",
    "Authorization",
    "check_event",
]

RECENT_MAX = 100_000
"""Names of processes whose owner is recorded."""
KNOWN_MAX = 10_000
"""Topics of one peer whose permission is cached."""
PUBLISHED_AT_NS_MAX = 2**63 - 1
BUNDLE_ITEMS_MAX = 65_536
"""Frames and events in one bundle; clients send far smaller ones."""

BUNDLE_TOO_LARGE = f"bundle has more than {BUNDLE_ITEMS_MAX} frames and events"
MANY_TOPICS = "the subscription has too many topics"

Write = Callable[[list[Persist], Callable[[], None]], None]
"""Persists records, then calls back."""


class Authorization:
    """The permissions and limits of one server."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        placement: Placement,
        may_put: Callable[[Event, str], bool],
        owners: Mapping[str, str],
        write: Write,
    ) -> None:
        self.limits = config.limits
        self.server = config.name
        self.topic_orders = TopicOrders()
        self._placement = placement
        self._homes = placement.copy()
        """Where relayed orders have topics: moves are for total order."""
        self._may_put = may_put
        self._config = config
        self._stamp_key = config.stamp_key
        self._cells = config.sequencer.partition
        self._cell_topics = frozenset(self._cells.topics if self._cells is not None else ())
        """The topics of events by content."""
        self._write = write
        own = next(member for member in config.members if member.name == config.name)
        own_host = parse_address(own.address or config.listen, what="an address")[0]
        hosts = {
            member.name: parse_address(member.address, what="an address")[0]
            for member in config.members
            if member.name != config.name
        }
        shared = Counter(hosts.values())
        self._stations = {
            name: (name,) if shared[host] > 1 or host == own_host else (name, host)
            for name, host in hosts.items()
        }
        """The other servers, and the names accepted in their certificates: a host only if
        unique."""
        self._owners = {name: owners[name] for name in owners if EPHEMERAL not in name}
        """Owners of durable names."""
        self._recent = {name: owners[name] for name in owners if EPHEMERAL in name}
        """Owners of the names of processes."""
        self._claims: dict[str, str] = {}
        """Owners that are being persisted."""

    # -- Login and names ------------------------------------------------------------------------

    def login(self, connection: Connection, hello: Hello) -> str | None:
        """Check a login and set the grants; return why it is rejected, or None."""
        access = self._config.access
        if hello.role == "station":
            expected = self._stations.get(hello.client)
            if expected is None:
                return f"the chain has no other server {hello.client!r}: compare the configurations"
            proven = access.is_station(hello.token, connection.certificate, expected)
            if self._config.requires_login and not proven:
                return (
                    f"the server {hello.client!r} is not authenticated: give both servers the same "
                    "stations.secret_file, or a certificate"
                )
            connection.station = hello.client
            return None
        if not access.users:
            return None
        user = access.user_of(hello.token, connection.certificate)
        if user is None:
            return "the token is unknown" if hello.token else "a token is needed"
        connection.grants = Grants(user, access.users[user])
        return None

    def may_enter(self, connection: Connection, name: str, holder: Connection | None) -> str | None:
        """Return why a connection may not own a name; None if it may.

        `holder` is the connection that owns the name now.
        """
        if connection.station:
            mine = name in (connection.station, broker_of(connection.station))
            return None if mine else f"this is {connection.station!r}, not {name!r}"
        if name == self._config.name or name in self._stations:
            return f"{name!r} is the name of a server: choose another"
        if "/" in name:
            return "a name must not contain '/', which separates the parts of event ids"
        if (
            name not in connection.names
            and len(connection.names) >= self.limits.names_per_connection
        ):
            return too_many(self.limits, "names_per_connection", "a connection has too many names")
        return self._owner_refusal(connection.grants.user, name, holder)

    def _owner_refusal(self, user: str, name: str, holder: Connection | None) -> str | None:
        known = self._owners.get(name) or self._claims.get(name) or self._recent.get(name)
        others = holder is not None and holder.grants.user != user
        if others or (user and known is not None and known != user):
            return "the name belongs to another user"
        if self._is_new(name, user) and len(self._owners) >= self.limits.durable_names:
            return too_many(self.limits, "durable_names", "there are too many durable names")
        return None

    def acting_refusal(self, connection: Connection, source: str, client: str) -> str:
        """Return why a plan may not act for another client; empty if it may."""
        user = connection.grants.user
        if not user or client == source or self._recent.get(client) == user:
            return ""
        return (
            f"{client!r} is not a client of {user!r}: a plan acts for clients of one user, "
            "by their full names"
        )

    def durable_refusal(self, name: str) -> str:
        """Return why this server does not keep a durable subscription by content, or nothing."""
        if not name or "/" in name or EPHEMERAL in name or len(name) > NAME_LENGTH_MAX:
            return f"a durable subscription can't be called {name[:100]!r}"
        keeper = self._placement.state_store(name)
        return "" if keeper == self._config.name else f"{name!r} is kept at {keeper}"

    def claim(self, connection: Connection, name: str, done: Callable[[], None]) -> None:
        """Record the owner of a name, then call `done`."""
        user = connection.grants.user
        if EPHEMERAL in name and user:
            self._claim_process_name(user, name, done)
            return
        if not self._is_new(name, user):
            done()
            return
        self._claims[name] = user

        def written() -> None:
            self._owners[name] = user
            self._claims.pop(name, None)
            done()

        self._write([Persist(f"{OWNER}{name}", user.encode())], written)

    def _claim_process_name(self, user: str, name: str, done: Callable[[], None]) -> None:
        """Record the owner of a process's name, while it is among the most recent."""
        writes = []
        if self._recent.pop(name, None) is None:
            writes.append(Persist(f"{OWNER}{name}", user.encode()))
        self._recent[name] = user
        if len(self._recent) > RECENT_MAX:
            oldest = next(iter(self._recent))
            del self._recent[oldest]
            writes.append(Persist(f"{OWNER}{oldest}", None))
        if writes:
            self._write(writes, done)
        else:
            done()

    def _is_new(self, name: str, user: str) -> bool:
        """Return whether the owner of a name has to be persisted."""
        return bool(user) and EPHEMERAL not in name and name not in self._owners

    # -- Frames ---------------------------------------------------------------------------------

    def screen(
        self, peer: Peer, source: str, frames: list[Frame]
    ) -> tuple[list[Frame], list[Frame]]:
        """Return the admitted frames of a client, and the answers to the others."""
        admitted: list[Frame] = []
        answers: list[Frame] = []
        if sum(map(_items, frames)) > BUNDLE_ITEMS_MAX:
            raise RemoteProtocolError(BUNDLE_TOO_LARGE)
        for frame in frames:
            kind = type(frame)
            if kind not in FROM_CLIENTS or kind is StampRequest:
                # Servers keep the logs, so clients never request a stamp without its event.
                raise RemoteProtocolError(f"{kind.__name__} is not for clients to send")
            if isinstance(frame, OrderRequest):
                self._events(peer, frame, admitted, answers)
            elif isinstance(frame, Fetch) and frame.survey is not None:
                # The answer lists only topics that the client may read.
                readable = peer.grants.readable
                admitted.append(
                    frame if readable is None else msgspec.structs.replace(frame, survey=readable)
                )
            elif isinstance(frame, StatusRequest):
                # As above.
                readable, user = peer.grants.readable, peer.grants.user
                admitted.append(
                    frame
                    if readable is None
                    else msgspec.structs.replace(frame, readable=readable, user=user)
                )
            elif (answer := self._refusal(peer, source, frame)) is None:
                admitted.append(frame)
            else:
                answers.append(answer)
        return admitted, answers

    def why_not(self, peer: Peer, action: Action, topic: str) -> str:
        """Return why a user may not publish on or subscribe to a topic; empty if it may."""
        known = peer.known[action]
        why = known.get(topic)
        if why is None:
            if len(known) >= KNOWN_MAX:
                known.clear()
            why = known[topic] = self._why_not(peer.grants, action, topic)
        return why

    def _why_not(self, grants: Grants, action: Action, topic: str) -> str:
        limits = self.limits
        if len(topic) > limits.topic_length:
            return too_many(limits, "topic_length", "the topic has too many characters")
        if topic.count(".") >= limits.topic_depth:
            return too_many(limits, "topic_depth", "the topic has too many levels")
        if is_cell(topic):
            # A permission for content is one for all of its cells, and for no other topic.
            if topic not in self._cell_topics:
                return "these servers have other cells for events by content: connect again"
            topic = CONTENT
        if not grants.may(action, topic):
            doing = "publish on" if action == "publish" else "subscribe to"
            return f"{grants.user!r} may not {doing} {topic!r}"
        return ""

    def event_refusal(self, peer: Peer, event: Event) -> str:
        """Return why an event may not be published; empty if it may."""
        if len(event.headers) > self.limits.headers_per_event:
            return too_many(self.limits, "headers_per_event", "the event has too many headers")
        why = self.why_not(peer, "publish", event.topic)
        if not why and self._is_misplaced(event):
            return f"the event does not belong to the cell of its attributes: {event.topic!r}"
        return why

    def _is_misplaced(self, event: Event) -> bool:
        """Return whether an event by content is in another cell than that of its attributes.

        It would reach some of the subscriptions that match it, and others not.
        """
        if self._cells is None or event.void or event.topic not in self._cell_topics:
            return False
        return not self._cells.has(event)

    def _events(
        self, peer: Peer, frame: OrderRequest, admitted: list[Frame], answers: list[Frame]
    ) -> None:
        if not frame.events:
            raise RemoteProtocolError("order request has no events")
        if not 0 < frame.settled <= frame.number:
            raise RemoteProtocolError(
                f"order request {frame.number} has settled={frame.settled}; expected 1 to "
                f"{frame.number}"
            )
        if frame.number + len(frame.events) > frame.settled + self._config.sequencer.window:
            window = self._config.sequencer.window
            raise RemoteProtocolError(f"order requests exceed the chain's window of {window}")
        known, headers_max = peer.known["publish"], self.limits.headers_per_event
        good = True
        for event in frame.events:
            if not 0 <= event.published_at_ns <= PUBLISHED_AT_NS_MAX:
                check_event(event)
            # Events are checked one by one only if one may be rejected.
            is_known = known.get(event.topic) == "" and len(event.headers) <= headers_max
            if not is_known or self._is_misplaced(event):
                good = False
        if good:
            admitted.append(frame)
            return
        refused = [self._ordered_refusal(peer, event) for event in frame.events]
        if not any(refused):
            admitted.append(frame)
            return
        for first, stop in _runs(refused):
            run = OrderRequest(
                number=frame.number + first,
                events=frame.events[first:stop],
                settled=frame.settled,
            )
            admitted.append(run)
        answers += _answers(frame.number, refused)

    def _ordered_refusal(self, peer: Peer, event: Event) -> str:
        """Return why an event may not be published in total order; empty if it may."""
        why = self.event_refusal(peer, event)
        if not why:
            self.topic_orders.note(event.topic, Total.name)
        return why

    def _refusal(self, peer: Peer, source: str, frame: Frame) -> Frame | None:
        """Return the answer to a frame that is not permitted; None if it is."""
        match frame:
            case Put():
                return self._put_refusal(peer, source, frame)
            case AttachRequest():
                return self._attach_refusal(peer, source, frame)
            case ChangeRequest():
                return self._change_refusal(peer, frame)
            case Fetch(topic=topic):
                why = self.read_refusal(peer, topic)
                return Refused(number=0, reason=why) if why else None
            case MoveRequest():
                return self._move_refusal(peer, frame)
            case DetachRequest(topic=topic):
                self.detach(peer, source, self.server, topic)
        return None

    def attach_refusal(self, peer: Peer, source: str, place: str, topic: str) -> str:
        """Attach a peer to a topic at a station or a fan-out; return why not, or empty."""
        if place == self.server:
            why = self.read_refusal(peer, topic)
        else:
            why = self.place_refusal(topic) or self.why_not(peer, "subscribe", topic)
        return why or self.join_refusal(peer, source, place, topic)

    def join_refusal(self, peer: Peer, source: str, place: str, topic: str) -> str:
        """Add a topic to a peer's topics; return why not, or empty."""
        attached = peer.attached.setdefault(source, {})
        limit = self.limits.topics_per_subscription
        if (place, topic) not in attached and len(attached) >= limit:
            return too_many(self.limits, "topics_per_subscription", MANY_TOPICS)
        attached[place, topic] = None
        return ""

    def detach(self, peer: Peer, source: str, place: str, topic: str) -> None:
        """Remove a topic from a peer's topics at a place."""
        peer.attached.get(source, {}).pop((place, topic), None)

    def _attach_refusal(self, peer: Peer, source: str, frame: AttachRequest) -> Frame | None:
        why = self.attach_refusal(peer, source, self.server, frame.topic)
        if not why:
            self.topic_orders.note(frame.topic, Total.name)
            return None
        if frame.from_slot:
            return Refused(number=0, reason=why)
        return Attached(topic=frame.topic, first=1, next=1, sent=1)

    def unknown_topic(self, topic: str) -> str:
        """Return why a topic is not on this chain; empty if it is."""
        return "" if self._placement.knows(topic) else f"no server of this chain hosts {topic!r}"

    def place_refusal(self, topic: str) -> str:
        """Return why this server does not host a topic; empty if it does."""
        if why := self.unknown_topic(topic):
            return why
        if self._homes.node(topic) != self._config.name:
            return f"{topic!r} is not hosted by {self._config.name}"
        return ""

    def read_refusal(self, peer: Peer, topic: str) -> str:
        """Return why a client may not read a topic's log here; empty if it may."""
        placement = self._placement
        # The station answers where a moved topic is. A client may know it before the station.
        moved = topic == placement.moving or topic in placement.parts or placement.unsure
        why = "" if moved else self.place_refusal(topic)
        return why or self.why_not(peer, "subscribe", topic)

    def _put_refusal(self, peer: Peer, source: str, frame: Put) -> Frame | None:
        event, stamp = frame.event, frame.event.stamp
        check_event(event)
        slot = event.slot
        keeper = self._placement.keeper(event.topic, slot or 0)
        if keeper not in ("", self._config.name) or self._placement.unsure:
            return None  # The station answers where the topic has moved.
        if slot is None or not self._may_put(event, source):
            raise RemoteProtocolError(f"event {event.id!r} was not assigned its slot")
        key = self._stamp_key
        if key and stamp is not None:
            proof = stamp_proof(key, event.publisher, event.topic, stamp)
            if not compare_digest(proof, frame.proof):
                return Taken(topic=event.topic, event=event.id, slot=slot)
        if self.event_refusal(peer, event):
            return Taken(topic=event.topic, event=event.id, slot=slot)
        return None

    @staticmethod
    def _move_refusal(peer: Peer, frame: MoveRequest) -> Frame | None:
        if peer.grants.may_all:
            return None
        why = f"{peer.grants.user!r} may not move topics: that needs publish and subscribe on '*'"
        return MoveReply(number=frame.number, moved=False, refusal=why)

    def _change_refusal(self, peer: Peer, frame: ChangeRequest) -> Frame | None:
        limit = self.limits.topics_per_subscription
        if len(frame.old) > limit:
            raise RemoteProtocolError(f"a subscription has at most {limit} topics")
        if frame.number < 1 or not (frame.old or frame.new):
            raise RemoteProtocolError("subscription change has no number or no topics")
        if len(set(frame.new)) != len(frame.new) or len(set(frame.old)) != len(frame.old):
            raise RemoteProtocolError("subscription change names a topic twice")
        if len(frame.new) > limit:
            reason = too_many(self.limits, "topics_per_subscription", MANY_TOPICS)
            return Refused(number=frame.number, reason=reason)
        for topic in frame.new:
            # Topics that it already has too: the server does not track them.
            if why := self.why_not(peer, "subscribe", topic):
                return Refused(number=frame.number, reason=why)
        return None


def check_event(event: Event) -> None:
    """Raise if the journal could not store an event."""
    if not 0 <= event.published_at_ns <= PUBLISHED_AT_NS_MAX:
        raise RemoteProtocolError(f"published_at_ns is out of range: {event.published_at_ns}")


def _items(frame: Frame) -> int:
    return len(frame.events) if type(frame) is OrderRequest else 1


def _runs(refused: list[str]) -> list[tuple[int, int]]:
    """Return where runs of admitted events begin and end."""
    runs: list[tuple[int, int]] = []
    first = 0
    for place, why in enumerate((*refused, "end")):
        if why:
            if first < place:
                runs.append((first, place))
            first = place + 1
    return runs


def _answers(number: int, refused: list[str]) -> list[Frame]:
    return [Refused(number=number + place, reason=why) for place, why in enumerate(refused) if why]
