"""Moves of topics on a chain of three stations: who decides, and which placement is the newest."""

from collections.abc import Mapping

import pytest

from ensue.core.event import Event
from ensue.protocols.interface import Frame, Persist, Send
from ensue.protocols.topic_log.frames import AttachRequest
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import (
    ChangeRequest,
    Expired,
    KnownMoves,
    Move,
    Moved,
    MoveDecision,
    MoveReply,
    MoveRequest,
    MoveStep,
    OrderRequest,
    Out,
    Stamped,
)
from ensue.protocols.total.placement import Parts, Placement
from ensue.protocols.total.station import EPHEMERAL, Station, StationConfig
from ensue.protocols.total.topic_moves import ABORT, FREEZE, SWITCH, MoveConfig

MS = 1_000_000
NODES = ("a", "b", "c")
MOVED = (("b", 1), ("c", 0))


def event(topic: str, number: int, publisher: str = "p") -> Event:
    return Event(topic=topic, payload=b"x", publisher=publisher, publisher_seq=number)


class Chain:
    """Stations whose frames arrive at once, unless one of the two is away."""

    def __init__(self) -> None:
        self.records: dict[str, dict[str, bytes]] = {name: {} for name in NODES}
        self.stations: dict[str, Station] = {}
        self.away: set[str] = set()
        self.sent: list[tuple[str, Frame]] = []
        """What clients got."""
        self.dropped: type[Frame] | None = None
        """Frames that are lost."""
        self.lost: list[tuple[str, str, Frame]] = []
        """Source, target and frame: what stations away did not get."""
        self.now_ns = 0
        for name in NODES:
            self.start(name)

    def start(
        self,
        name: str,
        *,
        records: Mapping[str, bytes] | None = None,
        compares: bool = False,
        moves: MoveConfig | None = None,
        expire_ns: int | None = None,
    ) -> Station:
        """Start a station, or start it again, with records of its own or with others."""
        if records is not None:
            self.records[name] = dict(records)
        placement = Placement(NODES, topics={"a": ("t",), "b": ("u",), "c": ("v",)})
        self.stations[name] = Station(
            name=name,
            placement=placement,
            config=SequencerConfig(carries=True),
            station_config=StationConfig(
                compares=compares, moves=moves or MoveConfig(), expire_ns=expire_ns
            ),
            records=self.records[name],
            now_ns=self.now_ns,
        )
        return self.stations[name]

    def send(self, frame: Frame, to: str, source: str = "p") -> None:
        """Deliver a frame and all that follows from it."""
        queue = [(source, to, frame)]
        while queue:
            sender, target, each = queue.pop(0)
            if target not in self.stations:
                self.sent.append((target, each))
            elif self.away & {sender, target} or type(each) is self.dropped:
                self.lost.append((sender, target, each))
            else:
                self.stations[target].receive(each, source=sender, now_ns=self.now_ns)
                queue += self.drained(target)

    def drained(self, name: str) -> list[tuple[str, str, Frame]]:
        frames = []
        for effect in self.stations[name].take_effects():
            if isinstance(effect, Persist):
                if effect.value is None:
                    self.records[name].pop(effect.key, None)
                else:
                    self.records[name][effect.key] = effect.value
            elif isinstance(effect, Send):
                frames.append((name, effect.peer, effect.frame))
        return frames

    def wait(self, milliseconds: int) -> None:
        """Let time pass in steps, so that what is due happens."""
        for _ in range(0, milliseconds, 10):
            self.now_ns += 10 * MS
            for name in sorted(self.stations.keys() - self.away):
                self.stations[name].handle_timer(now_ns=self.now_ns)
                for source, to, frame in self.drained(name):
                    self.send(frame, to, source)

    def replies(self) -> list[MoveReply]:
        return [frame for _, frame in self.sent if isinstance(frame, MoveReply)]

    def nodes_of(self, topic: str) -> list[str]:
        return [self.stations[name].placement.node(topic) for name in NODES]

    def publish(self, topic: str, number: int, to: str, *, publisher: str = "p") -> list[Frame]:
        """Publish an event at a station; return what the publisher gets."""
        before = len(self.sent)
        published = event(topic, number, publisher)
        request = OrderRequest(number=number, events=(published,), settled=number)
        self.send(request, to, publisher)
        return [frame for client, frame in self.sent[before:] if client == publisher]


