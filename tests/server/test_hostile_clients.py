"""A station against clients that request too much, without a network."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ensue import orders
from ensue.core.errors import limit_in
from ensue.core.event import COUNT_MAX, Event, Stamp
from ensue.core.wire import Codec
from ensue.protocols.interface import Effect, Frame, Persist, Send
from ensue.protocols.shared.link import Linked
from ensue.protocols.shared.state_store import (
    Dismiss,
    NotKept,
    Recall,
    Recalled,
    Remember,
    Remembered,
    StateStore,
    StateStoreConfig,
)
from ensue.protocols.topic_log.frames import (
    Accepted,
    Attached,
    AttachRequest,
    DetachRequest,
    Fetch,
    Fetched,
    Notify,
    Put,
    Surveyed,
    TopicLogConfig,
)
from ensue.protocols.topic_log.topic import Topic
from ensue.protocols.total import sequencer
from ensue.protocols.total.config import SequencerConfig
from ensue.protocols.total.frames import Changed, ChangeFill, ChangeRequest, Fill, OrderRequest, Out
from ensue.protocols.total.groups import Groups
from ensue.protocols.total.placement import Placement
from ensue.protocols.total.slots import decode_session
from ensue.protocols.total.station import UNNUMBERED, Station, StationConfig
from ensue.protocols.total.status import StatusReply, StatusRequest
from ensue.server import station_builder

SECOND_NS = 1_000_000_000


class Rig:
    """A station, and its persisted records."""

    def __init__(
        self, nodes: Sequence[str] = ("s1",), *, attachments_max: int = 1_000_000, **options: Any
    ) -> None:
        self.nodes = nodes
        self.attachments_max = attachments_max
        self.options = options
        self.records: dict[str, bytes] = {}
        self.now_ns = 0
        self.station = self._build()

    def ask(self, source: str, *frames: Frame) -> list[Frame]:
        """Pass in frames together; return the answers."""
        for frame in frames:
            self.station.receive(frame, source=source, now_ns=self.now_ns)
        return self._sent(self.station.take_effects())

    def wait(self, seconds: float) -> list[Frame]:
        """Advance the time, and fire timers that are due."""
        until_ns = self.now_ns + int(seconds * SECOND_NS)
        while (due_ns := self.station.next_timer_ns()) is not None and due_ns <= until_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.station.handle_timer(now_ns=self.now_ns)
        self.now_ns = until_ns
        return self._sent(self.station.take_effects())

    def restart(self) -> None:
        """Restart from the persisted records."""
        self.station = self._build()

    def publish(self, source: str, topic: str, size: int, number: int) -> None:
        """Publish an event."""
        event = Event(topic=topic, payload=bytes(size), publisher=source, publisher_seq=number)
        request = OrderRequest(number=number, events=(event,), settled=number)
        assert isinstance(self.ask(source, request)[-1], Out)

    def _sent(self, effects: Sequence[Effect]) -> list[Frame]:
        for effect in effects:
            if isinstance(effect, Persist):
                if effect.value is None:
                    self.records.pop(effect.key, None)
                else:
                    self.records[effect.key] = effect.value
        return [effect.frame for effect in effects if isinstance(effect, Send)]

    def _build(self) -> Station:
        return Station(
            name="s1",
            placement=Placement(self.nodes),
            config=SequencerConfig(carries=True, **self.options),
            station_config=StationConfig(expire_ns=60 * SECOND_NS),
            topic_log_config=TopicLogConfig(
                gives_places=True,
                burst_bytes_max=10_000,
                attachments_max=self.attachments_max,
            ),
            records=self.records,
            now_ns=self.now_ns,
        )


def stamped(topic: str, slot: int, *, publisher: str = "c~1", void: bool = False) -> Put:
    stamp = Stamp({topic: slot})
    return Put(
        event=Event(
            topic=topic, payload=b"", publisher=publisher, publisher_seq=1, stamp=stamp, void=void
        )
    )


# -- Slots -----------------------------------------------------------------------------------------


def test_event_gets_only_an_assigned_slot() -> None:
    rig = Rig()
    unstamped = Put(event=Event(topic="x", payload=b"", publisher="c~1", publisher_seq=1))
    for put in (unstamped, stamped("x", 0), stamped("x", 1), stamped("x", COUNT_MAX)):
        assert rig.ask("c~1", put) == []
    assert rig.ask("c~1", Put(event=stamped("y", 1).event)) == []
    rig.publish("h~1", "x", 1, 1)
    rig.publish("h~1", "x", 1, 2)
    assert rig.station.log.ends() == {"x": 2}
    assert rig.ask("c~1", stamped("x", 3)) == []
    # Only servers send voids, and only its publisher sends an event.
    assert rig.ask("c~1", stamped("x", 1, void=True)) == []
    assert rig.ask("c~1", stamped("x", 1, publisher="h~1")) == []


def test_slot_of_another_server_is_rejected() -> None:
    rig = Rig(("s1", "s2"))
    topic = next(f"t{n}" for n in range(100) if rig.station.placement.node(f"t{n}") == "s2")
    assert rig.ask("c~1", stamped(topic, 1)) == []
    assert topic not in rig.station.log.ends()


# -- Answers ---------------------------------------------------------------------------------------


def test_simultaneous_fetches_are_answered_up_to_a_limit() -> None:
    rig = Rig()
    for number in range(1, 31):
        rig.publish("h~1", "x", 1_000, number)
    asked = [AttachRequest(topic="x", from_slot=1)] * 50
    answers = rig.ask("c~1", *asked)
    assert sum(len(each.event.payload) for each in answers if isinstance(each, Notify)) <= 11_000
    assert sum(isinstance(each, Attached) for each in answers) == 50
    fetches = rig.ask("c~1", *([Fetch(topic="x", start=1, stop=0)] * 50))
    assert (
        sum(len(e.payload) for f in fetches if isinstance(f, Fetched) for e in f.events) <= 11_000
    )
    got: list[int] = []
    start = 1
    while start <= 30:
        (answer,) = rig.ask("c~1", Fetch(topic="x", start=start, stop=0))
        assert isinstance(answer, Fetched)
        got += [event.publisher_seq for event in answer.events]
        start = answer.next
    assert got == list(range(1, 31))


def test_same_limit_applies_to_a_server_with_neighbors() -> None:
    rig = Rig()
    for number in range(1, 31):
        rig.publish("h~1", "x", 1_000, number)
    linked = Linked(
        lambda _own: rig.station,
        peers=["s2"],
        codec=Codec(orders.wire_frames()),
        unnumbered=UNNUMBERED,
    )
    for _ in range(50):
        linked.receive(AttachRequest(topic="x", from_slot=1), source="c~1", now_ns=0)
    sent = [each.frame for each in linked.take_effects() if isinstance(each, Send)]
    assert sum(len(each.event.payload) for each in sent if isinstance(each, Notify)) <= 11_000
    assert sum(isinstance(each, Attached) for each in sent) == 50


def test_simultaneous_surveys_are_answered_up_to_the_same_limit() -> None:
    rig = Rig()
    for number in range(1, 101):
        rig.publish("h~1", f"t{number}", 1, number)
    survey = Fetch(topic="*", start=0, stop=0, survey=("*",))
    answers = rig.ask("c~1", *([survey] * 20))
    topic_counts = [len(each.topics) for each in answers if isinstance(each, Surveyed)]
    assert topic_counts[0] == 100
    assert len(topic_counts) == 20
    assert sum(topic_counts) < 10_000 // 32
    (again,) = rig.ask("c~1", survey)
    assert isinstance(again, Surveyed)
    assert len(again.topics) == 100


def test_repeated_change_is_answered_once() -> None:
    rig = Rig()
    change = ChangeRequest(number=1, old=(), new=("x", "y"))
    assert rig.ask("c~1", *([change] * 100)) == [Changed(number=1, cut={"x": 0, "y": 0})]
    assert rig.ask("c~1", change) == [Changed(number=1, cut={"x": 0, "y": 0})]


def test_repeated_status_requests_are_answered_once() -> None:
    rig = Rig()
    rig.station.on_status_request = lambda look, _now: StatusReply(
        number=look.number, state=b"{}", bounds={}
    )
    looks = [StatusRequest(number=number) for number in range(1, 101)]
    assert [each for each in rig.ask("c~1", *looks) if isinstance(each, StatusReply)] == [
        StatusReply(number=1, state=b"{}", bounds={})
    ]
    both = rig.ask("c~1", StatusRequest(number=101)) + rig.ask("c~2", StatusRequest(number=1))
    assert len(both) == 2


@pytest.mark.parametrize("nodes", [("s1",), ("s1", "s2")], ids=["put out", "passed on"])
def test_output_at_once_is_bounded_and_a_retry_gets_the_rest(
    nodes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequencer, "BATCH_BYTES_MAX", 100_000)
    rig = Rig(nodes)
    placed = rig.station.placement
    names = [f"{number:03}{'x' * 200}" for number in range(60)]
    own = [name for name in names if placed.node(name) == "s1"]
    if len(nodes) > 1:
        # Grouped with a topic of the next server, which completes the stamps.
        names = [*own, next(name for name in names if placed.node(name) == "s2")]
    rig.ask("r~1", ChangeRequest(number=1, old=(), new=tuple(names)))
    events = [
        Event(topic=own[n % len(own)], payload=b"", publisher="c~1", publisher_seq=n + 1)
        for n in range(300)
    ]
    settled = 1
    for _ in range(100):
        request = OrderRequest(number=settled, events=tuple(events[settled - 1 :]), settled=settled)
        before = dict(rig.records)
        passed = [each for each in rig.ask("c~1", request) if isinstance(each, Fill)]
        fresh = [rig.records[key] for key in rig.records if key not in before]
        stamps = [topic for each in passed for topic in each.stamp.entries]
        assert sum(map(len, (*fresh, *stamps))) < 200_000
        known, _ = decode_session(rig.records["publisher/c~1"])
        assert known > settled
        settled = known
        if settled == 301:
            break
    assert sum(map(rig.station.node.count, own)) == 300


def test_requests_beyond_the_window_are_not_ordered() -> None:
    rig = Rig(window=4)
    rig.publish("c~1", "x", 1, 10)
    # A lower `settled` would require remembering the answers to all later requests.
    events = [
        Event(topic="x", payload=b"", publisher="c~1", publisher_seq=n) for n in range(11, 19)
    ]
    assert rig.ask("c~1", OrderRequest(number=11, events=tuple(events), settled=1)) == []
    assert rig.station.log.ends() == {"x": 1}


# -- Retained state --------------------------------------------------------------------------------


def test_claimed_old_topics_are_not_stored() -> None:
    rig = Rig()
    for number in range(1, 20):
        had = tuple(f"t{number}.{n}" for n in range(50))
        assert rig.ask("c~1", ChangeRequest(number=number, old=had, new=()))
    assert rig.station.node.state.counters.by_topic == {}


def test_attaching_and_detaching_leaves_nothing_behind() -> None:
    rig = Rig()
    for number in range(100):
        rig.ask("c~1", AttachRequest(topic=f"t{number}", from_slot=0))
        rig.ask("c~1", DetachRequest(topic=f"t{number}"))
    assert rig.station.log.ends() == {}
    assert rig.records == {}
    rig.publish("h~1", "x", 1, 1)
    rig.ask("c~1", AttachRequest(topic="x", from_slot=0), DetachRequest(topic="x"))
    assert rig.station.log.ends() == {"x": 1}


def test_vanished_listener_is_forgotten_across_restarts() -> None:
    for restarted in (False, True):
        rig = Rig()
        rig.ask("c~1", AttachRequest(topic="x", from_slot=0), AttachRequest(topic="y", from_slot=0))
        if restarted:
            rig.restart()
        assert rig.station.log.listeners() == {"x": ("c~1",), "y": ("c~1",)}
        rig.wait(61)
        assert rig.station.log.listeners() == {}
        assert rig.records == {}


class Unlooked(dict[str, Topic]):
    """Topics that can't be iterated over."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("somebody looks at all of them")

    items = keys = values = __iter__  # type: ignore[assignment]


