"""How much nodes send for what others lack: one peer at a time, no more than there is room for."""

from collections import Counter

import msgspec
import pytest
from tests.protocols.causal.harness import CALM, MS, QUIET, SECOND, Table

from ensue.core.event import Event
from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.frames import Counts, Fill, Item, NotCached, Summary
from ensue.protocols.causal.requests import _Request
from ensue.protocols.interface import Frame

LIVE = CausalConfig(suspect_ns=10 * SECOND, patience_ns=60 * SECOND)
GAP_NS = CALM.gap_ns
ME = 3
"""The node that lacks events."""
SOURCE = 0


def replace(config: CausalConfig, **fields: object) -> CausalConfig:
    return msgspec.structs.replace(config, **fields)


def wait_far_away(table: Table, number: int, delay_ns: int, times: int) -> None:
    """Advance the time while all frames to a node take so long."""
    for _ in range(times):
        table.slow = {(other, number) for other in range(len(table.names))}
        there = {link: len(table.links.get(link, ())) for link in sorted(table.slow)}
        table.wait(delay_ns)
        for link, count in there.items():
            for _ in range(count):
                table.arrive(*link)
    table.heal()


def given(table: Table, number: int) -> Counter[tuple[str, str, int]]:
    """Count how often each event was sent to a node that lacked it."""
    return Counter(
        (item.event.topic, item.event.publisher, item.event.publisher_seq)
        for _, target, frame in table.sent
        if target == number and isinstance(frame, Fill)
        for item in frame.items
    )


@pytest.mark.parametrize("held_max", [8, 65_536])
def test_events_that_take_long_are_not_sent_again_and_again(held_max: int) -> None:
    """Otherwise a link that is too slow for them carries nothing but copies."""
    table = Table(5, replace(LIVE, held_max=held_max))
    topics = ("t", "u", "v")
    for number in range(5):
        table.subscribe(number, *topics)
    table.wait(SECOND)
    table.isolate(4)
    for number in range(20):
        for topic in topics:
            for source in (0, 1):
                table.publish(source, f"{topic}/{source}/{number}", topic)
        table.wait(10 * MS)
    table.wait(15 * SECOND)
    table.heal()
    table.sent.clear()
    wait_far_away(table, 4, 2 * SECOND, 60)
    assert sorted(table.delivered[4]) == sorted(table.delivered[0])
    copies = given(table, 4)
    assert len(copies) == 120
    assert copies.total() < 2 * 120, copies.most_common(5)


# -- One node that lacks events ------------------------------------------------------------------


def lacking(config: CausalConfig = CALM) -> Table:
    """Return members of a topic, where nothing happens by itself."""
    table = Table(5, config)
    table.join_all(*range(5))
    table.sent.clear()
    return table


def hear(table: Table, peer: int, frame: Frame) -> None:
    table.nodes[ME].receive(frame, source=table.names[peer], now_ns=table.now_ns)
    table.drain(ME)


def offer(table: Table, peer: int, count: int) -> None:
    hear(table, peer, Summary(topic="t", have={SOURCE: count}, follows=False))


def pass_time(table: Table, duration_ns: int) -> None:
    """Advance the time of the node; nothing that it sends arrives."""
    table.now_ns += duration_ns
    now_ns = table.now_ns
    table.act(ME, lambda node: node.handle_timer(now_ns=now_ns))


def event(number: int, source: int = SOURCE, after: dict[str, Counts] | None = None) -> Item:
    made = Event(
        topic="t",
        payload=f"{source}/{number}".encode(),
        publisher=f"p{source}",
        publisher_seq=number,
        published_at_ns=0,
    )
    return Item(made, after or {})


def get(table: Table, *items: Item) -> None:
    """Get events that were not requested."""
    hear(table, SOURCE, Fill(topic="t", request=0, items=items, more=False))


def answer(table: Table, peer: int, first: int, last: int, *, more: bool) -> None:
    """Answer the last request with events of the source."""
    items = tuple(event(number) for number in range(first, last + 1))
    request = requests(table)[-1][1].request
    hear(table, peer, Fill(topic="t", request=request, items=items, more=more))


def requests(table: Table) -> list[tuple[int, Summary]]:
    """List the requests of the node, and whom it asked."""
    return [
        (target, frame)
        for source, target, frame in table.sent
        if source == ME and isinstance(frame, Summary) and frame.request
    ]


def asked(table: Table) -> list[int]:
    return [target for target, _ in requests(table)]


def test_only_one_of_the_peers_that_have_events_is_asked() -> None:
    table = lacking()
    for peer in (0, 1, 2):
        offer(table, peer, 5)
    assert asked(table) == [0]
    answer(table, 0, 1, 5, more=False)
    assert table.delivered[ME] == ["0/1", "0/2", "0/3", "0/4", "0/5"]
    pass_time(table, 10 * SECOND)
    assert asked(table) == [0], "nothing is missing any more"


