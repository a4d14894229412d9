"""Which order the options of `pub` and `sub` mean."""

import pytest

import ensue
from ensue.cli.order_options import chosen_order


@pytest.mark.parametrize(
    ("late", "merged", "deadline"),
    [(None, "drop", "drop"), ("drop", "drop", "drop"), ("tag", "deliver", "tag")],
)
def test_what_is_late_is_said_in_one_way(late: str | None, merged: str, deadline: str) -> None:
    by_clocks = chosen_order("merged", epsilon=0.1, delta=1.0, ms=None, late=late)
    assert by_clocks == ensue.Merged(epsilon=0.1, delta=1.0, late=merged)
    timely = chosen_order(" Deadline ", epsilon=None, delta=None, ms=200, late=late)
    assert timely == ensue.Deadline(ms=200, on_late=deadline)
