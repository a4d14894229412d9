"""What the judge says of the lives of a durable subscription."""

import pytest

from ensue.core.trace import Row
from ensue.testing.swarm.judge import judge


def problems(*story: str) -> list[str]:
    """Return what is wrong with a story: `LIFE ACTION TOPIC [POSITION EVENT]` or `LIFE closes`."""
    rows: list[Row] = []
    for at_ns, part in enumerate(story, 1):
        life, action, *rest = part.split()
        topic, position, event = (*rest, *("a", "", "")[len(rest) :])
        row = Row(
            run="run",
            node=f"reader~{life}",
            step=at_ns,
            at_ns=at_ns,
            true_ns=at_ns,
            action=action,
            topic=topic,
            subscription="reader",
            order="total",
            verdict="",
            position=int(position) if position else None,
            event=event or None,
            publisher="p" if event else None,
            publisher_seq=int(event[1:]) if event else None,
        )
        rows.append(row)
    found = judge(rows, "total", settle_s=None, durable=["reader"])
    return [each for each in found if each.startswith(("renumbered", "acknowledged"))]


HANDED = ("1 subscribed a", "1 subscribed b", "1 delivered a 1 e1", "1 crashed")


@pytest.mark.parametrize(
    ("story", "is_renumbered"),
    [
        (("2 delivered a 1 e1",), False),
        (("2 delivered b 1 f1",), True),
        # It leaves the topic before the event comes again, or another topic, or too late.
        (("2 unsubscribed a", "2 delivered b 1 f1"), False),
        (("2 unsubscribed b", "2 delivered a 1 e2"), True),
        (("2 delivered a 1 e1", "2 unsubscribed a", "2 delivered b 1 f1"), True),
        # Acknowledged events keep their positions.
        (("2 acknowledged a 1", "2 unsubscribed a", "2 delivered b 2 f1"), False),
    ],
)
def test_positions_are_kept_unless_a_later_life_leaves_the_topic(
    story: tuple[str, ...], *, is_renumbered: bool
) -> None:
    """Only an event that did not come again before its topic was left loses its position."""
    found = problems(*HANDED, *story)
    assert any(each.startswith("renumbered") for each in found) == is_renumbered, found
