"""The event cache: the latest events, and all unsettled ones of the node."""

import msgspec
from tests.protocols.causal.harness import SECOND, Table

from ensue.core.event import Event
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.event_cache import EventCache, Key
from ensue.protocols.causal.frames import Item

ITEM = Item(Event(topic="t", payload=b"", publisher="p", publisher_seq=1, published_at_ns=0))


def test_all_unsettled_events_are_sent_after_a_crash_whatever_their_number() -> None:
    table = Table(2, msgspec.structs.replace(CausalConfig(), retained_max=3))
    table.join_all(1)
    table.isolate(1)
    said = [str(number) for number in range(10)]
    for text in said:
        table.publish(0, text)
    table.wait(SECOND)
    table.crash(0)
    table.heal()
    table.start(0)
    table.wait(10 * SECOND)
    assert table.delivered[1] == said
    assert table.nodes[0].unsettled_count == 0


def test_eviction_does_not_scan_unsettled_events() -> None:
    asked: list[Key] = []
    out = 0

    def is_needed(key: Key) -> bool:
        asked.append(key)
        return key[2] > out

    cache = EventCache(10, is_needed)
    for number in range(1, 1001):
        cache.add(("t", 0, number), ITEM, now_ns=0)
    assert len(cache) == 1000
    assert all(cache.get(("t", 0, number)) for number in range(1, 1001))
    assert len(asked) <= 3 * 1000
    out = 2000
    for number in range(1001, 1601):
        cache.add(("t", 0, number), ITEM, now_ns=0)
    assert len(cache) == 10
    assert sorted(key[2] for key in cache.dropped) == list(range(1, 1591))
