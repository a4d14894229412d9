"""Causal nodes as processes, numbered by a registry."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.test_wire import FIELDS, any_frame
from tests.protocols.causal.registered_group import (
    CODEC,
    CONFIG,
    EXPIRE_NS,
    MS,
    REGISTRY,
    SECOND,
    Desk,
    Room,
    settled_in,
)

from ensue.core.event import Event
from ensue.protocols.causal.event_cache import EventCache
from ensue.protocols.causal.frames import FRAMES as CUBE_FRAMES
from ensue.protocols.causal.frames import (
    Alive,
    Change,
    Fill,
    Heartbeat,
    Item,
    Publication,
    Receipt,
    Row,
    Rows,
    Summary,
    Versions,
)
from ensue.protocols.causal.hypercube import Hypercube
from ensue.protocols.causal.loss_recovery import LossRecovery
from ensue.protocols.causal.membership import Membership
from ensue.protocols.causal.node_state import NodeState
from ensue.protocols.causal.registered import RegisteredNode
from ensue.protocols.causal.repair import Repair
from ensue.protocols.causal.trees import Relay
from ensue.protocols.interface import Effect, Frame, Join, Refuse, Send, Settle
from ensue.protocols.membership.client import KnownMembers
from ensue.protocols.membership.frames import FRAMES as REGISTRY_FRAMES
from ensue.protocols.membership.frames import (
    Members,
    Register,
    TopicGranted,
    TopicReleased,
    TopicRequest,
)


@pytest.mark.parametrize("seed", range(5))
def test_publisher_that_leaves_at_once_reaches_earlier_subscribers(seed: int) -> None:
    """Also if others join at the same time, with a fifth of all messages lost."""
    room = Room(seed=seed, loss=0.2)
    room.come("a~1")
    room.come("b~1")
    room.run(5 * SECOND)
    assert settled_in(room, "a~1", "b~1")
    for name in ("a~1", "b~1"):
        room.act(name, "subscribe", ("t",))
    room.run(5 * SECOND)
    for number in range(4):
        name = f"pub~{number}"
        room.come(name)
        while not settled_in(room, name):
            room.run(5 * MS)
        room.act(name, "publish", "t", name.encode())
        while not any(isinstance(each, Settle) for each in room.outcomes[name]):
            room.run(5 * MS)
        room.act(name, "say_goodbye")
        room.kill(name)
    room.run(10 * SECOND)
    for name in ("a~1", "b~1"):
        assert sorted(room.delivered(name)) == [f"pub~{number}" for number in range(4)]


def test_new_node_waits_for_rows_but_not_for_silent_members() -> None:
    room = Room()
    for name in ("a~1", "b~1", "c~1"):
        room.come(name)
        room.run(SECOND)
    room.act("a~1", "subscribe", ("t",))
    room.run(SECOND)
    room.kill("b~1")
    room.come("new~1")
    room.run(SECOND // 2)
    assert "new~1" in room.nodes
    assert not settled_in(room, "new~1"), "the silent node is not suspected yet"
    room.run(SECOND)
    assert settled_in(room, "new~1")
    rows = {row.node: row.topics for row in room.nodes["new~1"].rows}
    assert rows[0] == ("t",)


def test_event_is_not_settled_while_its_only_subscriber_is_cut_off() -> None:
    room = Room()
    room.come("a~1")
    room.run(SECOND)
    room.act("a~1", "subscribe", ("t",))
    room.run(SECOND)
    room.cut = {("a~1", "new~1"), ("new~1", "a~1")}
    room.come("new~1")
    room.run(CONFIG.answer_ns + SECOND)
    assert settled_in(room, "new~1"), "it takes commands without the silent member"
    room.act("new~1", "publish", "t", b"first")
    room.run(SECOND)
    assert not any(isinstance(each, Settle) for each in room.outcomes["new~1"])
    room.cut = set()
    room.run(5 * SECOND)
    assert room.delivered("a~1") == ["first"]
    assert any(isinstance(each, Settle) for each in room.outcomes["new~1"])


def test_event_is_settled_when_the_silent_subscriber_is_evicted() -> None:
    room = Room()
    room.come("a~1")
    room.run(SECOND)
    room.act("a~1", "subscribe", ("t",))
    room.run(SECOND)
    room.kill("a~1")
    publish_alone(room)
    assert not any(isinstance(each, Settle) for each in room.outcomes["new~1"])
    room.run(EXPIRE_NS + EXPIRE_NS // 2)
    assert any(isinstance(each, Settle) for each in room.outcomes["new~1"])


def publish_alone(room: Room) -> None:
    """Publish an event of a new node, without waiting for members that are silent."""
    room.come("new~1")
    room.run(CONFIG.answer_ns + SECOND)
    room.act("new~1", "publish", "t", b"first")
    room.run(SECOND)


def test_silent_member_that_never_subscribed_holds_up_no_receipt() -> None:
    room = Room()
    room.come("old~1")
    room.run(SECOND)
    room.act("old~1", "publish", "t", b"before")
    room.run(SECOND)
    room.kill("old~1")
    publish_alone(room)
    assert any(isinstance(each, Settle) for each in room.outcomes["new~1"])


def test_restarted_registry_knows_that_a_silent_member_never_subscribed() -> None:
    room = Room()
    room.come("old~1")
    room.run(SECOND)
    room.act("old~1", "publish", "t", b"before")
    room.run(SECOND)
    room.kill("old~1")
    room.desk.start()
    publish_alone(room)
    assert any(isinstance(each, Settle) for each in room.outcomes["new~1"])


def test_restarted_registry_knows_that_a_silent_member_may_have_subscribed() -> None:
    room = Room()
    room.come("a~1")
    room.run(SECOND)
    room.act("a~1", "subscribe", ("t",))
    room.run(SECOND)
    room.cut = {pair for name in ("new~1", REGISTRY) for pair in (("a~1", name), (name, "a~1"))}
    room.desk.start()
    publish_alone(room)
    assert not any(isinstance(each, Settle) for each in room.outcomes["new~1"])
    room.cut = set()
    room.run(5 * SECOND)
    assert room.delivered("a~1") == ["first"]


def test_silent_subscriber_holds_up_no_receipt_if_another_member_knows_its_row() -> None:
    room = Room()
    for name in ("a~1", "b~1"):
        room.come(name)
        room.run(SECOND)
    room.act("a~1", "subscribe", ("other",))
    room.run(SECOND)
    room.kill("a~1")
    publish_alone(room)
    assert any(isinstance(each, Settle) for each in room.outcomes["new~1"])


def test_answer_of_another_new_member_does_not_stand_for_a_silent_subscriber() -> None:
    room = Room()
    room.come("a~1")
    room.run(SECOND)
    room.act("a~1", "subscribe", ("t",))
    room.run(SECOND)
    names = ("new~1", "new~2")
    room.cut = {pair for name in names for pair in (("a~1", name), (name, "a~1"))}
    room.come("new~2")
    publish_alone(room)
    assert not any(isinstance(each, Settle) for each in room.outcomes["new~1"])
    room.cut = set()
    room.run(5 * SECOND)
    assert room.delivered("a~1") == ["first"]


def settled(room: Room, name: str) -> list[str]:
    """Return the payloads of a node's settled events."""
    return [each.event.payload.decode() for each in room.outcomes[name] if isinstance(each, Settle)]


