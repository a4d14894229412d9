"""Frames with unknown node numbers or versions do no harm."""

import pytest

from ensue.core.event import COUNT_MAX
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.frames import Change, NotCached, Receipt, Row, Rows
from ensue.protocols.causal.node import CausalNode
from ensue.protocols.interface import Send

NOBODY = 60_000


def joined(topic: str) -> CausalNode:
    """Return one of three nodes, joined to a topic."""
    config = CausalConfig(durable=False)
    node = CausalNode(name="a", names=("a", "b", "c"), config=config, now_ns=0)
    node.subscribe((topic,), now_ns=1)
    for effect in node.take_effects():
        if isinstance(effect, Send) and isinstance(effect.frame, Change):
            receipt = Receipt(token=effect.frame.token, covered=b"\x07", final=True)
            node.receive(receipt, source=effect.peer, now_ns=2)
    node.take_effects()
    assert node.topics == (topic,)
    return node


def test_unknown_source_is_never_contacted() -> None:
    node = joined("t")
    node.receive(NotCached(topic="t", source=NOBODY, up_to=5), source="b", now_ns=3)
    for now_ns in range(4, 10**10, 10**8):
        node.handle_timer(now_ns=now_ns)
    peers = {effect.peer for effect in node.take_effects() if isinstance(effect, Send)}
    assert peers <= {"b", "c"}


def test_duplicate_topics_in_a_row_count_once() -> None:
    node = joined("t")
    for version, topics in ((1, ("u", "u")), (2, ("u",)), (3, ())):
        node.receive(Rows(rows=(Row(2, version, topics),)), source="b", now_ns=3)
        assert bool(node._membership.members("u")) == bool(topics)


@pytest.mark.parametrize("row", [Row(NOBODY, 1, ("t",)), Row(2, COUNT_MAX, ("t",))])
def test_row_with_unknown_node_or_excessive_version_is_ignored(row: Row) -> None:
    node = joined("t")
    node.receive(Rows(rows=(row,)), source="b", now_ns=3)
    node.dismiss("c", now_ns=4)
    known = node._membership.rows.values()
    assert all(each.node != NOBODY and each.version < COUNT_MAX for each in known)
