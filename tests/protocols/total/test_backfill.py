"""Backfill: retained events in the order of publication, then new ones.

The expected order is that of the log: the places of the events at their station.
"""

from itertools import pairwise
from random import Random

import msgspec
import pytest
from tests.protocols.total.stationed import StationNet

from ensue.core.errors import SubscriptionRefused
from ensue.protocols.interface import Deliver, Join, Leave
from ensue.protocols.topic_log.frames import Fetch, Fetched, Notify, Put
from ensue.protocols.topic_log.log import TopicLogConfig
from ensue.protocols.total.frames import Changed

ONE = {"station": ["a", "b", "c"]}
FAULTS = ("lose", "repeat", "pause", "resume", "acknowledge", "time")
TRIM_ACTIONS = (
    *("publish", "publish", "publish", "arrive", "arrive", "trim", "crash", "join"),
    *FAULTS,
)
LOG_ACTIONS = ("publish", "publish", "join", "arrive", "arrive", "arrive", "crash", *FAULTS)


def published(net: StationNet, count: int, topics: str = "ab", *, first: int = 1) -> list[str]:
    """Publish events on topics in turn; return their names in order."""
    names = [f"e{number}" for number in range(first, first + count)]
    for index, name in enumerate(names):
        net.publish("p", topics[index % len(topics)], name)
    net.settle()
    return names


def questions(net: StationNet) -> list[tuple[str, int]]:
    """The fetches that logs got: topic and first slot."""
    frames = [each.frame for each in net.handled]
    return [(frame.topic, frame.start) for frame in frames if isinstance(frame, Fetch)]


# -- From the start --------------------------------------------------------------------------------


def test_retained_events_are_delivered_by_place_before_new_ones() -> None:
    net = StationNet(ONE)
    old = published(net, 7)
    net.reader("s", start=1)
    net.subscribe("s", "b", "a")
    net.come_to_rest()
    new = published(net, 5, first=8)
    net.come_to_rest()
    assert net.delivered("s") == old + new
    assert net.positions("s") == list(range(1, 13))


def test_no_event_is_lost_or_duplicated_across_the_cut() -> None:
    net = StationNet(ONE, topic_log_config=TopicLogConfig(fetch_max=2, batch_max=2))
    published(net, 6)
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    number = 6
    while net.under_way:
        # One more event between any two frames, for as long as it catches up.
        if number < 40:
            number += 1
            net.publish("p", "ab"[number % 2], f"e{number}")
        net.deliver(min(net.arrivals()))
    net.come_to_rest()
    assert net.delivered("s") == net.put_out("station")
    assert sorted(net.delivered("s")) == sorted(f"e{each}" for each in range(1, 41))


def test_events_after_the_cut_are_held_until_all_before_it_are_delivered() -> None:
    net = StationNet(ONE)
    old = published(net, 4)
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    with net.holding(Fetched):
        net.settle()
        new = published(net, 3, first=5)
        assert net.delivered("s") == []
    net.come_to_rest()
    assert net.delivered("s") == old + new


def test_backfill_starts_at_a_place() -> None:
    net = StationNet(ONE)
    names = published(net, 9, "abb")
    for place in range(1, 11):
        reader = f"from-{place}"
        net.reader(reader, start=place)
        net.subscribe(reader, "a", "b")
        net.come_to_rest()
        assert net.delivered(reader) == names[place - 1 :], place


def test_events_before_the_start_place_are_not_waited_for() -> None:
    # Two that are ordered together count what the reader passes over; the third has nothing to
    # do with them, and must not get ahead meanwhile.
    net = StationNet(ONE)
    net.subscribe("earlier", "a", "b")
    net.settle()
    names = published(net, 9, "bac")
    net.reader("s", start=2)
    net.subscribe("s", "a", "b", "c")
    net.come_to_rest()
    assert net.delivered("s") == names[1:]


def test_topics_without_events_are_joined_at_once() -> None:
    net = StationNet(ONE)
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    net.settle()
    assert net.joined("s") == ["a", "b"]
    assert published(net, 2) == net.delivered("s")


def test_trimmed_events_are_skipped() -> None:
    net = StationNet(ONE)
    names = published(net, 8)
    net.trim("a", 3)  # e1 and e3 are gone.
    net.trim("b", 5)  # All of b.
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    net.come_to_rest()
    assert net.delivered("s") == ["e5", "e7"]
    new = published(net, 2, first=9)
    net.come_to_rest()
    assert net.delivered("s") == ["e5", "e7", *new]
    assert names[0] not in net.delivered("s")


