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
from ensue.protocols.membership.client import (
    RETRY_NS,
    STRANGERS_MAX,
    KnownMembers,
    MembershipClient,
)
from ensue.protocols.membership.frames import (
    Deregister,
    Evicted,
    Members,
    Register,
    TopicReleased,
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


def readers(desk: Desk, *topics: str) -> dict[str, tuple[int, ...]]:
    """Ask as the first member which members may have subscribed to topics."""
    name = desk.registry.present[0]
    ((_, answer),) = desk.ask(name, topics)
    return members(answer).readers


def test_registry_names_the_members_that_asked_to_subscribe() -> None:
    desk = Desk()
    for name in ("reader~1", "writer~1", "left~1"):
        desk.enrol(name)
    for name in ("reader~1", "left~1"):
        desk.handle(name, TopicRequest(topic="t/1", action="subscribe"))
    desk.handle("writer~1", TopicRequest(topic="t/1", action="publish"))
    assert readers(desk, "t/1", "other") == {"t/1": (0, 2), "other": ()}
    desk.handle("left~1", Deregister(epoch=desk.registry.epoch))
    for _ in range(2):
        assert readers(desk, "t/1", "other") == {"t/1": (0,), "other": ()}
        desk.start()
        desk.wait(RETURN_NS + MS)
    for name in ("reader~1", "writer~1"):
        desk.handle(name, Deregister(epoch=desk.registry.epoch))
    desk.enrol("later~1")  # Begins another epoch, in which 0 is another member.
    desk.start()
    desk.wait(RETURN_NS + MS)
    assert readers(desk, "t/1") == {"t/1": ()}
    assert not any("reader/" in key for key in desk.disk)


def test_released_topic_has_no_reader_unless_it_was_requested_again() -> None:
    desk = Desk()
    desk.enrol("reader~1")
    desk.handle("reader~1", TopicRequest(topic="t", action="subscribe", asked=1))
    desk.handle("reader~1", TopicReleased(topic="t", asked=1))
    assert readers(desk, "t") == {"t": ()}
    assert not any("reader/" in key for key in desk.disk)
    desk.handle("reader~1", TopicRequest(topic="t", action="subscribe", asked=2))
    desk.handle("reader~1", TopicReleased(topic="t", asked=1))
    assert readers(desk, "t") == {"t": (0,)}, "the release was overtaken"


def member(desk: Desk, name: str) -> MembershipClient:
    """Return the client of a member that knows the lists."""
    lists = KnownMembers()
    (*_, (_, answer)) = desk.enrol(name)
    assert lists.take(members(answer))
    return MembershipClient(REGISTRY, lists, now_ns=desk.now_ns)


def exchange(desk: Desk, client: MembershipClient, name: str) -> dict[str, tuple[int, ...]]:
    """Exchange one message with the registry; return the readers it names."""
    (sent,) = client.take_effects()
    assert isinstance(sent, Send)
    ((_, answer),) = desk.handle(name, sent.frame)
    return client.receive(answer, desk.now_ns).readers


def test_one_inquiry_is_under_way_and_the_next_is_for_all_topics_since() -> None:
    desk = Desk()
    client = member(desk, "a~1")
    for topic in ("t", "u", "v"):
        client.inquire(topic, desk.now_ns)
    assert (client.has_inquired("t"), client.has_inquired("u")) == (True, False)
    assert exchange(desk, client, "a~1") == {"t": ()}
    assert exchange(desk, client, "a~1") == {"u": (), "v": ()}
    assert client.take_effects() == []


def test_unanswered_inquiry_is_repeated() -> None:
    desk = Desk()
    client = member(desk, "a~1")
    client.inquire("t", desk.now_ns)
    client.take_effects()
    assert client.next_timer_ns() == desk.now_ns + RETRY_NS
    client.handle_timer(desk.now_ns + RETRY_NS)
    assert exchange(desk, client, "a~1") == {"t": ()}


def test_answer_to_an_earlier_poll_is_none_to_an_inquiry() -> None:
    desk = Desk()
    client = member(desk, "a~1")
    client.inquire("t", desk.now_ns)
    (first,) = client.take_effects()
    assert isinstance(first, Send)
    ((_, early),) = desk.handle("a~1", first.frame)
    client.receive(early, desk.now_ns)
    desk.handle("a~1", TopicRequest(topic="t", action="subscribe"))
    client.inquire("t", desk.now_ns)
    assert client.receive(early, desk.now_ns).readers == {}, "it came twice"
    assert exchange(desk, client, "a~1") == {"t": (0,)}


def test_client_asks_again_for_readers_that_did_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "READERS_MAX", 2)
    desk = Desk()
    client = member(desk, "a~1")
    for topic in ("t", "u"):
        for name in ("a~1", "b~1"):
            desk.enrol(name)
            desk.handle(name, TopicRequest(topic=topic, action="subscribe"))
    client.question(desk.now_ns)
    exchange(desk, client, "a~1")  # Of b~1.
    for topic in ("first", "t", "u"):
        client.inquire(topic, desk.now_ns)
    assert exchange(desk, client, "a~1") == {"first": ()}
    assert exchange(desk, client, "a~1") == {"t": (0, 1)}
    assert exchange(desk, client, "a~1") == {"u": (0, 1)}


def test_topic_that_was_released_without_a_connection_is_released_by_the_next() -> None:
    desk = Desk()
    client = member(desk, "a~1")
    for topic in ("t", "u"):
        desk.handle("a~1", TopicRequest(topic=topic, action="subscribe"))
        client.ask(topic, "subscribe", desk.now_ns)
        client.withdraw(topic, "subscribe")
    client.ask("u", "subscribe", desk.now_ns)
    client.question(desk.now_ns)
    client.take_effects()  # All of it is lost.
    client.repeat(desk.now_ns)
    for sent in client.take_effects():
        assert isinstance(sent, Send)
        for _, answer in desk.handle("a~1", sent.frame):
            client.receive(answer, desk.now_ns)
    assert readers(desk, "t", "u") == {"t": (), "u": (0,)}
    client.repeat(desk.now_ns)
    repeated = [each.frame for each in client.take_effects() if isinstance(each, Send)]
    assert [type(frame) for frame in repeated] == [Register, TopicRequest]


def test_withdrawn_request_releases_its_topic() -> None:
    desk = Desk()
    client = member(desk, "a~1")
    client.ask("t", "subscribe", desk.now_ns)
    client.withdraw("t", "subscribe")
    for sent in client.take_effects():
        assert isinstance(sent, Send)
        desk.handle("a~1", sent.frame)
    assert readers(desk, "t") == {"t": ()}


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
