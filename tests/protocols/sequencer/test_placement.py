"""Which node hosts which topic, and configurations that contradict themselves."""

from typing import Any

import pytest

from ensue.errors import ConfigurationError
from ensue.protocols.sequencer.config import SequencerConfig
from ensue.protocols.sequencer.placement import Placement

LIMITS = (
    "lease_ns",
    "retry_ns",
    "poll_ns",
    "gap_ns",
    "window",
    "outgoing_max",
    "held_max",
    "time_to_live_ns",
    "missing_max",
    "topics_max",
    "clients_max",
)


def test_a_listed_topic_goes_where_it_is_listed() -> None:
    placement = Placement(["low", "high"], topics={"high": ["x"], "low": ["y", "z"]})
    assert [placement.node(topic) for topic in "xyz"] == ["high", "low", "low"]
    assert [placement.stage(topic) for topic in "xyz"] == [1, 0, 0]


def test_listed_topics_are_numbered_in_the_order_of_the_chain() -> None:
    placement = Placement(["low", "high"], topics={"high": ["x"], "low": ["z", "y"]})
    assert placement.topics == ("z", "y", "x")


def test_rank_is_stage_then_place_and_listed_before_hashed() -> None:
    placement = Placement(["only"], topics={"only": ["z", "y"]})
    assert sorted("axyz", key=placement.rank) == ["z", "y", "a", "x"]


def test_an_unlisted_topic_goes_to_the_same_node_in_every_process() -> None:
    placement = Placement([f"n{number}" for number in range(8)])
    nodes = [placement.node(f"topic {number}") for number in range(200)]
    assert nodes == [placement.node(f"topic {number}") for number in range(200)]
    assert set(nodes) == set(placement.nodes)
    assert nodes[:4] == ["n4", "n0", "n0", "n0"]  # Of the hash, which must never change.


def test_a_closed_placement_refuses_a_topic_that_is_not_listed() -> None:
    placement = Placement(["low"], topics={"low": ["x"]}, closed=True)
    assert placement.stage("x") == 0
    with pytest.raises(ConfigurationError, match="'y' is not placed"):
        placement.stage("y")


def test_span_goes_from_the_first_to_the_last_stage_of_its_topics() -> None:
    placement = Placement(["a", "b", "c"], topics={"a": ["1"], "b": ["2"], "c": ["3"]})
    assert placement.span(["3", "2"]) == (1, 2)
    assert placement.span(["1"]) == (0, 0)
    assert placement.span(["3", "1"]) == (0, 2)


@pytest.mark.parametrize(
    ("nodes", "topics", "because"),
    [
        ([], {}, "at least one node"),
        (["a", "a"], {}, "each node once"),
        (["a"], {"b": ["x"]}, "'b', which is no node"),
        (["a", "b"], {"a": ["x"], "b": ["x"]}, "'x' is placed twice"),
        (["a"], {"a": ["x", "x"]}, "'x' is placed twice"),
    ],
)
def test_a_placement_that_contradicts_itself_is_refused(
    nodes: list[str], topics: dict[str, list[str]], because: str
) -> None:
    with pytest.raises(ConfigurationError, match=because):
        Placement(nodes, topics=topics)


@pytest.mark.parametrize("field", LIMITS)
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_below_one_is_refused_by_name(field: str, value: int) -> None:
    options: dict[str, Any] = {field: value}
    with pytest.raises(ConfigurationError, match=f"{field} must be at least 1, not {value}"):
        SequencerConfig(**options)


@pytest.mark.parametrize("groups", [0, 3])
def test_groups_other_than_by_one_or_two_are_refused(groups: int) -> None:
    with pytest.raises(ConfigurationError, match=f"groups must be 1 or 2, not {groups}"):
        SequencerConfig(groups=groups)


def test_groups_by_two_are_refused_while_subscriptions_can_change() -> None:
    with pytest.raises(ConfigurationError, match="fixed"):
        SequencerConfig(groups=2)
    assert SequencerConfig(groups=2, fixed={}).groups == 2


def test_leaving_entries_out_is_refused_on_an_ens_that_loses() -> None:
    with pytest.raises(ConfigurationError, match="leave_out needs a reliable ENS"):
        SequencerConfig(reliable=False)
    assert not SequencerConfig(reliable=False, leave_out=False).reliable
