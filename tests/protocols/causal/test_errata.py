"""Each fault of the published algorithms, shown with the published rules, and its correction.

The published rules run in `published`; the corrected ones are those of `CausalNode`, in the same
situation and with the same messages late.
"""

import msgspec
import pytest
from tests.protocols.causal.harness import CALM, Table
from tests.protocols.causal.published import PublishedNet


def within() -> Table:
    """Return four nodes with causal order within a topic, one message at a time, as in the
    paper."""
    return Table(4, msgspec.structs.replace(CALM, across_topics=False, window=1))


# -- Erratum 1: forwarders use their own view ----------------------------------------------------


def test_published_1a_a_joining_forwarder_cuts_off_a_member() -> None:
    net = PublishedNet(4)
    net.subscribe(0, 3)
    net.slow = {(3, 2)}
    net.nodes[2].subscribe()
    net.run()
    net.nodes[0].publish("m")
    net.run()
    assert "m" not in net.nodes[3].delivered


def test_cured_1a_the_source_decides_who_gets_a_message() -> None:
    table = within()
    table.join_all(0, 3)
    table.slow = {(3, 2)}
    table.subscribe(2)
    table.run()
    table.publish(0, "m")
    table.run()
    assert table.delivered[3] == ["m"]


def test_published_1b_a_leaving_forwarder_cuts_off_a_member() -> None:
    net = PublishedNet(4)
    net.subscribe(0, 2)
    net.slow = {(2, 0)}
    net.nodes[2].unsubscribe()
    net.run()
    net.subscribe(3)
    net.nodes[0].publish("m")
    net.run()
    assert net.nodes[3].delivered == []


def test_cured_1b_a_node_that_left_still_forwards() -> None:
    table = within()
    table.join_all(0, 2)
    table.slow = {(2, 0)}
    table.unsubscribe(2)
    table.run()
    table.join_all(3)
    table.publish(0, "m")
    table.run()
    assert (2, 3) in table.copies(), "2 is still asked to forward"
    assert table.delivered[3] == ["m"]
    assert table.delivered[2] == []


# -- Erratum 2: joining and leaving take effect at the call --------------------------------------


def test_published_2_a_queued_message_goes_out_with_a_frozen_view() -> None:
    net = PublishedNet(4)
    net.subscribe(0, 1)
    net.slow = {(1, 0)}
    net.nodes[0].publish("p1")
    net.nodes[0].publish("p2")
    net.nodes[0].unsubscribe()
    net.run()
    net.slow = set()
    net.nodes[3].subscribe()
    net.arrive(3, 1)
    net.arrive(3, 2)
    net.arrive(1, 0, index=1)  # The SUB, before the acknowledgement of p1.
    net.run()
    net.nodes[1].publish("q")
    net.run()
    assert net.nodes[1].delivered == ["p1", "p2", "q"]
    assert net.nodes[3].delivered == []
    assert net.nodes[3].waiting, "q depends on p2, which 3 never gets"


def test_cured_2_a_joiner_skips_what_was_published_before_and_nothing_else() -> None:
    table = within()
    table.join_all(0, 1)
    table.slow = {(1, 0)}
    table.publish(0, "p1")
    table.publish(0, "p2")
    table.unsubscribe(0)
    table.run()
    table.slow = set()
    table.join_all(3)
    table.publish(1, "q")
    table.run()
    assert table.delivered[1] == ["p1", "p2", "q"]
    assert table.delivered[3] == ["q"]
    assert table.delivered[0] == ["p1", "p2"], "published while it was a member"


# -- Erratum 3: a second propagation task --------------------------------------------------------


def test_published_3_a_later_message_overtakes_an_earlier_one() -> None:
    net = PublishedNet(2)
    net.subscribe(0, 1)
    net.slow = {(0, 1), (1, 0)}
    one = net.nodes[1]
    one.unsubscribe()
    one.subscribe()
    one.publish("p1")
    one.publish("p2")
    net.arrive(1, 0)  # UNS
    net.arrive(1, 0)  # SUB
    net.arrive(0, 1, index=1)  # The SUB is acknowledged first: the new task sends p1.
    net.arrive(0, 1)  # The UNS: the old task lives on and sends p2.
    net.arrive(1, 0, index=1)
    net.arrive(1, 0)
    assert net.nodes[0].delivered == ["p2", "p1"]


