"""Slot search: find the slots of events published before a restart."""

from ensue.core.event import Event
from ensue.protocols.topic_log import slot_search
from ensue.protocols.topic_log.slot_search import SLOTS_MAX, TOPICS_MAX, SlotSearch


class Log:
    """A topic's log whose reads are counted."""

    def __init__(self, *publishers: str) -> None:
        self.reads: list[int] = []
        self.events: dict[int, Event] = {}
        numbers: dict[str, int] = {}
        for slot, publisher in enumerate(publishers, 1):
            numbers[publisher] = numbers.get(publisher, 0) + 1
            self.events[slot] = event(publisher, numbers[publisher])

    def read(self, slot: int) -> Event | None:
        self.reads.append(slot)
        return self.events.get(slot)

    def find(self, search: SlotSearch, publisher: str, number: int, first: int = 1) -> int:
        end = max(self.events) + 1
        return search.find(event(publisher, number), first=first, end=end, read=self.read)


def event(publisher: str, number: int, topic: str = "t") -> Event:
    return Event(topic=topic, payload=b"", publisher=publisher, publisher_seq=number)


def test_every_slot_is_read_at_most_once() -> None:
    log, search = Log(*"abacab"), SlotSearch()
    assert [log.find(search, "a", number) for number in (3, 1, 2)] == [5, 1, 3]
    assert log.find(search, "b", 2) == 6
    assert log.find(search, "c", 1) == 4
    assert log.find(search, "b", 1) == 2
    assert log.reads == [6, 5, 4, 3, 2, 1]


def test_unknown_event_has_no_slot() -> None:
    log, search = Log(*"aab"), SlotSearch()
    assert log.find(search, "a", 3) == 0
    assert log.reads == [3, 2], "an earlier event of the same publisher ends the search"
    assert log.find(search, "stranger", 1) == 0
    assert log.find(search, "stranger", 1) == 0
    assert log.reads == [3, 2, 1]


def test_trimmed_empty_and_void_slots_are_skipped() -> None:
    log, search = Log(*"aaaa"), SlotSearch()
    del log.events[3]
    log.events[2] = Event(topic="t", payload=b"", publisher="s", publisher_seq=2, void=True)
    assert log.find(search, "a", 1, first=2) == 0
    assert log.reads == [4, 3, 2]


def test_the_search_is_limited() -> None:
    log, search = Log("a", *"b" * SLOTS_MAX), SlotSearch()
    assert log.find(search, "a", 1) == 0
    assert len(log.reads) == SLOTS_MAX
    for number in range(TOPICS_MAX + 1):
        topic = f"t-{number}"
        search.find(event("a", 1, topic), first=1, end=1, read=log.read)
    assert len(search._topics) == slot_search.TOPICS_MAX
