"""The paper's rules and algorithms, one by one, at every broker and in every schedule.

Definitions 1 and 2 are tested in `tests/protocols/content/filters/test_filters.py`, section II in
`test_broker.py`, the figures and Definitions 3 to 6 as a whole in `test_paper.py`, their published
faults in `test_errata.py` and `test_errata_planned.py`.
"""

from functools import partial
from typing import Any

import pytest
from tests.protocols.transactions.harness import (
    TransactionNet,
    adv,
    invite,
    line,
    pub,
    random_tree,
    sub,
    uadv,
    usub,
)

from ensue.core.errors import LocalProtocolError
from ensue.protocols.content.client import Answered
from ensue.protocols.content.frames import Change, Publication, Step
from ensue.protocols.shared.link import LinkConfig
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.broker import TransactionBroker
from ensue.protocols.transactions.client import TransactionClient
from ensue.protocols.transactions.frames import (
    SERIALIZABLE,
    Operation,
    Ordered,
    Prepared,
    sequence_of,
)
from ensue.protocols.transactions.two_phase_commit import TwoPhaseCommit

KINDS = ("serializable", "atomic", "planned")
HOMES = {"c1": "b0", "c2": "b1", "c3": "b2"}


def net_of(seed: int = 0, brokers: int = 3, **homes: str) -> TransactionNet:
    """Return a line of brokers; c1 advertises x."""
    net = TransactionNet(line(brokers), homes or HOMES, seed=seed)
    net.regular("c1", adv("a", "x exists"))
    net.settle()
    return net


def processed(net: TransactionNet, node: str) -> list[str]:
    """Return the paths of operations in the order in which a broker processed them."""
    return [
        row["event"].partition("#")[2]
        for row in net.rows
        if row["node"] == node and row["action"] == "received"
    ]


# -- Definition 3: consistency ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_internal_consistency_an_event_sees_one_state_at_all_brokers(seed: int) -> None:
    """The footnote's two brokers: both route the event with a concurrent subscription, or none."""
    net = net_of(seed, c1="b0", c2="b1", c3="b1")
    net.start("c1", pub("p", x=1), isolation=SERIALIZABLE)
    net.start("c2", sub("s2", "x = 1"), invite("c3", sub("s3", "x = 1")), isolation=SERIALIZABLE)
    net.settle()
    for _ in range(20):
        net.elapse(50_000_000)
    assert [wrong for _, wrong in net.application.outcomes].count("") >= 1
    assert net.payloads("c2") == net.payloads("c3"), "both or none"


