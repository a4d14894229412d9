from tests.simulation.fakes import STEADY, Diary, Note, NoteCodec, add, build, do

from ensue.core.event import Event, Stamp
from ensue.core.trace import Row
from ensue.core.wire import Codec
from ensue.protocols.interface import (
    Broadcast,
    Deliver,
    Discard,
    Effect,
    Join,
    Leave,
    Outcome,
    Persist,
    Publish,
    Refuse,
    Send,
    Settle,
)
from ensue.protocols.recorder import Recorder
from ensue.protocols.topic_log.frames import Accepted, Notify, Put
from ensue.protocols.topic_log.log import TopicLog
from ensue.simulation import ClockConfig, Constant, DiskConfig, World

EVENT = Event(
    topic="t", payload=b"p", publisher="p", publisher_seq=3, stamp=Stamp({"t": 7, "u": 2})
)


def row_of(outcome: Outcome) -> Row | None:
    recorder = Recorder("run", "total")
    recorder.outcome("n", "s", outcome, 5, 6)
    assert len(recorder.rows) <= 1
    return recorder.rows[0] if recorder.rows else None


def event_row(action: str, **fields: object) -> Row:
    everything: dict[str, object] = {
        "run": "run", "node": "n", "step": 1, "at_ns": 5, "true_ns": 6, "action": action,
        "event": "p/t/3", "topic": "t", "publisher": "p", "publisher_seq": 3, "order": "total",
        "stamp": {"t": 7, "u": 2}, **fields,
    }  # fmt: skip
    return Row(**everything)  # type: ignore[arg-type]


def test_each_outcome_becomes_its_row() -> None:
    assert row_of(Publish(EVENT)) == event_row("published")
    assert row_of(Deliver(EVENT, 4, "out_of_order")) == event_row(
        "delivered", subscription="s", position=4, verdict="out_of_order"
    )
    assert row_of(Discard(EVENT, "late")) == event_row(
        "discarded", subscription="s", verdict="late"
    )
    assert row_of(Settle(EVENT, "void")) == event_row("discarded", verdict="void")
    assert row_of(Settle(EVENT, "")) is None
    assert row_of(Refuse(("t",), "no")) is None
    common = {"event": None, "publisher": None, "publisher_seq": None, "stamp": None}
    assert row_of(Join("t")) == event_row("subscribed", subscription="s", **common)
    assert row_of(Join("t", (2, 5))) == event_row(
        "subscribed", subscription="s", verdict="missed", **common
    )
    assert row_of(Leave("t")) == event_row("unsubscribed", subscription="s", **common)
    behind = event_row("unsubscribed", subscription="s", verdict="behind", **common)
    assert row_of(Leave("t", rejoins=True)) == behind
    lost = event_row("unsubscribed", subscription="s", verdict="replaced", **common)
    assert row_of(Leave("t", loss="replaced")) == lost


def test_steps_count_per_node_and_true_time_may_be_unknown() -> None:
    recorder = Recorder("run")
    recorder.published("a", EVENT, 1, bytes=10)
    recorder.sent("b", EVENT, 2, bytes=20)
    recorder.crashed("a", 3)
    recorder.restarted("a", 4)
    assert [(row.node, row.step, row.action, row.bytes) for row in recorder.rows] == [
        ("a", 1, "published", 10),
        ("b", 1, "sent", 20),
        ("a", 2, "crashed", None),
        ("a", 3, "restarted", None),
    ]
    assert {row.true_ns for row in recorder.rows} == {None}


def test_a_sink_takes_the_rows() -> None:
    taken: list[Row] = []
    recorder = Recorder("run", sink=taken)
    recorder.crashed("a", 3)
    assert len(taken) == 1
    assert recorder.rows == []


def test_peer_frames_show_the_event_they_carry() -> None:
    recorder = Recorder("run", peer_frames=True)
    recorder.frame("sent", "a", Note(text="x"), 1)
    recorder.frame("received", "a", Notify(event=EVENT), 1, None, 9)
    assert [(row.action, row.event, row.bytes) for row in recorder.rows] == [
        ("sent", None, None),
        ("received", "p/t/3", 9),
    ]


def recorded(recorder: Recorder) -> list[tuple[str, str, int, int | None]]:
    world = World(
        1, network=STEADY, disk=DiskConfig(sync=Constant(100)), recorder=recorder,
        ens_for=lambda _: "b",
    )  # fmt: skip
    world.add("a", build("a", Diary()), clock=ClockConfig(skew_ns=1_000))
    add(world, "b")
    effects: list[Effect] = [
        Deliver(EVENT, 1), Publish(EVENT), Persist("k", b""), Send("b", Note(text="x")),
    ]  # fmt: skip
    do(world, "a", *effects)
    world.run()
    return [(row.node, row.action, row.at_ns, row.true_ns) for row in recorder.rows]


def test_the_world_records_what_happened_when_it_happened() -> None:
    assert recorded(Recorder("run")) == [
        ("a", "published", 1_100, 100),
        ("a", "delivered", 1_100, 100),
    ]
    assert recorded(Recorder("run", peer_frames=True)) == [
        ("a", "published", 1_100, 100),
        ("a", "sent", 1_100, 100),
        ("a", "delivered", 1_100, 100),
        ("b", "received", 110, 110),
    ]


def test_broadcasts_are_always_recorded_with_their_size() -> None:
    recorder = Recorder("run")
    codec = Codec((Put, Accepted, Note))
    world = World(1, network=STEADY, recorder=recorder, codec=codec)
    world.add("ens", lambda _records, _now_ns: TopicLog(name="ens"))
    _, b = add(world, "a", "b")
    do(world, "a", Publish(EVENT), Broadcast(EVENT), Send("b", Note(text="x")))
    world.run(15)
    assert b.texts == ["x"]
    size = len(codec.encode(Put(event=EVENT)))
    assert [(row.action, row.event, row.stamp, row.bytes) for row in recorder.rows] == [
        ("published", "p/t/3", {"t": 7, "u": 2}, size),
        ("sent", "p/t/3", {"t": 7, "u": 2}, size),
    ]


def test_a_codec_carries_bytes_and_builds_frames_anew() -> None:
    codec = NoteCodec()
    world = World(1, network=STEADY, codec=codec)
    _, b = add(world, "a", "b")
    do(world, "a", Send("b", Note(text="x")))
    world.run()
    assert codec.encoded == 1
    assert b.texts == ["x"]
