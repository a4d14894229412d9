"""Lost events: nodes skip them after a while, and order holds without them."""

import msgspec
import pytest
from tests.protocols.causal.harness import MS, SECOND, Table

from ensue.protocols.causal.config import CausalConfig
from ensue.protocols.causal.frames import Change, Fill, NotCached, Publication, Receipt
from ensue.protocols.interface import Frame, Join

LIVE = CausalConfig(across_topics=False, patience_ns=5 * SECOND)
CONFIGS = [LIVE, msgspec.structs.replace(LIVE, across_topics=True)]
PATIENCE = LIVE.patience_ns + 15 * SECOND


def live(config: CausalConfig, count: int, *members: int) -> Table:
    table = Table(count, config)
    for number in members:
        table.subscribe(number)
    table.wait(10 * MS)
    return table


def missed(table: Table, number: int) -> list[tuple[int, int]]:
    return [one.missed for one in table.outcomes[number] if isinstance(one, Join) and one.missed]


def lost_question(config: CausalConfig, *survivors: int) -> Table:
    """Return a table whose survivors hold an answer; both publishers have crashed."""
    table = live(config, 6, 1, *survivors)
    table.cut = {(0, number) for number in survivors}
    table.publish(0, "question")
    table.run()
    assert table.delivered[1] == ["question"]
    table.crash(0)
    table.publish(1, "answer")
    table.run()
    table.crash(1)
    table.heal()
    table.sent.clear()
    assert all(table.nodes[number].held_count == 1 for number in survivors)
    return table


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
@pytest.mark.parametrize("survivors", [(2,), (2, 3), (2, 3, 4, 5)])
def test_answer_is_delivered_although_its_question_is_lost(
    config: CausalConfig, survivors: tuple[int, ...]
) -> None:
    table = lost_question(config, *survivors)
    table.wait(PATIENCE)
    for number in survivors:
        assert table.delivered[number] == ["answer"], number
        assert missed(table, number) == [(1, 1)], number
        assert table.nodes[number].held_count == 0


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
def test_later_events_of_a_source_are_delivered_although_its_first_is_lost(
    config: CausalConfig,
) -> None:
    table = live(config, 4, 2, 3)
    table.cut = {(0, 2), (0, 3)}
    table.publish(0, "1")
    table.publish(0, "2")
    table.run()
    table.heal()
    table.publish(0, "3")
    table.run()
    table.crash(0)
    table.wait(PATIENCE)
    for number in (2, 3):
        assert table.delivered[number] == ["3"], number
        assert missed(table, number) == [(1, 2)], number


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
def test_departed_source_is_skipped_like_a_crashed_one(config: CausalConfig) -> None:
    table = live(config, 4, 1, 2)
    table.cut = {(0, 2)}
    table.publish(0, "question")
    table.run()
    table.publish(1, "answer")
    table.run()
    for gone in (0, 1):
        table.crash(gone)
        for number in (2, 3):
            table.nodes[number].dismiss(f"p{gone}", now_ns=table.now_ns)
            table.drain(number)
    table.wait(PATIENCE)
    assert table.delivered[2] == ["answer"]


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
def test_no_event_of_reachable_nodes_is_lost_during_recovery(config: CausalConfig) -> None:
    """They publish all the time, and their events are in flight while a question is skipped."""
    table = lost_question(config, 2, 3)
    for number in range(200):
        table.publish(3, str(number))
        table.slow = {(3, 2)} if number % 4 else set()
        table.wait(100 * MS)
    table.heal()
    table.wait(5 * SECOND)
    said = [str(number) for number in range(200)]
    for number in (2, 3):
        assert [each for each in table.delivered[number] if each != "answer"] == said
        assert "answer" in table.delivered[number]
        assert missed(table, number) == [(1, 1)]


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
def test_earlier_event_of_an_unreachable_node_is_skipped(
    config: CausalConfig,
) -> None:
    """`first` precedes the question; only the unreachable node has it."""
    table = live(config, 4, *range(4))
    table.cut = {(2, 3)}
    table.publish(2, "first")
    table.run()
    table.crash(2)
    table.cut = {(0, 3)}
    table.publish(0, "question")
    table.run()
    table.crash(0)
    table.publish(1, "answer")
    table.run()
    table.crash(1)
    table.heal()
    assert table.delivered[3] == []
    table.wait(PATIENCE)
    assert table.delivered[3] == ["answer"]
    assert missed(table, 3) == [(1, 1)]
    table.start(2)
    table.wait(10 * SECOND)
    assert missed(table, 3) == [(1, 1), (1, 1)], "the question, and now the first"
    table.publish(2, "last")
    table.wait(10 * SECOND)
    assert table.delivered[3] == ["answer", "last"]


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
def test_node_that_returns_during_recovery_sends_the_event(config: CausalConfig) -> None:
    table = lost_question(config, 2, 3)
    table.wait(config.patience_ns - 200 * MS)
    table.start(0)
    table.wait(PATIENCE)
    for number in (2, 3):
        assert table.delivered[number] == ["question", "answer"]
        assert missed(table, number) == []


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
def test_no_event_is_skipped_for_lack_of_room(config: CausalConfig) -> None:
    """A node that delivers nothing for a while still has its held events."""
    table = live(config, 4, 2, 3)
    table.nodes[2].pause()
    for number in range(5):
        table.publish(0, str(number))
    table.wait(SECOND)
    table.crash(0)
    table.wait(3 * PATIENCE)
    table.act(2, lambda node: node.resume(now_ns=table.now_ns))
    table.wait(SECOND)
    assert table.delivered[2] == table.delivered[3] == ["0", "1", "2", "3", "4"]
    assert missed(table, 2) == []


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
def test_no_event_received_during_a_pause_is_skipped(config: CausalConfig) -> None:
    table = lost_question(config, 2, 3)
    table.nodes[2].pause()
    for number in range(5):
        table.publish(3, str(number))
        table.wait(PATIENCE)
    table.act(2, lambda node: node.resume(now_ns=table.now_ns))
    table.wait(PATIENCE)
    assert sorted(table.delivered[2]) == ["0", "1", "2", "3", "4", "answer"]
    assert missed(table, 2) == [(1, 1)]


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
def test_events_published_before_the_skip_are_delivered_first(config: CausalConfig) -> None:
    """Their answers report their progress, and overtake the events they have just published."""
    table, said = about_to_skip(config)
    table.heal()
    table.wait(SECOND)
    assert table.delivered[2] == [*said, "answer"]


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
def test_event_that_arrives_late_is_not_skipped(config: CausalConfig) -> None:
    table, said = about_to_skip(config)
    table.start(0)
    table.wait(500 * MS)
    assert "question" in table.delivered[2]
    table.heal()
    table.wait(PATIENCE)
    assert sorted(table.delivered[2]) == sorted(["question", "answer", *said])
    assert missed(table, 2) == []


