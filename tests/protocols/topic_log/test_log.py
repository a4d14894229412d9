"""Topic logs: one event per slot, retained or not, sent to attached peers."""

from collections.abc import Mapping, Sequence
from random import Random

import msgspec
import pytest

from ensue.core.errors import ConfigurationError
from ensue.core.event import Event, Stamp
from ensue.core.wire import Codec
from ensue.protocols.interface import (
    Attach,
    Broadcast,
    Detach,
    Effect,
    Frame,
    Multicast,
    Persist,
    Send,
)
from ensue.protocols.topic_log.frames import (
    FRAMES,
    Accepted,
    Attached,
    AttachRequest,
    DetachRequest,
    Fetch,
    Fetched,
    Notify,
    Put,
    Surveyed,
    Taken,
    request_for,
)
from ensue.protocols.topic_log.log import TopicLog, TopicLogConfig
from ensue.protocols.topic_log.topic import WHOLE_PLACES

CODEC = Codec(FRAMES)


def event(slot: int | None, name: str = "e", *, topic: str = "t", void: bool = False) -> Event:
    return Event(
        topic=topic,
        payload=name.encode(),
        publisher=name,
        publisher_seq=1,
        stamp=None if slot is None else Stamp({topic: slot}),
        void=void,
    )


class Service:
    """A log, its records, and the frames it sends as pairs of peer and frame."""

    def __init__(self, config: TopicLogConfig | None = None) -> None:
        self.config = config or TopicLogConfig()
        self.disk: dict[str, bytes] = {}
        self.log = TopicLog(name="ens", config=self.config)

    def handle(self, frame: Frame, source: str) -> list[tuple[str, Frame]]:
        self.log.receive(frame, source=source, now_ns=0)
        effects: Sequence[Effect] = self.log.take_effects()
        for effect in effects:
            if isinstance(effect, Persist):
                if effect.value is None:
                    del self.disk[effect.key]
                else:
                    self.disk[effect.key] = effect.value
        sent: list[tuple[str, Frame]] = []
        for effect in effects:
            if isinstance(effect, Send):
                sent.append((effect.peer, effect.frame))
            elif isinstance(effect, Multicast):
                sent += ((peer, effect.frame) for peer in effect.peers)
        return sent

    def put(self, what: Event, source: str = "p") -> list[tuple[str, Frame]]:
        return self.handle(Put(event=what), source)

    def attach(self, source: str, from_slot: int = 0, topic: str = "t") -> list[tuple[str, Frame]]:
        return self.handle(AttachRequest(topic=topic, from_slot=from_slot), source)

    def restart(self) -> None:
        self.log = TopicLog(name="ens", config=self.config, records=dict(self.disk))


def accepted(what: Event, slot: int, to: str = "p") -> tuple[str, Frame]:
    return to, Accepted(topic=what.topic, event=what.id, slot=slot)


def taken(what: Event, slot: int, to: str = "p") -> tuple[str, Frame]:
    return to, Taken(topic=what.topic, event=what.id, slot=slot)


def attached(
    first: int, following: int, *, sent: int | None = None, to: str = "s", topic: str = "t"
) -> tuple[str, Frame]:
    """Return the answer to an attach; by default all events were sent with it."""
    sent = following if sent is None else sent
    return to, Attached(topic=topic, first=first, next=following, sent=sent)


def notice(what: Event, to: str = "s") -> tuple[str, Frame]:
    return to, Notify(event=what)


# -- Slots -----------------------------------------------------------------------------------------


def test_event_is_accepted_and_sent_to_attached_peers() -> None:
    service = Service()
    assert service.attach("s") == [attached(1, 1)]
    assert service.attach("r") == [attached(1, 1, to="r")]
    e = event(1)
    assert service.put(e) == [accepted(e, 1), notice(e), notice(e, to="r")]


def test_repeated_event_is_accepted_again_and_not_sent() -> None:
    service = Service()
    service.attach("s")
    e = event(1)
    service.put(e)
    assert service.put(e) == [accepted(e, 1)]


