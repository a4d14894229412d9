"""Topic moves: another node of the chain counts the events of a topic from now on.

The log of the topic is not copied. The old node keeps what it has, up to the last slot that it gave
(`placement.Parts`), with its retention, and takes events for open slots of that part; the new node
keeps the slots that it gives.

How: the first node of the chain coordinates one move at a time. A `Move` travels the chain in
phases, over the links between neighbors, so that each step is taken once, also across crashes.

1. Freeze, up. Each node stops to take requests of clients and holds them. It adds the counts of its
   own topics that share a subscription with the moving one; the topic's node adds its count and its
   subscribers. Links are FIFO, so when the last node is frozen no request is under way.
2. Frozen, down, to the first node.
3. Switch, up. Each node adopts the new placement, learns the counts, and takes requests again: its
   own requests follow the `Move` to the next node. The old node forgets subscribers that have no
   other topic there, and the new one registers those of the topic.
4. Done, down.

Why order is kept: stamps and changes depend on the order of nodes only while they travel. Every
one has either ended at all nodes before the freeze did, under the old placement, or starts at a
node behind the switch, under the new one. What a node has to know under the new placement is what
it would have learned had the topic always been there: the counts of grouped topics of lower stages,
and the subscriptions with a topic of its own. The counts are exact, because nothing is counted
between the phases. Cached groups are dropped, so the next stamp of every topic is whole.

A client that has not heard of the move asks the old node and gets `Moved`. A publisher's request
that the old node has not taken stays refused there for ever (`MOVED`), and so do copies of those
behind it: the publisher requests these events again. A frozen node takes notifications of lost
publishers, and publishers may go on to publish what is stamped: neither changes counts or
subscriptions.

HAZARD: while a node is down the others stay frozen if the freeze has begun. Nothing is lost, and
publishers wait.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from ensue.core.event import wire_bytes
from ensue.protocols.interface import Frame, Send
from ensue.protocols.total.frames import (
    ChangeRequest,
    Forget,
    Move,
    MoveReply,
    MoveRequest,
    OrderRequest,
    Registered,
    StampRequest,
)
from ensue.protocols.total.records import PARTS, TEXT
from ensue.protocols.total.stage import StageState
from ensue.protocols.total.subscription_changes import SubscriptionChanges

__all__ = ["MOVED", "TopicMoves"]

FREEZE, FROZEN, SWITCH, DONE = 1, 2, 3, 4
"""The phases."""
MOVED = -1
"""The stage that completes a request whose topic was moved away before it was taken."""
MOVED_MAX = 1_000
"""Topics that may have been moved: every client learns of each."""
HELD_BYTES_MAX = 64 * 1024 * 1024
"""Requests that a frozen node holds; beyond, they are dropped, and their clients repeat them."""
REQUEST_BYTES = 64

_HELD: tuple[type[Frame], ...] = (StampRequest, OrderRequest, ChangeRequest, Forget)


class TopicMoves:
    """The part of a sequencer that moves topics; `on_switch` is called at each move."""

    def __init__(self, state: StageState, changes: SubscriptionChanges) -> None:
        self._state = state
        self._changes = changes
        self.active: tuple[str, str] | None = None
        """At the first node: the topic that moves, and where to."""
        self._held: deque[tuple[Frame, str]] = deque()
        self._held_bytes = 0
        self.on_switch: Callable[[str, int, tuple[Registered, ...]], None] | None = None

    @property
    def frozen(self) -> str:
        """The topic that moves, while this node takes no requests."""
        return self._state.placement.moving

    def restore(self, kind: str, topic: str, value: bytes) -> None:
        """Restore a record of an earlier incarnation."""
        if kind == "moved":
            self._state.placement.learn(topic, PARTS.decode(value))
        elif kind == "frozen":
            self._state.placement.moving = topic
        else:
            self.active = (topic, TEXT.decode(value))

    def holds(self, frame: Frame, source: str) -> bool:
        """Hold a request until the topic has moved, if this node is frozen."""
        if not self.frozen or not isinstance(frame, _HELD):
            return False
        size = REQUEST_BYTES
        if isinstance(frame, OrderRequest):
            size += sum(map(wire_bytes, frame.events))
        if self._held_bytes + size <= HELD_BYTES_MAX:
            self._held_bytes += size
            self._held.append((frame, source))
        return True

    def take_held(self) -> tuple[Frame, str] | None:
        """Remove and return the next request that was held, unless this node is frozen."""
        if self.frozen or not self._held:
            return None
        if len(self._held) == 1:
            self._held_bytes = 0
        return self._held.popleft()

    # -- Frames -----------------------------------------------------------------------------------

    def on_request(self, frame: MoveRequest, source: str, _now_ns: int) -> None:
        """Begin a move, or say how far it is."""
        state, topic, to = self._state, frame.topic, frame.to
        refusal = self._refusal(topic, to)
        moved = not refusal and self.active is None and state.placement.node(topic) == to
        if not refusal and not moved and self.active is None:
            self.active = (topic, to)
            state.persist(f"moving/{topic}", TEXT.encode(to))
            self._freeze(Move(topic=topic, to=to, phase=FREEZE))
        reply = MoveReply(number=frame.number, moved=moved, refusal=refusal)
        state.effects.append(Send(source, reply))

    def _refusal(self, topic: str, to: str) -> str:
        state = self._state
        placement, config = state.placement, state.config
        refusal = ""
        if state.stage != 0:
            refusal = f"{state.name} is not the first server of the chain: {placement.nodes[0]} is"
        elif not config.carries or config.fixed is not None:
            refusal = "this chain can't move topics"
        elif to not in placement.nodes:
            refusal = f"the chain has no server {to!r}; it has {', '.join(placement.nodes)}"
        elif not placement.knows(topic):
            refusal = f"{topic!r} has no place on this chain"
        elif self.active not in (None, (topic, to)):
            refusal = "another topic is being moved: try again"
        elif topic not in placement.parts and len(placement.parts) >= MOVED_MAX:
            refusal = f"{MOVED_MAX} topics were moved already"
        elif to != placement.node(topic) and to in placement.keepers(topic):
            refusal = f"{to} still keeps an earlier part of it: choose another server"
        return refusal

    def on_move(self, frame: Move, source: str, _now_ns: int) -> None:
        """Take the next step of a move."""
        state = self._state
        up = frame.phase in (FREEZE, SWITCH)
        valid = state.is_from_below(source) if up else state.is_from_above(source)
        if not valid or frame.to not in state.placement.nodes:
            return  # Not what a neighbor would send.
        if frame.phase == FREEZE:
            self._freeze(frame)
        elif frame.phase == SWITCH:
            self._switch(frame)
        elif state.stage > 0:
            state.pass_down(frame)
        elif frame.phase == FROZEN:
            self._switch(msgspec.structs.replace(frame, phase=SWITCH))
        elif self.active is not None:
            state.persist(f"moving/{self.active[0]}", None)
            self.active = None

    # -- Steps ------------------------------------------------------------------------------------

    def _pass_on(self, frame: Move, answer: int) -> None:
        """Pass a move to the next node, or answer it in the next phase."""
        if self._state.stage + 1 < len(self._state.placement.nodes):
            self._state.pass_on(frame)
        else:
            self._state.pass_down(msgspec.structs.replace(frame, phase=answer))

    def _freeze(self, frame: Move) -> None:
        state, topic = self._state, frame.topic
        state.placement.moving = topic
        state.persist(f"frozen/{topic}", b"")
        partners = state.hosted(state.groups.sharing(topic))
        counts = frame.counts | {each: state.count(each) for each in partners}
        frame = msgspec.structs.replace(frame, counts=counts)
        if state.hosted((topic,)):
            frame = msgspec.structs.replace(
                frame, count=state.count(topic), registered=tuple(self._registered(topic))
            )
        self._pass_on(frame, FROZEN)

    def _registered(self, topic: str) -> list[Registered]:
        """List the subscribers whose registration names a topic."""
        groups, dropped = self._state.groups, self._changes.dropped
        found = []
        for name, number in self._changes.seen.items():
            topics, left = groups.subscriptions.get(name, ()), groups.left.get(name, ())
            # The answer to a change that left the topic may not have arrived yet.
            if topic in topics or topic in left or topic in dropped.get(name, ()):
                found.append(Registered(name, number, topics, left))
        return found

    def _switch(self, frame: Move) -> None:
        state, topic = self._state, frame.topic
        placement = state.placement
        was_here = bool(state.hosted((topic,)))
        placement.learn(topic, placement.moved(topic, frame.to, frame.count))
        state.persist(f"moved/{topic}", PARTS.encode(placement.parts[topic]))
        for each, count in (*frame.counts.items(), (topic, frame.count)):
            if placement.stage(each) < state.stage or (each == topic and frame.to == state.name):
                state.learn(each, count)
        if was_here:
            for one in self._registered(topic):
                self._register(one)
        if frame.to == state.name:
            state.counters.get(topic)
            for one in frame.registered:
                self._take_over(one, topic)
        state.group_cache.clear()
        placement.moving = ""
        state.persist(f"frozen/{topic}", None)
        if self.on_switch is not None:
            self.on_switch(topic, frame.count, frame.registered)
        self._pass_on(frame, DONE)

    def _take_over(self, one: Registered, topic: str) -> None:
        """Register a subscriber of the old node here."""
        groups, name = self._state.groups, one.subscriber
        if topic not in one.topics and (name in groups.subscriptions or name in groups.left):
            return  # The topic was left, and counts here already.
        is_dropped = topic not in one.topics and topic not in one.left
        self._register(one, (topic,) if is_dropped else ())

    def _register(self, one: Registered, dropped: tuple[str, ...] = ()) -> None:
        """Register a subscriber as its change would under the placement of now."""
        state, name = self._state, one.subscriber
        topics = one.topics if state.hosted(one.topics) else ()
        left: tuple[str, ...] = ()
        if state.config.groups > 1:
            counted = dict.fromkeys((*one.topics, *one.left))
            rest = counted.keys() - set(topics) if state.hosted(counted) else ()
            left = tuple(sorted(rest))
        changes = self._changes
        number = max(one.number, changes.seen.get(name, 0))
        changes.register(name, number, topics, left, (*changes.dropped.get(name, ()), *dropped))
