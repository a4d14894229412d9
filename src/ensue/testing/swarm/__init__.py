"""Swarms of the whole stack: clients, servers, journals and networks, one seed a run.

A seed draws a program of several processes and the faults that strike them (`program`), runs it in
a simulated world, and judges what the applications got (`judge`).
"""

import traceback

import msgspec

import ensue
from ensue.core.trace import Row, digest
from ensue.simulation.seeds import raised
from ensue.testing.simulation import Simulation, simulate
from ensue.testing.swarm.absences import (
    with_early_ends,
    without_expired,
    without_final_ends,
    without_forgotten,
    without_unnoticed,
)
from ensue.testing.swarm.arrivals import without_gaps, without_unread
from ensue.testing.swarm.content_draw import ContentDraw, draw_content
from ensue.testing.swarm.content_judge import judge_content
from ensue.testing.swarm.judge import SECOND_NS, judge, judge_final, judge_prompt
from ensue.testing.swarm.losses import without_explained
from ensue.testing.swarm.lost_logs import judge_lost_log
from ensue.testing.swarm.moves import judge_moves
from ensue.testing.swarm.networks import network_options
from ensue.testing.swarm.operations import (
    OperationsDraw,
    OperationsProgram,
    draw_operations,
    judge_operations,
)
from ensue.testing.swarm.outsiders import judge_outsider
from ensue.testing.swarm.program import NOTICE_NS, SETTLE_S, Program
from ensue.testing.swarm.rare_calls import HELD
from ensue.testing.swarm.rare_faults import long_busy_s
from ensue.testing.swarm.topic_draw import Draw, draw_topics
from ensue.testing.swarm.total_content import (
    TotalContentDraw,
    TotalContentProgram,
    draw_total_content,
    judge_total_content,
)
from ensue.testing.swarm.transactions import ContentProgram
from ensue.testing.world import World

SLOW_MS = (0.05, 40.0)
"""Latencies where events overtake the news of subscriptions that move."""
UNTIL_S = 600.0
"""How long a program may take, in virtual time."""
SURE_MS = 1_000
"""Deadlines that the network never misses without a fault."""
AnyDraw = Draw | ContentDraw | OperationsDraw | TotalContentDraw
AnyProgram = Program | ContentProgram | OperationsProgram | TotalContentProgram
__all__ = ["StackRun", "draw", "run"]


class StackRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed came to."""

    drawn: AnyDraw
    problems: list[str]
    """What is wrong, in words; nothing: the run is valid. First what the run raised, if it did."""
    rows: list[Row]
    faults: list[str]
    """What struck, and when."""
    seconds: float
    digest: str
    traceback: str = ""
    """Where the run raised, if it did."""


def draw(seed: int, order: str, *, faults: list[str] | None = None) -> AnyDraw:
    """Draw the program of a seed and its faults."""
    if order == "operations":
        return draw_operations(seed, faults=faults)
    if order == "transactions":
        return draw_content(seed, faults=faults)
    if order == "total-content":
        return draw_total_content(seed, faults=faults)
    return draw_topics(seed, order, faults=faults)


def run(drawn: AnyDraw) -> StackRun:
    """Run what was drawn, and judge it. An exception of the run is a problem too."""
    worlds: list[World] = []
    faults: list[list[str]] = []
    problems: list[str] = []

    async def main(simulation: Simulation) -> None:
        program = _program(simulation.world, drawn)
        # Not the program itself: the simulation frees all objects of its processes.
        worlds.append(simulation.world)
        faults.append(program.faults)
        await program.run()
        # Judged before the simulation ends: then processes that were killed, or did not end, are
        # freed. Their `finally` and `except` blocks run, and may report problems of their own.
        problems.extend([*program.problems, *_judge(program, simulation.rows)])

    name = drawn.network if isinstance(drawn, Draw | ContentDraw) else ""
    slow = isinstance(drawn, ContentDraw) and drawn.streams
    network = network_options(name, **({"latency_ms": SLOW_MS} if slow else {}))
    where = ""
    try:
        simulate(main, seed=drawn.seed, network=network, until_s=UNTIL_S)
    except Exception as error:
        if not worlds:
            raise
        where = traceback.format_exc()
        problems = [raised(error), *getattr(error, "__notes__", ()), *problems]
    (world,) = worlds
    return StackRun(
        drawn=drawn,
        problems=problems,
        rows=world.rows,
        faults=list(*faults),
        seconds=world.now_s,
        digest=digest(world.rows),
        traceback=where,
    )


def _program(world: World, drawn: AnyDraw) -> AnyProgram:
    if isinstance(drawn, Draw):
        return Program(world, drawn)
    if isinstance(drawn, OperationsDraw):
        return OperationsProgram(world, drawn)
    if isinstance(drawn, TotalContentDraw):
        return TotalContentProgram(world, drawn)
    return ContentProgram(world, drawn)


def _judge(program: AnyProgram, rows: list[Row]) -> list[str]:
    if isinstance(program, Program):
        return _judge_topics(program, rows)
    if isinstance(program, OperationsProgram):
        return judge_operations(program, rows)
    if isinstance(program, TotalContentProgram):
        return judge_total_content(program, rows)
    is_cut = program.mishap.is_refused
    found = judge_content(rows, is_cut=is_cut) + program.denied.judge(rows)
    if is_cut:  # Events that move on wait for that server.
        return found
    return found + judge_moves(rows, program.moves.confirmed, program.calm_ns, program.world.pauses)


def _judge_topics(program: Program, rows: list[Row]) -> list[str]:
    drawn = program.drawn
    every = rows
    rows = [
        row for row in rows if row.action != "published" or (row.true_ns or 0) < program.over_ns
    ]
    unnoticed: set[str] = set()
    if drawn.broker is not None and program.mishap.lost_ns is not None:
        lost_ns, lost_topics = program.mishap.lost_ns, program.mishap.lost_topics

        def is_unnoticed(row: Row) -> bool:
            """Return whether clients of the server had not noticed by then that it lost its log."""
            concerned = lost_topics is None or row.topic in lost_topics
            return concerned and (row.true_ns or 0) < program.noticed_ns

        # Events may get receipts, and be missed, before a client notices that the log was lost.
        rows = [row for row in rows if row.action != "published" or not is_unnoticed(row)]
        # A station that was rolled back does not know who subscribes to what.
        unnoticed = {
            row.event or ""
            for row in rows
            if row.action == "submitted" and is_unnoticed(row) and lost_ns <= (row.true_ns or 0)
        }
    rows = with_early_ends(rows, program.world.pauses)
    if isinstance(drawn.order, ensue.Deadline):
        rows = without_gaps(without_unread(rows), program.world.gaps)
    elif isinstance(drawn.order, ensue.Causal):
        rows = without_forgotten(rows, program.world.pauses, program.closed_ns)
    settle_s = SETTLE_S / 2 + program.late_s
    rows, unordered = program.calls.unordered.judge(rows, settle_s)
    judged = rows
    is_long = bool(long_busy_s(drawn.faults))
    if is_long:
        judged = without_final_ends(rows, program.over_ns, int(settle_s * SECOND_NS))
    lossy = drawn.is_lossy
    if isinstance(drawn.order, ensue.Merged) and drawn.broker is None:
        judged, lossy = without_explained(judged, drawn, program.final_ns), False
    forgotten = program.calls.forgotten
    renamed = forgotten.renamed(judged)
    problems = judge(
        renamed,
        drawn.order.label,
        settle_s=None if is_long else settle_s,
        durable=[*program.durable, *forgotten.hands],
        lossy=lossy,
        lost_ns=program.mishap.lost_ns,
        lost_topics=program.mishap.lost_topics,
        refused_ns=program.mishap.struck_ns if program.mishap.is_refused else None,
        broken=program.broken,
        leaves=program.leaves,
    )
    problems = without_unnoticed(problems, unnoticed, {row.event or "" for row in rows})
    problems = without_expired(problems, rows, program.world.pauses)
    problems += [*unordered, *forgotten.judge(renamed), *program.calls.closes.judge(every)]
    problems += [*_judge_log(program, rows), *program.taken.judge(rows)]
    problems += judge_outsider(rows, program.outsider.buses, program.outsider.readable)
    is_short = isinstance(drawn.order, ensue.Deadline) and drawn.order.ms < SURE_MS
    # With little room to hold events back, any of them may find none.
    if drawn.is_lossy and not is_short and HELD not in drawn.calls:
        problems += judge_final(rows, program.final_ns, program.publishers.values())
    return problems + judge_prompt(rows, program.prompt, drawn.prompt_s)


def _judge_log(program: Program, rows: list[Row]) -> list[str]:
    """Return which clients went on with a lost log."""
    mishap, asks = program.mishap, program.drawn.broker is not None
    # Other servers of a chain refuse a wrong log, perhaps before its clients see it. Stations on a
    # broker are asked now and then: what was read since is not compared with an older log.
    if mishap.lost_ns is None or mishap.is_chain or (asks and mishap.copied_ns):
        return []
    return judge_lost_log(
        rows,
        known_ns=mishap.lost_ns - (NOTICE_NS if asks else 0),
        lost_ns=mishap.lost_ns,
        copied_ns=mishap.copied_ns,
        noticed_ns=program.final_ns,
    )
