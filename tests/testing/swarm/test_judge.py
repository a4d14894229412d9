"""What the judge says of the lives of a durable subscription."""

import pytest

from ensue.core.trace import Row
from ensue.testing.swarm import absences
from ensue.testing.swarm.judge import STAY_NS, judge, judge_final


def problems(*story: str, order: str = "total") -> list[str]:
    """Return what is wrong with the lives of a story."""
    kinds = ("renumbered", "acknowledged", "reordered", "positions")
    return [each for each in judged(*story, order=order) if each.startswith(kinds)]


def judged(*story: str, order: str) -> list[str]:
    """Judge a story: `LIFE ACTION TOPIC [POSITION EVENT]` or `LIFE closes`."""
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
            subscription="other" if life == "other" else "reader",
            order=order,
            verdict="unread" if action == "discarded" else "",
            position=int(position) if position else None,
            event=event or None,
            publisher="p" if event else None,
            publisher_seq=int(event[1:]) if event else None,
        )
        rows.append(row)
    return judge(rows, order, settle_s=None, durable=["reader"])


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


READ = ("1 delivered b 2 f1", "1 delivered a 3 e2", "1 crashed")


@pytest.mark.parametrize(
    ("story", "problem"),
    [
        # Nobody else has both topics: events that come again may be in another order, and others
        # may come between them.
        (("2 delivered b 1 f1", "2 delivered a 2 e1", "2 delivered a 3 e2"), ""),
        (("2 delivered b 1 f1", "2 delivered b 2 f2", "2 delivered a 3 e1"), ""),
        (("2 delivered a 1 e1", "2 acknowledged a 1", "2 crashed", "3 delivered b 2 f1"), ""),
        # Within a topic the order stays, nothing acknowledged comes again, and positions count.
        (("2 delivered a 1 e2", "2 delivered a 2 e1"), "reordered"),
        (("2 delivered b 1 f1", "2 acknowledged a 1", "2 delivered b 2 f1"), "acknowledged"),
        (("2 acknowledged a 1", "2 crashed", "3 delivered b 1 f1"), "acknowledged"),
        (("2 delivered b 1 f1", "2 delivered a 3 e1"), "reordered"),
        (("2 delivered b 1 f1", "2 unsubscribed a", "2 delivered b 3 f2"), ""),
        (("2 discarded a 2 e2", "2 delivered b 1 f1", "2 delivered b 3 f2"), ""),
    ],
)
def test_without_causal_order_positions_go_to_other_events(
    story: tuple[str, ...], problem: str
) -> None:
    """What a reader had and did not acknowledge keeps its order within each topic."""
    found = problems(*HANDED[:-1], *READ, *story, order="total-noncausal")
    assert [each.split(":")[0] for each in found] == [problem][: bool(problem)], found


PUBLISHED = tuple(
    f"p {action} {event}" for event in ("a 0 e1", "b 0 f1") for action in ("submitted", "published")
)
AGAIN = ("1 delivered a 1 e1", "1 delivered b 2 f1", "2 delivered b 1 f1", "2 delivered a 2 e1")


@pytest.mark.parametrize(
    ("story", "is_reordered"),
    [
        (("other subscribed a", "other subscribed b", *PUBLISHED), True),
        (("other subscribed a", *PUBLISHED), False),
        # Topics that it left count, until it ends.
        (("other subscribed a", "other subscribed b", "other unsubscribed b", *PUBLISHED), True),
        (("other subscribed b", "other unsubscribed b", "other subscribed a", *PUBLISHED), False),
        (("other subscribed a", "other subscribed b", "other crashed", *PUBLISHED), False),
        (
            (
                "other subscribed a",
                "other subscribed b",
                *PUBLISHED[:3],
                "other crashed",
                PUBLISHED[3],
            ),
            False,
        ),
        # It came too late.
        (("other subscribed a", *PUBLISHED[:2], "other subscribed b", *PUBLISHED[2:]), False),
    ],
)
def test_topics_that_another_subscription_shares_keep_their_order(
    story: tuple[str, ...], *, is_reordered: bool
) -> None:
    """Without causal order: what comes again has the order that it had."""
    found = problems("1 subscribed a", "1 subscribed b", *story, *AGAIN, order="total-noncausal")
    assert [each.split(":")[0] for each in found] == ["reordered"][:is_reordered], found


def test_a_new_event_at_a_position_of_another_is_a_delivery() -> None:
    """The checkers see it: they report that no client published it."""
    story = (*HANDED[:-1], *READ, "2 delivered b 1 f1", "2 delivered b 2 f2")
    assert any("delivered f2 " in each for each in judged(*story, order="total-noncausal"))


MISHAP_NS, SETTLE_S = 100_000_000_000, 20.0
SECOND_NS = 1_000_000_000


