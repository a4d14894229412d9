"""What the judge of moves owes a subscription that an aborted transaction had withdrawn."""

import pytest

from ensue.core.trace import Row
from ensue.testing.swarm.moves import judge_moves

SECOND_NS = 1_000_000_000
CALM_S = 500
OLD, NEW = "old~1.content.sub1", "new~1.content.sub2"


def row(node: str, at_s: float, action: str, **columns: object) -> Row:
    at_ns = int(at_s * SECOND_NS)
    found = {"run": "run", "step": at_ns, "at_ns": at_ns, "true_ns": at_ns, **columns}
    return Row(node=node, action=action, **found)  # type: ignore[arg-type]


def published(at_s: float, number: int, publisher: str = "p~1") -> Row:
    columns = event_of(number, publisher)
    return row(publisher, at_s, "published", topic="x = 1", **columns)


def delivered(at_s: float, number: int, to: str = OLD, publisher: str = "p~1") -> Row:
    columns = event_of(number, publisher)
    return row(to.partition(".")[0], at_s, "delivered", subscription=to, **columns)


def event_of(number: int, publisher: str) -> dict[str, object]:
    session = f"{publisher}.content"
    return {"event": f"{session}/{number}", "publisher": session, "publisher_seq": number}


def withdrawn(
    name: str, began_s: float, at_s: float, ended_s: float, end: str, isolation: str = "atomic"
) -> list[Row]:
    """Return the rows of a transaction that withdraws the old subscription for the new one."""
    return [
        row("server", began_s, "began", topic=isolation, transaction=name),
        row(
            "server",
            began_s,
            "subscribed",
            transaction=name,
            topic="x exists",
            event=f"{name}#1",
            subscription=NEW if end == "committed" else "other~1.content.sub3",
        ),
        row(
            "server", at_s, "unsubscribed", transaction=name, event=f"{name}#2.1", subscription=OLD
        ),
        row("server", ended_s, end, transaction=name),
    ]


def problems(*rows: Row, isolation: str = "atomic") -> list[str]:
    """Judge a subscription that was withdrawn from 100 s to 101 s, and moved at 200 s."""
    story = [
        row("old~1", 0, "subscribed", subscription=OLD, topic="x exists"),
        *withdrawn("t1", 50, 100, 101, "aborted", isolation),
        *withdrawn("t2", 199, 199.5, 200, "committed"),
        *rows,
    ]
    confirmed = {
        ((each.publisher or "").removesuffix(".content"), each.publisher_seq or 0): None
        for each in story
        if each.action == "published"
    }
    return judge_moves(story, confirmed, CALM_S * SECOND_NS, {})


def test_event_that_arrives_while_the_subscription_was_withdrawn_is_not_owed() -> None:
    """However long it was on the way: faults hold events up."""
    assert problems(published(20, 1), delivered(21, 1), published(60, 2)) == []
    assert problems(published(60, 1), published(100.5, 2)) == []


@pytest.mark.parametrize(
    "passed",
    [
        delivered(99, 2),
        # Any subscription of the client shows that the publisher's events had passed its broker.
        delivered(99, 2, to="old~1.content.sub9"),
    ],
)
def test_event_before_one_that_came_before_the_withdrawal_is_owed(passed: Row) -> None:
    """Also if it was published shortly before: nothing was on the way any more."""
    (problem,) = problems(published(98, 1), published(98.5, 2), passed, delivered(99.5, 2))
    assert problem == f"moved: p~1.content/1 reached none of {OLD} > {NEW}"


@pytest.mark.parametrize(
    "other",
    [
        # It came after the withdrawal, to another client, or from another publisher.
        delivered(102, 2),
        delivered(99, 2, to="third~1.content.sub1"),
        delivered(99, 2, publisher="q~1"),
    ],
)
def test_event_is_not_shown_to_have_passed_by_another(other: Row) -> None:
    assert problems(published(98, 1), other) == []


def test_event_is_owed_after_the_abort_was_undone() -> None:
    assert problems(published(150, 1)) == [f"moved: p~1.content/1 reached none of {OLD} > {NEW}"]


def test_aborted_serializable_transaction_costs_nothing() -> None:
    assert problems(published(99.9, 1), isolation="serializable") == [
        f"moved: p~1.content/1 reached none of {OLD} > {NEW}"
    ]
