"""What a server lets clients have carried that it neither orders nor keeps: whose events, on which topics.

The same permissions and limits hold as for what it orders. Whoever merely may not is told so where it asked (`Declined` by an exchange, `Denied` by
a registry): the event fails with `EventRefused`, the topic with `SubscriptionRefused`. Whoever sends what no client would, raises
`RemoteProtocolError`, and is hung up on.

What clients send each other in causal order, or with deadlines, is looked at on its way: only those who have enrolled with the same registry may send to each
other, over this connection, and only what its nodes expect; all else is dropped and counted, or costs the connection. An event goes only from who may publish it, or may
read it and passes it on, to who may read it. Whose an event is, and what else a frame says of others, `ensue.server.relay` checks where there are users.
"""

from ensue.errors import RemoteProtocolError
from ensue.event import Event
from ensue.protocols.core import Frame
from ensue.protocols.ens import AttachRequest, DetachRequest, Put
from ensue.protocols.exchange import Agree, Agreed, Declined
from ensue.protocols.gossip.frames import BETWEEN_BROKERS, Message
from ensue.protocols.hypercube.enrolment import FROM_NODES, Ask, Denied, Enrol, Expelled, Leave
from ensue.protocols.hypercube.frames import FRAMES as CUBE_FRAMES
from ensue.protocols.hypercube.frames import Fill, Publication
from ensue.server.access import Action
from ensue.server.guest import Guest
from ensue.server.rules import BUNDLE_ITEMS_MAX, Rules, check_event
from ensue.server.visitor import Visitor

__all__ = ["screen_enrolled", "screen_exchanged", "screen_passed"]

_PASSED = frozenset((*CUBE_FRAMES, *BETWEEN_BROKERS))


def screen_exchanged(
    rules: Rules, exchange: str, visitor: Guest, source: str, frames: list[Frame]
) -> tuple[list[Frame], list[Frame]]:
    """Return what a client may send to an exchange of all it sent, and what it is told about the rest."""
    if len(frames) > BUNDLE_ITEMS_MAX:
        raise RemoteProtocolError("a bundle of more than any client puts into one")
    admitted: list[Frame] = []
    answers: list[Frame] = []
    for frame in frames:
        topic, event_id, why = "", "", ""
        match frame:
            case Put(event=event):
                _check_own(event, source)
                topic, event_id = event.topic, event.id
                why = rules.place_refusal(topic) or rules.event_refusal(visitor, event)
            case AttachRequest(topic=topic):
                why = rules.attach_refusal(visitor, source, exchange, topic)
            case DetachRequest(topic=topic):
                rules.detach(visitor, source, exchange, topic)
            case Agree(terms=terms):
                if terms and not visitor.grants.any:
                    # It has no say in what others agree on.
                    answers.append(Agreed(terms=terms))
                    continue
            case _:
                raise RemoteProtocolError(f"{type(frame).__name__} is not for an exchange")
        if why:
            answers.append(Declined(topic=topic, event=event_id, reason=why))
        else:
            admitted.append(frame)
            if isinstance(frame, Put | AttachRequest):
                rules.topic_orders.note(topic, _order(exchange))
    return admitted, answers


