"""Which answers nodes of the hypercube measure, and how long they wait for whom."""

import msgspec
from tests.protocols.causal.harness import CALM, MS, Table

from ensue.protocols.causal.trees import Trees

LEAST_NS = 10 * MS


def measuring(count: int) -> Table:
    """Nodes in one topic whose messages took no time so far."""
    table = Table(count, msgspec.structs.replace(CALM, retry_ns_min=LEAST_NS))
    table.join_all(*range(count))
    table.publish(0, "first")
    table.run()
    return table


def trees(table: Table) -> Trees:
    """The trees of node 0."""
    return table.nodes[0]._trees


def waited(table: Table, child: int) -> int:
    """How long node 0 waits for the next answer of a child."""
    return trees(table)._round_trips_to(child).timeout_ns


def publish_over(table: Table, slow: tuple[int, int], for_ns: int) -> None:
    """Publish an event while answers on a link take so long."""
    table.slow = {slow}
    table.publish(0, "next")
    table.run()
    table.now_ns += for_ns
    table.slow = set()
    table.run()


def test_answer_to_a_copy_is_measured() -> None:
    table = measuring(2)
    assert waited(table, 1) == LEAST_NS
    publish_over(table, (1, 0), 100 * MS)
    assert waited(table, 1) > 100 * MS


def test_answer_to_a_copy_that_was_sent_again_is_not_measured() -> None:
    table = measuring(2)
    table.slow = {(1, 0)}
    table.publish(0, "next")
    table.wait(LEAST_NS)
    table.now_ns += 5 * MS
    table.slow = set()
    table.run()
    assert table.settled(0) == ["first", "next"]
    assert waited(table, 1) == 2 * LEAST_NS


def test_children_do_not_share_their_round_trips() -> None:
    table = measuring(3)
    publish_over(table, (2, 0), 100 * MS)
    assert waited(table, 2) > 100 * MS
    assert waited(table, 1) == LEAST_NS


def test_answer_of_a_child_that_waits_for_others_says_nothing_of_the_link() -> None:
    table = measuring(4)
    publish_over(table, (3, 2), 100 * MS)
    assert waited(table, 2) > 100 * MS
    assert trees(table)._direct.timeout_ns == LEAST_NS
