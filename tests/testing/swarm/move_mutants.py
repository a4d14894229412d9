"""Planted bugs of topic moves, for the swarm of the whole stack to find.

`tests.testing.swarm.mutants` runs them with its own.
"""

from typing import Any

import msgspec

from ensue.protocols.total.frames import Move, Registered
from ensue.protocols.total.move_coordinator import MoveCoordinator
from ensue.protocols.total.placement import Parts, Placement
from ensue.protocols.total.station import Station
from ensue.protocols.total.topic_moves import SWITCH, TopicMoves

__all__ = ["MOVES"]

real_restore, real_decide = TopicMoves.restore, TopicMoves.decide
real_freeze = MoveCoordinator._freeze
real_switched = Station._switched


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
        self._decide(self.active, SWITCH, "", now_ns)


def begin_no_log(self: Station, topic: str, count: int, registered: tuple[Registered, ...]) -> None:
    """The log of a topic at its new server begins with its first event."""
    begin: Any = self.log.begin
    self.log.begin = lambda *_: None  # type: ignore[method-assign]
    try:
        real_switched(self, topic, count, registered)
    finally:
        self.log.begin = begin  # type: ignore[method-assign]


def know_the_last_part_alone(self: Placement, topic: str, parts: Parts) -> bool:
    """Clients and servers know the current part of a log, and no earlier one."""
    if len(parts) <= len(self.parts.get(topic, ())):
        return False
    node = parts[-1][0]
    self.parts[topic] = tuple((node, last) for _, last in parts)
    self._stages[topic] = self.nodes.index(node)
    return True


MOVES = (
    ("servers forget moves", "total-moves", ((TopicMoves, "restore", forget_moves),), 29),
    ("moves are never given up", "total-moves", ((TopicMoves, "decide", switch_in_any_case),), 14),
    ("moves wait for no server", "total-moves", ((MoveCoordinator, "_freeze", decide_at_once),), 0),
    ("moved logs begin anew", "total-moves", ((Station, "_switched", begin_no_log),), 0),
    ("moved logs are whole", "total-moves", ((Placement, "learn", know_the_last_part_alone),), 0),
)
"""Name, order, what is replaced by what, and a seed that finds it and finds nothing without it."""