def leave_at_the_decision(chain: Chain, name: str) -> None:
    """Have a station crash when it gets the next decision."""

    def leave(move: Move) -> bool:
        chain.away.add(name)
        return move.number > 0

    chain.stations[name].node.moves.decide = leave  # type: ignore[method-assign]


def moved_chain() -> Chain:
    """Return a chain that has moved `u` from `b` to `c`, after one event."""
    chain = Chain()
    chain.publish("u", 1, "b")
    chain.send(MoveRequest(number=1, topic="u", to="c"), "a", "operator")
    assert chain.nodes_of("u") == ["c", "c", "c"]
    return chain


# -- One decision ----------------------------------------------------------------------------------


def test_move_is_refused_while_a_server_is_away_and_nothing_stops() -> None:
    chain = Chain()
    chain.away = {"b"}
    chain.send(MoveRequest(number=1, topic="t", to="c"), "a", "operator")
    assert isinstance(chain.publish("t", 1, "a")[0], Out)
    chain.wait(1_100)
    chain.send(MoveRequest(number=1, topic="t", to="c"), "a", "operator")
    assert chain.replies()[-1].refusal == "b did not answer within 1000 ms: try again"
    assert chain.replies()[-1].again


def test_freeze_that_is_not_answered_is_given_up_and_late_copies_of_it_are_ignored() -> None:
    chain = Chain()
    moves = chain.stations["c"].node.moves
    take = moves.on_move

    def leave_at_the_freeze(frame: Move, source: str, now_ns: int) -> None:
        if frame.phase == FREEZE:
            chain.away.add("c")
        else:
            take(frame, source, now_ns)

    moves.on_move = leave_at_the_freeze  # type: ignore[method-assign]
    chain.send(MoveRequest(number=1, topic="t", to="b"), "a", "operator")
    assert [chain.stations[name].placement.moving for name in NODES] == ["t", "t", ""]
    assert chain.publish("t", 1, "a") == []
    chain.wait(600)
    assert [frame for _, frame in chain.sent if isinstance(frame, Out)]  # What was held.
    assert [chain.stations[name].placement.moving for name in NODES] == ["", "", ""]
    chain.send(MoveRequest(number=1, topic="t", to="b"), "a", "operator")
    assert chain.replies()[-1].refusal == "c did not answer within 500 ms: try again"
    assert chain.replies()[-1].again
    # The server returns: it learns the decision first, and gets the freeze afterwards.
    chain.start("c")
    chain.away = set()
    chain.wait(3_000)
    assert chain.stations["a"].node.coordinator.active is None
    late = Move(topic="t", to="b", phase=FREEZE, number=1, parts=(("a", 0),))
    chain.send(late, "c", "b")
    assert chain.stations["c"].placement.moving == ""


def test_server_that_is_away_from_the_switch_on_holds_up_no_other() -> None:
    chain = Chain()
    leave_at_the_decision(chain, "b")
    chain.send(MoveRequest(number=1, topic="t", to="c"), "a", "operator")
    assert chain.stations["c"].placement.moving == "t"
    chain.wait(200)
    assert chain.nodes_of("t") == ["c", "a", "c"]
    assert isinstance(chain.publish("t", 1, "c")[0], Out)
    under_way = chain.stations["a"].node.coordinator.under_way()
    assert under_way is not None
    assert (under_way.step, under_way.waits_for) == ("switch", ("b",))
    # The first server returns from a crash, too, and repeats the decision until `b` has it.
    chain.start("a")
    chain.start("b")
    chain.away = set()
    chain.wait(3_000)
    assert chain.nodes_of("t") == ["c", "c", "c"]
    assert chain.stations["a"].node.coordinator.active is None
    assert not any(key.startswith(("moving/", "decided/")) for key in chain.records["a"])


