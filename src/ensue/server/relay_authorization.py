"""Authorization of frames that a server relays and neither orders nor stores.

The permissions and limits of sequenced events apply too. A request that is not permitted gets an
answer (`Declined` by a fan-out, `TopicDenied` by a registry): the event fails with `EventRefused`,
the topic with `SubscriptionRefused`. A frame that no client sends raises `RemoteProtocolError`,
which closes the connection.

Frames between clients, in causal order or with deadlines, are checked as they pass: both clients
must be registered at the same registry, over these connections, and only its frame types pass;
others are dropped and counted, or close the connection. An event passes only from a client that may
publish it, or that may read it and forwards it, to a client that may read it.
`ensue.server.relay_claims` checks the publisher of an event and other claims, on servers with
users.
"""

from ensue import orders
from ensue.core.errors import RemoteProtocolError
from ensue.core.event import Event
from ensue.protocols.interface import Frame
from ensue.protocols.membership.frames import (
    FROM_NODES,
    Evicted,
    Register,
    TopicDenied,
    TopicReleased,
    TopicRequest,
)
from ensue.protocols.topic_log.fanout import Agree, Agreed, Declined
from ensue.protocols.topic_log.frames import AttachRequest, DetachRequest, Put, TopicFrame
from ensue.server.authorization import (
    BUNDLE_ITEMS_MAX,
    BUNDLE_TOO_LARGE,
    Authorization,
    check_event,
)
from ensue.server.connection import Connection
from ensue.server.peer import Peer
from ensue.server.permissions import Action

__all__ = ["screen_fanout", "screen_registry", "screen_relayed"]

UNEXPECTED_PLACE = "event has a place or a stamp that this order does not assign"


def screen_fanout(
    authorization: Authorization, fanout: str, peer: Peer, source: str, frames: list[Frame]
) -> tuple[list[Frame], list[Frame]]:
    """Return a client's admitted frames to a fan-out, and the answers to the others."""
    if len(frames) > BUNDLE_ITEMS_MAX:
        raise RemoteProtocolError(BUNDLE_TOO_LARGE)
    admitted: list[Frame] = []
    answers: list[Frame] = []
    for frame in frames:
        topic, event_id, why = "", "", ""
        match frame:
            case Put(event=event):
                _check_own(event, source)
                topic, event_id = event.topic, event.id
                why = authorization.place_refusal(topic) or authorization.event_refusal(peer, event)
            case AttachRequest(topic=topic):
                why = authorization.attach_refusal(peer, source, fanout, topic)
            case DetachRequest(topic=topic):
                authorization.detach(peer, source, fanout, topic)
            case Agree(terms=terms):
                if terms and not peer.grants.any:
                    # A client without permissions takes no part in the agreement.
                    answers.append(Agreed(terms=terms))
                    continue
            case _:
                topic = _topic_of_own(fanout, source, frame)
                why = authorization.place_refusal(topic)
                why = why or authorization.why_not(peer, "publish", topic)
        if why:
            answers.append(Declined(topic=topic, event=event_id, reason=why))
        else:
            admitted.append(frame)
            if isinstance(frame, Put | AttachRequest):
                authorization.topic_orders.note(topic, _order(fanout))
    return admitted, answers


def _topic_of_own(fanout: str, source: str, frame: Frame) -> str:
    """Return the topic of one of the order's own frames; raise for any other frame."""
    if type(frame) not in orders.named(_order(fanout)).topic_frames():
        raise RemoteProtocolError(f"{type(frame).__name__} is not for a fan-out")
    assert isinstance(frame, TopicFrame)
    if frame.publisher != source:
        raise RemoteProtocolError(
            f"the frame's publisher is {frame.publisher!r}, but {source!r} sent it"
        )
    return frame.topic


