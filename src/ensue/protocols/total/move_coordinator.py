"""The coordinator of topic moves: the first node of the chain, one move at a time.

It asks all nodes, lets them freeze, and decides. `topic_moves` has the steps and why they are safe.

| state | ends with | or after | by |
|---|---|---|---|
| asking | the answer of all nodes | `ask_ns` | refusing; nothing has stopped |
| freezing | the answer of all nodes | `freeze_ns` | giving up |
| switching | the step of every node | | |
| giving up | the step of every node | | |

Its record of the switch is the point of no return. In the last two states it repeats the decision
to every node that has not taken it. It begins no other move before all have: each of them is needed
for that one, too.

After a crash it goes on where it was, except that a question is forgotten. If a node is frozen for
a move that it does not know, it has lost its records, and gives that move up. If its records may be
older than a decision of its own, it decides nothing before it has heard from all nodes.
"""

import msgspec

from ensue.core.wire import Records
from ensue.protocols.interface import Send
from ensue.protocols.total.frames import Move, MoveDecision, MoveReply, MoveRequest, MoveStep
from ensue.protocols.total.stage import StageState
from ensue.protocols.total.topic_moves import (
    ABORT,
    ASK,
    FREEZE,
    FROZEN,
    MILLISECOND_NS,
    READY,
    STEPS,
    SWITCH,
    TopicMoves,
)

__all__ = ["MOVED_MAX", "MoveCoordinator", "MoveUnderWay"]

MOVED_MAX = 1_000
"""Topics that may have been moved: every client learns of each."""

_MOVE = Records[Move](Move)


class MoveUnderWay(msgspec.Struct, frozen=True):
    """A move, as operators see it."""

    topic: str
    to: str
    step: str
    waits_for: tuple[str, ...]
    """Nodes that have not taken the step."""


