"""Durable content subscriptions: kept, pushed within a window, redelivered, fenced by epoch."""

from typing import Any

import msgspec
import pytest
from tests.protocols.content.harness import Net
from tests.protocols.transactions.harness import TransactionNet, adv, invite, line, pub, usub

from ensue.core.errors import limit_in
from ensue.protocols.content.client import Answered, Attachment, Notified, Superseded
from ensue.protocols.content.config import ContentConfig
from ensue.protocols.content.effects import Effects
from ensue.protocols.content.frames import Attach, Dismiss
from ensue.protocols.content.mailboxes import Mailbox, Mailboxes
from ensue.protocols.transactions.frames import ATOMIC, PLANNED, SERIALIZABLE, Operation
from ensue.protocols.transactions.records import BROKER, BrokerRecord

WINDOW = 3
CONFIG = ContentConfig(
    lease_ns=10**15,
    beat_ns=10**14,
    away_ns=10**15,
    journal_bytes_min=500,
    window=WINDOW,
    kept_max=50,
)
NAME = "durable/billing"


def net(seed: int = 0, config: ContentConfig = CONFIG) -> TransactionNet:
    made = TransactionNet(line(3), {"a": "b0", "r": "b2", "s": "b2"}, seed=seed, config=config)
    made.regular("a", adv("all", "x exists"))
    made.settle()
    return made


def attach(
    made: Net, client: str, where: str = "x > 0", window: int = 100, *, accept_loss: bool = False
) -> str:
    """Attach a client; return why it was refused, or nothing."""

    def run(node: Any, now_ns: int) -> int:
        number: int = node.attach(
            "billing", where, window=window, accept_loss=accept_loss, now_ns=now_ns
        )
        return number

    number = made.command(client, run)
    made.settle()
    return made.answers(client)[number]


def epoch(made: Net, client: str) -> int:
    return [one.epoch for one in made.notified[client] if isinstance(one, Attachment)][-1]


def ask(made: Net, client: str, command: str, *words: Any, **options: Any) -> str:
    number = made.command(
        client, lambda node, now: getattr(node, command)(*words, now_ns=now, **options)
    )
    made.settle()
    return made.answers(client)[number]


def publish(made: TransactionNet, *payloads: str) -> None:
    for payload in payloads:
        made.regular("a", pub(payload, x=1))
    made.settle()


def redelivered(made: Net, client: str) -> list[str]:
    return [
        one.publication.payload.decode()
        for one in made.notified[client]
        if isinstance(one, Notified) and one.redelivered
    ]


def test_events_wait_for_a_reader_and_for_the_window() -> None:
    made = net()
    assert attach(made, "r") == ""
    publish(made, *"12345")
    assert made.payloads("r") == ["1", "2", "3"]
    assert ask(made, "r", "acknowledge", NAME, epoch(made, "r"), 2) == ""
    assert made.payloads("r") == ["1", "2", "3", "4", "5"]


def test_reader_that_left_is_replaced_without_loss_or_repetition_of_acknowledged_events() -> None:
    made = net()
    attach(made, "r")
    publish(made, *"123")
    ask(made, "r", "acknowledge", NAME, 1, 2)
    made.command("r", lambda node, now: node.leave(now_ns=now))
    made.settle()
    publish(made, "4")
    assert attach(made, "s") == ""
    assert made.payloads("s") == ["3", "4"]
    assert redelivered(made, "s") == ["3"]


@pytest.mark.parametrize("seed", range(40))
def test_crashes_of_the_home_lose_nothing(seed: int) -> None:
    made = net(seed)
    attach(made, "r")
    for number in range(6):
        made.regular("a", pub(str(number), x=1))
        for _ in range(made.random.randrange(6)):
            made.step()
        made.crash(made.random.choice(["b0", "b1", "b2"]))
        if number % 2:
            made.settle()
            ask(made, "r", "acknowledge", NAME, 1, number)
    made.settle()
    assert made.payloads("r") == [str(number) for number in range(6)]
    assert not redelivered(made, "r")
    attach(made, "s")
    assert made.payloads("s") == ["5"]


