"""Nodes that crash, hang, restart or are cut off; limits; order across topics."""

from typing import Any

import msgspec
import pytest
from tests.protocols.causal.harness import CALM, CODEC, MS, SECOND, Table

from ensue.core.errors import ConfigurationError, LimitReached, RemoteProtocolError
from ensue.core.event import Event
from ensue.protocols.causal.causality import Causality, TopicState
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.frames import (
    JOINS_MAX,
    Change,
    Counts,
    Fill,
    Heartbeat,
    NotCached,
    Publication,
    Receipt,
    Row,
    Rows,
    Summary,
)
from ensue.protocols.causal.node import CausalNode
from ensue.protocols.interface import (
    Deliver,
    Discard,
    Frame,
    Join,
    Leave,
    Persist,
    Publish,
    Refuse,
    Settle,
)

LIVE = CausalConfig(across_topics=False, patience_ns=5 * SECOND)
"""Everything happens by itself."""
ACROSS = msgspec.structs.replace(LIVE, across_topics=True)


def replace(config: CausalConfig, **fields: object) -> CausalConfig:
    return msgspec.structs.replace(config, **fields)


def live(count: int, *members: int, config: CausalConfig = LIVE) -> Table:
    table = Table(count, config)
    for number in members:
        table.subscribe(number)
    table.wait(10 * MS)
    table.sent.clear()
    return table


# -- Trees around the suspected ------------------------------------------------------------------


def test_silent_forwarder_is_bypassed_and_all_others_are_reached() -> None:
    table = live(8, *range(8))
    table.crash(4)
    table.publish(0, "m")
    table.wait(2 * SECOND)
    for number in (0, 1, 2, 3, 5, 6, 7):
        assert table.delivered[number] == ["m"], number
    assert table.settled(0) == ["m"]
    assert (0, 5) in table.copies(), "the next of the cluster takes over"


def test_next_tree_bypasses_suspected_nodes_at_once() -> None:
    table = live(8, *range(8))
    table.crash(4)
    table.publish(0, "m")
    table.wait(2 * SECOND)
    table.sent.clear()
    table.publish(0, "n")
    table.run()
    assert table.settled(0) == ["m", "n"], "without waiting"
    assert 4 not in {target for _, target in table.copies()}


def test_two_silent_forwarders_in_one_branch_are_bypassed() -> None:
    table = live(8, *range(8))
    table.crash(4)
    table.crash(5)
    table.publish(0, "m")
    table.wait(4 * SECOND)
    assert [number for number in table.nodes if table.delivered[number] == ["m"]] == [
        0, 1, 2, 3, 6, 7,
    ]  # fmt: skip


def test_false_suspicion_costs_only_messages() -> None:
    table = live(4, *range(4))
    table.isolate(2)
    table.publish(0, "m")
    table.publish(2, "k")
    table.wait(3 * SECOND)
    assert table.delivered[2] == ["k"]
    table.heal()
    table.wait(6 * SECOND)
    assert sorted(table.delivered[2]) == ["k", "m"]
    for number in (0, 1, 3):
        assert sorted(table.delivered[number]) == ["k", "m"], number
    assert table.settled(2) == ["k"], "it continued until a member had it"


def test_lost_copy_is_retransmitted_and_delivered_once() -> None:
    table = live(2, 0, 1)
    table.cut = {(1, 0)}
    table.publish(0, "m")
    table.wait(500 * MS)
    assert table.settled(0) == []
    assert len(table.copies()) >= 2
    table.heal()
    table.wait(SECOND)
    assert table.settled(0) == ["m"]
    assert table.delivered[1] == ["m"]


def test_forwarder_answers_a_retransmission_with_its_partial_receipt() -> None:
    table = live(8, *range(8), config=replace(LIVE, suspect_ns=10 * SECOND))
    table.crash(6)  # A grandchild: 4 waits for it, and 0 for 4.
    table.publish(0, "m")
    table.wait(3 * SECOND)
    node = table.nodes[0]
    assert not node._detector.suspected, "4 answers, although 6 does not"
    assert table.settled(0) == []


# -- Gaps ----------------------------------------------------------------------------------------


