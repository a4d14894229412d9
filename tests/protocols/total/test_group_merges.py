"""Which subscriptions merge all groups of a node."""

import pytest

from ensue.protocols.total import group_merges as module
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import ChangeRequest
from ensue.protocols.total.group_merges import GroupMerge, group_merges
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.sequencer import Sequencer

STAGES = {"a1": 0, "a2": 0, "a3": 0, "b1": 1, "c1": 2}


def merges(own: int = 0, /, **subscriptions: str) -> list[tuple[str, int, int]]:
    topics = {name: tuple(names.split()) for name, names in subscriptions.items()}
    found = group_merges(topics, STAGES.__getitem__, own)
    return [(each.name, each.groups, each.topics) for each in found]


def test_subscription_of_everything_is_named_with_the_groups_it_merges() -> None:
    small = {"one": "a1", "two": "a2", "pair": "a2 a3"}
    assert merges(**small, all="a1 a2 a3 b1") == [("all", 3, 4)]
    assert merges(**small, all="a1 a3 b1 c1") == [("all", 4, 4)]


def test_subscription_that_leaves_a_group_apart_is_not_named() -> None:
    assert merges(one="a1", two="a2", pair="a1 b1") == []


def test_topics_of_one_node_cost_no_hop() -> None:
    assert merges(one="a1", two="a2", all="a1 a2 a3") == []


def test_two_subscriptions_of_everything_are_both_named() -> None:
    found = merges(one="a1", two="a2", x="a1 a2 b1", y="a1 a2 b1")
    assert found == [("x", 3, 3), ("y", 3, 3)]


def test_equal_subscriptions_merge_nothing() -> None:
    assert merges(x="a1 b1 c1", y="a1 b1 c1", z="a1 b1 c1") == []


def test_a_topic_of_its_own_is_no_group() -> None:
    assert merges(one="b1", all="a1 b1") == []
    assert merges(1, one="b1", all="a1 b1") == [("all", 2, 2)]


def test_groups_that_hang_together_count_once() -> None:
    chain = {"x": "a1 a2", "y": "a2 a3", "z": "a3 b1"}
    assert merges(**chain, all="a1 b1 c1") == [("all", 2, 3)]
    assert merges(x="a1 a2", y="a3 b1", z="a2 a3", all="a1 b1 c1") == [("all", 2, 3)]


def test_largest_are_named_first_and_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"one": "a1", "two": "a2"}
    assert [name for name, _, _ in merges(**small, x="a1 a2 b1", y="a1 a2 b1 c1")] == ["y", "x"]
    monkeypatch.setattr(module, "NAMED_MAX", 1)
    assert [name for name, _, _ in merges(**small, x="a1 a2 b1", y="a1 a2 b1 c1")] == ["y"]
    monkeypatch.setattr(module, "TOPICS_MAX", 8)
    assert merges(**small, x="a1 a2 b1", y="a1 a2 b1 c1") == []


@pytest.mark.parametrize("groups", [1, 2])
def test_node_finds_them_where_one_subscription_is_enough(groups: int) -> None:
    placement = Placement(["a", "b"], topics={"a": ("a1", "a2"), "b": ("b1",)})
    node = Sequencer(name="a", placement=placement, config=SequencerConfig(groups=groups))
    for name, topics in (("one", ("a1",)), ("two", ("a2",)), ("all", ("a1", "a2", "b1"))):
        node.receive(ChangeRequest(number=1, old=(), new=topics), source=name, now_ns=0)
    assert node.group_merges() == ([GroupMerge("all", 3, 3)] if groups == 1 else [])