def about_to_skip(config: CausalConfig) -> tuple[Table, list[str]]:
    """Return a table whose node 2 waits for events of 3 before it skips a question."""
    table = lost_question(config, 2, 3)
    said: list[str] = []
    while not (asked := any(_asks(frame) for _, _, frame in table.sent)):
        table.slow = {(3, 2)}
        said.append(str(len(said)))
        table.publish(3, said[-1])
        table.wait(20 * MS)
        for place, frame in reversed(list(enumerate(table.links.get((3, 2), ())))):
            if isinstance(frame, NotCached):
                table.arrive(3, 2, index=place)
        table.wait(0)
        if not (asked := any(_asks(frame) for _, _, frame in table.sent)):
            table.heal()
            table.wait(0)
    assert asked
    way = table.links[3, 2]
    (receipt,) = [place for place, frame in enumerate(way) if isinstance(frame, Receipt)]
    assert any(isinstance(frame, Publication) for frame in way[:receipt])
    table.arrive(3, 2, index=receipt)
    assert "answer" not in table.delivered[2], "the lost question may come after what is on its way"
    return table, said


def _asks(frame: Frame) -> bool:
    return isinstance(frame, Change) and frame.joins == ("t",) and frame.row.node == 2


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
def test_node_away_beyond_retention_of_several_sources_resumes_soon(
    config: CausalConfig,
) -> None:
    """Events that no node caches are not waited for as if a node might return with them."""
    patient = msgspec.structs.replace(config, retained_max=4, patience_ns=3600 * SECOND)
    table = live(patient, 4, *range(3))
    table.isolate(2)
    for number in range(10):
        for source in (0, 1, 3):
            table.publish(source, f"{source}/{number}")
            table.wait(200 * MS)
    table.heal()
    table.wait(15 * SECOND)
    for source in (0, 1, 3):
        table.publish(source, f"{source}/last")
        table.wait(SECOND)
    assert table.delivered[2][-3:] == ["0/last", "1/last", "3/last"]
    assert missed(table, 2)


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
def test_pending_loss_does_not_delay_other_losses(config: CausalConfig) -> None:
    """Node 3 holds an answer of 1, and learns first that later events of 1 are not cached."""
    table = live(config, 4, 1, 2, 3)
    table.cut = {(0, 2), (0, 3)}
    table.publish(0, "question")
    table.run()
    table.crash(0)
    table.publish(1, "answer")
    table.run()
    table.heal()
    assert table.nodes[3].held_count == 1
    not_kept = NotCached(topic="t", source=1, up_to=5)
    table.nodes[3].receive(not_kept, source="p2", now_ns=table.now_ns)
    table.nodes[1].unsubscribe(("t",), now_ns=table.now_ns)
    del table.nodes[1]._cache._items["t", 0, 1]
    table.drain(1)
    table.wait(PATIENCE)
    assert table.delivered[3] == ["answer"]


