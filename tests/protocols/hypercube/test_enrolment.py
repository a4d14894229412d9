"""Who has which number, where nodes are processes: the registry, and nodes that go by it."""

from collections.abc import Callable, Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.test_wire import FIELDS, any_frame

from ensue.event import COUNT_MAX
from ensue.protocols.core import (
    Deliver,
    Frame,
    Join,
    Outcome,
    Persist,
    Refuse,
    Resumed,
    Send,
    Settle,
)
from ensue.protocols.enlistment import STRANGERS_MAX, Enlistment, Lists
from ensue.protocols.hypercube import enrolment
from ensue.protocols.hypercube.config import HypercubeConfig
from ensue.protocols.hypercube.enrolled import EnrolledNode
from ensue.protocols.hypercube.enrolment import (
    AGAIN,
    RETURN_NS,
    SWEEPS,
    Ask,
    Denied,
    Enrol,
    Expelled,
    Members,
    Registry,
    Resign,
)
from ensue.protocols.hypercube.frames import FRAMES as CUBE_FRAMES
from ensue.protocols.hypercube.frames import Fill, Here, Publication
from ensue.protocols.station import FRAMES
from ensue.wire import Codec

REGISTRY = "s/causal"
MS = 1_000_000
SECOND = 1_000_000_000
EXPIRE_NS = 60 * SECOND
CODEC = Codec(FRAMES)
CONFIG = HypercubeConfig(durable=False)


class Desk:
    """A registry alone, and what it has persisted."""

    def __init__(self, expire_ns: int = EXPIRE_NS) -> None:
        self.expire_ns = expire_ns
        self.disk: dict[str, bytes] = {}
        self.now_ns = 5 * SECOND
        self.start()

    def start(self) -> None:
        self.registry = Registry(
            name=REGISTRY,
            order="causal",
            expire_ns=self.expire_ns,
            records=dict(sorted(self.disk.items())),
            now_ns=self.now_ns,
        )
        self.drain()

    def drain(self) -> list[tuple[str, Frame]]:
        sent = []
        for effect in self.registry.take_effects():
            if isinstance(effect, Persist):
                if effect.value is None:
                    del self.disk[effect.key]
                else:
                    self.disk[effect.key] = effect.value
            else:
                assert isinstance(effect, Send)
                sent.append((effect.peer, effect.frame))
        return sent

    def hear(self, source: str, frame: Frame) -> list[tuple[str, Frame]]:
        self.registry.receive(frame, source=source, now_ns=self.now_ns)
        return self.drain()

    def enrol(self, source: str) -> list[tuple[str, Frame]]:
        return self.hear(source, Enrol(epoch=0, known=0, gone=0))

    def ask(self, source: str) -> list[tuple[str, Frame]]:
        """Hear somebody who knows everything."""
        registry = self.registry
        known, gone = len(registry.names), len(registry.gone)
        digest = registry._lists.digest(known, gone)
        assert digest is not None
        return self.hear(source, Enrol(epoch=registry.epoch, known=known, gone=gone, digest=digest))

    def wait(self, period_ns: int) -> list[tuple[str, Frame]]:
        """Let time pass, with a look whenever one is due."""
        sent = []
        end_ns = self.now_ns + period_ns
        while (due_ns := self.registry.next_timer_ns()) is not None and due_ns <= end_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.registry.handle_timer(now_ns=self.now_ns)
            sent += self.drain()
        self.now_ns = end_ns
        return sent

    def stall(self, period_ns: int) -> list[tuple[str, Frame]]:
        """Let time pass in which the registry does nothing."""
        self.now_ns += period_ns
        self.registry.handle_timer(now_ns=self.now_ns)
        return self.drain()


def members(frame: Frame) -> Members:
    assert isinstance(frame, Members)
    return frame


# -- The registry -------------------------------------------------------------------------------


def test_numbers_are_given_in_turn_and_everybody_is_told() -> None:
    desk = Desk()
    ((peer, first),) = desk.enrol("a~1")
    assert (peer, members(first).names) == ("a~1", ("a~1",))
    told = dict(desk.enrol("b~1"))
    assert members(told["b~1"]).names == ("a~1", "b~1")
    # Whoever was there is told what is new, and where it belongs.
    assert (members(told["a~1"]).first, members(told["a~1"]).names) == (1, ("b~1",))
    # Asked again, as an answer may be lost, nobody gets a second number.
    ((_, again),) = desk.enrol("b~1")
    assert members(again).total == 2