def test_later_reader_fences_the_earlier() -> None:
    made = net()
    attach(made, "r")
    publish(made, "1")
    attach(made, "s")
    assert [one for one in made.notified["r"] if isinstance(one, Superseded)] == [
        Superseded(NAME, 1, "superseded")
    ]
    assert ask(made, "r", "acknowledge", NAME, 1, 1) == "superseded"
    attach(made, "r")
    assert ask(made, "s", "acknowledge", NAME, 2, 1) == "superseded"
    assert made.payloads("r") == ["1", "1"]
    assert ask(made, "r", "acknowledge", NAME, 3, 1) == ""
    attach(made, "s")
    assert made.payloads("s") == ["1"]  # Before it was acknowledged.


def test_reader_has_a_smaller_window_than_the_broker() -> None:
    made = net()
    attach(made, "r", window=2)
    publish(made, *"12345")
    assert made.payloads("r") == ["1", "2"]
    ask(made, "r", "acknowledge", NAME, 1, 1)
    assert made.payloads("r") == ["1", "2", "3"]


def lost(made: Net, client: str) -> list[str]:
    return [one.reason for one in made.notified[client] if isinstance(one, Superseded)]


@pytest.mark.parametrize("limits", [{"kept_max": 8}, {"kept_bytes_max": 8 * 277}])
def test_overfull_mailbox_delivers_what_it_kept_and_then_ends(limits: dict[str, int]) -> None:
    made = net(config=msgspec.structs.replace(CONFIG, **limits))
    attach(made, "r")
    publish(made, *"123456789")
    assert lost(made, "r") == []
    for position in (3, 6, 8):
        assert ask(made, "r", "acknowledge", NAME, 1, position) == ""
    assert made.payloads("r") == list("12345678")
    (reason,) = lost(made, "r")
    (limit,) = limits
    assert f"(limit {limit}={limits[limit]})" in reason
    publish(made, "x")  # It loses all later events, too: it must not have a gap.
    assert limit in attach(made, "s")
    assert attach(made, "s", accept_loss=True) == ""
    publish(made, "y")
    assert made.payloads("s") == ["y"]


@pytest.mark.parametrize("limits", [{"kept_max": 4}, {"kept_bytes_max": 4 * 277}])
@pytest.mark.parametrize("isolation", [SERIALIZABLE, ATOMIC, PLANNED])
def test_overfull_mailbox_keeps_all_events_of_a_transaction_or_none(
    isolation: str, limits: dict[str, int]
) -> None:
    made = net(config=msgspec.structs.replace(CONFIG, **limits))
    attach(made, "r")
    assert made.run("a", pub("1", x=1), pub("2", x=2), isolation=isolation) == ""
    assert sorted(made.payloads("r")) == ["1", "2"]
    three = (pub("3", x=1), pub("4", x=1), pub("5", x=1))
    assert made.run("a", *three, isolation=isolation) == ""
    assert lost(made, "r") == []
    publish(made, "6")
    ask(made, "r", "acknowledge", NAME, 1, 2)
    assert sorted(made.payloads("r")) == ["1", "2"]
    (limit,) = limits
    assert limit in lost(made, "r")[0]
    made.at_rest()


@pytest.mark.parametrize("isolation", [SERIALIZABLE, ATOMIC, PLANNED])
def test_transaction_that_just_fits_is_kept(isolation: str) -> None:
    made = net(config=msgspec.structs.replace(CONFIG, kept_max=3))
    attach(made, "r")
    publish(made, "1")
    assert made.run("a", pub("2", x=1), pub("3", x=2), isolation=isolation) == ""
    assert sorted(made.payloads("r")) == ["1", "2", "3"]
    assert lost(made, "r") == []


