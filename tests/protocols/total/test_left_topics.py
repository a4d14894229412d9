"""Groups by two subscriptions: topics that a subscriber has left still count."""

from tests.protocols.total.harness import Net
from tests.protocols.total.stages import Disk, ask, change, node, stamped

from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import ChangeRequest
from ensue.protocols.total.records import topics_of

CHAIN = {"low": ["a", "b"], "high": ["c"]}


def requests(net: Net, subscriber: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The changes that arrived, old and new topics."""
    return [
        (parcel.frame.old, parcel.frame.new)
        for parcel in net.handled
        if isinstance(parcel.frame, ChangeRequest) and parcel.source == subscriber
    ]


def test_one_common_subscription_does_not_order_topics_together() -> None:
    low = node(groups=2)
    change(low, 1, new="ab")
    ask(low, 1, "a", "b")
    assert ask(low, 3, "a") == [stamped({"a": 2}, number=3)]
    change(low, 1, new="ab", subscriber="r")
    assert ask(low, 4, "a") == [stamped({"a": 3, "b": 1}, number=4)]


def test_topics_of_one_station_are_ordered_together_by_one_subscription() -> None:
    low = node(groups=2, carries=True)
    change(low, 1, new="ab")
    assert low.groups.partners("a") == ["b"]
    far = node(groups=2, carries=True)
    change(far, 1, new="ad")
    assert far.groups.partners("a") == []


def test_a_left_topic_counts_as_one_that_a_subscriber_has() -> None:
    low = node(groups=2)
    change(low, 1, new="a")
    change(low, 2, old="a", new="b")
    assert low.groups.subscriptions == {"s": ("b",)}
    assert low.groups.left == {"s": ("a",)}
    change(low, 1, new="ab", subscriber="r")
    ask(low, 1, "a")
    assert ask(low, 2, "b") == [stamped({"b": 1, "a": 1}, number=2)]


def test_left_topics_survive_a_restart_of_the_node() -> None:
    disk = Disk()
    low = node(groups=2)
    for number, old, new in ((1, (), ("a",)), (2, ("a",), ("b",))):
        low.receive(ChangeRequest(number=number, old=old, new=new), source="s", now_ns=0)
    disk.drain(low)
    again = node(groups=2, records=disk)
    assert again.groups.left == {"s": ("a",)}
    # A placement may not move them either.
    assert set(topics_of(disk)) >= {"a", "b"}


def test_left_topics_end_with_the_subscriber() -> None:
    low = node(groups=2)
    change(low, 1, new="a")
    change(low, 2, old="a", new="b")
    change(low, 3, old="ab")
    assert low.groups.left == {}
    assert low.groups.pairs == 0


def test_changes_span_the_topics_that_were_left() -> None:
    net = Net(CHAIN, config=SequencerConfig(groups=2))
    net.subscribe("s", "c")
    net.settle()
    net.unsubscribe("s", "c")
    net.subscribe("s", "a")
    net.settle()
    assert requests(net, "s")[-1] == (("c",), ("a",))
    net.subscribe("s", "b")
    net.settle()
    assert requests(net, "s")[-1] == (("a", "c"), ("a", "b"))


def test_a_subscriber_without_topics_remembers_what_it_had() -> None:
    net = Net(CHAIN, config=SequencerConfig(groups=2))
    net.subscribe("s", "a")
    net.settle()
    net.unsubscribe("s", "a")
    net.settle()
    net.subscribe("s", "c")
    net.settle()
    assert requests(net, "s")[-1] == (("a",), ("c",))


def test_left_topics_count_for_the_limit_of_groups() -> None:
    low = node(groups=2, group_max=2)
    change(low, 1, new="a")
    change(low, 2, old="a", new="b")
    (refused,) = change(low, 3, old="ba", new="bd")
    assert "group_max" in str(refused)
