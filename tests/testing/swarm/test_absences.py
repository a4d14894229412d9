"""Receipts that the judge of causal order leaves out, and those that it does not."""

import pytest

from ensue.core.trace import Row
from ensue.testing.swarm.absences import without_forgotten


def receipts(*story: str) -> int:
    """Return how many receipts are left of a story; each part is a node, an action, an event."""
    rows = []
    for at_ns, part in enumerate(story, 1):
        node, action, *event = part.split()
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
    return sum(row.action == "published" for row in without_forgotten(rows))


BEGIN = ("reader subscribed", "other subscribed", "publisher submitted e", "other node_delivered e")
RETURN = ("reader delivered f", "reader unsubscribed")


def test_event_that_left_with_all_members_is_not_owed_to_an_absent_one() -> None:
    assert receipts(*BEGIN, "publisher published e", "other crashed", *RETURN) == 0


@pytest.mark.parametrize(
    "since",
    [
        ("other crashed", "reader delivered f", "publisher submitted g"),  # The publisher has it.
        ("reader delivered f", "other unsubscribed"),  # The other one has it.
        ("reader delivered f", "other crashed"),  # It was present.
    ],
)
def test_event_is_owed_while_a_member_has_it(since: tuple[str, ...]) -> None:
    assert receipts(*BEGIN, "publisher published e", *since, *RETURN) == 1


def test_receipt_stays_if_all_subscribers_have_the_event() -> None:
    gets = ("reader node_delivered e",)
    assert receipts(*BEGIN, *gets, "publisher published e", "other crashed", *RETURN) == 1
