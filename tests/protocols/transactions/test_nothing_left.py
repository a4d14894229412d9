"""Ended transactions leave nothing behind: not at brokers, clients or on their disks."""

import pytest
from tests.protocols.transactions.harness import TransactionNet, adv, invite, line, pub, sub, usub
from tests.protocols.transactions.test_departures import settle_but

from ensue.protocols.content.client import Answered, Notified
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.transactions.client import Ceased, Concluded
from ensue.protocols.transactions.operations import OVER

SECOND = 10**9
HOMES = {"c0": "b0", "c1": "b1"}


def net_of_two() -> TransactionNet:
    """Return two brokers, with a client each."""
    return TransactionNet(line(2), HOMES)


def begun(net: TransactionNet, isolation: str, client: str = "c0") -> str:
    """Have a client begin a transaction; return its name."""
    net.command(client, lambda node, now: node.begin(isolation, SECOND, now_ns=now))
    net.settle()
    name: str = net.notified[client][-1].transaction
    return name


def invite_c1(net: TransactionNet, name: str) -> None:
    """Have c0 invite c1 into a transaction."""
    net.command("c0", lambda node, now: node.invite(name, "c1", now_ns=now))
    net.settle()


def subscribe(net: TransactionNet, name: str) -> None:
    """Have c0 subscribe within a transaction; the request is under way."""
    net.command("c0", lambda node, now: node.act(name, "sub", where="x = 1", now_ns=now))


@pytest.mark.parametrize("isolation", ["serializable", "atomic"])
def test_open_invitation_is_forgotten_at_the_end(isolation: str) -> None:
    net = net_of_two()
    net.on_notified = None  # No application reacts: c1 never finishes.
    for _ in range(3):
        invite_c1(net, begun(net, isolation))
        net.elapse(2 * SECOND)
    for broker in net.tree:
        assert not net.broker(broker).steps.causes, broker
    net.crash("b1")
    net.settle()
    assert not net.broker("b1").steps.causes
    net.at_rest()


def kept(net: TransactionNet, client: str) -> list[str]:
    """Return a client's subscriptions; its home has the same, and so has its disk."""
    mine = sorted(net.client(client).subscriptions)
    home = net.broker(net.homes[client]).tables.subscriptions
    assert mine == sorted(name for name, entry in home.items() if entry.hop == client)
    net.crash(client)
    net.settle()
    assert sorted(net.client(client).subscriptions) == mine
    return mine


@pytest.mark.parametrize("isolation", ["serializable", "atomic", "planned"])
def test_client_knows_its_subscriptions(isolation: str) -> None:
    net = net_of_two()
    assert net.run("c0", sub("s", "x = 1"), sub("t", "x = 2"), isolation=isolation) == ""
    names = net.application.names
    assert kept(net, "c0") == sorted((names["s"], names["t"]))
    assert net.run("c0", usub("s"), sub("u", "x = 3"), isolation=isolation) == ""
    assert kept(net, "c0") == sorted((names["t"], names["u"]))
    options = {"isolation": isolation, "commit": False, "hold": isolation == "planned"}
    net.run("c0", usub("t"), sub("v", "x = 4"), **options)
    assert kept(net, "c0") == sorted((names["t"], names["u"]))
    assert net.run("c0", sub("w", "x = 5"), usub("t"), usub("u"), isolation=isolation) == ""
    assert kept(net, "c0") == [names["w"]]


@pytest.mark.parametrize("isolation", ["serializable", "atomic", "planned"])
def test_invited_client_knows_its_subscriptions(isolation: str) -> None:
    net = net_of_two()
    acts = (sub("s", "x = 1"), sub("t", "x = 2"))
    assert net.run("c0", invite("c1", *acts), isolation=isolation) == ""
    names = net.application.names
    assert kept(net, "c1") == sorted((names["s"], names["t"]))
    options = {"isolation": isolation, "commit": False, "hold": isolation == "planned"}
    net.run("c0", invite("c1", usub("s"), sub("u", "x = 3")), **options)
    assert kept(net, "c1") == sorted((names["s"], names["t"]))
    assert net.run("c0", invite("c1", usub("s")), isolation=isolation) == ""
    assert kept(net, "c1") == [names["t"]]
    concluded = [one.subscriptions for one in net.notified["c1"] if isinstance(one, Concluded)]
    assert concluded[-1] == (), "a withdrawn subscription is not reported as made"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("isolation", ["serializable", "atomic", "planned"])
