"""A lost event that no later one follows: the log's probe shows it, and the subscriber requests it.

All messages of these nets take no time, unless they are held.
"""

from tests.protocols.total.harness import Net

from ensue.protocols.topic_log.frames import AttachRequest, LogEnd, Notify
from ensue.protocols.topic_log.log import TopicLogConfig
from ensue.protocols.total.config import SequencerConfig

MS = 1_000_000
CHAIN = {"low": ["a", "b"], "high": ["c"]}
PROBE_NS = 25 * MS


def reading(*topics: str, probe_ns: int = PROBE_NS, least_ns: int = 10 * MS) -> Net:
    """A net with one subscriber that has joined the topics and measured its round trip."""
    net = Net(
        CHAIN,
        config=SequencerConfig(retry_ns_min=least_ns),
        topic_log_config=TopicLogConfig(probe_ns=probe_ns),
    )
    net.subscribe("s", *topics)
    net.settle()
    for topic in topics:
        net.publish("p", topic, f"{topic}0")
    net.settle()
    net.pass_time(500 * MS)
    net.handled.clear()
    return net


def lose(net: Net, topic: str, event: str) -> None:
    """Publish an event whose notification is lost."""
    net.publish("p", topic, event)
    with net.holding(Notify):
        net.settle()
    net.drop(Notify)


def requests(net: Net) -> list[int]:
    return [
        parcel.frame.from_slot
        for parcel in net.handled
        if isinstance(parcel.frame, AttachRequest) and parcel.frame.from_slot
    ]


def test_last_event_before_a_silence_is_requested_at_the_first_probe() -> None:
    net = reading("a")
    lose(net, "a", "e1")
    net.pass_time(PROBE_NS - 1)
    assert net.delivered("s") == ["a0"]
    net.pass_time(1)
    assert net.delivered("s") == ["a0", "e1"]
    assert requests(net) == [2]


def test_without_probes_it_waits_for_the_poll() -> None:
    net = reading("a", probe_ns=0)
    lose(net, "a", "e1")
    net.pass_time(1000 * MS)
    assert net.delivered("s") == ["a0"]


def test_lost_probe_is_made_up_by_the_second() -> None:
    net = reading("a")
    lose(net, "a", "e1")
    net.pass_time(PROBE_NS, settle=False)
    net.drop(LogEnd)
    net.pass_time(2 * PROBE_NS)
    assert net.delivered("s") == ["a0", "e1"]


def test_probe_requests_nothing_that_has_arrived() -> None:
    net = reading("a")
    net.publish("p", "a", "e1")
    net.settle()
    net.pass_time(500 * MS)
    assert sum(isinstance(parcel.frame, LogEnd) for parcel in net.handled) == 2
    assert requests(net) == []


def test_event_that_may_be_under_way_is_not_requested_before_a_round_trip() -> None:
    net = reading("a", probe_ns=4 * MS)
    net.publish("p", "a", "e1")
    with net.holding(Notify):
        net.settle()
        net.pass_time(9 * MS)
        assert any(isinstance(parcel.frame, LogEnd) for parcel in net.handled)
        assert requests(net) == []
    net.settle()
    net.pass_time(100 * MS)
    assert requests(net) == []
    assert net.delivered("s") == ["a0", "e1"]


def test_event_that_was_not_under_way_is_requested_after_a_round_trip() -> None:
    net = reading("a", probe_ns=4 * MS)
    lose(net, "a", "e1")
    net.pass_time(10 * MS)
    assert net.delivered("s") == ["a0", "e1"]


def test_probe_of_one_topic_does_not_delay_the_check_of_another() -> None:
    net = reading("a", "b", probe_ns=4 * MS)
    lose(net, "a", "e1")
    net.pass_time(3 * MS)
    lose(net, "b", "e2")
    net.pass_time(7 * MS)
    assert net.delivered("s")[:3] == ["a0", "b0", "e1"]
    net.pass_time(3 * MS)
    assert net.delivered("s") == ["a0", "b0", "e1", "e2"]


def test_subscriber_that_is_paused_requests_nothing_at_a_probe() -> None:
    net = reading("a")
    net.subscriber("s").pause()
    lose(net, "a", "e1")
    net.subscriber("s").receive(
        LogEnd(topic="a", next=3, silent_ns=PROBE_NS), source="ens", now_ns=net.now_ns
    )
    net.pass_time(PROBE_NS)
    assert requests(net) == []


def test_probe_of_a_topic_that_was_left_changes_nothing() -> None:
    net = reading("a", "b")
    lose(net, "a", "e1")
    net.unsubscribe("s", "a")
    net.subscriber("s").receive(
        LogEnd(topic="a", next=3, silent_ns=PROBE_NS), source="ens", now_ns=net.now_ns
    )
    net.settle()
    assert requests(net) == []
    assert net.delivered("s") == ["a0", "b0"]
