import math
from typing import Any

import pytest

from ensue.errors import BadInput
from ensue.order import Causal, Deadline, Merged, Total, parse


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
    with pytest.raises(BadInput, match="time_to_live is a number of seconds"):
        Total(time_to_live=value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 10**400])
def test_a_time_to_live_is_finite_and_above_zero(value: float) -> None:
    with pytest.raises(BadInput, match="time_to_live must be above 0 seconds"):
        Total(time_to_live=value)


@pytest.mark.parametrize("value", [1.5, "9", None, True])
def test_held_max_is_a_whole_number(value: Any) -> None:
    with pytest.raises(BadInput, match="held_max is a whole number"):
        Total(held_max=value)


def test_only_text_names_an_order() -> None:
    with pytest.raises(BadInput, match="named by a str, not NoneType"):
        parse(None)  # type: ignore[arg-type]
