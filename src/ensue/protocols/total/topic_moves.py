"""Topic moves: another node of the chain counts the events of a topic from now on.

The log of the topic is not copied. The old node keeps what it has, up to the last slot that it gave
(`placement.Parts`), with its retention, and takes events for open slots of that part; the new node
keeps the slots that it gives.

How: the first node of the chain coordinates one move at a time (`move_coordinator`). A `Move`
travels the chain in phases, over the links between neighbors.

1. Ask, up. Nothing stops. A node refuses if its state would not fit into a frame, or if it knows
   a later move of the topic. Ready, down to the first node.
2. Freeze, up. Each node stops to take requests of clients and holds them. It adds the counts of its
   own topics that share a subscription with the moving one; the topic's node adds its count and its
   subscribers. Links are FIFO, so when the last node is frozen no request is under way. Frozen,
   down to the first node.
3. The first node decides. It switches once all nodes are frozen, or gives the move up if they are
   not within `freeze_ns`. Its record of the switch is the point of no return: before it, any crash
   ends in the old placement, and behind it in the new one.
4. Switch or abort, up. At a switch each node adopts the new placement, learns the counts, and takes
   requests again: its own requests follow the `Move` to the next node. The old node forgets
   subscribers that have no other topic there, and the new one registers those of the topic. At an
   abort each node takes requests again, and nothing has changed.

A decision also travels outside the links (`MoveDecision`), so that a node that is down holds up no
others once the first node has decided: that one repeats it until every node has taken the step, and
frozen nodes ask all others for it. A node takes a decision once, whichever way it comes, and passes
it up its link before any request of its own. So what comes from below behind a freeze comes behind
the decision.

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

Which move of a topic is the newest says the number of its parts. Nodes exchange the moves that they
know (`KnownMoves`) when they connect. A node that is behind continues from an older state: it
adopts what is newer, and nothing it gave for the topic since then counts. A node that may be behind
(`comparing`) takes no requests, and nothing over its links (`Linked.hears`), until it has heard
from all others, each of them has heard from all, and none is frozen: then none gets a request from
below that it would handle as of an older placement. The first node decides what frozen ones wait
for as soon as it has heard from all.

HAZARD: if the first node crashes while others are frozen and none has its decision, no frozen node
takes requests before it is back, also for topics that have nothing to do with the move: another
node can't know whether it has switched.

HAZARD: a node that continues from an older state and is not known to do so takes a topic for its
own until another node is connected. One that compares takes no requests of clients for as long as
any node of the chain is down.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from ensue.core.event import text_bytes, wire_bytes
from ensue.core.wire import Records
from ensue.protocols.interface import Frame, Send
from ensue.protocols.total.frames import (
    ENTRY_BYTES,
    ChangeRequest,
    Forget,
    KnownMoves,
    Move,
    MoveDecision,
    MoveStep,
    OrderRequest,
    Registered,
    StampRequest,
)
from ensue.protocols.total.placement import Parts, Placement, moved
from ensue.protocols.total.records import INT, PARTS
from ensue.protocols.total.stage import StageState
from ensue.protocols.total.subscription_changes import SubscriptionChanges

__all__ = [
    "ABORT",
    "ASK",
    "FREEZE",
    "FROZEN",
    "MOVED",
    "READY",
    "STEPS",
    "SWITCH",
    "MoveConfig",
    "TopicMoves",
]

ASK, READY, FREEZE, FROZEN, SWITCH, ABORT = 1, 2, 3, 4, 5, 6
"""The phases."""
STEPS = {ASK: "ask", FREEZE: "freeze", SWITCH: "switch", ABORT: "abort"}
"""Those that nodes take up the chain, as operators read them."""
MOVED = -1
"""The stage that completes a request whose topic was moved away before it was taken."""
HELD_BYTES_MAX = 64 * 1024 * 1024
"""Requests that a frozen node holds; beyond, they are dropped, and their clients repeat them."""
REQUEST_BYTES = 64
GROWTH = 2
"""How many times `bytes_max` the state may have when it is sent: clients come and go meanwhile."""
CORRECTED_MAX = 1_000
"""Corrected topics that are remembered until they are logged."""
MILLISECOND_NS = 1_000_000

_HELD: tuple[type[Frame], ...] = (StampRequest, OrderRequest, ChangeRequest, Forget)
_MOVE = Records[Move](Move)


class MoveConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Waits and limits of moves."""

    ask_ns: int = 1000 * MILLISECOND_NS
    """How long the answer to the question may take; then the move is refused."""
    freeze_ns: int = 500 * MILLISECOND_NS
    """How long freezing may take; then the move is given up."""
    retry_ns: int = 100 * MILLISECOND_NS
    """How long to wait before asking for a decision, or repeating one; doubled each time."""
    retry_ns_max: int = 2000 * MILLISECOND_NS
    """The longest wait."""
    bytes_max: int = 4 * 1024 * 1024
    """How large the state of a topic may be: its subscribers, and the counts of its group."""


