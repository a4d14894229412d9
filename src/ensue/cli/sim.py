"""The commands `sim`, `swarm` and `replay`: play a scenario, many seeds, or one."""

import os
import shlex
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from ensue import orders
from ensue.checkers import Verdict, rules_of
from ensue.checkers.statistics import statistics
from ensue.cli import narration, output, seed_pool, stack_runs
from ensue.cli.stack_runs import ALL, OPERATIONS
from ensue.core import trace as traces
from ensue.core.errors import BadInput, EnsueError
from ensue.simulation import run
from ensue.simulation.run import Outcome
from ensue.simulation.scenario import Scenario
from ensue.simulation.scenario_file import reader
from ensue.simulation.seeds import DRAWS, SeedResult, play_seed, raised

__all__ = ["replay", "sim", "swarm"]

FAILURES_SHOWN = 20
"""With `--keep-going`, failures that are explained; others are listed by seed."""
SENTENCES_SHOWN = 10
"""Sentences printed of one failure."""


ProtocolArgument = Annotated[
    str,
    typer.Argument(
        parser=output.choice(lambda: (*DRAWS, OPERATIONS, ALL)),
        metavar="PROTOCOL",
        help=f"The protocol to search for faults: {', '.join(DRAWS)}; with --stack also "
        f"{OPERATIONS}, and to search {ALL}.",
    ),
]
StackOption = Annotated[
    bool,
    typer.Option(
        "--stack",
        help="Run whole programs in a simulated world: clients, servers, disks and network, "
        "judged by what applications get.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same run.")]
TraceOption = Annotated[
    Path | None,
    typer.Option("--trace", metavar="DIR", help="Write the trace here: a new or empty directory."),
]
SwarmMasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Run the seeds on Spark, by its master: local[*], or a cluster's URL.",
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="With --master: write the outcome of every seed here, as Parquet. "
        "Started again, the search resumes.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


@output.command
def sim(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The scenario: a TOML file.")],
    *,
    seed: Seed = 1,
    trace: TraceOption = None,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Record the run here: its trace and the event log. Payloads are recorded only if "
            "the scenario's topic logs keep events.",
        ),
    ] = None,
    frames: Annotated[
        bool,
        typer.Option("--frames", help="Record every frame too, which also shows held-back events."),
    ] = False,
    json: Json = False,
) -> int:
    """Play a scenario file and judge its trace.

    Prints figures and the verdict of each checker. docs/how-to/simulator.md describes scenario
    files.

    Example: [bold]ensue sim examples/scenarios/two-desks.toml --seed 7 --trace runs/seven[/bold]
    """
    scenario = reader.load(file)
    if trace is not None and record is not None:
        raise BadInput("--record writes a trace too: leave --trace out")
    _check_free(trace)
    _check_free(record, "--record")
    try:
        outcome = run.play(
            scenario, seed, encode=True, peer_frames=frames, keep_events=record is not None
        )
    except EnsueError:
        raise
    except Exception as error:  # noqa: BLE001 - a bug that this scenario found is its result
        return _print_raised(error, scenario.name, seed, json=json)
    place = trace
    if record is not None:
        place = record / "trace"
        _write_log(outcome, record / "log")
    written = None if place is None else traces.write(outcome.rows, place)
    if json:
        output.print_json(_as_json(outcome, written))
    else:
        _print_outcome(outcome)
        if written is not None and place is not None:
            checked = _check_line(record or place, scenario, outcome)
            output.print_lines([f"trace: {written}", checked])
    return _exit_code(outcome)


