"""Receipts: what a member has acknowledged, other members get from it, also if it does not need it.

R is a reader that is away. P publishes, gets its receipt, and is killed.
"""

import pytest
from tests.protocols.causal.harness import SECOND, Table

from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.frames import Receipt

R, J, P, B = range(4)
WHILE_AWAY = 5 * SECOND


class Slow(Table):
    """Delays the receipts of B to J while it is slow."""

    is_slow = False

    def drain(self, number: int) -> None:
        super().drain(number)
        frames = self.links.pop((B, J), []) if self.is_slow else []
        if kept := [frame for frame in frames if not isinstance(frame, Receipt)]:
            self.links[B, J] = kept


def away(*members: int) -> Slow:
    """Return a table without R, which all others know to be away."""
    table = Slow(4, CausalConfig(patience_ns=5 * SECOND))
    for number in (R, *members):
        table.subscribe(number)
    table.wait(SECOND)
    table.isolate(R)
    table.wait(WHILE_AWAY)
    return table


def doubt(table: Table) -> None:
    """Let J take no events of P, until P has answered how many to skip."""
    node = table.nodes[J]
    node._causality.topic("t").doubt = 1 << P
    node._subscriptions.doubted("t", table.now_ns)
    node.state.dirty.touch("t")


def kill_and_return(table: Table, *killed: int) -> None:
    for number in killed:
        table.crash(number)
    table.heal()
    table.wait(30 * SECOND)


@pytest.mark.parametrize("restarted", [False, True])
def test_member_that_joined_after_an_event_keeps_it_for_others(*, restarted: bool) -> None:
    table = away()
    table.publish(P, "x")
    table.wait(WHILE_AWAY)
    assert table.settled(P) == []
    table.subscribe(J)
    table.wait(WHILE_AWAY)
    assert table.settled(P) == ["x"]
    assert table.delivered[J] == [], "it joined later"
    if restarted:
        table.crash(J)
        table.start(J)
    kill_and_return(table, P)
    assert table.delivered[R] == ["x"]


@pytest.mark.parametrize("restarted", [False, True])
def test_joining_member_keeps_what_it_need_not_deliver(*, restarted: bool) -> None:
    """P has answered where to start, and B has not yet, when x arrives."""
    table = away()
    table.cut |= {(P, B), (B, P)}
    table.publish(P, "x")
    table.wait(WHILE_AWAY)
    table.is_slow = True
    table.subscribe(J)
    table.wait(WHILE_AWAY)
    assert table.nodes[J].joining == ("t",)
    assert table.settled(P) == ["x"]
    table.is_slow = False
    table.wait(5 * SECOND)
    assert table.nodes[J].joining == ()
    assert table.delivered[J] == [], "it joined later"
    if restarted:
        table.crash(J)
        table.start(J)
    kill_and_return(table, P)
    assert table.delivered[R] == ["x"]


@pytest.mark.parametrize("skipped", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_member_keeps_events_of_a_source_in_doubt(*, restarted: bool, skipped: bool) -> None:
    """P is killed after it answered how many to skip, or before."""
    table = away(J)
    doubt(table)
    table.publish(P, "x")
    table.run()
    assert table.settled(P) == ["x"]
    assert not table.nodes[J].held_count
    if restarted:
        table.crash(J)
        table.start(J)
    if skipped:
        table.wait(WHILE_AWAY)
    assert table.delivered[J] == []
    assert bool(table.nodes[J]._causality.topic("t").doubt) is not skipped
    kill_and_return(table, P)
    assert table.delivered[R] == ["x"]


def test_node_that_left_does_not_count_as_a_member_that_has_an_event() -> None:
    """P does not know yet that J left. R gets the event from P, which waits for it."""
    table = away(J)
    table.slow = {(J, P), (J, B)}
    table.unsubscribe(J)
    table.publish(P, "x")
    table.run()
    table.slow = set()
    table.run()
    table.wait(WHILE_AWAY)
    assert table.settled(P) == []
    table.heal()
    table.wait(5 * SECOND)
    assert table.settled(P) == table.delivered[R] == ["x"]


@pytest.mark.parametrize("slow", [{(B, P)}, {(P, J), (J, P)}], ids=["answer first", "row first"])
def test_receipt_does_not_wait_when_the_last_member_left(slow: set[tuple[int, int]]) -> None:
    """P learns that J left after its answer, or before."""
    table = Table(4, CausalConfig())
    table.subscribe(J)
    table.wait(SECOND)
    table.slow = slow
    table.publish(P, "x")
    table.unsubscribe(J)
    table.run()
    table.slow = set()
    table.wait(0)
    assert table.settled(P) == ["x"]


def test_joining_member_that_leaves_keeps_what_it_received() -> None:
    table = away()
    table.cut |= {(P, B), (B, P)}
    table.is_slow = True
    table.subscribe(J)
    table.wait(SECOND)
    table.publish(P, "x")
    table.wait(SECOND)
    assert table.nodes[J].joining == ("t",)
    assert table.settled(P) == ["x"]
    table.unsubscribe(J)
    table.wait(SECOND)
    kill_and_return(table, P)
    assert table.delivered[R] == ["x"]


@pytest.mark.parametrize("restarted", [False, True])
def test_member_that_leaves_keeps_events_behind_a_gap(*, restarted: bool) -> None:
    """B has the first event, and J the second one, without the first."""
    table = away(J, B)
    table.cut |= {(P, J), (B, J), (J, B)}
    table.publish(P, "first")
    table.wait(3 * SECOND)
    table.cut |= {(P, B), (B, P)}
    table.wait(3 * SECOND)
    table.cut -= {(P, J)}
    table.act(J, lambda node: node.neighbors.greet(P, now_ns=table.now_ns))
    table.run()
    table.publish(P, "second")
    table.run()
    assert table.nodes[J].held_count == 1
    assert table.settled(P) == ["first", "second"]
    table.cut |= {(P, J)}
    table.unsubscribe(J)
    table.wait(3 * SECOND)
    if restarted:
        table.crash(J)
        table.start(J)
    kill_and_return(table, P)
    assert table.delivered[R] == table.delivered[B] == ["first", "second"]
