"""The same seed gives the same trace, in this process and in one with another hash seed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.simulation.fakes import MILLISECOND, STEADY

from ensue.core.errors import ConfigurationError
from ensue.core.event import Event
from ensue.core.trace import Row, digest
from ensue.protocols.interface import Attach, Broadcast, Deliver, Detach, Effect, Frame, Publish
from ensue.protocols.recorder import Recorder
from ensue.protocols.topic_log.frames import Accepted, Attached, Notify
from ensue.protocols.topic_log.log import TopicLog
from ensue.simulation import (
    Clog,
    Command,
    Crash,
    DiskConfig,
    Factory,
    Faults,
    LogNormal,
    NetworkConfig,
    Noise,
    Partition,
    Pause,
    QueueConfig,
    Uniform,
    World,
)

TOPICS = ("news", "sport")


class Reader:
    """Delivers events of the topic log, and publishes on command."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.position = 0
        self.answers: list[Frame] = []
        self.effects: list[Effect] = [Attach(topic, 1) for topic in TOPICS]

    def publish(self, topic: str, sequence: int) -> None:
        event = Event(topic=topic, payload=b"x", publisher=self.name, publisher_seq=sequence)
        self.effects += [Publish(event), Broadcast(event)]

    def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
        assert source == "ens"
        if isinstance(frame, Notify):
            self.position += 1
            self.effects.append(Deliver(frame.event, self.position))
        else:
            self.answers.append(frame)

    def handle_timer(self, *, now_ns: int) -> None:
        pass

    def next_timer_ns(self) -> int | None:
        return None

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects


def reader(name: str) -> Factory:
    return lambda _records, _now_ns: Reader(name)


def publication(topic: str, sequence: int) -> Command:
    return lambda node, _now_ns: node.publish(topic, sequence)


def faulty_run(seed: int, *, queueing: QueueConfig | None = None) -> list[Row]:
    recorder = Recorder(f"seed {seed}", peer_frames=True)
    world = World(
        seed,
        network=NetworkConfig(
            default=LogNormal(MILLISECOND, MILLISECOND), loss=0.05, duplication=0.05, reordering=0.1
        ),
        disk=DiskConfig(sync=Uniform(10_000, MILLISECOND)),
        queueing=queueing,
        recorder=recorder,
    )
    world.add("ens", lambda records, _: TopicLog(name="ens", records=records))
    names = [f"node-{number}" for number in range(6)]
    for name in names:
        world.add(name, reader(name))
    random = world.stream("workload")
    for sequence in range(1, 40):
        name, topic, at = random.choice(names), random.choice(TOPICS), random.randrange(10**8)
        world.call(name, publication(topic, sequence), at_ns=at)
    world.inject(
        Faults(
            partitions=(Partition(side=(names[0],), from_ns=10**7, until_ns=3 * 10**7),),
            clogs=(Clog(sources=(names[1],), from_ns=10**7, until_ns=5 * 10**7),),
            noises=(Noise(loss=0.3, targets=(names[2],), from_ns=10**7, until_ns=9 * 10**7),),
            pauses=(Pause(node=names[3], from_ns=2 * 10**7, until_ns=6 * 10**7),),
            crashes=(Crash(node="ens", at_ns=4 * 10**7, restart_after_ns=10**7),),
        )
    )
    world.run()
    return recorder.rows


def test_same_seed_gives_same_rows_and_another_seed_others() -> None:
    first = faulty_run(7)
    assert first == faulty_run(7)
    assert {row.action for row in first} >= {
        "published", "sent", "received", "delivered", "crashed", "restarted",
    }  # fmt: skip
    assert digest(first) != digest(faulty_run(8))


def test_queues_are_deterministic_too() -> None:
    config = QueueConfig(service_ns=200_000, bandwidth_bytes_per_s=10**6, size_of=lambda _: 100)
    assert faulty_run(7, queueing=config) == faulty_run(7, queueing=config)
    assert faulty_run(7, queueing=config) != faulty_run(7)


def test_process_with_other_hash_seed_gives_same_digest() -> None:
    root = Path(__file__).parents[2]
    code = (
        "from tests.simulation.test_determinism import faulty_run\n"
        "from ensue.core.trace import digest\n"
        "print(digest(faulty_run(7)))"
    )
    seen = {digest(faulty_run(7))}
    for hash_seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}",
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        seen.add(done.stdout.strip())
    assert len(seen) == 1


def test_topic_log_receives_effects_and_answers() -> None:
    recorder = Recorder("run")
    world = World(1, network=STEADY, recorder=recorder)
    world.add("ens", lambda records, _: TopicLog(name="ens", records=records))
    world.add("a", lambda _records, _now_ns: Reader("a"), subscription="mine")
    world.call("a", lambda node, _: node.publish("news", 1), at_ns=10**6)
    world.call("a", lambda node, _: node.effects.append(Detach("news")), at_ns=2 * 10**6)
    world.call("a", lambda node, _: node.publish("news", 2), at_ns=3 * 10**6)
    world.run()
    node = world.node("a")
    assert isinstance(node, Reader)
    assert [type(answer) for answer in node.answers] == [Attached, Attached, Accepted, Accepted]
    assert [(row.action, row.publisher_seq) for row in recorder.rows] == [
        ("published", 1),
        ("sent", 1),
        ("delivered", 1),
        ("published", 2),
        ("sent", 2),
    ]
    assert {row.subscription for row in recorder.rows} == {None, "mine"}


def test_topic_may_have_its_own_log_which_must_exist() -> None:
    world = World(1, network=STEADY, ens_for=lambda topic: f"ens-{topic}")
    for topic in TOPICS:
        world.add(f"ens-{topic}", lambda _records, _now_ns: TopicLog(name="ens"))
    reached: list[str] = []

    class Asker(Reader):
        def receive(self, frame: Frame, *, source: str, now_ns: int) -> None:
            reached.append(source)

    world.add("a", lambda _records, _now_ns: Asker("a"))
    world.run()
    assert sorted(reached) == ["ens-news", "ens-sport"]

    world = World(1, network=STEADY)
    world.add("a", lambda _records, _now_ns: Reader("a"))
    with pytest.raises(ConfigurationError, match="ens_for must name a node for 'news'"):
        world.run()