def test_idle_reader_of_an_overfull_mailbox_is_detached() -> None:
    """Another subscription has taken all room."""
    made = net(config=msgspec.structs.replace(CONFIG, kept_bytes_max=3 * 277))
    made.command("s", lambda node, now: node.attach("full", "x = 1", window=1, now_ns=now))
    made.settle()
    publish(made, *"123")
    attach(made, "r")
    publish(made, "4")
    assert "kept_bytes_max" in lost(made, "r")[0]


@pytest.mark.parametrize(
    ("name", "where", "why"),
    [
        ("n" * 256, "x = 1", "at most 255 characters, got 256"),
        (NAME, "ensue.invitation exists", "ensue.invitation"),
    ],
)
def test_name_or_filter_that_brokers_can_not_carry_is_refused(
    name: str, where: str, why: str
) -> None:
    made = net(config=CONFIG)
    number = made.command("r", lambda node, now: node.attach(name, where, window=1, now_ns=now))
    made.settle()
    assert why in made.answers("r")[number]


def test_there_are_only_so_many() -> None:
    made = net(config=msgspec.structs.replace(CONFIG, mailboxes_max=1))
    attach(made, "r")
    number = made.command("s", lambda node, now: node.attach("b", "x = 1", window=1, now_ns=now))
    made.settle()
    assert "(limit mailboxes_max=1)" in made.answers("s")[number]


def test_acknowledged_events_make_room() -> None:
    made = net()
    attach(made, "r")
    for first in range(0, 30, WINDOW):
        publish(made, *map(str, range(first, first + WINDOW)))
        assert ask(made, "r", "acknowledge", NAME, 1, first + WINDOW) == ""
    assert made.payloads("r") == [str(number) for number in range(30)]


def test_snapshot_has_the_kept_events() -> None:
    made = net()
    attach(made, "r")
    publish(made, *"12345")
    made.broker("b2").log.write_snapshot()
    made.drain("b2")
    made.crash("b2")
    made.settle()
    attach(made, "s")
    assert made.payloads("s") == ["1", "2", "3"]


def test_forgotten_subscription_gets_no_more_events() -> None:
    made = net()
    attach(made, "r")
    assert ask(made, "r", "release", NAME, 1, forget=True) == ""
    publish(made, "1")
    assert made.payloads("r") == []
    assert all(not made.broker(name).tables.subscriptions for name in made.tree)
    made.at_rest()
    assert attach(made, "r", "x = 1") == ""


def test_other_broker_refuses_the_name() -> None:
    made = net()
    attach(made, "r")
    assert attach(made, "a") == "the durable subscription 'billing' is kept at b2"


def test_other_filter_is_refused() -> None:
    made = net()
    attach(made, "r")
    assert "has the filter" in attach(made, "s", "x > 5")


@pytest.mark.parametrize("isolation", [SERIALIZABLE, ATOMIC, PLANNED])
@pytest.mark.parametrize("seed", range(10))
def test_events_of_a_transaction_are_kept_whole(isolation: str, seed: int) -> None:
    made = net(seed)
    attach(made, "r")
    made.command("r", lambda node, now: node.leave(now_ns=now))
    made.settle()
    assert made.run("a", pub("1", x=1), pub("2", x=2), isolation=isolation) == ""
    made.crash("b2")
    made.settle()
    attach(made, "s")
    assert sorted(made.payloads("s")) == ["1", "2"]
    made.at_rest()


def begun(made: TransactionNet, isolation: str) -> str:
    """Have `a` publish within a transaction; return its name."""
    if isolation == PLANNED:
        publication = made.client("a").planned_publication("a", {"x": 1}, b"old", now_ns=0)
        one = Operation(path="1", client="a", publication=publication)
        number = made.command(
            "a", lambda node, now: node.submit([one], 10**9, hold=True, now_ns=now)
        )
    else:
        number = made.command("a", lambda node, now: node.begin(isolation, 10**9, now_ns=now))
    made.settle()
    (name,) = [
        one.transaction
        for one in made.notified["a"]
        if isinstance(one, Answered) and one.number == number
    ]
    if isolation != PLANNED:
        made.command(
            "a",
            lambda node, now: node.act(
                name, "pub", attributes={"x": 1}, payload=b"old", now_ns=now
            ),
        )
        made.settle()
    return name