@pytest.mark.parametrize("isolation", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_external_consistency_the_order_is_the_applications(isolation: str, seed: int) -> None:
    """Subscribed, published, withdrawn, published: only what came in between is delivered."""
    net = net_of(seed)
    acts = (
        pub("before", x=1),
        invite("c3", sub("s", "x = 1")),
        pub("between", x=1),
        invite("c3", usub("s")),
        pub("after", x=1),
    )
    assert net.run("c1", *acts, isolation=isolation) == ""
    assert net.payloads("c3") == ["between"]


# -- Definition 5: how a transaction is constructed ------------------------------------------------


@pytest.mark.parametrize("isolation", ["serializable", "atomic"])
def test_triggered_operations_belong_to_the_transaction(
    isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules 1 to 3: operations of the coordinator, of an invited client, and attracted ones."""
    steps: list[Step] = []
    step = TransactionBroker._step

    def seen(self: Any, frame: Step, source: str, now_ns: int) -> None:
        steps.append(frame)
        step(self, frame, source, now_ns)

    monkeypatch.setattr(TransactionBroker, "_step", seen)
    net = TransactionNet(line(3), HOMES)
    net.regular("c2", sub("s1", "y = 1"))
    net.settle()
    steps.clear()
    acts = (adv("a1", "y exists"), invite("c3", sub("s2", "y = 2")))
    assert net.run("c1", *acts, isolation=isolation) == ""
    (name,) = net.application.names_of
    found = {
        (change.action, change.name.partition(".")[0], frame.path)
        for frame in steps
        for change in frame.changes
        if frame.transaction == name
    }
    assert found == {("adv", "c1", "1"), ("sub", "c2", "1"), ("sub", "c3", "2.1")}
    assert all(frame.transaction == name for frame in steps if frame.changes)


def test_abort_undoes_triggered_operations() -> None:
    for isolation in KINDS:
        net = TransactionNet(line(3), HOMES)
        net.regular("c2", sub("s1", "y = 1"))
        net.settle()
        options: dict[str, Any] = {"hold": True} if isolation == "planned" else {}
        net.run("c1", adv("a1", "y exists"), isolation=isolation, commit=False, **options)
        assert not net.broker("b0").tables.subscriptions, isolation
        net.at_rest()


# -- Definition 6: sequential consistency ----------------------------------------------------------


@pytest.mark.parametrize("isolation", KINDS)
@pytest.mark.parametrize(
    ("acts", "order"),
    [
        pytest.param((sub("s1", "x = 1"), sub("s2", "x = 2")), ["1", "2"], id="thread"),
        pytest.param((invite("c3", sub("s", "x = 1")),), ["1.1"], id="trigger"),
        pytest.param(
            (invite("c3", sub("s", "x = 1")), pub("p", x=1)), ["1.1", "2"], id="trigger-star"
        ),
        pytest.param(
            (
                invite("c2", invite("c3", sub("s", "x = 1")), sub("t", "x = 2")),
                pub("p", x=1),
                usub("s"),
            ),
            ["1.1.1", "1.2", "2", "3"],
            id="transitivity",
        ),
    ],
)
def test_every_broker_processes_operations_in_sequential_order(
    isolation: str, acts: tuple[Any, ...], order: list[str]
) -> None:
    """Operations of a plan are numbered 1, 2, 3, …: it has no threads."""
    for seed in range(8):
        net = net_of(seed)
        acts = tuple(
            invite("c3", act) if act.action == "usub" else act for act in acts if act is not None
        )
        assert net.run("c1", *acts, isolation=isolation) == ""
        wanted = [str(number + 1) for number in range(len(order))]
        if isolation != "planned":
            wanted = [f"{path}.1" if path == "3" else path for path in order]
        places = [processed(net, name) for name in net.tree]
        assert max(places, key=len) == wanted
        for each in places:
            assert each == sorted(each, key=sequence_of), seed


# -- Section III.C ---------------------------------------------------------------------------------


def test_isolation_of_the_three_schedules_the_first_and_the_third_happen() -> None:
    """The publication comes before or after the move; `test_paper` rules out anything else."""
    receivers = set()
    for early in (True, False):
        net = net_of()
        net.regular("c3", sub("s", "x = 1"))
        net.settle()
        move = (sub("new", "x = 1"), invite("c3", usub("s")))
        if not early:
            assert net.run("c2", *move) == ""
        assert net.run("c1", pub("p", x=1)) == ""
        if early:
            assert net.run("c2", *move) == ""
        receivers.add((early, tuple(net.payloads("c2")), tuple(net.payloads("c3"))))
    assert receivers == {(True, (), ("p",)), (False, ("p",), ())}


def test_isolation_transaction_reads_earlier_commits() -> None:
    """t1 < t2: t2's publication sees t1's subscription, at every broker."""
    for seed in range(10):
        net = net_of(seed)
        assert net.run("c3", sub("s", "x = 1")) == ""
        assert net.run("c1", pub("p", x=1)) == ""
        assert net.payloads("c3") == ["p"]


# -- D-TX ------------------------------------------------------------------------------------------


def test_algorithm_1_every_broker_opens_a_transaction_before_its_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, steps = TransactionBroker._step, []

    def checked(self: Any, frame: Step, source: str, now_ns: int) -> None:
        if frame.transaction:
            assert frame.transaction in self.commit.contexts
            steps.append(frame)
        step(self, frame, source, now_ns)

    monkeypatch.setattr(TransactionBroker, "_step", checked)
    for seed in range(10):
        tree = random_tree(net_of().random, 6)
        net = TransactionNet(tree, {"c1": "b0", "c2": "b5"}, seed=seed)
        net.start("c1", invite("c2", adv("a", "x exists")), isolation=SERIALIZABLE)
        net.settle()
    assert steps


def test_algorithm_2_operation_is_answered_when_all_brokers_behind_have() -> None:
    """A broker in the middle waits for both sides."""
    tree = {"b0": ("b1",), "b1": ("b0", "b2", "b3"), "b2": ("b1",), "b3": ("b1",)}
    for seed in range(10):
        net = TransactionNet(tree, {"c1": "b0", "c2": "b2", "c3": "b3"}, seed=seed)
        for client in ("c2", "c3"):
            net.regular(client, adv(client, "x exists"))
        net.settle()
        net.start("c1", adv("a", "x = 1"), isolation=SERIALIZABLE, timeout_ns=10**11)
        (client,) = (net.client("c1"),)
        while not client.threads.open or any(
            thread.busy for thread in client.threads.open.values()
        ):
            assert net.step()
        (name,) = net.application.names_of
        for each in net.tree:
            layer = net.broker(each).commit.contexts[name].tables
            assert len(layer.advertisements) == 3, (seed, each)


@pytest.mark.parametrize("action", ["sub", "usub", "pub"])
def test_home_answers_for_what_only_travels_away_from_the_client(action: str) -> None:
    """The steps are on their way ahead of all that follows, and of the request to vote."""
    net = net_of()
    net.regular("c1", sub("old", "x = 2"))
    net.regular("c1", adv("a1", "x exists"))
    net.regular("c3", adv("a3", "x exists"))
    net.regular("c3", sub("s", "x exists"))
    net.settle()
    name, options = begun(net, SERIALIZABLE), dict[str, Any]()
    if action == "usub":
        options["name"] = net.application.names["old"]
    elif action == "sub":
        options["where"] = "x = 1"
    else:
        options.update(attributes={"x": 1}, payload=b"p")
    net.command("c1", lambda node, now: node.act(name, action, now_ns=now, **options))
    arrive(net, "c1", "b0")
    arrive(net, "b0", "c1")
    assert not net.client("c1").threads.is_busy(name, "")
    assert name not in net.broker("b1").commit.contexts
    number = net.command("c1", lambda node, now: node.end(name, commit=True, now_ns=now))
    net.settle()
    assert net.answers("c1")[number] == ""
    assert net.payloads("c3") == (["p"] if action == "pub" else [])
    net.at_rest()


@pytest.mark.parametrize("moment", range(0, 24, 3))
@pytest.mark.parametrize("crashing", ["", "c1", "b0"])
def test_operations_need_not_wait_for_the_name_of_their_transaction(
    crashing: str, moment: int
) -> None:
    net = net_of(seed=moment)
    net.regular("c1", adv("a", "x exists"))
    net.regular("c3", sub("s", "x exists"))
    net.settle()
    began = net.command("c1", lambda node, now: node.begin(SERIALIZABLE, 10**11, now_ns=now))
    called = t.begun_by(began)

    def publish(node: TransactionClient, now_ns: int, number: int) -> str:
        path = node.threads.next_path(node.threads.named(called), "")
        payload = str(number).encode()
        node.act(called, "pub", now_ns=now_ns, attributes={"x": number}, payload=payload)
        return path

    paths = []
    for number in range(4):
        for _ in range(moment if number == 2 else 0):
            net.step()
        if number == 2 and crashing:
            net.crash(crashing)
        elif number == 3:
            net.settle()
        paths.append(net.command("c1", partial(publish, number=number)))
    net.settle()
    ended = net.command("c1", lambda node, now: node.end(called, commit=True, now_ns=now))
    net.settle()
    assert paths == ["1", "2", "3", "4"]
    assert net.answers("c1")[ended] == ""
    assert net.payloads("c3") == ["0", "1", "2", "3"]
    assert not net.client("c1").threads.open
    net.at_rest()


def test_clients_of_one_home_call_their_transactions_the_same() -> None:
    """Each by the number of its own request."""
    net = TransactionNet(line(3), {"c1": "b0", "c2": "b0", "c3": "b2"})

    def begin(node: TransactionClient, now_ns: int) -> str:
        called = t.begun_by(node.begin(SERIALIZABLE, 10**11, now_ns=now_ns))
        node.act(called, "sub", now_ns=now_ns, where=f"own = '{node.name}'")
        return called

    def end(node: TransactionClient, now_ns: int, called: str) -> int:
        return node.end(called, commit=True, now_ns=now_ns)

    names = [net.command(client, begin) for client in ("c1", "c2")]
    assert len(set(names)) == 1
    net.settle()
    for client in ("c1", "c2"):
        ended = net.command(client, partial(end, called=names[0]))
        net.settle()
        assert net.answers(client)[ended] == ""
        assert net.client(client).subscriptions
    net.at_rest()


def test_operation_of_no_transaction_is_refused_by_what_it_was_called() -> None:
    net = net_of()
    number = net.command("c1", lambda node, now: node.begin(SERIALIZABLE, 10**11, now_ns=now))
    begins = net.command("c1", lambda node, now: node.begin("wrong", 10**11, now_ns=now))

    def subscribe(node: TransactionClient, now_ns: int, called: str) -> int:
        return node.act(called, "sub", now_ns=now_ns, where="x = 1")[0]

    refused = [
        net.command(client, partial(subscribe, called=called))
        for client, called in (("c1", t.begun_by(begins)), ("c2", t.begun_by(number)))
    ]
    net.settle()
    assert "isolation must be" in net.answers("c1")[begins]
    for client, its in zip(("c1", "c2"), refused, strict=True):
        assert net.answers(client)[its] == "the transaction is over"
    assert not net.client("c2").threads.open
    called = t.begun_by(number)
    net.command("c1", lambda node, now: node.end(called, commit=False, now_ns=now))
    net.settle()
    net.at_rest()


def two_at_once(seed: int, one: str, other: str) -> tuple[TransactionNet, int]:
    """Commit two transactions that subscribe; return how often a vote waited for the other."""
    net = net_of(seed)
    net.regular("c3", adv("b", "x exists"))
    net.settle()
    net.start("c1", sub("s", one), isolation=SERIALIZABLE)
    net.start("c3", sub("t", other), isolation=SERIALIZABLE)
    parked = 0
    while net.step():
        for name in net.tree:
            commit = net.broker(name).commit
            for waiting in commit.parked:
                parked += 1
                assert not commit.contexts[waiting].voted
                voted = [its for its, context in commit.contexts.items() if context.voted]
                assert voted
                assert max(voted) < waiting
    for _ in range(20):
        net.elapse(50_000_000)
    assert [wrong for _, wrong in net.application.outcomes] == ["", ""], seed
    net.at_rest()
    return net, parked


def test_algorithm_3_a_vote_waits_for_earlier_transactions_that_conflict() -> None:
    assert sum(two_at_once(seed, "x = 1", "x >= 1")[1] for seed in range(20))


def test_algorithm_3_a_vote_does_not_wait_for_others() -> None:
    assert not sum(two_at_once(seed, "x = 1", "x = 2")[1] for seed in range(20))


def test_votes_that_were_withdrawn_do_not_count() -> None:
    net = net_of()
    net.start("c3", sub("t", "x = 1"), isolation=SERIALIZABLE)
    commit = net.broker("b2").commit
    while not commit.gathers:
        assert net.step()
    ((name, context),) = commit.contexts.items()
    for attempt in (context.attempt - 1, context.attempt + 1):
        commit.prepared(Prepared(transaction=name, attempt=attempt), "b1", net.now_ns)
        assert name in commit.contexts
    commit.prepared(Prepared(transaction=name, attempt=context.attempt), "b1", net.now_ns)
    assert name not in commit.contexts


def test_transaction_does_not_wait_for_a_coordinator_that_hangs() -> None:
    """Only one that was voted for holds locks: this one has not requested the commit."""
    net = net_of()
    number = net.command("c1", lambda node, now: node.begin(SERIALIZABLE, 10**10, now_ns=now))
    net.settle()
    assert net.answers("c1")[number] == ""
    name = f"{1:010d}-b0"
    net.command("c1", lambda node, now: node.act(name, "sub", where="x = 1", now_ns=now))
    net.settle()
    assert net.run("c3", sub("t", "x = 1")) == ""
    assert net.broker("b0").open_transactions == (name,)


def test_only_brokers_with_steps_of_a_transaction_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, prepare = [], TwoPhaseCommit.prepare

    def seen(self: Any, frame: Any, source: str, now_ns: int) -> None:
        asked.append(self._state.name)
        prepare(self, frame, source, now_ns)

    monkeypatch.setattr(TwoPhaseCommit, "prepare", seen)
    net = TransactionNet(line(3), HOMES)
    assert net.run("c3", sub("s", "x = 1")) == ""
    assert asked == ["b2"]
    net.regular("c1", adv("a", "x exists"))
    net.settle()
    assert net.run("c2", sub("t", "x = 2")) == ""
    assert asked == ["b2", "b1", "b0"]


def test_algorithm_3_conflict_aborts_and_stays_invisible() -> None:
    """The publication matched no client when it was routed; one has subscribed since."""
    net = net_of()
    number = net.command("c1", lambda node, now: node.begin(SERIALIZABLE, 10**10, now_ns=now))
    net.settle()
    assert net.answers("c1")[number] == ""
    event = {"attributes": {"x": 1}, "payload": b"p"}
    name = f"{1:010d}-b0"
    net.command("c1", lambda node, now: node.act(name, "pub", **event, now_ns=now))
    net.settle()
    net.regular("c3", sub("s", "x = 1"))
    net.settle()
    end = net.command("c1", lambda node, now: node.end(name, commit=True, now_ns=now))
    net.settle()
    assert "would have led elsewhere" in net.answers("c1")[end]
    assert net.payloads("c3") == []
    assert {net.broker(each).version for each in net.tree} == {0}
    net.at_rest()


def test_the_commit_round_delivers_at_every_client_or_at_none() -> None:
    for commit in (True, False):
        net = net_of()
        for client in ("c2", "c3"):
            net.regular(client, sub(client, "x = 1"))
        net.settle()
        net.run("c1", pub("p", x=1), pub("q", x=1), commit=commit)
        wanted = ["p", "q"] if commit else []
        assert net.payloads("c2") == net.payloads("c3") == wanted


# -- D-TX_NI ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("isolation", "seen"), [("atomic", True), ("serializable", False)])
def test_without_isolation_routing_state_is_shared(isolation: str, seen: bool) -> None:
    """Section V: others see a subscription before the commit, but never a publication."""
    net = net_of()
    net.start(
        "c3", sub("s", "x = 1"), invite("c1", pub("inside", x=1)), isolation=isolation,
        timeout_ns=10**11, commit=False,
    )  # fmt: skip
    while not any(
        row["action"] == "received" and row["event"].endswith("#2.1") for row in net.rows
    ):
        assert net.step()
    net.regular("c1", pub("outside", x=1))
    net.settle()
    assert net.payloads("c3") == (["outside"] if seen else [])


# -- S-TX ------------------------------------------------------------------------------------------


def test_every_broker_knows_the_way_to_every_client() -> None:
    """The client routing table, made by `overlayJoin`."""
    net = net_of(brokers=4, c1="b0", c2="b1", c3="b3")
    ways = {
        name: {client: net.broker(name).state.members[client][1] for client in ("c1", "c2", "c3")}
        for name in net.tree
    }
    assert ways == {
        "b0": {"c1": "c1", "c2": "b1", "c3": "b1"},
        "b1": {"c1": "b0", "c2": "c2", "c3": "b2"},
        "b2": {"c1": "b1", "c2": "b1", "c3": "b3"},
        "b3": {"c1": "b2", "c2": "b2", "c3": "c3"},
    }


def test_algorithm_4_operation_waits_until_its_predecessors_are_processed() -> None:
    kept = 0
    for seed in range(20):
        net = net_of(seed)
        net.start("c1", invite("c3", sub("s", "x = 1")), pub("p", x=1), isolation="planned")
        while net.step():
            for name in net.tree:
                for plan in net.broker(name).plans.open.values():
                    if "2" in plan.arrived and "1" not in plan.processed:
                        kept += 1
                        assert "2" not in plan.started
        assert net.payloads("c3") == ["p"], seed
    assert kept


def test_algorithm_4_waiting_operations_resume_at_once() -> None:
    """`markProcessed`: the last missing operation releases all that wait for it, one by one."""
    net = net_of()
    broker = net.broker("b1")
    net.start("c1", sub("s1", "x = 1"), sub("s2", "x = 2"), sub("s3", "x = 3"), isolation="planned")
    while not broker.plans.open:
        assert net.step()
    (name,) = broker.plans.open
    for path in ("3", "2"):
        broker.receive(Ordered(transaction=name, path=path, whole=False), source="b0", now_ns=1)
    assert not broker.plans.open[name].processed
    broker.receive(Ordered(transaction=name, path="1", whole=False), source="b0", now_ns=1)
    assert list(broker.plans.open[name].processed) == ["1", "2", "3"]


def test_a_planned_commit_waits_for_every_operation() -> None:
    """`cmtMsg` depends on all operations: no event is delivered while a broker processes."""
    for seed in range(20):
        net = net_of(seed)
        net.start("c1", invite("c3", sub("s", "x = 1")), pub("p", x=1), isolation="planned")
        while net.step():
            for row in net.rows:
                if row["action"] == "committed" and row["node"] in net.tree:
                    assert set(processed(net, row["node"])) == {"1", "2"}
        net.at_rest()


@pytest.mark.parametrize("seed", range(10))
def test_weak_isolation_tables_converge_though_plans_overlap(seed: int) -> None:
    net = net_of(seed)
    net.start("c1", uadv("a"), adv("b", "x > 0"), isolation="planned")
    net.start("c2", sub("s", "x = 1"), invite("c3", sub("t", "x >= 0")), isolation="planned")
    net.start("c3", sub("u", "x < 9"), usub("u"), isolation="planned")
    net.settle()
    assert [wrong for _, wrong in net.application.outcomes] == ["", "", ""]
    net.at_rest()
    net.regular("c1", pub("p", x=1))
    net.settle()
    assert net.payloads("c2") == net.payloads("c3") == ["p"]


# -- Ends that come too early ----------------------------------------------------------------------


def begun(net: TransactionNet, isolation: str) -> str:
    """Begin a transaction of c1; return its name."""
    net.command("c1", lambda node, now: node.begin(isolation, 10**11, now_ns=now))
    net.settle()
    return f"{1:010d}-b0"


def arrive(net: TransactionNet, source: str, target: str) -> None:
    """Deliver all frames from one node to another, and no others."""
    while net.flying[source, target]:
        net.step_on((source, target))


@pytest.mark.parametrize(
    ("isolation", "action", "what"),
    [
        ("serializable", "adv", {"where": "x = 1"}),  # Nothing else is answered by other brokers.
        ("atomic", "pub", {"attributes": {"x": 1}}),
    ],
)
def test_transaction_is_not_committed_while_its_operations_are_under_way(
    isolation: str, action: str, what: dict[str, Any]
) -> None:
    """The client ensures it, and a home does not rely on that."""
    net = net_of()
    net.regular("c3", sub("s", "x = 1"))
    net.settle()
    name = begun(net, isolation)
    net.command("c1", lambda node, now: node.act(name, action, now_ns=now, **what))
    with pytest.raises(LocalProtocolError, match="still under way"):
        net.command("c1", lambda node, now: node.end(name, commit=True, now_ns=now))
    net.client("c1").threads.open.clear()
    number = net.command("c1", lambda node, now: node.end(name, commit=True, now_ns=now))
    arrive(net, "c1", "b0")
    net.settle()
    assert net.answers("c1")[number] == "operations of it are still under way"
    assert not net.payloads("c3")
    net.at_rest()


def test_invitation_is_not_finished_while_its_operations_are_under_way() -> None:
    net = net_of()
    net.regular("c3", adv("a", "y exists"))
    net.settle()
    name = begun(net, "serializable")
    net.on_notified = None  # This test acts for invited clients.
    invited = net.command("c1", lambda node, now: node.invite(name, "c2", now_ns=now))
    net.settle()
    net.command(
        "c2", lambda node, now: node.act(name, "adv", within="1", where="y = 1", now_ns=now)
    )
    with pytest.raises(LocalProtocolError, match="still under way"):
        net.command("c2", lambda node, now: node.finish(name, "1", now_ns=now))
    net.client("c2").threads.open.clear()
    net.command("c2", lambda node, now: node.finish(name, "1", now_ns=now))
    arrive(net, "c2", "b1")
    net.settle()
    assert net.answers("c1")[invited] == "operations of it are still under way"


def test_client_with_an_open_plan_expires_once() -> None:
    """While a broker of the plan is away, a client that reads nothing is expired only once."""
    net = net_of()
    net.regular("c2", sub("s", "x exists"))
    net.settle()
    operations = (
        Operation(path="1", client="c3", change=Change("sub", "c3.own", "x = 1")),
        Operation(path="2", client="c2", after=("1",), change=Change("sub", "c2.own", "x = 2")),
    )
    net.command("c1", lambda node, now: node.submit(operations, 10**10, now_ns=now))
    while not net.broker("b1").open_transactions:
        net.step_on(("c1", "b0") if net.flying.get(("c1", "b0")) else ("b0", "b1"))
    node = net.nodes["b1"]
    node.broker.expire("c2", now_ns=net.now_ns)
    assert "c2" not in node.broker.clients
    net.drain("b1")
    before = node.broker.log.next_number
    node.links._config = LinkConfig(unacknowledged_max=1)
    net.drain("b1")
    assert node.broker.log.next_number == before
    node.links._config = LinkConfig()
    net.settle()
    assert "c2" not in node.broker.state.clients, "gone when the plan ends"
    net.at_rest()


def test_invalid_attributes_of_an_invitation_are_refused() -> None:
    """They would stop the broker, which the client's link would let repeat for ever."""
    net = TransactionNet(line(2), {"c": "b0"})
    net.regular("c", adv("a", "x exists"))
    net.command("c", lambda node, now: node.begin("atomic", 10**11, now_ns=now))
    net.settle()
    (begun,) = (
        each for each in net.notified["c"] if isinstance(each, Answered) and each.transaction
    )
    frame = t.Invite(
        number=0,
        transaction=begun.transaction,
        path="1",
        client=t.ANYONE,
        publication=Publication(publisher="c", number=1, attributes={"x": float("inf")}),
    )
    number = net.command("c", lambda node, now: node.request(frame, now))
    net.settle()
    assert "finite number" in net.answers("c")[number]