@pytest.mark.parametrize("keeps_log", [True, False])
def test_first_event_of_a_slot_stays_and_another_is_refused(keeps_log: bool) -> None:
    service = Service(TopicLogConfig(keeps_log=keeps_log))
    service.attach("s")
    service.put(event(1, "first"))
    second = event(1, "second")
    assert service.put(second, "q") == [taken(second, 1, to="q")]


@pytest.mark.parametrize("void_first", [True, False])
def test_a_void_and_its_original_compete_for_one_slot(void_first: bool) -> None:
    service = Service()
    original, void = event(1, "original"), event(1, "node", void=True)
    winner, loser = (void, original) if void_first else (original, void)
    service.put(winner)
    assert service.put(loser) == [taken(loser, 1)]
    assert service.put(winner) == [accepted(winner, 1)]


def test_void_with_the_same_id_is_another_event() -> None:
    service = Service()
    service.put(event(1, "x"))
    void = event(1, "x", void=True)
    assert service.put(void) == [taken(void, 1)]


def test_an_event_without_a_stamp_gets_the_next_free_slot() -> None:
    service = Service()
    service.put(event(4, "stamped"))
    e = event(None)
    assert service.put(e) == [accepted(e, 5)]


def test_an_event_without_a_stamp_gets_another_slot_each_time() -> None:
    service = Service()
    e = event(None)
    assert service.put(e) == [accepted(e, 1)]
    assert service.put(e) == [accepted(e, 2)]


def test_stamp_without_an_entry_for_its_own_topic_is_ignored() -> None:
    service = Service()
    service.attach("s")
    odd = Event(topic="t", payload=b"", publisher="p", publisher_seq=1, stamp=Stamp({"u": 1}))
    assert service.put(odd) == []


def test_slots_of_topics_are_independent() -> None:
    service = Service()
    service.attach("s", topic="t")
    e = event(1, topic="u")
    assert service.put(e) == [accepted(e, 1)]
    assert service.log.ends() == {"t": 0, "u": 1}


# -- Attaching -------------------------------------------------------------------------------------


def test_attaching_from_a_slot_sends_everything_from_there_on() -> None:
    service = Service()
    events = [event(slot, f"e{slot}") for slot in (1, 2, 3)]
    for each in events:
        service.put(each)
    assert service.attach("s", 2) == [notice(events[1]), notice(events[2]), attached(1, 4)]
    assert service.attach("r", 0) == [attached(1, 4, to="r")]


def test_empty_slot_is_skipped() -> None:
    service = Service()
    e = event(3)
    service.put(e)
    assert service.attach("s", 1) == [notice(e), attached(1, 4)]


def test_one_batch_is_sent_at_a_time() -> None:
    service = Service(TopicLogConfig(batch_max=2))
    for slot in range(1, 6):
        service.put(event(slot, f"e{slot}"))
    assert service.attach("s", 2) == [
        notice(event(2, "e2")),
        notice(event(3, "e3")),
        attached(1, 6, sent=4),
    ]
    assert service.attach("s", 5) == [notice(event(5, "e5")), attached(1, 6)]


@pytest.mark.parametrize(("limit", "sent"), [(0, 3), (1, 1), (2, 2), (9, 3)])
def test_no_more_events_are_sent_than_the_peer_wants(limit: int, sent: int) -> None:
    service = Service(TopicLogConfig(batch_max=3))
    for slot in range(1, 6):
        service.put(event(slot, f"e{slot}"))
    *events, answer = service.handle(AttachRequest(topic="t", from_slot=1, limit=limit), "s")
    assert [frame.event.slot for _, frame in events if isinstance(frame, Notify)] == [
        *range(1, sent + 1)
    ]
    assert answer == ("s", Attached(topic="t", first=1, next=6, sent=sent + 1))
    # It would have to hold new events back.
    assert service.put(event(6, "e6")) == [accepted(event(6, "e6"), 6)]


def test_detached_peer_gets_nothing() -> None:
    service = Service()
    service.attach("s")
    service.handle(DetachRequest(topic="t"), "s")
    service.handle(DetachRequest(topic="t"), "s")
    e = event(1)
    assert service.put(e) == [accepted(e, 1)]