def screen_registry(
    authorization: Authorization,
    registry: str,
    peer: Peer,
    source: str,
    frames: list[Frame],
    *,
    across: bool,
) -> tuple[list[Frame], list[Frame]]:
    """Return a client's admitted frames to a registry, and the answers to the others.

    If the order is `across` topics, a publisher subscribes to the topics that it publishes on, so
    it needs both permissions.
    """
    if len(frames) > BUNDLE_ITEMS_MAX:
        raise RemoteProtocolError(BUNDLE_TOO_LARGE)
    admitted: list[Frame] = []
    answers: list[Frame] = []
    registers = False
    for frame in frames:
        if not isinstance(frame, FROM_NODES):
            raise RemoteProtocolError(f"{type(frame).__name__} is not for a registry")
        if isinstance(frame, Register):
            # Several in one bundle get one answer, which may be long.
            if registers:
                continue
            registers = True
            if not peer.grants.any:
                # It would use up a number, and members would send it all topics and wait for it.
                user = peer.grants.user
                reason = f"{user!r} may neither publish nor subscribe: give it permissions first"
                answers.append(Evicted(reason=reason))
                continue
            peer.registered[source] = registry
        elif isinstance(frame, TopicReleased):
            authorization.detach(peer, source, registry, frame.topic)
        elif isinstance(frame, TopicRequest):
            why = _topic_refusal(authorization, peer, frame, across=across)
            why = why or _join_refusal(authorization, peer, source, registry, frame)
            if why:
                answers.append(TopicDenied(topic=frame.topic, action=frame.action, reason=why))
                continue
            authorization.topic_orders.note(frame.topic, _order(registry))
        admitted.append(frame)
    return admitted, answers


def _order(place: str) -> str:
    """Return the order of a fan-out or a registry by its name."""
    return place.rpartition("/")[2]


def _join_refusal(
    authorization: Authorization, peer: Peer, source: str, registry: str, request: TopicRequest
) -> str:
    """Return why a client may not join a topic; empty if it may, or only publishes."""
    if request.action != "subscribe":
        return ""
    return authorization.join_refusal(peer, source, registry, request.topic)


def _topic_refusal(
    authorization: Authorization, peer: Peer, request: TopicRequest, *, across: bool
) -> str:
    """Return why a client may not use a topic; empty if it may."""
    why = authorization.unknown_topic(request.topic)
    if not why and request.action == "publish":
        why = authorization.why_not(peer, "publish", request.topic)
    if not why and (across or request.action == "subscribe"):
        why = authorization.why_not(peer, "subscribe", request.topic)
    return why


def screen_relayed(
    authorization: Authorization,
    sender: Connection,
    source: str,
    receiver: Connection,
    frames: list[Frame],
) -> list[Frame]:
    """Return the frames that may pass from one client to another."""
    count = 0
    known = orders.relayed_frames()
    admitted: list[Frame] = []
    for frame in frames:
        relayed = known.get(type(frame))
        if relayed is None:
            raise RemoteProtocolError(f"{type(frame).__name__} is not for other clients")
        events = relayed.events(frame)
        count += 1 + len(events)
        why = ""
        for event in events:
            stamped = event.stamp is not None
            if event.void or event.place or stamped != relayed.stamped:
                raise RemoteProtocolError(UNEXPECTED_PLACE)
            if stamped and not _is_clocked(event):
                raise RemoteProtocolError(UNEXPECTED_PLACE)
            check_event(event)
            # The number of headers is not checked: a dropped event would be resent endlessly.
            action: Action = "publish" if event.publisher == source else "subscribe"
            why = why or authorization.why_not(sender, action, event.topic)
            why = why or authorization.why_not(receiver, "subscribe", event.topic)
        if why:
            sender.server.fault(sender, "permission", why)
        else:
            admitted.append(frame)
    if count > BUNDLE_ITEMS_MAX:
        raise RemoteProtocolError(BUNDLE_TOO_LARGE)
    return admitted


def _check_own(event: Event, source: str) -> None:
    """Raise if the sender can't have published an event in an unsequenced order."""
    if event.publisher != source:
        raise RemoteProtocolError(
            f"the event's publisher is {event.publisher!r}, but {source!r} sent it"
        )
    if event.void or event.place or (event.stamp is not None and not _is_clocked(event)):
        raise RemoteProtocolError(UNEXPECTED_PLACE)
    check_event(event)


def _is_clocked(event: Event) -> bool:
    """Return whether all entries of an event's stamp are clock readings."""
    return event.stamp is not None and all(name.startswith("@") for name in event.stamp.entries)