def test_events_under_way_restore_no_subscription(isolation: str, seed: int) -> None:
    """An event after the withdrawal is delivered; the subscription does not exist again."""
    net = TransactionNet(line(2), HOMES, seed=seed)
    net.regular("c1", adv("a", "x exists"))
    net.regular("c0", sub("s", "x = 1"))
    net.regular("c0", sub("t", "x = 1"))
    net.settle()
    net.start("c0", usub("s"), isolation=isolation)
    net.start("c0", sub("u", "x = 1"), isolation=isolation, commit=False, hold=True)
    for number in range(40):
        net.regular("c1", pub(f"e{number}", x=1))
        if number == seed:
            net.regular("c0", usub("t"))
        for _ in range(5):
            net.step()
    net.settle()
    (outcome,) = (why for spec, why in net.application.outcomes if spec.commit)
    assert kept(net, "c0") == ([net.application.names["s"]] if outcome else [])
    positions: dict[str, list[int]] = {}
    for one in net.notified["c0"]:
        if isinstance(one, Notified) and one.position:
            positions.setdefault(one.subscription, []).append(one.position)
    for name, counted in positions.items():
        assert counted == list(range(1, len(counted) + 1)), name


@pytest.mark.parametrize("isolation", ["serializable", "atomic"])
def test_operation_after_the_end_leaves_nothing_behind(isolation: str) -> None:
    net = net_of_two()
    for acts_before in (False, True):
        name = begun(net, isolation)
        if acts_before:
            subscribe(net, name)
        net.elapse(2 * SECOND)
        subscribe(net, name)
        subscribe(net, name)
        net.settle()
        invite_c1(net, name)
        assert net.notified["c0"][-1].refused == OVER
    assert not net.client("c0").threads.open
    assert kept(net, "c0") == []


@pytest.mark.parametrize("commit", [True, False])
def test_client_that_acts_during_the_vote_gets_the_outcome(*, commit: bool) -> None:
    """An operation that comes during the vote is refused; earlier ones settle with the outcome."""
    net = net_of_two()
    net.regular("c1", adv("a", "x exists"))
    net.settle()
    name = begun(net, "serializable")
    subscribe(net, name)
    net.settle()
    net.command("c0", lambda node, now: node.end(name, commit=True, now_ns=now))
    subscribe(net, name)
    while net.client("c0").unanswered_count > 1:
        net.step_on(("c0", "b0") if net.flying["c0", "b0"] else ("b0", "c0"))
    assert net.notified["c0"][-1].refused == OVER
    if not commit:  # b1 has not voted at the timeout.
        net.now_ns += 2 * SECOND
        net.timer("b0")
    net.settle()
    assert not net.client("c0").threads.open
    assert len(kept(net, "c0")) == commit


def test_withdrawal_is_sent_after_the_events_of_its_plan_and_before_the_answer() -> None:
    net = net_of_two()
    for client in HOMES:
        net.regular(client, adv(f"a-{client}", "x exists"))
        net.regular(client, sub(f"s-{client}", "x = 1"))
    net.settle()
    for notifications in net.notified.values():
        notifications.clear()
    planned = (pub("last", x=1), usub("s-c0"), invite("c1", usub("s-c1")), pub("late", x=1))
    assert net.run("c0", *planned, isolation="planned") == ""
    assert [type(each) for each in net.notified["c0"]] == [Concluded, Notified, Ceased, Answered]
    assert [type(each) for each in net.notified["c1"]] == [Concluded, Notified, Ceased]
    for client in HOMES:
        assert net.payloads(client) == ["last"]
        assert next(e for e in net.notified[client] if isinstance(e, Notified)).position == 1
        assert net.client(client).subscriptions == ()
    net.at_rest()


@pytest.mark.parametrize("isolation", ["serializable", "atomic"])
@pytest.mark.parametrize("kind", ["pub", "sub", "invite"])
def test_operations_of_a_transaction_have_a_limit(isolation: str, kind: str) -> None:
    few = ContentConfig(lease_ns=10**15, beat_ns=10**14, operations_max=3, journal_bytes_min=1)
    net = TransactionNet(line(2), HOMES, config=few)
    net.regular("c0", adv("a", "x exists"))
    net.settle()
    acts = {
        "pub": [pub(str(number), x=1) for number in range(5)],
        "sub": [sub(str(number), "x = 1") for number in range(5)],
        "invite": [invite("c1") for _ in range(5)],
    }[kind]
    assert net.run("c0", *acts[:3], isolation=isolation) == ""
    assert net.run("c0", *acts[:4], isolation=isolation) == "aborted"
    assert [one for one in net.notified["c0"] if "operations_max" in getattr(one, "refused", "")]
    name = begun(net, isolation)
    for number in range(4):
        if number == 2:
            net.crash("b0")
        net.command("c0", lambda node, now: node.invite(name, "c1", now_ns=now))
        net.settle()
    assert "operations_max" in net.notified["c0"][-1].refused