@output.command
def swarm(
    protocol: ProtocolArgument,
    *,
    stack: StackOption = False,
    seed_range: Annotated[
        str,
        typer.Option(
            "--seeds", metavar="A:B", help="The seeds from A up to, not including, B; or one seed."
        ),
    ],
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Number of processes.", show_default="one for each core"),
    ] = None,
    trace: TraceOption = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Don't stop at the first seed that fails.")
    ] = False,
    master: SwarmMasterOption = None,
    out: OutOption = None,
    json: Json = False,
) -> int:
    """Play a random scenario with faults for each seed, until one fails.

    Stops at the lowest seed that fails; prints the failure, and the command that replays it.
    --trace writes the trace of that seed.

    Example: [bold]ensue swarm total --seeds 0:10000[/bold]
    """
    with output.option("--seeds"):
        chosen = seed_pool.parse_seeds(seed_range)
    _check_options(protocol, trace, master, jobs, out)
    _check_free(trace)
    play = _play(protocol, stack=stack)
    name = _label(protocol, stack=stack)
    totals = _Totals()
    started = time.monotonic()
    try:
        spark = None if master is None else seed_pool.start_spark(master)
        with seed_pool.progress(f"swarm {name}", len(chosen)) as show:

            def watch(result: SeedResult) -> bool:
                totals.add(result)
                show(totals.seeds, f"{len(totals.failures)} failed")
                return bool(result.failure) and not keep_going

            if spark is not None:
                seed_pool.play_on_spark(spark, play, chosen, watch, out, name=f"swarm {name}")
            else:
                processes = jobs or os.cpu_count() or 1
                with closing(seed_pool.play_all(play, chosen, processes)) as results:
                    any(map(watch, results))
    except KeyboardInterrupt:
        totals.interrupted = True
    totals.seconds = time.monotonic() - started
    written, checked = None, ""
    if trace is not None and totals.failures:
        seed = totals.failures[0].seed
        if stack:
            written = stack_runs.write_trace(protocol, seed, trace)
        else:
            written, checked = _replay_to_trace(protocol, seed, trace)
    if json:
        output.print_json(totals.to_dict(name, chosen, written))
    else:
        _print_totals(totals, name, chosen, written, checked)
    if totals.failures:
        return output.EXIT_VIOLATION
    return output.EXIT_UNKNOWN if totals.interrupted else output.EXIT_VALID


@output.command
def replay(
    protocol: ProtocolArgument,
    *,
    seed: Annotated[int, typer.Option(min=0, help="The seed that failed.")],
    stack: StackOption = False,
    diagram: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --stack: draw a space-time diagram to this HTML file."
        ),
    ] = None,
    trace: TraceOption = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print every row of the run, in time order.")
    ] = False,
    json: Json = False,
) -> int:
    """Play one seed of a swarm again, and describe its scenario.

    If the seed fails, prints the rows around the failure.

    Example: [bold]ensue replay total --seed 1234 --trace runs/1234[/bold]
    """
    _check_free(trace)
    if stack:
        return stack_runs.replay(
            protocol, seed, trace=trace, diagram=diagram, verbose=verbose, json=json
        )
    if diagram is not None:
        raise BadInput("--diagram needs --stack")
    scenario = _draw(protocol)(seed)
    if not json:
        output.print_lines(narration.scenario_lines(scenario))
    try:
        outcome = run.play(scenario, seed)
    except Exception as error:  # noqa: BLE001 - any exception is this seed's failure
        if verbose:
            traceback.print_exc()
        return _print_raised(error, scenario.name, seed, json=json)
    written = None if trace is None else traces.write(outcome.rows, trace)
    if json:
        output.print_json(_as_json(outcome, written))
        return _swarm_exit_code(outcome)
    _print_outcome(outcome)
    if not outcome.valid:
        output.print_lines(["", "around it:"])
        output.print_lines(map(narration.row_line, narration.witness_rows(outcome)))
    if verbose:
        output.print_lines(["", "all rows:"])
        rows = sorted(outcome.rows, key=lambda row: (row.true_ns or 0, row.node, row.step))
        output.print_lines(map(narration.row_line, rows))
    if written is not None and trace is not None:
        output.print_lines([f"trace: {written}", _check_line(trace, scenario, outcome)])
    return _swarm_exit_code(outcome)


def _draw(protocol: str) -> Callable[[int], Scenario]:
    """Return the function that draws the scenarios of one protocol."""
    if protocol not in DRAWS:
        raise BadInput(f"{protocol} needs --stack; without it, name one of {', '.join(DRAWS)}")
    return DRAWS[protocol]


