from random import Random

import pytest
from tests.simulation.fakes import INSTANT, Diary, Note, NoteCodec, Other, add, do, say

from ensue.core.errors import ConfigurationError
from ensue.protocols.interface import Frame, Send
from ensue.simulation import Constant, Crash, Faults, NetworkConfig, Pause, QueueConfig, World

NETWORK = NetworkConfig(default=Constant(0))


def size_of(frame: Frame) -> int:
    assert isinstance(frame, Note | Other)
    return len(frame.text)


def pair(config: QueueConfig) -> tuple[World, Diary]:
    world = World(1, network=NETWORK, disk=INSTANT, queueing=config)
    _, b = add(world, "a", "b")
    return world, b


def test_one_frame_at_a_time_in_order_of_arrival() -> None:
    world, b = pair(QueueConfig(service_ns=100))
    for at in (0, 10, 20, 500):
        say(world, "a", "b", f"{at}", at=at)
    world.run(1_000)
    assert b.received == [(100, "a", "0"), (200, "a", "10"), (300, "a", "20"), (600, "a", "500")]
    queue = world.queue("b")
    assert queue is not None
    assert queue.served == 4
    assert queue.waited_ns == 0 + 90 + 180 + 0
    assert queue.busy_ns == 400
    assert queue.length_max == 3
    assert queue.utilisation(1_000) == 0.4
    # By Little's law the sum of all times in the queue is the area under its length.
    assert queue.length_mean(1_000) == (100 + 190 + 280 + 100) / 1_000
    assert queue.wait_mean_ns() == 270 / 4


def test_cost_depends_on_type_size_and_the_frame_itself() -> None:
    config = QueueConfig(
        service_ns=100,
        service_ns_by_frame={"Other": 1_000},
        service_ns_per_byte=2.5,
        service_of=lambda node, frame: 7 if (node, size_of(frame)) == ("b", 4) else 0,
        size_of=size_of,
    )
    world, b = pair(config)
    do(world, "a", Send("b", Note(text="four")), Send("b", Other(text="ab")))
    world.run()
    assert b.times == [100 + 10 + 7, 117 + 1_000 + 5]


def test_waits_match_m_d_1_queue() -> None:
    service_ns, utilisation = 1_000, 0.7
    world, _ = pair(QueueConfig(service_ns=service_ns))
    random, at = Random(5), 0.0
    for _ in range(30_000):
        at += random.expovariate(utilisation / service_ns)
        say(world, "a", "b", "x", at=round(at))
    world.run()
    queue = world.queue("b")
    assert queue is not None
    wait_ns = utilisation * service_ns / (2 * (1 - utilisation))
    assert queue.wait_mean_ns() == pytest.approx(wait_ns, rel=0.05)
    assert queue.utilisation(world.now_ns) == pytest.approx(utilisation, rel=0.02)
    length = utilisation + utilisation**2 / (2 * (1 - utilisation))
    assert queue.length_mean(world.now_ns) == pytest.approx(length, rel=0.05)


def test_card_sends_one_frame_at_a_time_at_its_bandwidth() -> None:
    # 4 bytes take 4,000 ns at a million bytes a second.
    config = QueueConfig(bandwidth_bytes_per_s=1_000_000, size_of=size_of)
    world, b = pair(config)
    say(world, "a", "b", "four", "four", at=0)
    say(world, "a", "b", "ab", at=1_000)
    say(world, "a", "b", "x", at=50_000)
    world.run()
    assert b.times == [4_000, 8_000, 10_000, 51_000]
    card = world.card("a")
    assert card is not None
    assert card.busy_ns == 11_000
    assert card.waited_ns == 0 + 4_000 + 7_000 + 0
    assert card.length_max == 3
    assert card.served == 4


def test_mean_length_counts_frames_still_in_queue() -> None:
    """Ten frames of 1,000 ns at once: 10, 9, … 1 of them are in the queue, 5.5 on average."""
    world, _ = pair(QueueConfig(bandwidth_bytes_per_s=1_000_000, size_of=size_of))
    say(world, "a", "b", *"abcdefghij", at=0)
    world.run(10_000)
    card = world.card("a")
    assert card is not None
    assert card.length_mean(10_000) == 5.5
    assert card.length_mean(20_000) == 2.75
    # From 10,000 ns on the queue is empty; a window may begin later than the world.
    assert card.length_mean(5_000, now_ns=20_000) == 11

    world, _ = pair(QueueConfig(service_ns=1_000))
    world.inject(Faults(pauses=(Pause(node="b", from_ns=500, until_ns=50_000),)))
    say(world, "a", "b", *"ab", at=1_000)
    world.run(9_000)
    queue = world.queue("b")
    assert queue is not None
    assert queue.length_mean(9_000) == 2 * 8_000 / 9_000