@pytest.mark.parametrize("phase", [FREEZE, SWITCH], ids=["freeze", "switch"])
def test_chain_whose_first_server_is_down_while_frozen_waits_for_it(phase: int) -> None:
    """No other server can know whether it has switched."""
    chain = Chain()
    first, last = chain.stations["a"].node, chain.stations["c"].node.moves
    freeze, decide = last.freeze, first.moves.decide

    def leave_frozen(frame: Move, now_ns: int) -> Move:
        chain.away.add("a")
        return freeze(frame, now_ns)

    def leave_switched(move: Move) -> bool:
        chain.away.add("a")
        return decide(move)

    if phase == FREEZE:
        last.freeze = leave_frozen  # type: ignore[method-assign]
    else:
        first.moves.decide = leave_switched  # type: ignore[method-assign]
    chain.send(MoveRequest(number=1, topic="t", to="b"), "a", "operator")
    for source, to, frame in chain.drained("a"):
        chain.send(frame, to, source)
    # A topic that has nothing to do with the move.
    assert chain.publish("v", 1, "c") == []
    chain.wait(60_000)
    assert [chain.stations[name].placement.moving for name in ("b", "c")] == ["t", "t"]
    assert not any(isinstance(frame, Out) for _, frame in chain.sent)
    chain.start("a")
    chain.away = set()
    chain.wait(3_000)
    assert [chain.stations[name].placement.moving for name in NODES] == ["", "", ""]
    assert chain.nodes_of("t") == ["a" if phase == FREEZE else "b"] * 3
    assert ("p", Out(origin="c", slots=((1, 1),))) in chain.sent


def test_frozen_server_learns_of_the_switch_by_its_decision_alone() -> None:
    """What others know of the move has neither counts nor subscribers."""
    chain = Chain()
    freeze = Move(topic="u", to="c", phase=FREEZE, number=1, parts=(("b", 0),))
    chain.away = {"a", "b"}
    chain.send(freeze, "c", "b")
    chain.away = {"a", "b"}
    station = chain.stations["c"]
    station.receive(freeze, source="b", now_ns=0)
    station.receive(KnownMoves(parts={"u": MOVED}, seen=1), source="a", now_ns=0)
    assert (station.placement.moving, station.placement.node("u")) == ("u", "b")
    decision = Move(topic="u", to="c", phase=SWITCH, number=1, parts=(("b", 0),), count=1)
    station.receive(MoveDecision(move=decision), source="a", now_ns=0)
    assert (station.placement.moving, station.placement.parts) == ("", {"u": MOVED})


def test_frozen_server_that_compares_waits_for_the_decision() -> None:
    """What others know of the move has neither counts nor subscribers."""
    chain = Chain()
    chain.send(ChangeRequest(number=1, old=(), new=("u",)), "b", "subscriber")
    leave_at_the_decision(chain, "c")
    chain.send(MoveRequest(number=1, topic="u", to="c"), "a", "operator")
    assert chain.nodes_of("u") == ["c", "c", "b"]
    for name in NODES:
        chain.start(name, compares=True)
    chain.away = set()
    chain.stations["b"].regain("c")  # It sees that the server has connected.
    for source, to, frame in chain.drained("b"):
        chain.send(frame, to, source)
    assert chain.stations["c"].placement.moving == "u"
    chain.wait(3_000)
    assert chain.nodes_of("u") == ["c", "c", "c"]
    assert chain.stations["c"].node.subscribers() == {"subscriber": (1, ("u",))}
    assert not any(station.placement.unsure for station in chain.stations.values())


def test_frozen_server_goes_on_once_the_first_one_has_no_decision() -> None:
    chain = Chain()
    chain.send(MoveRequest(number=1, topic="u", to="c"), "a", "operator")
    assert chain.nodes_of("u") == ["c", "c", "c"]
    freeze = Move(topic="u", to="c", phase=FREEZE, number=1, parts=(("b", 0),))
    chain.start("a")  # All had taken the step: it needs the decision no longer.
    chain.start("b")
    chain.away = {"a", "b"}
    chain.start("c", records={}).receive(freeze, source="b", now_ns=0)
    chain.drained("c")
    chain.start("c", compares=True)
    assert chain.stations["c"].placement.moving == "u"
    chain.away = {"b"}
    chain.wait(3_000)
    assert (chain.stations["c"].placement.moving, chain.nodes_of("u")[2]) == ("", "c")