def test_cured_3_numbers_put_the_messages_of_a_source_in_order() -> None:
    table = Table(2, msgspec.structs.replace(CALM, across_topics=False, window=2))
    table.join_all(0, 1)
    table.slow = {(0, 1), (1, 0)}
    table.unsubscribe(1)
    table.subscribe(1)
    table.publish(1, "p1")
    table.publish(1, "p2")
    for index in (3, 2, 1, 0):  # p2, p1, the join, the leave: everything overtakes.
        table.arrive(1, 0, index=index)
    assert table.delivered[0] == ["p1", "p2"]


# -- Erratum 4: first_rec can't tell what will never come ----------------------------------------


def test_published_4a_a_silent_source_blocks_a_joiner_forever() -> None:
    """The example of Figure 2, when p2 stays silent."""
    net = PublishedNet(4)
    net.subscribe(0, 1, 2)
    net.nodes[2].publish("m2")
    net.run()
    net.subscribe(3)
    net.nodes[1].publish("m1")
    net.run()
    assert net.nodes[3].delivered == []
    assert net.nodes[3].waiting


def test_cured_4a_a_joiner_knows_what_it_skips() -> None:
    table = within()
    table.join_all(0, 1, 2)
    table.publish(2, "m2")
    table.run()
    table.join_all(3)
    table.publish(1, "m1")
    table.run()
    assert table.delivered[3] == ["m1"]


def test_published_4b_a_leave_makes_messages_wait_forever() -> None:
    net = PublishedNet(4)
    net.subscribe(0, 1)
    net.nodes[1].publish("a")
    net.run()
    net.subscribe(2)
    net.slow = {(0, 2)}
    net.nodes[0].publish("m")
    net.run()
    net.nodes[1].publish("b")
    net.run()
    assert net.nodes[2].first == {1: net.nodes[1].counter - 1}
    net.nodes[1].unsubscribe()
    net.run()
    net.slow = set()
    net.run()
    assert net.nodes[2].delivered == []
    assert len(net.nodes[2].waiting) == 2


def test_cured_4b_a_leave_does_not_change_barriers() -> None:
    table = within()
    table.join_all(0, 1)
    table.publish(1, "a")
    table.run()
    table.join_all(2)
    table.slow = {(0, 2)}
    table.publish(0, "m")
    table.run()
    table.publish(1, "b")
    table.run()
    assert table.delivered[2] == []
    table.unsubscribe(1)
    table.run()
    table.slow = set()
    table.run()
    assert table.delivered[2] == ["m", "b"]


# -- Erratum 5: direct dependencies are not enough when something is skipped ---------------------


def test_published_5_a_skipped_message_hides_its_causes() -> None:
    net = PublishedNet(4)
    net.subscribe(0, 1)
    net.slow = {(0, 1), (0, 2)}
    net.nodes[2].subscribe()
    net.run()
    net.nodes[0].publish("m")
    net.arrive(0, 1, index=1)  # m, before the SUB of 2
    net.nodes[1].publish("m''")
    net.run()
    net.arrive(0, 1, index=1)  # m'' is acknowledged.
    net.arrive(0, 1)  # Now 1 learns of 2.
    net.nodes[1].publish("m'")
    net.run()
    net.slow = set()
    net.run()
    assert net.nodes[2].delivered == ["m'", "m"], "m comes before m'' comes before m'"


