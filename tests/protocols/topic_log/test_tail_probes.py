"""Tail probes: the end of a silent topic is sent a few times, and no more."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ensue.core.errors import ConfigurationError
from ensue.core.event import Event, Stamp
from ensue.protocols.interface import Multicast
from ensue.protocols.topic_log.frames import (
    AttachRequest,
    DetachRequest,
    LogEnd,
    Put,
    TopicLogConfig,
    topic_of,
)
from ensue.protocols.topic_log.log import TopicLog
from ensue.protocols.topic_log.tail_probes import PROBES, SILENT_MAX, TailProbes

MS = 1_000_000
PROBE_NS = 25 * MS


class Service:
    """A log with two listeners of topic `t`, and the ends that it sends."""

    def __init__(self, *, keeps_log: bool = True, probe_ns: int = PROBE_NS) -> None:
        config = TopicLogConfig(keeps_log=keeps_log, probe_ns=probe_ns)
        self.log = TopicLog(name="ens", config=config)
        for listener in ("r", "s"):
            self.log.receive(AttachRequest(topic="t", from_slot=0), source=listener, now_ns=0)
        self.slots: dict[str, int] = {}

    def put(self, now_ns: int, topic: str = "t") -> None:
        slot = self.slots[topic] = self.slots.get(topic, 0) + 1
        stamp = Stamp({topic: slot})
        event = Event(topic=topic, payload=b"", publisher="p", publisher_seq=slot, stamp=stamp)
        self.log.receive(Put(event=event), source="p", now_ns=now_ns)
        self.log.take_effects()

    def detach(self, listener: str) -> None:
        self.log.receive(DetachRequest(topic="t"), source=listener, now_ns=0)
        self.log.take_effects()

    def run(self, until_ns: int) -> list[tuple[int, LogEnd, tuple[str, ...]]]:
        """Run the timers; return when each end was sent, and to which listeners."""
        sent = []
        while (due_ns := self.log.next_timer_ns()) is not None and due_ns <= until_ns:
            self.log.handle_timer(now_ns=due_ns)
            for effect in self.log.take_effects():
                assert isinstance(effect, Multicast)
                assert isinstance(effect.frame, LogEnd)
                sent.append((due_ns, effect.frame, tuple(effect.peers)))
        return sent


def test_listeners_get_the_end_of_a_silent_topic_ever_less_often() -> None:
    service = Service()
    service.put(1000 * MS)
    assert service.run(10_000 * MS) == [
        (1025 * MS, LogEnd(topic="t", next=2, silent_ns=25 * MS), ("r", "s")),
        (1075 * MS, LogEnd(topic="t", next=2, silent_ns=75 * MS), ("r", "s")),
    ]


def test_events_that_follow_each_other_need_no_probe() -> None:
    service = Service()
    for count in range(20):
        assert service.run(24 * MS * count) == []
        service.put(24 * MS * count)
    assert [when for when, *_ in service.run(10_000 * MS)] == [
        24 * MS * 19 + 25 * MS,
        24 * MS * 19 + 75 * MS,
    ]


def test_event_after_the_first_probe_starts_anew() -> None:
    service = Service()
    service.put(0)
    service.run(25 * MS)
    service.put(30 * MS)
    assert [when // MS for when, *_ in service.run(10_000 * MS)] == [55, 105]


def test_only_listeners_that_are_attached_are_probed() -> None:
    service = Service()
    service.put(0)
    service.detach("r")
    assert [peers for _, _, peers in service.run(25 * MS)] == [("s",)]
    service.detach("s")
    assert service.run(10_000 * MS) == []


@pytest.mark.parametrize("options", [{"keeps_log": False}, {"probe_ns": 0}])
def test_log_that_need_not_or_can_not_send_again_never_probes(options: dict[str, int]) -> None:
    service = Service(**options)  # type: ignore[arg-type]
    service.put(0)
    assert service.log.next_timer_ns() is None


def test_clock_that_was_set_back_delays_no_probe() -> None:
    service = Service()
    service.put(1_000_000 * MS)
    service.log.handle_timer(now_ns=1000 * MS)
    (effect,) = service.log.take_effects()
    assert isinstance(effect, Multicast)
    assert effect.frame == LogEnd(topic="t", next=2, silent_ns=0)
    assert service.log.next_timer_ns() == 1075 * MS


def test_end_of_a_topic_is_multicast_on_that_topic() -> None:
    assert topic_of(LogEnd(topic="t", next=2, silent_ns=0)) == "t"


def test_wait_below_nothing_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"probe_ns must be at least 0 \(no probes\), got -1"
    ):
        TopicLogConfig(probe_ns=-1)


@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 200)), min_size=1, max_size=40))
def test_each_silence_is_probed_in_time_and_at_most_so_often(
    events: Sequence[tuple[str, int]],
) -> None:
    probes, now_ns = TailProbes(probe_ns=PROBE_NS), 0
    last: dict[str, int] = {}
    sent: dict[str, list[int]] = {}

    def run(until_ns: int) -> None:
        while (due_ns := probes.next_timer_ns()) is not None and due_ns <= until_ns:
            for topic, silent_ns in probes.take_due(due_ns):
                assert due_ns - last[topic] == silent_ns
                sent[topic].append(silent_ns)

    for topic, pause_ms in events:
        now_ns += pause_ms * MS
        run(now_ns)
        probes.published(topic, now_ns)
        # What was sent for the event before: all that was due, and nothing more.
        if topic in last:
            silence_ns = now_ns - last[topic]
            assert sent[topic] == [each for each in _WAITS if each <= silence_ns]
        last[topic], sent[topic] = now_ns, []
    run(now_ns + 10_000 * MS)
    assert all(each == _WAITS for each in sent.values())
    assert probes.next_timer_ns() is None


_WAITS = [PROBE_NS * (2**number - 1) for number in range(1, PROBES + 1)]


def test_no_more_topics_than_the_limit_have_probes_to_come() -> None:
    probes = TailProbes(probe_ns=PROBE_NS)
    for number in range(SILENT_MAX + 5):
        probes.published(f"t{number}", 0)
    assert len(probes.take_due(PROBE_NS)) == SILENT_MAX
    probes.published("one more", PROBE_NS)
    assert len(probes.take_due(3 * PROBE_NS)) == SILENT_MAX
    probes.published("one more", 3 * PROBE_NS)
    assert probes.take_due(4 * PROBE_NS) == [("one more", PROBE_NS)]