def test_first_server_that_lost_the_record_of_a_move_gives_it_up() -> None:
    chain = Chain()
    freeze = Move(topic="u", to="c", phase=FREEZE, number=7, parts=(("b", 0),))
    chain.away = {"a"}
    chain.send(freeze, "c", "b")
    assert chain.stations["c"].placement.moving == "u"
    chain.away = set()
    chain.wait(1_000)
    assert [chain.stations[name].placement.moving for name in NODES] == ["", "", ""]
    assert {station.node.moves.seen for station in chain.stations.values()} == {7}
    chain.send(MoveRequest(number=1, topic="u", to="c"), "a", "operator")
    assert chain.nodes_of("u") == ["c", "c", "c"]


def test_topic_whose_subscriptions_grow_meanwhile_is_not_moved() -> None:
    chain = Chain()
    for number in range(20):
        change = ChangeRequest(number=1, old=(), new=("u",))
        chain.send(change, "b", f"subscriber-{number}")
    chain.start("b", moves=MoveConfig(bytes_max=100))
    chain.send(MoveRequest(number=1, topic="u", to="c"), "a", "operator")
    chain.send(MoveRequest(number=1, topic="u", to="c"), "a", "operator")
    assert "bytes, above the limit of 100: move it when" in chain.replies()[-1].refusal
    assert not chain.replies()[-1].again
    moves = chain.stations["b"].node.moves
    moves.ask = lambda frame: frame  # type: ignore[method-assign] # They were few when asked.
    chain.send(MoveRequest(number=2, topic="u", to="c"), "a", "operator")
    chain.send(MoveRequest(number=2, topic="u", to="c"), "a", "operator")
    assert chain.replies()[-1].refusal == "its subscriptions became too many on b: try again later"
    assert chain.replies()[-1].again
    assert chain.nodes_of("u") == ["b", "b", "b"]
    assert moves.seen == 2


# -- The newest placement --------------------------------------------------------------------------


@pytest.mark.parametrize("stale", NODES)
def test_server_that_is_behind_adopts_what_another_knows(stale: str) -> None:
    chain = moved_chain()
    station = chain.start(stale, records={})
    station.receive(AttachRequest(topic="u", from_slot=1), source="s", now_ns=0)
    assert station.placement.node("u") == "b"
    other = next(name for name in NODES if name != stale)
    chain.stations[other].regain(stale)  # It sees that the server has connected.
    for source, to, frame in chain.drained(other):
        chain.send(frame, to, source)
    assert chain.nodes_of("u") == ["c", "c", "c"]
    assert station.node.moves.take_corrected() == {"u": MOVED}
    if stale == "b":
        assert ("s", Moved(topic="u", parts=MOVED)) in chain.sent
        # Its part of the log is lost: readers go on behind it.
        assert station.log.bounds_of("u") == (2, 2)
    if stale == "c":
        assert station.log.bounds_of("u") == (2, 2)
        assert isinstance(chain.publish("u", 2, "c")[0], Out)
        assert station.log.bounds_of("u") == (2, 3)


def test_older_placement_changes_nothing() -> None:
    chain = moved_chain()
    older: tuple[Parts, ...] = ((("b", 0),), (("b", 5), ("a", 0)), (*MOVED, ("x", 0)))
    for parts in older:
        chain.send(KnownMoves(parts={"u": parts}, seen=0), "a", "b")
        chain.send(KnownMoves(parts={"u": (*MOVED, ("a", 0))}, seen=9), "a", "stranger")
    assert chain.nodes_of("u") == ["c", "c", "c"]


def test_first_server_that_is_behind_is_corrected_when_it_asks() -> None:
    chain = moved_chain()
    chain.start("a", records={})
    chain.send(MoveRequest(number=2, topic="u", to="a"), "a", "operator")
    chain.send(MoveRequest(number=2, topic="u", to="a"), "a", "operator")
    assert chain.replies()[-1].refusal == "b knows a later move of it: try again"
    assert chain.replies()[-1].again
    assert chain.nodes_of("u") == ["c", "c", "c"]
    chain.send(MoveRequest(number=2, topic="u", to="a"), "a", "operator")
    assert chain.nodes_of("u") == ["a", "a", "a"]


