"""Swarms of the whole stack: clients, servers, journals and networks, one seed a run.

A seed draws a program of several processes and the faults that strike them (`program`), runs it in
a simulated world, and judges what the applications got (`judge`).
"""

import msgspec

import ensue
from ensue.core.trace import Row
from ensue.testing.network import NetworkOptions
from ensue.testing.simulation import Simulation, simulate
from ensue.testing.swarm.judge import judge, judge_final, judge_prompt
from ensue.testing.swarm.moves import judge_moves
from ensue.testing.swarm.program import PROMPT_S, SETTLE_S, Draw, Program, draw_topics
from ensue.testing.swarm.transactions import (
    ContentDraw,
    ContentProgram,
    draw_content,
    judge_content,
)

SLOW_MS = (0.05, 40.0)
"""Latencies where events overtake the news of subscriptions that move."""
SURE_MS = 1_000
"""Deadlines that the network never misses without a fault."""
__all__ = ["StackRun", "draw", "run"]


class StackRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed came to."""

    drawn: Draw | ContentDraw
    problems: list[str]
    """What is wrong, in words; nothing: the run is valid."""
    rows: list[Row]
    faults: list[str]
    """What struck, and when."""
    seconds: float
    digest: str


def draw(seed: int, order: str, *, faults: list[str] | None = None) -> Draw | ContentDraw:
    """Draw the program of a seed and its faults."""
    if order == "transactions":
        return draw_content(seed, faults=faults)
    return draw_topics(seed, order, faults=faults)


def run(drawn: Draw | ContentDraw) -> StackRun:
    """Run what was drawn, and judge it."""
    programs: list[Program | ContentProgram] = []

    async def main(simulation: Simulation) -> None:
        program: Program | ContentProgram
        if isinstance(drawn, Draw):
            program = Program(simulation.world, drawn)
        else:
            program = ContentProgram(simulation.world, drawn)
        programs.append(program)
        await program.run()

    slow = isinstance(drawn, ContentDraw) and drawn.streams
    network = NetworkOptions(latency_ms=SLOW_MS) if slow else NetworkOptions()
    simulated = simulate(main, seed=drawn.seed, network=network, until_s=600.0)
    program = programs[0]
    problems = list(program.problems)
    if isinstance(program, Program):
        problems += _judge_topics(program, simulated.rows)
    else:
        rows, calm_ns = simulated.rows, program.calm_ns
        problems += judge_content(rows)
        problems += judge_moves(rows, program.moves.confirmed, calm_ns)
    return StackRun(
        drawn=drawn,
        problems=problems,
        rows=simulated.rows,
        faults=program.faults,
        seconds=simulated.seconds,
        digest=simulated.digest,
    )


def _judge_topics(program: Program, rows: list[Row]) -> list[str]:
    drawn = program.drawn
    problems = judge(
        rows,
        drawn.order.label,
        settle_s=SETTLE_S / 2,
        durable=program.durable,
        lossy=drawn.is_lossy or program.is_refused,
        lost_ns=program.mishap.lost_ns,
        broken=program.broken,
    )
    problems += program.taken.judge(rows)
    is_short = isinstance(drawn.order, ensue.Deadline) and drawn.order.ms < SURE_MS
    if drawn.is_lossy and not is_short:
        problems += judge_final(rows, program.final_ns, program.publishers.values())
    return problems + judge_prompt(rows, program.prompt, PROMPT_S)
