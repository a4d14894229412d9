"""Events that nobody can give any more: nobody waits for them for ever, and order holds without them."""

import msgspec
import pytest
from tests.protocols.hypercube.harness import MS, SECOND, Table

from ensue.protocols.core import Join
from ensue.protocols.hypercube.config import HypercubeConfig

LIVE = HypercubeConfig(across_topics=False, patience_ns=5 * SECOND)
CONFIGS = [LIVE, msgspec.structs.replace(LIVE, across_topics=True)]
PATIENCE = LIVE.patience_ns + 15 * SECOND


def live(config: HypercubeConfig, count: int, *members: int) -> Table:
    table = Table(count, config)
    for number in members:
        table.subscribe(number)
    table.wait(10 * MS)
    return table


def missed(table: Table, number: int) -> list[tuple[int, int]]:
    return [one.missed for one in table.outcomes[number] if isinstance(one, Join) and one.missed]


def lost_question(config: HypercubeConfig, *survivors: int) -> Table:
    """Return a table whose survivors hold an answer; who asked and who answered are gone."""
    table = live(config, 6, 1, *survivors)
    table.cut = {(0, number) for number in survivors}
    table.publish(0, "question")
    table.run()
    assert table.delivered[1] == ["question"]
    table.crash(0)
    table.publish(1, "answer")
    table.run()
    table.crash(1)
    assert all(table.nodes[number].held_count == 1 for number in survivors)
    return table


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
@pytest.mark.parametrize("survivors", [(2,), (2, 3), (2, 3, 4, 5)])
def test_an_answer_is_delivered_though_its_question_is_gone_with_all_who_had_it(
    config: HypercubeConfig, survivors: tuple[int, ...]
) -> None:
    table = lost_question(config, *survivors)
    table.wait(PATIENCE)
    for number in survivors:
        assert table.delivered[number] == ["answer"], number
        assert missed(table, number) == [(1, 1)], number
        assert table.nodes[number].held_count == 0


@pytest.mark.parametrize("config", CONFIGS, ids=["topic", "across"])
def test_the_rest_of_a_source_is_delivered_though_its_first_event_is_gone(
    config: HypercubeConfig,
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
def test_who_has_left_for_good_is_given_up_as_who_crashed_is(config: HypercubeConfig) -> None:
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
def test_nothing_of_those_who_are_there_is_lost_meanwhile(config: HypercubeConfig) -> None:
    """They publish all the time, and what they send is on its way while a question is given up."""
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