def test_forgetting_a_listener_scans_only_its_topics() -> None:
    rig = Rig()
    rig.ask("c~1", AttachRequest(topic="x", from_slot=0), AttachRequest(topic="y", from_slot=0))
    rig.ask("c~2", AttachRequest(topic="y", from_slot=0))
    log = rig.station.log
    log._topics = Unlooked(log._topics)
    log.forget("c~1")
    log.forget("nobody~1")
    log._topics = dict(dict.items(log._topics))
    assert log.listeners() == {"y": ("c~2",)}


def test_dropped_events_are_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    for number in range(1, 31):
        rig.publish("h~1", f"t{number % 10}", 1, number)
    with caplog.at_level(logging.INFO, logger="ensue"):
        station_builder._trim(
            rig.station, {f"t{number}": 3 for number in range(10)}, rig.station, 0
        )
    assert [each.message for each in caplog.records] == ["events dropped events=20 topics=10"]
    assert set(rig.station.log.bounds().values()) == {(3, 4)}


def test_silent_durable_name_gets_nothing_new() -> None:
    for restarted in (False, True):
        rig = Rig()
        rig.publish("h~1", "x", 1, 1)
        rig.ask("desk", *(AttachRequest(topic=topic, from_slot=0) for topic in ("x", "y", "z")))
        if restarted:
            rig.restart()
        rig.wait(40)
        rig.ask("desk", AttachRequest(topic="x", from_slot=2))
        rig.wait(40)
        assert set(rig.station.log.listeners()) == {"x", "y", "z"}
        rig.wait(61)
        assert rig.station.log.listeners() == {"x": ()}
        assert not any(key.startswith("attached/") for key in rig.records)
        rig.publish("h~1", "x", 1, 2)
        # It can still attach, and gets what it missed.
        notified, attached = rig.ask("desk", AttachRequest(topic="x", from_slot=2))
        assert isinstance(notified, Notify)
        assert isinstance(attached, Attached)
        assert rig.station.log.listeners() == {"x": ("desk",)}


