"""The membership registry: numbers, evictions, lost entries and terms."""

import pytest
from tests.protocols.causal.registered_group import (
    CONFIG,
    EXPIRE_NS,
    MS,
    REGISTRY,
    SECOND,
    Desk,
    members,
)

from ensue.core.event import COUNT_MAX
from ensue.protocols.causal.frames import Alive
from ensue.protocols.causal.registered import RegisteredNode
from ensue.protocols.interface import Frame, Refuse, Send
from ensue.protocols.membership import registry
from ensue.protocols.membership.client import STRANGERS_MAX, KnownMembers, MembershipClient
from ensue.protocols.membership.frames import (
    Deregister,
    Evicted,
    Members,
    Register,
    TopicRequest,
)
from ensue.protocols.membership.registry import AGAIN, RETURN_NS, SWEEPS

# -- The registry -------------------------------------------------------------------------------


def test_numbers_are_consecutive_and_all_members_are_notified() -> None:
    desk = Desk()
    ((peer, first),) = desk.enrol("a~1")
    assert (peer, members(first).names) == ("a~1", ("a~1",))
    replies = dict(desk.enrol("b~1"))
    assert members(replies["b~1"]).names == ("a~1", "b~1")
    # Members get the new entries, and their position.
    assert (members(replies["a~1"]).first, members(replies["a~1"]).names) == (1, ("b~1",))
    # Repeated requests get no second number.
    ((_, again),) = desk.enrol("b~1")
    assert members(again).total == 2


def test_restarted_registry_resumes_with_its_lists() -> None:
    desk = Desk()
    for name in ("a~1", "b~1", "c~1"):
        desk.enrol(name)
    epoch = desk.registry.epoch
    desk.handle("b~1", Deregister(epoch=epoch))
    desk.start()
    assert (desk.registry.epoch, desk.registry.names) == (epoch, ["a~1", "b~1", "c~1"])
    assert desk.registry.gone == [1]
    assert desk.registry.present == ("a~1", "c~1")
    assert desk.enrol("d~1") == [], "former members have to poll first"
    desk.ask("a~1")
    assert desk.enrol("d~1") == []
    desk.ask("c~1")
    assert members(dict(desk.enrol("d~1"))["d~1"]).names[3] == "d~1"
    desk.start()
    desk.wait(RETURN_NS + MS)
    assert members(dict(desk.enrol("e~1"))["e~1"]).names[4] == "e~1", "or had the time to poll"


def test_restarted_registry_names_the_members_that_asked_to_subscribe() -> None:
    desk = Desk()
    for name in ("reader~1", "writer~1", "left~1"):
        desk.enrol(name)
    for name in ("reader~1", "left~1"):
        desk.handle(name, TopicRequest(topic="t", action="subscribe"))
    desk.handle("writer~1", TopicRequest(topic="t", action="publish"))
    desk.handle("left~1", Deregister(epoch=desk.registry.epoch))
    desk.start()
    desk.wait(RETURN_NS + MS)
    assert members(dict(desk.enrol("new~1"))["new~1"]).readers == (0,)
    for name in ("reader~1", "writer~1", "new~1"):
        desk.handle(name, Deregister(epoch=desk.registry.epoch))
    desk.enrol("later~1")  # Begins another epoch, in which 0 is another member.
    desk.start()
    desk.wait(RETURN_NS + MS)
    assert members(dict(desk.enrol("last~1"))["last~1"]).readers == ()