@pytest.mark.parametrize("isolation", ["serializable", "atomic", "planned"])
def test_each_event_of_a_transaction_carries_how_many_follow(isolation: str) -> None:
    """By subscription: a reader that lacks room has to know before it takes the first."""
    net = net_of_two()
    net.regular("c1", adv("a", "x exists"))
    net.regular("c0", sub("all", "x exists"))
    net.regular("c0", sub("large", "x > 1"))
    net.settle()
    published = [pub(str(number), x=number) for number in range(4)]
    assert net.run("c1", *published, isolation=isolation) == ""
    net.regular("c1", pub("alone", x=9))
    net.settle()
    names = {name: label for label, name in net.application.names.items()}
    events_left = [
        (names[one.subscription], one.publication.payload.decode(), one.following)
        for one in net.notified["c0"]
        if isinstance(one, Notified)
    ]
    assert [(event, left) for label, event, left in events_left if label == "all"] == [
        ("0", 3), ("1", 2), ("2", 1), ("3", 0), ("alone", 0)
    ]  # fmt: skip
    assert [(event, left) for label, event, left in events_left if label == "large"] == [
        ("2", 1), ("3", 0), ("alone", 0)
    ]  # fmt: skip


def _publish(net: TransactionNet, client: str, name: str, x: int) -> None:
    net.command(client, lambda node, now: node.act(name, "pub", attributes={"x": x}, now_ns=now))
    net.settle()


def holding_two_events(net: TransactionNet, publisher: str = "c0") -> str:
    """Have a client publish twice in an atomic transaction, to c1's s and t, then to t alone."""
    net.regular(publisher, adv("a", "x exists"))
    net.regular("c1", sub("s", "x = 1"))
    net.regular("c1", sub("t", "x > 0"))
    net.settle()
    name = begun(net, "atomic", publisher)
    for number in (1, 2):
        _publish(net, publisher, name, number)
    return name


def end(net: TransactionNet, client: str, name: str, *, commit: bool) -> None:
    """Have a client decide about its transaction."""
    net.command(client, lambda node, now: node.end(name, commit=commit, now_ns=now))
    net.settle()


def delivered(net: TransactionNet, client: str) -> list[tuple[str, int, int]]:
    """Return the events of a client: label of the subscription, position, how many follow."""
    labels = {name: label for label, name in net.application.names.items()}
    return [
        (labels[one.subscription], one.position, one.following)
        for one in net.notified[client]
        if isinstance(one, Notified)
    ]


@pytest.mark.parametrize("brokers", [1, 2])
@pytest.mark.parametrize("ending", ["regular", "serializable", "atomic", "planned"])
def test_no_event_of_a_commit_follows_the_end_of_a_subscription(ending: str, brokers: int) -> None:
    net = TransactionNet(line(brokers), {"c0": "b0", "c1": f"b{brokers - 1}"})
    name = holding_two_events(net)
    if ending == "regular":
        net.regular("c1", usub("s"))
        net.settle()
    else:
        assert net.run("c1", usub("s"), isolation=ending) == ""
    end(net, "c0", name, commit=True)
    assert delivered(net, "c1") == [("t", 1, 1), ("t", 2, 0)]
    assert kept(net, "c1") == [net.application.names["t"]]
    net.at_rest()


@pytest.mark.parametrize("commit", [True, False])
def test_withdrawal_that_may_be_undone_ends_no_subscription(*, commit: bool) -> None:
    """It may be restored, so it gets the events of transactions that commit meanwhile."""
    net = net_of_two()
    name = holding_two_events(net)
    other, names = begun(net, "atomic", "c1"), net.application.names
    net.command("c1", lambda node, now: node.act(other, "usub", name=names["s"], now_ns=now))
    net.settle()
    end(net, "c0", name, commit=True)
    assert sorted(delivered(net, "c1")) == [("s", 1, 0), ("t", 1, 1), ("t", 2, 0)]
    end(net, "c1", other, commit=commit)
    assert kept(net, "c1") == sorted(names[each] for each in ("t" if commit else "st"))
    net.at_rest()


def test_subscription_gets_events_of_commits_until_older_events_have_come() -> None:
    """Its withdrawal is committed at its home, and not yet at the other broker."""
    net = TransactionNet(line(2), {"c0": "b0", "c1": "b1", "c2": "b1"})
    net.regular("c0", adv("b", "x exists"))
    name = holding_two_events(net, "c2")
    other, mine = begun(net, "serializable", "c1"), net.application.names["s"]
    net.command("c1", lambda node, now: node.act(other, "usub", name=mine, now_ns=now))
    net.settle()
    net.command("c1", lambda node, now: node.end(other, commit=True, now_ns=now))
    while not net.broker("b1").versions_kept:
        net.step()
    net.command("c2", lambda node, now: node.end(name, commit=True, now_ns=now))
    settle_but(net, lambda link: link == ("b1", "b0"))
    assert sorted(delivered(net, "c1")) == [("s", 1, 0), ("t", 1, 1), ("t", 2, 0)]
    net.settle()
    assert isinstance(net.notified["c1"][-1], Ceased)
    assert kept(net, "c1") == [net.application.names["t"]]
    net.at_rest()