def _play(protocol: str, *, stack: bool) -> seed_pool.Play:
    """Return the function that plays a seed."""
    if stack:
        return stack_runs.player(protocol)
    _draw(protocol)
    return partial(play_seed, protocol)


def _label(protocol: str, *, stack: bool) -> str:
    return f"--stack {protocol}" if stack else protocol


class _Totals(msgspec.Struct):
    """Totals of a swarm so far."""

    seeds: int = 0
    steps: int = 0
    events: int = 0
    deliveries: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    failures: list[SeedResult] = []

    def add(self, result: SeedResult) -> None:
        self.seeds += 1
        self.steps += result.steps
        self.events += result.published
        self.deliveries += result.delivered
        if result.failure:
            self.failures.append(result)

    def per_second(self, count: int) -> float:
        return count / self.seconds if self.seconds else 0.0

    def to_dict(self, protocol: str, chosen: range, written: Path | None) -> dict[str, Any]:
        return {
            "protocol": protocol,
            "first_seed": chosen.start,
            "last_seed": chosen.stop - 1,
            "seeds": self.seeds,
            "interrupted": self.interrupted,
            "failures": [
                {"seed": one.seed, "sentences": sentences, "replay": _replay(failed, one.seed)}
                for one in self.failures
                for failed, sentences in _failures(protocol, one).items()
            ],
            "events": self.events,
            "deliveries": self.deliveries,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "seeds_per_hour": round(self.per_second(self.seeds) * 3_600),
            "steps_per_second": round(self.per_second(self.steps)),
            "trace": None if written is None else str(written),
        }


def _failures(protocol: str, result: SeedResult) -> dict[str, Sequence[str]]:
    """Return the sentences of a failed seed, by what to replay."""
    if protocol != _label(ALL, stack=True):
        return {protocol: result.failure}
    found = stack_runs.failures(result.failure)
    return {_label(order, stack=True): sentences for order, sentences in found.items()}


def _replay(protocol: str, seed: int) -> str:
    return f"{output.program()} replay {protocol} --seed {seed}"


def _check_line(trace: Path, scenario: Scenario, outcome: Outcome) -> str:
    """Return the command that judges a trace as the run itself was judged."""
    words = [output.program(), "check", str(trace), "--order", outcome.report.order]
    rules = [finding.checker for finding in outcome.report.findings]
    lossy = not scenario.topic_log_config.keeps_log or orders.named(scenario.order).is_lossy
    promised = rules_of(outcome.report.order, lossy=lossy)
    if ("causal" in rules) != ("causal" in promised):
        words.append("--causal" if "causal" in rules else "--no-causal")
    if lossy:
        words.append("--lossy")
    return f"check: {shlex.join(words)}"


def _print_totals(
    totals: _Totals, protocol: str, chosen: range, written: Path | None, checked: str
) -> None:
    for failure in totals.failures[:FAILURES_SHOWN]:
        output.print_lines([f"seed {failure.seed} failed:"], style="bold red")
        for failed, sentences in _failures(protocol, failure).items():
            output.print_lines(f"  {line}" for line in sentences[:SENTENCES_SHOWN])
            if len(sentences) > SENTENCES_SHOWN:
                output.print_lines([f"  and {len(sentences) - SENTENCES_SHOWN} more"])
            output.print_lines([f"replay: {_replay(failed, failure.seed)}"])
        output.print_lines([""])
    others = [str(failure.seed) for failure in totals.failures[FAILURES_SHOWN:]]
    if others:
        output.print_lines([f"also failed: {', '.join(others)}"])
    if written is not None:
        output.print_lines([f"trace of seed {totals.failures[0].seed}: {written}", checked])
    if totals.interrupted:
        output.print_lines(["interrupted; until then:"])
    rows = [
        ("seeds", f"{totals.seeds:,} of {len(chosen):,}"),
        ("failed", f"{len(totals.failures):,}"),
        ("events", f"{totals.events:,}"),
        ("deliveries", f"{totals.deliveries:,}"),
        ("seeds per hour", f"{totals.per_second(totals.seeds) * 3_600:,.0f}"),
        ("protocol events per second", f"{totals.per_second(totals.steps):,.0f}"),
        ("time", f"{totals.seconds:.1f} s"),
    ]
    output.print_table(f"swarm {protocol}", ("", ""), rows, right=(1,))