def test_departed_or_expired_member_can_not_return_under_its_name() -> None:
    desk = Desk()
    for name in ("a~1", "b~1", "c~1"):
        desk.enrol(name)
    epoch = desk.registry.epoch
    replies = dict(desk.handle("a~1", Deregister(epoch=epoch)))
    assert set(replies) == {"a~1", "b~1", "c~1"}
    assert members(replies["b~1"]).gone == (0,)
    # It repeats `Deregister` until it is confirmed: the answer may be lost.
    ((peer, again),) = desk.handle("a~1", Deregister(epoch=epoch))
    assert (peer, again) == ("a~1", replies["a~1"])
    assert isinstance(again, Evicted)
    assert desk.handle("b~1", Deregister(epoch=epoch + 1)) == [], "of another epoch"
    assert desk.registry.present == ("b~1", "c~1")
    desk.wait(EXPIRE_NS - SECOND)
    desk.ask("b~1")
    replies = dict(desk.wait(EXPIRE_NS // SWEEPS))
    assert set(replies) == {"b~1"}
    assert members(replies["b~1"]).gone == (2,)
    for name in ("a~1", "c~1"):
        for question in (
            Register(epoch=0, known=0, gone=0),
            Register(epoch=epoch, known=3, gone=0),
        ):
            ((_, answer),) = desk.handle(name, question)
            assert isinstance(answer, Evicted)


def test_number_is_reused_only_when_no_member_knows_it() -> None:
    desk = Desk()
    desk.enrol("a~1")
    desk.enrol("b~1")
    epoch = desk.registry.epoch
    desk.handle("a~1", Deregister(epoch=epoch))
    assert members(dict(desk.enrol("c~1"))["c~1"]).total == 3
    for name in ("b~1", "c~1"):
        desk.handle(name, Deregister(epoch=epoch))
    ((_, answer),) = desk.enrol("d~1")
    assert (members(answer).names, members(answer).epoch) == (("d~1",), epoch + 1)
    # A member of an earlier epoch is unknown here, whatever its number.
    ((_, reply),) = desk.handle("b~1", Register(epoch=epoch, known=3, gone=0))
    assert isinstance(reply, Evicted)
    desk.start()
    assert (desk.registry.epoch, desk.registry.names) == (epoch + 1, ["d~1"])


def test_registry_without_free_numbers_rejects_new_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "NODES_MAX", 2)
    desk = Desk()
    desk.enrol("a~1")
    desk.enrol("b~1")
    ((_, answer),) = desk.enrol("c~1")
    assert isinstance(answer, Evicted)
    assert "all 2 numbers" in answer.reason


def test_registry_that_lost_entries_evicts_members_that_know_more() -> None:
    desk = Desk()
    desk.enrol("a~1")
    epoch = desk.registry.epoch
    for question in (
        Register(epoch=epoch, known=2, gone=0),
        Register(epoch=epoch, known=1, gone=1),
        Register(epoch=epoch + 1, known=1, gone=0),
        Register(epoch=COUNT_MAX, known=COUNT_MAX, gone=COUNT_MAX),
    ):
        ((_, answer),) = desk.handle("a~1", question)
        assert isinstance(answer, Evicted)
    ((_, answer),) = desk.handle("b~1", Register(epoch=epoch, known=1, gone=0))
    assert isinstance(answer, Evicted)


def test_stopped_registry_evicts_no_member() -> None:
    desk = Desk()
    for name in ("a~1", "b~1"):
        desk.enrol(name)
    for _ in range(3):
        desk.wait(EXPIRE_NS // 8)
        desk.stall(3 * EXPIRE_NS)
        assert desk.registry.present == ("a~1", "b~1")
        desk.ask("a~1")
    desk.wait(EXPIRE_NS)
    assert desk.registry.present == (), "silence while the registry runs counts"


def lost_name() -> tuple[Desk, dict[str, KnownMembers]]:
    """Return a registry that lost its last entry, and the lists of the others."""
    desk = Desk()
    known: dict[str, KnownMembers] = {name: KnownMembers() for name in ("a~1", "b~1", "c~1")}
    for _ in range(2):
        for name, lists in known.items():
            for peer, frame in desk.handle(name, lists.question()):
                assert known[peer].take(members(frame))
    desk.disk.pop("cube/causal/name/2")
    desk.start()
    return desk, known


def test_lost_number_is_not_reused_while_a_member_knows_it() -> None:
    desk, known = lost_name()
    assert desk.enrol("d~1") == [], "before former members have polled"
    for name, lists in known.items():
        answer = dict(desk.handle(name, lists.question()))[name]
        assert isinstance(answer, Evicted)
        assert AGAIN in answer.reason
    assert desk.registry.present == ()
    ((_, answer),) = desk.enrol("d~1")
    assert members(answer).names == ("d~1",)
    assert members(answer).epoch != known["a~1"].epoch, "a new epoch"


@pytest.mark.parametrize("update_first", [False, True])
def test_late_member_after_a_loss_does_not_confuse_two_names(*, update_first: bool) -> None:
    """The member that knew the lost name polls after the number is reused, with equal list
    lengths."""
    desk, known = lost_name()
    node = RegisteredNode(
        name="a~1", registry=REGISTRY, members=known["a~1"], config=CONFIG, now_ns=desk.now_ns
    )
    node.take_effects()
    desk.wait(RETURN_NS + MS)
    replies = desk.enrol("d~1")
    assert [peer for peer, _ in replies] == ["a~1", "b~1", "d~1"]
    assert len(desk.registry.names) == 3
    if update_first:
        # An update for the next client: its number follows the lost one.
        replies = [one for one in desk.enrol("e~1") if one[0] == "a~1"]
    else:
        replies = desk.handle("a~1", known["a~1"].question())
        assert isinstance(replies[0][1], Evicted)
    node.receive(replies[0][1], source=REGISTRY, now_ns=desk.now_ns)
    effects = node.take_effects()
    (refused,) = [each for each in effects if isinstance(each, Refuse)]
    assert AGAIN in refused.reason
    for each in effects:
        if isinstance(each, Send):
            assert each.peer == REGISTRY
            desk.handle("a~1", each.frame)
    assert "a~1" not in desk.registry.present, "no member waits for it"
    assert "d~1" not in known["a~1"].names
    assert "e~1" not in known["a~1"].names


def test_member_that_left_before_its_name_was_sent_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names arrive in pieces, and more of them than numbers of departed members."""
    desk = Desk()
    ((_, replies),) = desk.enrol("a~1")
    lists = KnownMembers()
    assert lists.take(members(replies))
    node = RegisteredNode(
        name="a~1", registry=REGISTRY, members=lists, config=CONFIG, now_ns=desk.now_ns
    )
    monkeypatch.setattr(registry, "NAMES_MAX", 2)
    for number in range(4):
        desk.enrol(f"b~{number}")
        desk.handle(f"b~{number}", Deregister(epoch=desk.registry.epoch))
    for _ in range(2):
        ((_, replies),) = desk.handle("a~1", lists.question())
        node.receive(replies, source=REGISTRY, now_ns=desk.now_ns)
    assert node._cube.names == ["a~1", "b~0", "b~1", "b~2", "b~3"]
    assert node._cube.everyone == 1, "no other member is present"


def test_frames_of_unknown_senders_make_room_for_others() -> None:
    lists = KnownMembers()
    names = ("a~1",)
    lists.take(Members(epoch=9, first=0, names=names, total=1, gone_first=0, gone=(), gone_total=0))
    client = MembershipClient(REGISTRY, lists, now_ns=0)
    for number in range(2 * STRANGERS_MAX):
        client.stranger(f"liar~{number}", Alive(), 0)
    client.stranger("late~1", Alive(), 0)
    assert client.introduce("late~1") == Alive()
    assert client.introduce("liar~0") is None
    assert len(client._strangers) < STRANGERS_MAX


def test_long_lists_are_sent_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "NAMES_MAX", 3)
    monkeypatch.setattr(registry, "GONE_MAX", 2)
    desk = Desk()
    for number in range(8):
        desk.enrol(f"a~{number}")
    for number in range(5):
        desk.handle(f"a~{number}", Deregister(epoch=desk.registry.epoch))
    lists = KnownMembers()
    for _ in range(3):
        assert not lists.whole
        (*_, (_, answer)) = desk.handle("new~1", lists.question())
        lists.take(members(answer))
    assert lists.whole
    assert lists.names == desk.registry.names
    assert lists.gone == desk.registry.gone


def test_first_member_decides_the_terms() -> None:
    def come(name: str, terms: str) -> Frame:
        (*_, (peer, answer)) = desk.handle(name, KnownMembers(terms).question())
        assert peer == name
        return answer

    desk = Desk()
    assert isinstance(come("a~1", "deadlines of 200 ms"), Members)
    reason = "other clients have deadlines of 200 ms, this one has deadlines of 1 ms"
    assert come("b~1", "deadlines of 1 ms") == Evicted(reason=reason)
    desk.start()
    desk.wait(RETURN_NS + MS)
    assert come("b~1", "deadlines of 1 ms") == Evicted(reason=reason)
    assert isinstance(come("b~1", "deadlines of 200 ms"), Members)
    epoch = desk.registry.epoch
    for name in ("a~1", "b~1"):
        desk.handle(name, Deregister(epoch=epoch))
    assert isinstance(come("c~1", "deadlines of 1 ms"), Members)
    assert desk.registry.epoch > epoch
