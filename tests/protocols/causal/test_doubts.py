"""Doubts across memberships, outdated answers, departed members and events held by joiners."""

import pytest
from tests.protocols.causal.harness import SECOND, Table

from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.frames import NotCached, Receipt, Summary
from ensue.protocols.causal.node import CausalNode
from ensue.protocols.interface import Join

J, S, Q, C, LATE = range(5)
PATIENCE_NS = 5 * SECOND


def missed_by(table: Table, number: int) -> list[tuple[int, int]]:
    return [
        each.missed for each in table.outcomes[number] if isinstance(each, Join) and each.missed
    ]


def give_up(table: Table) -> None:
    """Let J skip x.

    w of C precedes x of S, which precedes y of Q. J gets only y; S and Q crash, C is partitioned.
    """
    others = (S, Q, C)
    table.isolate(J, others=others)
    table.publish(C, "w")
    table.run()
    table.publish(S, "x")
    table.run()
    table.cut -= {(Q, J), (J, Q)}
    table.publish(Q, "y")
    table.run()
    table.isolate(J, others=others)
    table.crash(S)
    table.crash(Q)
    table.wait(40 * SECOND)
    assert table.delivered[J] == ["y"]
    assert table.nodes[J]._causality.topic("t").doubt == 1 << C


@pytest.mark.parametrize("across", [False, True])
def test_doubt_survives_leaving_and_rejoining(across: bool) -> None:
    """A member that leaves and rejoins has delivered y already: w would come after y."""
    table = Table(4, CausalConfig(across_topics=across, patience_ns=PATIENCE_NS))
    for number in range(4):
        table.subscribe(number)
    table.wait(SECOND)
    give_up(table)
    table.unsubscribe(J)
    table.wait(SECOND)
    table.subscribe(J)
    table.wait(10 * SECOND)
    table.heal()
    table.wait(60 * SECOND)
    assert table.delivered[J] == ["y"]
    assert missed_by(table, J) == [(1, 1), (1, 1)], "x, and w when C is back"


class Delayed(Table):
    """Delays the first receipt of one node to J, and all others of the same request."""

    token: int | None = -1

    def drain(self, number: int) -> None:
        super().drain(number)
        frames = self.links.pop((LATE, J), [])
        kept = []
        for frame in frames:
            if isinstance(frame, Receipt) and self.token in (None, frame.token):
                self.token, self.late = frame.token, frame
            else:
                kept.append(frame)
        if kept:
            self.links[LATE, J] = kept


def test_answer_to_an_old_request_resolves_no_newer_doubt() -> None:
    table = Delayed(5, CausalConfig(across_topics=False, patience_ns=PATIENCE_NS))
    for number in (S, Q, C):
        table.subscribe(number)
    table.wait(SECOND)
    table.token = None
    table.subscribe(J)
    table.run()
    assert table.nodes[J].joining, "one answer is late"
    table.unsubscribe(J)
    table.run()
    table.subscribe(J)
    table.run()
    assert not table.nodes[J].joining
    give_up(table)
    now_ns = table.now_ns
    table.act(J, lambda node: node.receive(table.late, source=f"p{LATE}", now_ns=now_ns))
    table.heal()
    table.wait(30 * SECOND)
    assert table.delivered[J] == ["y"]


@pytest.mark.parametrize("left", [False, True])
def test_publisher_does_not_wait_for_departed_members(*, left: bool) -> None:
    """A full window goes to a member that never returns: only current members count."""
    table = Table(3, CausalConfig(across_topics=False, batch_max=1))
    table.subscribe(1)
    table.wait(SECOND)
    table.cut = {(0, 1)}
    texts = [f"e{number}" for number in range(9)]
    for text in texts[:8]:
        table.publish(0, text)
    if left:
        table.unsubscribe(1)
        table.run()
    table.crash(1)
    table.wait(10 * SECOND)
    table.heal()
    if not left:
        table.subscribe(2)
        table.wait(5 * SECOND)
    table.publish(0, "e8")
    table.wait(60 * SECOND)
    assert table.settled(0) == texts
    assert table.delivered[2] == ([] if left else ["e8"])