def test_a_gap_in_the_numbers_is_filled_by_the_source() -> None:
    config = replace(CALM, across_topics=False, gap_ns=50 * MS)
    table = live(2, 0, 1, config=config)
    table.cut = {(0, 1)}
    table.publish(0, "lost")
    table.heal()
    table.publish(0, "m")
    table.run()
    assert table.delivered[1] == []
    assert table.nodes[1].held_count == 1
    table.wait(SECOND)
    assert table.delivered[1] == ["lost", "m"]


def test_gap_is_filled_by_a_member_if_the_source_crashed() -> None:
    config = replace(LIVE, digest_ns=3600 * SECOND, digest_ns_max=3600 * SECOND)
    table = live(4, 0, 1, 2, config=config)
    table.cut = {(0, 2)}
    table.publish(0, "question")
    table.run()
    table.crash(0)
    table.publish(1, "answer")
    table.run()
    assert table.delivered[2] == []
    table.wait(5 * SECOND)
    assert table.delivered[2] == ["question", "answer"]


def test_last_event_is_found_by_comparing_summaries() -> None:
    """The source has crashed, no event depends on its last one, and one member has that."""
    table = live(8, 1, 2, 6)
    table.cut = {(0, 1), (0, 2)}
    table.publish(0, "m")
    table.run()
    assert table.delivered[6] == ["m"]
    table.crash(0)
    table.wait(10 * SECOND)
    assert [table.delivered[number] for number in (1, 2, 6)] == [["m"]] * 3


def test_departed_member_still_sends_events_that_only_it_has() -> None:
    table = live(4, 1, 2)
    table.cut = {(0, 1)}
    table.publish(0, "m")
    table.run()
    table.crash(0)
    table.unsubscribe(2)
    table.run()
    assert (table.delivered[1], table.delivered[2]) == ([], ["m"])
    table.wait(10 * SECOND)
    assert table.delivered[1] == ["m"]


@pytest.mark.parametrize("restarts", [False, True])
def test_departed_member_also_sends_events_that_it_did_not_deliver(*, restarts: bool) -> None:
    """A paused node holds them back; their source has its receipt."""
    table = live(4, 1, 2)
    table.isolate(1)
    table.nodes[2].pause()
    for text in ("m", "n"):
        table.publish(0, text)
        table.wait(2 * SECOND)
    assert table.settled(0) == ["m", "n"]
    table.crash(0)
    table.unsubscribe(2)
    table.run()
    if restarts:
        table.crash(2)
        table.start(2)
    table.heal()
    table.wait(10 * SECOND)
    assert (table.delivered[1], table.delivered[2]) == (["m", "n"], [])


def test_departed_member_stops_sending_eventually() -> None:
    table = live(2, 0, 1)
    table.publish(0, "m")
    table.unsubscribe(1)
    table.wait(60 * SECOND)
    table.sent.clear()
    table.wait(60 * SECOND)
    assert not [one for one in table.sent if isinstance(one[2], Summary) and one[0] == 1]


def test_many_missing_events_arrive_in_batches() -> None:
    table = live(2, 0, 1, config=replace(LIVE, batch_max=5))
    table.isolate(1)
    for number in range(23):
        table.publish(0, str(number))
    table.wait(3 * SECOND)
    table.heal()
    table.wait(8 * SECOND)
    assert table.delivered[1] == [str(number) for number in range(23)]
    fills = [frame for _, _, frame in table.sent if isinstance(frame, Fill)]
    assert max(len(fill.items) for fill in fills) == 5


def test_member_away_too_long_rejoins_and_gets_missed_numbers() -> None:
    table = live(3, 0, 1, 2, config=replace(LIVE, retained_max=4))
    table.isolate(2)
    for number in range(1, 11):
        table.publish(0, str(number))
        table.wait(500 * MS)
    table.heal()
    table.wait(10 * SECOND)
    table.publish(0, "11")
    table.wait(SECOND)
    assert table.delivered[1] == [str(number) for number in range(1, 12)]
    assert table.delivered[2][-1] == "11"
    (missed,) = [one for one in table.outcomes[2] if isinstance(one, Join) and one.missed]
    assert missed == Join("t", (1, 6))
    assert any(isinstance(frame, NotCached) for _, _, frame in table.sent)


def test_held_events_have_a_limit_and_dropped_ones_are_refetched() -> None:
    table = live(3, 0, 1, 2, config=replace(LIVE, held_max=2, window=100, batch_max=1))
    table.cut = {(0, 2)}
    table.publish(0, "0")
    table.run()
    table.heal()
    for number in range(1, 10):
        table.publish(0, str(number))
    table.run()
    assert table.nodes[2].held_count <= 3
    table.wait(20 * SECOND)
    assert table.delivered[2] == [str(number) for number in range(10)]