class Leaky(Table):
    """Loses `Fill` frames while it leaks."""

    leaks = False

    def drain(self, number: int) -> None:
        super().drain(number)
        for link, way in list(self.links.items()) if self.leaks else ():
            way[:] = [frame for frame in way if not isinstance(frame, Fill)]
            if not way:
                del self.links[link]


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
def test_cached_event_is_not_skipped_because_a_new_member_lacks_it(
    config: CausalConfig,
) -> None:
    table = Leaky(4, config)
    table.join_all(0, 1, 2)
    table.isolate(1)
    said = [str(number) for number in range(5)]
    for text in said:
        table.publish(0, text)
        table.wait(300 * MS)
    table.subscribe(3)
    table.wait(2 * SECOND)
    table.heal()
    table.leaks = True
    table.wait(4 * SECOND)
    assert any(isinstance(frame, NotCached) and frame.up_to == 5 for _, _, frame in table.sent)
    table.leaks = False
    table.wait(5 * SECOND)
    assert table.delivered[1] == said
    assert missed(table, 1) == []


def test_only_events_that_no_node_caches_are_skipped() -> None:
    """Node 0 caches fewer events than 3, and the returning node learns of both."""
    table = live(LIVE, 4, *range(4))
    table.isolate(1)
    said = [str(number) for number in range(10)]
    for text in said:
        table.publish(2, text)
        table.wait(300 * MS)
    for number, kept in ((0, 3), (2, 1), (3, 6)):
        for sent in range(1, 11 - kept):
            del table.nodes[number]._cache._items["t", 2, sent]
    table.heal()
    table.wait(5 * SECOND)
    assert table.delivered[1] == said[4:]
    assert missed(table, 1) == [(1, 4)]


@pytest.mark.parametrize("source", [3, 4])
def test_false_not_cached_answers_skip_no_reachable_source(
    source: int,
) -> None:
    table = live(LIVE, 4, 2, 3)
    lie = NotCached(topic="t", source=source, up_to=10**9)
    table.sent.clear()
    table.nodes[2].receive(lie, source="p0", now_ns=table.now_ns)
    table.drain(2)
    table.wait(PATIENCE)
    assert sum(_asks(frame) for _, _, frame in table.sent) <= 3, "a copy for each other"
    if source == 4:
        for number in range(4):
            table.nodes[number].admit("p4", now_ns=table.now_ns)
        table.names.append("p4")
        table.disks[4], table.delivered[4], table.outcomes[4] = {}, [], []
        table.start(4)
        table.wait(2 * SECOND)
    table.publish(source, "m")
    table.wait(SECOND)
    assert table.delivered[2] == ["m"]
    assert missed(table, 2) == []


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
def test_leaving_a_topic_ends_its_recovery(config: CausalConfig) -> None:
    table = lost_question(config, 2, 3)
    table.wait(config.patience_ns - 200 * MS)
    table.unsubscribe(2)
    table.wait(PATIENCE)
    assert table.delivered[2] == []
    table.subscribe(2)
    table.wait(SECOND)
    table.publish(3, "new")
    table.wait(SECOND)
    assert table.delivered[2] == ["new"]
    assert table.delivered[3] == ["answer", "new"]