def test_a_restarted_registry_goes_on_with_its_lists() -> None:
    desk = Desk()
    for name in ("a~1", "b~1", "c~1"):
        desk.enrol(name)
    epoch = desk.registry.epoch
    desk.hear("b~1", Resign(epoch=epoch))
    desk.start()
    assert (desk.registry.epoch, desk.registry.names) == (epoch, ["a~1", "b~1", "c~1"])
    assert desk.registry.gone == [1]
    assert desk.registry.present == ("a~1", "c~1")
    assert desk.enrol("d~1") == [], "first those who were there"
    desk.ask("a~1")
    assert desk.enrol("d~1") == []
    desk.ask("c~1")
    assert members(dict(desk.enrol("d~1"))["d~1"]).names[3] == "d~1"
    desk.start()
    desk.wait(RETURN_NS + MS)
    assert members(dict(desk.enrol("e~1"))["e~1"]).names[4] == "e~1", "or who had the time to ask"


def test_who_leaves_or_is_silent_for_long_is_gone_and_never_comes_back_under_its_name() -> None:
    desk = Desk()
    for name in ("a~1", "b~1", "c~1"):
        desk.enrol(name)
    epoch = desk.registry.epoch
    told = dict(desk.hear("a~1", Resign(epoch=epoch)))
    assert set(told) == {"a~1", "b~1", "c~1"}
    assert members(told["b~1"]).gone == (0,)
    # It says so until it is told that this is known, and that answer may be lost.
    ((peer, again),) = desk.hear("a~1", Resign(epoch=epoch))
    assert (peer, again) == ("a~1", told["a~1"])
    assert isinstance(again, Expelled)
    assert desk.hear("b~1", Resign(epoch=epoch + 1)) == [], "of another cube"
    assert desk.registry.present == ("b~1", "c~1")
    desk.wait(EXPIRE_NS - SECOND)
    desk.ask("b~1")
    told = dict(desk.wait(EXPIRE_NS // SWEEPS))
    assert set(told) == {"b~1"}
    assert members(told["b~1"]).gone == (2,)
    for name in ("a~1", "c~1"):
        for question in (Enrol(epoch=0, known=0, gone=0), Enrol(epoch=epoch, known=3, gone=0)):
            ((_, answer),) = desk.hear(name, question)
            assert isinstance(answer, Expelled)


def test_a_number_is_given_again_only_when_nobody_is_left_who_knows_it() -> None:
    desk = Desk()
    desk.enrol("a~1")
    desk.enrol("b~1")
    epoch = desk.registry.epoch
    desk.hear("a~1", Resign(epoch=epoch))
    assert members(dict(desk.enrol("c~1"))["c~1"]).total == 3
    for name in ("b~1", "c~1"):
        desk.hear(name, Resign(epoch=epoch))
    ((_, answer),) = desk.enrol("d~1")
    assert (members(answer).names, members(answer).epoch) == (("d~1",), epoch + 1)
    # Somebody of the old cube who comes back means nothing here, whatever the number.
    ((_, told),) = desk.hear("b~1", Enrol(epoch=epoch, known=3, gone=0))
    assert isinstance(told, Expelled)
    desk.start()
    assert (desk.registry.epoch, desk.registry.names) == (epoch + 1, ["d~1"])


def test_a_cube_with_no_numbers_left_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "NODES_MAX", 2)
    desk = Desk()
    desk.enrol("a~1")
    desk.enrol("b~1")
    ((_, answer),) = desk.enrol("c~1")
    assert isinstance(answer, Expelled)
    assert "all its 2 numbers" in answer.reason


def test_a_registry_that_knows_less_than_a_node_does_not_pretend() -> None:
    desk = Desk()
    desk.enrol("a~1")
    epoch = desk.registry.epoch
    for question in (
        Enrol(epoch=epoch, known=2, gone=0),
        Enrol(epoch=epoch, known=1, gone=1),
        Enrol(epoch=epoch + 1, known=1, gone=0),
        Enrol(epoch=COUNT_MAX, known=COUNT_MAX, gone=COUNT_MAX),
    ):
        ((_, answer),) = desk.hear("a~1", question)
        assert isinstance(answer, Expelled)
    ((_, answer),) = desk.hear("b~1", Enrol(epoch=epoch, known=1, gone=0))
    assert isinstance(answer, Expelled)


def test_a_registry_that_stood_still_takes_nobody_for_gone() -> None:
    desk = Desk()
    for name in ("a~1", "b~1"):
        desk.enrol(name)
    for _ in range(3):
        desk.wait(EXPIRE_NS // 8)
        desk.stall(3 * EXPIRE_NS)
        assert desk.registry.present == ("a~1", "b~1")
        desk.ask("a~1")
    desk.wait(EXPIRE_NS)
    assert desk.registry.present == (), "but who is silent while it looks is gone"


def lost_name() -> tuple[Desk, dict[str, Lists]]:
    """Return a registry that lost whom it enrolled last, and what the others know."""
    desk = Desk()
    known: dict[str, Lists] = {name: Lists() for name in ("a~1", "b~1", "c~1")}
    for _ in range(2):
        for name, lists in known.items():
            for peer, frame in desk.hear(name, lists.question()):
                assert known[peer].take(members(frame))
    desk.disk.pop("cube/causal/name/2")
    desk.start()
    return desk, known


def test_a_registry_that_lost_a_name_gives_its_number_to_nobody_while_somebody_knows_it() -> None:
    desk, known = lost_name()
    assert desk.enrol("d~1") == [], "before those who were there have asked"
    for name, lists in known.items():
        answer = dict(desk.hear(name, lists.question()))[name]
        assert isinstance(answer, Expelled)
        assert AGAIN in answer.reason
    assert desk.registry.present == ()
    ((_, answer),) = desk.enrol("d~1")
    assert members(answer).names == ("d~1",)
    assert members(answer).epoch != known["a~1"].epoch, "where numbers begin anew"


@pytest.mark.parametrize("told_first", [False, True])
def test_who_comes_late_after_a_loss_does_not_take_one_for_the_other(*, told_first: bool) -> None:
    """Who knew the lost name was silent until its number was given again; it knows as many names as the registry."""
    desk, known = lost_name()
    node = EnrolledNode(
        name="a~1", registry=REGISTRY, lists=known["a~1"], config=CONFIG, now_ns=desk.now_ns
    )
    node.take_effects()
    desk.wait(RETURN_NS + MS)
    told = desk.enrol("d~1")
    assert [peer for peer, _ in told] == ["a~1", "b~1", "d~1"]
    assert len(desk.registry.names) == 3
    if told_first:
        # Of whoever comes next: it would get the number after that of the lost one.
        told = [one for one in desk.enrol("e~1") if one[0] == "a~1"]
    else:
        told = desk.hear("a~1", known["a~1"].question())
        assert isinstance(told[0][1], Expelled)
    node.receive(told[0][1], source=REGISTRY, now_ns=desk.now_ns)
    effects = node.take_effects()
    (refused,) = [each for each in effects if isinstance(each, Refuse)]
    assert AGAIN in refused.reason
    for each in effects:
        if isinstance(each, Send):
            assert each.peer == REGISTRY
            desk.hear("a~1", each.frame)
    assert "a~1" not in desk.registry.present, "nobody waits for it"
    assert "d~1" not in known["a~1"].names
    assert "e~1" not in known["a~1"].names


def test_who_was_gone_before_its_name_was_told_is_dismissed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names come in pieces, and more of them than of those who are gone."""
    desk = Desk()
    ((_, told),) = desk.enrol("a~1")
    lists = Lists()
    assert lists.take(members(told))
    node = EnrolledNode(
        name="a~1", registry=REGISTRY, lists=lists, config=CONFIG, now_ns=desk.now_ns
    )
    monkeypatch.setattr(enrolment, "NAMES_MAX", 2)
    for number in range(4):
        desk.enrol(f"b~{number}")
        desk.hear(f"b~{number}", Resign(epoch=desk.registry.epoch))
    for _ in range(2):
        ((_, told),) = desk.hear("a~1", lists.question())
        node.receive(told, source=REGISTRY, now_ns=desk.now_ns)
    assert node._cube.names == ["a~1", "b~0", "b~1", "b~2", "b~3"]
    assert node._cube.everyone == 1, "nobody else is there"


def test_strangers_who_are_never_told_of_make_room_for_others() -> None:
    lists = Lists()
    names = ("a~1",)
    lists.take(Members(epoch=9, first=0, names=names, total=1, gone_first=0, gone=(), gone_total=0))
    enlistment = Enlistment(REGISTRY, lists, now_ns=0)
    for number in range(2 * STRANGERS_MAX):
        enlistment.stranger(f"liar~{number}", Here(), 0)
    enlistment.stranger("late~1", Here(), 0)
    assert enlistment.introduce("late~1") == Here()
    assert enlistment.introduce("liar~0") is None
    assert len(enlistment._strangers) < STRANGERS_MAX


def test_long_lists_are_told_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "NAMES_MAX", 3)
    monkeypatch.setattr(enrolment, "GONE_MAX", 2)
    desk = Desk()
    for number in range(8):
        desk.enrol(f"a~{number}")
    for number in range(5):
        desk.hear(f"a~{number}", Resign(epoch=desk.registry.epoch))
    lists = Lists()
    for _ in range(3):
        assert not lists.whole
        (*_, (_, answer)) = desk.hear("new~1", lists.question())
        lists.take(members(answer))
    assert lists.whole
    assert lists.names == desk.registry.names
    assert lists.gone == desk.registry.gone


def test_the_first_to_come_decides_what_all_have_to_agree_on() -> None:
    def come(name: str, terms: str) -> Frame:
        (*_, (peer, answer)) = desk.hear(name, Lists(terms).question())
        assert peer == name
        return answer

    desk = Desk()
    assert isinstance(come("a~1", "deadlines of 200 ms"), Members)
    told = "all who are there have deadlines of 200 ms, and it has deadlines of 1 ms"
    assert come("b~1", "deadlines of 1 ms") == Expelled(reason=told)
    desk.start()
    desk.wait(RETURN_NS + MS)
    assert come("b~1", "deadlines of 1 ms") == Expelled(reason=told)
    assert isinstance(come("b~1", "deadlines of 200 ms"), Members)
    epoch = desk.registry.epoch
    for name in ("a~1", "b~1"):
        desk.hear(name, Resign(epoch=epoch))
    assert isinstance(come("c~1", "deadlines of 1 ms"), Members)
    assert desk.registry.epoch > epoch


# -- Nodes --------------------------------------------------------------------------------------


class Room:
    """A registry and nodes, with frames that take a while or are lost as a test wants."""

    def __init__(
        self,
        *,
        seed: int = 0,
        loss: float = 0.0,
        denied: Iterable[str] = (),
        expire_ns: int = EXPIRE_NS,
    ) -> None:
        self.desk = Desk(expire_ns)
        self.random = Random(seed)
        self.loss = loss
        self.denied = frozenset(denied)
        self.lists: dict[str, Lists] = {}
        self.nodes: dict[str, EnrolledNode] = {}
        self.outcomes: dict[str, list[Outcome]] = {}
        self.way: list[tuple[int, int, str, str, Frame]] = []
        self.deaf: set[str] = set()
        self.lost: Callable[[Frame], bool] = lambda _frame: False
        """Which frames are lost for sure."""
        self._sent = 0

    @property
    def now_ns(self) -> int:
        return self.desk.now_ns

    def delivered(self, name: str) -> list[str]:
        return [
            each.event.payload.decode() for each in self.outcomes[name] if isinstance(each, Deliver)
        ]

    def come(self, name: str) -> None:
        self.lists[name] = Lists()
        self.outcomes[name] = []
        self.send(name, REGISTRY, self.lists[name].question())

    def act(self, name: str, what: str, *given: object, **named: object) -> None:
        getattr(self.nodes[name], what)(*given, now_ns=self.now_ns, **named)
        self.drain(name)

    def kill(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.lists.pop(name, None)

    def send(self, source: str, target: str, frame: Frame) -> None:
        if self.random.random() < self.loss or {source, target} & self.deaf or self.lost(frame):
            return
        self._sent += 1
        due_ns = self.now_ns + self.random.randrange(1, 20) * MS
        frame = CODEC.decode(CODEC.encode(frame))
        self.way.append((due_ns, self._sent, source, target, frame))

    def drain(self, name: str) -> None:
        for effect in self.nodes[name].take_effects():
            if isinstance(effect, Send):
                self.send(name, effect.peer, effect.frame)
            else:
                assert not isinstance(effect, Persist)
                self.outcomes[name].append(effect)  # type: ignore[arg-type]

    def hand(self, source: str, target: str, frame: Frame) -> None:
        if target == REGISTRY:
            if isinstance(frame, Ask) and frame.topic in self.denied:
                denied = Denied(topic=frame.topic, action=frame.action, reason="it is secret")
                self.send(REGISTRY, source, denied)
                return
            for peer, answer in self.desk.hear(source, frame):
                self.send(REGISTRY, peer, answer)
        elif target in self.nodes:
            self.nodes[target].receive(frame, source=source, now_ns=self.now_ns)
            self.drain(target)
        elif target in self.lists and isinstance(frame, Members) and self.lists[target].take(frame):
            self.nodes[target] = EnrolledNode(
                name=target,
                registry=REGISTRY,
                lists=self.lists[target],
                config=CONFIG,
                now_ns=self.now_ns,
            )
            self.drain(target)

    def run(self, period_ns: int) -> None:
        end_ns = self.now_ns + period_ns
        while self.now_ns < end_ns:
            self.desk.now_ns += 5 * MS
            due = sorted(each for each in self.way if each[0] <= self.now_ns)
            self.way = [each for each in self.way if each[0] > self.now_ns]
            for _, _, source, target, frame in due:
                self.hand(source, target, frame)
            for name in list(self.nodes):
                due_ns = self.nodes[name].next_timer_ns()
                if due_ns is not None and due_ns <= self.now_ns:
                    self.nodes[name].handle_timer(now_ns=self.now_ns)
                    self.drain(name)
            for peer, answer in self.desk.wait(0):
                self.send(REGISTRY, peer, answer)
            for name, lists in self.lists.items():
                if name not in self.nodes and self.now_ns % (500 * MS) == 0:
                    self.send(name, REGISTRY, lists.question())


def settled_in(room: Room, *names: str) -> bool:
    return all(any(isinstance(each, Resumed) for each in room.outcomes[name]) for name in names)


@pytest.mark.parametrize("seed", range(5))
def test_who_publishes_and_goes_at_once_reaches_those_who_subscribed_before(seed: int) -> None:
    """Also if it comes while others do, with a fifth of all messages lost."""
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


def test_a_newcomer_waits_for_what_others_know_and_not_for_the_silent() -> None:
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
    assert not settled_in(room, "new~1"), "nobody has suspected the silent one yet"
    room.run(SECOND)
    assert settled_in(room, "new~1")
    rows = {row.node: row.topics for row in room.nodes["new~1"].rows}
    assert rows[0] == ("t",)


def test_the_vanished_is_taken_for_gone_and_who_was_cut_off_for_long_is_told() -> None:
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
    assert Join("t") in room.outcomes["a~1"], "nobody waits for those who are gone"


@pytest.mark.parametrize("expire_s", [10, 300], ids=["gone", "suspected"])
def test_nobody_waits_for_ever_for_what_a_killed_process_alone_had(expire_s: int) -> None:
    """Its event on one topic came, and names one on another topic that nobody got from it."""
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


def test_what_is_denied_is_settled_and_what_comes_after_goes_out() -> None:
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


def test_a_new_connection_has_it_say_again_what_may_be_lost() -> None:
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
    assert any(isinstance(frame, Ask) for frame in sent)
    assert any(isinstance(frame, Enrol) for frame in sent)
    room.run(2 * SECOND)
    assert Join("t") in room.outcomes["a~1"]


def test_a_pause_holds_what_comes_and_gives_it_in_order_afterwards() -> None:
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


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.one_of(
                [st.builds(kind, **FIELDS[kind]) for kind in (*CUBE_FRAMES, *enrolment.FRAMES)]
            ),
            st.sampled_from((REGISTRY, "b~1", "c~1", "stranger~1")),
        ),
        max_size=12,
    )
)
def test_no_frame_whatever_makes_a_node_raise(sent: list[tuple[Frame, str]]) -> None:
    lists = Lists()
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
    node = EnrolledNode(name="a~1", registry=REGISTRY, lists=lists, config=CONFIG, now_ns=0)
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
        desk.hear(source, frame)
        desk.wait(EXPIRE_NS // 3)
    desk.start()