def screen_enrolled(
    rules: Rules, registry: str, visitor: Guest, source: str, frames: list[Frame], *, across: bool
) -> tuple[list[Frame], list[Frame]]:
    """Return what a client may send to a registry of all it sent, and what it is told about the rest.

    Across topics a publisher follows what it publishes on, so it has to be allowed both.
    """
    if len(frames) > BUNDLE_ITEMS_MAX:
        raise RemoteProtocolError("a bundle of more than any client puts into one")
    admitted: list[Frame] = []
    answers: list[Frame] = []
    enrols = False
    for frame in frames:
        if not isinstance(frame, FROM_NODES):
            raise RemoteProtocolError(f"{type(frame).__name__} is not for a registry")
        if isinstance(frame, Enrol):
            # Asked many times at once, it is answered once: there may be much to tell.
            if enrols:
                continue
            enrols = True
            if not visitor.grants.any:
                # Others would tell it all topics, wait for its answers, and it would use up a number.
                user = visitor.grants.user
                reason = f"{user!r} may neither publish nor subscribe: give it permissions first"
                answers.append(Expelled(reason=reason))
                continue
            visitor.enrolled[source] = registry
        elif isinstance(frame, Leave):
            rules.detach(visitor, source, registry, frame.topic)
        elif isinstance(frame, Ask):
            why = _asking_refusal(rules, visitor, frame, across=across)
            why = why or _joining_refusal(rules, visitor, source, registry, frame)
            if why:
                answers.append(Denied(topic=frame.topic, action=frame.action, reason=why))
                continue
            rules.topic_orders.note(frame.topic, _order(registry))
        admitted.append(frame)
    return admitted, answers


def _order(place: str) -> str:
    """Return the order of an exchange or a registry by its name."""
    return place.rpartition("/")[2]


def _joining_refusal(rules: Rules, visitor: Guest, source: str, registry: str, ask: Ask) -> str:
    """Say why a client may not have one more topic; empty: it may, or wants to publish only."""
    if ask.action != "subscribe":
        return ""
    return rules.join_refusal(visitor, source, registry, ask.topic)


def _asking_refusal(rules: Rules, visitor: Guest, ask: Ask, *, across: bool) -> str:
    """Say why somebody may not use a topic; empty: it may."""
    why = rules.unknown_topic(ask.topic)
    if not why and ask.action == "publish":
        why = rules.why_not(visitor, "publish", ask.topic)
    if not why and (across or ask.action == "subscribe"):
        why = rules.why_not(visitor, "subscribe", ask.topic)
    return why


def screen_passed(
    rules: Rules, sender: Visitor, source: str, receiver: Visitor, frames: list[Frame]
) -> list[Frame]:
    """Return what one client may have carried to another of all it sent."""
    count = 0
    admitted: list[Frame] = []
    for frame in frames:
        if type(frame) not in _PASSED:
            raise RemoteProtocolError(f"{type(frame).__name__} is not for other clients")
        events: tuple[Event, ...] = ()
        if isinstance(frame, Publication | Fill):
            events = tuple(item.event for item in frame.items)
        elif isinstance(frame, Message):
            events = (frame.event,)
        count += 1 + len(events)
        why = ""
        for event in events:
            # Only what goes by clocks has a stamp, and that is all there is in it.
            stamped = event.stamp is not None
            if event.void or event.place or stamped != isinstance(frame, Message):
                raise RemoteProtocolError("an event with a place, where nobody gives places")
            if stamped and not _is_clocked(event):
                raise RemoteProtocolError("an event with a place, where nobody gives places")
            check_event(event)
            # Not by how many headers it has: dropped on its way, it would be sent again for ever.
            action: Action = "publish" if event.publisher == source else "subscribe"
            why = why or rules.why_not(sender, action, event.topic)
            why = why or rules.why_not(receiver, "subscribe", event.topic)
        if why:
            sender.house.fault(sender, "permission", why)
        else:
            admitted.append(frame)
    if count > BUNDLE_ITEMS_MAX:
        raise RemoteProtocolError("a bundle of more than any client puts into one")
    return admitted


def _check_own(event: Event, source: str) -> None:
    """Refuse an event that its sender can't have published in an order that nobody counts in."""
    if event.publisher != source:
        raise RemoteProtocolError(f"an event of {event.publisher!r}, which {source!r} is not")
    if event.void or event.place or (event.stamp is not None and not _is_clocked(event)):
        raise RemoteProtocolError("an event with a place, where nobody gives places")
    check_event(event)


def _is_clocked(event: Event) -> bool:
    """Tell whether all entries of an event's stamp are made by clocks."""
    return event.stamp is not None and all(name.startswith("@") for name in event.stamp.entries)