def test_attaching_twice_sends_once() -> None:
    service = Service()
    service.attach("s")
    service.attach("s")
    assert len(service.put(event(1))) == 2


def test_without_a_log_events_are_not_retransmitted() -> None:
    service = Service(TopicLogConfig(keeps_log=False))
    service.put(event(1))
    assert service.attach("s", 1) == [attached(2, 2)]
    assert [each.payload for _, each in service.log.contents()] == [b""]


# -- Retention -------------------------------------------------------------------------------------


def test_beyond_retained_max_the_oldest_is_dropped_and_attach_reports_it() -> None:
    service = Service(TopicLogConfig(retained_max=2))
    events = [event(slot, f"e{slot}") for slot in range(1, 5)]
    for each in events:
        service.put(each)
    assert service.attach("s", 1) == [notice(events[2]), notice(events[3]), attached(3, 5)]
    assert set(service.disk) == {"event/3/t", "event/4/t", "first/t", "attached/1/t/s"}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("topic", ["t", "with/slash"])
def test_a_slot_that_was_dropped_stays_taken(topic: str, restarted: bool) -> None:
    service = Service(TopicLogConfig(retained_max=1))
    for slot in (1, 2, 3):
        service.put(event(slot, topic=topic))
    if restarted:
        service.restart()
    late = event(1, "late", topic=topic)
    assert service.put(late) == [taken(late, 1)]


def test_restarted_log_still_reports_dropped_slots() -> None:
    service = Service(TopicLogConfig(retained_max=2))
    events = [event(slot, f"e{slot}") for slot in range(1, 6)]
    for each in events:
        service.put(each)
    service.restart()
    assert service.attach("s", 1) == [notice(events[3]), notice(events[4]), attached(4, 6)]


# -- Restarts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["t", "with/slash", "1/t"])
def test_restarted_log_has_its_events_and_attached_peers(topic: str) -> None:
    service = Service()
    service.attach("a/peer", topic=topic)
    first = event(1, "first", topic=topic)
    service.put(first)
    service.restart()
    other = event(1, "other", topic=topic)
    assert service.put(other) == [taken(other, 1)]
    second = event(2, "second", topic=topic)
    assert service.put(second) == [accepted(second, 2), notice(second, to="a/peer")]
    assert service.attach("s", 1, topic) == [
        notice(first),
        notice(second),
        attached(1, 3, topic=topic),
    ]


def test_records_restore_the_same_state_in_any_order() -> None:
    service = Service(TopicLogConfig(retained_max=2))
    for peer in ("r", "s", "q"):
        service.attach(peer)
    for slot in range(1, 6):
        service.put(event(slot, f"e{slot}"))
    answers = []
    for keys in (sorted(service.disk), sorted(service.disk, reverse=True)):
        service.disk = {key: service.disk[key] for key in keys}
        service.restart()
        service.log.receive(Put(event=event(6, "e6")), source="p", now_ns=0)
        service.log.receive(AttachRequest(topic="t", from_slot=1), source="s", now_ns=0)
        answers.append(list(service.log.take_effects()))
    assert answers[0] == answers[1]


def test_detached_peer_stays_detached_after_a_restart() -> None:
    service = Service()
    service.attach("s")
    service.handle(DetachRequest(topic="t"), "s")
    service.restart()
    assert len(service.put(event(1))) == 1


def test_non_durable_log_persists_nothing() -> None:
    service = Service(TopicLogConfig(durable=False))
    service.attach("s")
    assert len(service.put(event(1))) == 2
    assert service.disk == {}


# -- Other behavior --------------------------------------------------------------------------------


def test_log_has_no_timer_and_ignores_stray_frames() -> None:
    service = Service()
    assert service.handle(Notify(event=event(1)), "s") == []
    service.log.handle_timer(now_ns=10)
    assert service.log.next_timer_ns() is None
    assert list(service.log.take_effects()) == []


def test_effects_for_a_topic_log_become_its_frames() -> None:
    e = event(1)
    assert request_for(Broadcast(e)) == Put(event=e)
    assert request_for(Attach("t", 3)) == AttachRequest(topic="t", from_slot=3)
    assert request_for(Detach("t")) == DetachRequest(topic="t")