def test_joining_node_sends_held_events() -> None:
    """A holds x, and its join waits for an event in its past; no other node has x."""
    b, s, a, c, e, f = range(6)
    table = Table(6, CausalConfig(patience_ns=PATIENCE_NS))
    table.subscribe(b, "t")
    table.subscribe(c, "t")
    table.subscribe(a, "u")
    table.subscribe(f, "t", "u")
    table.wait(SECOND)
    table.isolate(e, others=(b, s, a, c))
    table.publish(e, "z", "t")
    table.run()
    table.cut |= {(f, b), (f, s), (f, c)}
    table.publish(f, "v", "u")
    table.run()
    table.crash(e)
    table.crash(f)
    table.heal()
    table.wait(3 * SECOND)
    table.subscribe(a, "t")
    table.run()
    table.cut = {(s, b), (a, b)}
    table.publish(s, "x", "t")
    table.run()
    table.crash(s)
    table.publish(c, "y", "t")
    table.run()
    table.crash(c)
    table.heal()
    assert table.nodes[a].joining == ("t",)
    table.wait(30 * SECOND)
    assert table.delivered[b] == ["x", "y"]
    gone = [
        frame for source, _, frame in table.sent if source == a and isinstance(frame, NotCached)
    ]
    assert not [frame for frame in gone if frame.source == s]


def test_batch_above_held_max_is_delivered_as_it_arrives() -> None:
    table = Table(2, CausalConfig(held_max=4, window=1))
    table.subscribe(1)
    table.wait(SECOND)
    texts = [f"e{number}" for number in range(20)]
    for text in texts:
        table.publish(0, text)
    table.run()
    assert table.settled(0) == texts
    table.crash(0)
    assert table.delivered[1] == texts, "with no help of its source"


def test_leaving_node_is_in_no_topic_even_as_publisher() -> None:
    table = Table(2)
    table.subscribe(1, "u")
    table.run()
    table.publish(0, "a", "u")
    table.run()
    table.publish(1, "b", "t")
    table.run()
    assert table.nodes[0]._membership.members("t") == 1 << 1, "across topics it has to be"
    now_ns = table.now_ns
    table.act(1, lambda node: node.say_goodbye(now_ns=now_ns))
    table.run()
    assert not table.nodes[0]._membership.members("t")
    assert not table.nodes[0]._membership.members("u")


def test_restarted_node_evicts_the_oldest_events_first() -> None:
    table = Table(2, CausalConfig(retained_max=12, across_topics=False))
    table.subscribe(1)
    table.wait(SECOND)
    for number in range(1, 17):
        if number == 13:
            table.crash(1)
            table.start(1)
            table.wait(SECOND)
        table.publish(0, str(number))
        table.wait(SECOND)
    kept = sorted(number for _, source, number in table.nodes[1]._cache._items if source == 0)
    assert kept == list(range(5, 17))


def test_topics_named_by_peers_leave_no_state() -> None:
    table = Table(2)
    for number in range(100):
        summary = Summary(topic=f"x{number}", have={1: 1}, follows=False)
        table.nodes[0].receive(summary, source="p1", now_ns=0)
    assert not table.nodes[0]._causality.topics


def test_dropped_event_is_reported_missed_if_no_node_has_it_later() -> None:
    """Its source has crashed before there was room: the application is notified."""
    table = Table(2, CausalConfig(held_max=4))
    table.subscribe(1)
    table.wait(SECOND)
    table.act(1, lambda node: node.pause())
    for number in range(10):
        table.publish(0, f"e{number}")
    table.run()
    assert len(table.settled(0)) == 4
    table.crash(0)
    now_ns = table.now_ns
    table.act(1, lambda node: node.dismiss("p0", now_ns=now_ns))
    table.act(1, lambda node: node.resume(now_ns=now_ns))
    table.wait(60 * SECOND)
    assert table.delivered[1] == [f"e{number}" for number in range(4)]
    assert missed_by(table, 1) == [(5, 10)]


