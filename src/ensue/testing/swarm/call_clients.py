"""All clients of a program on topics that make rare calls."""

from collections.abc import Iterator
from random import Random
from typing import Protocol

from ensue.testing.swarm.bounded_runs import BoundedRuns
from ensue.testing.swarm.call_context import CallContext, LongPhase, Main
from ensue.testing.swarm.durable_reader import DurableReader
from ensue.testing.swarm.forgotten import ForgottenCalls
from ensue.testing.swarm.manual_acks import ManualAcks
from ensue.testing.swarm.many_calls import KEEPER, ManyCalls
from ensue.testing.swarm.mishaps import Mishap
from ensue.testing.swarm.taken import Taken
from ensue.testing.swarm.timed_closes import TimedCloses
from ensue.testing.swarm.topic_calls import TopicCalls
from ensue.testing.swarm.topic_draw import Draw
from ensue.testing.swarm.unordered_calls import UnorderedCalls
from ensue.testing.world import World

__all__ = ["CallClients"]


class CallProgram(LongPhase, Protocol):
    """The program that the clients belong to."""

    world: World
    drawn: Draw
    problems: list[str]
    late_s: float
    taken: Taken
    mishap: Mishap
    broken: dict[str, int]

    def url(self, random: Random) -> str:
        """Draw a server; return its URL."""


class CallClients:
    """The clients of a run that make rare calls."""

    def __init__(self, program: CallProgram) -> None:
        world, drawn, problems = program.world, program.drawn, program.problems
        context = CallContext(
            world=world,
            drawn=drawn,
            problems=problems,
            phase=program,
            taken=program.taken,
            url=program.url,
            late_s=program.late_s,
        )
        self._topics = TopicCalls(world, drawn, problems, phase=program, url=program.url)
        self._many = ManyCalls(
            world,
            drawn,
            problems,
            phase=program,
            taken=program.taken,
            url=program.url,
            lost_ns=lambda: program.mishap.lost_ns,
            broken=program.broken,
        )
        self.unordered = UnorderedCalls(context)
        self.forgotten = ForgottenCalls(context)
        self.closes = TimedCloses(context)
        self._others = (ManualAcks(context), BoundedRuns(context))

    @property
    def hands(self) -> dict[str, DurableReader]:
        """By durable subscription that is never forgotten: what its application did."""
        return {} if self._many.hands is None else {KEEPER: self._many.hands}

    def mains(self) -> Iterator[tuple[str, Main]]:
        """Yield the processes that are to be started: their names and programs."""
        yield from self._topics.mains()
        yield from self._many.mains()
        for each in (self.unordered, self.forgotten, self.closes, *self._others):
            yield from each.mains()
