"""A new order is one package and one call: everything else finds it in the registry."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.orders.toy import Pairs, PairsOrder

import ensue
from ensue import orders
from ensue.checkers import Verdict, check
from ensue.cli.narration import scenario_lines
from ensue.cli.order_options import chosen_order
from ensue.core import trace
from ensue.core.errors import BadInput
from ensue.core.order import parse
from ensue.simulation import run
from ensue.simulation.scenario_file.reader import loads
from ensue.simulation.seeds import DRAWS, play_seed
from ensue.spark.audits import audit


@pytest.fixture(autouse=True)
def toy() -> Iterator[PairsOrder]:
    order = PairsOrder()
    orders.register(order)
    yield order
    orders.unregister(order.name)


def test_an_application_publishes_and_subscribes_in_it(tmp_path: Path) -> None:
    directory = tmp_path / "trace"

    async def main() -> list[bytes]:
        url = "memory://?jitter_ms=2&seed=3"
        async with (
            ensue.connect(url, order=Pairs(), trace=str(directory)) as bus,
            bus.subscribe("numbers") as events,
        ):
            for number in range(1, 9):
                await bus.publish("numbers", b"%d" % number)
            return [(await anext(events)).payload for _ in range(8)]

    assert asyncio.run(main()) == [b"2", b"1", b"4", b"3", b"6", b"5", b"8", b"7"]
    rows = trace.read(directory)
    assert check(rows, "pairs").verdict is Verdict.VALID
    assert check(rows, "fifo").verdict is Verdict.INVALID


def test_the_simulator_runs_it_and_the_checkers_judge_it() -> None:
    for seed in range(10):
        assert play_seed("pairs", seed).failure == ()
    outcome = run.play(DRAWS["pairs"](0), 0)
    assert outcome.delivered
    assert [finding.checker for finding in outcome.report.findings] == [
        "pairs",
        "positions",
        "complete",
    ]


def test_its_own_rule_finds_a_breach() -> None:
    rows = run.play(DRAWS["pairs"](0), 0).rows
    first, second = [at for at, row in enumerate(rows) if row.action == "delivered"][:2]
    swapped = list(rows)
    for at, other in ((first, second), (second, first)):
        step, position = rows[other].step, rows[other].position
        swapped[at] = msgspec.structs.replace(rows[at], step=step, position=position)
    report = check(swapped, "pairs")
    assert report.verdict is Verdict.INVALID
    assert any("was due" in sentence for sentence in report.sentences())


def test_scenario_files_and_commands_know_it() -> None:
    scenario = loads('order = "pairs"\n[[publishers]]\nname = "p"')
    assert scenario.order == "pairs"
    assert any("order pairs" in line for line in scenario_lines(scenario))
    assert "pairs" in DRAWS
    assert chosen_order("pairs", epsilon=None, delta=None, ms=None) == Pairs()
    assert parse("pairs") == Pairs()


def test_a_transport_that_lacks_what_it_needs_is_refused() -> None:
    with pytest.raises(ensue.UnsupportedOrder, match="does not carry pairs order"):
        ensue.connect("ensue://127.0.0.1:7400", order=Pairs())


def test_a_subscription_in_another_order_is_refused() -> None:
    async def main() -> None:
        async with ensue.connect("memory://", order=Pairs()) as bus:
            with pytest.raises(ensue.UnsupportedOrder, match="publishes in pairs order"):
                bus.subscribe("numbers", order=ensue.Total())

    asyncio.run(main())


def test_a_name_is_taken_once(toy: PairsOrder) -> None:
    with pytest.raises(ensue.BadInput, match="there is an order 'pairs' already"):
        orders.register(toy)


def test_an_order_that_is_not_registered_is_refused(toy: PairsOrder) -> None:
    orders.unregister(toy.name)
    try:
        with pytest.raises(ensue.UnsupportedOrder, match="does not carry pairs order; it carries"):
            ensue.connect("memory://", order=Pairs())
    finally:
        orders.register(toy)


def test_the_spark_audit_refuses_rules_that_it_cannot_judge(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"audit can't judge the rules of pairs order \(pairs\)"):
        audit(str(tmp_path), "pairs")