def test_event_that_no_member_has_room_for_is_not_settled() -> None:
    """Its source may leave when it is settled, and no other node would have it."""
    table = Table(3, CausalConfig(held_max=4))
    for member in (1, 2):
        table.subscribe(member)
    table.wait(SECOND)
    for member in (1, 2):
        table.act(member, lambda node: node.pause())
    texts = [f"e{number}" for number in range(10)]
    for text in texts:
        table.publish(0, text)
    table.wait(5 * SECOND)
    assert len(table.settled(0)) == 4
    now_ns = table.now_ns
    table.act(2, lambda node: node.resume(now_ns=now_ns))
    table.wait(10 * SECOND)
    assert len(table.settled(0)) == 10
    table.crash(0)
    now_ns = table.now_ns
    table.act(1, lambda node: node.resume(now_ns=now_ns))
    table.wait(60 * SECOND)
    assert table.delivered[1] == table.delivered[2] == texts


def test_dropped_event_is_requested_when_there_is_room() -> None:
    table = Table(2, CausalConfig(held_max=4))
    table.subscribe(1)
    table.wait(SECOND)
    table.act(1, lambda node: node.pause())
    texts = [f"e{number}" for number in range(10)]
    for text in texts:
        table.publish(0, text)
    table.wait(SECOND)
    now_ns = table.now_ns
    table.act(1, lambda node: node.resume(now_ns=now_ns))
    table.wait(10 * SECOND)
    assert table.delivered[1] == texts
    assert not table.nodes[1]._causality.topic("t").refused


@pytest.mark.parametrize("sources", [1, 2, 4])
def test_node_away_beyond_retention_gets_all_missed_numbers(
    sources: int,
) -> None:
    """No node knows what preceded the lost events of several sources: all are skipped and
    reported."""
    config = CausalConfig(across_topics=False, patience_ns=PATIENCE_NS, retained_max=10)
    table = Table(6, config)
    for number in (0, 5):
        table.subscribe(number)
    table.wait(SECOND)
    table.isolate(0)
    table.wait(5 * SECOND)
    for number in range(20):
        for source in range(1, sources + 1):
            table.publish(source, f"{source}.{number}")
            table.wait(SECOND // 5)
    table.wait(SECOND)
    table.heal()
    table.wait(60 * SECOND)
    missed = sum(last - first + 1 for first, last in missed_by(table, 0))
    assert missed + len(table.delivered[0]) == 20 * sources


def test_events_of_an_unknown_member_are_not_skipped() -> None:
    """It becomes known late: until then its events are waited for, as nodes that know it have
    them."""
    table = Table(2, CausalConfig(across_topics=False, patience_ns=PATIENCE_NS))
    for number in range(2):
        table.subscribe(number)
    table.wait(SECOND)
    table.names.append("p2")
    table.disks[2], table.delivered[2], table.outcomes[2] = {}, [], []
    now_ns = table.now_ns
    table.act(1, lambda node: node.admit("p2", now_ns=now_ns))
    rows = table.nodes[1].rows
    table.nodes[2] = CausalNode(
        name="p2", names=table.names, config=table.config, rows=rows, now_ns=now_ns
    )
    table.drain(2)
    table.wait(SECOND)
    table.publish(2, "w")
    table.wait(SECOND)
    table.publish(1, "after w")
    table.wait(30 * SECOND)
    assert table.delivered[0] == []
    later_ns = table.now_ns
    table.act(0, lambda node: node.admit("p2", now_ns=later_ns))
    table.wait(20 * SECOND)
    assert table.delivered[0] == ["w", "after w"]
    assert missed_by(table, 0) == []
