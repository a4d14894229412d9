"""Which order a trace is judged by if none is given: the one that its rows name."""

from pathlib import Path

import pytest

from ensue.checkers import check, named_order, order_of_rows
from ensue.core import trace
from ensue.core.errors import BadInput
from ensue.core.trace import Row
from ensue.simulation.run import play
from ensue.simulation.swarms.total import draw, draw_noncausal


def rows_of(*labels: str, transaction: str | None = None) -> list[Row]:
    return [
        Row(
            run="run",
            node="node",
            step=step,
            at_ns=step,
            action="subscribed",
            topic="t",
            subscription="s",
            order=label,
            transaction=transaction,
        )
        for step, label in enumerate(labels, 1)
    ]


def test_the_rows_of_a_run_name_its_order(tmp_path: Path) -> None:
    rows = rows_of("total-noncausal", "total-noncausal")
    assert order_of_rows(rows) == "total-noncausal"
    assert check(rows, None).order == "total-noncausal"
    trace.write(rows, tmp_path / "trace")
    assert trace.named_orders(tmp_path / "trace") == {"total-noncausal"}


def test_several_orders_are_ambiguous(tmp_path: Path) -> None:
    rows = rows_of("total", "total-noncausal")
    with pytest.raises(BadInput, match=r"several orders \(total, total-noncausal\).*--order"):
        check(rows, None)
    trace.write(rows, tmp_path)
    assert trace.named_orders(tmp_path) == {"total", "total-noncausal"}


def test_a_bus_with_transactions_is_ambiguous(tmp_path: Path) -> None:
    rows = rows_of("total", transaction="tx")
    with pytest.raises(BadInput, match=r"several orders \(total, transactions\)"):
        order_of_rows(rows)
    trace.write(rows, tmp_path)
    assert trace.named_orders(tmp_path) == {"total", "transactions"}
    assert order_of_rows(rows_of("transactions", transaction="tx")) == "transactions"


def test_rows_without_order_do_not_count_beside_others(tmp_path: Path) -> None:
    """As of a bus without order that has transactions, and other buses of the run."""
    rows = rows_of("none", transaction="tx")
    trace.write(rows, tmp_path)
    assert trace.named_orders(tmp_path) == {"none", "transactions"}
    assert order_of_rows(rows) == "transactions"
    assert named_order(trace.named_orders(tmp_path), tmp_path) == "transactions"
    assert named_order({"none", "total"}, "runs/x", default="causal") == "total"
    with pytest.raises(BadInput, match=r"several orders \(total, transactions\)"):
        named_order({"none", "total", "transactions"}, "runs/x")


def test_an_unknown_order_is_named() -> None:
    with pytest.raises(BadInput, match="runs/x names the order 'toy', which is not known here"):
        named_order({"toy"}, "runs/x")


def test_a_run_without_order_has_to_be_given_one() -> None:
    for rows in (rows_of("none"), []):
        with pytest.raises(BadInput, match="is of a run without order: name the one to judge by"):
            check(rows, None)
    assert named_order({"none"}, "runs/x", default="total") == "total"


@pytest.mark.parametrize(("draws", "label"), [(draw, "total"), (draw_noncausal, "total-noncausal")])
def test_a_simulated_run_names_whether_its_chain_is_causal(draws: object, label: str) -> None:
    outcome = play(draws(7), 7)  # type: ignore[operator]
    assert {row.order for row in outcome.rows} == {label}
    assert outcome.report.order == label