def test_server_that_compares_takes_nothing_before_all_have_compared() -> None:
    chain = moved_chain()
    chain.away = {"a", "c"}
    chain.start("b", records={}, compares=True)
    assert chain.publish("u", 1, "b") == []
    chain.send(MoveRequest(number=2, topic="t", to="b"), "b", "operator")
    chain.away = {"a"}
    chain.wait(1_000)
    assert chain.nodes_of("u") == ["c", "c", "c"]
    assert chain.stations["b"].node.moves.unsure_of == ["a"]
    assert chain.publish("u", 1, "b") == []
    # The first server compares, too: until it has heard from all, none is sure.
    chain.start("a", compares=True)
    chain.away = set()
    chain.send(KnownMoves(parts={}, seen=0, complete=False), "b", "a")
    assert chain.stations["b"].node.moves.unsure_of == ["a"]
    chain.wait(3_000)
    assert not any(station.placement.unsure for station in chain.stations.values())
    (stamped,) = chain.publish("u", 1, "b")
    assert isinstance(stamped, Stamped)
    assert stamped.grants[0].stamp.entries == {"u": 2}


def test_server_that_compares_takes_nothing_while_a_later_one_is_frozen() -> None:
    """The later one would handle its requests as of the placement before the switch."""
    chain = Chain()
    other = next(topic for topic in map("w{}".format, range(99)) if chain.nodes_of(topic)[0] == "c")
    chain.send(ChangeRequest(number=1, old=(), new=("v", other)), "c", "s")
    older = dict(chain.records["b"])
    chain.publish("v", 1, "c")
    leave_at_the_decision(chain, "c")
    chain.send(MoveRequest(number=1, topic="v", to="b"), "a", "operator")
    assert chain.nodes_of("v") == ["b", "b", "c"]
    # All start again, the new server from before the freeze. Decisions are lost at first.
    for name in NODES:
        chain.start(name, records=older if name == "b" else None, compares=True)
    chain.away = set()
    chain.dropped = MoveDecision
    chain.wait(1_000)
    assert (chain.nodes_of("v"), chain.stations["c"].placement.moving) == (["b", "b", "c"], "v")
    assert chain.publish("v", 1, "b", publisher="q") == []
    chain.dropped = None
    chain.wait(3_000)
    assert not any(station.placement.unsure for station in chain.stations.values())
    (out,) = chain.publish("v", 1, "b", publisher="q")
    assert out == Out(origin="b", slots=((1, 2),))


@pytest.mark.parametrize("switched", [False, True])
def test_servers_that_compare_go_on_if_none_remembers_the_decision(switched: bool) -> None:
    """The first one, which is to say so, waits itself for those that are frozen."""
    chain = Chain()
    older = {name: dict(chain.records[name]) for name in NODES}
    leave_at_the_decision(chain, "c")
    if not switched:
        leave_at_the_decision(chain, "b")
    chain.send(MoveRequest(number=1, topic="u", to="c"), "a", "operator")
    assert chain.nodes_of("u") == ["c", "c" if switched else "b", "b"]
    chain.start("a", records=older["a"], compares=True)
    chain.start("b", compares=True)
    chain.start("c", compares=True)
    chain.away = set()
    chain.wait(5_000)
    assert [chain.stations[name].placement.moving for name in NODES] == ["", "", ""]
    assert not any(station.placement.unsure for station in chain.stations.values())
    assert chain.nodes_of("u") == ["c" if switched else "b"] * 3
    (answer,) = chain.publish("u", 1, "c" if switched else "b")
    assert isinstance(answer, Out)
    chain.send(MoveRequest(number=2, topic="u", to="a"), "a", "operator")
    assert chain.nodes_of("u") == ["a", "a", "a"]


def test_first_server_from_before_its_decision_repeats_it_once_it_has_it() -> None:
    chain = Chain()
    chain.send(ChangeRequest(number=1, old=(), new=("u",)), "b", "subscriber")
    leave_at_the_decision(chain, "c")
    coordinator = chain.stations["a"].node.coordinator
    decide, older = coordinator._decide, dict[str, bytes]()

    def copy(move: Move, phase: int, now_ns: int) -> None:
        older.update(chain.records["a"])
        decide(move, phase, now_ns)

    coordinator._decide = copy  # type: ignore[method-assign]
    chain.send(MoveRequest(number=1, topic="u", to="c"), "a", "operator")
    assert chain.nodes_of("u") == ["c", "c", "b"]
    chain.start("a", records=older)
    chain.wait(2_000)
    assert chain.nodes_of("u") == ["c", "c", "b"]
    chain.start("a")
    chain.start("b")
    chain.start("c")
    chain.away = set()
    chain.wait(3_000)
    assert chain.nodes_of("u") == ["c", "c", "c"]
    assert chain.stations["c"].node.subscribers() == {"subscriber": (1, ("u",))}
    assert chain.stations["a"].node.coordinator.active is None
    assert not any(key.startswith(("moving/", "decided/")) for key in chain.records["a"])