def test_trim_during_backfill_costs_only_trimmed_events() -> None:
    net = StationNet(ONE, topic_log_config=TopicLogConfig(fetch_max=2))
    published(net, 10, "a")
    net.reader("s", start=1)
    net.subscribe("s", "a")
    while not net.delivered("s"):
        net.deliver(min(net.arrivals()))
    net.trim("a", 7)
    net.come_to_rest()
    delivered = net.delivered("s")
    assert delivered[-4:] == ["e7", "e8", "e9", "e10"]
    assert delivered == sorted(set(delivered), key=lambda name: int(name[1:]))


def test_lost_fetches_and_answers_are_repeated() -> None:
    net = StationNet(ONE, topic_log_config=TopicLogConfig(fetch_max=2))
    old = published(net, 6)
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    lost = 0
    for kind in (Fetch, Fetched, Fetched, Fetch):
        while not net.find(kind):
            net.deliver(min(net.arrivals()))
        lost += len(net.find(kind))
        net.drop(kind)
        net.pass_time(net.config.retry_ns, settle=False)
    assert lost >= 4
    net.come_to_rest()
    assert net.delivered("s") == old


def test_events_in_flight_are_not_requested() -> None:
    net = StationNet(ONE, topic_log_config=TopicLogConfig(fetch_max=2))
    old = published(net, 24, "abc")
    net.reader("s", start=1)
    net.subscribe("s", "a", "b", "c")
    net.come_to_rest()
    assert net.delivered("s") == old
    asked = questions(net)
    assert len(asked) == len(set(asked)) == 3 * 4


def test_events_fetched_before_a_pause_are_not_fetched_again() -> None:
    net = StationNet(ONE, topic_log_config=TopicLogConfig(fetch_max=4))
    old = published(net, 8) + published(net, 3, "a", first=9)
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    while not questions(net) or len(net.find(Fetched)) < 2:
        net.deliver(min(net.arrivals()))
    net.deliver(net.find(Fetched)[0])  # Of one topic, which waits for the other.
    net.pause("s")
    net.settle()
    assert net.delivered("s") == []
    net.resume("s")
    net.come_to_rest()
    assert net.delivered("s") == old
    assert sorted(questions(net)) == [("a", 1), ("a", 5), ("b", 1), ("b", 1)]


