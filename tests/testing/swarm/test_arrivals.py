"""Arrivals that the judge of deadline order leaves out, and those that it does not."""

import asyncio

import pytest

from ensue.core.trace import Row
from ensue.testing import Simulation, simulate
from ensue.testing.swarm.arrivals import without_gaps, without_unread

READ, OTHER = "reading", "other"


class Story:
    """The rows of one node, one per nanosecond."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(
        self,
        action: str,
        event: str | None = None,
        *,
        by: int | None = None,
        to: str = READ,
        why: str = "",
    ) -> "Story":
        step = len(self.rows) + 1
        row = Row(
            run="run",
            node="reader",
            step=step,
            at_ns=step,
            action=action,
            event=event,
            subscription=to,
            verdict=why,
            deadline_ns=by,
        )
        self.rows.append(row)
        return self

    def judged(self) -> list[str | None]:
        """Return the events whose arrivals are left, for a subscription each."""
        return [row.event for row in without_unread(self.rows) if row.action == "received"]


def test_event_queued_behind_one_that_was_read_last_is_unread() -> None:
    # The reader was slow: it came to `first` after the deadline of `second`, and never to that.
    story = Story().add("received", "first", by=90).add("received", "second", by=4)
    story.add("sent").add("sent").add("delivered", "first", by=90).add("crashed")
    assert story.judged() == ["first"]


def test_event_before_one_that_came_after_its_deadline_and_was_read_is_judged() -> None:
    story = Story().add("received", "first", by=2).add("sent")
    story.add("received", "second", by=90).add("delivered", "second", by=90).add("crashed")
    assert story.judged() == ["first", "second"]


def test_event_that_the_node_dropped_is_judged_and_is_no_sign_of_a_reader() -> None:
    story = Story().add("received", "first", by=2).add("sent").add("received", "second", by=5)
    story.add("sent").add("sent").add("discarded", "second", by=5, why="late").add("crashed")
    assert story.judged() == ["second"]


def test_another_subscription_of_the_bus_has_a_queue_of_its_own() -> None:
    story = Story().add("received", "first", by=2).add("received", "first", by=2, to=OTHER)
    story.add("delivered", "first", by=2, to=OTHER).add("received", "second", by=90, to=OTHER)
    story.add("delivered", "second", by=90, to=OTHER).add("crashed")
    left = [row for row in without_unread(story.rows) if row.action == "received"]
    assert {row.subscription for row in left} == {OTHER}


def test_every_arrival_at_a_reader_that_was_not_killed_is_judged() -> None:
    assert Story().add("received", "first", by=2).add("unsubscribed").judged() == ["first"]


def test_deadline_within_a_gap_is_left_out_and_one_beside_it_is_not() -> None:
    story = Story()
    for event, by in (("before", 9), ("within", 15), ("after", 21)):
        story.add("received", event, by=by)
    left = without_gaps(story.rows, {"reader": [(10, 20)], "another": [(0, 90)]})
    assert [row.event for row in left] == ["before", "after"]


def test_world_notes_pauses_and_steps_forward_of_a_bus_and_no_step_back() -> None:
    async def work() -> None:
        await asyncio.sleep(60)

    async def main(simulation: Simulation) -> list[tuple[int, int]]:
        reader = simulation.start("reader", work)
        reader.machine.nodes["bus"] = None
        await asyncio.sleep(1)
        reader.pause()
        await asyncio.sleep(2)
        reader.resume()
        reader.machine.step_clock(-300_000_000)
        reader.machine.correct_clock()
        await reader
        return simulation.world.gaps["bus"]

    gaps = simulate(main).result
    lengths = [after_ns - before_ns for before_ns, after_ns in gaps]
    # After a step, timers are as late as the step is long.
    assert lengths == pytest.approx([2_000_000_000, 600_000_000], rel=0.001)
