"""Incarnations of one name: a durable subscription that is deleted and recreated."""

import msgspec
import pytest
from tests.protocols.total.harness import Net

from ensue.protocols.total.frames import Changed, ChangeFill, Forget, Refused
from ensue.protocols.total.records import SUBSCRIPTION
from ensue.protocols.total.subscriber import Subscriber

CHAIN = {"low": ["a", "b"], "middle": ["c"], "high": ["d"]}


def chain() -> Net:
    return Net(CHAIN)


def change(net: Net, how: str, *topics: str) -> None:
    getattr(net, how)("s", *topics)
    net.settle()


def create_anew(net: Net, *, life: int = 0) -> None:
    """Delete the records of the name, and create it again."""

    def build(records: dict[str, bytes]) -> Subscriber:
        return Subscriber(
            name="s",
            placement=net.placement,
            config=net.config,
            records=records,
            life=life,
            now_ns=net.now_ns,
        )

    net._builders["s"] = build
    net.disks["s"].clear()
    net.outcomes["s"].clear()
    net.restart("s")
    net.settle()


def told_goodbye(net: Net) -> list[str]:
    return [each.target for each in net.handled if isinstance(each.frame, Forget)]


def test_nodes_visited_before_a_restart_get_the_leave_after_it() -> None:
    net = chain()
    change(net, "subscribe", "d")
    change(net, "subscribe", "a")
    change(net, "unsubscribe", "a")
    net.restart("s")
    net.settle()
    change(net, "unsubscribe", "d")
    assert sorted(told_goodbye(net)) == ["high", "low", "middle"]
    assert [net.stage(name).changes.seen for name in CHAIN] == [{}, {}, {}]


def test_leave_not_sent_before_a_crash_is_sent_after_it() -> None:
    net = chain()
    change(net, "subscribe", "a", "d")
    with net.holding(Forget):
        change(net, "unsubscribe", "a", "d")
        net.drop(Forget)
    assert net.stage("low").changes.seen == {"s": 2}
    net.restart("s")
    net.settle()
    assert [net.stage(name).changes.seen for name in CHAIN] == [{}, {}, {}]


def test_records_without_node_names_are_restored() -> None:
    net = chain()
    change(net, "subscribe", "a", "d")
    state = msgspec.msgpack.decode(net.disks["s"]["state"])
    net.disks["s"]["state"] = msgspec.msgpack.encode(state[:5])
    assert SUBSCRIPTION.decode(net.disks["s"]["state"]).visited == ()
    net.restart("s")
    net.settle()
    change(net, "unsubscribe", "a", "d")
    assert sorted(told_goodbye(net)) == ["high", "low", "middle"]


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("life", [0, 3, 10**18])
@pytest.mark.parametrize("remembering", ["low", "middle", "high"])
def test_recreated_name_registers_wherever_an_earlier_incarnation_is_known(
    remembering: str, life: int, lost: bool
) -> None:
    net = chain()
    for topics in (("a", "c", "d"), ("a", "b", "c", "d")):
        change(net, "subscribe", *topics)
        with net.holding(Forget, to=remembering):
            change(net, "unsubscribe", *topics)
            net.drop(Forget, to=remembering)
    net.publish("p", "a", "old")
    net.settle()
    create_anew(net, life=life)
    assert [name for name in CHAIN if net.stage(name).changes.seen] == [remembering]
    with net.holding(Refused):
        change(net, "subscribe", "a", "c", "d")
        if lost:
            net.drop(Refused)
    net.come_to_rest()
    assert net.waiting() == []
    wanted = {"s": ("a", "c", "d")}
    assert [net.stage(name).groups.subscriptions for name in CHAIN] == [wanted] * 3
    net.publish("p", "a", "new")
    net.come_to_rest()
    assert net.delivered("s") == ["new"]


def test_recreated_name_gets_no_cut_of_an_earlier_incarnation() -> None:
    net = chain()
    net.subscribe("t", "a", "b")
    change(net, "subscribe", "a", "b")
    change(net, "subscribe", "d")
    with net.holding(Forget, to="low"):
        change(net, "unsubscribe", "a", "b")
        change(net, "unsubscribe", "d")
        net.drop(Forget, to="low")
    for event in ("old1", "old2"):
        net.publish("p", "a", event)
        net.settle()
    create_anew(net)
    change(net, "subscribe", "a", "b")
    net.come_to_rest()
    assert net.stage("low").groups.subscriptions == {"t": ("a", "b"), "s": ("a", "b")}
    net.publish("p", "b", "new")
    net.come_to_rest()
    assert net.delivered("s") == ["new"]


def test_incarnations_do_not_share_numbers_at_any_node() -> None:
    """Raised by one, a number would equal one of the earlier incarnation at another node."""
    net = chain()
    with net.holding(Forget):
        for how, topics in (
            ("subscribe", "b"),
            ("unsubscribe", "b"),
            ("subscribe", "d"),
            ("unsubscribe", "d"),
        ):
            change(net, how, topics)
        net.drop(Forget)
    assert (net.stage("low").changes.seen, net.stage("high").changes.seen) == ({"s": 2}, {"s": 4})
    create_anew(net)
    change(net, "subscribe", "a")
    change(net, "subscribe", "b")
    change(net, "subscribe", "d")
    net.come_to_rest()
    assert net.waiting() == []
    assert net.stage("high").groups.subscriptions == {"s": ("a", "b", "d")}


def test_answer_to_a_late_change_of_the_same_incarnation_is_ignored() -> None:
    net = chain()
    change(net, "subscribe", "a", "d")
    first = next(each for each in net.handled if isinstance(each.frame, ChangeFill))
    change(net, "subscribe", "b")
    number = net.subscriber("s")._number
    net.repeat(first)
    with net.holding(Changed):
        net.subscribe("s", "c")
        net.settle()
    net.settle()
    assert net.subscriber("s")._number == number + 1
    assert net.waiting() == []
