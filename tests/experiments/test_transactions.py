"""The experiments of transactions: latencies counted by hand, a baseline that fails when it waits too little, and rows for every figure."""

import msgspec
import pytest
from experiments.transactions import __main__ as program
from experiments.transactions import model
from experiments.transactions.model import BL_WAIT, OVERLAYS, SCHEMES, Dispatching, Setting, play
from experiments.transactions.regular import disturb
from experiments.transactions.waiting import shortest_wait

from ensue.protocols.overlay.nodes import check_tree
from ensue.simulation import Constant

MS = 1_000_000
FEW = program.Options(6, 1, 300)


def test_the_latency_of_a_plan_on_one_broker_is_that_counted_by_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Issued, handed in, handled, and answered: the client is occupied once, the broker once."""
    monkeypatch.setattr(model, "Uniform", lambda _low, high: Constant(high // 2))
    figures = play(Setting(scheme="S-TX", brokers=1, transactions=4), 1)
    # The coordinator hears that it is over as whoever takes part does, which occupies it, and then has its answer.
    expected_ns = model.ISSUE_NS + 2 * model.HOP_NS + 2 * model.SERVICE_NS + model.REGULAR_NS
    assert figures.latency_ms == pytest.approx(expected_ns / MS)
    assert figures.messages == 6  # Handed in, answered, told to three, given.
    assert figures.per_second == pytest.approx(1000 / figures.latency_ms, rel=0.01)


@pytest.mark.parametrize("scheme", [each for each in SCHEMES if each != BL_WAIT])
@pytest.mark.parametrize("brokers", OVERLAYS)
def test_every_update_reaches_its_agent_alone(scheme: str, brokers: int) -> None:
    figures = play(Setting(scheme=scheme, brokers=brokers, concurrent=3, transactions=6), brokers)
    assert figures.wrong == 0


def test_more_at_once_is_more_a_second_and_each_takes_longer() -> None:
    for scheme in ("S-TX", "D-TX", "D-TX_NI"):
        one, ten = (
            play(Setting(scheme=scheme, concurrent=count, transactions=20), 1) for count in (1, 10)
        )
        assert ten.latency_ms > 1.5 * one.latency_ms
        assert ten.per_second > 2 * one.per_second


def test_the_schemes_compare_as_in_the_paper() -> None:
    """Figure 5: S-TX before BL-WAIT before D-TX; D-TX takes about 570 ms, the baseline about 190 ms."""
    rows: program.Rows = []
    list(program.base(program.Options(10, 2, 0), rows))
    latency = {row["scheme"]: row["latency_ms"] for row in rows}
    assert latency["S-TX"] < latency[BL_WAIT] < latency["D-TX_NI"] <= latency["D-TX"]
    assert 500 < latency["D-TX"] < 640
    assert 130 < latency[BL_WAIT] < 260


def test_the_baseline_goes_wrong_if_it_waits_too_little() -> None:
    setting = Setting(scheme=BL_WAIT, transactions=8)
    waited = program.waited(setting, 1)
    assert play(waited, 1).wrong == 0
    less = msgspec.structs.replace(waited, wait_ns=waited.wait_ns - 50 * MS)
    assert play(less, 1).wrong > 0


@pytest.mark.parametrize("enough", [0, 1, 50, 149, 150, 1999, 2000, 2001, 7777])
def test_the_shortest_wait_is_found_to_within_a_step(enough: int) -> None:
    found = shortest_wait(lambda wait: wait >= enough)
    assert found % 50 == 0
    assert found >= enough
    assert found - 50 < enough


def test_no_wait_is_long_enough_for_ever() -> None:
    with pytest.raises(ValueError, match="not enough"):
        shortest_wait(lambda _wait: False)


def test_a_lost_update_is_counted_and_blocks_nobody() -> None:
    """The dispatcher withdraws before the agent has subscribed: with some wait the update reaches nobody."""
    lost = 0
    for wait_ms in range(0, 200, 20):
        world = Dispatching(Setting(scheme=BL_WAIT, transactions=4, wait_ns=wait_ms * MS), 3)
        assert world.run().latency_ms > 0
        lost += 4 - len(world.received)
    assert lost


def test_overlays_are_trees() -> None:
    for count, links in OVERLAYS.items():
        neighbours: dict[str, list[str]] = {f"b{at}": [] for at in range(count)}
        for one, other in links:
            neighbours[f"b{one}"].append(f"b{other}")
            neighbours[f"b{other}"].append(f"b{one}")
        check_tree({name: tuple(others) for name, others in neighbours.items()})
        assert len(links) == count - 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_regular_events_all_arrive_while_instances_are_dispatched(scheme: str) -> None:
    found = disturb(scheme, wait_ns=500 * MS, rounds=2, between=1_500, seed=1)
    assert found.lost == 0
    assert found.per_second == pytest.approx(1000, rel=0.05)
    assert found.delay_ms_during >= found.delay_ms


@pytest.mark.parametrize("name", program.EXPERIMENTS)
def test_every_experiment_says_what_it_is_and_gives_rows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert program.EXPERIMENTS[name].__doc__
    monkeypatch.setattr(
        program,
        "waited",
        lambda setting, _seed: msgspec.structs.replace(setting, wait_ns=2000 * MS),
    )
    rows: program.Rows = []
    lines = list(program.EXPERIMENTS[name](FEW, rows))
    assert len(rows) in (4, 16)
    assert {row["scheme"] for row in rows} == set(SCHEMES)
    assert msgspec.json.encode(rows)
    assert lines[-1].startswith("the paper")
