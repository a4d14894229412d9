"""Events that travel with their request: published in one step, exactly once."""

from collections.abc import Sequence
from random import Random

import msgspec
import pytest
from tests.protocols.total.stationed import CARRIES, StationNet

from ensue.core.event import Event, Stamp
from ensue.protocols.interface import Broadcast, Effect, Frame, Publish, Refuse, Send, Settle
from ensue.protocols.topic_log.frames import Accepted, Put
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import (
    Confirm,
    Forget,
    Grant,
    OrderRequest,
    Out,
    Refused,
    Stamped,
    StampRequest,
)
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.publisher import REQUEST_BYTES_MAX, Publisher
from ensue.protocols.total.sequencer import Sequencer

RETRY_NS = CARRIES.retry_ns


def publisher(**options: object) -> Publisher:
    config = SequencerConfig(carries=True, durable=False, **options)  # type: ignore[arg-type]
    return Publisher(name="p", placement=Placement(["s"]), config=config)


def publish(node: Publisher, *payloads: str, topic: str = "t") -> list[OrderRequest]:
    """Publish events together; return the requests."""
    for payload in payloads:
        node.publish(topic, payload.encode(), now_ns=0)
    return requests(node.take_effects())


def requests(effects: Sequence[Effect]) -> list[OrderRequest]:
    return [e.frame for e in effects if isinstance(e, Send) and isinstance(e.frame, OrderRequest)]


def payloads(request: OrderRequest) -> list[str]:
    return [event.payload.decode() for event in request.events]


def settled(effects: Sequence[Effect]) -> list[tuple[str, str, str]]:
    return [
        (each.event.payload.decode(), each.verdict, each.reason)
        for each in effects
        if isinstance(each, Settle)
    ]


def handle(
    node: Publisher, frame: Frame, *, now_ns: int = 0, source: str = "s"
) -> Sequence[Effect]:
    node.receive(frame, source=source, now_ns=now_ns)
    return node.take_effects()


# -- A publisher -----------------------------------------------------------------------------------


def test_events_published_together_are_one_request() -> None:
    node = publisher()
    (request,) = publish(node, "a", "b", "c")
    assert (request.number, request.settled, payloads(request)) == (1, 1, ["a", "b", "c"])
    (following,) = publish(node, "d")
    assert (following.number, payloads(following)) == (4, ["d"])


