"""What a node keeps for others: the latest, and all of its own that is not out yet."""

import msgspec
from tests.protocols.hypercube.harness import SECOND, Table

from ensue.event import Event
from ensue.protocols.hypercube.config import HypercubeConfig
from ensue.protocols.hypercube.frames import Item
from ensue.protocols.hypercube.store import Key, Store

ITEM = Item(Event(topic="t", payload=b"", publisher="p", publisher_seq=1, published_at_ns=0))


def test_all_that_was_not_out_before_a_crash_goes_out_after_it_however_much_it_is() -> None:
    table = Table(2, msgspec.structs.replace(HypercubeConfig(), retained_max=3))
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


def test_what_is_kept_because_it_is_not_out_is_not_searched_through() -> None:
    asked: list[Key] = []
    out = 0

    def is_needed(key: Key) -> bool:
        asked.append(key)
        return key[2] > out

    store = Store(10, is_needed)
    for number in range(1, 1001):
        store.add(("t", 0, number), ITEM, now_ns=0)
    assert len(store) == 1000
    assert all(store.get(("t", 0, number)) for number in range(1, 1001))
    assert len(asked) <= 3 * 1000
    out = 2000
    for number in range(1001, 1601):
        store.add(("t", 0, number), ITEM, now_ns=0)
    assert len(store) == 10
    assert sorted(key[2] for key in store.dropped) == list(range(1, 1591))
