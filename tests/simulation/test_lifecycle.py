import pytest
from tests.simulation.fakes import (
    INSTANT,
    STEADY,
    Diary,
    Note,
    Probe,
    add,
    build,
    do,
    say,
    steady_world,
    wake,
)

from ensue.core.errors import ConfigurationError, LimitReached
from ensue.protocols.interface import Join, Outcome, Persist, Send
from ensue.protocols.recorder import Recorder
from ensue.simulation import Constant, Crash, DiskConfig, Faults, Pause, World
from ensue.simulation.world import driver as driver_module


def test_paused_node_gets_frames_timers_and_commands_later_in_order() -> None:
    world = steady_world()
    _, b = add(world, "a", "b")
    wake(world, "b", 150)
    world.inject(Faults(pauses=(Pause(node="b", from_ns=100, until_ns=500),)))
    say(world, "a", "b", "before", at=80)
    say(world, "a", "b", "one", at=120)
    say(world, "b", "b", "command", at=130)
    say(world, "a", "b", "two", at=140)
    world.run(499)
    assert b.received == [(90, "a", "before")]
    assert b.timers == []
    world.run()
    assert b.received[1:] == [(500, "a", "one"), (500, "a", "two"), (500, "b", "command")]
    assert b.timers == [500]


def test_frames_made_durable_during_pause_are_sent_after_it() -> None:
    """The hazard of a publisher that pauses between reading its clock and sending."""
    world = World(1, network=STEADY, disk=DiskConfig(sync=Constant(100)))
    _, b = add(world, "a", "b")
    do(world, "a", Persist("k", b"1"), Send("b", Note(text="x")), at=0)
    do(world, "a", Persist("k", b"2"), Send("b", Note(text="y")), at=10)
    world.inject(Faults(pauses=(Pause(node="a", from_ns=50, until_ns=1_000),)))
    world.run(900)
    assert world.records("a") == {"k": b"1"}
    assert b.received == []
    world.run()
    assert b.received == [(1_010, "a", "x"), (1_110, "a", "y")]


def test_pauses_nest() -> None:
    world = steady_world()
    _, b = add(world, "a", "b")
    pauses = (Pause(node="b", from_ns=0, until_ns=100), Pause(node="b", from_ns=50, until_ns=300))
    world.inject(Faults(pauses=pauses))
    say(world, "a", "b", "x", at=60)
    world.run()
    assert b.times == [300]


def test_end_of_pause_before_crash_does_not_end_later_pause() -> None:
    world = steady_world()
    _, b = add(world, "a", "b")
    world.inject(
        Faults(
            pauses=(
                Pause(node="b", from_ns=0, until_ns=200),
                Pause(node="b", from_ns=150, until_ns=400),
            ),
            crashes=(Crash(node="b", at_ns=100, restart_after_ns=10),),
        )
    )
    say(world, "a", "b", "x", at=250)
    world.run()
    assert b.times == [400]


def test_too_long_backlog_raises_limit_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "BACKLOG_MAX", 2)
    world = steady_world()
    add(world, "a", "b")
    world.pause("b")
    say(world, "a", "b", "x", "y", "z")
    with pytest.raises(LimitReached, match="paused node b"):
        world.run()


def test_frames_and_commands_to_crashed_node_are_lost() -> None:
    world = steady_world()
    _, b = add(world, "a", "b")
    world.inject(Faults(crashes=(Crash(node="b", at_ns=100, restart_after_ns=200),)))
    for at in (50, 95, 150, 295):
        say(world, "a", "b", f"{at}", at=at)
    say(world, "b", "a", "never", at=200)
    world.run()
    assert b.texts == ["50", "295"]
    assert world.frames_undelivered == 2
    assert world.commands_undelivered == 1


def test_sent_frames_survive_crash_of_sender() -> None:
    world = steady_world()
    _, b = add(world, "a", "b")
    say(world, "a", "b", "x", at=0)
    world.inject(Faults(crashes=(Crash(node="a", at_ns=5),)))
    world.run()
    assert b.texts == ["x"]


def test_timers_and_backlog_do_not_survive_crash() -> None:
    world = steady_world()
    _, b = add(world, "a", "b")
    wake(world, "b", 300)
    say(world, "a", "b", "x", at=60)
    later = Pause(node="b", from_ns=350, until_ns=400)
    world.inject(
        Faults(
            pauses=(Pause(node="b", from_ns=50, until_ns=150), later),
            crashes=(Crash(node="b", at_ns=100, restart_after_ns=220),),
        )
    )
    world.run()
    assert b.received == []
    assert b.timers == []
    assert len(b.started) == 2


def test_crash_while_down_has_no_effect() -> None:
    recorder = Recorder("run")
    world = World(1, network=STEADY, disk=INSTANT, recorder=recorder)
    [a] = add(world, "a")
    crashes = (Crash(node="a", at_ns=100), Crash(node="a", at_ns=150, restart_after_ns=10))
    world.inject(Faults(crashes=crashes))
    world.run(1_000)
    assert world.node("a") is None
    world.restart("a")
    world.restart("a")
    assert len(a.started) == 2
    assert [row.action for row in recorder.rows] == ["crashed", "restarted"]
    assert [row.true_ns for row in recorder.rows] == [100, 1_000]