@pytest.mark.parametrize("field", ["retained_max", "batch_max"])
def test_a_limit_below_one_is_refused_by_name(field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"TopicLogConfig.{field} must be at least 1"):
        TopicLogConfig(**{field: 0})  # type: ignore[arg-type]


# -- Surveys ------------------------------------------------------------------------


class Disk:
    """A store of events outside the log."""

    def __init__(self, records: Mapping[str, bytes]) -> None:
        self.slots: dict[str, dict[int, bytes]] = {}
        for key, value in records.items():
            self.put(key, value)

    def put(self, key: str, value: bytes) -> None:
        kind, slot, topic = key.split("/", 2) if key.startswith("event/") else ("", "", "")
        if kind:
            self.slots.setdefault(topic, {})[int(slot)] = value

    def event(self, topic: str, slot: int) -> bytes | None:
        return self.slots.get(topic, {}).get(slot)

    def bounds(self) -> Mapping[str, tuple[int, int]]:
        return {topic: (min(slots), max(slots) + 1) for topic, slots in self.slots.items()}


class Kept(Service):
    """A log whose events are in a store; few of them stay in memory."""

    def __init__(self, config: TopicLogConfig | None = None) -> None:
        super().__init__(config or TopicLogConfig(cached_max=4))
        self.restart()

    def handle(self, frame: Frame, source: str) -> list[tuple[str, Frame]]:
        sent = super().handle(frame, source)
        for key, value in self.disk.items():
            self.kept.put(key, value)
        # As they are received: what was forwarded is a notification like any other.
        return [(peer, CODEC.decode(CODEC.encode(each))) for peer, each in sent]

    def restart(self) -> None:
        self.kept = Disk(self.disk)
        records = {key: value for key, value in self.disk.items() if not key.startswith("event/")}
        self.log = TopicLog(name="ens", config=self.config, records=records, kept=self.kept)


def survey(
    service: Service, *patterns: str, topic: str = "*", start: int = 0
) -> dict[str, tuple[int, int]]:
    """Return all topics, page by page."""
    found: dict[str, tuple[int, int]] = {}
    while True:
        asked = Fetch(topic=topic, start=start, stop=0, survey=patterns or ("*",))
        ((peer, answer),) = service.handle(asked, "reader")
        assert peer == "reader"
        assert isinstance(answer, Surveyed)
        assert answer.start == start
        found |= answer.topics
        if answer.next >= answer.end:
            return found
        assert answer.next > start
        start = answer.next


@pytest.mark.parametrize("page", [1, 2, 100])
def test_survey_lists_topics_with_events(page: int) -> None:
    service = Service(TopicLogConfig(fetch_max=page))
    service.attach("s", topic="nothing yet")
    for topic, count in (("a", 3), ("b.c", 1), ("b.d.e", 2), ("bx", 1)):
        for slot in range(1, count + 1):
            service.put(event(slot, f"{topic}{slot}", topic=topic))
    every = {"a": (1, 4), "b.c": (1, 2), "b.d.e": (1, 3), "bx": (1, 2)}
    assert survey(service) == every
    assert survey(service, "b.*") == {"b.c": (1, 2), "b.d.e": (1, 3)}
    assert survey(service, "a", "b.c", "nowhere") == {"a": (1, 4), "b.c": (1, 2)}
    # What is asked for and what may be seen: both have to match.
    assert survey(service, "*", topic="b.*") == {"b.c": (1, 2), "b.d.e": (1, 3)}
    assert survey(service, "a", topic="b.*") == {}
    ((_, answer),) = service.handle(Fetch(topic="*", start=0, stop=0, survey=()), "s")
    assert isinstance(answer, Surveyed)
    assert answer.topics == {}
    assert survey(service, start=1_000) == {}