def members_of(*names: str, topic: str = "", reader: str = "a~1") -> Room:
    """Return a room of members, one of which has subscribed."""
    room = Room()
    for name in names:
        room.come(name)
        room.run(SECOND)
    if topic:
        room.act(reader, "subscribe", (topic,))
        room.run(SECOND)
    return room


def between(one: str, *others: str) -> set[tuple[str, str]]:
    return {pair for other in others for pair in ((one, other), (other, one))}


@pytest.mark.parametrize("known", ["", "u"], ids=["unknown row", "old row"])
def test_publisher_that_is_cut_off_learns_of_a_new_subscriber_before_it_settles(known: str) -> None:
    room = members_of("a~1", "pub~1", topic=known)
    room.cut = between("pub~1", "a~1", REGISTRY)
    room.act("a~1", "subscribe", ("t",))
    room.run(5 * SECOND)
    assert Join("t") in room.outcomes["a~1"], "it passes over the publisher"
    room.act("pub~1", "publish", "t", b"first")
    room.nodes["pub~1"]._client._granted["publish"].add("t")  # As if it had published before.
    room.nodes["pub~1"].node.advance(now_ns=room.now_ns)
    room.run(5 * SECOND)
    assert settled(room, "pub~1") == []
    room.cut = between("pub~1", "a~1")
    room.run(5 * SECOND)
    assert settled(room, "pub~1") == [], "the registry has named the subscriber"
    room.cut = set()
    room.run(2 * SECOND)
    assert room.delivered("a~1") == ["first"]
    assert settled(room, "pub~1") == ["first"]