def test_restart_belongs_to_its_crash() -> None:
    world = steady_world()
    add(world, "a")
    world.crash("a", restart_after_ns=100)
    world.restart("a")
    world.crash("a")
    world.run()
    assert world.now_ns >= 100
    assert world.node("a") is None


def test_node_may_send_at_start_even_to_nodes_added_later() -> None:
    world = steady_world()
    seen = []

    class Greeter(Probe):
        def __init__(self, greeting: str) -> None:
            super().__init__("a", first, None)
            self.effects.append(Send("b", Note(text=greeting)))

    [first] = add(world, "unused")
    world.add("a", lambda records, now_ns: Greeter(f"{len(records)} at {now_ns}"))
    [b] = add(world, "b")
    do(world, "a", Persist("k", b""), at=5)
    world.inject(Faults(crashes=(Crash(node="a", at_ns=20, restart_after_ns=30),)))
    world.run()
    seen.extend(b.texts)
    assert seen == ["0 at 0", "1 at 50"]


def test_heal_restarts_every_node() -> None:
    world = steady_world()
    diaries = add(world, "a", "b", "c")
    world.inject(
        Faults(
            crashes=(Crash(node="a", at_ns=10), Crash(node="a", at_ns=500)),
            pauses=(Pause(node="b", from_ns=10), Pause(node="b", from_ns=20)),
        )
    )
    world.run(100)
    world.heal()
    for name in ("a", "b"):
        say(world, "c", name, "x", at=600)
    world.run()
    assert [diary.texts for diary in diaries] == [["x"], ["x"], []]


def test_removed_node_never_restarts() -> None:
    world = steady_world()
    [a] = add(world, "a")
    world.remove("a")
    world.restart("a")
    world.heal()
    world.run()
    assert world.node("a") is None
    assert len(a.started) == 1


def test_nodes_may_share_a_name_in_the_trace() -> None:
    recorder = Recorder("run", peer_frames=True)
    world = World(1, network=STEADY, disk=INSTANT, recorder=recorder)
    for name in ("a", "b"):
        world.add(name, build(name, Diary()), seen_as="program")
    say(world, "a", "b", "x")
    do(world, "b", Join("t"), at=50)
    world.run()
    world.crash("b")
    world.restart("b")
    assert [(row.node, row.step, row.action) for row in recorder.rows] == [
        ("program", 1, "sent"),
        ("program", 2, "received"),
        ("program", 3, "subscribed"),
        ("program", 4, "crashed"),
        ("program", 5, "restarted"),
    ]


def test_application_that_crashes_its_node_gets_no_more_outcomes() -> None:
    told: list[str] = []

    def on_outcome(name: str, outcome: Outcome) -> None:
        assert isinstance(outcome, Join)
        told.append(outcome.topic)
        world.crash(name)

    world = World(1, network=STEADY, disk=INSTANT, on_outcome=on_outcome)
    add(world, "a")
    do(world, "a", Join("one"), Join("two"))
    world.run()
    assert told == ["one"]


def test_commands_from_callback_run_after_batch() -> None:
    told: list[str] = []

    def on_outcome(name: str, outcome: Outcome) -> None:
        assert isinstance(outcome, Join)
        told.append(outcome.topic)
        if len(told) < 4:
            do(world, name, Join(f"{outcome.topic}+"))

    world = World(1, network=STEADY, disk=INSTANT, on_outcome=on_outcome)
    add(world, "a")
    do(world, "a", Join("one"), Join("two"))
    world.run()
    assert told == ["one", "two", "one+", "two+", "one++"]


def test_run_stops_at_time_condition_or_limit() -> None:
    world = steady_world()
    _, b = add(world, "a", "b")
    for at in range(0, 1_000, 100):
        say(world, "a", "b", "x", at=at)
    assert world.run(310)
    assert world.now_ns == 310
    assert len(b.received) == 4
    assert world.run(condition=lambda: len(b.received) == 6)
    assert world.now_ns == 510
    assert not world.run(condition=lambda: len(b.received) == 99)
    assert world.steps == 10

    def react(node: Probe, source: str, text: str, now_ns: int) -> None:
        node.effects.append(Send(source, Note(text=text)))

    add(world, "c", "d", reaction=react)
    say(world, "c", "d", "for ever")
    with pytest.raises(LimitReached, match="1000 calls"):
        world.run(events_max=1_000)


def test_names_are_unique_and_known() -> None:
    world = steady_world()
    add(world, "a")
    with pytest.raises(ConfigurationError, match="unique"):
        add(world, "a")
    with pytest.raises(ConfigurationError, match="no node 'b'"):
        world.crash("b")
    assert world.names() == ["a"]