@pytest.mark.parametrize("kind", [Service, Kept])
def test_survey_ends_before_the_first_empty_slot(kind: type[Service]) -> None:
    for seed in range(40):
        draw = Random(seed)
        service = kind()
        waiting = list(range(1, 31))
        filled: set[int] = set()
        first = 1
        while waiting:
            slot = waiting.pop(draw.randrange(min(6, len(waiting))))
            if slot < first:
                continue
            service.put(event(slot, f"e{slot}"))
            filled.add(slot)
            if draw.random() < 0.2:
                service.restart()
            if draw.random() < 0.1:
                first = draw.randrange(first, max(filled) + 2)
                service.log.trim("t", first)
                service.handle(Notify(event=event(1)), "nobody")  # To have it persisted.
            expected = first
            while expected in filled:
                expected += 1
            assert survey(service) == {"t": (first, expected)}, seed


# -- Stamps that are made whole --------------------------------------------------------------------


@pytest.mark.parametrize(("ahead_max", "apart_max"), [(1, 8), (3, 40)])
def test_stamps_are_made_whole_periodically_if_a_store_keeps_events(
    ahead_max: int, apart_max: int
) -> None:
    for seed in range(20):
        draw = Random(seed)
        service = Kept(TopicLogConfig(cached_max=4, whole_every=8, gives_places=True))
        counts = {"t": 0, "u": 0, "v": 0}
        entries: dict[str, int] = {}
        stamped: list[tuple[Event, dict[str, int]]] = []
        for slot in range(1, 200):
            change = {"t": slot}
            for other in ("u", "v"):
                if draw.random() < 0.1:
                    counts[other] += 1
                    change[other] = counts[other]
            whole = slot == 1 or draw.random() < 0.01
            entries = {**entries, **change}
            stamp = Stamp(dict(entries), True) if whole else Stamp(change, False)
            each = Event(topic="t", payload=b"", publisher="p", publisher_seq=slot, stamp=stamp)
            stamped.append((each, dict(entries)))
        ahead = list(stamped)
        while ahead:
            each, _ = ahead.pop(draw.randrange(min(ahead_max, len(ahead))))
            service.put(each)
        known: dict[str, int] = {}
        since = 0
        for slot, (each, expected) in enumerate(stamped, 1):
            encoded = service.kept.event("t", slot)
            assert encoded is not None
            kept = msgspec.msgpack.decode(encoded, type=Event)
            assert kept.stamp is not None
            assert kept.id == each.id
            known = kept.stamp.entries if kept.stamp.whole else {**known, **kept.stamp.entries}
            assert known == expected, (seed, slot)
            since = 0 if kept.stamp.whole else since + 1
            # One that came out of turn can't be: that of the slot it waited for is, at the latest.
            assert since < apart_max, (seed, slot)


def test_stamps_stay_unchanged_if_all_events_are_in_memory() -> None:
    service = Service(TopicLogConfig(whole_every=2))
    for slot in range(1, 10):
        each = msgspec.structs.replace(event(slot, f"e{slot}"), stamp=Stamp({"t": slot}, slot == 1))
        service.put(each)
    assert [each.stamp.whole for _, each in service.log.contents() if each.stamp] == [
        slot == 1 for slot in range(1, 10)
    ]


def test_slow_topic_gets_a_whole_stamp_after_events_of_others() -> None:
    service = Kept(TopicLogConfig(cached_max=4, gives_places=True))
    service.put(event(1, "first", topic="slow"))
    for slot in range(1, WHOLE_PLACES):
        service.log.receive(Put(event=event(slot, f"e{slot}")), source="p", now_ns=0)
        service.log.take_effects()
    each = msgspec.structs.replace(
        event(2, "second", topic="slow"), stamp=Stamp({"slow": 2}, whole=False)
    )
    service.put(each)
    encoded = service.kept.event("slow", 2)
    assert encoded is not None
    assert msgspec.msgpack.decode(encoded, type=Event).stamp == Stamp({"slow": 2}, whole=True)


# -- Trimming and fetching -------------------------------------------------------------------------


def fetch(
    service: Service, start: int = 1, stop: int = 0, *, place: int = 0, topic: str = "t"
) -> Fetched:
    asked = Fetch(topic=topic, start=start, stop=stop, place=place)
    ((peer, answer),) = service.handle(asked, "reader")
    assert peer == "reader"
    assert isinstance(answer, Fetched)
    assert (answer.topic, answer.start) == (topic, start)
    return answer