@pytest.mark.parametrize("where", ["x > 0", "x = 7"])
@pytest.mark.parametrize("isolation", [SERIALIZABLE, ATOMIC, PLANNED])
def test_subscription_made_again_gets_no_event_that_was_published_for_the_earlier_one(
    isolation: str, where: str
) -> None:
    made = net()
    attach(made, "r")
    name = begun(made, isolation)
    ask(made, "r", "release", NAME, 1, forget=True)
    assert attach(made, "s", where) == ""
    refused = ask(made, "a", "end", name, commit=True)
    # The other isolations have no place in a sequence where the earlier one is still there.
    assert refused.startswith("conflict") == (isolation == SERIALIZABLE), refused
    made.regular("a", pub("new", x=7))
    made.settle()
    assert (made.payloads("r"), made.payloads("s")) == ([], ["new"])
    made.at_rest()


def test_subscriptions_made_one_after_the_other_have_names_of_their_own() -> None:
    made = net()
    for _ in range(2):
        attach(made, "r")
        ask(made, "r", "release", NAME, 1, forget=True)
    made.broker("b2").log.write_snapshot()
    made.drain("b2")
    made.crash("b2")
    attach(made, "r")
    publish(made, "1")
    assert made.events("r") == [(f"{NAME}.sub3", "1")]
    made.client("r").log.write_snapshot()
    made.drain("r")
    made.crash("r")
    ask(made, "r", "acknowledge", NAME, 1, 1)
    rows = [row for row in made.rows if row["action"] in ("subscribed", "acknowledged")]
    assert [(row["subscription"], row["publisher_seq"]) for row in rows] == [
        (f"{NAME}.sub1", 1),
        (f"{NAME}.sub2", 1),
        (f"{NAME}.sub3", 1),
        (f"{NAME}.sub3", 1),
    ]


def test_transactions_do_not_change_a_durable_subscription() -> None:
    made = net()
    attach(made, "r")
    made.application.names["mine"] = f"{NAME}.sub1"
    for isolation in (SERIALIZABLE, ATOMIC, PLANNED):
        acts = pub("1", x=1), invite(NAME, usub("mine"))
        assert made.run("a", *acts, isolation=isolation) != ""
    refused = [each for each in made.answers("a").values() if "do not change" in each]
    assert len(refused) == 3
    assert made.run("r", usub("mine")) != ""
    assert f"'{NAME}.sub1' belongs to another client" in made.answers("r").values()
    publish(made, "2")
    assert made.payloads("r") == ["2"]
    made.at_rest()


def test_answer_comes_when_the_subscription_is_in_effect_and_goes_to_the_latest_reader() -> None:
    made = net()
    first = made.command(
        "r", lambda node, now: node.attach("billing", "x > 0", window=5, now_ns=now)
    )
    for _ in range(200):
        if any(isinstance(one, Attachment) for one in made.notified["r"]):
            break
        made.step()
    assert first not in made.answers("r")
    second = made.command(
        "s", lambda node, now: node.attach("billing", "x > 0", window=5, now_ns=now)
    )
    made.settle()
    assert (made.answers("r")[first], made.answers("s")[second]) == ("superseded", "")


EXPIRE_NS = 10**9
EXPIRING = msgspec.structs.replace(
    CONFIG, mailbox_expire_ns=EXPIRE_NS, lease_ns=10**8, beat_ns=10**7
)