def test_unanswered_fetch_is_repeated_with_backoff() -> None:
    net = StationNet(ONE)
    published(net, 2, "a")
    net.reader("s", start=1)
    net.subscribe("s", "a")
    asked: list[int] = []
    with net.holding(Fetched):
        for _ in range(25 * 4):
            net.pass_time(net.config.retry_ns // 4)
            asked += [net.now_ns] * (len(questions(net)) - len(asked))
    waits = [round((b - a) / net.config.retry_ns) for a, b in pairwise(asked)]
    assert waits == [1, 2, 4, 8, 8]


def test_duplicate_or_late_answer_changes_nothing() -> None:
    net = StationNet(ONE, topic_log_config=TopicLogConfig(fetch_max=2))
    old = published(net, 6)
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    net.come_to_rest()
    for parcel in [each for each in net.handled if isinstance(each.frame, Fetched)]:
        net.repeat(parcel)
    net.come_to_rest()
    assert net.delivered("s") == old


def test_voids_are_skipped() -> None:
    # A subscription to both makes stamps that two stations fill, so events can be voided.
    net = StationNet({"s1": ["a"], "s2": ["b"]})
    net.subscribe("both", "a", "b")
    net.settle()
    net.publish("gone", "a", "never")
    while not any("Stamped" in type(each.frame).__name__ for each in net.under_way):
        net.deliver(min(net.arrivals()))
    net.crash("gone")
    published(net, 2, "a")
    net.pass_time(net.config.lease_ns * 2)
    net.reader("s", start=1)
    net.subscribe("s", "a")
    net.come_to_rest()
    assert net.delivered("s") == ["e1", "e2"]
    assert ("", "void") in net.discarded("s")


# -- Joining ---------------------------------------------------------------------------------------


def test_topic_is_joined_at_its_cut_and_its_past_follows() -> None:
    """The application must be able to read meanwhile, however long the past is."""
    net = StationNet(ONE)
    old = published(net, 4)
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    with net.holding(Fetched):
        net.settle()
        assert net.joined("s") == ["a", "b"]
        assert set(net.subscriber("s").topics) == {"a", "b"}
    net.come_to_rest()
    assert net.joined("s") == ["a", "b"]
    kinds = [type(each) for each in net.outcomes["s"]]
    assert kinds == [Join, Join] + [Deliver] * len(old)


def test_topic_left_during_backfill_delivers_nothing_more() -> None:
    net = StationNet(ONE, topic_log_config=TopicLogConfig(fetch_max=2))
    published(net, 12)
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    while not net.delivered("s"):
        net.deliver(min(net.arrivals()))
    before = len(net.delivered("s"))
    net.unsubscribe("s", "a")
    net.come_to_rest()
    evens = [f"e{number}" for number in range(2, 13, 2)]
    assert [name for name in net.delivered("s")[before:] if name not in evens] == []
    assert [name for name in net.delivered("s") if name in evens] == evens
    assert [each.topic for each in net.outcomes["s"] if isinstance(each, Leave)] == ["a"]


def test_leaving_a_topic_releases_topics_that_wait_for_it() -> None:
    net = StationNet(ONE)
    old = published(net, 3, "a")
    published(net, 3, "b", first=4)
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    while not net.find(Fetched):
        net.deliver(min(net.arrivals()))
    net.deliver(net.find(Fetched)[0])
    net.drop(Fetched)
    net.drop(Fetch)
    net.unsubscribe("s", "b")
    net.come_to_rest()
    new = published(net, 2, "a", first=7)
    net.come_to_rest()
    assert net.delivered("s") == old + new


def test_topics_of_two_stations_are_refused_with_a_reason() -> None:
    net = StationNet({"s1": ["a"], "s2": ["b"]})
    reader = net.reader("s", start=1)
    with pytest.raises(SubscriptionRefused, match="'a' by s1, 'b' by s2") as refused:
        reader.subscribe(("a", "b"), now_ns=0)
    assert refused.value.reason == "apart"
    net.subscribe("s", "a")
    with pytest.raises(SubscriptionRefused, match="only with topics of one server"):
        reader.subscribe(("b",), now_ns=0)
    net.come_to_rest()
    assert net.joined("s") == ["a"]


# -- Pausing ---------------------------------------------------------------------------------------


def test_pause_during_backfill_stops_it_and_resume_continues_there() -> None:
    net = StationNet(ONE, topic_log_config=TopicLogConfig(fetch_max=2))
    old = published(net, 10)
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    while len(net.delivered("s")) < 3:
        net.deliver(min(net.arrivals()))
    net.pause("s")
    before = net.delivered("s")
    net.settle()
    net.pass_time(10 * net.config.poll_ns)
    assert net.delivered("s") == before
    new = published(net, 3, first=11)
    net.resume("s")
    net.come_to_rest()
    assert net.delivered("s") == old + new


def test_pause_after_the_cut_drops_events_and_requests_them_again() -> None:
    net = StationNet(ONE)
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    net.settle()
    net.pause("s")
    net.settle()
    names = published(net, 4)
    assert net.delivered("s") == []
    assert not net.find(Notify)
    net.resume("s")
    net.come_to_rest()
    assert net.delivered("s") == names


def test_pause_while_a_cut_is_in_flight_loses_nothing() -> None:
    net = StationNet(ONE)
    old = published(net, 4)
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    while not net.find(Changed):
        net.deliver(min(net.arrivals()))
    net.pause("s")
    net.settle()
    new = published(net, 2, first=5)
    net.resume("s")
    net.come_to_rest()
    assert net.delivered("s") == old + new


# -- Crashes ---------------------------------------------------------------------------------------


def resumed_behind(net: StationNet, reader: str, position: int) -> list[str]:
    """Crash and restart a reader; return its later deliveries."""
    before = len(net.delivered(reader))
    net.crash(reader)
    net.restart(reader)
    net.come_to_rest()
    assert net.positions(reader)[before:][:1] in ([], [position + 1])
    return net.delivered(reader)[before:]


@pytest.mark.parametrize("acknowledged", range(11))
def test_crash_during_backfill_resumes_after_the_last_acknowledged(acknowledged: int) -> None:
    net = StationNet(ONE, topic_log_config=TopicLogConfig(fetch_max=2))
    old = published(net, 10, "aab")
    net.reader("s", start=1, acknowledge_each=True)
    net.subscribe("s", "a", "b")
    net.settle()
    net.acknowledge("s", acknowledged)
    assert resumed_behind(net, "s", acknowledged) == old[acknowledged:]


@pytest.mark.parametrize("acknowledged", range(1, 7))
def test_finished_topic_keeps_its_progress_while_others_catch_up(
    acknowledged: int,
) -> None:
    """All of `a` lies before most of `b`: it is read long before it can be joined."""
    net = StationNet(ONE, topic_log_config=TopicLogConfig(fetch_max=1))
    old = published(net, 3, "a") + published(net, 9, "b", first=4)
    net.reader("s", start=1, acknowledge_each=True)
    net.subscribe("s", "a", "b")
    while len(net.delivered("s")) < acknowledged:
        net.deliver(min(net.arrivals()))
    net.acknowledge("s", acknowledged)
    assert "catches up" in " ".join(net.waiting())
    assert resumed_behind(net, "s", acknowledged) == old[acknowledged:]
    new = published(net, 2, first=13)
    net.come_to_rest()
    assert net.delivered("s")[-2:] == new


def test_crash_during_backfill_without_acknowledgements_resumes_after_delivery() -> None:
    net = StationNet(ONE, topic_log_config=TopicLogConfig(fetch_max=2))
    old = published(net, 10)
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    while len(net.delivered("s")) < 5:
        net.deliver(min(net.arrivals()))
    count = len(net.delivered("s"))
    assert resumed_behind(net, "s", count) == old[count:]


def test_restart_resumes_at_the_first_start_whatever_it_is_given() -> None:
    net = StationNet(ONE, topic_log_config=TopicLogConfig(fetch_max=2))
    old = published(net, 10, "a")
    for start, other in ((4, None), (4, 1), (4, 9), (1, 8), (1, None)):
        name = f"from-{start}-then-{other}"
        net.reader(name, start=start, acknowledge_each=True)
        net.subscribe(name, "a")
        net.settle()
        net.acknowledge(name, 1)
        net.reader(name, start=other, acknowledge_each=True)
        assert resumed_behind(net, name, 1) == old[start:], name


def test_restart_before_any_answer_keeps_its_start() -> None:
    net = StationNet(ONE)
    old = published(net, 10, "a")
    net.reader("s", start=4, acknowledge_each=True)
    net.subscribe("s", "a")
    with net.holding(Fetched):
        net.settle()
    net.reader("s", start=None, acknowledge_each=True)
    net.drop(Fetched)
    assert resumed_behind(net, "s", 0) == old[3:]


# -- Stamps that other stations complete -----------------------------------------------------------


def put_late(seed: int) -> StationNet:
    """Publish events of one station, whose stamps another completes, in any order."""
    draw = Random(seed)
    net = StationNet({"low": ["a", "b", "c"], "high": ["d"]})
    net.subscribe("everything", "a", "b", "c", "d")
    net.settle()
    for number in range(1, 26):
        with net.holding(Put):
            net.publish(f"p{number}", draw.choice("abc"), f"e{number}")
            net.settle()
        for parcel in net.find(Put):
            if draw.random() < 0.6:
                net.deliver(parcel)
    net.come_to_rest()
    return net


@pytest.mark.parametrize("seed", range(20))
def test_reader_from_a_place_gets_the_order_of_the_stamps(seed: int) -> None:
    """Entries left out of the first stamp are in that of a skipped event."""
    net = put_late(seed)
    for start in range(2, 25):
        net.reader(f"from-{start}", start=start)
        net.subscribe(f"from-{start}", "a", "b", "c")
    net.come_to_rest()
    assert net.waiting() == []
    assert net.disagreements() == []


def test_stamp_without_predecessor_is_ordered_by_the_other_stamp() -> None:
    net = StationNet({"low": ["a", "b"], "high": ["d"]})
    net.subscribe("everything", "a", "b", "d")
    net.settle()
    net.publish("p", "a", "a1")
    net.settle()
    with net.holding(Put, about="b1"):
        net.publish("q", "b", "b1")
        net.settle()
        net.publish("p", "a", "a2")
        net.settle()
        net.publish("p", "a", "a3")
        net.settle()
    net.come_to_rest()
    assert net.put_out("low") == ["a1", "a2", "a3", "b1"]
    net.trim("a", 3)
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    net.come_to_rest()
    assert net.delivered("s") == ["b1", "a3"]
    assert net.disagreements() == []


# -- Added topics -------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_topic_added_later_begins_with_new_events(restarted: bool) -> None:
    net = StationNet(ONE)
    net.subscribe("everything", "a", "b")
    net.settle()
    published(net, 4)
    net.reader("s", start=1)
    net.subscribe("s", "b")
    net.come_to_rest()
    if restarted:
        net.restart("s")
        net.settle()
    net.subscribe("s", "a")
    net.come_to_rest()
    new = published(net, 4, first=5)
    net.come_to_rest()
    assert net.delivered("s") == ["e2", "e4", *new]
    assert net.disagreements() == []


def test_new_events_of_an_added_topic_wait_for_the_backfill() -> None:
    net = StationNet(ONE)
    old = published(net, 6, "a")
    net.reader("s", start=1)
    with net.holding(Fetched):
        net.subscribe("s", "a")
        net.settle()
        net.subscribe("s", "b")
        net.settle()
        new = published(net, 6, first=7)
        assert net.delivered("s") == []
    net.come_to_rest()
    assert net.delivered("s") == old + new


@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_left_and_joined_again_does_not_repeat_its_past(restarted: bool) -> None:
    net = StationNet(ONE)
    old = published(net, 4)
    net.reader("s", start=1)
    net.subscribe("s", "a", "b")
    net.come_to_rest()
    net.unsubscribe("s", "a", "b")
    net.come_to_rest()
    if restarted:
        net.restart("s")
        net.settle()
    net.subscribe("s", "b", "a")
    net.come_to_rest()
    new = published(net, 2, first=5)
    net.come_to_rest()
    assert net.delivered("s") == old + new


def test_topics_left_before_joining_do_not_use_up_the_start() -> None:
    net = StationNet(ONE)
    old = published(net, 4)
    net.reader("s", start=1)
    net.subscribe("s", "c")
    net.unsubscribe("s", "c")
    net.subscribe("s", "a", "b")
    net.come_to_rest()
    assert net.delivered("s") == old


def test_a_topic_of_another_station_may_be_added_once_the_first_ones_are_joined() -> None:
    net = StationNet({"one": ["a"], "two": ["b"]})
    old = published(net, 4, "a")
    net.reader("s", start=1)
    net.subscribe("s", "a")
    net.settle()
    net.subscribe("s", "b")
    net.come_to_rest()
    new = published(net, 4, first=5)
    net.come_to_rest()
    assert net.delivered("s") == old + new


@pytest.mark.parametrize("answered", [False, True])
def test_records_of_earlier_versions_are_restored(answered: bool) -> None:
    net = StationNet(ONE)
    old = published(net, 4)
    net.reader("s", start=1)
    with net.holding(Changed):
        net.subscribe("s", "a", "b")
        net.settle()
        if answered:
            net.deliver(net.find(Changed)[0])
            net.come_to_rest()
        state = msgspec.msgpack.decode(net.disks["s"]["state"])
        net.disks["s"]["state"] = msgspec.msgpack.encode(state[:5])
        net.drop(Changed)
        net.restart("s")
    net.come_to_rest()
    assert net.delivered("s") == old
    net.subscribe("s", "c")
    net.come_to_rest()
    assert net.subscriber("s")._start is None


# -- Falling behind ---------------------------------------------------------------------------


def fallen_behind(net: StationNet, name: str, *trimmed: tuple[str, int]) -> None:
    """Pause a reader, trim logs, and resume it."""
    for topic, first in trimmed:
        net.trim(topic, first)
    net.resume(name)
    net.come_to_rest()


def missed(net: StationNet, name: str) -> list[tuple[str, int, int]]:
    joins = (each for each in net.outcomes[name] if isinstance(each, Join))
    return [(each.topic, *each.missed) for each in joins if each.missed is not None]


def test_subscriber_that_fell_behind_gets_retained_events_and_missed_slots() -> None:
    net = StationNet(ONE)
    net.subscribe("s", "a")
    net.settle()
    first = published(net, 3, "a")
    net.pause("s")
    later = published(net, 9, "a", first=4)
    fallen_behind(net, "s", ("a", 7))
    assert net.delivered("s") == first + later[3:]
    assert net.positions("s") == list(range(1, 10))
    assert missed(net, "s") == [("a", 4, 6)]
    new = published(net, 2, "a", first=13)
    net.come_to_rest()
    assert net.delivered("s")[-2:] == new


def test_other_topics_wait_while_a_fallen_one_is_read() -> None:
    net = StationNet(ONE)
    net.subscribe("s", "a", "b")
    net.settle()
    published(net, 4)
    net.pause("s")
    later = published(net, 8, first=5)
    # b has all that it needs; a lacks its slots 3 and 4, which are e5 and e7.
    fallen_behind(net, "s", ("a", 5))
    assert net.delivered("s")[4:] == [each for each in later if each not in ("e5", "e7")]
    assert missed(net, "s") == [("a", 3, 4)]


def test_completely_trimmed_log_is_missed_to_its_end() -> None:
    net = StationNet(ONE)
    net.subscribe("s", "a", "b")
    net.settle()
    net.pause("s")
    published(net, 6)
    fallen_behind(net, "s", ("a", 4))
    assert net.delivered("s") == ["e2", "e4", "e6"]
    assert missed(net, "s") == [("a", 1, 3)]
    assert published(net, 2, first=7) == net.delivered("s")[-2:]


def test_falling_behind_again_during_backfill_is_reported_again() -> None:
    net = StationNet(ONE, topic_log_config=TopicLogConfig(fetch_max=2))
    net.subscribe("s", "a")
    net.settle()
    net.pause("s")
    published(net, 20, "a")
    net.trim("a", 5)
    net.resume("s")
    net.pass_time(net.config.poll_ns, settle=False)
    while not net.delivered("s"):
        net.deliver(min(net.arrivals()))
    net.pause("s")
    net.trim("a", 15)
    net.resume("s")
    net.come_to_rest()
    reported = missed(net, "s")
    assert reported[0] == ("a", 1, 4)
    assert reported[1][2] == 14
    lost = {f"e{slot}" for _, first, last in reported for slot in range(first, last + 1)}
    assert net.delivered("s") == [f"e{n}" for n in range(1, 21) if f"e{n}" not in lost]


@pytest.mark.parametrize("held", [Changed, Fetched])
def test_restart_while_catching_up_loses_no_unacknowledged_event(
    held: type[Changed] | type[Fetched],
) -> None:
    net = StationNet(ONE)
    net.reader("s", acknowledge_each=True)
    net.subscribe("s", "a", "b")
    net.settle()
    published(net, 8)
    net.acknowledge("s", 5)
    net.pause("s")
    published(net, 8, first=9)
    net.trim("a", 6)  # e9 is gone; e7 was delivered, is not acknowledged, and can't come again.
    with net.holding(held):
        net.resume("s")
        net.pass_time(net.config.poll_ns)
        net.crash("s")
    before = len(net.delivered("s"))
    net.drop(held)
    net.restart("s")
    net.come_to_rest()
    again = net.delivered("s")[before:]
    assert again == ["e6", "e8", "e10", "e11", "e12", "e13", "e14", "e15", "e16"]
    assert ("a", 4, 5) in missed(net, "s")


@pytest.mark.parametrize("crash", ["before the cut", "after the cut"])
@pytest.mark.parametrize("acknowledged", [6, 7, 8])
def test_events_acknowledged_while_rejoining_are_not_redelivered(
    acknowledged: int, crash: str
) -> None:
    net = StationNet(ONE)
    net.reader("s", acknowledge_each=True)
    net.subscribe("s", "a", "b")
    net.settle()
    published(net, 8)
    net.acknowledge("s", 5)
    net.pause("s")
    published(net, 8, first=9)
    net.trim("a", 6)
    with net.holding(Changed):
        net.resume("s")
        net.pass_time(net.config.poll_ns)
        assert net.find(Changed)
        net.acknowledge("s", acknowledged)
        if crash == "before the cut":
            net.restart("s")
    if crash == "after the cut":
        net.settle()
        net.restart("s")
    before = len(net.delivered("s"))
    net.come_to_rest()
    open_events = [name for name in ("e6", "e8") if int(name[1:]) > acknowledged]
    behind = [f"e{number}" for number in range(10, 17)]
    assert net.delivered("s")[before:] == open_events + behind
    assert net.positions("s")[before] == acknowledged + 1


def test_topic_left_and_rejoined_is_read_from_its_new_cut() -> None:
    net = StationNet(ONE)
    net.reader("s", acknowledge_each=True)
    net.subscribe("s", "a", "b")
    net.settle()
    published(net, 4)  # e2 and e4 on b are never acknowledged.
    net.unsubscribe("s", "b")
    net.settle()
    published(net, 4, "b", first=5)
    net.subscribe("s", "b")
    net.settle()
    published(net, 2, first=9)
    net.pause("s")
    published(net, 4, first=11)
    net.trim("a", 5)
    with net.holding(Changed):
        net.resume("s")
        net.pass_time(net.config.poll_ns)
        net.crash("s")
    before = len(net.delivered("s"))
    net.drop(Changed)
    net.restart("s")
    net.come_to_rest()
    assert net.delivered("s")[before:] == ["e10", "e12", "e13", "e14"]
    assert ("b", 1, 2) not in missed(net, "s")


def test_rejoining_a_left_topic_that_fell_behind_reports_nothing_missed() -> None:
    net = StationNet({"one": ["a"], "two": ["b"]})
    net.subscribe("s", "a", "b")
    net.settle()
    net.pause("s")
    published(net, 12)
    net.trim("a", 4)
    with net.holding(Changed):
        net.resume("s")
        net.pass_time(net.config.poll_ns)
        assert "a" not in net.subscriber("s").topics
        net.unsubscribe("s", "a")
    net.settle()
    net.subscribe("s", "a")
    net.come_to_rest()
    assert "a" in net.subscriber("s").topics
    assert missed(net, "s") == []


def test_topics_of_several_stations_continue_with_new_events() -> None:
    net = StationNet({"one": ["a"], "two": ["b"]})
    net.subscribe("s", "a", "b")
    net.settle()
    net.pause("s")
    published(net, 12)
    fallen_behind(net, "s", ("a", 4))
    assert net.delivered("s") == [f"e{number}" for number in range(2, 13, 2)]
    assert missed(net, "s") == [("a", 1, 6)]


@pytest.mark.parametrize("crash", [False, True])
def test_backfill_that_falls_behind_is_reported(crash: bool) -> None:
    net = StationNet(ONE, topic_log_config=TopicLogConfig(fetch_max=2))
    published(net, 10, "a")
    net.trim("a", 3)  # Trimmed before it was requested.
    net.reader("s", acknowledge_each=True, start=1)
    net.subscribe("s", "a")
    while len(net.delivered("s")) < 2:
        net.deliver(min(net.arrivals()))
    net.acknowledge("s", 2)
    net.pause("s")
    if crash:
        net.restart("s")
    net.trim("a", 8)
    net.resume("s")
    net.come_to_rest()
    assert net.delivered("s") == ["e3", "e4", "e8", "e9", "e10"]
    assert missed(net, "s") == [("a", 5, 7)]


def test_missed_slots_count_from_the_start_place() -> None:
    net = StationNet(ONE)
    published(net, 10)
    net.reader("s", acknowledge_each=True, start=5)
    net.subscribe("s", "a", "b")
    net.settle()
    net.crash("s")
    net.trim("a", 5)
    net.trim("b", 4)
    before = len(net.delivered("s"))
    net.restart("s")
    net.come_to_rest()
    assert net.delivered("s")[before:] == ["e8", "e9", "e10"]
    assert missed(net, "s") == [("a", 3, 4), ("b", 3, 3)]


def test_restart_before_the_first_answer_starts_with_retained_events() -> None:
    net = StationNet(ONE)
    published(net, 6, "a")
    net.reader("s", start=1)
    net.subscribe("s", "a")
    with net.holding(Fetched):
        net.settle()
        net.crash("s")
    net.drop(Fetched)
    net.trim("a", 4)
    net.restart("s")
    net.come_to_rest()
    assert net.delivered("s") == ["e4", "e5", "e6"]
    assert missed(net, "s") == []


@pytest.mark.parametrize("seed", range(60))
def test_random_trims_keep_order_and_report_missed_events(
    seed: int,
) -> None:
    """Random trims, pauses, losses and crashes: every event is delivered, or reported as missed."""
    random = Random(seed)
    small = TopicLogConfig(fetch_max=random.choice((1, 2, 7)), batch_max=random.choice((1, 3, 256)))
    net = StationNet(ONE, topic_log_config=small)
    net.publisher("p")
    readers = {"s0": "abc", "s1": "ab", "s2": "c"}
    crashes = {name: [0] for name in (*readers, "early")}
    each = random.random() < 0.5
    for name, topics in readers.items():
        net.reader(name, acknowledge_each=each)
        net.subscribe(name, *topics)
    net.settle()
    known: dict[str, tuple[int, str, int]] = {}
    published(net, 12)
    readers["early"] = "ab"  # It starts in the past, and has begun to read that.
    net.reader("early", acknowledge_each=each, start=1)
    net.subscribe("early", "a", "b")
    while not net.delivered("early"):
        net.deliver(min(net.arrivals()))

    def note() -> None:
        for slot, event in net.station("station").log.contents():
            known[event.payload.decode()] = (event.place, event.topic, slot)

    numbers = iter(range(13, 10_000))
    for _ in range(150):
        name = random.choice(sorted(readers))
        match random.choice(TRIM_ACTIONS):
            case "join" if name in net.nodes:
                net.subscribe(name, "c")
            case "publish":
                net.publish("p", random.choice("abc"), f"e{next(numbers)}")
            case "arrive":
                for _ in range(random.randint(1, 12)):
                    if choices := net.arrivals():
                        net.deliver(random.choice(choices))
            case "trim":
                note()
                topic = random.choice("abc")
                first, following = net.station("station").log.bounds().get(topic, (1, 1))
                net.trim(topic, random.randint(first, following))
            case "lose" if choices := net.arrivals():
                net.under_way.remove(random.choice(choices))
            case "repeat" if net.handled:
                net.repeat(random.choice(net.handled[-20:]))
            case "acknowledge" if positions := net.positions(name):
                net.acknowledge(name, random.randint(0, positions[-1]))
            case "pause" | "resume" as what:
                (net.pause if what == "pause" else net.resume)(name)
            case "crash" if seed % 2:
                net.crash(name)
                crashes[name].append(len(net.delivered(name)))
                net.restart(name)
            case "time":
                net.pass_time(random.randrange(10**9), settle=False)
            case _:
                pass
    for name in readers:
        net.resume(name)
    net.come_to_rest(random.choice)
    note()
    assert net.waiting() == [], seed
    for name, topics in readers.items():
        got = net.delivered(name)
        for start, stop in zip(crashes[name], [*crashes[name][1:], len(got)], strict=True):
            places = [known[event][0] for event in got[start:stop]]
            assert places == sorted(set(places)), (seed, name, "out of order, or twice")
        reported = [
            (topic, slot)
            for topic, first, last in missed(net, name)
            for slot in range(first, last + 1)
            if topic in topics
        ]
        wanted = {event for event, (_, topic, _) in known.items() if topic in topics}
        absent = {known[event][1:] for event in wanted - set(got)}
        assert absent <= set(reported), (seed, name, "neither delivered nor reported")
        if len(crashes[name]) == 1:
            assert sorted(absent) == sorted(reported), (
                seed,
                name,
                "reported twice, or delivered as well",
            )


# -- Against the log -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_backfill_order_equals_the_log_under_random_faults(seed: int) -> None:
    """Random publishes, joins, crashes, losses and pauses against a simple model: the log."""
    random = Random(seed)
    small = TopicLogConfig(fetch_max=random.choice((1, 2, 7)), batch_max=random.choice((1, 3, 256)))
    net = StationNet(ONE, topic_log_config=small)
    net.publisher("p")
    each = random.random() < 0.6
    starts: dict[str, int] = {}
    numbers = iter(range(1, 10_000))
    paused: set[str] = set()
    for _ in range(120):
        match random.choice(LOG_ACTIONS):
            case "publish":
                net.publish("p", random.choice("abc"), f"e{next(numbers)}")
            case "join" if len(starts) < 4:
                name = f"s{len(starts)}"
                out = len(net.put_out("station"))
                starts[name] = random.choice((1, random.randint(1, max(1, out))))
                net.reader(name, start=starts[name], acknowledge_each=each)
                net.subscribe(name, *random.sample("abc", random.randint(1, 3)))
            case "arrive":
                for _ in range(random.randint(1, 8)):
                    if choices := net.arrivals():
                        net.deliver(random.choice(choices))
            case "lose" if choices := net.arrivals():
                net.under_way.remove(random.choice(choices))
            case "repeat" if net.handled:
                net.repeat(random.choice(net.handled[-20:]))
            case "acknowledge" if starts:
                name = random.choice(sorted(starts))
                if name in net.nodes and (positions := net.positions(name)):
                    net.acknowledge(name, random.randint(0, positions[-1]))
            case "pause" | "resume" as what if starts:
                name = random.choice(sorted(starts))
                if name in net.nodes:
                    (net.pause if what == "pause" else net.resume)(name)
                    (paused.add if what == "pause" else paused.discard)(name)
            case "crash":
                name = random.choice(["station", "p", *sorted(starts)])
                net.crash(name)
                net.restart(name)
                paused.discard(name)
            case "time":
                net.pass_time(random.randrange(10**9), settle=False)
            case _:
                pass
    for name in sorted(paused):
        net.resume(name)
    net.come_to_rest(random.choice)
    assert net.waiting() == []
    log = sorted(
        (event for _, event in net.station("station").log.contents()), key=lambda event: event.place
    )
    for name, start in starts.items():
        topics = net.subscriber(name).topics
        wanted = [e.payload.decode() for e in log if e.topic in topics and e.place >= start]
        by_position: dict[int, str] = {}
        for position, event in zip(net.positions(name), net.delivered(name), strict=True):
            # Delivered again after a crash, a position has the same event.
            assert by_position.setdefault(position, event) == event, (seed, name)
        assert sorted(by_position) == list(range(1, len(wanted) + 1)), (seed, name)
        assert [by_position[position] for position in sorted(by_position)] == wanted, (seed, name)
        if not each:
            assert len(net.positions(name)) == len(by_position), "nothing comes twice"