def names(answer: Fetched) -> list[str]:
    return [each.payload.decode() for each in answer.events]


def filled(service: Service, count: int, *, topic: str = "t") -> list[str]:
    for slot in range(1, count + 1):
        service.put(event(slot, f"e{slot}", topic=topic))
    return [f"e{slot}" for slot in range(1, count + 1)]


def trim(service: Service, first: int, topic: str = "t") -> None:
    service.log.trim(topic, first)
    service.handle(Notify(event=event(1)), "nobody")  # To have it persisted.


@pytest.mark.parametrize("kind", [Service, Kept])
def test_fetch_returns_a_range_and_attaches_no_peer(kind: type[Service]) -> None:
    service = kind()
    every = filled(service, 9)
    assert names(fetch(service)) == every
    answer = fetch(service, 3, 6)
    assert (names(answer), answer.next, answer.end, answer.first) == (every[2:5], 6, 10, 1)
    assert names(fetch(service, 8, 100)) == every[7:]
    assert service.put(event(10)) == [accepted(event(10), 10)]


@pytest.mark.parametrize("kind", [Service, Kept])
def test_fetch_stops_before_an_empty_slot(kind: type[Service]) -> None:
    service = kind()
    for slot in (1, 2, 4, 5):
        service.put(event(slot, f"e{slot}"))
    answer = fetch(service)
    assert (names(answer), answer.next, answer.end) == (["e1", "e2"], 3, 6)
    stuck = fetch(service, 3)
    assert (names(stuck), stuck.next) == ([], 3)
    service.put(event(3, "e3"))
    assert names(fetch(service, 3)) == ["e3", "e4", "e5"]


def test_an_answer_is_bounded_by_events_and_by_bytes() -> None:
    service = Service(TopicLogConfig(fetch_max=4))
    filled(service, 10)
    assert [len(fetch(service, start).events) for start in (1, 5, 9)] == [4, 4, 2]
    heavy = Service(TopicLogConfig(batch_bytes_max=10_000))
    plain = msgspec.structs.replace(event(1), payload=bytes(4_000))
    for slot, large in enumerate(
        (
            plain,
            msgspec.structs.replace(plain, payload=b"", key=bytes(4_000)),
            msgspec.structs.replace(plain, payload=b"", headers={"h": "é" * 2_000}),
            msgspec.structs.replace(
                plain, payload=b"", stamp=Stamp({f"{number:0250}": 1 for number in range(16)})
            ),
            # One that is larger than all that is allowed goes alone, or nobody would ever get it.
            msgspec.structs.replace(plain, payload=bytes(20_000)),
            plain,
        ),
        1,
    ):
        assert large.stamp is not None
        stamp = Stamp({**large.stamp.entries, "t": slot})
        heavy.put(msgspec.structs.replace(large, stamp=stamp, publisher_seq=slot))
    start, pages = 1, []
    while (answer := fetch(heavy, start)).events:
        pages.append([each.slot for each in answer.events])
        assert len(pages[-1]) == 1 or len(msgspec.msgpack.encode(answer)) <= 10_000 + 64
        start = answer.next
    assert pages == [[1, 2], [3, 4], [5], [6]]


def test_an_answer_that_names_topics_is_bounded_by_bytes() -> None:
    service = Service(TopicLogConfig(batch_bytes_max=10_000))
    for number in range(100):
        service.put(event(1, topic=f"{number:0250}"))
    seen, start = 0, 0
    while start < 100:
        ((_, answer),) = service.handle(Fetch(topic="*", start=start, stop=0, survey=("*",)), "s")
        assert isinstance(answer, Surveyed)
        assert len(msgspec.msgpack.encode(answer)) <= 10_000 + 300
        seen, start = seen + len(answer.topics), answer.next
    assert seen == 100


def test_fetch_of_an_unused_topic_returns_nothing_and_creates_none() -> None:
    service = Service()
    answer = fetch(service, topic="nowhere")
    assert (answer.events, answer.first, answer.next, answer.end) == ((), 1, 1, 1)
    assert fetch(service, 50, topic="nowhere").next == 50
    assert service.log.ends() == {}