def test_mailbox_without_a_reader_expires_and_its_name_says_so() -> None:
    made = net(config=msgspec.structs.replace(EXPIRING, lease_ns=10**15, beat_ns=10**14))
    made.broker("b2")._expire_from_ns = 0  # It started long ago.
    attach(made, "r")
    made.elapse(10 * EXPIRE_NS)
    publish(made, "1")
    assert made.payloads("r") == ["1"], "it has a reader"
    ask(made, "r", "release", NAME, 1)
    publish(made, "2")
    made.elapse(EXPIRE_NS - 10**6)
    assert attach(made, "s") == "", "a reader begins the time anew"
    ask(made, "s", "release", NAME, 2)
    made.elapse(EXPIRE_NS - 10**6)
    assert made.broker("b2").state.mailboxes.open
    made.elapse(2 * 10**6)
    assert not made.broker("b2").state.mailboxes.open
    assert all(not made.broker(name).tables.subscriptions for name in made.tree)
    made.at_rest()
    for restart in (False, True):
        if restart:
            made.broker("b2").log.write_snapshot()
            made.drain("b2")
            made.crash("b2")
            made.settle()
        refused = attach(made, "r")
        assert "'billing' has expired, with the events that it kept" in refused
        assert "accept_loss=True" in refused
    assert attach(made, "r", accept_loss=True) == ""
    publish(made, "3")
    assert made.payloads("r")[-1] == "3"


def test_readers_have_time_to_return_after_a_restart() -> None:
    made = net(config=EXPIRING)
    attach(made, "r")
    made.command("r", lambda node, now: node.leave(now_ns=now))
    made.settle()
    made.now_ns += 10 * EXPIRE_NS  # The broker is down.
    made.crash("b2")
    made.settle()
    assert made.broker("b2").state.mailboxes.open
    assert made.broker("b2").next_timer_ns() >= made.now_ns
    made.elapse(EXPIRING.lease_ns)
    assert not made.broker("b2").state.mailboxes.open


