"""Swarms of the whole stack: clients, servers, journals and networks, one seed a run.

A seed draws a program of several processes and the faults that strike them (`program`), runs it in a
simulated world, and judges what the applications got (`judge`).
"""

import asyncio
from typing import Any

import msgspec

from ensue.core.trace import Row
from ensue.testing.simulation import simulate
from ensue.testing.swarm.judge import judge
from ensue.testing.swarm.program import SETTLE_S, Draw, Program, draw
from ensue.testing.world import World

__all__ = ["StackRun", "draw", "run"]


class StackRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed came to."""

    drawn: Draw
    problems: list[str]
    """What is wrong, in words; nothing: the run is valid."""
    rows: list[Row]
    faults: list[str]
    """What struck, and when."""
    seconds: float
    digest: str


def run(drawn: Draw) -> StackRun:
    """Run what was drawn, and judge it."""
    programs: list[Program] = []

    async def main(world: World) -> Any:
        program = Program(world, drawn)
        programs.append(program)
        await program.run()
        await asyncio.sleep(0)

    simulated = simulate(main, seed=drawn.seed, until_s=600.0)
    program = programs[0]
    problems = list(program.problems)
    problems += judge(
        simulated.rows,
        drawn.order.label,
        settle_s=SETTLE_S / 2,
        durable=program.durable,
        lossy=drawn.is_lossy,
    )
    return StackRun(
        drawn=drawn,
        problems=problems,
        rows=simulated.rows,
        faults=program.faults,
        seconds=simulated.seconds,
        digest=simulated.digest,
    )
