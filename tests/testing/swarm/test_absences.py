"""What the judge does not owe to subscribers that were absent, and what it does."""

import pytest

from ensue.core.trace import Row
from ensue.testing.swarm.absences import (
    NOTICE_NS,
    with_early_ends,
    without_expired,
    without_final_ends,
    without_forgotten,
    without_unnoticed,
)
from ensue.testing.swarm.judge import judge


def receipts(*story: str) -> int:
    """Return how many receipts are left of a story; each part is a node, an action, an event."""
    rows: list[Row] = []
    pauses: dict[str, list[tuple[int, int]]] = {}
    closed_ns: dict[str, int] = {}
    at_ns = begun_ns = 0
    for part in story:
        node, action, *event = part.split()
        at_ns += NOTICE_NS if action == "waits" else 1
        if action == "pauses":
            begun_ns = at_ns
        elif action == "continues":
            pauses[node] = [(begun_ns, at_ns)]
        elif action == "closes":
            closed_ns[node] = at_ns
            continue
        row = Row(
            run="run",
            node=node,
            step=at_ns,
            at_ns=at_ns,
            true_ns=at_ns,
            action=action,
            event=event[0] if event else None,
        )
        rows.append(row)
    return sum(row.action == "published" for row in without_forgotten(rows, pauses, closed_ns))


SENT = ("publisher submitted e", "other node_delivered e", "publisher published e")
BACK = ("reader continues", "reader node_delivered f")


@pytest.mark.parametrize(
    ("story", "owed"),
    [
        (("reader pauses", *SENT, "other crashed", "reader continues"), 0),
        # The publisher, or the other one, still has it.
        (("reader pauses", *SENT, *BACK, "publisher submitted g"), 1),
        (("reader pauses", *SENT, *BACK, "other unsubscribed"), 1),
        # It continues, and gets nothing before the other one ends: servers may be away.
        (("reader pauses", *SENT, "reader continues", "other crashed"), 0),
        (("reader pauses", *SENT, "reader continues", "other crashed", *BACK[1:]), 0),
        # The publisher was closed meanwhile; its process is killed later.
        (
            (
                "reader pauses",
                *SENT,
                "other crashed",
                "publisher closes",
                *BACK,
                "publisher crashed",
            ),
            0,
        ),
        (("reader pauses", *SENT, "other crashed", *BACK, "publisher crashed"), 1),
        # They are not for so long.
        (("reader pauses", *SENT, "reader continues", "reader waits", "other crashed"), 1),
        # It was present.
        ((*SENT, "reader pauses", "other crashed", "reader continues"), 1),
        ((*SENT, "other crashed"), 1),
        # It has the event.
        (
            (
                "reader pauses",
                *SENT,
                "other crashed",
                "reader node_delivered e",
                "reader continues",
            ),
            1,
        ),
    ],
)
def test_event_is_owed_unless_it_ended_with_all_members_during_an_absence(
    story: tuple[str, ...], owed: int
) -> None:
    assert receipts(*story) == owed


def test_node_that_is_killed_while_paused_ends_when_the_pause_begins() -> None:
    story = ((1, "reader", "subscribed"), (5, "publisher", "published"), (9, "reader", "crashed"))
    rows = [
        Row(run="run", node=node, step=1, at_ns=at_ns, true_ns=at_ns, action=action)
        for at_ns, node, action in story
    ]

    def told(pauses: dict[str, list[tuple[int, int]]]) -> list[tuple[int | None, str]]:
        return [(row.true_ns, row.action) for row in with_early_ends(rows, pauses)]

    assert told({"reader": [(3, 9)]}) == [(1, "subscribed"), (3, "crashed"), (5, "published")]
    assert told({"reader": [(3, 8)]}) == [(at_ns, action) for at_ns, _, action in story]
    assert told({"publisher": [(3, 9)]}) == [(at_ns, action) for at_ns, _, action in story]