def test_node_without_room_requests_only_the_events_it_needs() -> None:
    """Otherwise it gets, over and over, the first events, which it has to drop."""
    table = live(3, *range(3), config=replace(LIVE, held_max=1, batch_max=1, window=1))
    table.isolate(2)
    for number in range(4):
        table.publish(1, f"question {number}")
        table.wait(10 * MS)
        for _ in range(3):
            table.publish(0, f"answer {number}")
            table.wait(10 * MS)
    table.wait(3 * SECOND)
    table.heal()
    table.wait(60 * SECOND)
    assert sorted(table.delivered[2]) == sorted(table.delivered[0])
    assert len(table.delivered[2]) == 16


# -- Crashes and restarts ------------------------------------------------------------------------


def test_node_resumes_from_its_records() -> None:
    table = live(4, *range(4))
    table.publish(0, "a")
    table.wait(SECOND)
    table.crash(1)
    table.publish(0, "b")
    table.wait(2 * SECOND)
    table.start(1)
    table.wait(8 * SECOND)
    table.publish(1, "c")
    table.wait(SECOND)
    assert table.delivered[1] == ["a", "b", "c"]
    assert table.delivered[0] == ["a", "b", "c"]
    assert not [one for one in table.outcomes[1][1:] if isinstance(one, Join)], "it never left"


def test_unsent_events_are_sent_after_a_crash() -> None:
    table = live(2, 0, 1)
    table.isolate(0)
    table.publish(0, "a")
    table.publish(0, "b")
    table.crash(0)
    table.heal()
    table.start(0)
    table.wait(3 * SECOND)
    assert table.delivered[1] == ["a", "b"]
    assert table.settled(0) == ["a", "b"]
    table.publish(0, "c")
    table.wait(SECOND)
    assert table.delivered[1] == ["a", "b", "c"], "numbers continue"


def test_acknowledged_events_survive_a_crash() -> None:
    """Its source may rely on the receipt and crash."""
    table = live(4, 0, 1, 2)
    table.cut = {(0, 2)}
    table.publish(0, "first")
    table.run()
    table.heal()
    table.publish(0, "second")
    table.run()
    assert table.nodes[2].held_count == 1
    table.crash(2)
    table.start(2)
    assert table.nodes[2].held_count == 1


def test_join_interrupted_by_a_crash_is_resumed() -> None:
    table = live(4, 0, 1)
    table.slow = {(3, 2)}
    table.subscribe(2)
    table.run()
    assert table.nodes[2].joining == ("t",)
    table.crash(2)
    table.heal()
    table.start(2)
    table.wait(SECOND)
    table.publish(0, "m")
    table.wait(SECOND)
    assert table.delivered[2] == ["m"]
    assert [one for one in table.outcomes[2] if isinstance(one, Join)] == [Join("t")]


def test_receipts_for_an_earlier_incarnation_are_ignored() -> None:
    table = live(3, 0, 1)
    table.slow = {(1, 2), (0, 2)}
    table.subscribe(2)
    table.run()
    table.crash(2)
    late = {link: list(frames) for link, frames in table.links.items()}
    table.start(2)
    table.links = late
    table.slow = set()
    for link in list(late):
        table.arrive(*link)
    assert table.nodes[2].joining == ("t",)


def test_member_whose_join_was_lost_is_discovered_later() -> None:
    table = live(4, 1)
    table.isolate(0)
    table.subscribe(2)
    table.wait(3 * SECOND)
    assert Join("t") in table.outcomes[2], "it did not wait forever for 0"
    table.publish(0, "m")  # 0 knows only 1, and reaches no node.
    table.heal()
    table.wait(8 * SECOND)
    assert table.delivered[1] == table.delivered[2] == ["m"]


def test_event_without_reachable_members_settles_and_is_found_later() -> None:
    table = live(2)
    table.isolate(0)
    table.subscribe(1)
    table.wait(3 * SECOND)
    table.publish(0, "m")
    assert table.settled(0) == ["m"], "0 knows no other node"
    table.heal()
    table.wait(8 * SECOND)
    assert table.delivered[1] == ["m"]


