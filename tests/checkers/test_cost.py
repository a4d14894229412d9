"""The work of the checkers is linear in the rows, counted in executed lines."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from tests.checkers.helpers import Script

from ensue.checkers import check
from ensue.core.trace import Row


def agreed(event_count: int) -> list[Row]:
    """All subscribers deliver all events in one order, while subscriptions change."""
    return long_trace(event_count, lambda subscriber, events: events)


def disordered(event_count: int) -> list[Row]:
    """One subscriber of four swaps every two neighbors."""

    def swap(subscriber: int, events: list[str]) -> list[str]:
        if subscriber:
            return events
        return [events[place ^ 1] for place in range(len(events))]

    return long_trace(event_count, swap)


def long_trace(event_count: int, order: Callable[[int, list[str]], list[str]]) -> list[Row]:
    script = Script().subscribe("p0", "x")
    for start in range(0, event_count, 20):
        for subscriber in range(4):
            script.subscribe(f"s{subscriber}", "x")
        events = [f"e{number}" for number in range(start, start + 20)]
        for number, event in enumerate(events):
            script.publish(f"p{number % 3}", event).deliver("p0", event)
        for subscriber in range(4):
            script.deliver(f"s{subscriber}", *order(subscriber, events)).leave(
                f"s{subscriber}", "x"
            )
    return script.rows


def many_runs(run_count: int) -> list[Row]:
    """Runs of one event each."""
    rows: list[Row] = []
    for number in range(run_count):
        script = Script(run=f"r{number}").subscribe("s", "x").publish("p", "e").deliver("s", "e")
        rows += script.rows
    return rows


def lines_run(rows: list[Row], order: str = "total") -> int:
    count = 0

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return step if "checkers" in frame.f_code.co_filename else None

    previous = sys.gettrace()
    sys.settrace(step)
    try:
        check(rows, order, causal=True, settle_ns=0)
    finally:
        sys.settrace(previous)
    return count


@pytest.mark.parametrize("make", [agreed, disordered])
def test_work_is_linear_in_rows(make: Callable[[int], list[Row]]) -> None:
    assert (check(make(400), causal=True).verdict == "valid") == (make is agreed)
    assert lines_run(make(800)) < 2.2 * lines_run(make(400))


def test_work_is_linear_in_runs() -> None:
    assert lines_run(many_runs(200), "deadline") < 2.2 * lines_run(many_runs(100), "deadline")
