"""Random scenarios with every fault: no event is out of order, and no node is stuck."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.simulation.swarms.seeds import CHUNK, first_seeds

from ensue.core.trace import digest
from ensue.simulation.run import Outcome, play
from ensue.simulation.swarms.total import draw

FEW = (3, 17, 41, 256)
"""Seeds whose runs are compared with each other, row by row."""


def complaint(outcome: Outcome) -> str:
    """Return the command that replays a failing run, and its faults."""
    sentences = "\n".join(f"  {sentence}" for sentence in outcome.sentences())
    return f"ensue replay total --seed {outcome.seed}\n{sentences}"


def deliveries(outcome: Outcome) -> list[tuple[object, ...]]:
    return [
        (row.node, row.position, row.event, row.verdict, row.stamp, row.at_ns)
        for row in outcome.rows
        if row.action == "delivered"
    ]


@pytest.mark.parametrize("first", first_seeds(always=300))
def test_no_seed_breaks_order_or_gets_stuck(first: int) -> None:
    complaints = []
    for seed in range(first, first + CHUNK):
        outcome = play(draw(seed), seed)
        if not outcome.valid:
            complaints.append(complaint(outcome))
    assert not complaints, "\n" + "\n".join(complaints)


def test_swarm_delivers_voids_tags_and_changes_subscriptions() -> None:
    seen = set()
    for seed in range(60):
        for row in play(draw(seed), seed).rows:
            seen.add(row.action if not row.verdict else f"{row.action} {row.verdict}")
    assert seen >= {
        "crashed",
        "delivered",
        "delivered out_of_order",
        "discarded void",
        "subscribed",
        "unsubscribed",
    }


@pytest.mark.parametrize("seed", FEW)
def test_seed_gives_same_trace_again(seed: int) -> None:
    first = play(draw(seed), seed, peer_frames=True)
    again = play(draw(seed), seed, peer_frames=True)
    assert first.steps == again.steps
    assert digest(first.rows) == digest(again.rows)


def test_processes_with_other_hash_seeds_give_same_traces() -> None:
    root = Path(__file__).parents[3]
    code = (
        "from ensue.simulation.run import play\n"
        "from ensue.simulation.swarms.total import draw\n"
        "from ensue.core.trace import digest\n"
        f"for seed in {FEW}:\n"
        "    print(digest(play(draw(seed), seed, peer_frames=True).rows))"
    )
    printed = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root / "src")},
            capture_output=True,
            text=True,
            check=True,
        )
        printed.add(tuple(done.stdout.split()))
    here = tuple(digest(play(draw(seed), seed, peer_frames=True).rows) for seed in FEW)
    assert printed == {here}


@pytest.mark.parametrize("seed", FEW)
def test_encoded_frames_give_same_deliveries_as_objects(seed: int) -> None:
    as_objects = deliveries(play(draw(seed), seed))
    assert as_objects
    assert deliveries(play(draw(seed), seed, encode=True)) == as_objects


def test_failing_run_prints_how_to_replay_it() -> None:
    outcome = play(draw(3), 3)
    stuck = msgspec.structs.replace(outcome, stuck=("subscriber-1 holds 2 events back",))
    assert not stuck.valid
    assert complaint(stuck) == (
        "ensue replay total --seed 3\n  stuck: subscriber-1 holds 2 events back"
    )
