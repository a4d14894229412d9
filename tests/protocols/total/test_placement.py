"""Which node hosts which topic, and configurations that contradict themselves."""

from typing import Any

import pytest

from ensue.core.errors import ConfigurationError
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.placement import Placement, losses
from ensue.protocols.total.records import (
    INT,
    PLACEMENT,
    REGISTRATION,
    RegistrationRecord,
    topics_of,
)

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
        (["a"], {"b": ["x"]}, "'b', which is not in the chain"),
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
    with pytest.raises(ConfigurationError, match=f"{field} must be at least 1, got {value}"):
        SequencerConfig(**options)


@pytest.mark.parametrize("groups", [0, 3])
def test_groups_other_than_by_one_or_two_are_refused(groups: int) -> None:
    with pytest.raises(ConfigurationError, match=f"groups must be 1 or 2, got {groups}"):
        SequencerConfig(groups=groups)


def test_groups_are_by_one_or_two_subscriptions() -> None:
    with pytest.raises(ConfigurationError, match="groups must be 1 or 2, got 3"):
        SequencerConfig(groups=3)
    assert SequencerConfig(groups=2).groups == 2


def test_leaving_entries_out_is_refused_with_a_lossy_log() -> None:
    with pytest.raises(ConfigurationError, match="leave_out needs a reliable log"):
        SequencerConfig(reliable=False)
    assert not SequencerConfig(reliable=False, leave_out=False).reliable


def placed(*, closed: bool = False, **topics: list[str]) -> Placement:
    """A chain of the nodes that are named, with their topics."""
    return Placement(list(topics), topics=topics, closed=closed)


def test_placement_is_restored_from_its_record() -> None:
    placement = placed(low=["z", "y"], mid=[], high=["x"], closed=True)
    record = PLACEMENT.decode(PLACEMENT.encode(placement.record()))
    again = Placement.restore(record)
    assert again.record() == placement.record() == record
    assert (again.nodes, again.topics, again.closed) == (placement.nodes, ("z", "y", "x"), True)


@pytest.mark.parametrize(
    ("old", "new", "used"),
    [
        (placed(one=[]), placed(one=["x"]), "x"),  # It was there by its hash.
        (placed(one=["x", "y"], two=[]), placed(one=["y", "x"], two=[]), "xy"),
        (placed(one=["x"], closed=True), placed(one=["x", "y"], closed=True), "x"),
        (placed(one=["x"], closed=True), placed(one=["x"]), "x"),
        (placed(one=["x", "y"], closed=True), placed(one=["x"], closed=True), "x"),
        (placed(one=["x"]), placed(one=["x"], closed=True), "x"),
    ],
)
def test_placement_may_change_if_no_topic_loses_its_node(
    old: Placement, new: Placement, used: str
) -> None:
    assert losses(old, new, used) == []


@pytest.mark.parametrize(
    ("old", "new", "used", "said"),
    [
        (placed(one=[]), placed(one=[], two=[]), "", "the chain was one, and is to be one, two"),
        (placed(one=[], two=[]), placed(two=[], one=[]), "", "was one, two, and is to be two, one"),
        (
            placed(one=["x"], two=[]),
            placed(one=[], two=["x"]),
            "",
            "'x' was on one, and is to be on",
        ),
        (
            placed(one=["x"]),
            placed(one=["y"], closed=True),
            "x",
            "'x' was on one, and is to be on n",
        ),
        (
            placed(one=[]),
            placed(one=["y"], closed=True),
            "x",
            "'x' was on one, and is to be on none",
        ),
    ],
)
def test_losses_of_another_placement_are_listed(
    old: Placement, new: Placement, used: str, said: str
) -> None:
    (found,) = losses(old, new, used)
    assert said in found


def test_a_topic_may_not_move_to_the_node_that_a_list_names() -> None:
    by_hash = Placement(["n0", "n1"])
    other = next(topic for topic in "abcdefgh" if by_hash.node(topic) == "n1")
    assert losses(by_hash, placed(n0=[other], n1=[]), ())
    assert not losses(by_hash, placed(n0=[], n1=[other]), ())


def test_the_topics_of_records_are_those_counted_and_those_subscribed_to() -> None:
    registration = REGISTRATION.encode(RegistrationRecord(1, ("x/1", "y")))
    records = {"counter/a/b": INT.encode(1), "subscription/s/x": registration, "publisher/p": b"1"}
    assert list(topics_of(records)) == ["a/b", "x/1", "y"]
