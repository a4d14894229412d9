"""Groups and counters: the entries of a stamp, against a simple model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ensue.protocols.total.groups import Counters, Group, Groups

TOPICS = tuple("abcdefgh")
bounded = settings(derandomize=True, deadline=None, max_examples=300)

changes = st.lists(st.sampled_from(TOPICS), max_size=12)
stamps = st.tuples(changes, st.booleans())


class Model:
    """Keeps the state at the previous stamp, and compares."""

    def __init__(self, members: set[str]) -> None:
        self.members = members
        self.counts = dict.fromkeys(TOPICS, 0)
        self.before: dict[str, int] | None = None

    def fill(self, *, whole: bool) -> dict[str, int]:
        before, self.before = self.before, dict(self.counts)
        if whole or before is None:
            return {name: self.counts[name] for name in self.members if self.counts[name]}
        return {
            name: self.counts[name] for name in self.members if self.counts[name] != before[name]
        }


def count(counters: Counters, topic: str) -> None:
    counter = counters.get(topic)
    counters.set(topic, counter, counter[0] + 1)


def group_of(counters: Counters, topics: set[str]) -> Group:
    members = {topic: counters.get(topic) for topic in sorted(topics)}
    return Group(counters.get("own"), members, 0, hosted=True)


@bounded
@given(st.sets(st.sampled_from(TOPICS)), st.lists(stamps, max_size=8))
def test_an_entry_is_named_if_its_count_differs_from_the_previous_stamp(
    members: set[str], program: list[tuple[list[str], bool]]
) -> None:
    counters, model = Counters(), Model(members)
    group = group_of(counters, members)
    for changed, whole in program:
        for topic in changed:
            count(counters, topic)
            model.counts[topic] += 1
        entries: dict[str, int] = {}
        group.fill(entries, counters, whole=whole)
        assert entries == model.fill(whole=whole)


@pytest.mark.parametrize("strangers", [0, 1, 100])
@bounded
@given(st.sets(st.sampled_from(TOPICS), min_size=1), changes)
def test_both_ways_of_filling_give_the_same_entries(
    strangers: int, members: set[str], changed: list[str]
) -> None:
    """Topics that never change make the group larger, so that one is chosen and then the other."""
    counters = Counters()
    group = group_of(counters, members | {f"idle-{number}" for number in range(strangers)})
    for topic in TOPICS:
        count(counters, topic)
    group.fill({}, counters, whole=True)
    for topic in changed:
        count(counters, topic)
    entries: dict[str, int] = {}
    group.fill(entries, counters, whole=False)
    assert entries == {
        topic: 1 + changed.count(topic) for topic in set(changed) if topic in members
    }


def test_both_ways_of_filling_are_used() -> None:
    counters = Counters()
    group = group_of(counters, {"a", "b"})
    group.fill({}, counters, whole=True)
    count(counters, "a")
    # The only member that changed is not among the recent ones: only a scan finds it.
    del counters.recent["a"]
    walked: dict[str, int] = {}
    group.fill(walked, counters, whole=False)
    assert walked == {}
    count(counters, "b")
    for _ in range(2):
        count(counters, "c")
    counters.recent.clear()
    scanned: dict[str, int] = {}
    group.fill(scanned, counters, whole=False)
    assert scanned == {"b": 1}


def test_existing_entries_stay_in_a_stamp() -> None:
    counters = Counters()
    group = group_of(counters, {"a"})
    count(counters, "a")
    entries = {"own": 7}
    group.fill(entries, counters, whole=True)
    assert entries == {"own": 7, "a": 1}


def test_the_first_stamp_of_a_group_names_all_even_if_it_need_not_be_whole() -> None:
    counters = Counters()
    for topic in "ab":
        count(counters, topic)
    group = group_of(counters, {"a", "b", "c"})
    assert group.tick is None
    entries: dict[str, int] = {}
    group.fill(entries, counters, whole=False)
    assert entries == {"a": 1, "b": 1}
    assert group.tick == counters.tick


def test_counters_are_kept_in_the_order_of_their_last_change() -> None:
    counters = Counters()
    for topic in "abcab":
        count(counters, topic)
    assert list(counters.recent) == ["c", "a", "b"]
    assert counters.by_topic == {"a": [2, 4], "b": [2, 5], "c": [1, 3]}
    assert counters.tick == 5


@bounded
@given(
    st.sampled_from([1, 2]),
    st.lists(
        st.tuples(st.sampled_from("rst"), st.sets(st.sampled_from(TOPICS), max_size=4)), max_size=12
    ),
)
def test_topics_are_partners_if_enough_subscriptions_share_them(
    needed: int, program: list[tuple[str, set[str]]]
) -> None:
    groups = Groups(needed)
    subscriptions: dict[str, set[str]] = {}
    for subscriber, topics in program:
        groups.replace(subscriber, sorted(topics))
        subscriptions[subscriber] = topics
    for topic in TOPICS:
        assert set(groups.partners(topic)) == {
            other
            for other in TOPICS
            if other != topic
            and sum({topic, other} <= each for each in subscriptions.values()) >= needed
        }