@pytest.mark.parametrize("compares", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_first_server_from_before_its_decision_adopts_it(later: bool, compares: bool) -> None:
    chain = Chain()
    older: dict[str, bytes] = {}
    coordinator = chain.stations["a"].node.coordinator
    decide = coordinator._decide

    def copy(move: Move, phase: int, now_ns: int) -> None:
        older.update(chain.records["a"])
        decide(move, phase, now_ns)

    coordinator._decide = copy  # type: ignore[method-assign]
    chain.send(MoveRequest(number=1, topic="u", to="c"), "a", "operator")
    assert chain.nodes_of("u") == ["c", "c", "c"]
    assert {"moving/", "frozen/u"} <= older.keys()
    if later:
        coordinator._decide = decide  # type: ignore[method-assign]
        chain.send(MoveRequest(number=2, topic="v", to="b"), "a", "operator")
    first = chain.start("a", records=older, compares=compares)
    assert first.placement.moving == "u"
    for name in ("b", "c"):
        chain.stations[name].regain("a")  # They see that the server has connected.
        for source, to, frame in chain.drained(name):
            chain.send(frame, to, source)
    chain.wait(5_000)
    assert (first.placement.moving, first.node.coordinator.active) == ("", None)
    for _ in range(3):
        chain.send(MoveRequest(number=3, topic="t", to="c"), "a", "operator")
    assert chain.nodes_of("t") == ["c", "c", "c"]
    assert chain.nodes_of("u") == ["c", "c", "c"]


def test_no_subscriber_expires_while_a_server_compares_and_ignores_it() -> None:
    chain = Chain()
    name, expire_ns = f"app{EPHEMERAL}1", 1_000 * MS
    chain.send(AttachRequest(topic="u", from_slot=1), "b", name)
    chain.send(ChangeRequest(number=1, old=(), new=("u",)), "b", name)
    station = chain.start("b", compares=True, expire_ns=expire_ns)
    chain.away = {"c"}

    def poll() -> None:
        chain.wait(400)
        chain.send(AttachRequest(topic="u", from_slot=1), "b", name)

    for _ in range(10):
        poll()
    assert station.placement.unsure
    chain.wait(600)  # The next sign of life is late, too.
    chain.away = set()
    while station.placement.unsure:
        chain.wait(10)
    for _ in range(3):
        poll()
    assert not any(isinstance(frame, Expired) for _, frame in chain.sent)
    assert station.node.subscribers() == {name: (1, ("u",))}
    chain.wait(2_000)
    assert station.node.subscribers().get(name, (0, ()))[1] == ()  # Gone for good.


def test_frozen_server_whose_move_is_long_decided_is_behind() -> None:
    chain = Chain()
    freeze = Move(topic="t", to="b", phase=FREEZE, number=1, parts=(("a", 0),))
    chain.away = {"a"}
    chain.send(freeze, "c", "b")
    older = dict(chain.records["c"])
    chain.away = set()
    decided = Move(topic="t", to="b", phase=ABORT, number=1, parts=(("a", 0),))
    chain.send(MoveDecision(move=decided), "c", "a")
    for _ in range(3):  # The first server had another number in mind.
        chain.send(MoveRequest(number=1, topic="u", to="c"), "a", "operator")
    assert chain.nodes_of("u") == ["c", "c", "c"]
    assert chain.start("c", records=older).placement.moving == "t"
    chain.wait(1_000)
    assert chain.stations["c"].placement.moving == ""
    assert chain.nodes_of("u") == ["c", "c", "c"]
    step = MoveStep(number=0, topic="t", phase=FREEZE)
    chain.send(step, "a", "stranger")
    assert not any(isinstance(frame, KnownMoves) for _, frame in chain.sent)