def test_member_that_asked_for_a_topic_and_has_not_joined_holds_up_no_receipt() -> None:
    room = members_of("a~1", "pub~1", topic="t")
    room.lost = lambda frame: isinstance(frame, TopicReleased)
    room.act("a~1", "unsubscribe", ("t",))
    room.run(SECOND)
    room.act("pub~1", "publish", "t", b"first")
    room.run(SECOND)
    assert settled(room, "pub~1") == ["first"], "its row is without the topic"


def test_member_that_may_have_subscribed_is_asked_again() -> None:
    room = members_of("a~1", "b~1", "c~1", "d~1", "pub~1", topic="t", reader="c~1")
    room.lost = lambda frame: isinstance(frame, TopicReleased)
    room.act("c~1", "unsubscribe", ("t",))
    room.run(SECOND)
    room.act("pub~1", "publish", "t", b"first")
    room.lost = lambda frame: isinstance(frame, Heartbeat | Alive | Versions)
    room.run(SECOND // 2)
    room.lost = lambda _frame: False
    assert settled(room, "pub~1") == []
    room.run(2 * SECOND)
    assert settled(room, "pub~1") == ["first"]


def test_killed_subscriber_of_another_topic_holds_up_no_receipt() -> None:
    room = members_of("a~1", "pub~1", topic="other")
    room.kill("a~1")
    room.act("pub~1", "publish", "t", b"first")
    room.run(SECOND)
    assert settled(room, "pub~1") == ["first"]


def test_event_whose_subscribers_left_is_not_settled_without_an_unknown_one() -> None:
    """The only known subscriber is evicted before it had the event; another one is cut off."""
    room = members_of("a~1", "b~1", "pub~1", topic="t")
    room.cut = between("pub~1", "b~1")
    room.lost = lambda frame: isinstance(frame, Rows | Receipt)  # So a~1 does not pass them on.
    room.act("b~1", "subscribe", ("t",))
    room.run(SECOND)
    room.kill("a~1")
    room.act("pub~1", "publish", "t", b"first")
    room.run(2 * EXPIRE_NS)
    assert "a~1" not in room.desk.registry.present
    assert settled(room, "pub~1") == []
    room.cut, room.lost = set(), lambda _frame: False
    room.run(5 * SECOND)
    assert room.delivered("b~1") == ["first"]
    assert settled(room, "pub~1") == ["first"]


def test_steady_publishing_without_subscribers_asks_once_a_round_trip() -> None:
    room = members_of("pub~1")
    room.act("pub~1", "publish", "t", b"first")
    room.run(SECOND)
    polls = room.nodes["pub~1"]._client.asked
    for number in range(100):
        room.act("pub~1", "publish", "t", str(number).encode())
        room.run(5 * MS)
        # A poll takes up to 40 ms, and an event may wait for the one before its own.
        assert room.nodes["pub~1"].unsettled_count <= 20
    assert room.nodes["pub~1"]._client.asked - polls <= 50
    room.run(100 * MS)
    assert len(settled(room, "pub~1")) == 101


def test_new_connection_polls_before_it_greets() -> None:
    """A server drops frames to others on a connection that has not polled."""
    room = members_of("a~1", "pub~1")
    room.cut = between("pub~1", "a~1", REGISTRY)
    room.run(5 * SECOND)
    node = room.nodes["pub~1"]
    node.repeat(now_ns=room.now_ns)
    frames = [each.frame for each in node.take_effects() if isinstance(each, Send)]
    assert [type(frame) for frame in frames] == [Register, Heartbeat]


def mute(room: Room, name: str, *kinds: type[Frame]) -> None:
    """Drop all frames of some types that one client sends."""
    send = room.send

    def without(source: str, target: str, frame: Frame) -> None:
        if source != name or not isinstance(frame, kinds):
            send(source, target, frame)

    room.send = without  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "said",
    [Heartbeat(digest=b"other"), Versions(versions={0: 10**12}), Versions(versions={2: 10**12})],
)
def test_member_that_sends_no_rows_does_not_block_new_nodes(said: Frame) -> None:
    """Nor do false versions of rows, of another node or of the new node itself."""
    room = Room()
    send = room.send
    mute(room, "evil~1", Versions, Alive, Rows)
    for name in ("a~1", "evil~1"):
        room.come(name)
        room.run(SECOND)
    room.act("a~1", "subscribe", ("t",))
    room.run(SECOND)
    room.come("new~1")
    for step in range(CONFIG.answer_ns // (100 * MS) + 10):
        send("evil~1", "new~1", said)
        room.run(100 * MS)
        if step == 50:
            assert not settled_in(room, "new~1"), "the other one may tell yet"
    assert settled_in(room, "new~1")
    room.act("new~1", "publish", "t", b"1")
    room.run(SECOND)
    assert room.delivered("a~1") == ["1"]


def test_member_that_never_answers_blocks_neither_joins_nor_events() -> None:
    room = Room()
    for name in ("a~1", "evil~1", "b~1", "c~1"):
        room.come(name)
        room.run(SECOND)
    mute(room, "evil~1", Receipt)
    for name in ("a~1", "b~1"):
        room.act(name, "subscribe", ("t",))
    # One time for each dimension of a cube of four.
    room.run(2 * CONFIG.answer_ns + SECOND)
    for name in ("a~1", "b~1"):
        assert Join("t") in room.outcomes[name]
    room.act("evil~1", "subscribe", ("t",))
    room.run(2 * CONFIG.answer_ns + SECOND)
    for number in range(20):
        room.act("c~1", "publish", "t", str(number).encode())
    room.run(4 * CONFIG.answer_ns)
    for name in ("a~1", "b~1"):
        assert room.delivered(name) == [str(number) for number in range(20)]
    assert sum(isinstance(each, Settle) for each in room.outcomes["c~1"]) == 20


def test_silent_member_is_evicted_and_notified_when_it_reconnects() -> None:
    room = Room()
    for name in ("a~1", "b~1", "c~1"):
        room.come(name)
        room.run(SECOND)
    room.kill("b~1")
    room.deaf.add("c~1")
    room.run(EXPIRE_NS + EXPIRE_NS // 4 + SECOND)
    assert room.desk.registry.present == ("a~1",)
    room.deaf.clear()
    room.run(5 * SECOND)
    (refused,) = [each.reason for each in room.outcomes["c~1"] if isinstance(each, Refuse)]
    assert "away for too long" in refused
    room.act("a~1", "subscribe", ("t",))
    room.run(SECOND)
    assert Join("t") in room.outcomes["a~1"], "no node waits for departed ones"


@pytest.mark.parametrize("expire_s", [10, 300], ids=["gone", "suspected"])
def test_no_node_waits_forever_for_events_lost_with_a_killed_process(expire_s: int) -> None:
    """Its event on one topic arrived, and depends on one of another topic that no node got."""
    room = Room(expire_ns=expire_s * SECOND)
    for name in ("a~1", "b~1", "c~1"):
        room.come(name)
    room.run(SECOND)
    room.act("b~1", "subscribe", ("came", "lost"))
    room.act("c~1", "subscribe", ("came",))
    room.run(SECOND)

    def of_lost(frame: Frame) -> bool:
        items = frame.items if isinstance(frame, Publication | Fill) else ()
        return any(item.event.topic == "lost" for item in items)

    room.lost = of_lost
    room.act("a~1", "publish", "lost", b"1")
    room.act("a~1", "publish", "came", b"2")
    room.run(SECOND // 2)
    room.kill("a~1")
    room.lost = lambda _frame: False
    assert room.delivered("c~1") == ["2"]
    assert room.delivered("b~1") == []
    room.run(CONFIG.patience_ns + 20 * SECOND)
    assert room.delivered("b~1") == ["2"]
    room.act("c~1", "publish", "lost", b"3")
    room.act("c~1", "publish", "came", b"4")
    room.run(5 * SECOND)
    assert room.delivered("b~1") == ["2", "3", "4"]


def test_denied_event_settles_and_later_events_are_sent() -> None:
    room = Room(denied=("secret",))
    for name in ("a~1", "b~1"):
        room.come(name)
    room.run(SECOND)
    room.act("b~1", "subscribe", ("open", "secret"))
    room.run(SECOND)
    assert Refuse(("secret",), "it is secret") in room.outcomes["b~1"]
    assert room.nodes["b~1"].topics == ("open",)
    for topic in ("secret", "open", "secret", "open"):
        room.act("a~1", "publish", topic, topic.encode())
    room.run(SECOND)
    room.act("a~1", "publish", "secret", b"again")
    room.run(SECOND)
    assert room.delivered("b~1") == ["open", "open"]
    fates = [
        (each.event.topic, each.verdict, each.reason)
        for each in room.outcomes["a~1"]
        if isinstance(each, Settle)
    ]
    assert fates.count(("secret", "void", "it is secret")) == 3
    assert fates.count(("open", "", "")) == 2


def test_new_connection_repeats_frames_that_may_be_lost() -> None:
    room = Room()
    for name in ("a~1", "b~1"):
        room.come(name)
    room.run(SECOND)
    room.deaf.add("a~1")
    room.act("a~1", "subscribe", ("t",))
    room.run(4 * SECOND)
    room.deaf.clear()
    room.act("a~1", "repeat")
    sent = [frame for *_, source, _, frame in room.way if source == "a~1"]
    assert any(isinstance(frame, TopicRequest) for frame in sent)
    assert any(isinstance(frame, Register) for frame in sent)
    room.run(2 * SECOND)
    assert Join("t") in room.outcomes["a~1"]


def test_paused_node_delivers_held_events_in_order_on_resume() -> None:
    room = Room()
    for name in ("a~1", "b~1"):
        room.come(name)
    room.run(SECOND)
    room.act("b~1", "subscribe", ("t",))
    room.run(SECOND)
    room.nodes["b~1"].pause()
    for number in range(5):
        room.act("a~1", "publish", "t", b"%d" % number)
    room.run(2 * SECOND)
    assert room.delivered("b~1") == []
    room.act("b~1", "resume")
    assert room.delivered("b~1") == ["0", "1", "2", "3", "4"]


def test_node_proves_the_events_that_its_registry_asks_for() -> None:
    """Only sealed ones that it has: the registry may have lost that they were published."""
    room = Room()
    for name in ("a~1", "b~1"):
        room.come(name)
    room.run(SECOND)
    room.act("a~1", "subscribe", ("t",))
    room.run(SECOND)
    room.act("b~1", "publish", "t", b"unsealed")
    room.run(SECOND)
    node = room.nodes["a~1"]
    sealed = [
        Item(Event(topic="t", payload=b"", publisher="b~1", publisher_seq=number), {}, b"seal")
        for number in (2, 3, 5)
    ]
    fill = Fill(topic="t", request=0, items=tuple(sealed), more=False)
    node.receive(fill, source="b~1", now_ns=room.now_ns)
    node.take_effects()

    def answers(topic: str, number: int, source: int = 1) -> list[Effect]:
        asks = Summary(topic, {source: number - 1}, follows=True, request=1, only=(source,), room=1)
        node.receive(asks, source=REGISTRY, now_ns=room.now_ns)
        return list(node.take_effects())

    for item, number in zip(sealed, (2, 3, 5), strict=True):
        proof = Fill(topic="t", request=1, items=(item,), more=False)
        assert answers("t", number) == [Send(REGISTRY, proof)], "delivered, or held"
    for topic, number, source in (("t", 1, 1), ("t", 4, 1), ("t", 2, 0), ("other", 2, 1)):
        assert answers(topic, number, source) == []


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.one_of(
                [st.builds(kind, **FIELDS[kind]) for kind in (*CUBE_FRAMES, *REGISTRY_FRAMES)]
            ),
            st.sampled_from((REGISTRY, "b~1", "c~1", "stranger~1")),
        ),
        max_size=12,
    )
)
def test_no_frame_whatever_makes_a_node_raise(sent: list[tuple[Frame, str]]) -> None:
    lists = KnownMembers()
    lists.take(
        Members(
            epoch=9,
            first=0,
            names=("a~1", "b~1", "c~1"),
            total=3,
            gone_first=0,
            gone=(),
            gone_total=0,
        )
    )
    node = RegisteredNode(name="a~1", registry=REGISTRY, members=lists, config=CONFIG, now_ns=0)
    now_ns = 0
    node.subscribe(("prices", "orders"), now_ns=now_ns)
    node.publish("prices", b"", now_ns=now_ns)
    for frame, source in sent:
        now_ns += 300 * MS
        node.receive(frame, source=source, now_ns=now_ns)
        due_ns = node.next_timer_ns()
        assert due_ns is not None
        if due_ns <= now_ns:
            node.handle_timer(now_ns=now_ns)
        for effect in node.take_effects():
            if isinstance(effect, Send):
                assert CODEC.decode(CODEC.encode(effect.frame)) == effect.frame


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.lists(st.tuples(any_frame, st.sampled_from(("a~1", "b~1"))), max_size=8))
def test_no_frame_whatever_makes_a_registry_raise(sent: list[tuple[Frame, str]]) -> None:
    desk = Desk()
    for frame, source in sent:
        desk.handle(source, frame)
        desk.wait(EXPIRE_NS // 3)
    desk.start()


J, S, Q, N = "j~1", "s~1", "q~1", "n~1"


def carries(frame: Frame, *payloads: bytes) -> bool:
    items = frame.items if isinstance(frame, Publication | Fill) else ()
    return any(item.event.payload in payloads for item in items)


@pytest.mark.parametrize("joins", [False, True], ids=["member", "joiner"])
def test_no_event_is_skipped_while_an_unknown_member_may_exist(*, joins: bool) -> None:
    """w of N precedes x of S, which precedes y of Q. J gets only y, S and Q crash, J does not know
    N.

    A later joiner has delivered y on another topic, and needs x to start.
    """
    room = Room(expire_ns=600 * SECOND)
    for name in (J, S, Q):
        room.come(name)
    room.run(SECOND)
    for name in (J, S, Q):
        room.act(name, "subscribe", ("u",) if joins and name == J else ("t", "u"))
    room.run(SECOND)
    others = (S, Q, N)
    room.cut = {(REGISTRY, J), *((each, J) for each in others), *((J, each) for each in others)}
    room.come(N)
    room.run(4 * SECOND)
    assert settled_in(room, N)
    room.act(N, "publish", "t", b"w")
    room.run(SECOND // 2)
    room.act(S, "publish", "t", b"x")
    room.run(SECOND // 2)
    room.cut -= {(Q, J), (J, Q)}
    room.lost = lambda frame: carries(frame, b"w", b"x")
    room.act(Q, "publish", "u" if joins else "t", b"y")
    while not (room.delivered(J) or room.nodes[J].held_count):
        room.run(5 * MS)
    room.kill(S)
    room.kill(Q)
    if joins:
        room.act(J, "subscribe", ("t",))
        room.hand(REGISTRY, J, TopicGranted(topic="t", action="subscribe"))
    room.lost = lambda _frame: False
    room.run(3 * CONFIG.patience_ns)
    assert room.delivered(J) == (["y"] if joins else []), "the registry has not answered"
    assert (Join("t") in room.outcomes[J]) == (not joins)
    room.cut = {(N, J), (J, N)}
    room.run(3 * CONFIG.patience_ns)
    assert room.delivered(J) == ["y"]
    assert Join("t") in room.outcomes[J]
    room.cut = set()
    room.run(20 * SECOND)
    assert room.delivered(J) == ["y"], "w would come after y"
    room.act(N, "publish", "t", b"z")
    room.run(5 * SECOND)
    assert room.delivered(J) == ["y", "z"]


@pytest.mark.parametrize("known", [False, True])
def test_member_discovered_during_recovery_is_in_doubt(*, known: bool) -> None:
    """N was not asked for a start vector, and may have published before the skipped event."""
    names = [J, S, *([N] if known else [])]
    state = NodeState(0, Hypercube(names), CONFIG, Membership(), run=1)
    state.causality.join("t")
    state.causality.topic("t").barrier = {1: 1}
    retrieval = Repair(state, EventCache(10, lambda _key: False)).retrieval
    recovery = LossRecovery(state, retrieval, lambda *_question: True)
    relay = Relay(Change(token=0, height=1, below=b"", row=Row(0, 1, ("t",)), joins=("t",)), 2, 1)
    relay.away = 2
    assert recovery.start("t", {}, relay, patient=True, now_ns=0) is None
    start = recovery.start("t", {}, relay, patient=False, now_ns=0)
    assert start == ({1: 1}, 0b100 if known else 0)