@pytest.mark.parametrize("kind", [Service, Kept])
def test_fetch_from_a_place_skips_earlier_events(kind: type[Service]) -> None:
    service = kind(TopicLogConfig(gives_places=True, cached_max=2))
    for slot in range(1, 11):
        service.put(event(slot, f"t{slot}"))  # Places 1, 3, 5, …
        service.put(event(slot, f"u{slot}", topic="u"))
    for place in range(1, 23):
        expected = [f"t{slot}" for slot in range(1, 11) if 2 * slot - 1 >= place]
        assert names(fetch(service, place=place)) == expected, place
    assert names(fetch(service, 8, place=3)) == ["t8", "t9", "t10"]


@pytest.mark.parametrize("kind", [Service, Kept])
def test_reader_from_the_middle_gets_a_whole_first_stamp(
    kind: type[Service],
) -> None:
    service = kind(TopicLogConfig(gives_places=True, cached_max=2))
    others: list[dict[str, int]] = [{"u": 1, "v": 1}, {}, {"u": 2}, {"w": 1}, {}, {}]
    for slot, entries in enumerate(others, 1):
        stamp = Stamp({"t": slot, **entries}, slot == 1)
        service.put(msgspec.structs.replace(event(slot, f"t{slot}"), stamp=stamp))
    whole = Stamp({"t": 5, "u": 2, "v": 1, "w": 1})
    assert [each.stamp for each in fetch(service, place=5).events] == [
        whole,
        Stamp({"t": 6}, False),
    ]
    # Whoever asks from a slot on has had the one before it.
    assert [each.stamp for each in fetch(service, 6).events] == [Stamp({"t": 6}, False)]
    trim(service, 3)
    assert [each.stamp for each in fetch(service, 3).events][:1] == [Stamp({"t": 3, "u": 2}, False)]
    assert [each.stamp for each in fetch(service, place=5).events][:1] == [Stamp({"t": 5}, False)]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("kind", [Service, Kept])
def test_trimmed_events_are_reported_to_every_reader(kind: type[Service], restarted: bool) -> None:
    service = kind()
    filled(service, 8)
    trim(service, 5)
    trim(service, 3)  # Never back.
    if restarted:
        service.restart()
    answer = fetch(service)
    assert (names(answer), answer.first, answer.next) == (["e5", "e6", "e7", "e8"], 5, 9)
    assert service.attach("s", 1)[-1] == attached(5, 9)
    assert service.log.bounds() == {"t": (5, 9)}
    late = event(2, "late")
    assert service.put(late) == [taken(late, 2)]


@pytest.mark.parametrize("kind", [Service, Kept])
def test_topic_trimmed_beyond_its_end_continues_there(kind: type[Service]) -> None:
    service = kind()
    filled(service, 3)
    trim(service, 10)
    assert fetch(service).next == 10
    assert service.log.bounds() == {"t": (10, 10)}
    e = event(10, "e10")
    assert service.put(e) == [accepted(e, 10)]
    assert names(fetch(service)) == ["e10"]


# -- Places, caches and listeners ------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Service, Kept])
def test_places_count_all_events_and_continue_after_a_restart(kind: type[Service]) -> None:
    service = kind(TopicLogConfig(gives_places=True, cached_max=2))
    service.attach("s", topic="t")
    service.attach("s", topic="u")
    places: list[int] = []
    counts = {"t": 0, "u": 0}
    for number in range(1, 31):
        topic = "ttu"[number % 3]
        counts[topic] += 1
        sent = service.put(event(counts[topic], f"e{number}", topic=topic))
        places += [frame.event.place for _, frame in sent if isinstance(frame, Notify)]
        if number % 7 == 0:
            service.restart()
    assert places == list(range(1, 31))
    kept = {each.payload.decode(): each.place for _, each in service.log.contents()}
    assert kept == {f"e{number}": number for number in range(1, 31)}


@pytest.mark.parametrize("kind", [Service, Kept])
def test_places_continue_after_a_restart_with_an_empty_log(
    kind: type[Service],
) -> None:
    service = kind(TopicLogConfig(gives_places=True))
    filled(service, 5)
    trim(service, 6)
    service.restart()
    service.attach("s")
    (notified,) = [frame for _, frame in service.put(event(6, "e6")) if isinstance(frame, Notify)]
    assert notified.event.place == 6