def test_next_peer_is_asked_when_the_answer_is_overdue_and_waits_double() -> None:
    table = lacking(replace(CALM, digest_ns=QUIET))
    for peer in (0, 1, 2):
        offer(table, peer, 5)
    pass_time(table, GAP_NS - 1)
    assert asked(table) == [0]
    pass_time(table, 1)
    assert asked(table) == [0, 1]
    pass_time(table, 2 * GAP_NS - 1)
    assert asked(table) == [0, 1]
    pass_time(table, 1)
    assert asked(table) == [0, 1, 2]
    pass_time(table, 4 * GAP_NS)
    assert asked(table) == [0, 1, 2, 0]


def test_wait_follows_measured_answers() -> None:
    table = lacking()
    offer(table, 0, 1)
    table.now_ns += 3 * SECOND
    answer(table, 0, 1, 1, more=False)
    offer(table, 0, 9)
    offer(table, 1, 9)
    pass_time(table, 3 * SECOND)
    assert asked(table) == [0, 0]


def test_clock_that_is_set_measures_nothing() -> None:
    table = lacking()
    offer(table, 0, 1)
    table.now_ns += 70 * SECOND
    answer(table, 0, 1, 1, more=False)
    offer(table, 0, 9)
    pass_time(table, GAP_NS)
    assert asked(table) == [0, 0, 0]


def test_peer_that_never_answers_is_not_asked_for_ever() -> None:
    table = lacking()
    offer(table, 0, 5)
    for _ in range(60):
        pass_time(table, SECOND)
    rooms = [request.room for _, request in requests(table)]
    assert rooms == [CALM.batch_max] + 7 * [1], "the answer to the first may be under way"
    offer(table, 0, 5)
    assert len(asked(table)) == 9, "it is there"


def test_peer_that_has_nothing_new_is_not_asked_for_ever() -> None:
    table = lacking()
    offer(table, 0, 5)
    answer(table, 0, 1, 0, more=True)
    pass_time(table, 10 * SECOND)
    assert asked(table) == [0]


def test_duplicate_answer_does_not_double_requests() -> None:
    """Otherwise every duplicate doubles the frames in flight."""
    table = lacking()
    offer(table, 0, 9)
    request = requests(table)[-1][1].request
    answer(table, 0, 1, 3, more=True)
    for _ in range(5):
        hear(table, 0, Fill(topic="t", request=request, items=(), more=True))
    assert asked(table) == [0, 0]


def test_request_says_how_much_room_there_is() -> None:
    table = lacking(replace(CALM, held_max=8))
    table.act(ME, lambda node: node.pause())
    offer(table, 0, 20)
    answer(table, 0, 1, 3, more=True)
    assert [request.room for _, request in requests(table)] == [8, 5]
    answer(table, 0, 4, 7, more=True)
    pass_time(table, 10 * SECOND)
    assert len(requests(table)) == 2, "one is free: not worth a request"
    now_ns = table.now_ns
    table.act(ME, lambda node: node.resume(now_ns=now_ns))
    assert [request.room for _, request in requests(table)] == [8, 5, 8]


def test_requests_under_way_take_room() -> None:
    table = lacking(replace(CALM, held_max=8))
    hear(table, 1, Summary(topic="t", have={SOURCE: 8}, follows=False))
    hear(table, 2, Summary(topic="t", have={4: 8}, follows=False))
    assert asked(table) == [1], "there may be no room for what the other sends"
    answer(table, 1, 1, 8, more=False)
    assert asked(table) == [1, 2]


def test_silent_peer_does_not_keep_the_room_from_others() -> None:
    table = lacking(replace(CALM, held_max=1))
    hear(table, 1, Summary(topic="t", have={SOURCE: 8}, follows=False))
    hear(table, 2, Summary(topic="t", have={4: 8}, follows=False))
    assert asked(table) == [1]
    pass_time(table, GAP_NS)
    assert asked(table) == [1, 2]


def test_peer_that_was_away_is_asked_as_if_it_had_never_been_silent() -> None:
    table = lacking()
    offer(table, 0, 1)
    answer(table, 0, 1, 1, more=False)
    offer(table, 0, 5)
    for _ in range(4):
        pass_time(table, SECOND)
    detector = table.nodes[ME]._detector
    detector.ask(0, table.now_ns)
    table.now_ns += CALM.suspect_ns
    assert detector.away(0, table.now_ns)
    table.sent.clear()
    offer(table, 0, 5)
    assert [request.room for _, request in requests(table)] == [CALM.batch_max]
    pass_time(table, GAP_NS)
    assert asked(table) == [0, 0]


# -- Gaps ----------------------------------------------------------------------------------------


def test_gap_is_filled_without_further_waits() -> None:
    table = lacking()
    get(table, event(9))
    pass_time(table, GAP_NS)
    answer(table, 0, 1, 4, more=True)
    assert asked(table) == [0, 0]
    answer(table, 0, 5, 8, more=False)
    assert len(table.delivered[ME]) == 9
    pass_time(table, 10 * SECOND)
    assert asked(table) == [0, 0]


