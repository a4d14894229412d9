"""Receipts that the judge of causal order leaves out, and those that it does not."""

import pytest

from ensue.core.trace import Row
from ensue.testing.swarm.absences import without_forgotten


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