def test_listeners_are_limited_and_others_have_to_fetch() -> None:
    rig = Rig(attachments_max=3)
    for number in range(10):
        answer = rig.ask("c~1", AttachRequest(topic=f"t{number}", from_slot=0))
        assert answer == [Attached(topic=f"t{number}", first=1, next=1, sent=1)]
    assert list(rig.station.log.listeners()) == ["t0", "t1", "t2"]
    rig.restart()
    rig.ask("c~2", AttachRequest(topic="t0", from_slot=0))
    assert rig.station.log.listeners()["t0"] == ("c~1",)
    rig.publish("h~1", "t9", 1, 1)
    notified, _ = rig.ask("c~1", AttachRequest(topic="t9", from_slot=1))
    assert isinstance(notified, Notify)
    rig.ask("c~1", DetachRequest(topic="t0"), AttachRequest(topic="t9", from_slot=2))
    assert rig.station.log.listeners() == {"t1": ("c~1",), "t2": ("c~1",), "t9": ("c~1",)}


def test_pairs_of_topics_are_limited_and_leaving_is_allowed() -> None:
    rig = Rig(pairs_max=1000)
    topics = tuple(f"t{n}" for n in range(30))
    assert isinstance(rig.ask("c~1", ChangeRequest(number=1, old=(), new=topics))[0], Changed)
    assert rig.station.node.groups.pairs == 30 * 29
    others = tuple(f"u{n}" for n in range(30))
    refused = rig.ask("c~2", ChangeRequest(number=1, old=(), new=others))
    reasons = [one.reason for one in refused]  # type: ignore[attr-defined]
    assert [limit_in(reason) for reason in reasons] == [("pairs_max", 1000)]
    fewer = ChangeRequest(number=2, old=topics, new=topics[:25])
    assert isinstance(rig.ask("c~1", fewer)[0], Changed)
    assert isinstance(rig.ask("c~1", ChangeRequest(number=3, old=topics[:25], new=()))[0], Changed)
    assert rig.station.node.groups.pairs == 0
    assert isinstance(rig.ask("c~2", ChangeRequest(number=2, old=(), new=others))[0], Changed)