class MoveCoordinator:
    """The part of the first node that coordinates moves; at other nodes it refuses requests."""

    def __init__(self, state: StageState, moves: TopicMoves) -> None:
        self._state = state
        self._moves = moves
        self.active: Move | None = None
        """The move under way, without state, in the phase that all nodes are to reach."""
        self._request = 0
        """The number of the request that began it."""
        self._failed: tuple[int, str, bool] | None = None
        """The number of a request whose move was not made, why, and whether a later one may be
        made, until it is answered."""
        self._asked = 0
        """The number of the last move that was asked for."""
        self._reached: dict[str, int] = {}
        """Node to the highest phase that it has reached."""
        self._due_ns: int | None = None
        self._wait_ns = moves.config.retry_ns

    def restore(self, value: bytes, now_ns: int) -> None:
        """Restore the record of an earlier incarnation; those of the node are restored already."""
        self.active = _MOVE.decode(value)
        decision = self._moves.decision
        self._due_ns = now_ns + self._moves.config.freeze_ns
        if decision is not None and decision.number == self.active.number:
            self.active = msgspec.structs.replace(self.active, phase=decision.phase)
            self._due_ns = now_ns
        self._reached = {self._state.name: self.active.phase}

    def under_way(self) -> MoveUnderWay | None:
        """Return the move under way."""
        active = self.active
        if active is None:
            return None
        missing = self._missing(active.phase)
        return MoveUnderWay(active.topic, active.to, STEPS[active.phase], tuple(missing))

    # -- Timer ------------------------------------------------------------------------------------

    def next_timer_ns(self) -> int | None:
        """Return when to give a move up, or to repeat a decision."""
        return self._due_ns

    def handle_timer(self, now_ns: int) -> None:
        """Refuse or give up a move that takes too long, or repeat its decision."""
        active, config = self.active, self._moves.config
        if active is None or self._due_ns is None or now_ns < self._due_ns:
            return
        if active.phase == ASK:
            self._fail(self._slow(config.ask_ns), again=True)
        elif active.phase == FREEZE and self._moves.comparing:
            self._due_ns = now_ns + self._wait_ns  # It may have decided it already.
        elif active.phase == FREEZE:
            self._give_up(active, self._slow(config.freeze_ns), now_ns, again=True)
        else:
            decision = self._moves.decision
            assert decision is not None
            for node in self._missing(active.phase):
                self._state.effects.append(Send(node, MoveDecision(move=decision)))
            self._due_ns = now_ns + self._wait_ns
            self._wait_ns = min(2 * self._wait_ns, config.retry_ns_max)

    def _missing(self, phase: int) -> list[str]:
        nodes = self._state.placement.nodes
        return [node for node in nodes if self._reached.get(node, 0) < phase]

    def _slow(self, within_ns: int) -> str:
        """Return why a step was not taken in time."""
        missing = self._missing(self.active.phase) if self.active is not None else []
        # Those behind the first one wait for it.
        who = missing[0] if missing else "the chain"
        return f"{who} did not answer within {within_ns // MILLISECOND_NS} ms: try again"

    # -- Frames -----------------------------------------------------------------------------------

    def on_request(self, frame: MoveRequest, source: str, now_ns: int) -> None:
        """Begin a move, or say how far it is."""
        state, topic, to, waits = self._state, frame.topic, frame.to, ""
        refusal, again = self._refusal(topic, to)
        moved = not refusal and self.active is None and state.placement.node(topic) == to
        if self._failed is not None and self._failed[0] == frame.number and not moved:
            (_, refusal, again), self._failed = self._failed, None
        elif not refusal and not moved and self.active is None:
            self._ask(frame, now_ns)
        if self.active is not None:
            waits = self._waits(self.active)
        reply = MoveReply(
            number=frame.number, moved=moved, refusal=refusal, waits=waits, again=again
        )
        state.effects.append(Send(source, reply))

    def on_answer(self, frame: Move, now_ns: int) -> None:
        """Go on after the answer of all nodes."""
        active = self.active
        if active is None or self._moves.comparing:
            return
        if (frame.number, frame.topic, frame.to) != (active.number, active.topic, active.to):
            return
        if frame.phase == READY and active.phase == ASK:
            self._asked = max(self._asked, frame.seen)
            if frame.refusal:
                self._fail(frame.refusal, again=frame.again)
            else:
                self._freeze(active, now_ns)
        elif frame.phase == FROZEN and active.phase == FREEZE:
            if frame.refusal:
                self._give_up(frame, frame.refusal, now_ns, again=frame.again)
            else:
                self._decide(frame, SWITCH, now_ns)

    def on_step(self, frame: MoveStep, source: str, _now_ns: int) -> None:
        """Note that a node has taken a step."""
        active = self.active
        if active is not None and frame.number == active.number:
            if source in self._state.placement.nodes:
                self._reached[source] = max(frame.phase, self._reached.get(source, 0))
            self._end_if_all_have(active)
        elif (
            frame.phase == FREEZE
            and source in self._state.placement.nodes
            and frame.number > self._moves.seen
            and not self._moves.comparing
        ):
            # The record of this move is lost, so that no node has switched.
            name = self._state.name
            lost = Move(topic=frame.topic, to=name, phase=ABORT, number=frame.number)
            self._moves.decide(lost)
            self._state.effects.append(Send(source, MoveDecision(move=lost)))

    def _refusal(self, topic: str, to: str) -> tuple[str, bool]:
        """Return why a topic can't be moved now, as far as known, and whether it may be later."""
        state, active = self._state, self.active
        placement, config = state.placement, state.config
        refusal, again = "", False
        if state.stage != 0:
            refusal = f"{state.name} is not the first server of the chain: {placement.nodes[0]} is"
        elif not config.carries or config.fixed is not None:
            refusal = "this chain can't move topics"
        elif placement.unsure:
            missing, again = ", ".join(self._moves.unsure_of), True
            refusal = f"{state.name} does not know yet which moves {missing} knows: try again"
        elif to not in placement.nodes:
            refusal = f"the chain has no server {to!r}; it has {', '.join(placement.nodes)}"
        elif not placement.knows(topic):
            refusal = f"{topic!r} has no place on this chain"
        elif active is not None and ((active.topic, active.to) != (topic, to) or _given_up(active)):
            refusal, again = f"{self._waits(active)}: try again", True
        elif topic not in placement.parts and len(placement.parts) >= MOVED_MAX:
            refusal = f"{MOVED_MAX} topics were moved already"
        elif to != placement.node(topic) and to in placement.keepers(topic):
            refusal = f"{to} still keeps an earlier part of it: choose another server"
        return refusal, again

    def _waits(self, active: Move) -> str:
        what = "was given up" if _given_up(active) else f"is at the step {STEPS[active.phase]!r}"
        missing = ", ".join(self._missing(active.phase))
        waits = f", and waits for {missing}" if missing else ""
        return f"the move of {active.topic!r} to {active.to} {what}{waits}"

    # -- Steps ------------------------------------------------------------------------------------

    def _ask(self, request: MoveRequest, now_ns: int) -> None:
        state, moves, topic = self._state, self._moves, request.topic
        self._request = request.number
        self._asked = max(self._asked, moves.seen) + 1
        self.active = Move(
            topic=topic,
            to=request.to,
            phase=ASK,
            number=self._asked,
            parts=state.placement.parts_of(topic),
        )
        self._reached = {state.name: ASK}
        self._due_ns = now_ns + moves.config.ask_ns
        question = moves.ask(self.active)
        if question.refusal:
            self._fail(question.refusal, again=question.again)
        else:
            state.pass_on(question)

    def _fail(self, reason: str, *, again: bool) -> None:
        """Forget a move before anything has stopped."""
        self._failed = (self._request, reason, again)
        self.active = self._due_ns = None

    def _freeze(self, asked: Move, now_ns: int) -> None:
        state, moves = self._state, self._moves
        self.active = move = msgspec.structs.replace(asked, phase=FREEZE)
        state.persist("moving/", _MOVE.encode(move))
        self._reached[state.name] = FREEZE
        self._due_ns = now_ns + moves.config.freeze_ns
        frozen = moves.freeze(move, now_ns)
        if frozen.refusal:
            self._give_up(move, frozen.refusal, now_ns, again=frozen.again)
        else:
            state.pass_on(frozen)

    def _give_up(self, move: Move, reason: str, now_ns: int, *, again: bool) -> None:
        """Decide that the topic stays where it is."""
        self._failed = (self._request, reason, again)
        bare = msgspec.structs.replace(move, counts={}, registered=(), refusal="", again=False)
        self._decide(bare, ABORT, now_ns)

    def _decide(self, move: Move, phase: int, now_ns: int) -> None:
        """Decide a move: once this is persisted, nothing changes it."""
        moves, decision = self._moves, msgspec.structs.replace(move, phase=phase)
        if not moves.decide(decision):
            # It was decided before: this node continues from older records.
            if moves.decision is None or moves.decision.number != move.number:
                self._end()
                return
            decision = moves.decision
        self._wait_ns = moves.config.retry_ns
        self._due_ns = now_ns if phase == ABORT else now_ns + self._wait_ns
        self.active = msgspec.structs.replace(decision, counts={}, registered=())
        self._reached[self._state.name] = decision.phase

    def _end_if_all_have(self, active: Move) -> None:
        if active.phase in (SWITCH, ABORT) and not self._missing(active.phase):
            self._end()

    def _end(self) -> None:
        self.active = self._due_ns = None
        self._state.persist("moving/", None)
        self._state.persist("decided/", None)


def _given_up(move: Move) -> bool:
    return move.phase == ABORT