def _replay_to_trace(protocol: str, seed: int, directory: Path) -> tuple[Path | None, str]:
    """Play a seed again to write its trace; worker processes do not return rows.

    Return its directory, and the command that checks it.
    """
    try:
        scenario = DRAWS[protocol](seed)
        outcome = run.play(scenario, seed)
    except Exception:  # noqa: BLE001 - reported already as the failure of this seed
        return None, ""
    written = traces.write(outcome.rows, directory)
    return written, _check_line(directory, scenario, outcome)


def _check_options(
    protocol: str, trace: Path | None, master: str | None, jobs: int | None, out: Path | None
) -> None:
    """Raise if options contradict each other."""
    if protocol == ALL and trace is not None:
        raise BadInput(f"--trace writes the trace of one order, got {ALL}: name an order")
    if master is not None and jobs is not None:
        raise BadInput(
            "--jobs and --master exclude each other: Spark decides how many seeds run at once"
        )
    if master is None and out is not None:
        raise BadInput("--out needs Spark: add --master 'local[*]', or leave --out out")


def _write_log(outcome: Outcome, directory: Path) -> None:
    """Write the events that the topic logs of a run kept."""
    from ensue.store import LogSink  # noqa: PLC0415 - loads much that other commands don't need

    sink = LogSink(directory, order=outcome.report.order)
    for slot, event in outcome.events:
        sink.accept(event, slot)
    sink.close()


def _check_free(directory: Path | None, option: str = "--trace") -> None:
    """Raise before the run if a directory is in use."""
    if directory is None:
        return
    if directory.exists() and not directory.is_dir():
        raise BadInput(f"{option}: {directory} is a file; name a directory")
    if directory.is_dir() and any(directory.iterdir()):
        raise BadInput(f"{option}: {directory} is not empty; name a new directory")


def _print_outcome(outcome: Outcome) -> None:
    output.print_statistics(
        f"{outcome.scenario}, seed {outcome.seed}",
        statistics(outcome.rows),
        ("simulated time", f"{outcome.simulated_ns / 1e9:.1f} s"),
        ("of that, after healing", f"{outcome.healed_ns / 1e9:.1f} s"),
        ("protocol events", f"{outcome.steps:,}"),
    )
    output.print_findings(outcome.report)
    if outcome.stuck:
        output.print_lines(["stuck: after healing, a node never stops waiting"], style="bold red")
    if not outcome.valid:
        output.print_lines(outcome.sentences())


def _print_raised(error: Exception, scenario: str, seed: int, *, json: bool) -> int:
    """Print that the run raised: a fault of the code, not of the input."""
    line = raised(error)
    if json:
        output.print_json(
            {"scenario": scenario, "seed": seed, "verdict": "invalid", "sentences": [line]}
        )
    else:
        output.print_lines([line], style="bold red")
    return output.EXIT_VIOLATION


def _as_json(outcome: Outcome, written: Path | None) -> dict[str, Any]:
    return {
        "scenario": outcome.scenario,
        "seed": outcome.seed,
        "verdict": "invalid" if outcome.stuck else str(outcome.report.verdict),
        "stuck": list(outcome.stuck),
        "sentences": outcome.sentences(),
        "statistics": statistics(outcome.rows).to_dict(),
        "simulated_ns": outcome.simulated_ns,
        "healed_ns": outcome.healed_ns,
        "steps": outcome.steps,
        "report": outcome.report.to_dict(),
        "trace": None if written is None else str(written),
    }


def _exit_code(outcome: Outcome) -> int:
    if outcome.stuck:
        return output.EXIT_VIOLATION
    return output.exit_code(outcome.report.verdict)


def _swarm_exit_code(outcome: Outcome) -> int:
    """Return the exit code of one seed; as in a swarm, zero deliveries are valid."""
    if outcome.valid:
        return output.EXIT_VALID
    invalid = outcome.stuck or outcome.report.verdict is Verdict.INVALID
    return output.EXIT_VIOLATION if invalid else output.EXIT_UNKNOWN