def test_non_durable_node_persists_nothing() -> None:
    node = CausalNode(name="a", names=["a"], config=replace(LIVE, durable=False))
    node.subscribe(("t",), now_ns=0)
    node.publish("t", b"m", now_ns=0)
    effects = node.take_effects()
    assert not [effect for effect in effects if isinstance(effect, Persist)]
    assert [type(effect) for effect in effects] == [Join, Publish, Deliver, Settle]


# -- Windows, batches, limits --------------------------------------------------------------------


def test_events_published_while_the_window_is_full_are_batched() -> None:
    table = Table(2, replace(CALM, window=2, batch_max=3))
    table.join_all(0, 1)
    table.slow = {(1, 0)}
    table.sent.clear()
    for number in range(9):
        table.publish(0, str(number))
    sizes = [len(frame.items) for _, _, frame in table.sent if isinstance(frame, Publication)]
    assert sizes == [1, 1]
    table.slow = set()
    table.run()
    sizes = [len(frame.items) for _, _, frame in table.sent if isinstance(frame, Publication)]
    assert sizes == [1, 1, 3, 3, 1]
    assert table.delivered[1] == [str(number) for number in range(9)]


def test_events_in_flight_have_a_limit() -> None:
    table = Table(2, replace(CALM, outgoing_max=3))
    table.join_all(0, 1)
    table.slow = {(1, 0)}
    for number in range(3):
        table.publish(0, str(number))
    with pytest.raises(LimitReached, match="outgoing_max"):
        table.publish(0, "one too many")
    table.slow = set()
    table.run()
    table.publish(0, "3")
    table.run()
    assert table.delivered[1] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    "field", [name for name in CausalConfig.__struct_fields__ if name.endswith(("_ns", "_max"))]
)
def test_limits_and_waits_are_at_least_one(field: str) -> None:
    with pytest.raises(ConfigurationError, match=field):
        replace(CausalConfig(), **{field: 0})


def test_a_node_must_be_in_its_cube() -> None:
    with pytest.raises(ConfigurationError, match="'c' is not among"):
        CausalNode(name="c", names=["a", "b"])


class Alien(Frame, frozen=True, tag=99):
    """A frame of another protocol."""


@pytest.mark.parametrize("source", ["stranger", "p1", "p0"])
def test_stray_frames_change_nothing(source: str) -> None:
    table = live(2, 0, 1)
    node = table.nodes[0]
    frame = Heartbeat(digest=b"") if source != "p1" else Alien()
    node.receive(frame, source=source, now_ns=table.now_ns)
    assert not node.take_effects()


def test_nodes_join_and_leave_the_cube() -> None:
    table = live(2, 0, 1)
    table.names.append("p2")
    for number in (0, 1):
        table.act(number, lambda node: node.admit("p2", now_ns=table.now_ns))
    table.disks[2] = {}
    table.delivered[2], table.outcomes[2] = [], []
    rows = [row for number in (0, 1) for row in table.nodes[number].rows]
    table.nodes[2] = CausalNode(
        name="p2", names=table.names, config=LIVE, rows=rows, now_ns=table.now_ns
    )
    table.publish(2, "hello")
    table.wait(SECOND)
    assert table.delivered[0] == table.delivered[1] == ["hello"]
    table.subscribe(2)
    table.wait(SECOND)
    table.crash(1)
    for number in (0, 2):
        table.act(number, lambda node: node.dismiss("p1", now_ns=table.now_ns))
    table.publish(0, "bye")
    table.run()
    assert table.delivered[2] == ["bye"]
    assert table.settled(0) == ["bye"], "no node waits for a departed one"


# -- Across topics -------------------------------------------------------------------------------


def across(count: int) -> Table:
    return Table(count, replace(CALM, gap_ns=3600 * SECOND))


def test_cause_in_another_topic_is_delivered_first() -> None:
    table = across(4)
    table.subscribe(0, "questions", "answers")
    table.subscribe(1, "questions", "answers")
    table.subscribe(2, "questions", "answers")
    table.run()
    table.slow = {(0, 2)}
    table.publish(0, "why?", "questions")
    table.run()
    table.publish(1, "because", "answers")
    table.run()
    assert table.delivered[2] == []
    table.slow = set()
    table.run()
    assert table.delivered[2] == ["why?", "because"]