class TopicMoves:
    """The part of a sequencer that takes the steps of moves; `on_switch` is called at each move.

    `comparing` names the nodes that this one has to hear from before it takes requests.
    """

    def __init__(
        self,
        state: StageState,
        changes: SubscriptionChanges,
        *,
        config: MoveConfig | None = None,
        comparing: Iterable[str] = (),
        now_ns: int = 0,
    ) -> None:
        self._state = state
        self._changes = changes
        self.config = config or MoveConfig()
        self.comparing = dict.fromkeys(comparing)
        """Nodes that this one has to hear from."""
        self._incomplete = dict.fromkeys(comparing)
        """Nodes that may have to hear from others."""
        state.placement.unsure = bool(self.comparing)
        self.seen = 0
        """The highest number of a move that is known to be decided."""
        self.decision: Move | None = None
        """The last one that was taken here."""
        self.corrected: dict[str, Parts] = {}
        """Topics whose newer parts other nodes knew, until they are logged."""
        self.switches = 0
        """How often a topic got another node since the start."""
        self._frozen: Move | None = None
        """The freeze that was taken, until it is decided."""
        self._held: deque[tuple[Frame, str]] = deque()
        self._held_bytes = 0
        self._wait_ns = self.config.retry_ns
        self._due_ns: int | None = now_ns if self.comparing else None
        """When to ask the other nodes for a decision, or for their moves."""
        self.on_switch: Callable[[str, int, tuple[Registered, ...]], None] | None = None

    @property
    def frozen(self) -> str:
        """The topic that moves, while this node takes no requests."""
        return self._state.placement.moving

    @property
    def unsure_of(self) -> list[str]:
        """The nodes that have to answer before this one takes requests."""
        return list(self.comparing | self._incomplete)

    @property
    def frozen_number(self) -> int:
        """The number of the move for which this node is frozen, or 0."""
        return 0 if self._frozen is None else self._frozen.number

    def restore(self, kind: str, topic: str, value: bytes, now_ns: int) -> None:
        """Restore a record of an earlier incarnation."""
        if kind == "moved":
            self._state.placement.learn(topic, PARTS.decode(value))
        elif kind == "decided":
            self.decision = _MOVE.decode(value)
        elif kind == "seen":
            self.seen = INT.decode(value)
        else:
            self._frozen = _MOVE.decode(value)
            self._state.placement.moving = topic
            self._due_ns = now_ns + self._wait_ns

    def holds(self, frame: Frame, source: str) -> bool:
        """Hold a request until the topic has moved, if this node is frozen."""
        if not self.frozen or not isinstance(frame, _HELD):
            return False
        size = REQUEST_BYTES
        if isinstance(frame, OrderRequest):
            size += sum(map(wire_bytes, frame.events))
        elif isinstance(frame, StampRequest):
            size += sum(map(text_bytes, frame.topics))
        elif isinstance(frame, ChangeRequest):
            size += sum(map(text_bytes, (*frame.old, *frame.new)))
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

    # -- Timer ------------------------------------------------------------------------------------

    def next_timer_ns(self) -> int | None:
        """Return when to ask other nodes."""
        return self._due_ns

    def handle_timer(self, now_ns: int) -> None:
        """Ask other nodes for a decision, or for the moves that they know."""
        if self._due_ns is None or now_ns < self._due_ns:
            return
        self._due_ns = now_ns + self._wait_ns
        self._wait_ns = min(2 * self._wait_ns, self.config.retry_ns_max)
        state = self._state
        if self._frozen is not None:
            step = MoveStep(number=self._frozen.number, topic=self.frozen, phase=FREEZE)
            state.effects += [
                Send(node, step) for node in state.placement.nodes if node != state.name
            ]
        for node in self.unsure_of:
            self._send_known(node, wanted=True)

    # -- Frames -----------------------------------------------------------------------------------

    def on_move(self, frame: Move, source: str, now_ns: int) -> None:
        """Take the next step of a move, or pass the answer down."""
        state = self._state
        up = frame.phase in STEPS
        valid = state.is_from_below(source) if up else state.is_from_above(source)
        if not valid or not self._is_valid(frame):
            return  # Not what a neighbor would send.
        if not up:
            state.pass_down(frame)
        elif frame.phase in (SWITCH, ABORT):
            self.decide(frame)
        elif frame.phase == ASK:
            self._pass_on(self.ask(frame), READY)
        elif frame.number > self.seen:  # Else it was given up before it came here.
            self._pass_on(self.freeze(frame, now_ns), FROZEN)

    def on_decision(self, frame: MoveDecision, source: str, _now_ns: int) -> None:
        """Take a decision that came past the links."""
        move = frame.move
        known = source in self._state.placement.nodes and move.phase in (SWITCH, ABORT)
        if known and self._is_valid(move) and not self.decide(move):
            self._tell(move)  # Again: the first answer may be lost.

    def on_step(self, frame: MoveStep, source: str, _now_ns: int) -> None:
        """Answer a frozen node that asks for a decision."""
        if source not in self._state.placement.nodes or frame.phase != FREEZE:
            return
        if self.decision is not None and self.decision.number == frame.number:
            self._state.effects.append(Send(source, MoveDecision(move=self.decision)))
        elif frame.number < self.seen or (
            # The first node, if it has no record, has heard from all that may have one.
            frame.number == self.seen and self._state.stage == 0 and not self.comparing
        ):
            # It is decided for every node: that one is behind.
            self._send_known(source, lost=frame.number)

    def on_known(self, frame: KnownMoves, source: str, _now_ns: int) -> None:
        """Adopt the moves that another node knows and this one does not."""
        placement = self._state.placement
        if source not in placement.nodes:
            return
        if self._frozen is not None and self._is_over(frame, self._frozen.number):
            # This node is behind: no other is frozen any more.
            self._unfreeze()
        self.adopt(frame.parts)
        if self._frozen is None:
            self._see(frame.seen)
        self.comparing.pop(source, None)
        if frame.wanted:
            self._send_known(source)
        if frame.complete:
            self._incomplete.pop(source, None)
        if placement.unsure and not self.unsure_of:
            placement.unsure = False
            if self._frozen is None:
                self._due_ns = None

    def adopt(self, known: Mapping[str, Parts]) -> None:
        """Adopt those parts of moved topics that are newer than the ones known here."""
        if self._frozen is not None:
            return  # It would miss what comes with the decision.
        placement = self._state.placement
        for topic, parts in known.items():
            newer = len(parts) > max(1, len(placement.parts.get(topic, ())))
            if newer and _names(parts, placement):
                self._correct(topic, parts)

    def take_corrected(self) -> dict[str, Parts]:
        """Remove and return the corrected topics."""
        corrected, self.corrected = self.corrected, {}
        return corrected

    def greet(self, node: str) -> None:
        """Tell a node that has connected which moves are known here, if there were any."""
        if self.seen or self._state.placement.parts:
            self._send_known(node)

    def _is_valid(self, move: Move) -> bool:
        placement = self._state.placement
        return move.to in placement.nodes and _names(move.parts, placement)

    def _is_over(self, known: KnownMoves, number: int) -> bool:
        """Return whether a move for which this node is frozen has no decision to wait for."""
        # The first node remembers a decision until all have it; it may have lost its own records.
        is_own = self._state.stage == 0 and self._state.placement.unsure
        return known.seen > number or known.lost == number or (is_own and known.seen == number)

    def _send_known(self, node: str, *, wanted: bool = False, lost: int = 0) -> None:
        known = KnownMoves(
            parts=dict(self._state.placement.parts),
            seen=self.seen,
            wanted=wanted,
            complete=not self.comparing and self._frozen is None,
            lost=lost,
        )
        self._state.effects.append(Send(node, known))

    def _tell(self, move: Move) -> None:
        """Tell the first node which step is taken here."""
        first = self._state.placement.nodes[0]
        if first != self._state.name:
            step = MoveStep(number=move.number, topic=move.topic, phase=move.phase)
            self._state.effects.append(Send(first, step))

    def _pass_on(self, frame: Move, answer: int) -> None:
        """Pass a step to the next node, or answer it."""
        if not frame.refusal and self._state.stage + 1 < len(self._state.placement.nodes):
            self._state.pass_on(frame)
        else:
            self._state.pass_down(msgspec.structs.replace(frame, phase=answer))

    def _see(self, number: int) -> None:
        if number > self.seen:
            self.seen = number
            self._state.persist("seen/", INT.encode(number))

    # -- Steps ------------------------------------------------------------------------------------

    def ask(self, frame: Move) -> Move:
        """Return the question with the bytes of this node's state, or why it can't move a topic."""
        state, topic = self._state, frame.topic
        own = state.placement.parts_of(topic)
        if len(frame.parts) > len(own) and self._frozen is None:
            self._correct(topic, frame.parts)
            own = frame.parts
        counts, registered = self._part(topic)
        size = frame.size + _state_bytes(counts, registered)
        refusal, again = "", False
        if len(own) > len(frame.parts):
            refusal, again = f"{state.name} knows a later move of it: try again", True
            self._send_known(state.placement.nodes[0])
        elif own != frame.parts:
            refusal = f"{state.name} has it on {own[-1][0]}, unlike the first server"
        elif self._frozen is not None or self.seen >= frame.number:
            refusal, again = f"{state.name} knows a later move: try again", True
        elif size > self.config.bytes_max:
            refusal = (
                f"its subscriptions with their topics take {size:,} bytes, above the limit of "
                f"{self.config.bytes_max:,}: move it when there are fewer of them, or of their "
                "topics"
            )
        seen = max(frame.seen, self.seen, self.frozen_number)
        self._tell(frame)
        return msgspec.structs.replace(frame, size=size, seen=seen, refusal=refusal, again=again)

    def freeze(self, frame: Move, now_ns: int) -> Move:
        """Take no requests from now on; return the step with the state of this node."""
        state, topic = self._state, frame.topic
        bare = msgspec.structs.replace(frame, counts={}, registered=(), refusal="")
        self._frozen = bare
        state.placement.moving = topic
        state.persist(f"frozen/{topic}", _MOVE.encode(bare))
        self._wait_ns = self.config.retry_ns
        self._due_ns = now_ns + self.config.freeze_ns + self._wait_ns
        self._tell(frame)
        counts, registered = self._part(topic)
        counts = frame.counts | counts
        frame = msgspec.structs.replace(frame, counts=counts)
        if state.hosted((topic,)):
            frame = msgspec.structs.replace(
                frame, count=state.count(topic), registered=tuple(registered)
            )
        if _state_bytes(counts, frame.registered) > GROWTH * self.config.bytes_max:
            # It would not fit into a frame.
            refusal = f"its subscriptions became too many on {state.name}: try again later"
            return msgspec.structs.replace(bare, refusal=refusal, again=True)
        return frame

    def _part(self, topic: str) -> tuple[dict[str, int], list[Registered]]:
        """Return what a move needs of this node: counts, and at the topic's node subscribers."""
        state = self._state
        partners = state.hosted(state.groups.sharing(topic))
        registered = self._registered(topic) if state.hosted((topic,)) else []
        return {each: state.count(each) for each in partners}, registered

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

    def decide(self, move: Move) -> bool:
        """Take a decision and pass it up; return False if it was taken before."""
        state = self._state
        if move.number <= self.seen:
            return False
        self.decision = move
        if state.stage == 0:
            # Until all nodes have it. The others need not remember: the first one repeats it.
            state.persist("decided/", _MOVE.encode(move))
        self._see(move.number)
        if move.phase == SWITCH:
            self._switch(move)
        self._unfreeze()
        if state.stage + 1 < len(state.placement.nodes):
            state.pass_on(move)
        self._tell(move)
        return True

    def _unfreeze(self) -> None:
        """Take requests again."""
        if self._frozen is not None:
            self._state.persist(f"frozen/{self._frozen.topic}", None)
        self._frozen = None
        self._state.placement.moving = ""
        if not self._state.placement.unsure:
            self._due_ns = None

    def _switch(self, frame: Move) -> None:
        state, topic = self._state, frame.topic
        placement = state.placement
        was_here = bool(state.hosted((topic,)))
        parts = moved(frame.parts, frame.to, frame.count)
        placement.learn(topic, parts)
        state.persist(f"moved/{topic}", PARTS.encode(parts))
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
        self._switched(topic, frame.count, frame.registered)

    def _switched(self, topic: str, count: int, registered: tuple[Registered, ...] = ()) -> None:
        self._state.group_cache.clear()
        self.switches += 1
        if self.on_switch is not None:
            self.on_switch(topic, count, registered)

    def _correct(self, topic: str, parts: Parts) -> None:
        """Adopt newer parts of a topic: this node continues from before they were made."""
        state = self._state
        if not state.placement.knows(topic):
            return
        state.placement.learn(topic, parts)
        state.persist(f"moved/{topic}", PARTS.encode(parts))
        count = parts[-2][1]
        if parts[-1][0] == state.name:
            state.learn(topic, count)
        self.corrected[topic] = parts
        if len(self.corrected) > CORRECTED_MAX:
            del self.corrected[next(iter(self.corrected))]
        self._switched(topic, count)

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


def _names(parts: Parts, placement: Placement) -> bool:
    """Return whether parts name nodes of the chain."""
    return all(node in placement.nodes for node, _ in parts)


def _state_bytes(counts: Mapping[str, int], registered: Iterable[Registered]) -> int:
    """Return an upper bound for the bytes of a topic's state in a frame."""
    size = sum(text_bytes(topic) + ENTRY_BYTES for topic in counts)
    for one in registered:
        size += text_bytes(one.subscriber) + 2 * ENTRY_BYTES
        size += sum(text_bytes(topic) + ENTRY_BYTES for topic in (*one.topics, *one.left))
    return size
