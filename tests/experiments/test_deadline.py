"""Experiments with deadlines: both systems deliver, and their load and bytes compare."""

import msgspec
import pytest
from experiments.deadline.figures import EXPERIMENTS
from experiments.deadline.model import Load, frame_bytes, gossip, reliable
from experiments.deadline.reliable import Acknowledgement, Copy, ReliableMember
from experiments.deadline.sizes import between_members, from_brokers

from ensue.core.event import CLOCK, DEADLINE, Event, Stamp
from ensue.protocols.deadline.codec import rows_of
from ensue.protocols.deadline.frames import Message
from ensue.protocols.interface import Deliver, Send

QUIET = Load(
    subscribers=12, perturbed=0.0, per_second=10.0, duration_ns=500_000_000, loss=0.0, crashes=0.0
)


@pytest.mark.parametrize("system", [gossip, reliable])
def test_without_faults_every_event_is_on_time(system: object) -> None:
    figures = system(QUIET, 1)  # type: ignore[operator]
    assert figures.on_time == 1.0
    assert figures.per_second > 10


def test_slow_members_and_losses_cost_gossip_little() -> None:
    load = Load(subscribers=30, perturbed=0.5, per_second=10.0, duration_ns=500_000_000, loss=0.01)
    assert gossip(load, 1).on_time > 0.9


def test_same_matrix_costs_same_bytes_in_both_systems() -> None:
    """Four senders sent their last message to all 199 others: one stamp and one set per row."""
    stamp = 10**15
    matrix = {x: dict.fromkeys((y for y in range(200) if y != x), stamp - x - 1) for x in range(4)}
    event = Event(topic="t", payload=bytes(100), publisher="p0", publisher_seq=1)
    event = msgspec.structs.replace(event, stamp=Stamp({CLOCK: stamp, DEADLINE: stamp}))
    rows = rows_of(matrix, stamp)
    message = Message(
        event=event, source=0, dest=b"", base=0, after=rows, round=0, live={}, heard=0
    )
    copy = Copy(event=event, source=0, after=rows)
    assert frame_bytes(copy) == frame_bytes(message) == 20 + 130 + 4 * (8 + 25)
    member, sent = reliable_pair()
    assert sent.after == {}
    member.receive(sent, source="a", now_ns=2)
    member.publish("t", b"", now_ns=3)
    (answer,) = {
        id(effect.frame): effect.frame
        for effect in member.take_effects()
        if isinstance(effect, Send) and isinstance(effect.frame, Copy)
    }.values()
    assert {x: len(row) for x, row in answer.after.items()} == {0: 1}, "one set per row"


def reliable_pair() -> tuple[ReliableMember, Copy]:
    """Return a member of a group of 50, and the first message of another."""
    names = ["a", "b", *(f"m{number}" for number in range(48))]
    numbers = {name: number for number, name in enumerate(names)}
    a, b = (
        ReliableMember(name=name, names=names, numbers=numbers, lifetime_ns=10**9)
        for name in ("a", "b")
    )
    a.publish("t", b"", now_ns=1)
    sent = next(effect.frame for effect in a.take_effects() if isinstance(effect, Send))
    assert isinstance(sent, Copy)
    return b, sent


def test_reliable_group_loads_publishers_more_than_gossip() -> None:
    load = Load(subscribers=100, perturbed=0.0, per_second=80.0, duration_ns=150_000_000)
    ours, theirs = gossip(load, 1, warm_up_rounds=20), reliable(load, 1)
    assert ours.on_time > 0.9
    assert theirs.on_time > 0.9
    assert theirs.bytes < ours.bytes
    assert 1 >= theirs.busiest > 5 * ours.busiest


def test_member_retransmits_until_all_acknowledged() -> None:
    names = ["a", "b", "c"]
    numbers = {name: number for number, name in enumerate(names)}
    a, b = (
        ReliableMember(name=name, names=names, numbers=numbers, lifetime_ns=10**9)
        for name in ("a", "b")
    )
    a.publish("t", b"", now_ns=1)
    sends = [effect for effect in a.take_effects() if isinstance(effect, Send)]
    assert [send.peer for send in sends] == ["b", "c"]
    assert isinstance(sends[0].frame, Copy)
    b.receive(sends[0].frame, source="a", now_ns=2)
    acknowledged, delivered = b.take_effects()
    assert isinstance(acknowledged, Send)
    assert isinstance(acknowledged.frame, Acknowledgement)
    assert isinstance(delivered, Deliver)
    a.receive(acknowledged.frame, source="b", now_ns=3)
    due_ns = a.next_timer_ns()
    assert due_ns is not None
    a.handle_timer(now_ns=due_ns)
    assert [effect.peer for effect in a.take_effects() if isinstance(effect, Send)] == ["c"]


def test_ordering_information_grows_slowly() -> None:
    few, many = from_brokers(4, turns=2), from_brokers(16, turns=2)
    assert many.differences <= many.whole < many.plain / 4
    assert few.rumor < 30
    assert many.rumor < 3 * few.rumor
    assert between_members(200, 200) > 10 * many.differences


@pytest.mark.parametrize("system", ["gossip", "reliable group"])
def test_figure_6_case_yields_share_on_time_throughput_and_bytes(system: str) -> None:
    (experiment,) = (each for each in EXPERIMENTS if each.name == "gossip-throughput")
    case = {"system": system, "subscribers": 8, "perturbed": 20, "duration_ms": 200, "seed": 1}
    rows = {(row["figure"], row["series"]): row["value"] for row in experiment.run_case(case)}
    assert list(rows) == [
        ("6a", system),
        ("throughput", f"{system}, 20 %"),
        ("bytes", system),
        ("busiest", system),
    ]
    assert {figure for figure, _ in rows} <= {chart.figure for chart in experiment.charts}
    assert 90 < rows["6a", system] <= 100
    assert 40 < rows["throughput", f"{system}, 20 %"] < 200
