"""What the judge of merged order takes for a reason that an event is missing, and what it does not.

Here a reader subscribes, a publisher publishes two events at 10 and 20 ns with receipts, and the
reader gets the second. What happens to the first differs.
"""

import msgspec
import pytest

from ensue.core.trace import Row
from ensue.testing.faults import Faults
from ensue.testing.swarm.judge import judge
from ensue.testing.swarm.losses import without_explained
from ensue.testing.swarm.topic_draw import Draw, draw_topics

QUIET = Faults()
STEPS, KILLS = Faults(clock_steps=1.0), Faults(clock_steps=1.0, server_kills=1.0)
BETWEEN_NS = 15
"""A time between the two events."""


def drawn_with(faults: Faults, *, mishap: str = "", network: str = "") -> Draw:
    """Return a program in merged order."""
    drawn = draw_topics(2, "merged")
    return msgspec.structs.replace(drawn, faults=faults, mishap=mishap, network=network)


def missing(drawn: Draw, *reasons: str, lost: int = 1, final_ns: int = BETWEEN_NS) -> list[str]:
    """Return what is wrong if the reader does not get an event, and has rows with such reasons."""
    rows: list[Row] = []

    def add(at_ns: int, node: str, action: str, number: int = 0, verdict: str = "") -> None:
        of_publisher = {"event": f"e{number}", "publisher": "p", "publisher_seq": number}
        row = Row(
            run="run",
            node=node,
            step=len(rows) + 1,
            at_ns=at_ns,
            true_ns=at_ns,
            action=action,
            topic="a",
            subscription="own" if node == "reader" else None,
            verdict=verdict,
            order="merged",
        )
        rows.append(msgspec.structs.replace(row, **of_publisher) if number else row)

    add(1, "reader", "subscribed")
    for number in (1, 2):
        add(number * 10, "p", "submitted", number)
        add(number * 10 + 1, "p", "published", number)
        if number != lost:
            add(number * 10 + 2, "reader", "delivered", number)
        else:
            for reason in reasons:
                add(number * 10 + 2, "reader", "discarded", number, reason)
    found = without_explained(rows, drawn, final_ns)
    return judge(found, "merged", settle_s=1.0)


@pytest.mark.parametrize(
    "drawn",
    [drawn_with(QUIET), drawn_with(STEPS), drawn_with(QUIET, network="low bandwidth")],
    ids=["quiet", "clock steps", "low bandwidth"],
)
def test_an_event_that_vanishes_is_missing_while_all_clients_are_connected(drawn: Draw) -> None:
    (problem,) = missing(drawn)
    assert problem.startswith("complete: reader never delivered e1")


@pytest.mark.parametrize("reason", ["overflow", "unread"])
def test_an_event_without_room_or_unread_has_a_reason(reason: str) -> None:
    assert missing(drawn_with(QUIET), reason) == []


@pytest.mark.parametrize("reason", ["late", "skewed"])
def test_an_event_is_late_or_skewed_by_a_fault_or_an_unusual_network_alone(reason: str) -> None:
    assert missing(drawn_with(STEPS), reason) == []
    assert missing(drawn_with(QUIET, network="low bandwidth"), reason) == []
    assert missing(drawn_with(QUIET), reason)


@pytest.mark.parametrize("reason", ["duplicate", "corrupt", "mismatched", "not_subscribed"])
def test_no_other_verdict_is_a_reason(reason: str) -> None:
    assert missing(drawn_with(KILLS), reason, lost=2)


@pytest.mark.parametrize(
    "drawn",
    [drawn_with(KILLS), drawn_with(QUIET, mishap="full")],
    ids=["kills", "full disk"],
)
def test_a_fault_that_cuts_clients_off_explains_what_was_lost_before_all_were_back(
    drawn: Draw,
) -> None:
    assert missing(drawn, lost=1) == []
    (problem,) = missing(drawn, lost=2)
    assert problem.startswith("complete: reader never delivered e2")
