"""What a server lets whom do: who comes in, under which names, and with which frames.

Two kinds of wrong are told apart. Whoever merely may not, or asks for more than a limit, is told so where
it asked, and keeps its connection:

| frame | answer | at the client |
|---|---|---|
| Hello | Farewell, final | `AccessDenied` on connecting |
| Enter | Exited | `AccessDenied` on taking the name, `LimitReached` if there are too many |
| OrderRequest | Refused, for each event that may not be | `EventRefused` |
| Put | Taken | `EventVoided` |
| AttachRequest from now on | Attached, to nothing | the change that follows is refused |
| ChangeRequest | Refused | `SubscriptionRefused` |
| AttachRequest from a slot, Fetch | Refused, of no number | `SubscriptionLost` |

`ensue.server.carrying` has the same for what is carried and not kept.

Whoever sends what no client would, raises `RemoteProtocolError`, and is hung up on.

A name belongs to the user who first took it. Names of durable subscriptions, which people give, are
written down for good; of those that die with their process, which everybody can read in its events, the
last `RECENT_MAX`.

Levels of a topic are parted by `.` alone; `/` is a character like any other.

HAZARD: two users who take one new durable name at the same moment, each at another server of a chain, may
come to own it at one server each, and then neither can use it. They have to choose other names.

Where the order of an event takes several servers, its publisher puts it out with the stamp that it was given. With users and a secret of the
servers (`stations.secret_file`), the stamp is sealed by the server that gave it, and one without its seal is answered with Taken.

HAZARD: with certificates of servers alone, or without users, the publisher is believed. One that lies can take the slots of others and hold up those
who subscribe to its topic.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from hmac import compare_digest

import msgspec

from ensue.errors import RemoteProtocolError
from ensue.event import Event
from ensue.order import Total
from ensue.protocols.core import Frame, Persist
from ensue.protocols.ens import Attached, AttachRequest, DetachRequest, Fetch, Put, Taken
from ensue.protocols.looking import Look
from ensue.protocols.overlay.nodes import broker_of
from ensue.protocols.sequencer.frames import ChangeRequest, OrderRequest, Refused, StampRequest
from ensue.protocols.sequencer.placement import Placement
from ensue.protocols.sequencer.seals import stamp_proof
from ensue.protocols.station import EPHEMERAL, FROM_CLIENTS
from ensue.server.access import Action, Grants
from ensue.server.config import ServerConfig, too_many
from ensue.server.guest import Guest
from ensue.server.stations import OWNER
from ensue.server.topic_orders import TopicOrders
from ensue.server.visitor import Visitor
from ensue.transports.tcp_messages import Hello
from ensue.transports.tcp_options import parse_address

__all__ = ["BUNDLE_ITEMS_MAX", "PUBLISHED_AT_NS_MAX", "Rules", "check_event"]

RECENT_MAX = 100_000
"""Names of processes whose user is remembered."""
KNOWN_MAX = 10_000
"""Topics that were looked at for one connection and need not be looked at again."""
PUBLISHED_AT_NS_MAX = 2**63 - 1
BUNDLE_ITEMS_MAX = 65_536
"""Frames, and events, of one bundle: a client begins another bundle long before."""

MANY_TOPICS = "the subscription has too many topics"

Write = Callable[[list[Persist], Callable[[], None]], None]
"""Makes records safe, and then calls back."""


class Rules:
    """What one server lets whom do."""

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
        self._may_put = may_put
        self._config = config
        self._stamp_key = config.stamp_key
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
        """The other servers, and what their certificates may call them: a host, if it is of one alone."""
        self._owners = {name: owners[name] for name in owners if EPHEMERAL not in name}
        """Names of durable subscriptions to their users."""
        self._recent = {name: owners[name] for name in owners if EPHEMERAL in name}
        """Names of processes to their users."""
        self._claims: dict[str, str] = {}
        """Owners that are being written down."""

    # -- Coming in ------------------------------------------------------------------------------

    def login(self, visitor: Visitor, hello: Hello) -> str | None:
        """Say why somebody is not let in; None: they are, and the visitor has what they may do."""
        access = self._config.access
        if hello.role == "station":
            expected = self._stations.get(hello.client)
            if expected is None:
                return f"{hello.client!r} is no other server of this chain"
            proven = access.is_station(hello.token, visitor.certificate, expected)
            if self._config.asks_who and not proven:
                return f"nothing proves that this is the server {hello.client!r}"
            visitor.station = hello.client
            return None
        if not access.users:
            return None
        user = access.user_of(hello.token, visitor.certificate)
        if user is None:
            return "the token is not known here" if hello.token else "a token is needed"
        visitor.grants = Grants(user, access.users[user])
        return None

    def may_enter(self, visitor: Visitor, name: str, holder: Visitor | None) -> str | None:
        """Say why a connection may not enter under a name, which somebody may hold; None: it may."""
        if visitor.station:
            mine = name in (visitor.station, broker_of(visitor.station))
            return None if mine else f"this is {visitor.station!r}, and not {name!r}"
        if name == self._config.name or name in self._stations:
            return f"{name!r} is a server of the chain"
        if "/" in name:
            return "a name holds no '/', which parts the ids of events"
        if name not in visitor.names and len(visitor.names) >= self.limits.names_per_connection:
            return too_many(self.limits, "names_per_connection", "a connection has too many names")
        return self._owner_refusal(visitor.grants.user, name, holder)

    def _owner_refusal(self, user: str, name: str, holder: Visitor | None) -> str | None:
        known = self._owners.get(name) or self._claims.get(name) or self._recent.get(name)
        others = holder is not None and holder.grants.user != user
        if others or (user and known is not None and known != user):
            return "the name belongs to another user"
        if self._is_new(name, user) and len(self._owners) >= self.limits.durable_names:
            return too_many(self.limits, "durable_names", "there are too many durable names")
        return None

    def acting_refusal(self, visitor: Visitor, source: str, client: str) -> str:
        """Say why somebody may not have another client act in its plan; empty: it may."""
        user = visitor.grants.user
        if not user or client == source or self._recent.get(client) == user:
            return ""
        return (
            f"{client!r} is no client of {user!r}: a plan acts for one's own, by their whole names"
        )

    def claim(self, visitor: Visitor, name: str, done: Callable[[], None]) -> None:
        """Have a name belong to whoever enters under it, and then call `done`."""
        user = visitor.grants.user
        if EPHEMERAL in name and user:
            self._claim_for_now(user, name, done)
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

    def _claim_for_now(self, user: str, name: str, done: Callable[[], None]) -> None:
        """Have the name of a process belong to a user, for as long as it is among the last."""
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
        """Tell whether it has to be written down whose name it is."""
        return bool(user) and EPHEMERAL not in name and name not in self._owners

    # -- Frames ---------------------------------------------------------------------------------

    def screen(
        self, visitor: Guest, source: str, frames: list[Frame]
    ) -> tuple[list[Frame], list[Frame]]:
        """Return what a client may send of all it sent, and what it is told about the rest."""
        admitted: list[Frame] = []
        answers: list[Frame] = []
        if sum(map(_items, frames)) > BUNDLE_ITEMS_MAX:
            raise RemoteProtocolError("a bundle of more than any client puts into one")
        for frame in frames:
            kind = type(frame)
            if kind not in FROM_CLIENTS or kind is StampRequest:
                # Where servers keep the logs, nobody asks for a stamp without its event.
                raise RemoteProtocolError(f"{kind.__name__} is not for clients to send")
            if isinstance(frame, OrderRequest):
                self._events(visitor, frame, admitted, answers)
            elif isinstance(frame, Fetch) and frame.survey is not None:
                # Nobody is told of a topic that it may not read.
                readable = visitor.grants.readable
                admitted.append(
                    frame if readable is None else msgspec.structs.replace(frame, survey=readable)
                )
            elif isinstance(frame, Look):
                # As above; whoever may not read everything is told no more than that.
                readable = visitor.grants.readable
                admitted.append(
                    frame if readable is None else msgspec.structs.replace(frame, readable=readable)
                )
            elif (answer := self._refusal(visitor, source, frame)) is None:
                admitted.append(frame)
            else:
                answers.append(answer)
        return admitted, answers

    def why_not(self, visitor: Guest, action: Action, topic: str) -> str:
        """Say why a user may not publish on a topic, or subscribe to it; empty: it may."""
        known = visitor.known[action]
        why = known.get(topic)
        if why is None:
            if len(known) >= KNOWN_MAX:
                known.clear()
            why = known[topic] = self._why_not(visitor.grants, action, topic)
        return why

    def _why_not(self, grants: Grants, action: Action, topic: str) -> str:
        limits = self.limits
        if len(topic) > limits.topic_length:
            return too_many(limits, "topic_length", "the topic has too many characters")
        if topic.count(".") >= limits.topic_depth:
            return too_many(limits, "topic_depth", "the topic has too many levels")
        if not grants.may(action, topic):
            doing = "publish on" if action == "publish" else "subscribe to"
            return f"{grants.user!r} may not {doing} {topic!r}"
        return ""

    def event_refusal(self, visitor: Guest, event: Event) -> str:
        """Say why an event may not go out; empty: it may."""
        if len(event.headers) > self.limits.headers_per_event:
            return too_many(self.limits, "headers_per_event", "the event has too many headers")
        return self.why_not(visitor, "publish", event.topic)

    def _events(
        self, visitor: Guest, frame: OrderRequest, admitted: list[Frame], answers: list[Frame]
    ) -> None:
        if not frame.events:
            raise RemoteProtocolError("a request to order no events")
        if not 0 < frame.settled <= frame.number:
            raise RemoteProtocolError("a request with a number that is settled")
        if frame.number + len(frame.events) > frame.settled + self._config.sequencer.window:
            raise RemoteProtocolError("more requests at once than the chain's window")
        known, headers_max = visitor.known["publish"], self.limits.headers_per_event
        good = True
        for event in frame.events:
            if not 0 <= event.published_at_ns <= PUBLISHED_AT_NS_MAX:
                check_event(event)
            # Looked at one by one only if something may be wrong with one.
            if known.get(event.topic) != "" or len(event.headers) > headers_max:
                good = False
        if good:
            admitted.append(frame)
            return
        refused = [self._ordered_refusal(visitor, event) for event in frame.events]
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

    def _ordered_refusal(self, visitor: Guest, event: Event) -> str:
        """Say why an event may not go out in total order; empty: it may."""
        why = self.event_refusal(visitor, event)
        if not why:
            self.topic_orders.note(event.topic, Total.name)
        return why

    def _refusal(self, visitor: Guest, source: str, frame: Frame) -> Frame | None:
        """Return what a client is told that may not send a frame; None: it may."""
        match frame:
            case Put():
                return self._put_refusal(visitor, source, frame)
            case AttachRequest():
                return self._attach_refusal(visitor, source, frame)
            case ChangeRequest():
                return self._change_refusal(visitor, frame)
            case Fetch(topic=topic):
                why = self._reading_refusal(visitor, topic)
                return Refused(number=0, reason=why) if why else None
            case DetachRequest(topic=topic):
                self.detach(visitor, source, self.server, topic)
        return None

    def attach_refusal(self, visitor: Guest, source: str, place: str, topic: str) -> str:
        """Say why somebody may not listen to a topic at a station or an exchange; empty: it may, and does."""
        return self._reading_refusal(visitor, topic) or self.join_refusal(
            visitor, source, place, topic
        )

    def join_refusal(self, visitor: Guest, source: str, place: str, topic: str) -> str:
        """Say why somebody may not have one more topic; empty: it may, and has."""
        attached = visitor.attached.setdefault(source, {})
        limit = self.limits.topics_per_subscription
        if (place, topic) not in attached and len(attached) >= limit:
            return too_many(self.limits, "topics_per_subscription", MANY_TOPICS)
        attached[place, topic] = None
        return ""

    def detach(self, visitor: Guest, source: str, place: str, topic: str) -> None:
        """Note that somebody does not listen to a topic any more, there."""
        visitor.attached.get(source, {}).pop((place, topic), None)

    def _attach_refusal(self, visitor: Guest, source: str, frame: AttachRequest) -> Frame | None:
        why = self.attach_refusal(visitor, source, self.server, frame.topic)
        if not why:
            self.topic_orders.note(frame.topic, Total.name)
            return None
        if frame.from_slot:
            return Refused(number=0, reason=why)
        return Attached(topic=frame.topic, first=1, next=1, sent=1)

    def unknown_topic(self, topic: str) -> str:
        """Say why there is no such topic; empty: there is."""
        return "" if self._placement.knows(topic) else f"{topic!r} has no place on this chain"

    def place_refusal(self, topic: str) -> str:
        """Say why a topic is not here; empty: it is."""
        if why := self.unknown_topic(topic):
            return why
        if self._placement.node(topic) != self._config.name:
            return f"{topic!r} is not kept by {self._config.name}"
        return ""

    def _reading_refusal(self, visitor: Guest, topic: str) -> str:
        return self.place_refusal(topic) or self.why_not(visitor, "subscribe", topic)

    def _put_refusal(self, visitor: Guest, source: str, frame: Put) -> Frame | None:
        event, stamp = frame.event, frame.event.stamp
        check_event(event)
        slot = event.slot
        if slot is None or not self._may_put(event, source):
            raise RemoteProtocolError("an event in a slot that was not given to it")
        key = self._stamp_key
        if key and stamp is not None:
            proof = stamp_proof(key, event.publisher, event.topic, stamp)
            if not compare_digest(proof, frame.proof):
                return Taken(topic=event.topic, event=event.id, slot=slot)
        if self.event_refusal(visitor, event):
            return Taken(topic=event.topic, event=event.id, slot=slot)
        return None

    def _change_refusal(self, visitor: Guest, frame: ChangeRequest) -> Frame | None:
        limit = self.limits.topics_per_subscription
        if len(frame.old) > limit:
            raise RemoteProtocolError(f"a subscription never has more than {limit} topics")
        if frame.number < 1 or not (frame.old or frame.new):
            raise RemoteProtocolError("a change of a subscription that is none")
        if len(set(frame.new)) != len(frame.new) or len(set(frame.old)) != len(frame.old):
            raise RemoteProtocolError("a subscription that names a topic twice")
        if len(frame.new) > limit:
            reason = too_many(self.limits, "topics_per_subscription", MANY_TOPICS)
            return Refused(number=frame.number, reason=reason)
        for topic in frame.new:
            # Also what it says it has: only its word tells what that is.
            if why := self.why_not(visitor, "subscribe", topic):
                return Refused(number=frame.number, reason=why)
        return None


def check_event(event: Event) -> None:
    """Refuse an event that nobody could keep."""
    if not 0 <= event.published_at_ns <= PUBLISHED_AT_NS_MAX:
        raise RemoteProtocolError("an event was published at no time that there is")


def _items(frame: Frame) -> int:
    return len(frame.events) if type(frame) is OrderRequest else 1


def _runs(refused: list[str]) -> list[tuple[int, int]]:
    """Return where the runs of what is not refused begin and end."""
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