@pytest.mark.parametrize(
    ("absent", "node", "at_s", "is_judged"),
    [
        ("reader~1", "reader~1", 20, False),
        # A server that is suspended gives up no client.
        ("server-1", "reader~1", 20, True),
        # Another one was absent, or before, or long ago.
        ("reader~2", "reader~1", 20, True),
        ("reader~1", "reader~1", 5, True),
        ("reader~1", "reader~1", 120, True),
        # Servers never give up a durable subscription.
        ("audit", "audit", 20, True),
    ],
)
def test_missed_event_is_judged_unless_its_subscriber_was_given_up(
    absent: str, node: str, at_s: int, is_judged: bool
) -> None:
    second = 1_000_000_000
    row = Row(
        run="run",
        node="publisher",
        step=1,
        at_ns=at_s * second,
        true_ns=at_s * second,
        action="published",
        event="e",
    )
    problem = f"complete: {node} never delivered e, which publisher published on a"
    found = without_expired([problem], [row], {absent: [(10 * second, 80 * second)]})
    assert found == ([problem] if is_judged else [])


@pytest.mark.parametrize(
    ("problem", "is_judged"),
    [
        ("complete: reader~1 never delivered e, which p published on a", False),
        ("complete: durable log never delivered e, which p published on a", False),
        ("total: reader~1 delivered e before f, but reader~2 delivered f before e", False),
        ("causal: reader~1 delivered f (its 1st) before e, but p published e before f", False),
        (
            "complete: reader~1 never delivered g, which p published on a; delivered e, a later",
            True,
        ),
        ("total: reader~1 delivered e before g, but reader~2 delivered g before e", True),
        # It got each of them once, and one publisher's to a topic in their sequence.
        ("complete: reader~1 delivered e (its 3rd), but had delivered it before (its 2nd)", True),
        ("fifo: reader~1 delivered f (its 1st) before e (its 2nd)", True),
        ("renumbered: position 1 of log was e, and is f", True),
    ],
)
def test_events_before_a_loss_is_noticed_may_be_missing_or_in_another_order(
    problem: str, *, is_judged: bool
) -> None:
    """`e` and `f` were published after a log was lost and before clients noticed, `g` later."""
    found = without_unnoticed([problem], {"e", "f"}, {"e", "f", "g"})
    assert found == ([problem] if is_judged else [])


OVER_NS, SETTLE_NS = 90, 20


@pytest.mark.parametrize(
    ("story", "lost"),
    [
        # It leaves, or is killed, while faults strike: an event may take as long as they do.
        ((1, "subscribed", 60, "unsubscribed"), []),
        ((1, "subscribed", 60, "crashed"), []),
        # But not if a later one of the same publisher came.
        ((1, "subscribed", 50, "delivered 2", 60, "unsubscribed"), [1]),
        # It stays until readers stop.
        ((1, "subscribed", 95, "unsubscribed"), [1, 2]),
        ((1, "subscribed", 50, "delivered 1", 55, "delivered 2", 95, "unsubscribed"), []),
        # It leaves and returns, and gets no event that was published later.
        ((1, "subscribed", 15, "unsubscribed", 25, "subscribed", 95, "unsubscribed"), [2]),
    ],
)
@pytest.mark.parametrize("durable", [False, True])
def test_event_is_owed_to_subscribers_that_last_where_faults_strike_for_long(
    story: tuple[int | str, ...], lost: list[int], durable: bool
) -> None:
    sent = (10, "published 1", 30, "published 2", 75, "published 3")
    rows = [*written("publisher", sent), *written("reader", story)]
    if durable and any(row.action == "crashed" for row in rows):
        lost = [1, 2]  # Its next life has to get them.
    judged = without_final_ends(rows, OVER_NS, SETTLE_NS)
    problems = judge(judged, "total", settle_s=None, durable=["reader"] if durable else [])
    assert [int(each.split(",")[0][-1]) for each in problems] == lost


def written(node: str, story: tuple[int | str, ...]) -> list[Row]:
    """Return the rows of one node of a story: times, each with an action and an event."""
    rows = []
    for step, (at_ns, part) in enumerate(zip(story[::2], story[1::2], strict=True), 1):
        action, *numbers = str(part).split()
        number = int(numbers[0]) if numbers else None
        row = Row(
            run="run",
            node=node,
            step=step,
            at_ns=int(at_ns),
            true_ns=int(at_ns),
            action=action,
            subscription="reader" if node == "reader" and action != "crashed" else None,
            topic="a" if action != "crashed" else None,
            event=None if number is None else f"publisher/a/{number}",
            publisher=None if number is None else "publisher",
            publisher_seq=number,
            position=number if action == "delivered" else None,
        )
        rows.append(row)
    return rows