def test_group_size_is_limited_and_leaving_is_allowed() -> None:
    rig = Rig(group_max=4)
    for number, reader in enumerate(("c~1", "c~2", "c~3"), 1):
        change = ChangeRequest(number=1, old=(), new=("hub", f"t{number}"))
        assert isinstance(rig.ask(reader, change)[0], Changed)
    change = ChangeRequest(number=1, old=(), new=("hub", "t4"))
    refused = rig.ask("c~4", change)
    reasons = [one.reason for one in refused]  # type: ignore[attr-defined]
    assert [limit_in(reason) for reason in reasons] == [("group_max", 4)]
    assert isinstance(
        rig.ask("c~1", ChangeRequest(number=2, old=("hub", "t1"), new=()))[0], Changed
    )
    change = ChangeRequest(number=2, old=(), new=("hub", "t4"))
    assert isinstance(rig.ask("c~4", change)[0], Changed)


def test_pairs_shared_by_subscriptions_are_counted_once() -> None:
    groups = Groups(1)
    groups.replace("a", ("x", "y", "z"))
    groups.replace("b", ("y", "z", "w"))
    groups.replace("c", ("x",))
    assert groups.pairs == sum(len(shared) for shared in groups._shared.values())
    for name in ("a", "b", "c"):
        groups.replace(name, ())
    assert groups.pairs == 0


def test_change_that_a_neighbor_rejects_changes_nothing() -> None:
    rig = Rig(("s0", "s1", "s2"))
    place = rig.station.placement
    high = next(f"t{n}" for n in range(100) if place.node(f"t{n}") == "s2")
    for fill in (
        ChangeFill(subscriber="c~1", number=1, old=(), new=(high,), entries={}, last=1),
        ChangeFill(subscriber="c~1", number=1, old=(), new=(), entries={}, last=1),
        ChangeFill(subscriber="c~1", number=1, old=(), new=(high,), entries={}, last=9),
    ):
        assert rig.ask("s0", fill) == []
    assert rig.station.node.subscribers() == {}