def test_large_events_are_split_into_several_requests_in_order() -> None:
    node = publisher()
    half = REQUEST_BYTES_MAX // 2 - 100
    for key, headers, payload in (
        (None, {}, half),
        (bytes(half), {}, 0),
        (None, {"h": "é" * (half // 2)}, 0),
        (None, {"h" * half: ""}, 0),
        (None, {}, 1),
        (None, {}, 2 * REQUEST_BYTES_MAX),
        (None, {}, 1),
    ):
        node.publish("t", bytes(payload), key=key, headers=headers, now_ns=0)
    made = requests(node.take_effects())
    assert [each.number for each in made] == [1, 3, 5, 6, 7]
    sent = [event.publisher_seq for each in made for event in each.events]
    assert sent == list(range(1, 8))
    for each in made:
        assert len(each.events) == 1 or len(msgspec.msgpack.encode(each)) <= REQUEST_BYTES_MAX
    # The same again, when there is no answer.
    node.handle_timer(now_ns=RETRY_NS)
    assert requests(node.take_effects()) == made


def test_requests_are_bounded_by_request_bytes_max() -> None:
    config = SequencerConfig(carries=True, durable=False)
    placement = Placement(["s"])
    node = Publisher(name="p", placement=placement, config=config, request_bytes_max=1_000)
    made = publish(node, *("x" * 300 for _ in range(5)))
    assert [each.number for each in made] == [1, 3, 5]


def test_published_event_settles_with_its_slot_without_confirmation() -> None:
    node = publisher()
    publish(node, "a", "b")
    effects = handle(node, Out(origin="s", slots=((1, 5), (2, 7))))
    assert settled(effects) == [("a", "", ""), ("b", "", "")]
    settles = [each for each in effects if isinstance(each, Settle)]
    assert [each.slot for each in settles] == [5, 7]
    assert [each.stamped.slot for each in settles] == [5, 7]
    assert node.unsettled_count == 0
    node.handle_timer(now_ns=10 * CARRIES.lease_ns)
    assert not [e for e in node.take_effects() if isinstance(e, Send | Broadcast)]


def test_event_with_unknown_slot_settles_as_published() -> None:
    node = publisher()
    publish(node, "a")
    (settle,) = [e for e in handle(node, Out(origin="s", slots=((1, 0),))) if isinstance(e, Settle)]
    assert (settle.verdict, settle.event.stamp) == ("", None)


def test_duplicate_or_unexpected_answer_changes_nothing() -> None:
    node = publisher()
    publish(node, "a")
    answer = Out(origin="s", slots=((1, 1),))
    assert settled(handle(node, answer)) == [("a", "", "")]
    assert handle(node, answer) == []
    assert handle(node, Out(origin="s", slots=((9, 9),))) == []
    assert handle(node, Out(origin="elsewhere", slots=((1, 1),)), source="elsewhere") == []


def test_unanswered_request_is_repeated_with_its_events() -> None:
    node = publisher()
    publish(node, "a", "b", "c")
    handle(node, Out(origin="s", slots=((2, 2),)))
    assert node.next_timer_ns() == RETRY_NS
    node.handle_timer(now_ns=RETRY_NS)
    again = requests(node.take_effects())
    assert [(each.number, each.settled, payloads(each)) for each in again] == [
        (1, 1, ["a"]),
        (3, 1, ["c"]),
    ]


def test_lost_connection_repeats_all_unanswered_requests_at_once() -> None:
    node = publisher()
    publish(node, "a", "b", "c")
    handle(node, Out(origin="s", slots=((1, 1),)))
    node.repeat(now_ns=5)
    (again,) = requests(node.take_effects())
    assert (again.number, again.settled, payloads(again)) == (2, 2, ["b", "c"])


def test_carried_event_with_a_stamp_is_put_by_its_publisher() -> None:
    node = publisher()
    publish(node, "a")
    stamp = Stamp({"t": 1, "u": 3})
    effects = handle(node, Stamped(origin="s", grants=(Grant(1, stamp),)), source="last")
    (broadcast,) = [each for each in effects if isinstance(each, Broadcast)]
    assert broadcast.event.stamp == stamp
    # Should the origin come to say that it is out after all, that is that.
    effects = handle(node, Accepted(topic="t", event=broadcast.event.id, slot=1))
    assert settled(effects) == [("a", "", "")]
    assert handle(node, Out(origin="s", slots=((1, 1),))) == []


def test_lost_connection_repeats_unaccepted_puts() -> None:
    node = publisher()
    publish(node, "a")
    handle(node, Stamped(origin="s", grants=(Grant(1, Stamp({"t": 1})),)))
    node.repeat(now_ns=5)
    assert [type(each) for each in node.take_effects()] == [Broadcast]


def test_requests_in_flight_are_bounded_by_the_window() -> None:
    node = publisher(window=2)
    (first,) = publish(node, "a", "b", "c", "d")
    assert payloads(first) == ["a", "b"]
    (more,) = requests(handle(node, Out(origin="s", slots=((1, 1), (2, 2)))))
    assert (more.number, more.settled, payloads(more)) == (3, 3, ["c", "d"])


def test_refused_event_is_void_and_later_ones_are_requested_again() -> None:
    node = publisher()
    publish(node, "a", "b")
    effects = handle(node, Refused(number=1, reason="no room"))
    assert settled(effects) == [("a", "void", "no room")]
    assert [each for each in effects if isinstance(each, Refuse)]
    (again,) = requests(effects)
    assert (again.number, again.settled, payloads(again)) == (2, 2, ["b"])


def test_carried_leave_names_the_first_unsettled_number() -> None:
    node = publisher()
    publish(node, "a", "b")
    handle(node, Out(origin="s", slots=((1, 1),)))
    node.say_goodbye()
    frames = [each.frame for each in node.take_effects() if isinstance(each, Send)]
    assert frames == [Forget(number=2, publisher=True)]


def test_restarted_durable_publisher_repeats_requests_and_settles_once() -> None:
    net = StationNet({"s": ["t"]})
    net.publish("p", "t", "a")
    net.publish("p", "t", "b")
    for parcel in net.arrivals():
        net.deliver(parcel)
    net.drop(Out)
    net.crash("p")
    net.restart("p")
    net.publish("p", "t", "c")
    net.come_to_rest()
    assert net.put_out("s") == ["a", "b", "c"]
    assert net.settled("p") == [("a", ""), ("b", ""), ("c", "")]
    assert [e.event.payload for e in net.outcomes["p"] if isinstance(e, Publish)][-3:] == [
        b"a",
        b"b",
        b"c",
    ]


# -- A node ----------------------------------------------------------------------------------------


def test_node_without_a_log_stamps_carried_events() -> None:
    """All nodes share one configuration; a node without a log must lose nothing either."""
    node = Sequencer(name="s", placement=Placement(["s"]), config=SequencerConfig())
    event = Event(topic="t", payload=b"x", publisher="p", publisher_seq=1)
    node.receive(OrderRequest(number=1, events=(event,), settled=1), source="p", now_ns=0)
    frames = [each.frame for each in node.take_effects() if isinstance(each, Send)]
    assert frames == [Stamped(origin="s", grants=(Grant(1, Stamp({"t": 1})),))]


def test_stamp_requests_work_where_events_are_carried() -> None:
    net = StationNet({"s": ["t"]})
    station = net.station("s")
    station.receive(StampRequest(number=1, topics=("t",), settled=1), source="p", now_ns=0)
    (frame,) = [each.frame for each in station.take_effects() if isinstance(each, Send)]
    assert isinstance(frame, Stamped)
    (grant,) = frame.grants
    event = Event(topic="t", payload=b"x", publisher="p", publisher_seq=1, stamp=grant.stamp)
    station.receive(Put(event=event), source="p", now_ns=0)
    frames = [each.frame for each in station.take_effects() if isinstance(each, Send)]
    assert Accepted(topic="t", event="p/t/1", slot=1) in frames
    station.receive(Confirm(origin="s", slots=((1, 1),), settled=2), source="p", now_ns=0)
    station.take_effects()
    assert station.node.open_count == 0


# -- Who is forgotten ------------------------------------------------------------------------------

SECOND = 1_000_000_000


def full(clients_max: int, **chain: list[str]) -> StationNet:
    """Return stations with a limit of publishers."""
    return StationNet(chain, config=SequencerConfig(carries=True, clients_max=clients_max))


def send(net: StationNet, publisher: str, topic: str, event: str) -> None:
    net.publish(publisher, topic, event)
    net.settle()


@pytest.mark.parametrize("idle", [False, True])
def test_late_request_of_an_evicted_publisher_publishes_nothing_twice(idle: bool) -> None:
    net = full(2, low=["a", "b"], high=["d"])
    net.subscribe("s", "a")
    net.subscribe("t", "b", "d")
    net.settle()
    send(net, "p", "a", "p1")
    (copy,) = [each for each in net.handled if isinstance(each.frame, OrderRequest)]
    if idle:
        net.pass_time(CARRIES.forget_ns)
    else:
        send(net, "p", "b", "p2")  # Its stamp is completed elsewhere, so it confirms it.
        net.confirm("p")
        net.settle()
    send(net, "q", "a", "q1")
    send(net, "r", "a", "r1")
    assert list(net.station("low").node.sessions.by_name) == ["q", "r"]
    net.restart("low")
    net.say_goodbye("q")
    net.repeat(copy)
    net.settle()
    net.pass_time(SECOND)
    assert net.delivered("s") == ["p1", "q1", "r1"]
    send(net, "p", "a", "p3")
    assert net.delivered("s") == ["p1", "q1", "r1", "p3"]


def test_request_refused_for_lack_of_room_stays_refused() -> None:
    net = full(1, one=["a"])
    net.subscribe("s", "a")
    net.settle()
    send(net, "q", "a", "q1")
    with net.holding(Refused), net.holding(Out, to="p"):
        send(net, "p", "a", "p1")
        net.say_goodbye("q")
        net.settle()
        net.restart("one")
        net.pass_time(RETRY_NS)  # It has heard nothing, and asks again.
    net.settle()
    net.pass_time(60 * SECOND)
    assert net.settled("p") == [("p1", "void")]
    send(net, "p", "a", "p2")
    assert net.settled("p") == [("p1", "void"), ("p2", "")]
    assert net.delivered("s") == ["q1", "p2"]


@pytest.mark.parametrize("seed", range(20))
def test_events_refused_for_lack_of_room_reach_no_subscriber(seed: int) -> None:
    net = full(1, one=["a"])
    net.subscribe("s", "a")
    net.settle()
    rng = Random(seed)
    room = rng.randrange(20)
    send(net, "q", "a", "q1")
    for number in range(4):
        net.publish("p", "a", f"p{number}")
    for step in range(60):
        if step == room:
            net.say_goodbye("q")
        choices = net.arrivals()
        if choices and rng.random() < 0.6:
            parcel = rng.choice(choices)
            if isinstance(parcel.frame, OrderRequest) and rng.random() < 0.3:
                net.repeat(parcel)
            net.deliver(parcel)
        else:
            net.now_ns += RETRY_NS
            net.nodes["p"].handle_timer(now_ns=net.now_ns)
            net._carry_out("p")
    net.come_to_rest(pick=rng.choice)
    settled = dict(net.settled("p"))
    assert len(settled) == 4
    out = ["q1", *(event for event in sorted(settled) if not settled[event])]
    assert net.delivered("s") == out


def test_evicted_publisher_gets_its_receipts_without_room() -> None:
    net = full(1, one=["a"])
    net.subscribe("s", "a")
    net.settle()
    with net.holding(Out):
        send(net, "p", "a", "p1")
        net.drop(Out)
        net.crash("one")
        net.pass_time(CARRIES.forget_ns)
        net.drop(OrderRequest)
        net.restart("one")
        net.pass_time(0)
    station = net.station("one").node
    station.sessions.by_name["p"].seen_ns = net.now_ns - CARRIES.forget_ns
    send(net, "q", "a", "q1")
    assert list(station.sessions.by_name) == ["q"]
    net.publish("p", "a", "p2")
    net.come_to_rest()
    assert dict(net.settled("p")) == {"p1": "", "p2": "void"}
    assert net.delivered("s") == ["p1", "q1"]


# -- Against what anyone can see -------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_events_are_published_once_in_publisher_order_under_faults(seed: int) -> None:
    """Losses, duplicates, reordering and crashes of all nodes, on one station and on two."""
    random = Random(seed)
    chain = random.choice(({"one": ["a", "b"]}, {"one": ["a"], "two": ["b"]}))
    config = SequencerConfig(
        carries=True, window=random.choice((1, 2, 1024)), lease_ns=10**15, retry_ns=10**8
    )
    net = StationNet(chain, config=config)
    for name in ("s", "p", "q"):
        net.subscriber(name) if name == "s" else net.publisher(name)
    net.subscribe("s", "a", "b")
    net.come_to_rest()
    made: dict[str, list[str]] = {"p": [], "q": []}
    for number in range(150):
        who = random.choice("pq")
        match random.choice(("publish", "arrive", "arrive", "lose", "repeat", "crash", "time")):
            case "publish":
                made[who].append(f"{who}{number}")
                net.publish(who, random.choice("ab"), made[who][-1])
            case "arrive":
                for _ in range(random.randint(1, 5)):
                    if choices := net.arrivals():
                        net.deliver(random.choice(choices))
            case "lose" if choices := net.arrivals():
                lost = random.choice(choices)
                if not {lost.source, lost.target} <= set(chain):
                    net.under_way.remove(lost)
            case "repeat" if net.handled:
                again = random.choice(net.handled)
                if not {again.source, again.target} <= set(chain):
                    net.repeat(again)
            case "crash":
                name = random.choice([*chain, "p", "q", "s"])
                net.crash(name)
                net.restart(name)
            case "time":
                net.pass_time(random.randrange(2 * 10**8), settle=False)
            case _:
                pass
    net.come_to_rest(random.choice)
    assert net.waiting() == []
    delivered = net.delivered("s")
    assert sorted(delivered) == sorted(made["p"] + made["q"])
    for who, names in made.items():
        assert [name for name in delivered if name.startswith(who)] == names
        assert {verdict for _, verdict in net.settled(who)} <= {""}
        assert sorted({name for name, _ in net.settled(who)}) == sorted(names)
