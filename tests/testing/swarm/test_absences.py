"""Receipts that the judge of causal order leaves out, and those that it does not."""

import pytest

from ensue.core.trace import Row
from ensue.testing.swarm.absences import with_early_ends, without_expired, without_forgotten


def receipts(*story: str) -> int:
    """Return how many receipts are left of a story; each part is a node, an action, an event."""
    rows, pauses = [], {}
    for at_ns, part in enumerate(story, 1):
        node, action, *event = part.split()
        if action == "pauses":
            begun_ns = at_ns
        elif action == "continues":
            pauses[node] = [(begun_ns, at_ns)]
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
    return sum(row.action == "published" for row in without_forgotten(rows, pauses))


SENT = ("publisher submitted e", "other node_delivered e", "publisher published e")


@pytest.mark.parametrize(
    ("story", "owed"),
    [
        (("reader pauses", *SENT, "other crashed", "reader continues"), 0),
        # The publisher, or the other one, still has it.
        (("reader pauses", *SENT, "reader continues", "publisher submitted g"), 1),
        (("reader pauses", *SENT, "reader continues", "other unsubscribed"), 1),
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
def test_event_is_owed_unless_it_ended_with_all_members_during_a_pause(
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
        ("server-1", "reader~1", 20, False),
        # Another one was absent, or before, or long ago.
        ("reader~2", "reader~1", 20, True),
        ("reader~1", "reader~1", 5, True),
        ("reader~1", "reader~1", 120, True),
        # Servers never give up a durable subscription.
        ("server-1", "audit", 20, True),
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
