"""Open requests: one per topic, repeated ever less often, and measured only if it was sent once."""

import pytest

from ensue.protocols.shared.round_trips import RoundTrips
from ensue.protocols.topic_log.frames import Attached
from ensue.protocols.total.gap_requests import OpenRequests

MS = 1_000_000
FIRST_NS = 50 * MS
"""The time-out before anything was measured."""


def opened() -> OpenRequests:
    return OpenRequests(RoundTrips(initial_ns=200 * MS, least_ns=10 * MS, most_ns=8000 * MS))


def answer(sent: int, end: int, topic: str = "a") -> Attached:
    return Attached(topic=topic, first=1, next=end, sent=sent)


def test_answer_to_a_request_that_was_sent_once_is_a_sample() -> None:
    requests = opened()
    requests.sent("a", 0)
    requests.measure("a", 6 * MS)
    assert requests.timeout_ns == 18 * MS


def test_answer_to_one_of_several_requests_is_no_sample() -> None:
    requests = opened()
    requests.sent("a", 0)
    requests.sent("a", 90 * MS)
    requests.measure("a", 96 * MS)
    assert requests.timeout_ns == FIRST_NS
    requests.sent("a", 200 * MS)
    requests.measure("a", 206 * MS)
    assert requests.timeout_ns == 18 * MS


def test_second_answer_is_no_sample() -> None:
    requests = opened()
    requests.sent("a", 0)
    requests.measure("a", 6 * MS)
    requests.measure("a", 500 * MS)
    assert requests.timeout_ns == 18 * MS


def test_open_request_is_repeated_after_twice_as_long_each_time() -> None:
    requests = opened()
    times = [now_ms for now_ms in range(400) if requests.ask("a", 1, now_ms * MS)]
    assert times == [0, 50, 150, 350]


def test_requests_on_different_topics_do_not_wait_for_each_other() -> None:
    requests = opened()
    assert requests.ask("a", 1, 0)
    assert requests.ask("b", 1, 0)
    assert requests.is_open("a")
    assert not requests.is_open("c")


def test_only_the_answer_to_the_latest_request_closes_it() -> None:
    requests = opened()
    requests.ask("a", 5, 0)
    assert not requests.answered(answer(5, 9))
    assert not requests.answered(answer(7, 7, "b"))
    assert requests.is_open("a")
    assert requests.answered(answer(6, 9))
    assert not requests.answered(answer(6, 9))


def test_answer_that_has_everything_closes_any_request() -> None:
    requests = opened()
    requests.ask("a", 5, 0)
    assert requests.answered(answer(5, 5))


@pytest.mark.parametrize("every_topic", [False, True], ids=["topic left", "connection lost"])
def test_answers_to_dropped_requests_are_not_waited_for_and_not_measured(
    every_topic: bool,
) -> None:
    requests = opened()
    requests.ask("a", 1, 0)
    requests.sent("a", 0)
    if every_topic:
        requests.drop_all()
    else:
        requests.drop("a")
    assert not requests.is_open("a")
    requests.measure("a", 6 * MS)
    assert requests.timeout_ns == FIRST_NS
    assert requests.ask("a", 1, 0)
    requests.sent("a", 10 * MS)
    requests.measure("a", 16 * MS)
    assert requests.timeout_ns == 18 * MS
