"""Planted bugs of topic moves, for the swarm of the whole stack to find.

`tests.testing.swarm.mutants` runs them with its own.
"""

import msgspec

from ensue.protocols.total.frames import Move
from ensue.protocols.total.move_coordinator import MoveCoordinator
from ensue.protocols.total.topic_moves import SWITCH, TopicMoves

__all__ = ["MOVES"]

real_restore, real_decide = TopicMoves.restore, TopicMoves.decide
real_freeze = MoveCoordinator._freeze


def forget_moves(self: TopicMoves, kind: str, topic: str, value: bytes, now_ns: int) -> None:
    """A server that restarts has the topics where they were."""
    if kind != "moved":
        real_restore(self, kind, topic, value, now_ns)


def switch_in_any_case(self: TopicMoves, move: Move) -> bool:
    """A server switches although the move was given up."""
    return real_decide(self, msgspec.structs.replace(move, phase=SWITCH))


def decide_at_once(self: MoveCoordinator, asked: Move, now_ns: int) -> None:
    """The first server switches without waiting for the others to freeze."""
    real_freeze(self, asked, now_ns)
    if self.active is not None:
        self._decide(self.active, SWITCH, now_ns)


MOVES = (
    ("servers forget moves", "total-moves", ((TopicMoves, "restore", forget_moves),), 35),
    # Seeds 77 and 173 find it too, by what follows: a leak, and an error that is wrong.
    ("moves are never given up", "total-moves", ((TopicMoves, "decide", switch_in_any_case),), 194),
    ("moves wait for no server", "total-moves", ((MoveCoordinator, "_freeze", decide_at_once),), 0),
)
"""Name, order, what is replaced by what, and a seed that finds it and finds nothing without it."""
