import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import ensue.core.order
from ensue.core.errors import BadInput
from ensue.core.order import Causal, Deadline, Merged, Total, parse

untyped: Any = ensue.core.order


def test_orders_are_values() -> None:
    assert Total() == Total()
    assert Total(time_to_live=1.0) != Total()
    assert Merged(epsilon=0.1, delta=0.2).name == "merged"
    assert Deadline(ms=200).name == "deadline"


def test_text_names_an_order() -> None:
    assert parse("total") == Total()
    assert parse(" Causal ") == Causal()
    assert parse("none") is None


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match="no order 'best'; expected one of total, causal, none"):
        parse("best")


def test_bounds_are_checked() -> None:
    with pytest.raises(BadInput, match="time_to_live must be above 0"):
        Total(time_to_live=0)
    with pytest.raises(BadInput, match="held_max must be at least 1"):
        Total(held_max=0)


@pytest.mark.parametrize("value", ["1", True, [1]])
def test_a_time_to_live_is_a_number(value: Any) -> None:
    with pytest.raises(BadInput, match="time_to_live must be a number of seconds"):
        Total(time_to_live=value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 10**400])
def test_a_time_to_live_is_finite_and_above_zero(value: float) -> None:
    with pytest.raises(BadInput, match="time_to_live must be above 0 seconds"):
        Total(time_to_live=value)


@pytest.mark.parametrize("value", [1.5, "9", None, True])
def test_held_max_is_a_whole_number(value: Any) -> None:
    with pytest.raises(BadInput, match="held_max must be a whole number"):
        Total(held_max=value)


def test_order_name_must_be_text() -> None:
    with pytest.raises(BadInput, match="must be a str, got NoneType"):
        parse(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("write", "complaint"),
    [
        (
            untyped.Merged,
            r"Merged needs epsilon and delta: write ensue\.Merged\(epsilon=…, delta=…\)",
        ),
        (lambda: untyped.Merged(epsilon=1), r"Merged needs delta: write"),
        (
            lambda: untyped.Deadline(200),
            r"Deadline takes keyword arguments only, got 200: write ensue\.Deadline\(ms=…\)",
        ),
        (
            lambda: untyped.Total(1),
            r"Total takes keyword arguments only, got 1: write ensue\.Total\(\)",
        ),
        (
            lambda: untyped.Total(ttl=1),
            "Total has no 'ttl'; expected time_to_live, held_max, causal: write ensue",
        ),
    ],
)
def test_wrong_arguments_of_an_order_show_the_right_call(
    write: Callable[[], object], complaint: str
) -> None:
    with pytest.raises(BadInput, match=complaint):
        write()


def test_orders_can_be_copied_and_pickled() -> None:
    for order in (Total(time_to_live=2), Merged(epsilon=0.1, delta=0.2), Deadline(ms=3), Causal()):
        assert copy.copy(order) == pickle.loads(pickle.dumps(order)) == order
        assert len({order, copy.copy(order)}) == 1
    assert repr(Deadline(ms=3)) == "Deadline(ms=3, on_late='drop', held_max=65536)"