def test_gap_leads_to_no_request_while_an_answer_is_under_way() -> None:
    table = lacking()
    offer(table, 0, 9)
    pass_time(table, GAP_NS // 2)
    get(table, event(9))
    pass_time(table, GAP_NS // 2)
    assert asked(table) == [0, 0]
    pass_time(table, GAP_NS)
    assert asked(table) == [0, 0]


def test_next_peer_is_asked_for_a_gap_once_the_first_has_no_answer_to_it() -> None:
    table = lacking()
    offer(table, 0, 1)
    table.now_ns += 3 * SECOND
    answer(table, 0, 1, 1, more=False)
    get(table, event(9))
    pass_time(table, GAP_NS)
    assert asked(table) == [0, 0]
    pass_time(table, GAP_NS)
    assert asked(table) == [0, 0]
    answer(table, 0, 1, 0, more=False)
    pass_time(table, GAP_NS)
    assert len(asked(table)) == 3
    assert asked(table)[2] != 0


def test_answer_that_is_overdue_is_not_forgotten_when_another_peer_has_none() -> None:
    """Else its events would be sent again as often as others answer that they lack them."""
    table = lacking()
    get(table, event(9))
    pass_time(table, GAP_NS)
    for _ in range(20):
        pass_time(table, GAP_NS)
        if asked(table)[-1] != 0:
            answer(table, asked(table)[-1], 1, 0, more=False)
    assert asked(table).count(0) > 1
    rooms = [request.room for target, request in requests(table) if target == 0]
    assert set(rooms[1:]) == {1}


def test_nothing_is_requested_that_there_is_no_room_for() -> None:
    """The node would drop it, and request it again, and so on."""
    table = lacking(replace(CALM, held_max=2))
    table.act(ME, lambda node: node.pause())
    get(table, event(1), event(2), event(1, 4, {"t": {SOURCE: 3}}))
    for _ in range(10):
        pass_time(table, SECOND)
    assert asked(table) == []
    now_ns = table.now_ns
    table.act(ME, lambda node: node.resume(now_ns=now_ns))
    pass_time(table, 2 * SECOND)
    assert asked(table) == [0]


def test_offer_outlasts_an_answer_that_there_was_no_room_for() -> None:
    """A search asks even so, to learn whether the peer has more."""
    table = lacking(replace(CALM, held_max=2))
    table.act(ME, lambda node: node.pause())
    get(table, event(1), event(2))
    offer(table, 1, 5)
    hear(table, 2, NotCached(topic="t", source=SOURCE, up_to=3))
    assert [(target, frame.room) for target, frame in requests(table)] == [(0, 0), (1, 0)]
    answer(table, 1, 1, 0, more=True)
    now_ns = table.now_ns
    table.act(ME, lambda node: node.resume(now_ns=now_ns))
    assert [(target, frame.room) for target, frame in requests(table)[2:]] == [(1, 2)]


def test_old_requests_are_not_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    table = lacking()
    made = table.nodes[ME]._repair._requests
    for _ in range(100):
        made.probe("t", 0, SOURCE, table.now_ns)
    table.now_ns += 60 * SECOND
    made.probe("t", 0, SOURCE, table.now_ns)
    looked_at: list[int] = []

    def waits(request: _Request, _now_ns: int) -> bool:
        looked_at.append(request.room)
        return True

    monkeypatch.setattr(made, "_waits", waits)
    assert len(list(made._under_way("t", table.now_ns))) == 1
    assert len(looked_at) == 1


# -- Nodes that are asked ------------------------------------------------------------------------


def test_request_is_answered_with_no_more_than_there_is_room_for() -> None:
    table = lacking()
    for number in range(10):
        table.publish(0, str(number))
    table.sent.clear()
    request = Summary(topic="t", have={}, follows=True, request=7, only=(0,), room=4)
    table.nodes[0].receive(request, source="p4", now_ns=0)
    table.drain(0)
    ((_, _, fill),) = table.sent
    assert isinstance(fill, Fill)
    assert (fill.request, len(fill.items), fill.more) == (7, 4, True)


def test_answer_has_events_after_their_predecessors() -> None:
    """A node with little room would have to drop those that come too early."""
    table = lacking()
    for number in range(5):
        for source in (2, 0, 1):
            table.publish(source, f"{number}/{source}")
            table.run()
    table.sent.clear()
    request = Summary(topic="t", have={}, follows=True, request=1, only=(0, 1, 2), room=12)
    table.nodes[0].receive(request, source="p4", now_ns=0)
    table.drain(0)
    ((_, _, fill),) = table.sent
    assert isinstance(fill, Fill)
    texts = [item.event.payload.decode() for item in fill.items]
    assert texts == table.delivered[0][:12]


def test_offer_does_not_answer_an_offer() -> None:
    """Two nodes that each have what the other lacks would send each other offers for ever."""
    table = lacking(replace(CALM, digest_ns=1))
    table.publish(ME, "mine")
    pass_time(table, SECOND)
    table.sent.clear()
    offer(table, 1, 5)
    assert [frame for _, _, frame in table.sent] == [requests(table)[0][1]]