def test_cured_5_skipped_events_are_closed_under_causes() -> None:
    table = within()
    table.join_all(0, 1)
    table.slow = {(0, 1), (0, 2)}
    table.subscribe(2)
    table.run()
    table.publish(0, "m")
    table.arrive(0, 1, index=1)
    table.publish(1, "m''")
    table.run()
    table.arrive(0, 1, index=1)
    table.arrive(0, 1)
    table.publish(1, "m'")
    table.run()
    assert table.delivered[2] == [], "2 waits until all have answered"
    table.slow = set()
    table.run()
    # 1 had delivered m when it answered: both m and what came before its answer are skipped.
    assert table.delivered[2] == ["m'"]


# -- Erratum 6: a node leaves itself out of an acknowledgement -----------------------------------


def test_published_6_a_member_is_never_discovered() -> None:
    net = PublishedNet(2)
    net.subscribe(0, 1)
    net.slow = {(0, 1), (1, 0)}
    source, member = net.nodes
    source.publish("p")
    member.unsubscribe()
    net.arrive(1, 0)
    net.arrive(0, 1, index=1)  # The leave is acknowledged; p is still on its way.
    member.subscribe()
    net.arrive(0, 1)  # p, late
    source.unsubscribe()
    net.arrive(1, 0, index=1)  # p is acknowledged to a node that has left.
    net.slow = set()
    net.run()
    source.subscribe()
    net.run()
    source.publish("q")
    net.run()
    assert member.subscribed()
    assert "q" not in member.delivered


def test_cured_6_a_member_always_answers() -> None:
    table = Table(2, msgspec.structs.replace(CALM, across_topics=False, window=1))
    table.join_all(0, 1)
    table.slow = {(0, 1), (1, 0)}
    table.publish(0, "p")
    table.unsubscribe(1)
    table.arrive(1, 0)
    table.arrive(0, 1, index=1)
    table.subscribe(1)
    table.arrive(0, 1)
    table.unsubscribe(0)
    table.arrive(1, 0, index=1)
    table.slow = set()
    table.run()
    table.join_all(0)
    table.publish(0, "q")
    table.run()
    assert table.delivered[1] == ["q"]


# -- Erratum 7: every forwarder believes the membership that passes through ----------------------


def test_published_7_a_forwarder_keeps_a_departed_node_forever() -> None:
    net = PublishedNet(4)
    net.subscribe(3)
    net.slow = {(3, 2)}
    net.nodes[0].subscribe()
    net.run()
    net.nodes[3].unsubscribe()
    net.run()
    net.nodes[2].subscribe()
    net.run()
    net.slow = set()
    net.run()
    assert not net.nodes[3].subscribed()
    assert 3 in {who for who, what, _ in net.nodes[2].view if what == "SUB"}


def test_cured_7_an_outdated_answer_is_ignored() -> None:
    table = within()
    table.join_all(3)
    table.slow = {(3, 2)}
    table.subscribe(0)
    table.run()
    table.unsubscribe(3)
    table.run()
    table.subscribe(2)
    table.run()
    table.slow = set()
    table.run()
    for number in range(4):
        rows = {row.node: row.topics for row in table.nodes[number].rows}
        assert rows == {0: ("t",), 2: ("t",), 3: ()}, number


@pytest.mark.parametrize("window", [1, 8])
def test_with_a_fixed_membership_both_deliver_in_causal_order(window: int) -> None:
    """The published algorithm is correct as long as no node joins or leaves."""
    net, table = PublishedNet(4), Table(4, msgspec.structs.replace(CALM, window=window))
    net.subscribe(0, 1, 2, 3)
    table.join_all(0, 1, 2, 3)
    for each in (net, table):
        each.slow = {(0, 2)}
    net.nodes[0].publish("question")
    table.publish(0, "question")
    net.run()
    table.run()
    net.nodes[1].publish("answer")
    table.publish(1, "answer")
    net.run()
    table.run()
    # From 0 to 2 the question is late, and 3 has it from 2.
    assert net.nodes[2].delivered == table.delivered[2] == []
    for each in (net, table):
        each.slow = set()
        each.run()
    assert net.nodes[2].delivered == table.delivered[2] == ["question", "answer"]
    assert net.nodes[3].delivered == table.delivered[3] == ["question", "answer"]
