"""Gaps of subscriptions that the judge accepts, and those that it does not."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from ensue.client.topic_changes import Missed
from ensue.core.trace import Row
from ensue.testing.swarm.gap_reports import GapReports


def row(slot: int, topic: str = "a", *, to: str = "reader", void: bool = False) -> Row:
    return Row(
        run="run",
        node="node",
        step=1,
        at_ns=0,
        action="discarded" if void else "delivered",
        verdict="void" if void else "",
        topic=topic,
        subscription=to,
        stamp={topic: slot, "other": 9},
    )


@pytest.mark.parametrize(
    ("rows", "whole", "found"),
    [
        ([row(1), row(2), row(3)], True, 0),
        ([row(3), row(1, "b"), row(4), row(2, "b")], False, 0),
        ([row(3), row(5)], False, 1),
        # A void is discarded when it arrives, before the application reads.
        ([row(4, void=True), row(3), row(5)], False, 0),
        ([row(4, void=True), row(3), row(6)], False, 1),
        ([row(3), row(5, to="another")], False, 0),
        # After a crash events come again.
        ([row(3), row(4), row(3), row(4), row(5)], False, 0),
        ([row(3), row(4), row(3), row(5)], False, 1),
        # The log drops nothing, and the subscription began with its first event.
        ([row(2)], True, 1),
        ([row(1, void=True), row(2)], True, 0),
    ],
)
def test_slot_is_skipped_if_it_is_void(rows: list[Row], *, whole: bool, found: int) -> None:
    assert len(GapReports().judge(rows, ["reader"] if whole else [])) == found


@pytest.mark.parametrize(
    ("missed", "found"),
    [
        ([Missed("a", 4, 6)], 0),
        ([Missed("a", 4, 4), Missed("a", 5, 6)], 0),
        ([Missed("a", 4, 5)], 1),
        ([Missed("b", 4, 6)], 1),
    ],
)
def test_slot_is_skipped_if_it_is_reported(missed: list[Missed], found: int) -> None:
    gaps = GapReports()
    gaps.note(cast("Any", SimpleNamespace(name="reader", missed=tuple(missed))))
    problems = gaps.judge([row(3), row(7)])
    assert len(problems) == found
    assert all("after slot 3, and did not report [" in each for each in problems)
    assert len(gaps.judge([row(3, to="another"), row(7, to="another")])) == 1


@pytest.mark.parametrize(
    ("subscriber", "slot", "topic", "is_judged"),
    [
        ("node", 4, "a", False),
        ("node/reader", 4, "a", False),
        ("durable reader", 6, "a", False),
        # It did not report this slot, or this topic; or another subscription did.
        ("node", 7, "a", True),
        ("node", 4, "b", True),
        ("other", 4, "a", True),
        ("node/another", 4, "a", True),
        ("durable another", 4, "a", True),
    ],
)
def test_missed_event_is_judged_unless_its_subscription_reported_it(
    subscriber: str, slot: int, topic: str, *, is_judged: bool
) -> None:
    gaps = GapReports()
    gaps.note(cast("Any", SimpleNamespace(name="reader", missed=(Missed("a", 4, 6),))))
    sent = msgspec.structs.replace(row(slot, topic), action="published", event="e")
    others = (row(3), msgspec.structs.replace(row(3, to="another"), node="other"))
    rows = [msgspec.structs.replace(sent, node="p", subscription=None), *others]
    problem = f"complete: {subscriber} never delivered e, which p published on {topic}"
    duplicate = f"complete: {subscriber} delivered e (its 2nd), but had delivered it before"
    found = gaps.without_reported([problem, duplicate], rows)
    assert found == ([problem, duplicate] if is_judged else [duplicate])