def test_card_is_never_busier_than_elapsed_time() -> None:
    world, _ = pair(QueueConfig(bandwidth_bytes_per_s=1_000_000, size_of=size_of))
    say(world, "a", "b", *"abcdefghij", at=1_000)
    world.run(4_000)
    card = world.card("a")
    assert card is not None
    assert card.utilisation(4_000) == 0.75
    assert card.length_mean(4_000) == (10 + 9 + 8) / 4
    assert card.utilisation(11_000) == 10 / 11


def test_queue_rejects_times_before_its_last_change() -> None:
    world, _ = pair(QueueConfig(bandwidth_bytes_per_s=1_000_000, size_of=size_of))
    say(world, "a", "b", "x", at=5_000)
    world.run(6_000)
    card = world.card("a")
    assert card is not None
    with pytest.raises(ValueError, match="now_ns must be at least 5000, got 4000"):
        card.length_mean(4_000)


def test_time_on_card_is_rounded_up() -> None:
    world, b = pair(QueueConfig(bandwidth_bytes_per_s=300_000_000, size_of=size_of))
    say(world, "a", "b", "x")
    world.run()
    assert b.times == [4]


def test_each_node_has_its_own_card() -> None:
    config = QueueConfig(bandwidth_bytes_per_s=1_000_000, size_of=size_of)
    world = World(1, network=NETWORK, disk=INSTANT, queueing=config)
    _, _, c = add(world, "a", "b", "c")
    say(world, "a", "c", "four")
    say(world, "b", "c", "four")
    world.run()
    assert c.times == [4_000, 4_000]


def test_codec_gives_frame_size() -> None:
    codec = NoteCodec()
    size = len(codec.encode(Note(text="four")))
    world = World(
        1,
        network=NETWORK,
        disk=INSTANT,
        codec=codec,
        queueing=QueueConfig(bandwidth_bytes_per_s=1_000_000),
    )
    _, b = add(world, "a", "b")
    say(world, "a", "b", "four")
    world.run()
    assert b.received == [(size * 1_000, "a", "four")]


def test_full_queue_drops_and_counts() -> None:
    world, b = pair(QueueConfig(service_ns=100, frames_max=2))
    say(world, "a", "b", *"abcde")
    world.run()
    queue = world.queue("b")
    assert queue is not None
    assert b.texts == ["a", "b", "c"]
    assert queue.dropped == 2

    config = QueueConfig(bandwidth_bytes_per_s=1_000_000, size_of=size_of, sends_max=2)
    world, b = pair(config)
    say(world, "a", "b", *"abcde", at=0)
    say(world, "a", "b", "f", at=1_000)
    world.run()
    card = world.card("a")
    assert card is not None
    assert b.texts == ["a", "b", "f"]
    assert card.dropped == 3


def test_pause_stops_server_and_crash_empties_it() -> None:
    world, b = pair(QueueConfig(service_ns=100))
    say(world, "a", "b", "one", "two", at=0)
    say(world, "a", "b", "three", at=60)
    world.inject(Faults(pauses=(Pause(node="b", from_ns=50, until_ns=1_000),)))
    world.run()
    assert b.times == [1_000, 1_100, 1_200]

    world, b = pair(QueueConfig(service_ns=100))
    world.inject(Faults(pauses=(Pause(node="b", from_ns=0, until_ns=1_000),)))
    say(world, "a", "b", "one", at=10)
    world.run()
    assert b.times == [1_100]

    world, b = pair(QueueConfig(service_ns=100))
    say(world, "a", "b", "one", "two", "three", at=0)
    world.inject(Faults(crashes=(Crash(node="b", at_ns=150, restart_after_ns=0),)))
    say(world, "a", "b", "four", at=160)
    world.run()
    assert b.received == [(100, "a", "one"), (260, "a", "four")]


def test_without_queueing_there_are_no_statistics() -> None:
    world = World(1)
    add(world, "a")
    assert world.queue("a") is None
    assert world.card("a") is None


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: QueueConfig(service_ns=-1), r"QueueConfig\.service_ns"),
        (lambda: QueueConfig(service_ns_by_frame={"Note": -1}), r"service_ns_by_frame\[Note\]"),
        (lambda: QueueConfig(service_ns_per_byte=-1), r"service_ns_per_byte"),
        (lambda: QueueConfig(bandwidth_bytes_per_s=0), r"bandwidth_bytes_per_s"),
        (lambda: QueueConfig(frames_max=0), r"frames_max"),
    ],
)
def test_bad_value_is_rejected_with_field_name(make: object, field: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigurationError, match=field):
        make()