# -- The state store -------------------------------------------------------------------------------


def ask(store: StateStore, source: str, *frames: Frame) -> list[Frame]:
    for frame in frames:
        store.receive(frame, source=source, now_ns=0)
    return [effect.frame for effect in store.take_effects() if isinstance(effect, Send)]


def test_repeated_recalls_are_answered_once_for_the_last_one() -> None:
    store = StateStore(name="k")
    answers = ask(store, "c", *(Recall(number=number) for number in range(1, 101)))
    assert answers == [Recalled(number=100, epoch=100, records={})]
    both = ask(store, "c", Recall(number=101)) + ask(store, "d", Recall(number=1))
    assert len(both) == 2


def remember(number: int, *writes: tuple[str, bytes | None]) -> Remember:
    return Remember(epoch=1, number=number, writes=writes)


def test_bytes_per_name_are_limited_and_may_always_shrink() -> None:
    store = StateStore(name="k", config=StateStoreConfig(bytes_max=100))
    ask(store, "c", Recall(number=1))
    kept = Remembered(epoch=1, number=1)
    assert ask(store, "c", remember(1, ("a", bytes(60)))) == [kept]
    what = "the records of the durable subscription are too many or too large"
    refused = NotKept(epoch=1, reason=f"{what} (limit bytes_max=100): give it fewer topics")
    assert ask(store, "c", remember(2, ("b", bytes(60)))) == [refused]
    # Writing a key again replaces its value, also twice in one change.
    again = remember(2, ("a", bytes(90)), ("a", bytes(99)))
    assert ask(store, "c", again) == [Remembered(epoch=1, number=2)]
    assert ask(store, "c", remember(3, ("a", None))) == [Remembered(epoch=1, number=3)]
    assert ask(store, "c", remember(4, ("b", bytes(99)))) == [Remembered(epoch=1, number=4)]
    assert ask(store, "c", remember(5, ("k" * 200, b""))) == [refused]


def test_bytes_of_all_names_are_limited_across_restarts() -> None:
    records: dict[str, bytes] = {}
    config = StateStoreConfig(all_bytes_max=100)

    def answers_to(store: StateStore, source: str, *frames: Frame) -> list[Frame]:
        for frame in frames:
            store.receive(frame, source=source, now_ns=0)
        answers = []
        for effect in store.take_effects():
            if isinstance(effect, Send):
                answers.append(effect.frame)
            elif isinstance(effect, Persist):
                if effect.value is None:
                    records.pop(effect.key, None)
                else:
                    records[effect.key] = effect.value
        return answers

    store = StateStore(name="k", config=config)
    for name in ("c", "d"):
        answers_to(store, name, Recall(number=1))
    assert answers_to(store, "c", remember(1, ("a", bytes(70)))) == [Remembered(epoch=1, number=1)]
    what = "the records of durable subscriptions are too large (limit all_bytes_max=100)"
    refused = [NotKept(epoch=1, reason=f"{what}: forget some with events.forget()")]
    assert answers_to(store, "d", remember(1, ("a", bytes(70)))) == refused
    store = StateStore(name="k", config=config, records=records)
    assert answers_to(store, "d", remember(1, ("a", bytes(70)))) == refused
    answers_to(store, "c", Dismiss(epoch=1))
    assert answers_to(store, "d", remember(1, ("a", bytes(70)))) == [Remembered(epoch=1, number=1)]


def test_put_is_accepted_for_an_assigned_empty_slot() -> None:
    rig = Rig(("s1", "s2"))
    place = rig.station.placement
    low = next(f"t{n}" for n in range(100) if place.node(f"t{n}") == "s1")
    high = next(f"t{n}" for n in range(100) if place.node(f"t{n}") == "s2")
    # Grouped with a topic of the next server, which assigns the stamp.
    rig.ask("r~1", ChangeRequest(number=1, old=(), new=(low, high)))
    event = Event(topic=low, payload=b"", publisher="c~1", publisher_seq=1)
    rig.ask("c~1", OrderRequest(number=1, events=(event,), settled=1))
    assert rig.station.node.count(low) == 1
    assert rig.ask("d~1", stamped(low, 1, publisher="d~1")) != []
    rig = Rig(("s1", "s2"))
    rig.ask("r~1", ChangeRequest(number=1, old=(), new=(low, high)))
    rig.ask("c~1", OrderRequest(number=1, events=(event,), settled=1))
    put = stamped(low, 1)
    assert rig.ask("c~1", put) == [Accepted(topic=low, event=put.event.id, slot=1)]
