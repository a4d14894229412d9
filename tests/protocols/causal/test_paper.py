"""One test a claim of the paper: VCube-PS, sections 2 and 3. `test_hypercube` has Figure 1."""

import msgspec
import pytest
from tests.protocols.causal.harness import CALM, Table, barrier_of

from ensue.protocols.causal.frames import Change, Publication, Receipt
from ensue.protocols.interface import Discard, Join, Leave

PER_TOPIC = msgspec.structs.replace(CALM, across_topics=False)


def table_of(count: int, *members: int, topic: str = "t") -> Table:
    table = Table(count, PER_TOPIC)
    table.join_all(*members, topic=topic)
    table.sent.clear()
    return table


# -- Section 3.2.1: causal barriers, Figure 2 ----------------------------------------------------


def test_figure_2_barriers_name_direct_predecessors_only() -> None:
    table = table_of(4, 0, 1, 2)
    table.publish(0, "m0,1")
    table.run()
    table.publish(1, "m1,1")
    table.publish(2, "m2,1")  # Not aware of m1,1.
    table.run()
    table.publish(1, "m1,2")
    first = {frame.items[0].event.payload: frame for _, _, frame in table.sent
             if isinstance(frame, Publication)}  # fmt: skip
    assert barrier_of(first[b"m0,1"]) == {}
    assert barrier_of(first[b"m1,1"]) == {"t": {0: 1}}
    # m1,1 comes before m1,2 too: the number of m1,2 implies it. m0,1 is an indirect dependency.
    assert barrier_of(first[b"m1,2"]) == {"t": {2: 1}}
    assert first[b"m1,2"].items[0].event.publisher_seq == 2


def test_figure_2_a_late_subscriber_waits_only_for_events_it_will_get() -> None:
    table = table_of(4, 0, 1, 2)
    table.publish(2, "m2,1")
    table.run()
    table.join_all(3)
    table.slow = {(1, 3)}
    table.publish(1, "m1,1")
    table.run()
    table.slow = set()
    table.publish(0, "m0,1")  # After m1,1, which 3 does not have.
    table.run()
    assert table.delivered[3] == ["m1,1", "m0,1"]
    assert table.delivered[0] == ["m2,1", "m1,1", "m0,1"]


def test_an_effect_waits_for_its_cause() -> None:
    """If a process publishes m' after it delivered m, no process delivers m after m'."""
    table = table_of(4, 0, 1, 2)
    table.slow = {(0, 2)}
    table.publish(0, "m")
    table.run()
    table.publish(1, "m'")
    table.run()
    assert table.delivered[1] == ["m", "m'"]
    assert table.delivered[2] == []
    assert table.nodes[2].held_count == 1
    table.slow = set()
    table.run()
    assert table.delivered[2] == ["m", "m'"]


def test_concurrent_messages_may_be_delivered_in_any_order() -> None:
    table = table_of(2, 0, 1)
    table.publish(0, "a")
    table.publish(1, "b")
    table.run()
    assert (table.delivered[0], table.delivered[1]) == (["a", "b"], ["b", "a"])


def test_member_that_left_before_an_effect_may_miss_it() -> None:
    table = table_of(2, 0, 1)
    table.slow = {(0, 1)}
    table.publish(0, "m")
    table.unsubscribe(1)
    table.slow = set()
    table.run()
    assert table.delivered[1] == []
    assert isinstance(table.outcomes[1][-1], Leave)


# -- Section 3.2.2: per-source reception in order ------------------------------------------------


def test_with_a_window_of_one_a_source_waits_for_all_acknowledgements() -> None:
    table = Table(4, msgspec.structs.replace(PER_TOPIC, window=1))
    table.join_all(0, 1, 2, 3)
    table.sent.clear()
    table.slow = {(3, 2)}
    table.publish(0, "p1")
    table.publish(0, "p2")
    table.run()
    assert table.delivered[3] == ["p1"], "3 has it, but 2 has no receipt and can't send one to 0"
    assert table.settled(0) == []
    table.slow = set()
    table.run()
    assert table.delivered[3] == ["p1", "p2"]
    assert table.settled(0) == ["p1", "p2"]


def test_with_a_larger_window_a_source_does_not_wait_and_order_is_kept() -> None:
    table = table_of(4, 0, 1, 2, 3)
    table.slow = {(0, 1)}
    for text in ("p1", "p2", "p3"):
        table.publish(0, text)
    table.run()
    assert table.delivered[3] == ["p1", "p2", "p3"]
    for index in (2, 1, 0):
        table.arrive(0, 1, index=index)
    assert table.delivered[1] == ["p1", "p2", "p3"]