def test_within_a_topic_other_topics_are_not_waited_for() -> None:
    table = Table(4, replace(CALM, across_topics=False))
    for number in (0, 1, 2):
        table.subscribe(number, "questions", "answers")
    table.run()
    table.slow = {(0, 2)}
    table.publish(0, "why?", "questions")
    table.run()
    table.publish(1, "because", "answers")
    table.run()
    assert table.delivered[2] == ["because"]


def test_causal_chain_through_an_unsubscribed_topic_holds() -> None:
    """The paper's pruning would lose it: the middle of the chain never reaches the receiver."""
    table = across(4)
    table.subscribe(0, "a", "b")
    table.subscribe(1, "a", "b")
    table.subscribe(2, "a")  # Not in b.
    table.run()
    table.slow = {(0, 2)}
    table.publish(0, "first", "a")
    table.run()
    table.publish(1, "in between", "b")
    table.run()
    table.publish(0, "aside", "b")
    table.run()
    table.publish(1, "last", "a")
    table.run()
    assert table.delivered[2] == []
    table.slow = set()
    table.run()
    assert table.delivered[2] == ["first", "last"]


def passes_nothing_on(self: Causality, state: TopicState, counts: Counts) -> None:
    """Drop the barriers of topics that the receiver is not in."""


@pytest.mark.parametrize("planted", [False, True])
def test_node_outside_a_topic_passes_on_its_barriers(
    planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if planted:
        monkeypatch.setattr(Causality, "_pass_on", passes_nothing_on)
    table = across(4)
    table.subscribe(0, "a", "u")
    table.subscribe(1, "u")
    table.subscribe(2, "a", "v")
    table.run()
    table.slow = {(0, 2)}
    table.publish(0, "cause", "a")
    table.publish(0, "in between", "u")
    table.run()
    table.publish(1, "effect", "v")  # 1 is not in a.
    table.run()
    table.slow = set()
    table.run()
    expected = ["effect", "cause"] if planted else ["cause", "effect"]
    assert table.delivered[2] == expected


def test_a_publishers_own_order_holds_across_topics() -> None:
    table = across(4)
    table.subscribe(2, "a", "b")
    table.run()
    table.slow = {(0, 2)}
    table.publish(0, "1", "a")
    table.publish(0, "2", "b")
    table.arrive(0, 2, index=1)
    assert table.delivered[2] == []
    table.arrive(0, 2)
    assert table.delivered[2] == ["1", "2"]


def test_node_that_delivered_events_joins_a_topic_before_publishing() -> None:
    table = across(4)
    table.subscribe(0, "a")
    table.subscribe(2, "b")
    table.run()
    table.publish(1, "cause", "a")
    table.run()
    table.publish(0, "effect", "b")
    table.run()
    assert table.delivered[2] == ["effect"]
    assert {row.node: row.topics for row in table.nodes[2].rows}[0] == ("a", "b")
    table.publish(2, "more", "b")
    table.run()
    assert table.delivered[0] == ["cause"], "its application is not notified"
    assert Join("b") not in table.outcomes[0]
    table.subscribe(0, "b")
    assert table.outcomes[0][-1] == Join("b"), "it is in already"
    table.publish(2, "again", "b")
    table.run()
    assert table.delivered[0] == ["cause", "again"]


class FollowsNothing(CausalNode):
    """A node that publishes on a topic without joining it."""

    def publish(self, *arguments: Any, **options: Any) -> Event:
        self._causality.has_foreign_past = False
        return super().publish(*arguments, **options)


@pytest.mark.parametrize(
    ("role", "expected"), [(CausalNode, ["e", "e'", "f"]), (FollowsNothing, ["f", "e"])]
)
def test_why_it_follows_a_start_vector_must_be_closed(
    role: type[CausalNode], expected: list[str]
) -> None:
    """e precedes m of another topic, which precedes e', which precedes f.

    If 2 reports that it published e', and not e, then 3 skips e' and gets e after f.
    """
    table = Table(4, replace(CALM, gap_ns=3600 * SECOND), role=role)
    table.subscribe(1, "t", "u")
    table.subscribe(2, "u")
    table.run()
    table.slow = {(0, 3), (3, 2), (2, 3)}
    table.subscribe(3, "t")
    table.run()
    table.publish(0, "e", "t")  # 0 and 1 know of 3; e is late there.
    table.run()
    table.publish(1, "m", "u")
    table.run()
    table.publish(2, "e'", "t")  # 2 does not know of 3.
    table.run()
    table.slow = {(0, 3)}
    table.run()
    table.publish(2, "f", "t")
    table.run()
    table.slow = set()
    table.run()
    assert table.delivered[1] == ["e", "m", "e'", "f"]
    assert table.delivered[3] == expected


def test_node_that_delivered_nothing_publishes_at_once() -> None:
    table = across(4)
    table.subscribe(2, "b")
    table.run()
    table.sent.clear()
    table.publish(0, "m", "b")
    assert [type(frame) for _, _, frame in table.sent] == [Publication]


def test_a_topic_that_is_being_joined_is_waited_for() -> None:
    table = across(4)
    table.subscribe(0, "a", "b")
    table.subscribe(2, "b")
    table.run()
    table.slow = {(3, 2)}
    table.subscribe(2, "a")
    table.run()
    table.publish(0, "cause", "a")
    table.publish(0, "effect", "b")
    table.run()
    assert table.delivered[2] == [], "it is not known yet where 2 starts in a"
    table.slow = set()
    table.run()
    assert table.delivered[2] == ["cause", "effect"]


def test_joiner_waits_for_nodes_that_know_its_start_vector() -> None:
    """It has delivered an effect whose cause it would otherwise get later."""
    table = Table(4, replace(ACROSS, digest_ns=3600 * SECOND, digest_ns_max=3600 * SECOND))
    table.subscribe(2, "b")
    table.wait(10 * MS)
    table.publish(0, "cause", "a")  # Nobody is in a.
    table.publish(0, "effect", "b")
    table.wait(10 * MS)
    assert table.delivered[2] == ["effect"]
    table.isolate(0)
    table.subscribe(2, "a")
    table.wait(4 * SECOND)
    assert list(table.nodes[2].joining) == ["a"]
    table.heal()
    table.wait(4 * SECOND)
    assert table.nodes[2].joining == ()
    assert table.delivered[2] == ["effect"]


def test_join_does_not_wait_forever_for_a_crashed_node() -> None:
    table = Table(4, ACROSS)
    table.subscribe(2, "b")
    table.wait(10 * MS)
    table.publish(0, "cause", "a")
    table.publish(0, "effect", "b")
    table.wait(10 * MS)
    table.crash(0)
    table.subscribe(2, "a")
    table.wait(15 * SECOND)
    assert table.nodes[2].joining == ()
    table.publish(1, "m", "a")
    table.wait(SECOND)
    assert table.delivered[2] == ["effect", "m"]


def lost_cause() -> Table:
    """Return a table where 2 holds an effect whose cause is lost with its source."""
    table = Table(4, ACROSS)
    table.subscribe(2, "a", "b")
    table.subscribe(1, "b")
    table.wait(10 * MS)
    table.cut = {(0, 2)}
    table.publish(0, "cause", "a")
    table.publish(0, "effect", "b")
    table.run()
    table.crash(0)
    table.heal()
    table.wait(2 * SECOND)
    assert table.delivered[1] == ["effect"]
    assert table.delivered[2] == []
    return table


def test_effect_of_a_lost_event_is_delivered_eventually() -> None:
    table = lost_cause()
    table.wait(20 * SECOND)
    assert table.delivered[2] == ["effect"]
    (missed,) = [one for one in table.outcomes[2] if isinstance(one, Join) and one.missed]
    assert missed == Join("a", (1, 1))


def test_returning_doubted_node_costs_events_never_order() -> None:
    table = lost_cause()
    table.wait(20 * SECOND)
    table.start(0)
    table.wait(10 * SECOND)
    assert table.delivered[2] == ["effect"], "the cause would come after its effect"
    table.publish(0, "next", "a")
    table.wait(5 * SECOND)
    assert table.delivered[2] == ["effect", "next"]


def test_unreachable_nodes_are_in_doubt_until_they_return() -> None:
    """3 may have published an event that precedes the one that 2 skipped."""
    table = lost_cause()
    table.publish(3, "perhaps before", "a")
    table.isolate(3)
    table.crash(3)
    table.wait(20 * SECOND)
    assert table.delivered[2][-1] == "effect"
    doubt = 1 << 3
    assert table.nodes[2]._causality.topic("a").doubt == doubt
    table.subscribe(1, "a")
    table.wait(2 * SECOND)
    assert table.nodes[1]._causality.topic("a").doubt == doubt, "who answers shares its doubts"
    table.heal()
    table.start(3)
    table.wait(10 * SECOND)
    for number in (1, 2):
        assert table.nodes[number]._causality.topic("a").doubt == 0, number
    table.publish(3, "after", "a")
    table.wait(5 * SECOND)
    assert table.delivered[1] == ["effect", "after"]
    assert table.delivered[2][-1] == "after"


def test_departed_node_without_cached_events_answers_not_cached() -> None:
    table = live(3, 1, 2, config=replace(LIVE, retained_max=1))
    table.isolate(1)
    for text in ("a", "b"):
        table.publish(0, text)
        table.wait(2 * SECOND)
    table.crash(0)
    table.unsubscribe(2)
    table.heal()
    table.wait(10 * SECOND)
    table.publish(2, "c")
    table.wait(SECOND)
    assert table.delivered[1] == ["b", "c"], "what is kept is given"
    assert Join("t", (1, 1)) in table.outcomes[1]


def test_leaving_a_topic_frees_what_waited_for_it() -> None:
    table = lost_cause()
    table.unsubscribe(2, "a")
    assert table.outcomes[2][-1] == Leave("a")
    assert table.delivered[2] == ["effect"]


def test_events_that_wait_for_a_join_survive_a_crash() -> None:
    table = across(4)
    table.subscribe(0, "a")
    table.subscribe(2, "b")
    table.run()
    table.publish(1, "cause", "a")
    table.run()
    table.slow = {(1, 0)}
    table.publish(0, "effect", "b")
    table.publish(0, "second", "a")
    table.run()
    assert table.delivered[2] == []
    table.crash(0)
    table.slow = set()
    table.links.clear()
    table.start(0)
    table.run()
    assert table.delivered[2] == ["effect"]
    assert table.delivered[0] == ["cause", "second"]
    assert sorted(table.settled(0)) == ["effect", "second"]


def test_own_row_is_not_accepted_from_peers() -> None:
    table = live(2, 0, 1)
    node = table.nodes[0]
    change = Change(token=1, height=1, below=b"", row=Row(0, 99, ()), joins=())
    node.receive(change, source="p1", now_ns=table.now_ns)
    assert {row.node: row.topics for row in node.rows}[0] == ("t",)


def test_leaving_during_a_join_completes() -> None:
    table = live(4, 0)
    table.slow = {(3, 2)}
    table.subscribe(2)
    table.run()
    table.unsubscribe(2)
    table.slow = set()
    table.wait(SECOND)
    assert table.nodes[2].joining == ()
    table.publish(0, "m")
    table.wait(SECOND)
    assert table.delivered[2] == []
    assert not [one for one in table.outcomes[2] if isinstance(one, Join | Leave | Discard)]


# -- Sizes ---------------------------------------------------------------------------------------


def test_topics_of_a_node_have_a_limit() -> None:
    table = Table(2, replace(ACROSS, topics_max=3))
    table.subscribe(0, "a", "b", "c", "d", "e")
    table.run()
    assert table.nodes[0].topics == ("a", "b", "c")
    (refused,) = [one for one in table.outcomes[0] if isinstance(one, Refuse)]
    assert refused.topics == ("d", "e")
    assert "topics_max" in refused.reason
    table.publish(1, "seen", "a")
    table.run()
    table.publish(0, "f", "f")  # Which it would have to follow.
    table.publish(0, "a", "a")
    table.wait(SECOND)
    voids = [one for one in table.outcomes[0] if isinstance(one, Settle) and one.verdict == "void"]
    assert [(one.event.topic, "topics_max" in one.reason) for one in voids] == [("f", True)]
    assert table.delivered[0] == ["seen", "a"], "no other node waits for it"
    table.unsubscribe(0, "b")
    table.subscribe(0, "d")
    table.wait(SECOND)
    assert table.nodes[0].topics == ("a", "c", "d")
    table.unsubscribe(0, "c")
    table.publish(0, "f again", "f")  # There would be room, but not for its number.
    table.publish(0, "g", "g")
    table.wait(SECOND)
    voids = [one for one in table.outcomes[0] if isinstance(one, Settle) and one.verdict == "void"]
    assert [one.event.payload for one in voids] == [b"f", b"f again"]
    assert "connect again" in voids[-1].reason
    assert table.settled(0)[-1] == "g"


def test_the_names_of_a_nodes_topics_have_a_limit_together() -> None:
    table = Table(2, replace(ACROSS, row_bytes_max=1000))
    topics = [f"{number:-<200}" for number in range(6)]
    table.subscribe(0, *topics)
    table.run()
    assert list(table.nodes[0].topics) == topics[:4]
    row = Row(0, 9, tuple(topics))
    table.nodes[1].receive(Rows(rows=(row,)), source="p0", now_ns=table.now_ns)
    known = {each.node: each.topics for each in table.nodes[1].rows}
    assert list(known[0]) == topics[:4], "nor is more believed"


def test_rows_travel_in_messages_of_a_limited_size() -> None:
    size = 4096
    table = Table(12, replace(ACROSS, batch_bytes_max=size, row_bytes_max=2048))
    table.isolate(0)
    for number in range(1, 12):
        table.subscribe(number, "t", *(f"{number}/{each:-<200}" for each in range(7)))
        table.wait(10 * MS)
    table.wait(5 * SECOND)
    table.heal()
    table.sent.clear()
    table.wait(20 * SECOND)
    table.subscribe(0, "t")
    table.wait(20 * SECOND)
    assert len(table.nodes[0].rows) == 12, "all nodes are still known"
    largest: dict[type, int] = {}
    for _, _, frame in table.sent:
        encoded = len(CODEC.encode(frame))
        largest[type(frame)] = max(encoded, largest.get(type(frame), 0))
    assert size // 2 < largest[Rows] <= size
    assert size // 2 < largest[Receipt] <= size + 200


def test_many_topics_are_joined_in_messages_of_a_limited_size() -> None:
    table = Table(3, ACROSS)
    topics = [f"t{number}" for number in range(2 * JOINS_MAX + 1)]
    table.subscribe(0, *topics)
    table.subscribe(1, *topics)
    table.wait(SECOND)
    assert list(table.nodes[1].topics) == topics
    joins = [len(frame.joins) for _, _, frame in table.sent if isinstance(frame, Change)]
    assert max(joins) == JOINS_MAX
    for number, topic in enumerate(topics):
        table.publish(2, str(number), topic)
    table.wait(SECOND)
    assert len(table.delivered[0]) == len(table.delivered[1]) == len(topics)


@pytest.mark.parametrize(
    "frame",
    [
        Heartbeat(digest=bytes(17)),
        Publication(token=1, height=1, below=bytes(8193), items=()),
        Change(token=1, height=1, below=b"", row=Row(0, 1, ()), joins=("t",) * (JOINS_MAX + 1)),
        Receipt(token=1, covered=bytes(8193), final=True),
        Rows(rows=(Row(0, 1, ("t",) * 65_537),)),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_oversized_frame_fields_are_refused(frame: Frame) -> None:
    with pytest.raises(RemoteProtocolError):
        CODEC.decode(CODEC.encode(frame))


# -- Round trips -----------------------------------------------------------------------------------


def test_lost_copy_is_retransmitted_after_the_measured_round_trip() -> None:
    least_ns = 10_000_000
    table = Table(2, msgspec.structs.replace(CALM, retry_ns_min=least_ns))
    table.join_all(0, 1)
    table.publish(0, "one")
    table.run()
    table.cut = {(0, 1)}
    table.publish(0, "two")
    table.heal()
    table.wait(least_ns)
    assert table.delivered[1] == ["one", "two"]


def test_node_that_holds_an_event_back_requests_the_missing_one_after_a_round_trip() -> None:
    least_ns = 10_000_000
    table = Table(3, msgspec.structs.replace(CALM, retry_ns_min=least_ns, gap_ns=CALM.retry_ns))
    table.join_all(0, 1, 2)
    for number in range(3):
        table.publish(number, f"first of {number}")
        table.run()
    table.slow = {(0, 2), (1, 2)}
    table.publish(0, "cause")
    table.run()
    table.links.clear()  # Lost to node 2, by whichever way.
    table.slow = set()
    table.publish(1, "effect")
    table.run()
    assert "effect" not in table.delivered[2]
    table.wait(2 * least_ns)
    assert table.delivered[2][-2:] == ["cause", "effect"]