ACROSS = CONFIGS[1]
WATCHED = ("t", "u")
"""The topics of a reader that was away."""


@pytest.mark.parametrize("departed", [False, True], ids=["crashed", "departed"])
def test_event_that_waits_for_another_topic_is_not_skipped(*, departed: bool) -> None:
    """A reader returns. `kept` follows a lost event; `other` waits for one that u has lost.

    If the source of t has departed, its loss is certain long before that of u.
    """
    reader, keeper, first, second = range(4)
    table = Table(4, ACROSS)
    table.subscribe(reader, *WATCHED)
    table.subscribe(keeper)
    table.wait(SECOND)
    table.isolate(reader)
    table.publish(first, "lost in t")
    table.publish(first, "kept")
    table.publish(second, "lost in u", "u")
    table.publish(second, "other")
    table.wait(5 * SECOND)
    assert sorted(table.delivered[keeper]) == ["kept", "lost in t", "other"]
    forget(table, keeper, ("t", first, 1))
    table.crash(first)
    table.crash(second)
    for number in (reader, keeper) if departed else ():
        table.act(number, lambda node: node.dismiss(f"p{first}", now_ns=table.now_ns))
    table.heal()
    table.wait(PATIENCE)
    assert sorted(table.delivered[reader]) == ["kept", "other"]
    assert missed(table, reader) == [(1, 1), (1, 1)], "the first event of each source"


def test_of_two_losses_that_wait_for_each_other_one_costs_more_events() -> None:
    """It waits no longer than for losses in one topic."""
    table = skipped_one_of_two()
    assert len(table.delivered[0]) == 1
    assert len(missed(table, 0)) == 3


def test_event_that_was_skipped_with_a_lost_one_is_kept_for_others() -> None:
    """The last node returns. It has the lost events, and can deliver what follows them."""
    table = skipped_one_of_two()
    for number in (1, 2):
        table.crash(number)
    table.heal()
    table.wait(PATIENCE)
    assert sorted(table.delivered[5]) == ["late t", "late u", "lost in t", "lost in u"]


def skipped_one_of_two() -> Table:
    """Return a table whose node 0 returned. It has skipped one of two events, and got the other.

    `late t` waited for the loss in u, and `late u` for the loss in t.
    """
    reader, keeper, other, first, second, last = range(6)
    table = Table(6, ACROSS)
    present = (reader, keeper, other, last)
    for number in present:
        table.subscribe(number, *WATCHED)
    table.wait(SECOND)
    table.isolate(reader)
    apart = [(keeper, second), (keeper, other), (other, first), (keeper, last), (other, last)]
    table.cut |= {*apart, *((there, here) for here, there in apart)}
    table.publish(first, "lost in t")
    table.publish(second, "lost in u", "u")
    table.wait(5 * SECOND)
    assert table.delivered[last] == ["lost in t", "lost in u"]
    table.publish(keeper, "late u", "u")
    table.publish(other, "late t")
    table.isolate(last)
    table.wait(5 * SECOND)
    assert table.delivered[keeper] == ["lost in t", "late u"]
    assert table.delivered[other] == ["lost in u", "late t"]
    table.heal()
    table.isolate(reader)
    table.isolate(last)
    table.wait(5 * SECOND)
    for number in (keeper, other):
        assert len(table.delivered[number]) == 4
        forget(table, number, ("t", first, 1), ("u", second, 1))
    for gone in (first, second):
        table.crash(gone)
        for number in present:
            table.nodes[number].dismiss(f"p{gone}", now_ns=table.now_ns)
            table.drain(number)
    table.heal()
    table.isolate(last)
    table.wait(ACROSS.patience_ns + 2 * SECOND)
    return table


def forget(table: Table, number: int, *keys: tuple[str, int, int]) -> None:
    """Let a node cache some events no longer."""
    for key in keys:
        del table.nodes[number]._cache._items[key]