# -- Section 3.3: trees, Figure 3 ----------------------------------------------------------------


def test_figure_3_left_all_nodes_are_members() -> None:
    table = table_of(8, *range(8))
    table.publish(0, "m0")
    table.run()
    assert sorted(table.copies()) == [(0, 1), (0, 2), (0, 4), (2, 3), (4, 5), (4, 6), (6, 7)]


def test_figure_3_right_the_tree_holds_members_only() -> None:
    table = table_of(8, 0, 2, 3, 5, 7)
    table.publish(2, "m2")
    table.run()
    assert sorted(table.copies()) == [(2, 0), (2, 3), (2, 7), (7, 5)]
    assert all(table.delivered[number] == ["m2"] for number in (0, 2, 3, 5, 7))


def test_one_message_per_member_and_none_for_the_source() -> None:
    table = table_of(16, 1, 4, 6, 9, 13)
    table.publish(4, "m")
    table.run()
    assert len(table.copies()) == 4
    receipts = [one for one in table.sent if isinstance(one[2], Receipt)]
    assert len(receipts) == 4


def test_an_acknowledgement_waits_for_those_of_the_children() -> None:
    table = table_of(8, *range(8))
    table.slow = {(7, 6)}
    table.publish(0, "m")
    table.run()
    answered = {(source, target) for source, target, frame in table.sent
                if isinstance(frame, Receipt)}  # fmt: skip
    assert answered == {(1, 0), (2, 0), (3, 2), (5, 4), (7, 6)}
    table.slow = set()
    table.run()
    assert table.settled(0) == ["m"]


def test_every_source_is_the_root_of_its_own_tree() -> None:
    table = table_of(8, *range(8))
    for number in range(8):
        table.publish(number, str(number))
    table.run()
    parents = [source for source, _ in table.copies()]
    assert {parents.count(number) for number in range(8)} == {7}, "the load is even"


# -- Section 3.3: membership ---------------------------------------------------------------------


def test_a_join_reaches_all_nodes_and_brings_the_members_back() -> None:
    table = table_of(8, 2, 5)
    table.subscribe(0)
    table.run()
    reached = {target for _, target, frame in table.sent if isinstance(frame, Change)}
    assert reached == set(range(1, 8))
    members = {row.node for row in table.nodes[0].rows if "t" in row.topics}
    assert members == {0, 2, 5}
    assert table.outcomes[0] == [Join("t")]


def test_concurrent_joiners_learn_of_each_other() -> None:
    table = table_of(8)
    table.subscribe(3)
    table.subscribe(4)
    table.run()
    table.publish(3, "from 3")
    table.publish(4, "from 4")
    table.run()
    assert sorted(table.delivered[3]) == sorted(table.delivered[4]) == ["from 3", "from 4"]


def test_departed_member_delivers_nothing_and_forwards_until_peers_know() -> None:
    table = table_of(8, *range(8))
    table.slow = {(4, 0)}
    table.unsubscribe(4)
    table.run()
    table.publish(0, "m")
    table.run()
    assert table.delivered[4] == []
    assert all(table.delivered[number] == ["m"] for number in (5, 6, 7))
    table.slow = set()
    table.run()
    table.sent.clear()
    table.publish(0, "n")
    table.run()
    assert 4 not in {number for pair in table.copies() for number in pair}


def test_returning_member_starts_anew() -> None:
    table = table_of(4, 0, 1)
    table.publish(0, "before")
    table.run()
    table.unsubscribe(1)
    table.run()
    table.publish(0, "meanwhile")
    table.run()
    table.join_all(1)
    table.publish(0, "after")
    table.run()
    assert table.delivered[1] == ["before", "after"]


@pytest.mark.parametrize("count", [2, 3, 5, 6, 7, 11, 13])
def test_any_number_of_nodes_will_do(count: int) -> None:
    """The paper needs a power of two; numbers without a node are never chosen."""
    table = table_of(count, *range(count))
    for number in range(count):
        table.publish(number, str(number))
        table.run()
    everything = [str(number) for number in range(count)]
    assert all(table.delivered[number] == everything for number in range(count))
    assert len(table.copies()) == count * (count - 1)


def test_event_published_during_a_join_is_not_skipped() -> None:
    table = table_of(4, 0, 1)
    table.slow = {(3, 2)}
    table.subscribe(2)
    table.run()
    table.publish(0, "m")
    table.run()
    table.slow = set()
    # 3 answers last; 0 and 1 answered before they knew of m, so m is not skipped.
    table.run()
    assert table.delivered[2] == ["m"]
    assert not [each for each in table.outcomes[2] if isinstance(each, Discard)]