def test_crash_does_not_begin_the_time_anew() -> None:
    made = net(config=EXPIRING)
    attach(made, "r")
    made.command("r", lambda node, now: node.leave(now_ns=now))
    made.settle()
    for _ in range(3):
        made.elapse(EXPIRE_NS // 3)
        made.broker("b2").log.write_snapshot()
        made.drain("b2")
        made.crash("b2")
        made.settle()
    made.elapse(EXPIRING.lease_ns)
    assert not made.broker("b2").state.mailboxes.open


def owned(name: str, owner: str, owned_max: int = 0) -> Attach:
    """Return a request to attach, as servers pass it on."""
    return Attach(number=1, name=name, where="x > 0", owner=owner, owned_max=owned_max)


def test_mailboxes_of_one_user_are_limited() -> None:
    mailboxes = Mailboxes(CONFIG, Effects())

    def asked(name: str, owner: str, owned_max: int = 2) -> str:
        frame = owned(name, owner, owned_max)
        refused = mailboxes.refusal(f"durable/{name}", frame)
        if not refused:
            mailboxes.make(f"durable/{name}", frame)
        return refused

    assert [asked(name, "alice") for name in "ab"] == ["", ""]
    assert limit_in(asked("c", "alice")) == ("mailboxes_per_user", 2)
    assert mailboxes.refusal("durable/a", owned("a", "alice", 1)) == "", "it is there"
    assert asked("c", "bob") == ""
    assert [asked(name, "", 0) for name in "def"] == [""] * 3, "without users there is no limit"
    mailboxes.remove("durable/a")
    assert asked("g", "alice") == ""


def test_other_configuration_recovers_the_same_state() -> None:
    """An operator changes it while the broker is down; what was decided before stays."""
    made = net(config=EXPIRING)
    broker = made.broker("b2")
    made.config = EXPIRING
    attach(made, "r")
    for number, (name, owned_max) in enumerate([("m", 2), ("n", 2), ("o", 2), ("p", 3)], 90):
        frame = msgspec.structs.replace(owned(name, "alice", owned_max), number=number)
        broker.receive(frame, source="r", now_ns=made.now_ns)
        made.drain("b2")
    made.settle()
    assert [name for name in broker.state.mailboxes.open if name != NAME] == [
        f"durable/{name}" for name in "mnp"
    ]
    publish(made, *"123")
    ask(made, "r", "release", NAME, epoch(made, "r"))
    made.elapse(EXPIRING.lease_ns + EXPIRE_NS)
    assert [*broker.state.mailboxes.expired] == [NAME]
    before, state = broker.clients, broker._dump()
    made.config = msgspec.structs.replace(
        EXPIRING, lease_ns=2 * EXPIRING.lease_ns, grace_ns=1, mailbox_expire_ns=3 * EXPIRE_NS
    )
    made.crash("b2")
    assert made.broker("b2").clients == before
    assert made.broker("b2")._dump() == state


def test_snapshot_has_every_field() -> None:
    """One that has fewer is of another version, and is refused rather than read in part."""
    fields = msgspec.msgpack.decode(net().broker("b2")._dump())
    assert len(fields) == len(BrokerRecord.__struct_fields__)
    for count in range(len(fields)):
        with pytest.raises(msgspec.ValidationError):
            BROKER.decode(msgspec.msgpack.encode(fields[:count]))


def test_client_that_does_not_read_it_ends_it() -> None:
    made = net()
    attach(made, "r")
    assert ask(made, "s", "dismiss", "billing") == ""
    assert lost(made, "r") == ["forgotten"]
    assert "there is no durable subscription 'billing'" in ask(made, "s", "dismiss", "billing")
    publish(made, "1")
    assert made.payloads("r") == []
    assert all(not made.broker(name).tables.subscriptions for name in made.tree)
    made.at_rest()
    mailboxes = Mailboxes(CONFIG, Effects())
    mailboxes.open[NAME] = Mailbox(f"{NAME}.sub1", "x > 0", owner="alice")
    for owner, refused in (("bob", True), ("alice", False), ("", False)):
        why = mailboxes.refuse_dismissal(NAME, Dismiss(number=1, name="billing", owner=owner))
        assert ("belongs to another user" in why) == refused


def test_notice_of_an_expired_mailbox_belongs_to_its_user() -> None:
    mailboxes = Mailboxes(EXPIRING, Effects())
    frame = msgspec.structs.replace(owned("billing", "alice", 1), accept_loss=True)
    mailboxes.make(NAME, frame)
    mailboxes.note_expired(NAME, EXPIRE_NS)
    mailboxes.remove(NAME)
    again = Mailboxes(EXPIRING, Effects())
    again.restore({}, 1, mailboxes.expired)
    other = msgspec.structs.replace(frame, owner="bob")
    for each in (mailboxes, again):
        assert "belongs to another user" in each.refusal(NAME, other)
        dismiss = Dismiss(number=1, name="billing", owner="bob")
        assert "belongs to another user" in each.refuse_dismissal(NAME, dismiss)
        assert each.refuse_dismissal(NAME, msgspec.structs.replace(dismiss, owner="")) == ""
        silent = msgspec.structs.replace(frame, accept_loss=False)
        assert "has expired" in each.refusal(NAME, silent)
        assert each.refusal(NAME, frame) == ""


def test_mailbox_counts_the_bytes_that_it_keeps() -> None:
    made = net()
    attach(made, "r")
    publish(made, *"12345")
    ask(made, "r", "acknowledge", NAME, epoch(made, "r"), 2)
    for restart in (False, True):
        if restart:
            made.broker("b2").log.write_snapshot()
            made.drain("b2")
            made.crash("b2")
            made.settle()
        mailboxes = made.broker("b2").state.mailboxes
        kept = mailboxes.open[NAME].kept
        assert len(kept) == 3
        assert mailboxes.bytes_of(NAME) == mailboxes._bytes == sum(one.size for one in kept)
    ask(made, "s", "dismiss", "billing")
    mailboxes = made.broker("b2").state.mailboxes
    assert mailboxes.bytes_of(NAME) == mailboxes._bytes == 0


def test_user_of_a_name_owns_it() -> None:
    mailboxes = Mailboxes(CONFIG, Effects())
    mailboxes.open[NAME] = Mailbox(f"{NAME}.sub1", "x > 0", owner="alice")
    frame = owned("billing", "bob")
    assert "belongs to another user" in mailboxes.refusal(NAME, frame)
    assert mailboxes.refusal(NAME, msgspec.structs.replace(frame, owner="alice")) == ""