def test_a_repeated_or_refused_event_takes_no_place() -> None:
    service = Service(TopicLogConfig(gives_places=True))
    for each in (event(1, "a"), event(1, "a"), event(1, "b"), event(2, "c")):
        service.put(each)
    assert [each.place for _, each in service.log.contents()] == [1, 2]


def test_without_places_events_stay_unchanged() -> None:
    service = Service()
    filled(service, 3)
    assert [each.place for _, each in service.log.contents()] == [0, 0, 0]


def test_events_beyond_the_cache_are_read_from_the_store() -> None:
    service = Kept(TopicLogConfig(cached_max=2, batch_max=100))
    every = filled(service, 20)
    sent = service.attach("s", 1)
    assert [frame.event.payload.decode() for _, frame in sent if isinstance(frame, Notify)] == every
    # Whoever has the slot keeps it, however long ago it was given.
    again, other = event(1, "e1"), event(1, "other")
    assert service.put(again) == [accepted(again, 1)]
    assert service.put(other) == [taken(other, 1)]


@pytest.mark.parametrize("kind", [Service, Kept])
def test_lagging_peer_gets_no_new_events_until_it_caught_up(
    kind: type[Service],
) -> None:
    service = kind(TopicLogConfig(batch_max=2, cached_max=2))
    service.attach("s")
    filled(service, 5)
    assert service.attach("s", 1)[-1] == attached(1, 6, sent=3)
    assert service.put(event(6, "e6")) == [accepted(event(6, "e6"), 6)]
    assert service.attach("s", 3)[-1] == attached(1, 7, sent=5)
    assert service.attach("s", 5)[-1] == attached(1, 7)
    seventh = event(7, "e7")
    assert service.put(seventh) == [accepted(seventh, 7), notice(seventh)]


def test_event_for_many_peers_is_one_multicast_with_its_persisted_bytes() -> None:
    service = Service(TopicLogConfig(gives_places=True))
    for peer in ("r", "s"):
        service.attach(peer)
    service.log.receive(Put(event=event(1)), source="p", now_ns=0)
    effects = service.log.take_effects()
    (multicast,) = [each for each in effects if isinstance(each, Multicast)]
    (persist,) = [each for each in effects if isinstance(each, Persist)]
    assert (multicast.topic, multicast.peers) == ("t", ("r", "s"))
    assert persist.value is not None
    assert multicast.encoded.endswith(persist.value)
    assert msgspec.msgpack.decode(multicast.encoded, type=Notify) == multicast.frame


def test_without_a_log_the_event_is_sent_without_persisted_bytes() -> None:
    service = Service(TopicLogConfig(keeps_log=False))
    service.attach("s")
    service.log.receive(Put(event=event(1, "payload")), source="p", now_ns=0)
    (multicast,) = [e for e in service.log.take_effects() if isinstance(e, Multicast)]
    assert isinstance(multicast.frame, Notify)
    assert multicast.frame.event.payload == b"payload"
    assert not multicast.encoded


def test_listeners_beyond_the_limit_get_no_new_events_but_can_fetch() -> None:
    service = Service(TopicLogConfig(listeners_max=1))
    service.attach("s")
    service.attach("late")
    e = event(1)
    assert service.put(e) == [accepted(e, 1), notice(e)]
    assert service.attach("late", 1) == [notice(e, to="late"), attached(1, 2, to="late")]
    service.handle(DetachRequest(topic="t"), "s")
    service.attach("late", 2)
    second = event(2)
    assert service.put(second) == [accepted(second, 2), notice(second, to="late")]


def test_forgotten_peer_is_detached_from_all_topics() -> None:
    service = Service()
    for topic in ("t", "u"):
        service.attach("s", topic=topic)
        service.attach("r", topic=topic)
    service.log.forget("s")
    service.handle(Notify(event=event(1)), "nobody")
    service.restart()
    assert service.log.listeners() == {"t": ("r",), "u": ("r",)}
