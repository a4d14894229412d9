"""The order that the options of `pub` and `sub` choose."""

import pytest

import ensue
from ensue.cli.order_options import chosen_order


@pytest.mark.parametrize(
    ("late", "merged", "deadline"),
    [(None, "drop", "drop"), ("drop", "drop", "drop"), ("tag", "deliver", "tag")],
)
def test_late_option_is_the_same_for_all_orders(
    late: str | None, merged: str, deadline: str
) -> None:
    by_clocks = chosen_order("merged", {"--epsilon": 0.1, "--delta": 1.0, "--late": late})
    assert by_clocks == ensue.Merged(epsilon=0.1, delta=1.0, late=merged)
    by_deadline = chosen_order(" Deadline ", {"--ms": 200, "--late": late})
    assert by_deadline == ensue.Deadline(ms=200, on_late=deadline)
