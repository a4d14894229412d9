"""Random programs on the whole stack: no application gets anything that it must not get."""

import asyncio
import os
import subprocess
import sys

import msgspec
import pytest

from ensue.testing.faults import Faults
from ensue.testing.swarm import draw, run
from ensue.testing.swarm.program import Program
from ensue.testing.swarm.rare_calls import possible_calls
from ensue.testing.swarm.rare_faults import RARE
from ensue.testing.swarm.seeds import ORDERS, draw_lines

SEEDS = 6
"""Seeds of an order that `make test` runs."""
SEEDS_VERIFY = 400


def problems(order: str, seeds: range) -> list[str]:
    """Return what is wrong, each with the line that replays it."""
    return [
        f"ensue swarm --stack {order} --seeds {seed}: {problem}"
        for seed in seeds
        for problem in run(draw(seed, order)).problems
    ]


@pytest.mark.parametrize("order", ORDERS)
def test_no_seed_finds_a_problem(order: str) -> None:
    assert problems(order, range(SEEDS)) == []


@pytest.mark.parametrize("fault", RARE)
def test_seeds_with_a_rare_fault_find_no_problem(fault: str) -> None:
    for order in ("total", "transactions"):
        seed = next(seed for seed in range(200) if fault in draw(seed, order).faults.rates)
        assert problems(order, range(seed, seed + 1)) == []


@pytest.mark.parametrize("order", ORDERS)
def test_seeds_with_rare_calls_find_no_problem(order: str) -> None:
    missing = dict.fromkeys(possible_calls(order))
    for seed in range(300):
        drawn = getattr(draw(seed, order), "calls", ())
        if not missing.keys().isdisjoint(drawn):
            assert problems(order, range(seed, seed + 1)) == []
            missing = {each: None for each in missing if each not in drawn}
    assert not missing


@pytest.mark.parametrize(
    ("order", "what"),
    [
        ("total", "network"),
        ("causal", "outsider"),
        ("merged", "outsider"),
        ("transactions", "users"),
    ],
)
def test_seeds_with_a_rare_network_or_user_find_no_problem(order: str, what: str) -> None:
    seed = next(seed for seed in range(200) if getattr(draw(seed, order), what))
    assert problems(order, range(seed, seed + 1)) == []


@pytest.mark.parametrize(
    ("order", "mishap"),
    [
        ("total-moves", "full"),
        ("total-content", "failing"),
        ("causal", "full"),
        ("merged", "failing"),
        ("deadline", "full"),
        ("transactions", "failing"),
        ("transactions", "flipped"),
    ],
)
def test_seeds_with_a_rare_mishap_find_no_problem(order: str, mishap: str) -> None:
    drawn = (draw(seed, order) for seed in range(300))
    outcome = run(next(each for each in drawn if getattr(each, "mishap", "") == mishap))
    assert not outcome.problems
    (_,) = (fault for fault in outcome.faults if "disk of server" in fault or " flip " in fault)


@pytest.mark.verify
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("part", range(4))
def test_many_seeds_find_no_problem(order: str, part: int) -> None:
    size = SEEDS_VERIFY // 4
    assert problems(order, range(SEEDS + part * size, SEEDS + (part + 1) * size)) == []


def test_what_processes_do_after_the_run_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave_a_process(self: Program) -> None:
        async def wait() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                self.problems.append("the process was freed")

        self.world.start("left", wait)
        await asyncio.sleep(1)
        self.problems.append("one of the run")

    monkeypatch.setattr(Program, "run", leave_a_process)
    assert run(draw(0, "total")).problems == ["one of the run"]


PRINT_DIGESTS = """
import logging
logging.disable()
from ensue.testing.faults import Faults
from ensue.testing.swarm import draw, run
from ensue.testing.swarm.seeds import ORDERS, draw_lines
for order in ORDERS:
    print(order, [run(draw(seed, order)).digest for seed in range(4)])
"""


def test_same_seed_gives_the_same_trace_in_another_process() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", PRINT_DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=250,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(printed) == 1, printed


def test_draw_is_described_without_what_it_leaves_out() -> None:
    faults = Faults(server_kills=6.0, partitions=2.0)
    drawn = msgspec.structs.replace(draw(0, "total"), topics=("a", "b"), durable=0, faults=faults)
    lines = draw_lines(drawn)
    assert "  topics: a, b" in lines
    assert "  faults per minute: server_kills 6, partitions 2" in lines
    assert not [line for line in lines if line.startswith(("  durable", "  seed"))]