def missed(
    *story: str, lost: bool = False, refused: bool = False, durable: bool = False
) -> set[str]:
    """Return which events are missed in a story: `SECOND ACTION TOPIC [EVENT]`.

    A reader subscribes and gets events, and `p` publishes them; after 100 s a server loses its log,
    or refuses it. It has the topic `a`; another server has `b`.
    """
    rows: list[Row] = []
    for step, part in enumerate(story, 1):
        second, action, topic, *event = part.split()
        number = int(event[0][1:]) if event else None
        is_sent = action == "published"
        rows.append(
            Row(
                run="run",
                node="p" if is_sent else "reader~1",
                step=step,
                at_ns=int(second) * SECOND_NS,
                true_ns=int(second) * SECOND_NS,
                action=action,
                topic=topic,
                subscription=None if is_sent else "reader",
                verdict="",
                position=step if action == "delivered" else None,
                event=event[0] if event else None,
                publisher="p" if event else None,
                publisher_seq=number,
            )
        )
    found = judge(
        rows,
        "total",
        settle_s=SETTLE_S,
        durable=["reader"] if durable else [],
        lost_ns=MISHAP_NS if lost else None,
        lost_topics=("a",),
        refused_ns=MISHAP_NS if refused else None,
    )
    return {name for each in found if (name := absences.missed(each)[1])}


BOTH = ("1 subscribed a", "1 subscribed b")
ALL_SENT = ("50 published a e1", "50 published b f1", "110 published a e2", "110 published b f2")


@pytest.mark.parametrize("end", [(), ("300 unsubscribed a", "300 unsubscribed b")])
def test_lost_log_forgives_only_earlier_receipts_of_its_topics(end: tuple[str, ...]) -> None:
    assert missed(*BOTH, *ALL_SENT, *end) == {"e1", "f1", "e2", "f2"}
    assert missed(*BOTH, *ALL_SENT, *end, lost=True) == {"f1", "e2", "f2"}


@pytest.mark.parametrize("end", [(), ("300 unsubscribed a", "300 unsubscribed b")])
def test_refused_log_forgives_only_what_waits_for_it(end: tuple[str, ...]) -> None:
    # Its server had sent the first events long before.
    assert missed(*BOTH, *ALL_SENT, *end, refused=True) == {"e1", "f1"}
    # Another server's topic alone waits for nothing, unless a server has the subscription's state.
    alone = ("1 subscribed b", *ALL_SENT, *end[1:])
    assert missed(*alone, refused=True) == {"f1", "f2"}
    assert missed(*alone, refused=True, durable=True) == {"f1"}
    # One to several topics may wait for an event of another one, and that for the server.
    assert missed("1 subscribed c", *alone, refused=True) == {"f1"}


@pytest.mark.parametrize("durable", [False, True])
def test_refused_log_forgives_no_gap(*, durable: bool) -> None:
    """A later event of the same publisher and topic came."""
    sent = ("95 published a e1", "96 published a e2", "97 published a e3")
    story = (*BOTH, *sent, "120 delivered a e2")
    assert missed(*story, refused=True, durable=durable) == {"e1"}
    assert missed(*story, "130 unsubscribed a", refused=True, durable=durable) == {"e1"}


DONE = ("1 subscribed a", "1 delivered a 1 e1", "1 delivered a 2 e2", "1 acknowledged a 2")


def test_what_was_acknowledged_is_judged_by_the_rule_of_the_checkers() -> None:
    (problem,) = problems(*DONE, "2 subscribed a", "2 delivered a 2 e2")
    assert problem == (
        "positions: reader~2 delivered e2 to reader at position 2 again (first at reader~1), "
        "though reader~1 had acknowledged everything up to position 2"
    )
    assert problems(*DONE, "2 subscribed a", "2 delivered a 3 e3") == []


def test_superseded_life_gets_nothing_that_was_acknowledged() -> None:
    """A checker cannot know whether it had been told yet; in the swarm no reader goes on."""
    taken = ("1 subscribed a", "1 delivered a 1 e1", "2 subscribed a", "2 delivered a 1 e1")
    (problem,) = problems(*taken, "2 acknowledged a 1", "1 delivered a 1 e1")
    assert problem.startswith("acknowledged: reader got e1 at position 1 at reader~1")


def test_acknowledged_positions_have_no_other_events() -> None:
    """The checkers take that for a server that lost all it knew; the swarm would know of it."""
    found = problems(*DONE, "2 subscribed a", "2 delivered a 1 e3")
    assert [each.split(":")[0] for each in found] == ["acknowledged", "renumbered"]


@pytest.mark.parametrize(
    ("leaves_ns", "gets", "owed"),
    [(0, False, True), (20, False, False), (2 * STAY_NS, False, True), (20, True, False)],
)
def test_last_events_are_owed_to_subscribers_that_stay(
    leaves_ns: int, gets: bool, owed: bool
) -> None:
    story = [(1, "reader", "subscribed", ""), (15, "publisher", "published", "publisher/a/1")]
    if gets:
        story.append((17, "reader", "delivered", "publisher/a/1"))
    if leaves_ns:
        story.append((leaves_ns, "reader", "unsubscribed", ""))
    rows = [
        Row(
            run="run",
            node=node,
            step=0,
            at_ns=at_ns,
            true_ns=at_ns,
            action=action,
            topic="a",
            subscription="its" if node == "reader" else None,
            event=event or None,
            publisher="publisher" if event else None,
        )
        for at_ns, node, action, event in story
    ]
    assert bool(judge_final(rows, 10, ["publisher"])) == owed
